"""What is known of frames before the library of HTTP/2 gets them: where they end, and how many are worth nothing.

Not here: what frames mean.
"""

from gateway.errors import CodecError

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What every connection of HTTP/2 begins with."""

FRAME_BYTES = 64 * 1024
"""The longest frame that is read."""

TURN_FRAMES = 32
"""How many frames are given to the library at once."""

USELESS_FRAMES = 200
"""How many frames that ask for nothing a client may send, beyond those that it earns."""

EARNED_BY_CALL = 20
"""How many such frames each call earns that was answered."""

EARNED_PER_S = 2
"""How many such frames each second earns: keepalive pings."""

_HEAD_BYTES = 9
_HEADERS, _CONTINUATION, _END_HEADERS = 0x1, 0x9, 0x4


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
            at = 0
            for _ in range(TURN_FRAMES):
                if len(unread) - at < _HEAD_BYTES:
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

    def earn(self, n_frames: int) -> None:
        """The client has had something done, for which *n_frames* more are welcome."""
        self._left = min(USELESS_FRAMES, self._left + n_frames)

    def is_over(self, now_s: float) -> bool:
        """Count one such frame that comes at *now_s*; whether it is one too many."""
        self._left = min(USELESS_FRAMES, self._left + EARNED_PER_S * (now_s - self._since_s)) - 1
        self._since_s = now_s
        return self._left < 0
