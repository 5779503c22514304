"""The head of an answer: what it says of its connection and its body, and which of its fields the client gets.

The fields stay the bytes that came. One pass over them, with one look-up for each name, takes what decides how the
answer is read, and the lines that cross. What else is wanted of them is decoded when it is asked for, which small
inferences never do.

Not here: how a head is parsed (`http1`), and which fields cross (`policy.crossing`).
"""

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from itertools import compress
from operator import itemgetter
from typing import TypeVar

from aiohttp.http import RawResponseMessage

from gateway.headers import HeaderLines, Headers
from gateway.policy.crossing import Fields, crosses_transcoded, transcoded_to_client

MAX_STATUS = 599
"""The highest status of HTTP (RFC 9110 section 15); what a backend may make up would fill the metrics' labels."""

MAX_CONTENT_LENGTH = 2**63 - 1
"""The largest length of a body that is believed. aiohttp's parser takes 2**64 - 1 for no body at all."""

MAX_LENGTH_DIGITS = 32
"""How many digits a `Content-Length` may have, zeros before it included; Python converts no more than 4,300."""

MAX_CONNECTION_BYTES = 4096
"""How long `Connection` may be: each name in it is looked up, and 100,000 of them held the event loop for 11 ms."""

# Of these a header that is passed on may hold none (RFC 9110 section 5.5); a tab is allowed.
_CONTROLS = bytes({*range(0x20), 0x7F} - {0x09})

_WITHOUT_BODY = frozenset({204, 304})
_SWITCHING = 101
_NAME: Callable[[tuple[bytes, bytes]], bytes] = itemgetter(0)
_VALUE: Callable[[tuple[bytes, bytes]], bytes] = itemgetter(1)

T = TypeVar("T")

_UNHANDLED = 500


class _Note(IntEnum):
    """What is noted of a field."""

    NOTHING = 0
    LENGTH = 1
    CODING = 2
    ENCODING = 3
    CONNECTION = 4
    SERVER = 5
    DATE = 6
    BAD_NAME = 7


_NOTED = {
    "content-length": _Note.LENGTH,
    "transfer-encoding": _Note.CODING,
    "content-encoding": _Note.ENCODING,
    "connection": _Note.CONNECTION,
    "server": _Note.SERVER,
    "date": _Note.DATE,
}


def _note_of(name: str) -> _Note:
    """What is noted of the field *name*."""
    return _NOTED.get(name, _Note.NOTHING) if name.isascii() and name.isprintable() else _Note.BAD_NAME


class _Names(dict[bytes, T]):
    """What depends on a field's name alone, by the bytes of the name as it came: remembered for so many of them."""

    MAX_NAMES = 1024
    MAX_NAME_BYTES = 64

    def __init__(self, find: Callable[[str], T]) -> None:
        """*find* gets the name in lower case, without the blank that may stand behind it, see `AnswerHead.headers`."""
        self._find = find

    def __missing__(self, raw: bytes) -> T:
        found = self._find(raw.decode("latin-1").rstrip(" ").lower())
        if len(raw) <= self.MAX_NAME_BYTES:
            if len(self) >= self.MAX_NAMES:
                self.clear()
            self[raw] = found
        return found


_notes = _Names(_note_of)
_crossing = _Names(crosses_transcoded)
_NOTE, _CROSSES = _notes.__getitem__, _crossing.__getitem__
_LENGTH, _SERVER, _DATE = _Note.LENGTH, _Note.SERVER, _Note.DATE


class AnswerHead:
    """The head of an answer, as it was parsed."""

    length: int | None = None
    """The `Content-Length`, in bytes."""
    codings: bytes | None = None
    """All that `Transfer-Encoding` says."""
    encoding: bytes | None = None
    """The first `Content-Encoding`."""
    _headers: Headers | None = None
    _connection: bytes | None = None
    _has_bad_name = _has_server = _has_date = False

    def __init__(self, message: RawResponseMessage) -> None:
        """*message* is what aiohttp's parser makes of it, which refuses lengths that are no numbers or repeated."""
        self._message = message
        self.code: int = message.code
        reason: str = message.reason
        self.reason = reason if reason.isascii() and reason.isprintable() else ""
        """The words behind the status, if they are printable ASCII."""
        raw: Sequence[tuple[bytes, bytes]] = message.raw_headers
        self.raw_headers = raw
        for name, value in compress(raw, map(_NOTE, map(_NAME, raw))):
            note = _notes[name]
            if note is _DATE:
                self._has_date = True
            elif note is _SERVER:
                self._has_server = True
            elif note is _LENGTH:
                self.length = int(value) if len(value) <= MAX_LENGTH_DIGITS else MAX_CONTENT_LENGTH + 1
            else:
                self._note(note, value)
        self.defect = self._find_defect()
        """In words, what of the head must not be passed on, or leaves it open how the body is read; None if nothing."""

    def _note(self, note: _Note, value: bytes) -> None:
        if note is _Note.CODING:
            self.codings = value if self.codings is None else b"%b, %b" % (self.codings, value)
        elif note is _Note.CONNECTION:
            self._connection = value if self._connection is None else b"%b, %b" % (self._connection, value)
        elif note is _Note.BAD_NAME:
            self._has_bad_name = True
        elif self.encoding is None:
            self.encoding = value

    @property
    def is_interim(self) -> bool:
        """Whether another head follows. Nobody has asked for `101 Switching Protocols`, behind which none does."""
        return 100 <= self.code < 200 and self.code != _SWITCHING

    @property
    def is_chunked(self) -> bool:
        """Whether the body is chunked, and coded in no other way; the parser, which unfolds lines otherwise, agrees."""
        return self.codings is not None and self.codings.lower() == b"chunked" and self._message.chunked

    def is_bodiless(self, method: str) -> bool:
        """Whether the answer to a request of *method* has no body, whatever it announces (RFC 9112 section 6.3)."""
        return method == "HEAD" or self.code in _WITHOUT_BODY or self.code < 200

    def ends_connection(self, *, is_bodiless: bool) -> bool:
        """Whether the connection carries no other request behind this answer, which may be one without a body.

        Not only where the backend says so. An answer that has no body, but announces one: some servers send that body
        all the same. A 500: uvicorn answers an exception that nobody handles with a whole 500, and closes the
        connection some milliseconds later without having said so, under the next request.
        """
        is_announced = self.codings is not None or bool(self.length)
        return self._message.should_close or self.code == _UNHANDLED or (is_bodiless and is_announced)

    def _find_defect(self) -> str | None:
        if not 200 <= self.code <= MAX_STATUS:
            return self._status_defect()
        text = b"".join(map(_VALUE, self.raw_headers))
        if self._has_bad_name or text.translate(None, _CONTROLS) != text:
            return "answered with a header that holds a control character"
        if not text.isascii() and not all(_is_utf8(value) for _, value in self.raw_headers):
            return "answered with a header whose bytes are not UTF-8"
        if self._connection is not None and len(self._connection) > MAX_CONNECTION_BYTES:
            return f"answered with a Connection header of more than {MAX_CONNECTION_BYTES} bytes"
        if self.codings is not None:
            if not self.is_chunked:
                return f"answered with Transfer-Encoding {self.codings.decode()[:64]!r}; only `chunked` is supported"
        elif self.length is not None and self.length > MAX_CONTENT_LENGTH:
            return f"answered with Content-Length {self.length}, at most {MAX_CONTENT_LENGTH} is possible"
        return None

    def _status_defect(self) -> str:
        if self.code < 100:
            return f"answered with status {self.code:03}, which does not exist"
        if self.code < 200:
            return "answered 101 Switching Protocols, which nobody asked for"
        return f"answered with status {self.code}; the highest is {MAX_STATUS}"

    @property
    def headers(self) -> Headers:
        """All fields, of a head without `defect`.

        A blank behind a name is removed (RFC 9112 section 5.1): aiohttp's parser allows one behind those of its own
        fields, such as `Transfer-Encoding`, does what they say, and leaves it in the name.
        """
        if self._headers is None:
            self._headers = Headers([(name.decode().rstrip(" "), value.decode()) for name, value in self.raw_headers])
        return self._headers

    def transcoded_fields(self) -> Fields:
        """The fields for the client, where the gateway makes the body anew; a list of the caller's own."""
        return transcoded_to_client(self.headers)

    def transcoded_lines(self) -> HeaderLines | None:
        """As `transcoded_fields`, but as lines of a reply's head, without `X-Request-Id`; None if there are none."""
        raw = self.raw_headers
        fields: Iterable[tuple[bytes, bytes]] = compress(raw, map(_CROSSES, map(_NAME, raw)))
        has_server, has_date = self._has_server, self._has_date
        connection = self._connection
        if connection is not None and connection.lower() not in (b"keep-alive", b"close"):
            kept = {name.encode() for name, _ in self.transcoded_fields()}  # without those that `Connection` names
            fields = [field for field in fields if field[0] in kept]
            noted = [_notes[name] for name, _ in fields]
            has_server, has_date = _SERVER in noted, _DATE in noted
        lines = list(map(b": ".join, fields))
        return HeaderLines(b"\r\n".join(lines).decode(), len(lines), has_server, has_date) if lines else None


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
