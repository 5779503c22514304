"""One call of a client, a stream of HTTP/2: its messages as they come, and what is written back.

Here: where a message begins and ends, windows, and waiting. Not here: the frames of a connection (`connection`), and
what messages mean.
"""

import asyncio
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

from gateway.client.grpc.frames import RST_STREAM, STREAM_WINDOW, WINDOW_UPDATE, Buffer, Code
from gateway.client.peers import client_left
from gateway.config import Limits
from gateway.errors import ErrorKind, GatewayError
from gateway.pacing import Pacer
from gateway.policy.slowness import Backlog, Upload
from gateway.waiting import Waiter, wake_soon

if TYPE_CHECKING:
    from gateway.client.grpc.connection import GrpcConnection

PREFIX_BYTES = 5
"""Before a message: whether it is compressed, and its length."""

OPEN_BYTES = 1024 * 1024
"""How far the window of a stream is opened, beyond what it has at first, for a message that was admitted."""

SKIPPED_BYTES = 256 * 1024
"""The most of a refused message that is read and dropped, so that a stream of messages can go on."""

WRITE_BYTES = 256 * 1024
"""How much of a reply is made frames of at once."""

FLUSH_BYTES = 16 * 1024
"""A shorter piece at the end of a reply goes out with its trailers, in one write."""

DEADLINE_WORDS = "Deadline Exceeded: the client's deadline (grpc-timeout) is over"
"""They begin as those of gRPC's own clients, which programs look for: either side may be the first to notice."""


class State(IntEnum):
    """How far the answer on a stream has come."""

    WAITING = 0
    ANSWERED = 1
    """Headers have gone out."""
    FINISHED = 2
    """The end has gone out."""
    RESET = 3
    """Nothing more can go out, without an end: the client left, or the gateway has given up."""


class Stream:
    """What comes on a stream, and who waits for it; what goes out on it."""

    def __init__(self, connection: "GrpcConnection", number: int) -> None:
        """*number* is the stream's in HTTP/2."""
        self.connection = connection
        self.number = number
        self.begun_s = connection.time()
        self.unread = bytearray()
        """What has come and was not taken yet; no more than the stream's window."""
        self.is_ended = False
        """Whether the client sends nothing more."""
        self.window = STREAM_WINDOW
        """How much the client may send."""
        self.room = connection.sender.initial_window
        """How much the client has room for; below zero where it has made its window smaller."""
        self.state = State.WAITING
        self.task: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._waiter: Waiter | None = None  # of `more`
        self._room_waiter: Waiter | None = None  # of `write`
        self.upload = Upload()
        """How fast the message comes."""
        self._backlog: Backlog | None = None  # while a reply waits for room, to its end
        self._written_bytes = 0

    @property
    def is_answered(self) -> bool:
        """Whether headers have gone out."""
        return self.state is State.ANSWERED or self.state is State.FINISHED

    @property
    def is_closed(self) -> bool:
        """Whether nothing more can go out."""
        return self.state >= State.FINISHED

    @property
    def is_between(self) -> bool:
        """Whether the next message is waited for, and the client may take its time."""
        return self._waiter is not None and not self.upload.is_awaited

    # What comes

    def feed(self, data: Buffer) -> None:
        """Keep *data*, which has come."""
        self.unread += data
        self.upload.received_bytes += len(data)
        wake_soon(self._waiter)

    def end(self) -> None:
        """The client sends nothing more."""
        self.is_ended = True
        wake_soon(self._waiter)

    def break_off(self, error: Exception) -> None:
        """Let whoever reads, now or next, get *error*."""
        self._failure = error
        wake_soon(self._waiter)

    def take(self, n_bytes: int) -> bytearray:
        """At most *n_bytes* of what has come. Raises what `break_off` was told."""
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        taken = self.unread
        if len(taken) > n_bytes:
            self.unread = taken[n_bytes:]
            del taken[n_bytes:]
        else:
            self.unread = bytearray()
        self.connection.taken(len(taken))
        return taken

    async def more(self, n_bytes: int, *, is_idle: bool = False) -> None:
        """Wait until more has come, of *n_bytes* that are welcome, or the end.

        The client may take its time if it *is_idle*. Raises what `break_off` was told.
        """
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if self.is_ended:
            return
        n_bytes = min(n_bytes, OPEN_BYTES)
        if self.window * 2 < n_bytes:
            self._send(WINDOW_UPDATE, n_bytes - self.window)
            self.window = n_bytes
        if not is_idle:
            self.upload.begin_waiting(self.connection.time())
        self._waiter = Waiter(self.connection.owner.loop)
        try:
            await self._waiter
        finally:
            self._waiter = None
            self.upload.end_waiting(self.connection.time())
        if self._failure is not None:
            raise self._failure.with_traceback(None)

    def forgive(self) -> None:
        """Judge the client's speed anew: between two messages of a stream it may take its time."""
        self.upload = Upload()

    def look(self, now_s: float, limits: Limits) -> str:
        """End the call if the client is too slow; the limit that says so, empty if none does."""
        if self.connection.out.is_behind and self.upload.is_awaited:
            self.upload.begin_waiting(now_s)  # anew: nothing is read from the client meanwhile
        if words := self.upload.find_slowness(now_s, limits.body_timeout):
            words = f"the client sent its message too slowly: {words} (limits.body_timeout)"
            self.break_off(GatewayError(ErrorKind.SLOW_CLIENT, words))
            return "body_timeout"
        if self._backlog is None or not self._backlog.find_slowness(self._written_bytes, now_s, limits.client_idle):
            return ""
        self.connection.out.cut_reason = "the client read its reply too slowly (limits.client_idle)"
        self.reset(Code.INTERNAL_ERROR)
        self.cancel()
        return "client_idle"

    # What goes out

    def begin(self, fields: bytes) -> None:
        """Send the headers of an answer, *fields* as HPACK. Raises `ConnectionError` when the client left."""
        self._check_open()
        self.connection.sender.add_fields(self.number, fields, is_end=False)
        self.state = State.ANSWERED

    async def write(self, buffers: Sequence[Buffer], pacer: Pacer) -> None:
        """Send *buffers* in frames as the client has room; the last of them go out with `Connection.flush` or `finish`.

        Raises `ConnectionError` when the client left.
        """
        out = self.connection.out
        for piece in _pieces(buffers):
            if out.is_behind:  # of all streams, one adds a piece to what waits
                await out.drain()
            at = 0
            while at < len(piece):
                part = self._send_data(piece[at:] if at else piece)
                if not part:
                    self.connection.flush()
                    await self._wait_for_room()
                at += part
            if len(piece) >= FLUSH_BYTES:
                self.connection.flush()
                await pacer.breathe()
        if out.is_behind:
            await out.drain()
        self._backlog = None

    def _send_data(self, data: Buffer) -> int:
        """Make a frame of as much of *data* as there is room for; how much."""
        self._check_open()
        n_bytes = min(self.connection.sender.room(self.room), len(data))
        if n_bytes:
            self.room -= n_bytes
            self._written_bytes += n_bytes
            self.connection.sender.add_data(self.number, data[:n_bytes])
            self.connection.patience.earn(1)  # clients measure the way with a ping for what has come
        return n_bytes

    async def _wait_for_room(self) -> None:
        self._room_waiter = Waiter(self.connection.owner.loop)
        if self._backlog is None:
            self._backlog = Backlog(self._written_bytes, self.connection.time())
        await self._room_waiter

    def has_room(self) -> None:
        """The client can take more."""
        wake_soon(self._room_waiter)

    def finish(self, fields: bytes) -> None:
        """Send the trailers, or all that there is where no headers have gone out; the stream is over then.

        A client that still sends is told that nothing more is read, in one write with the end of the answer (RFC 9113
        section 8.1): gRPC's C core may take a reset that comes later for a failure of the call. Raises
        `ConnectionError` when the client left.
        """
        self._check_open()
        self.connection.sender.add_fields(self.number, fields, is_end=True)
        self.state = State.FINISHED
        if not self.is_ended:
            self._send(RST_STREAM, Code.NO_ERROR)
            self.end()
        self.connection.flush()

    def _check_open(self) -> None:
        if self.is_closed or not self.connection.is_open:
            raise client_left()

    def _send(self, kind: int, number: int) -> None:
        """Send a frame with nothing but a *number*."""
        self.connection.sender.add(kind, number=self.number, payload=number.to_bytes(4))
        self.connection.flush()

    # The end

    def reset(self, code: Code) -> None:
        """End the stream without an answer, or in the middle of it."""
        if not self.is_closed:
            self._send(RST_STREAM, code)
        self.close()

    def close(self) -> None:
        """The stream is gone: nothing more comes or goes."""
        if not self.is_closed:
            self.state = State.RESET
        self.break_off(client_left())
        wake_soon(self._room_waiter)

    def cancel(self) -> None:
        """The client does not want the answer any more."""
        self.close()
        if self.task is not None:
            self.task.cancel()


class Message:
    """One message while it comes: what a `ClientBody` reads from."""

    __slots__ = ("_content_length", "_is_one_of_many", "_left", "_read", "is_compressed", "length", "stream")

    def __init__(self, stream: Stream, *, content_length: str = "", is_one_of_many: bool = False) -> None:
        """*content_length*: how many bytes the call says that it has, if it does.

        *is_one_of_many*: others may follow, and the client may take its time before each.
        """
        self.stream = stream
        self._content_length = content_length
        self._is_one_of_many = is_one_of_many
        self._left = PREFIX_BYTES
        self._read: asyncio.Future[None] | None = None
        self.length: int | None = None
        """In bytes; None before `begin`."""
        self.is_compressed = False

    async def begin(self) -> bool:
        """Wait for the length; whether there is a message. Raises `GatewayError` for a beginning that is cut off."""
        stream = self.stream
        if self._is_one_of_many:
            stream.forgive()
        while len(stream.unread) < PREFIX_BYTES:
            if stream.is_ended:
                if not stream.unread:
                    return False
                raise _cut_off(len(stream.unread), PREFIX_BYTES)
            await stream.more(STREAM_WINDOW, is_idle=self._is_one_of_many and not stream.unread)
        prefix = stream.take(PREFIX_BYTES)
        if prefix[0] > 1:
            raise GatewayError(ErrorKind.MALFORMED_REQUEST, "malformed message: its first byte must be 0 or 1")
        self.is_compressed = bool(prefix[0])
        self._left = self.length = int.from_bytes(prefix[1:])
        if self._content_length and int(self._content_length) != PREFIX_BYTES + self.length:  # RFC 9113 section 8.1.1
            words = f"{PREFIX_BYTES + self.length} bytes, and its content-length is {self._content_length}"
            raise GatewayError(ErrorKind.MALFORMED_REQUEST, f"malformed call: its message takes {words}")
        return True

    @property
    def upload(self) -> Upload:
        """How fast it comes."""
        return self.stream.upload

    @property
    def has_arrived(self) -> bool:
        """Whether all of it is there to be read, or was read."""
        return self.length is not None and len(self.stream.unread) >= self._left

    @property
    def is_read(self) -> bool:
        """Whether all of it was read."""
        return self.length is not None and not self._left

    def read_arrived(self) -> Buffer:
        """What has come of it, possibly nothing. Raises as `read_more` does."""
        taken = self.stream.take(self._left)
        self._left -= len(taken)
        if not self._left:
            self._end_reading()
        return taken

    async def read_more(self) -> Buffer:
        """What has come of it; waits if that is nothing; empty at the end. To be called when it was admitted.

        Raises `GatewayError`, MALFORMED_REQUEST where it is cut off and SLOW_CLIENT where it comes too slowly
        (`limits.body_timeout`); `ConnectionError` if the client left.
        """
        stream = self.stream
        while self._left:
            if chunk := self.read_arrived():
                return chunk
            if stream.is_ended:
                assert self.length is not None
                raise _cut_off(self.length - self._left, self.length)
            await stream.more(self._left)
        return b""

    def check_alone(self) -> None:
        """Raise `GatewayError` if another message has come behind the only one that the call may have."""
        if self.stream.unread and not self._is_one_of_many:
            raise GatewayError(ErrorKind.MALFORMED_REQUEST, "the call has more than one message")

    def fail(self, error: Exception) -> None:
        """Let whoever reads get *error*."""
        self.stream.break_off(error)

    def wait_until_read(self) -> "asyncio.Future[None]":
        """Is done when all of it was read."""
        self._read = read = asyncio.get_running_loop().create_future()
        if self.is_read:
            self._end_reading()
        return read

    def _end_reading(self) -> None:
        if self._read is not None and not self._read.done():
            self._read.set_result(None)

    async def skip(self) -> bool:
        """Read and drop the rest of a message that was refused; False if it is too much."""
        if self._left > SKIPPED_BYTES:
            return False
        while await self.read_more():
            pass
        return True


def _cut_off(n_bytes: int, expected: int) -> GatewayError:
    return GatewayError(ErrorKind.MALFORMED_REQUEST, f"the message is cut off: {n_bytes} of {expected} bytes have come")


def _pieces(buffers: Iterable[Buffer]) -> Iterable[Buffer]:
    """*buffers* in pieces of `WRITE_BYTES` at most; short ones are joined."""
    joined: list[Buffer] = []
    n_bytes = 0
    for buffer in buffers:
        if n_bytes + len(buffer) > WRITE_BYTES:
            if joined:
                yield b"".join(joined)
                joined, n_bytes = [], 0
            view = memoryview(buffer)
            for start in range(0, len(view), WRITE_BYTES):
                yield view[start : start + WRITE_BYTES]
        else:
            joined.append(buffer)
            n_bytes += len(buffer)
    if joined:
        yield b"".join(joined)
