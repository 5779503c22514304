"""The record of one request: filled in while the request is served, and read once, at its end, by telemetry.

Not here: metrics, logs and decisions.
"""

import random
from enum import StrEnum
from typing import Literal

import msgspec

from gateway.errors import ErrorKind
from gateway.policy.trace_context import Trace


class Format(StrEnum):
    """The form of a body."""

    BINARY = "binary"
    JSON = "json"
    OTHER = "other"


PROTOCOLS = ("http", "grpc")
"""What clients speak."""


class Attempt(msgspec.Struct, gc=False):
    """One try to have a request answered by an endpoint; its seconds count from its start, after the queue."""

    endpoint: str
    started_s: float
    request_bytes: int = 0
    response_bytes: int = 0
    code: str = "none"
    """The status, or the label of the error that ended it before there was one."""
    queue_s: float | None = None
    """Spent waiting for one of the backend's connections, also in vain; None while the wait lasts."""
    first_byte_s: float | None = None
    seconds: float = 0.0
    repeated_for: str = ""
    """The label of the error for which the same request was tried once more after this: as a retry, or at once over a
    new connection because a kept one had died; empty if it was not."""
    is_joined: bool = False
    """Whether it was made for a batch and counts with another of its requests; the bytes are this request's share."""
    is_metadata: bool = False
    """Whether this asked for the model's metadata, not for an inference."""
    connection: Literal["new", "reused"] | None = None
    """What it went over; None while it has none."""
    span_id: str = ""
    """In hexadecimal, as the backend got it; empty if the request is not traced."""
    method: str = ""
    target: str = ""
    """The path and query that the endpoint was asked for; this and the method only if the request is traced."""


class Exchange(msgspec.Struct, gc=False):
    """One request of a client, from its head to the last byte of its reply. Bytes are bodies on the wire.

    A msgspec struct is made in a third of the time of a dataclass. It holds texts, numbers and attempts, and nothing
    that could lead back to it, so the garbage collector need not look at it.
    """

    client: str
    """The client's address; behind a trusted proxy, the one that the proxy names."""
    method: str
    path: str
    request_id: str
    started_s: float
    """Of the event loop's clock."""
    client_name: str = ""
    """The name of the client's token; empty where no token is needed, or none was found."""
    protocol: str = "http"
    """What the client speaks: one of `PROTOCOLS`."""
    model: str | None = None
    route: str = "none"
    backend: str = "none"
    is_inference: bool = False
    """Whether it was handled as an inference: a POST to an infer path."""
    status: int = 0
    """0 until something was sent to the client. Of gRPC, the status of HTTP that is paired with its own."""
    rpc_status: str = ""
    """The status of gRPC that was sent, such as `NOT_FOUND`; empty for HTTP."""
    error: ErrorKind | None = None
    detail: str = ""
    """The error's text."""
    client_format: Format = Format.OTHER
    reply_format: Format = Format.OTHER
    upstream_format: Format = Format.OTHER
    """Of the last attempt: one may pass on what came, and the next one be transcoded."""
    client_request_bytes: int = 0
    client_response_bytes: int = 0
    queue_s: float = 0.0
    """Spent waiting until slow uploads made room for it (`policy.admission`); not in the queue of an attempt."""
    attempts: list[Attempt] = []
    is_transcoded: bool = False
    request_codec_s: float = 0.0
    response_codec_s: float = 0.0
    request_codec_at_s: float = 0.0
    """When the codec began, by `time.perf_counter`; 0 if it did not."""
    response_codec_at_s: float = 0.0
    request_codec_until_s: float = 0.0
    """When the codec's last step ended, if it worked in steps; the time between them is not the codec's."""
    response_codec_until_s: float = 0.0
    input_datatypes: list[str] = []
    output_datatypes: list[str] = []
    request_nonfinite: int = 0
    response_nonfinite: int = 0
    header_recovered: bool = False
    batch_rows: int = 0
    """The rows of the batch in which it went to the server, or its own; 0 if its model is not batched."""
    batch_wait_s: float = 0.0
    """How long it waited for others."""
    scheme: str = ""
    """`http` or `https`, if the request is traced."""
    trace: Trace | None = None
    """None if the request is not traced."""
    seconds: float = 0.0


def new_span_id() -> str:
    """16 random hexadecimal digits, not all zero."""
    return f"{random.getrandbits(64) or 1:016x}"
