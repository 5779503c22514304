"""What a backend is asked: a request, and its body while it is sent.

Not here: connections, and what is made of an answer (`attempt`).
"""

from collections.abc import AsyncIterator, Callable

import msgspec

from gateway.backend.deadlines import Deadlines
from gateway.errors import ErrorKind, GatewayError
from gateway.exchange import Attempt
from gateway.policy.trace_context import Trace

PIECE_BYTES = 256 * 1024
"""A body that the gateway holds is written to the connection in pieces of this size."""

Pieces = AsyncIterator[bytes | bytearray | memoryview]


class Body(msgspec.Struct, frozen=True):
    """A request's body: none, bytes, or a stream that is opened anew for every attempt."""

    whole: bytes | None = None
    open: Callable[["Sending"], Pieces] | None = None
    length: int | None = None
    """Of a stream, in bytes; None: it is sent in chunks."""
    can_be_repeated: bool = True
    """Whether `open` gives the same pieces again."""

    @classmethod
    def of(cls, data: memoryview) -> "Body":
        """*data* whole if it is small, else as a stream of its slices, so that it is not held twice."""
        if len(data) <= PIECE_BYTES:
            return cls(whole=bytes(data))

        async def pieces(sending: "Sending") -> Pieces:
            for start in range(0, len(data), PIECE_BYTES):
                piece = data[start : start + PIECE_BYTES]
                sending.piece(len(piece))
                yield piece
            sending.done()

        return cls(open=pieces, length=len(data))


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


def broken_line() -> GatewayError:
    """What is raised for a line break in a field, which would begin another one."""
    return GatewayError(ErrorKind.INTERNAL, "a line break in a header of the request to the backend")


class Sending:
    """What a streaming body tells of its progress, so that the right timeout runs."""

    __slots__ = ("_attempt", "_deadlines", "_is_answered")

    def __init__(self, deadlines: Deadlines, attempt: Attempt) -> None:
        self._deadlines = deadlines
        self._attempt = attempt
        self._is_answered = False

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

    def answered(self) -> None:
        """The answer has begun, maybe before all was sent: from now on its reading sets the timeouts."""
        self._is_answered = True

    def _enter(self, phase: str) -> None:
        if not self._is_answered:
            self._deadlines.enter(phase)
