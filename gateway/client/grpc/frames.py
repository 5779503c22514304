"""Frames of HTTP/2 as bytes (RFC 9113), and how many of them a client may send.

Here: the rules of every type of frame, frames that go out within what the client allows, and a connection's credit.
"""

from collections.abc import Callable, Sequence
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
"""The first bytes of every connection of HTTP/2; no request of HTTP/1.1 is shorter."""

WRONG_PORT = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: 78\r\n\r\n"
    b"this port speaks gRPC (HTTP/2); HTTP/1.1 is spoken at the address of `listen`\n"
)
"""The answer to what comes instead of the preface."""

FRAME_BYTES = 64 * 1024
"""The longest frame that is read."""

CREDIT_BYTES = 64 * 1024
"""The most credit of a connection, and what it begins with."""

USELESS_BYTES = CREDIT_BYTES // 200
"""What a frame that asks for nothing takes off the credit; each frame of an answer earns as much."""

EARNED_BY_CALL, EARNED_PER_S = 20 * USELESS_BYTES, 2 * USELESS_BYTES
"""The credit that each answered call earns, and each second, which pays for keepalive pings."""

MIN_SHARE = 3
"""A frame of data of which less than a third is content costs its bytes, as every frame of a window does.

Each byte of an answer earns three, since windows are opened for answers.
"""

HEAD = Struct(">IBI")
"""Before the payload of each frame: the length and, in the last byte, the type; flags; stream."""

_SETTING = Struct(">HI")
_TABLE, _PUSH, _STREAMS, _WINDOW, _FRAME, _FIELDS = range(1, 7)  # settings
_DEFAULT_FRAME_BYTES, _MAX_FRAME_BYTES = 2**14, 2**24 - 1
_NO_TABLE = b"\x20"  # HPACK: the table of fields that are sent holds nothing from here on

Buffer = bytes | bytearray | memoryview


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


_OF_STREAMS = frozenset((DATA, HEADERS, PRIORITY, RST_STREAM, PUSH_PROMISE, CONTINUATION))
_OF_CONNECTIONS = frozenset((SETTINGS, PUSH_PROMISE, PING, GOAWAY))
"""The types of frames that must have a stream, and of those that must have none; no client may send PUSH_PROMISE."""

_ANY = (0, FRAME_BYTES)
_LENGTHS = {PRIORITY: (5, 5), RST_STREAM: (4, 4), PING: (8, 8), GOAWAY: (8, FRAME_BYTES), WINDOW_UPDATE: (4, 4)}
"""How short and how long the payload of a frame may be, of each type where that is not `_ANY`."""

_SETTINGS = {
    _PUSH: (0, 1, Code.PROTOCOL_ERROR),
    _WINDOW: (0, MAX_WINDOW, Code.FLOW_CONTROL_ERROR),
    _FRAME: (_DEFAULT_FRAME_BYTES, _MAX_FRAME_BYTES, Code.PROTOCOL_ERROR),
}
"""The lowest and the highest value of a setting, and what any other value is."""


def parse_head(head: Buffer, going_on: int = 0) -> tuple[int, int, int, int]:
    """Type, flags, stream and length of the frame with *head*. Raises `Http2Error` if it may not come.

    *going_on* is the stream whose fields must go on in this frame, if there is one.
    """
    length_and_kind, flags, number = HEAD.unpack(head)
    kind, length, number = length_and_kind & 0xFF, length_and_kind >> 8, number & MAX_WINDOW
    shortest, longest = _LENGTHS.get(kind, _ANY)
    if going_on != (number if kind == CONTINUATION else 0):
        raise Http2Error(Code.PROTOCOL_ERROR, "fields that go on must do so in the next frame, and no others")
    if kind in (_OF_CONNECTIONS if number else _OF_STREAMS):
        raise Http2Error(Code.PROTOCOL_ERROR, f"a frame of type {kind} on stream {number}")
    if not shortest <= length <= longest or (kind == SETTINGS and flags & ACK and length):
        words = f"a frame of type {kind} with {length} bytes, expected {shortest} to {longest}"
        raise Http2Error(Code.FRAME_SIZE_ERROR, words)
    return kind, flags, number, length


def bare(payload: memoryview, kind: int, flags: int) -> memoryview:
    """*payload* without padding and priority. Raises `Http2Error`."""
    if not flags & (PADDED | HAS_PRIORITY) or kind not in (DATA, HEADERS):
        return payload
    n_before = n_behind = 0
    if flags & PADDED:
        n_before, n_behind = 1, payload[0] if payload else 0
    if flags & HAS_PRIORITY and kind == HEADERS:
        n_before += 5
    if n_before + n_behind > len(payload):
        raise Http2Error(Code.PROTOCOL_ERROR, "a frame has more padding than bytes")
    return payload[n_before : len(payload) - n_behind]


class Buffers:
    """Takes bytes off the beginning of several buffers, without copying them."""

    __slots__ = ("_left", "n_bytes")

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        self._left = list(reversed(buffers))
        self.n_bytes = sum(map(len, buffers))
        """How many bytes are left."""

    def take(self, n_bytes: int) -> list[Buffer]:
        """The next *n_bytes*. Raises `CodecError` where there are not as many."""
        taken: list[Buffer] = []
        self.n_bytes -= n_bytes
        if self.n_bytes < 0:
            raise CodecError(f"the reply ends {-self.n_bytes} bytes short of what it says of itself")
        while n_bytes:
            buffer = self._left.pop()
            if len(buffer) > n_bytes:
                view = memoryview(buffer)
                self._left.append(view[n_bytes:])
                buffer = view[:n_bytes]
            taken.append(buffer)
            n_bytes -= len(buffer)
        return taken


class Sender:
    """Frames that go out, within what the client's settings allow; they wait here until they are written together.

    They also pay for the frames that come: a client has credit for work without use, in bytes of its frames.
    """

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._credit, self._since_s = float(CREDIT_BYTES), time()
        self.parts: list[Buffer] = []
        """What waits to be written."""
        self.frame_bytes = _DEFAULT_FRAME_BYTES
        """The most that may be sent in one frame."""
        self._resize = b""  # to be said before the next fields
        self._opened = CONNECTION_WINDOW  # how much the client may send on all streams together
        self.initial_room = self.room = STREAM_WINDOW
        """How much may be sent on a new stream, and on all streams together."""
        self.n_bytes = 0
        """How much data of answers waits here."""

    def earn(self, n_bytes: float) -> None:
        """Give the client *n_bytes* of credit."""
        self._credit = min(CREDIT_BYTES, self._credit + n_bytes)

    def spend(self, n_bytes: int, words: str = "too_many_pings") -> None:
        """Take *n_bytes* off the client's credit. Raises `Http2Error` with *words* where it has not as much."""
        before_s, self._since_s = self._since_s, self._time()
        self.earn(EARNED_PER_S * (self._since_s - before_s))
        self._credit -= n_bytes
        if self._credit < 0:
            raise Http2Error(Code.ENHANCE_YOUR_CALM, words)

    def greet(self, max_head_bytes: int) -> None:
        """Send a server's first frames; *max_head_bytes* bounds the fields of a call."""
        settings = ((_STREAMS, MAX_STREAMS), (_FRAME, FRAME_BYTES), (_FIELDS, max_head_bytes))
        self.add(SETTINGS, payload=b"".join(_SETTING.pack(*setting) for setting in settings))
        self.add(WINDOW_UPDATE, payload=(CONNECTION_WINDOW - STREAM_WINDOW).to_bytes(4))

    def follow(self, settings: Buffer) -> int:
        """Keep to the client's *settings*; by how much all streams get more room. Raises `Http2Error`."""
        before = self.initial_room
        if len(settings) % _SETTING.size:
            raise Http2Error(Code.FRAME_SIZE_ERROR, "settings are cut off")
        for name, value in _SETTING.iter_unpack(settings):
            lowest, highest, code = _SETTINGS.get(name, (0, value, Code.NO_ERROR))
            if not lowest <= value <= highest:
                raise Http2Error(code, f"setting {name} is {value}, expected {lowest} to {highest}")
            if name == _TABLE:  # the client may wait to hear what becomes of its table (RFC 7541 section 4.2)
                self._resize = _NO_TABLE
            elif name == _WINDOW:
                self.initial_room = value
            elif name == _FRAME:
                self.frame_bytes = value
        return self.initial_room - before

    def add(self, kind: int, flags: int = 0, number: int = 0, payload: bytes = b"") -> None:
        """Send a frame of no data; *number* is its stream's."""
        self.parts.append(HEAD.pack(len(payload) << 8 | kind, flags, number) + payload)

    def add_fields(self, number: int, block: bytes, *, is_end: bool) -> None:
        """Send fields, which HPACK has as *block*, in as many frames as they take."""
        if self._resize:
            block, self._resize = self._resize + block, b""
        kind, flags = HEADERS, END_STREAM if is_end else 0
        while len(block) > self.frame_bytes:
            self.add(kind, flags, number, block[: self.frame_bytes])
            kind, flags, block = CONTINUATION, 0, block[self.frame_bytes :]
        self.add(kind, flags | END_HEADERS, number, block)

    def add_data(self, number: int, n_bytes: int, data: Sequence[Buffer]) -> None:
        """Send *data*, which has *n_bytes*, in one frame; the client has room for it."""
        self.room -= n_bytes
        self.n_bytes += n_bytes
        self.parts += (HEAD.pack(n_bytes << 8 | DATA, 0, number), *data)
        self.earn(USELESS_BYTES + MIN_SHARE * n_bytes)  # clients measure the way with a ping for what has come

    def taken(self) -> bytes:
        """What is to be written now."""
        data = b"".join(self.parts)
        self.parts.clear()
        self.n_bytes = 0
        return data

    def receive(self, n_bytes: int) -> None:
        """Count *n_bytes* of data that have come, and let the client send as many: the windows of streams bound it.

        Raises `Http2Error` for more than the window of the connection allows.
        """
        self._opened -= n_bytes
        if self._opened < 0:
            raise Http2Error(Code.FLOW_CONTROL_ERROR, "more data than the window of the connection allows")
        if self._opened * 2 < CONNECTION_WINDOW:
            self.add(WINDOW_UPDATE, payload=(CONNECTION_WINDOW - self._opened).to_bytes(4))
            self._opened = CONNECTION_WINDOW
