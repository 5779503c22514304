"""A client's connection of HTTP/2 (RFC 9113): its streams, its windows, and how it ends.

Here is what each frame does, and how much work one client may ask for. The bounds, by what they are against:

    many streams            128 at once; others are refused
    frames without work     `frames.Patience`: pings, settings, priorities, resets, empty frames, and unknown ones
    one turn of the loop    `TURN_S` of frames, then others run; nothing is read meanwhile, and of all connections that
                            have more to do one goes on in each turn
    frames with little in   `frames.MIN_SHARE`: data of a byte each, windows that open for no answer
    frames that do not end  `limits.body_timeout` for data, `limits.header_timeout` for the preface and all else
    fields                  `limits.head`, 128 of them, and the work of reading them (`heads`); in all streams together
                            `HEADS_BYTES`
    unread messages         a window of 64 KiB a stream until its message is admitted; all of it is counted
    replies nobody reads    `limits.client_idle`, as with HTTP/1.1; nothing more is read while replies wait

A frame that breaks HTTP/2 ends the connection, or only its stream where it concerns no other. Frames may be on their
way while their stream ends: they are passed over, and their bytes given back to the window of the connection.

Not here: one stream (`stream`), what frames look like (`frames`), and what calls mean (`serving`, `calls`).
"""

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

from gateway.certificates import HTTP2
from gateway.client.grpc import frames
from gateway.client.grpc.frames import Code, Frames, Http2Error, Patience, Receiver, Sender
from gateway.client.grpc.heads import Head, Heads
from gateway.client.grpc.serving import serve
from gateway.client.grpc.stream import Stream
from gateway.client.peers import Connection
from gateway.config import Limits
from gateway.pacing import Pacer
from gateway.sockets import has_unread

if TYPE_CHECKING:
    from gateway.client.server import Server

TURN_S = 0.001
"""How long frames are worked on before others run."""

HEADS_BYTES = 1024 * 1024
"""The most that the fields of all streams may take; a call beyond it is refused, and may be repeated."""

log = logging.getLogger("gateway")


class GrpcConnection(Connection):
    """One connection; see the table of this module."""

    protocol = HTTP2

    def __init__(self, owner: "Server") -> None:
        """Must be made on a running event loop."""
        super().__init__(owner)
        self.sender = Sender()
        self._streams: dict[int, Stream] = {}  # until their tasks have ended
        self._highest = 0  # the last stream that was begun
        self._lowest = 1  # from this stream on the client has begun all, up to the last
        self._frames = Frames(int(owner.limits.head))
        self._heads = Heads(int(owner.limits.head))
        self._receiver = Receiver()
        self.patience = Patience(owner.time())
        self._idle_since_s = owner.time()
        self._later: asyncio.Task[None] | None = None  # goes on with the frames
        self._last: int | None = None  # the last stream that is served, once the client was told of an end

    # What comes

    def data_received(self, data: bytes) -> None:
        """Take *data*, and work on the frames in it."""
        self._frames.add(data)
        if self._later is None:
            self._work()

    def _work(self) -> None:
        """Take frames, as long as `TURN_S` lasts."""
        self._later = None
        if not self.is_open or not (self._frames.has_begun or self._begin()):
            return
        pacer, ends_s = Pacer(), time.perf_counter() + TURN_S
        try:
            while (frame := self._frames.next()) is not None:
                self._take(*frame)
                if time.perf_counter() > ends_s:
                    self.pause_reading()
                    self._later = self.owner.loop.create_task(self._go_on(pacer))
                    break
        except Http2Error as error:
            log.debug("client %s broke HTTP/2: %s", self.peer.address, error)
            self._go_away(error.code, str(error))
            return
        self._give_back()
        self._count()
        self.flush()
        if self._later is None:
            self._read_on()

    async def _go_on(self, pacer: Pacer) -> None:
        """Work on when it is this connection's turn among all that have more to do."""
        await pacer.breathe()
        self._work()

    def _begin(self) -> bool:
        """Whether the preface has come. A client of HTTP/1.1 is told what this port speaks, any other just closed."""
        wrong = self._frames.begin()
        if wrong:
            log.warning("client %s: what has come at the port for gRPC is no HTTP/2", self.peer.address)
            self.out.write(frames.wrong_port(wrong))
            self._close()
        elif wrong is None:
            self.out.write(frames.greeting(int(self.owner.limits.head)))
        return wrong is None

    def _take(self, kind: int, flags: int, number: int, payload: memoryview, n_bytes: int) -> None:
        """Do what a frame asks for, see `frames.Frame`. Raises `Http2Error`."""
        stream = self._streams.get(number)
        has_begun = not number or (number % 2 and number <= self._highest)
        if not has_begun and kind in (frames.DATA, frames.RST_STREAM, frames.WINDOW_UPDATE):
            raise Http2Error(Code.PROTOCOL_ERROR, f"a frame of type {kind} on stream {number}, which has not begun")
        if kind in (frames.DATA, frames.WINDOW_UPDATE):
            n_carried = len(payload) if kind == frames.DATA else 0
            self._receiver.weigh(frames.HEAD_BYTES + n_bytes, n_carried, self.sender)
        if kind == frames.DATA:
            self._take_data(stream, payload, n_bytes, is_end=bool(flags & frames.END_STREAM))
        elif kind == frames.HEADERS:
            self._take_fields(stream, number, bytes(payload), is_end=bool(flags & frames.END_STREAM))
        elif kind == frames.WINDOW_UPDATE:
            self._take_window(stream, number, int.from_bytes(payload) & frames.MAX_WINDOW)
        else:
            self._take_useless(kind, flags, stream, payload)

    def _take_useless(self, kind: int, flags: int, stream: Stream | None, payload: memoryview) -> None:
        """Take a frame of a type that a client may send only as often as `Patience` allows. Raises `Http2Error`."""
        is_late = kind == frames.RST_STREAM and stream is not None and self.time() - stream.begun_s >= frames.LATE_S
        if not is_late:
            self._suffer()
        if kind == frames.RST_STREAM and stream is not None:
            stream.cancel()
        elif kind == frames.PING and not flags & frames.ACK:
            self.sender.add(frames.PING, frames.ACK, payload=bytes(payload))
        elif kind == frames.SETTINGS and not flags & frames.ACK:
            self._take_settings(payload)
        elif kind == frames.SETTINGS and payload:
            raise Http2Error(Code.FRAME_SIZE_ERROR, "settings are acknowledged with others")

    def _suffer(self) -> None:
        """Count a frame that asks for nothing. Raises `Http2Error` for one too many."""
        if self.patience.is_over(self.time()):
            raise Http2Error(Code.ENHANCE_YOUR_CALM, "too_many_pings")

    def _fail(self, stream: Stream, code: Code) -> None:
        """Reset *stream*, which breaks HTTP/2. Counted: else a client has calls reset without end (CVE-2025-8671)."""
        self._suffer()
        stream.reset(code)
        stream.cancel()

    def _take_settings(self, payload: memoryview) -> None:
        growth = self.sender.follow(payload)
        self.sender.add(frames.SETTINGS, frames.ACK)
        for stream in self._streams.values():
            stream.room += growth
            if stream.room > frames.MAX_WINDOW:
                raise Http2Error(Code.FLOW_CONTROL_ERROR, "the settings make a window too large")
            stream.has_room()

    def _take_window(self, stream: Stream | None, number: int, growth: int) -> None:
        if number and stream is None:
            return
        room = self.sender.window if stream is None else stream.room
        if not growth or room + growth > frames.MAX_WINDOW:
            code = Code.FLOW_CONTROL_ERROR if growth else Code.PROTOCOL_ERROR
            if stream is None:
                raise Http2Error(code, f"the window of the connection grows by {growth} bytes")
            self._fail(stream, code)
        elif stream is None:
            self.sender.window += growth
            if not room:  # else no stream waits for this window
                for each in self._streams.values():
                    each.has_room()
        else:
            stream.room += growth
            stream.has_room()

    def _take_data(self, stream: Stream | None, data: memoryview, n_bytes: int, *, is_end: bool) -> None:
        self._receiver.take(n_bytes)
        if not data and not is_end:
            self._suffer()
        if stream is None or stream.is_closed:
            return
        stream.window -= n_bytes
        if stream.window < 0 or stream.is_ended:
            self._fail(stream, Code.STREAM_CLOSED if stream.is_ended else Code.FLOW_CONTROL_ERROR)
            return
        self._receiver.message_bytes += len(data)
        stream.feed(data)
        if is_end:
            stream.end()

    def _take_fields(self, stream: Stream | None, number: int, block: bytes, *, is_end: bool) -> None:
        """Begin a call, or take its trailers. Raises `Http2Error`."""
        if number % 2 == 0:
            raise Http2Error(Code.PROTOCOL_ERROR, f"a client begins the stream {number}")
        head = self._heads.read(block)
        if number <= self._highest:
            self._take_trailers(stream, number, head, is_end=is_end)
            return
        if number != self._highest + 2:
            self._lowest = number
        self._highest = number
        if self._last is not None or self._is_full or self._receiver.head_bytes + head.n_bytes > HEADS_BYTES:
            if self._last is None:
                self._suffer()
            self.sender.add(frames.RST_STREAM, number=number, payload=Code.REFUSED_STREAM.to_bytes(4))
            return
        self._receiver.head_bytes += head.n_bytes
        stream = self._streams[number] = Stream(self, number)
        if is_end:
            stream.end()
        stream.task = self.owner.loop.create_task(serve(self, stream, head))
        stream.task.add_done_callback(lambda _: self._ended(stream, head))

    def _take_trailers(self, stream: Stream | None, number: int, head: Head, *, is_end: bool) -> None:
        """Take the fields behind a message, of which gRPC knows none. Raises `Http2Error`.

        On a closed stream trailers may still be on their way; another head cannot be (RFC 9113 section 5.1).
        """
        if stream is not None and stream.is_ended and not stream.is_closed:
            self._fail(stream, Code.STREAM_CLOSED)
        elif head.path or head.method or not is_end:
            is_closed = number >= self._lowest and (stream is None or stream.is_closed)
            code = Code.STREAM_CLOSED if is_closed else Code.PROTOCOL_ERROR
            raise Http2Error(code, f"stream {number} begins twice, or behind {self._highest}")
        else:
            self._suffer()
            if stream is not None:
                stream.end()

    @property
    def _is_full(self) -> bool:
        """Whether there are as many streams as a client may have; those that have ended do not count."""
        most, streams = frames.MAX_STREAMS, self._streams
        return len(streams) >= most and sum(not each.is_closed for each in streams.values()) >= most

    def _ended(self, stream: Stream, head: Head) -> None:
        """The call of *stream*, which had *head*, is over."""
        del self._streams[stream.number]
        self._receiver.head_bytes -= head.n_bytes
        if stream.is_answered:
            self.patience.earn(frames.EARNED_BY_CALL)
        elif not stream.is_closed:
            stream.reset(Code.INTERNAL_ERROR)
        self.taken(len(stream.unread))  # nobody takes it any more
        if not self._streams:
            self._idle_since_s = self.time()
            if self._last is not None:
                self._close()

    def _count(self) -> None:
        """Tell the owner how many bytes have come on this connection and were not taken yet."""
        self.hold(self._receiver.message_bytes + self._receiver.head_bytes + self._frames.unread_bytes)

    # For streams

    @property
    def is_open(self) -> bool:
        """Whether the connection is neither closed nor about to be."""
        return self.transport is not None and not self.transport.is_closing()

    def taken(self, n_bytes: int) -> None:
        """A reader has taken *n_bytes* of messages: the client may send as many again."""
        self._receiver.message_bytes -= n_bytes
        if self.held_bytes:  # else few bytes have waited, and the window was opened when they came
            self._give_back()
            self._count()

    def _give_back(self) -> None:
        """Open the connection's window for the bytes that are no longer held, if they are many."""
        if growth := self._receiver.growth():
            self.sender.add(frames.WINDOW_UPDATE, payload=growth.to_bytes(4))
            self.flush()

    def flush(self) -> None:
        """Write the frames that are to be sent."""
        if self.is_open and (data := self.sender.taken()):
            self.out.write(data)

    # Writing

    def pause_writing(self) -> None:
        """See asyncio. A client that does not read is not read from: its pings would be answered, and held."""
        super().pause_writing()
        self.pause_reading()

    def resume_writing(self) -> None:
        """See asyncio."""
        super().resume_writing()
        self._read_on()

    def _read_on(self) -> None:
        transport = self.transport
        if transport is None or transport.is_closing() or transport.is_reading():
            return
        if not self.out.is_behind and self._later is None:
            transport.resume_reading()

    # The end

    @property
    def is_in_head(self) -> bool:
        """Whether a stream of messages is between two of them, so that none of its requests is in flight."""
        return any(stream.is_between for stream in self._streams.values())

    @property
    def is_silent(self) -> bool:
        """Whether nothing has come yet."""
        return not self._frames.has_begun

    def look(self, now_s: float, limits: Limits) -> None:
        """End what is too slow for *limits* (docs/configuration.md, "Limits")."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        slow = self.owner.slow_connections
        for stream in list(self._streams.values()):
            if limit := stream.look(now_s, limits):
                slow[limit] += 1
                self._frames.awaited_since_s = None  # the client gets to see the error, before the connection ends
        if self.out.is_read_too_slowly(now_s, limits.client_idle):
            slow["client_idle"] += 1
            self.out.reset()
        elif not transport.is_reading():  # with TLS what has come meanwhile is in no socket where it could be seen
            self._frames.awaited_since_s = None
        elif limit := self._frames.awaited_limit:
            since_s = self._frames.awaited_since_s = self._frames.awaited_since_s or now_s
            if now_s - since_s >= getattr(limits, limit) and not has_unread(transport):
                slow[limit] += 1
                transport.abort()
        elif not self._streams and now_s - self._idle_since_s >= limits.client_keep_alive and not has_unread(transport):
            self.drain()

    def drain(self) -> None:
        """Serve the calls that there are, and no others: the client opens another connection for these."""
        if not self.is_open or self._last is not None:
            return
        self._last = self._highest
        self.out.write(frames.goaway(self._last, Code.NO_ERROR))
        if not self._streams:
            self._close()

    def cancel(self) -> "asyncio.Future[Any] | None":
        """Cancel all calls; the future is done when they have ended."""
        tasks = [stream.task for stream in self._streams.values() if stream.task is not None]
        for task in tasks:
            task.cancel()
        return asyncio.gather(*tasks, return_exceptions=True) if tasks else None

    def _go_away(self, code: Code, words: str = "") -> None:
        """Say that the connection ends, and close it when all written bytes are sent."""
        if not self.is_open:
            return
        if self._last is None:  # else no higher one may be named (RFC 9113 section 6.8)
            self._last = self._highest
        self.flush()
        self.out.write(frames.goaway(self._last, code, words))
        self._close()

    def _close(self) -> None:
        if self.transport is not None and self.is_open:  # asyncio's transport over TLS may be closed only once
            self.transport.close()

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection is gone: cancel what is under way."""
        self.out.close()
        self.transport = None
        if self._later is not None:
            self._later.cancel()
        for stream in list(self._streams.values()):
            stream.cancel()
        self.owner.closed(self)
