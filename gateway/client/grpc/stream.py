"""One call of a client, a stream of HTTP/2: its messages as they come, and what is written back.

Here: where a message begins and ends, windows, and waiting.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.client.grpc import frames
from gateway.client.grpc.frames import Buffer, Buffers, Code, Http2Error
from gateway.client.grpc.heads import Head
from gateway.client.peers import client_left
from gateway.config import Limits
from gateway.errors import ErrorKind, GatewayError
from gateway.pacing import Pacer
from gateway.policy.slowness import Upload
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
"""How much of a reply is written at once; the rest of it goes out with its trailers."""

DEADLINE_WORDS = "Deadline Exceeded: the client's deadline (grpc-timeout) is over"
"""They begin as those of gRPC's own clients, which programs look for: either side may be the first to notice."""


class Stream:
    """What comes on a stream, and who waits for it; what goes out on it."""

    is_ended = False
    """Whether the client sends nothing more."""
    is_answered = False
    """Whether headers have gone out, and no reset behind them."""
    is_closed = False
    """Whether nothing more can go out: the end has, or the client left, or the gateway has given up."""
    task: asyncio.Task[None] | None = None
    """Serves the call; None before it does."""
    _failure: Exception | None = None
    _waiter: Waiter | None = None  # of `more`
    _room_waiter: Waiter | None = None  # of `write`
    _download: Upload | None = None  # of the reply, from where the client had no room for it

    def __init__(self, connection: "GrpcConnection", number: int, head: Head) -> None:
        """*number* is the stream's in HTTP/2, *head* what the client has begun it with."""
        self.connection = connection
        self.number = number
        self.head = head
        self.begun_s = connection.time()
        self.unread = bytearray()
        """What has come and was not taken yet; no more than the stream's window."""
        self.upload = Upload()
        """How fast the message comes."""
        self._window = frames.STREAM_WINDOW  # how much the client may send
        self._room = connection.sender.initial_room  # for the answer; below zero where the client has taken room back

    @property
    def is_between(self) -> bool:
        """Whether the next message is waited for, and the client may take its time."""
        return self._waiter is not None and not self.upload.is_awaited

    # What comes

    def feed(self, data: Buffer, n_bytes: int) -> None:
        """Keep *data*, which has come in *n_bytes*. Raises `Http2Error` behind the end, and beyond the window."""
        self._check_going_on()
        self._window -= n_bytes
        if self._window < 0:
            raise Http2Error(Code.FLOW_CONTROL_ERROR, f"more data than the window of stream {self.number} allows")
        self.unread += data
        self.upload.received_bytes += len(data)
        wake_soon(self._waiter)

    def end(self) -> None:
        """The client sends nothing more. Raises `Http2Error` if it has said so before."""
        self._check_going_on()
        self.is_ended = True
        wake_soon(self._waiter)

    def _check_going_on(self) -> None:
        if self.is_ended:
            raise Http2Error(Code.STREAM_CLOSED, f"something comes behind the end of stream {self.number}")

    def break_off(self, error: Exception) -> None:
        """Let whoever reads, now or next, get *error*."""
        self._failure = error
        wake_soon(self._waiter)

    def take(self, n_bytes: int) -> bytearray:
        """At most *n_bytes* of what has come. Raises what `break_off` was told."""
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        taken, self.unread = self.unread, self.unread[n_bytes:]
        del taken[n_bytes:]
        self.connection.taken(len(taken))
        return taken

    async def more(self, n_bytes: int, expected: int, *, is_idle: bool = False) -> None:
        """Wait until more has come than the *n_bytes* of *expected*; the client may take its time if it *is_idle*.

        Raises what `break_off` was told, and `GatewayError` where nothing more comes.
        """
        if self.is_ended:
            words = f"the message is cut off: {n_bytes} of {expected} bytes have come"
            raise GatewayError(ErrorKind.MALFORMED_REQUEST, words)
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        welcome = min(max(expected - n_bytes, frames.STREAM_WINDOW), OPEN_BYTES)
        if self._window * 2 < welcome:
            self._send(frames.WINDOW_UPDATE, welcome - self._window)
            self._window = welcome
        if not is_idle:
            self.upload.begin_waiting(self.connection.time())
        self._waiter = Waiter(self.connection.owner.loop)
        try:
            await self._waiter
        finally:
            self._waiter = None
            self.upload.end_waiting(self.connection.time())

    def look(self, now_s: float, limits: Limits) -> str:
        """End the call if the client is too slow; the limit that says so, empty if none does."""
        if self.connection.is_behind and self.upload.is_awaited:
            self.upload.begin_waiting(now_s)  # anew: nothing is read from the client meanwhile
        if words := self.upload.find_slowness(now_s, limits.body_timeout):
            words = f"the client sent its message too slowly: {words} (limits.body_timeout)"
            self.break_off(GatewayError(ErrorKind.SLOW_CLIENT, words))
            return "body_timeout"
        if self._download is None or not self._download.find_slowness(now_s, limits.client_idle):
            return ""
        self.connection.cut_reason = "the client read its reply too slowly (limits.client_idle)"
        self.cancel(Code.INTERNAL_ERROR)
        return "client_idle"

    # What goes out

    async def write(self, buffers: Sequence[Buffer], pacer: Pacer, fields: bytes = b"") -> None:
        """Send the headers of an answer, *fields* as HPACK if there are any, and *buffers* as the client has room.

        The last frames go out with `GrpcConnection.flush` or `finish`. Raises `ConnectionError` when the client left.
        """
        connection, left = self.connection, Buffers(buffers)
        if fields:
            self._check_open()
            connection.sender.add_fields(self.number, fields, is_end=False)
            self.is_answered = True
        while left.n_bytes:
            if connection.is_behind:  # of all streams, one adds a piece to what waits
                await connection.drain()
            self._check_open()
            sender = connection.sender
            n_bytes = max(0, min(left.n_bytes, WRITE_BYTES, self._room, sender.room, sender.frame_bytes))
            if n_bytes:
                self._room -= n_bytes
                if self._download is not None:
                    self._download.received_bytes += n_bytes
                connection.sender.add_data(self.number, n_bytes, left.take(n_bytes))
            if not n_bytes or connection.sender.n_bytes >= WRITE_BYTES:
                connection.flush()
                await (pacer.breathe() if n_bytes else self._wait_for_room())
        if connection.is_behind:
            await connection.drain()
        self._download = None

    async def _wait_for_room(self) -> None:
        self._room_waiter = Waiter(self.connection.owner.loop)
        self._download = download = self._download or Upload()
        download.begin_waiting(self.connection.time())
        try:
            await self._room_waiter
        finally:
            download.end_waiting(self.connection.time())

    def add_room(self, growth: int) -> None:
        """The client takes *growth* more bytes of the stream. Raises `Http2Error` for a window that HTTP/2 has not."""
        self._room += growth
        if self._room > frames.MAX_WINDOW:
            raise Http2Error(Code.FLOW_CONTROL_ERROR, f"the window of stream {self.number} has {self._room} bytes")
        wake_soon(self._room_waiter)

    def finish(self, fields: bytes) -> None:
        """Send the trailers, or all that there is where no headers have gone out; the stream is over then.

        A client that still sends is told that nothing more is read, in one write with the end of the answer (RFC 9113
        section 8.1): gRPC's C core may take a reset that comes later for a failure of the call. Raises
        `ConnectionError` when the client left.
        """
        self._check_open()
        self.connection.sender.add_fields(self.number, fields, is_end=True)
        self.is_answered = self.is_closed = True
        if not self.is_ended:
            self._send(frames.RST_STREAM, Code.NO_ERROR)
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

    def close(self, code: Code | None = None) -> None:
        """End the stream without an answer, or in the middle of it; the client is told *code*, if there is one."""
        if not self.is_closed:
            if code is not None:
                self._send(frames.RST_STREAM, code)
            self.is_answered, self.is_closed = False, True
        self.break_off(client_left())
        wake_soon(self._room_waiter)

    def cancel(self, code: Code | None = None) -> None:
        """As `close`, and nobody goes on with the call."""
        self.close(code)
        if self.task is not None:
            self.task.cancel()


class Message:
    """One message while it comes: what a `ClientBody` reads from."""

    __slots__ = ("_left", "before", "is_compressed", "is_one_of_many", "length", "out", "read", "stream", "upload")

    def __init__(
        self, stream: Stream, before: asyncio.Task[None] | None = None, *, is_one_of_many: bool = False
    ) -> None:
        """*is_one_of_many*: others may follow, and the client may take its time before each."""
        self.stream = stream
        self.out = stream.connection
        self.before = before
        """Serves the message before in the same stream, if there is one."""
        self.is_one_of_many = is_one_of_many
        self._left = PREFIX_BYTES
        self.read: asyncio.Future[None] = stream.connection.owner.loop.create_future()
        """Is done when all of it was read."""
        self.length = -1
        """In bytes; -1 before `begin`."""
        self.is_compressed = False
        self.upload = stream.upload
        """How fast it comes; judged anew for each message, since the client may take its time between two."""

    async def begin(self) -> bool:
        """Wait for the length; whether there is a message. Raises `GatewayError` for a beginning that is cut off."""
        stream = self.stream
        self.upload = stream.upload = Upload()
        while len(stream.unread) < PREFIX_BYTES:
            if stream.is_ended and not stream.unread:
                return False
            await stream.more(len(stream.unread), PREFIX_BYTES, is_idle=self.is_one_of_many and not stream.unread)
        prefix = stream.take(PREFIX_BYTES)
        if prefix[0] > 1:
            raise GatewayError(ErrorKind.MALFORMED_REQUEST, "malformed message: its first byte must be 0 or 1")
        self.is_compressed = bool(prefix[0])
        self._left = self.length = int.from_bytes(prefix[1:])
        return True

    @property
    def has_arrived(self) -> bool:
        """Whether all of it is there to be read, or was read."""
        return self.length >= 0 and len(self.stream.unread) >= self._left

    @property
    def is_read(self) -> bool:
        """Whether all of it was read."""
        return self.length >= 0 and not self._left

    def read_arrived(self) -> Buffer:
        """What has come of it, possibly nothing. Raises as `read_more` does."""
        taken = self.stream.take(self._left)
        self._left -= len(taken)
        if not self._left and not self.read.done():
            self.read.set_result(None)
            if self.stream.unread and not self.is_one_of_many:
                raise GatewayError(ErrorKind.MALFORMED_REQUEST, "the call has more than one message")
        return taken

    async def read_more(self) -> Buffer:
        """What has come of it; waits if that is nothing; empty at the end. To be called when it was admitted.

        Raises `GatewayError`, MALFORMED_REQUEST where it is cut off, or not alone, and SLOW_CLIENT where it comes too
        slowly (`limits.body_timeout`); `ConnectionError` if the client left.
        """
        while self._left:
            if chunk := self.read_arrived():
                return chunk
            await self.stream.more(self.length - self._left, self.length)
        return b""

    def fail(self, error: Exception) -> None:
        """Let whoever reads get *error*."""
        self.stream.break_off(error)

    async def skip(self) -> None:
        """Read and drop the rest of a message that was refused. Raises `GatewayError` where that is too much."""
        if self._left > SKIPPED_BYTES:
            words = "a message was refused before it was read, and is too long to be skipped"
            raise GatewayError(ErrorKind.BODY_TOO_LARGE, words)
        while await self.read_more():
            pass
