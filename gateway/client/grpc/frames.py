"""The bounds of a connection: what the library of HTTP/2 is told, and what is looked at before it gets frames.

Not here: what frames mean (`connection`).
"""

import re

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes, Settings

from gateway.errors import CodecError

MAX_STREAMS = 128
"""The most calls of one connection at once."""

STREAM_WINDOW = 64 * 1024 - 1
"""How much of a stream may wait before its message is admitted; HTTP/2's own default."""

CONNECTION_WINDOW = MAX_STREAMS * STREAM_WINDOW
"""How much of all streams together may wait, so that none stops another."""

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What every connection of HTTP/2 begins with."""

FRAME_BYTES = 64 * 1024
"""The longest frame that is read."""

TURN_FRAMES = 32
"""How many frames are given to the library at once."""

TURN_HEAD_BYTES = 1024
"""How many bytes of fields are given to the library at once: a byte may stand for a field, and take 10 us."""

USELESS_FRAMES = 200
"""How many frames that ask for nothing a client may send, beyond those that it earns."""

EARNED_BY_CALL = 20
"""How many such frames each call earns that was answered."""

EARNED_BY_FRAME = 1
"""The same for each frame of an answer: clients measure the way with a ping for what has come."""

LATE_S = 0.1
"""A call that is cancelled so long after its beginning counts as no such frame: `MAX_STREAMS` bounds these."""

FIELDS_TABLE_BYTES = 4 * 1024
"""The most that the table of sent fields takes, which is searched for each field, however much the client allows."""

EARNED_PER_S = 2
"""How many such frames each second earns: keepalive pings."""

_HTTP1 = re.compile(rb"[A-Z]{1,20} [/*h]")
_WRONG_PORT = b"this port speaks gRPC (HTTP/2); HTTP/1.1 is spoken at the address of `listen`\n"
_HEAD_BYTES = 9
_HEADERS, _CONTINUATION, _END_HEADERS = 0x1, 0x9, 0x4


def begun(max_head_bytes: int) -> H2Connection:
    """The library's state of a new connection, with what it has to tell the client.

    *max_head_bytes* bounds the fields of a call. All bounds hold from the start: a client may send by them before it
    says that it has read them.
    """
    connection = H2Connection(
        H2Configuration(
            client_side=False, header_encoding=None, validate_outbound_headers=False, normalize_outbound_headers=False
        )
    )
    connection.local_settings = Settings(
        client=False,
        initial_values={
            SettingCodes.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
            SettingCodes.MAX_FRAME_SIZE: FRAME_BYTES,
            SettingCodes.MAX_HEADER_LIST_SIZE: max_head_bytes,
        },
    )
    connection.max_inbound_frame_size = FRAME_BYTES
    connection.decoder.max_header_list_size = max_head_bytes
    connection.initiate_connection()
    connection.increment_flow_control_window(CONNECTION_WINDOW - STREAM_WINDOW)
    return connection


def bound_table(connection: H2Connection) -> None:
    """Keep what *connection* remembers of sent fields small, to be called when the client has changed its settings."""
    encoder = connection.encoder
    encoder.header_table_size = min(encoder.header_table_size, FIELDS_TABLE_BYTES)


def wrong_port(beginning: bytes) -> bytes:
    """What to answer where not HTTP/2 has begun, but *beginning*: to HTTP/1.1 what this port speaks, else nothing."""
    if not _HTTP1.match(beginning):
        return b""
    head = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: "
    return b"%b%d\r\n\r\n%b" % (head, len(_WRONG_PORT), _WRONG_PORT)


class Frames:
    """The bytes of a connection, cut into whole frames."""

    __slots__ = ("_head_bytes", "_max_head_bytes", "_unread", "has_begun")

    def __init__(self, max_head_bytes: int) -> None:
        """*max_head_bytes*: the most that the fields of one call may take as they are sent, compressed or not."""
        self._max_head_bytes = max_head_bytes
        self._unread = bytearray()
        self._head_bytes = 0
        self.has_begun = False
        """Whether the preface was given out."""

    def add(self, data: bytes) -> None:
        """Keep *data*, which has come."""
        self._unread += data

    @property
    def unread_bytes(self) -> int:
        """How many bytes wait."""
        return len(self._unread)

    @property
    def beginning(self) -> bytes:
        """What has come in place of the preface, or of a part of it; empty while all may be well."""
        begun = bytes(self._unread[: len(PREFACE)])
        return b"" if self.has_begun or PREFACE.startswith(begun) else begun

    def next(self) -> bytes:
        """The next whole frames, at most `TURN_FRAMES` of them, or the preface; empty if there are none.

        Raises `CodecError` for a frame that is too long, and for fields that take too much.
        """
        unread = self._unread
        end = 0
        if not self.has_begun:
            if len(unread) >= len(PREFACE):
                end = len(PREFACE)
                self.has_begun = True
        else:
            at = head_bytes = 0
            for _ in range(TURN_FRAMES):
                if len(unread) - at < _HEAD_BYTES or head_bytes > TURN_HEAD_BYTES:
                    break
                length = int.from_bytes(unread[at : at + 3])
                kind, flags = unread[at + 3], unread[at + 4]
                if length > FRAME_BYTES:
                    raise CodecError(f"a frame of {length} bytes, at most {FRAME_BYTES} are allowed")
                at += _HEAD_BYTES + length
                if at > len(unread):
                    break
                end = at
                if kind in (_HEADERS, _CONTINUATION):
                    self._count_head(length, is_end=bool(flags & _END_HEADERS))
                    head_bytes += length
        frames = bytes(unread[:end])
        del unread[:end]
        return frames

    def _count_head(self, length: int, *, is_end: bool) -> None:
        self._head_bytes += length
        if self._head_bytes > self._max_head_bytes:
            raise CodecError(f"the fields of a call take more than {self._max_head_bytes} bytes (limits.head)")
        if is_end:
            self._head_bytes = 0


class Patience:
    """How many frames that ask for nothing a client may still send: pings, settings, resets, empty frames."""

    __slots__ = ("_left", "_since_s")

    def __init__(self, now_s: float) -> None:
        self._left = float(USELESS_FRAMES)
        self._since_s = now_s

    def earn_by_call(self) -> None:
        """A call was answered."""
        self._left = min(USELESS_FRAMES, self._left + EARNED_BY_CALL)

    def earn_by_frame(self) -> None:
        """A frame of an answer was sent."""
        self._left = min(USELESS_FRAMES, self._left + EARNED_BY_FRAME)

    def is_over(self, now_s: float) -> bool:
        """Count one such frame that comes at *now_s*; whether it is one too many."""
        self._left = min(USELESS_FRAMES, self._left + EARNED_PER_S * (now_s - self._since_s)) - 1
        self._since_s = now_s
        return self._left < 0
