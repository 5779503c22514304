"""The record of one request: filled in while the request is served, and read once, at its end, by telemetry."""

import math
import random
from collections.abc import Sequence
from enum import StrEnum
from typing import Literal

import msgspec

from gateway.errors import ErrorKind
from gateway.pacing import Pacer
from gateway.policy.trace_context import Trace


class Format(StrEnum):
    """The form of a body."""

    BINARY = "binary"
    JSON = "json"
    OTHER = "other"


BINARY, JSON = Format.BINARY, Format.JSON
"""On Python 3.11 a member takes ten times as long to look up in its class as a name in a module."""

PROTOCOLS = ("http", "grpc")
"""The protocols of clients."""


class Attempt(msgspec.Struct, gc=False):
    """One try to have a request answered by an endpoint. Its seconds count from `started_s`, after the queue."""

    endpoint: str
    started_s: float
    request_bytes: int = 0
    response_bytes: int = 0
    code: str = "none"
    """The answer's status, or the label of the error that ended the attempt before there was a status."""
    queue_s: float | None = None
    """The wait for one of the backend's connections, also one in vain; None while the wait lasts."""
    first_byte_s: float | None = None
    seconds: float = 0.0
    repeated_for: str = ""
    """The label of the error that caused another attempt after this: a retry, or the same at once over a new connection
    because a kept one had died; empty if there was no other."""
    is_joined: bool = False
    """Whether another request of the same batch counts this attempt; the bytes are this request's share."""
    is_metadata: bool = False
    """Whether this attempt asked for the model's metadata, not for an inference."""
    connection: Literal["new", "reused"] | None = None
    """The connection that the attempt went over; None while it has none."""
    span_id: str = ""
    """The span's id as the backend got it, in hexadecimal; empty if the request is not traced."""
    method: str = ""
    target: str = ""
    """The path and query for the endpoint; like the method, only set if the request is traced."""


class Exchange(msgspec.Struct, gc=False):
    """One request of a client, from its head to the last byte of its reply. Bytes are bodies on the wire.

    A msgspec struct is made in a third of the time of a dataclass. Texts, numbers and attempts cannot form a cycle of
    references, so the garbage collector need not track the struct (`gc=False`).
    """

    client: str
    """The client's address; behind a trusted proxy, the one that the proxy names."""
    method: str
    path: str
    request_id: str
    started_s: float
    """The start, by the event loop's clock."""
    client_name: str = ""
    """The name of the client's token; empty where no token is needed, or none was found."""
    protocol: str = "http"
    """The client's protocol, one of `PROTOCOLS`."""
    model: str | None = None
    route: str = "none"
    backend: str = "none"
    is_inference: bool = False
    """Whether the request was handled as an inference: a POST to an infer path."""
    status: int = 0
    """The status sent to the client; 0 until one was sent. For gRPC, the HTTP status paired with the gRPC status."""
    rpc_status: str = ""
    """The gRPC status sent to the client, such as `NOT_FOUND`; empty for HTTP."""
    error: ErrorKind | None = None
    detail: str = ""
    """The error's text."""
    failed_at: str = ""
    """File and line of an adapter's function that has failed, for logs alone; empty if none has."""
    client_format: Format = Format.OTHER
    reply_format: Format = Format.OTHER
    upstream_format: Format = Format.OTHER
    """The format of the last attempt: one attempt may pass on the client's body, and the next one be transcoded."""
    client_request_bytes: int = 0
    client_response_bytes: int = 0
    queue_s: float = 0.0
    """The wait until slow uploads made room (`policy.admission`); the waits of attempts for a connection are theirs."""
    attempts: list[Attempt] = []
    is_transcoded: bool = False
    request_codec: Pacer = msgspec.field(default_factory=Pacer)
    """Runs the codec's work on the request, and counts its time."""
    response_codec: Pacer = msgspec.field(default_factory=Pacer)
    input_datatypes: list[str] = []
    output_datatypes: list[str] = []
    request_nonfinite: int = 0
    response_nonfinite: int = 0
    header_recovered: bool = False
    """Whether the client gave no header length, and it was found (protocol section 6)."""
    batch_rows: int = 0
    """The rows of the request's batch, or its own rows if it went alone; 0 if the model is not batched."""
    batch_wait_s: float = 0.0
    """How long the request waited for others to go with."""
    scheme: str = ""
    """`http` or `https`, if the request is traced."""
    trace: Trace | None = None
    """The request's place in a trace; None if the request is not traced."""
    seconds: float = 0.0


def upstream_times(attempts: Sequence[Attempt], now_s: float = 0.0) -> tuple[float, float]:
    """Seconds in which attempts ran, and in which they only waited for a connection.

    Time in which several run, because an inference goes to the server in several requests, counts once. An attempt that
    still goes on counts up to *now_s*, by the event loop's clock.
    """
    if len(attempts) == 1:
        return attempts[0].seconds or max(0.0, now_s - attempts[0].started_s), attempts[0].queue_s or 0.0
    spans = [(each.started_s, each.started_s + each.seconds if each.seconds else now_s) for each in attempts]
    ran_s = _covered(spans)
    waits = [(each.started_s - each.queue_s, each.started_s) for each in attempts if each.queue_s]
    return ran_s, max(0.0, _covered(spans + waits) - ran_s) if waits else 0.0


def _covered(spans: list[tuple[float, float]]) -> float:
    """For how long at least one of *spans*, each a begin and an end, lasts."""
    covered, until = 0.0, -math.inf
    for begin, end in sorted(spans):
        if end > until:
            covered += end - max(begin, until)
            until = end
    return covered


def new_span_id() -> str:
    """16 random hexadecimal digits, not all zero."""
    return f"{random.getrandbits(64) or 1:016x}"
