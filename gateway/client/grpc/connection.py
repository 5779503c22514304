"""A client's connection of HTTP/2: its frames, its streams, its windows, and how it ends.

`h2` knows the protocol: it keeps the state of the connection and of each stream, and refuses what breaks RFC 9113. Here
is what it leaves to its user: how much work one client may ask for at once, how much may wait, which streams are
served, and when a connection is too old, too slow or too busy with nothing. The bounds, by what they are against:

    many streams            128 at once; the library refuses more
    frames without work     `frames.Patience`: pings, settings, priorities, resets and empty frames
    one turn of the loop    `TURN_S` of parsing, then others run; nothing is read meanwhile
    fields                  `limits.head`, and 128 of them (`serving`); of all streams together `HEADS_BYTES`
    unread messages         a window of 64 KiB a stream until its message is admitted; all of it is counted
    replies nobody reads    `limits.client_idle`, as with HTTP/1.1; nothing more is read while replies wait

Not here: one stream (`stream`), and what calls mean (`serving`, `calls`).
"""

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    PingReceived,
    PriorityUpdated,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    UnknownFrameReceived,
    WindowUpdated,
)
from h2.exceptions import ProtocolError
from hyperframe.frame import GoAwayFrame

from gateway.client.grpc.frames import LATE_S, Frames, Patience, begun, bound_table, wrong_port
from gateway.client.grpc.serving import serve
from gateway.client.grpc.stream import Buffer, Fields, Stream
from gateway.client.outgoing import Outgoing, client_left
from gateway.client.request import Peer, peer_of
from gateway.client.watching import Connection
from gateway.config import Limits
from gateway.errors import CodecError
from gateway.sockets import has_unread

if TYPE_CHECKING:
    from gateway.client.server import Server

TURN_S = 0.001
"""How long frames are worked on before others run."""

HEADS_BYTES = 1024 * 1024
"""The most that the fields of all streams may take; a call beyond it is refused, and may be repeated."""

UNCOUNTED_BYTES = 4 * 1024
"""A connection that holds no more than this is not counted."""

_USELESS = (PingReceived, PriorityUpdated, RemoteSettingsChanged, StreamReset, UnknownFrameReceived)

log = logging.getLogger("gateway")


class GrpcConnection(Connection):
    """One connection; see the table of this module."""

    def __init__(self, owner: "Server") -> None:
        """Must be made on a running event loop."""
        self.owner = owner
        self.transport: asyncio.Transport | None = None
        """None before the connection is open, and when it has ended."""
        self.peer = Peer("unknown", "http")
        self.out = Outgoing()
        self.held_bytes = 0
        """What the owner has counted of what has come and was not taken yet."""
        self._streams: dict[int, Stream] = {}
        self._begun: dict[int, tuple[int, float]] = {}  # of each stream: the bytes of its fields, and when they came
        self._frames = Frames(int(owner.limits.head))
        self._waiting_bytes = 0  # of messages, in all streams
        self._patience = Patience(owner.watcher.time())
        self._idle_since_s = owner.watcher.time()
        self._later: asyncio.Handle | None = None  # goes on with the frames
        self._is_ending = False  # no new stream is served
        self._h2 = begun(int(owner.limits.head))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open, with TLS behind the handshake."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.out.open(transport)
        self.peer = peer_of(transport)
        self.owner.opened(self)

    # What comes

    def data_received(self, data: bytes) -> None:
        """Take *data*, and work on the frames in it."""
        self._frames.add(data)
        if self._later is None:
            self._work()

    def _work(self) -> None:
        """Give whole frames to the library, as long as `TURN_S` lasts."""
        self._later = None
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if wrong := self._frames.beginning:
            self._refuse(wrong)
            return
        ends_s = time.perf_counter() + TURN_S
        try:
            while frames := self._frames.next():
                for event in self._h2.receive_data(frames):
                    self._take(event)
                if time.perf_counter() > ends_s:
                    self._pause()
                    self._later = self.owner.loop.call_soon(self._work)
                    break
        except (ProtocolError, CodecError) as error:
            log.debug("client %s broke HTTP/2: %s", self.peer.address, error)
            self._go_away(ErrorCodes.PROTOCOL_ERROR, b"")
            return
        self._count()
        self.flush()
        if self._later is None:
            self._read_on()

    def _refuse(self, wrong: bytes) -> None:
        """What has come is no HTTP/2: say so to a client of HTTP/1.1."""
        log.warning("client %s: what has come at the port for gRPC is no HTTP/2", self.peer.address)
        self.out.write(wrong_port(wrong))
        self._close()

    def _take(self, event: Event) -> None:
        """Do what *event* asks for."""
        if isinstance(event, DataReceived):
            self._take_data(event)
        elif isinstance(event, RequestReceived):
            self._begin(event)
        elif isinstance(event, StreamEnded):
            if (stream := self._streams.get(event.stream_id or 0)) is not None:
                stream.end()
        elif isinstance(event, WindowUpdated):
            self._tell_room(event.stream_id)
        elif isinstance(event, _USELESS):
            self._take_useless(event)

    def _take_useless(self, event: Event) -> None:
        """Do what *event* asks for, of which a client may send so many only."""
        now_s = self.time()
        stream = self._streams.get(event.stream_id or 0) if isinstance(event, StreamReset) else None
        is_late = stream is not None and now_s - self._begun[stream.number][1] >= LATE_S
        if not is_late and self._patience.is_over(now_s):
            self._go_away(ErrorCodes.ENHANCE_YOUR_CALM, b"too_many_pings")
        elif stream is not None:
            self.drop(stream)
        elif isinstance(event, RemoteSettingsChanged):
            bound_table(self._h2)
            self._tell_room(0)

    def _take_data(self, event: DataReceived) -> None:
        stream = self._streams.get(event.stream_id or 0)
        data, n_bytes = event.data or b"", event.flow_controlled_length or 0
        if stream is not None and not stream.is_closed:
            stream.feed(data)
            self._waiting_bytes += len(data)
            n_bytes -= len(data)  # the padding
        if not data and event.stream_ended is None and self._patience.is_over(self.time()):
            self._go_away(ErrorCodes.ENHANCE_YOUR_CALM, b"empty frames")
        if n_bytes:
            self._h2.acknowledge_received_data(n_bytes, event.stream_id or 0)

    def _begin(self, event: RequestReceived) -> None:
        """A call has begun."""
        number = event.stream_id or 0
        fields = event.headers or []
        head_bytes = sum(len(name) + len(value) for name, value in fields)
        if self._is_ending or sum(n_bytes for n_bytes, _ in self._begun.values()) + head_bytes > HEADS_BYTES:
            self._h2.reset_stream(number, ErrorCodes.REFUSED_STREAM)
            return
        self._waiting_bytes += head_bytes
        self._begun[number] = head_bytes, self.time()
        stream = self._streams[number] = Stream(self, number)
        stream.task = self.owner.loop.create_task(serve(self, stream, fields))
        stream.task.add_done_callback(lambda _: self._ended(stream))

    def drop(self, stream: Stream) -> None:
        """The client does not want the answer any more."""
        stream.close()
        if stream.task is not None:
            stream.task.cancel()

    def _tell_room(self, number: int | None) -> None:
        """The window of the stream *number* has grown, or, with 0, that of all."""
        for stream in [self._streams.get(number)] if number else list(self._streams.values()):
            if stream is not None:
                stream.has_room()

    def _ended(self, stream: Stream) -> None:
        """The call of *stream* is over."""
        self._streams.pop(stream.number, None)
        self._waiting_bytes -= self._begun.pop(stream.number)[0]
        self._count()
        if stream.is_answered:
            self._patience.earn_by_call()
        elif not stream.is_closed:
            self.reset(stream)
        self._forget_rest(stream)
        if not self._streams:
            self._idle_since_s = self.time()
            if self._is_ending:
                self._close()

    def _forget_rest(self, stream: Stream) -> None:
        """Drop what has come on *stream* and nobody takes."""
        n_bytes = len(stream.unread)
        if n_bytes:
            stream.unread.clear()
            self.taken(stream, n_bytes)

    def _count(self) -> None:
        """Tell the owner what this connection holds by now of what has come and was not taken yet."""
        held_bytes = self._waiting_bytes + self._frames.unread_bytes
        if held_bytes <= UNCOUNTED_BYTES:
            held_bytes = 0
        if held_bytes != self.held_bytes and self.transport is not None:
            self.owner.hold_unread(held_bytes - self.held_bytes)
            self.held_bytes = held_bytes

    # For streams

    @property
    def _is_open(self) -> bool:
        """Whether the connection is neither closed nor about to be: behind an error the library does nothing more."""
        return self.transport is not None and not self.transport.is_closing()

    def taken(self, stream: Stream, n_bytes: int) -> None:
        """Of what has come on *stream*, *n_bytes* were taken: the client may send as much again."""
        self._waiting_bytes -= n_bytes
        if not self._is_open or not n_bytes:
            return
        self._h2.acknowledge_received_data(n_bytes, stream.number)
        self._count()
        self.flush()

    def open_window(self, stream: Stream, n_bytes: int) -> None:
        """Let the client send *n_bytes* on *stream* before any of it is taken."""
        if self._is_open and not stream.is_ended:
            wanted = n_bytes - self._h2.remote_flow_control_window(stream.number)
            if wanted > 0:
                self._h2.increment_flow_control_window(wanted, stream.number)
                self.flush()

    def room(self, stream: Stream) -> int:
        """How much may be sent on *stream* in one frame. Raises `ConnectionError` when the client left."""
        if stream.is_closed or not self._is_open:
            raise client_left()
        window = self._h2.local_flow_control_window(stream.number)  # below zero where the client has made it smaller
        return max(0, min(window, self._h2.max_outbound_frame_size))

    def send_data(self, stream: Stream, data: Buffer) -> None:
        """Make a frame of *data*, for which there is room; `flush` sends it."""
        self._h2.send_data(stream.number, data)
        self._patience.earn_by_frame()

    def send_fields(self, stream: Stream, fields: Fields, *, is_end: bool) -> None:
        """Send *fields*, with which the stream ends if *is_end*. Raises `ConnectionError` when the client left.

        A client that still sends is told that nothing more is read, in one write with the end of the answer (RFC 9113
        section 8.1): gRPC's C core may take a reset that comes later for a failure of the call.
        """
        if stream.is_closed or not self._is_open:
            raise client_left()
        self._h2.send_headers(stream.number, fields, end_stream=is_end)
        if is_end:
            if not stream.is_ended:
                self._h2.reset_stream(stream.number, ErrorCodes.NO_ERROR)
            self.flush()

    def reset(self, stream: Stream) -> None:
        """End *stream* without an answer, or in the middle of it."""
        if not stream.is_closed and self._is_open:
            stream.is_closed = True
            self._h2.reset_stream(stream.number, ErrorCodes.INTERNAL_ERROR)
            self.flush()

    def time(self) -> float:
        """The clock by which clients are judged, see `Watcher.time`."""
        return self.owner.watcher.time()

    def flush(self) -> None:
        """Write what the library has to say."""
        if self._is_open and (data := self._h2.data_to_send()):
            self.out.write(data)

    # Writing

    def pause_writing(self) -> None:
        """See asyncio. A client that does not read is not read from: its pings would be answered, and held."""
        self.out.is_behind = True
        self._pause()

    def resume_writing(self) -> None:
        """See asyncio."""
        self.out.go_on()
        self._read_on()

    def _pause(self) -> None:
        """Read nothing more for now. asyncio does not notice then that a client leaves: `GoneCheck` does."""
        transport = self.transport
        if transport is not None and transport.is_reading():
            transport.pause_reading()
            self.owner.gone_check.watch(self)

    def _read_on(self) -> None:
        transport = self.transport
        if transport is None or transport.is_closing() or transport.is_reading():
            return
        if not self.out.is_behind and self._later is None:
            transport.resume_reading()
            self.owner.gone_check.unwatch(self)

    # The end

    @property
    def is_in_head(self) -> bool:
        """Never: what has come of a call is its head."""
        return False

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
        if self.out.is_read_too_slowly(now_s, limits.client_idle):
            slow["client_idle"] += 1
            self.out.reset()
        elif self.is_silent:
            if now_s - self._idle_since_s >= limits.header_timeout and not has_unread(transport):
                slow["header_timeout"] += 1
                transport.abort()
        elif not self._streams and now_s - self._idle_since_s >= limits.client_keep_alive and not has_unread(transport):
            self._go_away(ErrorCodes.NO_ERROR, b"")
        for stream in list(self._streams.values()):
            if limit := stream.look(now_s, limits):
                slow[limit] += 1

    def drain(self) -> None:
        """Serve the calls that there are, and no others: the client opens another connection for these."""
        if self.transport is None or self._is_ending:
            return
        self._is_ending = True
        # the library would send nothing more on streams that are open
        frame = GoAwayFrame(0, last_stream_id=self._h2.highest_inbound_stream_id, error_code=ErrorCodes.NO_ERROR)
        self.out.write(frame.serialize())
        if not self._streams:
            self._close()

    def end(self) -> None:
        """Serve nothing more, and close."""
        self._go_away(ErrorCodes.NO_ERROR, b"")

    def cancel(self) -> "asyncio.Future[Any] | None":
        """Cancel what is served; ends when all of it has."""
        tasks = [stream.task for stream in self._streams.values() if stream.task is not None]
        for task in tasks:
            task.cancel()
        return asyncio.gather(*tasks, return_exceptions=True) if tasks else None

    def _go_away(self, code: ErrorCodes, words: bytes) -> None:
        """Say that the connection ends, and close it behind what was written."""
        if not self._is_open:
            return
        self._is_ending = True
        self.flush()
        last = self._h2.highest_inbound_stream_id
        self.out.write(GoAwayFrame(0, last_stream_id=last, error_code=code, additional_data=words).serialize())
        self._close()

    def _close(self) -> None:
        if self.transport is not None:
            self.transport.close()

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection is gone: cancel what is under way."""
        self.out.close()
        self.transport = None
        if self._later is not None:
            self._later.cancel()
        for stream in list(self._streams.values()):
            self.drop(stream)
        self.owner.closed(self)
