"""What a backend is asked: a request, how its head is written, and its body while it is sent.

Not here: connections, and what is made of an answer (`attempt`).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

import msgspec

from gateway.backend.arriving import LostError
from gateway.backend.deadlines import Deadlines
from gateway.backend.endpoints import Endpoint
from gateway.backend.wire import Wire
from gateway.errors import ErrorKind, GatewayError
from gateway.exchange import Attempt, new_span_id
from gateway.policy.trace_context import Trace

PIECE_BYTES = 256 * 1024
"""A body that the gateway holds is written to the connection in pieces of this size."""

Pieces = AsyncIterator[bytes | bytearray | memoryview]

log = logging.getLogger("gateway")


class Body(msgspec.Struct, frozen=True):
    """A request's body: none, bytes, or a stream that is opened anew for every attempt."""

    whole: bytes | None = None
    open: Callable[["Sending"], Pieces] | None = None
    length: int | None = None
    """Of a stream, in bytes; None: it is sent in chunks."""
    can_be_repeated: bool = True
    """Whether `open` gives the same pieces again."""

    @classmethod
    def of(cls, *buffers: memoryview) -> "Body":
        """*buffers* whole if they are small, else as a stream of their slices, so that they are not held twice."""
        n_bytes = sum(map(len, buffers))
        if n_bytes <= PIECE_BYTES:
            return cls(whole=b"".join(buffers))

        async def pieces(sending: "Sending") -> Pieces:
            for data in buffers:
                for start in range(0, len(data), PIECE_BYTES):
                    piece = data[start : start + PIECE_BYTES]
                    sending.piece(len(piece))
                    yield piece
            sending.done()

        return cls(open=pieces, length=n_bytes)


class BackendRequest(msgspec.Struct, frozen=True):
    """What a backend is asked: the path is raw, with its query."""

    method: str
    raw_path: str
    headers: list[tuple[str, str]]
    """Without `Host` and without the framing of the body."""
    body: Body
    is_metadata: bool = False
    """Whether the gateway asks for itself, for a model's metadata."""
    trace: Trace | None = None
    """Of which each attempt is a span of its own."""
    is_read_whole: bool = False
    """Whether nothing is done with the answer's head before its body is there, so that small ones are waited for."""
    is_passed: bool = False
    """Whether it is an inference as it came, which only endpoints may get that speak the binary extension."""

    def first_bytes(self, endpoint: Endpoint, attempt: Attempt) -> bytes:
        """The head for *endpoint*, with a body that is whole; *attempt* notes what it holds. Raises `GatewayError`."""
        headers, body = self.headers, self.body
        target = f"{endpoint.base_path}{self.raw_path}"
        if self.trace is not None:
            attempt.span_id, attempt.method, attempt.target = new_span_id(), self.method, target
            headers = headers + self.trace.fields(attempt.span_id)
        lines = [f"{self.method} {target} HTTP/1.1\r\nHost: {endpoint.authority}", *map(": ".join, headers)]
        whole = body.whole
        if whole is not None:
            attempt.request_bytes = len(whole)
            lines.append(f"Content-Length: {len(whole)}\r\n\r\n")
        elif body.open is None:
            lines.append("\r\n")
        elif body.length is None:
            lines.append("Transfer-Encoding: chunked\r\n\r\n")
        else:
            lines.append(f"Content-Length: {body.length}\r\n\r\n")
        head = "\r\n".join(lines)
        n_lines = len(headers) + (3 if whole is None and body.open is None else 4)
        if head.count("\n") != n_lines or head.count("\r") != n_lines:  # a line break would begin another field
            raise GatewayError(ErrorKind.INTERNAL, "a line break in a header of the request to the backend")
        data = head.encode(errors="surrogateescape")
        return data + whole if whole else data


class Sending:
    """A streamed body while it is sent. The body tells of its progress, so that the right timeout runs."""

    error: GatewayError | None = None
    """Why the body cannot be sent to its end."""
    is_sent = False
    is_answered = False
    """Whether the answer has begun, maybe before all was sent: from then on its reading sets the timeouts."""

    def __init__(self, deadlines: Deadlines, attempt: Attempt) -> None:
        self._deadlines = deadlines
        self._attempt = attempt
        self._task: asyncio.Task[None] | None = None

    def piece(self, n_bytes: int) -> None:
        """*n_bytes* are handed to the connection now: the backend has `idle` to take them."""
        self._attempt.request_bytes += n_bytes
        self._enter("idle")

    def paused(self) -> None:
        """The gateway waits for the client, for which the backend is not to blame."""
        self._enter("client")

    def done(self) -> None:
        """All is sent: the backend has `first_byte` to begin its answer."""
        self._enter("first_byte")

    def _enter(self, phase: str) -> None:
        if not self.is_answered:
            self._deadlines.enter(phase)

    def begin(self, wire: Wire, pieces: Pieces, *, in_chunks: bool) -> None:
        """Send *pieces* over *wire* from now on, beside the reading of the answer; `stop` and `stopped` must follow.

        If the body cannot be sent to its end, the connection is closed, so that reading the answer ends with `error`.
        """
        self._task = asyncio.ensure_future(self._send(wire, pieces, in_chunks=in_chunks))

    async def _send(self, wire: Wire, pieces: Pieces, *, in_chunks: bool) -> None:
        try:
            async for piece in pieces:
                if not piece:
                    continue  # as a chunk it would be the end
                wire.send(b"".join((b"%x\r\n" % len(piece), piece, b"\r\n")) if in_chunks else piece)
                await wire.drain()
            if in_chunks:
                wire.send(b"0\r\n\r\n")
            self.is_sent = True
            return
        except LostError:
            return  # reading finds out how
        except GatewayError as error:
            self.error = error
        except ConnectionError:
            self.error = GatewayError(ErrorKind.CLIENT_CLOSED, "the client left while it was sending")
        except Exception as error:
            log.exception("the request's body could not be made")
            self.error = GatewayError(ErrorKind.INTERNAL, f"internal error: {type(error).__name__}")
        wire.abort()

    def stop(self) -> None:
        """Send no more."""
        if self._task is not None:
            self._task.cancel()

    async def stopped(self) -> None:
        """Wait until nothing reads the body any more, behind `stop`.

        A task that was cancelled keeps its error, by whose traceback it keeps the body: not as long as this object.
        """
        if self._task is not None and not self._task.done():
            await asyncio.wait((self._task,))
        self._task = None
