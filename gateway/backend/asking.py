"""A request to a backend: its parts, the writing of its head, and its body while it is sent.

Not here: connections, and reading the answer (`attempt`).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import msgspec

from gateway.backend.arriving import LostError
from gateway.backend.deadlines import Deadlines
from gateway.backend.endpoints import Endpoint
from gateway.backend.wire import Wire
from gateway.errors import ErrorKind, GatewayError
from gateway.exchange import Attempt, new_span_id
from gateway.policy.trace_context import Trace

PIECE_BYTES = 256 * 1024
"""The size of the pieces in which a body held in memory is written to the connection."""

Pieces = AsyncIterator[bytes | bytearray | memoryview]

log = logging.getLogger("gateway")


class Body(msgspec.Struct, frozen=True):
    """A request's body: none, bytes (`whole`), or a stream that every attempt opens anew (`open`)."""

    whole: bytes | None = None
    open: Callable[["Sending"], Pieces] | None = None
    length: int | None = None
    """The length of a stream in bytes; None: it is sent in chunks."""
    can_be_repeated: bool = True
    """Whether `open` gives the same pieces again."""

    @classmethod
    def of(cls, *buffers: memoryview) -> "Body":
        """The body of *buffers*: whole if they are small, else a stream of their slices, which copies nothing."""
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
    """Whether the answer's head is of no use without the body, so that the attempt waits for both if they are small."""
    is_passed: bool = False
    """Whether this is an inference that passes unchanged, for endpoints with the binary extension alone."""

    def first_bytes(self, endpoint: Endpoint, attempt: Attempt) -> bytes:
        """The head for *endpoint*, and the body if it is `whole`; *attempt* counts its bytes. Raises `GatewayError`."""
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


@dataclass(eq=False)
class Sending:
    """A streamed body while it is sent. The stream reports its progress here, so that the right timeout runs."""

    _deadlines: Deadlines
    _attempt: Attempt
    error: GatewayError | None = None
    """Why the body cannot be sent to its end."""
    is_sent: bool = False
    is_answered: bool = False
    """Whether the answer has begun, maybe before the body was sent: then reading the answer sets the timeouts."""
    _task: asyncio.Task[None] | None = None

    def piece(self, n_bytes: int) -> None:
        """Count *n_bytes* that are handed to the connection now: the backend has `timeouts.idle` to take them."""
        self._attempt.request_bytes += n_bytes
        self._enter("idle")

    def paused(self) -> None:
        """Note that the gateway waits for the client, which is not the backend's time."""
        self._enter("client")

    def done(self) -> None:
        """Note that the body is sent: the backend has `timeouts.first_byte` to begin its answer."""
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
                    continue  # an empty chunk would end the body
                wire.send(b"".join((b"%x\r\n" % len(piece), piece, b"\r\n")) if in_chunks else piece)
                await wire.drain()
            if in_chunks:
                wire.send(b"0\r\n\r\n")
            self.is_sent = True
            return
        except LostError:
            return  # reading the answer will say how the connection ended
        except GatewayError as error:
            self.error = error
        except ConnectionError:
            self.error = GatewayError(ErrorKind.CLIENT_CLOSED, "the client left while it was sending")
        except Exception as error:
            log.exception("the request's body could not be made")
            self.error = GatewayError(ErrorKind.INTERNAL, f"internal error: {type(error).__name__}")
        wire.abort()

    def stop(self) -> None:
        """Cancel the sending of the body."""
        if self._task is not None:
            self._task.cancel()

    async def stopped(self) -> None:
        """Wait, after `stop`, until nothing reads the body any more.

        The task is then forgotten: a cancelled task keeps its error, whose traceback would keep the body in memory.
        """
        if self._task is not None and not self._task.done():
            await asyncio.wait((self._task,))
        self._task = None
