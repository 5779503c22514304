"""Frames of HTTP/2 as bytes (RFC 9113), and how many of them a client may send.

Here: cutting what has come into frames, making frames within what the client allows, and the bounds of a connection.
Not here: what frames do to a connection (`connection`), and the fields of a call (`heads`).
"""

import re
from enum import IntEnum
from struct import Struct

from gateway.errors import CodecError

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
"""The types of frames."""

END_STREAM, ACK, END_HEADERS, PADDED, HAS_PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
"""The flags of frames."""

MAX_STREAMS = 128
"""The most calls of one connection at once."""

STREAM_WINDOW = 64 * 1024 - 1
"""How much of a stream may wait before its message is admitted; HTTP/2's own default."""

CONNECTION_WINDOW = MAX_STREAMS * STREAM_WINDOW
"""How much of all streams together may wait, so that none stops another."""

MAX_WINDOW = 2**31 - 1
"""The largest window that HTTP/2 has."""

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The first bytes of every connection of HTTP/2."""

FRAME_BYTES = 64 * 1024
"""The longest frame that is read."""

MAX_CONTINUATIONS = 32
"""The most CONTINUATION frames of one call's fields."""

USELESS_FRAMES = 200
"""How many frames that ask for nothing a client may send, beyond the frames that it earns."""

EARNED_BY_CALL = 20
"""How many such frames each call earns that was answered."""

WEIGHED_BYTES = 64 * 1024
"""After how many bytes in frames of data and of windows these are judged by `MIN_SHARE`, again and again."""

MIN_SHARE = 3
"""A connection ends if less than one in three of these bytes is content; of data in frames of one byte, one in ten is.

Windows carry nothing, but open for answers, so the bytes of answers that were sent count as content, too.
"""

LATE_S = 0.1
"""A reset so long after its call's beginning does not count as useless: `MAX_STREAMS` bounds such resets."""

EARNED_PER_S = 2
"""How many such frames each second earns: keepalive pings."""

_HEAD = Struct(">IBI")  # the length and, in the last byte, the type; flags; stream
HEAD_BYTES = _HEAD.size
"""Before the payload of each frame."""

_SETTING = Struct(">HI")
_TABLE, _PUSH, _STREAMS, _WINDOW, _FRAME, _FIELDS = range(1, 7)  # settings
_DEFAULT_FRAME_BYTES, _MAX_FRAME_BYTES = 2**14, 2**24 - 1
_SIZES = {PRIORITY: 5, RST_STREAM: 4, PING: 8, WINDOW_UPDATE: 4}
_OF_STREAMS = frozenset((DATA, HEADERS, PRIORITY, RST_STREAM, CONTINUATION))
_OF_CONNECTIONS = frozenset((SETTINGS, PING, GOAWAY))
_NO_TABLE = b"\x20"  # HPACK: the table of fields that are sent holds nothing from here on

_HTTP1 = re.compile(rb"[A-Z]{1,20} [/*h]")
_HTTP1_BEGUN = re.compile(rb"[A-Z]{0,20} ?")
_WRONG_PORT = b"this port speaks gRPC (HTTP/2); HTTP/1.1 is spoken at the address of `listen`\n"

Buffer = bytes | bytearray | memoryview

Frame = tuple[int, int, int, memoryview, int]
"""Type, flags, stream, payload without its padding, and the bytes of the payload with it."""


class Code(IntEnum):
    """Why a stream or a connection ends (RFC 9113 section 7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class Http2Error(CodecError):
    """The client has broken HTTP/2, or asks too much of it: its connection ends."""

    def __init__(self, code: Code, words: str) -> None:
        super().__init__(words)
        self.code = code


def frame(kind: int, flags: int = 0, number: int = 0, payload: bytes = b"") -> bytes:
    """The frame as it stands on the wire; *number* is its stream's."""
    return _HEAD.pack(len(payload) << 8 | kind, flags, number) + payload


def greeting(max_head_bytes: int) -> bytes:
    """The server's first frames; *max_head_bytes* bounds the fields of a call."""
    settings = ((_STREAMS, MAX_STREAMS), (_FRAME, FRAME_BYTES), (_FIELDS, max_head_bytes))
    window = CONNECTION_WINDOW - STREAM_WINDOW
    said = frame(SETTINGS, payload=b"".join(_SETTING.pack(*setting) for setting in settings))
    return said + frame(WINDOW_UPDATE, payload=window.to_bytes(4))


def goaway(last: int, code: Code, words: str = "") -> bytes:
    """Says that the connection ends, and that no stream behind *last* is served."""
    return frame(GOAWAY, payload=last.to_bytes(4) + code.to_bytes(4) + words.encode())


def wrong_port(beginning: bytes) -> bytes:
    """The answer to a connection with *beginning* in place of the preface; empty if that is not HTTP/1.1 either."""
    if not _HTTP1.match(beginning):
        return b""
    head = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: "
    return b"%b%d\r\n\r\n%b" % (head, len(_WRONG_PORT), _WRONG_PORT)


class Frames:
    """The bytes of a connection, cut into frames; fields that come in several frames are given out as one."""

    __slots__ = ("_at", "_block", "_max_head_bytes", "_n_continuations", "_unread", "awaited_since_s", "has_begun")

    def __init__(self, max_head_bytes: int) -> None:
        """*max_head_bytes*: the most that the fields of one call may take as they are sent, compressed or not."""
        self._max_head_bytes = max_head_bytes
        self._unread = b""
        self._at = 0
        self._block: tuple[int, int, bytes] | None = None  # flags, stream and beginning of fields that go on
        self._n_continuations = 0
        self.has_begun = False
        """Whether the preface has come."""
        self.awaited_since_s: float | None = None
        """Since when the rest of what has begun to come is waited for, as far as anybody looked."""

    def add(self, data: bytes) -> None:
        """Keep *data*, which has come."""
        self._unread = self._unread[self._at :] + data
        self._at = 0

    @property
    def unread_bytes(self) -> int:
        """How many bytes wait."""
        return len(self._unread) - self._at + (len(self._block[2]) if self._block is not None else 0)

    @property
    def awaited_limit(self) -> str:
        """The limit (`limits`) of what has begun to come and is not whole; empty if nothing has.

        A frame of data is a part of a body; all else is small, and the same as a head.
        """
        if self.has_begun and self._block is None and self._at == len(self._unread):
            return ""
        is_data = self.has_begun and self._unread[self._at + 3 : self._at + 4] == bytes([DATA])
        return "body_timeout" if is_data else "header_timeout"

    def begin(self) -> bytes | None:
        """Read the preface. None if it is whole, empty if more has to come, else the bytes that stand in its place."""
        begun = self._unread[: len(PREFACE)]
        if begun != PREFACE:
            return b"" if PREFACE.startswith(begun) or _HTTP1_BEGUN.fullmatch(begun) else begun
        self._at = len(PREFACE)
        self.has_begun = True
        self.awaited_since_s = None
        return None

    def next(self) -> Frame | None:
        """The next frame; None if none is whole.

        Raises `Http2Error` for what no frame may be wherever it stands, and for fields that take too much.
        """
        while True:
            unread, start = self._unread, self._at + HEAD_BYTES
            if len(unread) >= start:
                length_and_kind, flags, number = _HEAD.unpack_from(unread, self._at)
                kind, length, number = length_and_kind & 0xFF, length_and_kind >> 8, number & MAX_WINDOW
                self._check(kind, length, number)
                end = start + length
                if len(unread) >= end:
                    self._at = end
                    payload = memoryview(unread)[start:end]
                    if flags & (PADDED | HAS_PRIORITY) and kind in (DATA, HEADERS):
                        payload = _without_padding(payload, kind, flags)
                    if kind not in (HEADERS, CONTINUATION):
                        self.awaited_since_s = None
                        return kind, flags, number, payload, length
                    if (block := self._joined(flags, number, payload)) is not None:
                        self.awaited_since_s = None
                        return block
                    continue
            self._unread = unread[self._at :]  # a view would keep all that was read with it
            self._at = 0
            return None

    def _check(self, kind: int, length: int, number: int) -> None:
        """Raise `Http2Error` for a frame that may not come at this place."""
        if length > FRAME_BYTES:
            raise Http2Error(Code.FRAME_SIZE_ERROR, f"a frame of {length} bytes, at most {FRAME_BYTES} are allowed")
        if (self._block is None) == (kind == CONTINUATION) or (self._block is not None and number != self._block[1]):
            raise Http2Error(Code.PROTOCOL_ERROR, "fields that go on must do so in the next frame, and no others")
        if kind == PUSH_PROMISE or (number == 0 if kind in _OF_STREAMS else kind in _OF_CONNECTIONS and number):
            raise Http2Error(Code.PROTOCOL_ERROR, f"a frame of type {kind} on stream {number}")
        if length != _SIZES.get(kind, length) or (kind == GOAWAY and length < 8):
            raise Http2Error(Code.FRAME_SIZE_ERROR, f"a frame of type {kind} with {length} bytes")

    def _joined(self, flags: int, number: int, payload: memoryview) -> Frame | None:
        """All fields of a call, whose last part is *payload*; None if more of them follow."""
        if self._block is not None:
            first_flags, _, begun = self._block
            self._block = None
            self._n_continuations += 1
            payload = memoryview(begun + payload)
            flags |= first_flags & END_STREAM
        else:
            self._n_continuations = 0
        if len(payload) > self._max_head_bytes or self._n_continuations > MAX_CONTINUATIONS:
            limits = f"{self._max_head_bytes} bytes (limits.head) in {MAX_CONTINUATIONS} frames"
            raise Http2Error(Code.ENHANCE_YOUR_CALM, f"the fields of a call take more than {limits}")
        if flags & END_HEADERS:
            return HEADERS, flags, number, payload, len(payload)
        self._block = flags, number, bytes(payload)
        return None


def _without_padding(payload: memoryview, kind: int, flags: int) -> memoryview:
    """*payload* without its padding, and without a priority. Raises `Http2Error`."""
    n_before = n_behind = 0
    if flags & PADDED:
        n_before, n_behind = 1, payload[0] if payload else 0
    if kind == HEADERS and flags & HAS_PRIORITY:
        n_before += 5
    if n_before + n_behind > len(payload):
        raise Http2Error(Code.PROTOCOL_ERROR, "a frame has more padding than bytes")
    return payload[n_before : len(payload) - n_behind]


class Receiver:
    """What the client may send, and what has come and is held."""

    __slots__ = ("_carried_bytes", "_frame_bytes", "_window", "head_bytes", "message_bytes")

    def __init__(self) -> None:
        self._window = CONNECTION_WINDOW
        self._frame_bytes = self._carried_bytes = 0
        self.head_bytes = 0
        """The fields of all calls that are served."""
        self.message_bytes = 0
        """Of messages, in all streams, what was not taken yet."""

    def take(self, n_bytes: int) -> None:
        """Count *n_bytes* of data that have come. Raises `Http2Error` for more than the window allows."""
        self._window -= n_bytes
        if self._window < 0:
            raise Http2Error(Code.FLOW_CONTROL_ERROR, "more data than the window of the connection allows")

    def weigh(self, n_bytes: int, n_carried: int, sender: "Sender") -> None:
        """Count a frame of *n_bytes*, of which *n_carried* are content, and what *sender* has sent since the last one.

        Raises `Http2Error` for a client whose frames carry too little (`MIN_SHARE`).
        """
        self._frame_bytes += n_bytes
        self._carried_bytes += n_carried
        if self._frame_bytes < WEIGHED_BYTES:
            return
        carried = self._carried_bytes + sender.carried_bytes
        if carried * MIN_SHARE < self._frame_bytes:
            words = f"{self._frame_bytes} bytes of data and windows carry {carried}, less than one in {MIN_SHARE}"
            raise Http2Error(Code.ENHANCE_YOUR_CALM, f"frames are too small: {words}")
        self._frame_bytes = self._carried_bytes = sender.carried_bytes = 0

    def growth(self) -> int:
        """Open the window for the bytes that are no longer held, if they are many; by how much, 0 if they are few."""
        growth = CONNECTION_WINDOW - self.message_bytes - self._window
        if growth * 2 < CONNECTION_WINDOW:
            return 0
        self._window += growth
        return growth


class Sender:
    """Frames that go out, within what the client's settings allow; they wait here until they are written together."""

    __slots__ = ("_frame_bytes", "_parts", "_resize", "carried_bytes", "initial_window", "window")

    def __init__(self) -> None:
        self._parts: list[Buffer] = []
        self._frame_bytes = _DEFAULT_FRAME_BYTES
        self._resize = b""  # to be said before the next fields
        self.initial_window = STREAM_WINDOW
        """How much may be sent on a new stream."""
        self.window = STREAM_WINDOW
        """How much may be sent on all streams together."""
        self.carried_bytes = 0
        """How much of answers has been sent, since `Receiver.weigh` asked last."""

    def follow(self, settings: memoryview) -> int:
        """Keep to the client's *settings*; by how much the windows of all streams grow. Raises `Http2Error`."""
        before = self.initial_window
        if len(settings) % _SETTING.size:
            raise Http2Error(Code.FRAME_SIZE_ERROR, "settings are cut off")
        for name, value in _SETTING.iter_unpack(settings):
            if name == _TABLE:  # the client may wait to hear what becomes of its table (RFC 7541 section 4.2)
                self._resize = _NO_TABLE
            elif name == _PUSH and value > 1:
                raise Http2Error(Code.PROTOCOL_ERROR, f"a setting of pushes that is {value}, not 0 or 1")
            elif name == _WINDOW:
                if value > MAX_WINDOW:
                    raise Http2Error(Code.FLOW_CONTROL_ERROR, f"a window of {value} bytes")
                self.initial_window = value
            elif name == _FRAME:
                if not _DEFAULT_FRAME_BYTES <= value <= _MAX_FRAME_BYTES:
                    raise Http2Error(Code.PROTOCOL_ERROR, f"frames of {value} bytes")
                self._frame_bytes = value
        return self.initial_window - before

    def room(self, window: int) -> int:
        """How much may be sent in one frame on a stream that has *window*, which may be below zero."""
        return max(0, min(window, self.window, self._frame_bytes))

    def add(self, kind: int, flags: int = 0, number: int = 0, payload: bytes = b"") -> None:
        """Send a frame of no data."""
        self._parts.append(frame(kind, flags, number, payload))

    def add_fields(self, number: int, block: bytes, *, is_end: bool) -> None:
        """Send fields, which HPACK has as *block*, in as many frames as they take."""
        if self._resize:
            block, self._resize = self._resize + block, b""
        self.carried_bytes += len(block)
        kind, flags = HEADERS, END_STREAM if is_end else 0
        while len(block) > self._frame_bytes:
            self.add(kind, flags, number, block[: self._frame_bytes])
            kind, flags, block = CONTINUATION, 0, block[self._frame_bytes :]
        self.add(kind, flags | END_HEADERS, number, block)

    def add_data(self, number: int, data: Buffer) -> None:
        """Send *data*, for which there is `room`."""
        self.window -= len(data)
        self.carried_bytes += len(data)
        self._parts += (_HEAD.pack(len(data) << 8 | DATA, 0, number), data)

    def taken(self) -> bytes:
        """What is to be written now."""
        data = b"".join(self._parts)
        self._parts.clear()
        return data


class Patience:
    """How many frames that ask for nothing a client may still send: pings, settings, resets, empty frames."""

    __slots__ = ("_left", "_since_s")

    def __init__(self, now_s: float) -> None:
        self._left = float(USELESS_FRAMES)
        self._since_s = now_s

    def earn(self, n_frames: int) -> None:
        """Forgive the client *n_frames*."""
        self._left = min(USELESS_FRAMES, self._left + n_frames)

    def is_over(self, now_s: float) -> bool:
        """Count one such frame that comes at *now_s*; whether it is one too many."""
        self._left = min(USELESS_FRAMES, self._left + EARNED_PER_S * (now_s - self._since_s)) - 1
        self._since_s = now_s
        return self._left < 0
