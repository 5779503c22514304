"""A request to a backend: its parts, and the writing of its head."""

import math
from collections.abc import AsyncIterator, Callable

import msgspec

from gateway.backend.endpoints import Endpoint
from gateway.errors import ErrorKind, GatewayError
from gateway.exchange import Attempt, new_span_id
from gateway.policy.trace_context import Trace

PIECE_BYTES = 256 * 1024
"""The size of the pieces in which a body held in memory is written to the connection."""

Pieces = AsyncIterator[bytes | bytearray | memoryview]


class Body(msgspec.Struct, frozen=True):
    """A request's body: none, bytes (`whole`), or a stream that every attempt opens anew (`open`)."""

    whole: bytes | None = None
    open: Callable[[], Pieces] | None = None
    length: int | None = None
    """The length of a stream in bytes; None: it is sent in chunks."""
    can_be_repeated: bool = True
    """Whether `open` gives the same pieces again; if not, they come from the client, and may be late."""

    @classmethod
    def of(cls, *buffers: memoryview) -> "Body":
        """The body of *buffers*: whole if they are small, else a stream of their slices, which copies nothing."""
        n_bytes = sum(map(len, buffers))
        if n_bytes <= PIECE_BYTES:
            return cls(whole=b"".join(buffers))

        async def pieces() -> Pieces:
            for data in buffers:
                for start in range(0, len(data), PIECE_BYTES):
                    yield data[start : start + PIECE_BYTES]

        return cls(open=pieces, length=n_bytes)


class BackendRequest(msgspec.Struct, frozen=True):
    """A request to a backend; the path is raw, with its query."""

    method: str
    raw_path: str
    headers: list[tuple[str, str]]
    """The header fields without `Host` and without the framing of the body."""
    body: Body
    is_metadata: bool = False
    """Whether the gateway itself asks, for a model's metadata."""
    trace: Trace | None = None
    """The trace in which each attempt is a span."""
    is_read_whole: bool = False
    """Whether the answer is judged once it was read, so that its connection is only kept if it was found right."""
    max_answer_bytes: float = math.inf
    """The most bytes that the body of a good answer may have: `limits.response_body`."""
    is_passed: bool = False
    """Whether this is an inference that passes unchanged, for endpoints with the binary extension alone."""
    is_continued: bool = False
    """Whether other requests for the same inference were sent before: it waits for a connection until
    `timeouts.total`, also where `queue` would refuse a new inference."""

    def first_bytes(self, endpoint: Endpoint, attempt: Attempt) -> bytes:
        """The head for *endpoint*, and the body if it is `whole`; *attempt* gets its span. Raises `GatewayError`."""
        headers, body = self.headers, self.body
        target = f"{endpoint.base_path}{self.raw_path}"
        if self.trace is not None:
            attempt.span_id, attempt.method, attempt.target = new_span_id(), self.method, target
            headers = headers + self.trace.fields(attempt.span_id)
        whole = body.whole
        lines = [f"{self.method} {target} HTTP/1.1", f"Host: {endpoint.authority}", *map(": ".join, headers)]
        if whole is not None:
            lines.append(f"Content-Length: {len(whole)}")
        elif body.length is not None:
            lines.append(f"Content-Length: {body.length}")
        elif body.open is not None:
            lines.append("Transfer-Encoding: chunked")
        head = "\r\n".join([*lines, "", ""])
        if not head.count("\n") == head.count("\r") == len(lines) + 1:  # a line break would begin another field
            raise GatewayError(ErrorKind.INTERNAL, "a line break in a header of the request to the backend")
        return head.encode(errors="surrogateescape") + (whole or b"")
