"""A client's connection of HTTP/2 (RFC 9113): its streams, its windows, and how it ends.

Here is what each frame does, and how much work one client may ask for. The bounds, by what they are against:

    many streams            128 at once; others are refused
    frames without work     `Sender.spend`: pings, settings, priorities, resets, empty frames, unknown ones, and data
                            and windows in small frames
    one turn of the loop    `TURN_S` of frames, then others run; nothing is read meanwhile, and of all connections that
                            have more to do one goes on in each turn
    frames that do not end  `limits.body_timeout` for data, `limits.header_timeout` for the preface and all else
    fields                  `limits.head`, 128 of them, and the work of reading them (`heads`); in all streams together
                            `HEADS_BYTES`
    unread messages         a window of 64 KiB a stream until its message is admitted; all of it is counted
    replies nobody reads    `limits.client_idle`, as with HTTP/1.1; nothing more is read while replies wait

A frame that breaks HTTP/2 ends the connection. Frames may be on their way while their stream ends: they are passed
over. What is held is bounded by the windows of streams; that of the connection is always opened again.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from gateway.certificates import HTTP2
from gateway.client.grpc import frames
from gateway.client.grpc.call import serve
from gateway.client.grpc.frames import ACK, END_STREAM, USELESS_BYTES, Buffer, Code, Http2Error, Sender
from gateway.client.grpc.heads import Head, Heads
from gateway.client.grpc.stream import Stream
from gateway.client.peers import Connection
from gateway.config import Limits
from gateway.pacing import next_turn
from gateway.sockets import has_unread
from gateway.waiting import Waiter, wake_soon

if TYPE_CHECKING:
    from gateway.client.server import Server

TURN_S = 0.001
"""How long frames are worked on before others run."""

MAX_CONTINUATIONS = 32
"""The most CONTINUATION frames of one call's fields."""

HEADS_BYTES = 1024 * 1024
"""The most that the fields of all streams may take; a call beyond it is refused, and may be repeated."""

LATE_S = 0.1
"""A reset so long after its call's beginning costs no credit: `MAX_STREAMS` bounds such resets."""

_OF_CALLS = frozenset((frames.DATA, frames.HEADERS, frames.RST_STREAM, frames.WINDOW_UPDATE))
"""The types of frames that may ask for something; all others cost credit, and so do some of these."""

log = logging.getLogger("gateway")


class GrpcConnection(Connection):
    """One connection; see the table of this module."""

    protocol = HTTP2

    def __init__(self, owner: "Server") -> None:
        """Must be made on a running event loop."""
        super().__init__(owner)
        self._idle_since_s = self.time()
        self.sender = Sender(owner.loop.time)
        self._unread = b""
        self._reading = self._read(int(owner.limits.head))
        self._wanted = next(self._reading)
        self._awaited_since_s: float | None = None  # when `look` first saw that it is waited for
        self._later: asyncio.Task[None] | None = None  # goes on with the frames
        self._streams: dict[int, Stream] = {}  # until their calls have ended
        self._begun: deque[Stream] = deque()  # calls that no task serves yet
        self._idle: Waiter | None = None  # of the task that waits for the next call
        self._highest = 0  # the last stream that was begun
        self._heads = Heads(int(owner.limits.head))
        self._head_bytes = 0  # of the fields of all calls that are served
        self._message_bytes = 0  # of messages, in all streams, that were not taken yet
        self._last: int | None = None  # the last stream that is served, once the client was told of an end

    # What comes

    def data_received(self, data: bytes) -> None:
        """Take *data*, and work on the frames in it."""
        self._unread += data
        if self._later is None:
            self._work()

    def _work(self) -> None:
        """Take what has come, as long as `TURN_S` lasts."""
        if not self.is_open:
            return
        ends_s = time.perf_counter() + TURN_S
        unread, at = memoryview(self._unread), 0
        try:
            while len(unread) - at >= (n_bytes := self._wanted[0]):
                at += n_bytes
                self._wanted = self._reading.send(unread[at - n_bytes : at])
                if time.perf_counter() > ends_s:
                    self.pause_reading()
                    self._later = self.owner.loop.create_task(self._go_on())
                    break
        except Http2Error as error:
            log.debug("client %s broke HTTP/2: %s", self.peer, error)
            self._say_last(error.code, str(error))
            self._close()
        else:
            self._unread = bytes(unread[at:])
            if self._unread and not self._wanted[1]:  # a part of the next frame has come
                self._wanted = self._wanted[0], "header_timeout"
            self.taken(0)
            self.flush()
        self._serve_begun()

    async def _go_on(self) -> None:
        """Work on when it is this connection's turn among all that have more to do."""
        await next_turn()
        self._later = None
        self._work()
        if self.is_open:
            self._read_on()

    def _read(self, max_head_bytes: int) -> Generator[tuple[int, str], memoryview, None]:
        """Read all that comes, in its order: where this waits is how far the connection has come.

        Yields how many bytes it needs next, with the limit (`limits`) of the time until these have come, if there is
        one; is sent them, and keeps none of them while it waits.
        """
        if (yield len(frames.PREFACE), "header_timeout") != frames.PREFACE:
            if self.owner.warnings_of_protocols.allows(self.time()):
                log.warning("client %s does not speak HTTP/2, which the port for gRPC needs", self.peer)
            self.write(frames.WRONG_PORT)
            self._close()
            raise Http2Error(Code.PROTOCOL_ERROR, "the preface is missing")
        self.sender.greet(max_head_bytes)
        while True:
            kind, flags, number, length = frames.parse_head((yield frames.HEAD.size, ""))
            wanted = length, "body_timeout" if kind == frames.DATA else "header_timeout"
            payload: Buffer = frames.bare((yield wanted), kind, flags)
            if kind == frames.HEADERS:
                payload = yield from self._read_fields(number, flags, bytes(payload), max_head_bytes)
            self._take(kind, flags, number, payload, length)
            self._awaited_since_s = None
            del payload

    def _read_fields(
        self, number: int, flags: int, block: bytes, max_bytes: int
    ) -> Generator[tuple[int, str], memoryview, bytes]:
        """Read what follows of fields, which begin with *block*: all of them, however many frames they take."""
        n_frames = 0
        while len(block) <= max_bytes and n_frames <= MAX_CONTINUATIONS:
            if flags & frames.END_HEADERS:
                return block
            n_held = len(block)
            self._head_bytes += n_held
            _, flags, _, length = frames.parse_head((yield frames.HEAD.size, "header_timeout"), number)
            block += yield length, "header_timeout"
            self._head_bytes -= n_held
            n_frames += 1
        limits = f"{max_bytes} bytes (limits.head) in {MAX_CONTINUATIONS} frames"
        raise Http2Error(Code.ENHANCE_YOUR_CALM, f"the fields of a call take more than {limits}")

    # What each frame does; all of these raise `Http2Error`

    def _take(self, kind: int, flags: int, number: int, payload: Buffer, n_bytes: int) -> None:
        """Take a frame, or the fields of a call as one; of *n_bytes* with the padding and priority around *payload*."""
        if kind not in _OF_CALLS:
            self._take_other(kind, flags, payload)
            return
        if number and (number % 2 == 0 or (number > self._highest and kind != frames.HEADERS)):
            raise Http2Error(Code.PROTOCOL_ERROR, f"a frame of type {kind} on stream {number}, which has not begun")
        stream, is_end = self._streams.get(number), bool(flags & END_STREAM)
        if kind == frames.WINDOW_UPDATE:
            self.sender.spend(frames.HEAD.size + n_bytes, "windows open in too small steps")
            self._take_window(number, stream, int.from_bytes(payload) & frames.MAX_WINDOW)
        elif kind == frames.RST_STREAM:
            if stream is None or self.time() - stream.begun_s < LATE_S:
                self.sender.spend(USELESS_BYTES)
            if stream is not None:
                stream.cancel()
        elif kind == frames.HEADERS:
            self._take_fields(number, stream, self._heads.read(bytes(payload)), is_end=is_end)
        else:
            self._take_data(stream, payload, n_bytes, is_end=is_end)

    def _take_other(self, kind: int, flags: int, payload: Buffer) -> None:
        """Take a frame that asks for nothing, or is about the connection."""
        self.sender.spend(USELESS_BYTES)
        if kind == frames.PING and not flags & ACK:
            self.sender.add(frames.PING, ACK, payload=bytes(payload))
        elif kind == frames.SETTINGS and not flags & ACK:
            growth = self.sender.follow(payload)
            self.sender.add(frames.SETTINGS, ACK)
            for each in self._streams.values():
                each.add_room(growth)

    def _take_window(self, number: int, stream: Stream | None, growth: int) -> None:
        if not growth:
            raise Http2Error(Code.PROTOCOL_ERROR, "a window grows by nothing")
        if stream is not None:
            stream.add_room(growth)
        elif not number:
            waiting = () if self.sender.room else self._streams.values()  # else no stream waits for this window
            self.sender.room += growth
            if self.sender.room > frames.MAX_WINDOW:
                raise Http2Error(Code.FLOW_CONTROL_ERROR, f"the connection has a window of {self.sender.room} bytes")
            for each in waiting:
                each.add_room(0)

    def _take_data(self, stream: Stream | None, data: Buffer, n_bytes: int, *, is_end: bool) -> None:
        if not data and not is_end:
            self.sender.spend(USELESS_BYTES)
        elif len(data) * frames.MIN_SHARE < frames.HEAD.size + n_bytes:
            self.sender.spend(frames.HEAD.size + n_bytes, "frames of data are too small")
        self.sender.receive(n_bytes)
        if stream is None or stream.is_closed:
            return
        stream.feed(data, n_bytes)
        self._message_bytes += len(data)
        if is_end:
            stream.end()

    def _take_fields(self, number: int, stream: Stream | None, head: Head, *, is_end: bool) -> None:
        """Begin a call, or take the fields behind its message, of which gRPC knows none.

        On a closed stream such fields may still be on their way; another head cannot be (RFC 9113 section 5.1).
        """
        if number > self._highest:
            self._highest = number
            stream = self._begin_call(number, head)
        elif ":path" in head.first or ":method" in head.first or not is_end:
            is_over = stream is None or stream.is_ended or stream.is_closed
            code = Code.STREAM_CLOSED if is_over else Code.PROTOCOL_ERROR
            raise Http2Error(code, f"stream {number} begins twice, or behind {self._highest}")
        else:
            self.sender.spend(USELESS_BYTES)
        if is_end and stream is not None and not stream.is_closed:
            stream.end()

    def _begin_call(self, number: int, head: Head) -> Stream | None:
        most = frames.MAX_STREAMS
        is_full = len(self._streams) >= most and sum(not each.is_closed for each in self._streams.values()) >= most
        if self._last is not None or is_full or self._head_bytes + head.n_bytes > HEADS_BYTES:
            if self._last is None:
                self.sender.spend(USELESS_BYTES)
            self.sender.add(frames.RST_STREAM, number=number, payload=Code.REFUSED_STREAM.to_bytes(4))
            return None
        self._head_bytes += head.n_bytes
        stream = self._streams[number] = Stream(self, number, head)
        self._begun.append(stream)
        return stream

    def _serve_begun(self) -> None:
        """Let a task serve each call that has begun: the one that waits for a call, which begins at once, or a new one.

        With TLS it begins in the next turn of the loop (see `waiting`), as a new task does.
        """
        for _ in range(len(self._begun)):
            idle, self._idle = self._idle, None
            if idle is None:
                self.owner.loop.create_task(self._serve_calls())
            else:
                (idle.wake if self.scheme == "http" else idle.wake_soon)()

    async def _serve_calls(self) -> None:
        """Serve calls that have begun. Of all tasks that do so one waits for the next call, while there is none."""
        task = asyncio.current_task()
        assert task is not None
        while not task.cancelling():
            if self._begun:
                stream = self._begun.popleft()
                stream.task = task
                if not stream.is_closed:
                    await serve(stream)
                self._ended(stream)
                del stream
            elif self._idle is None and self.transport is not None:
                self._idle = Waiter(self.owner.loop)
                await self._idle
            else:
                break

    def _ended(self, stream: Stream) -> None:
        """The call of *stream* is over."""
        del self._streams[stream.number]
        self._head_bytes -= stream.head.n_bytes
        if stream.is_answered:
            self.sender.earn(frames.EARNED_BY_CALL)
        else:
            stream.close(Code.INTERNAL_ERROR)
        self.taken(len(stream.unread))  # nobody takes it any more
        if not self._streams:
            self._idle_since_s = self.time()
            if self._last is not None:
                self._close()

    # For streams

    @property
    def is_open(self) -> bool:
        """Whether the connection is neither closed nor about to be."""
        return self.transport is not None and not self.transport.is_closing()

    def taken(self, n_bytes: int) -> None:
        """A reader has taken *n_bytes* of messages: tell the owner how many bytes were not taken yet."""
        self._message_bytes -= n_bytes
        self.hold(self._message_bytes + self._head_bytes + len(self._unread))

    def flush(self) -> None:
        """Write the frames that are to be sent."""
        if self.sender.parts and self.is_open:
            self.write(self.sender.taken())

    def pause_writing(self) -> None:
        """See asyncio. A client that does not read is not read from: its pings would be answered, and held."""
        super().pause_writing()
        self.pause_reading()

    def resume_writing(self) -> None:
        """See asyncio."""
        super().resume_writing()
        self._read_on()

    def _read_on(self) -> None:
        if self.transport is not None and not self.is_behind and self._later is None:
            self.transport.resume_reading()

    # The end

    @property
    def is_in_head(self) -> bool:
        """Whether a stream of messages is between two of them, so that none of its requests is in flight."""
        return any(stream.is_between for stream in self._streams.values())

    @property
    def is_silent(self) -> bool:
        """Whether the preface has not come yet."""
        return self._wanted[0] == len(frames.PREFACE)

    def look(self, now_s: float, limits: Limits) -> None:
        """End what is too slow for *limits* (docs/configuration.md, "Limits")."""
        if (transport := self.transport) is None or transport.is_closing():
            return
        for stream in list(self._streams.values()):
            if limit := stream.look(now_s, limits):
                self.owner.slow_connections[limit] += 1
                self._awaited_since_s = None  # the client gets to see the error, before the connection ends
        if not transport.is_reading():  # with TLS what has come meanwhile is in no socket where it could be seen
            self._awaited_since_s = None
        elif limit := self._wanted[1]:
            since_s = self._awaited_since_s = self._awaited_since_s or now_s
            if now_s - since_s >= getattr(limits, limit) and not has_unread(transport):
                self.owner.slow_connections[limit] += 1
                transport.abort()
        elif not self._streams and now_s - self._idle_since_s >= limits.client_keep_alive and not has_unread(transport):
            self.end_soon()

    def end_soon(self) -> None:
        """Serve the calls that there are, and no others: the client opens another connection for these."""
        if self.is_open and self._last is None:
            self._say_last(Code.NO_ERROR)
            if not self._streams:
                self._close()

    def _say_last(self, code: Code, words: str = "") -> None:
        """Say why the connection ends, and which is its last call; never a higher one than before (RFC 9113, 6.8)."""
        if self._last is None:
            self._last = self._highest
        self.sender.add(frames.GOAWAY, payload=self._last.to_bytes(4) + code.to_bytes(4) + words.encode())
        self.flush()

    def _close(self) -> None:
        if self.transport is not None and self.is_open:  # asyncio's transport over TLS may be closed only once
            self.transport.close()

    def cancel(self) -> "asyncio.Future[Any] | None":
        """Cancel all calls; the future is done when they have ended."""
        tasks = [stream.task for stream in self._streams.values() if stream.task is not None]
        for task in tasks:
            task.cancel()
        return asyncio.gather(*tasks, return_exceptions=True) if tasks else None

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection is gone: cancel what is under way."""
        super().connection_lost(exc)
        self._reading.close()
        if self._later is not None:
            self._later.cancel()
        wake_soon(self._idle)
        for stream in list(self._streams.values()):
            stream.cancel()
