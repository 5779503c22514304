"""The head of an answer: what it says of its connection and its body, and which of its fields the client gets.

The fields stay the bytes that came. One pass over them, with one look-up for each name, takes what decides how the
answer is read, and the lines that cross. What else is wanted of them is decoded when it is asked for, which small
inferences never do.

Not here: how a head is parsed (`http1`), and which fields cross (`policy.crossing`).
"""

from collections.abc import Sequence
from enum import IntEnum

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
_UNJUDGED = "not judged yet"
_UNHANDLED = 500


class _Note(IntEnum):
    """What is noted of a field besides its line."""

    NOTHING = 0
    LENGTH = 1
    CODING = 2
    ENCODING = 3
    CONNECTION = 4
    SERVER = 5
    DATE = 6
    BAD_NAME = 7


_NOTES = {
    "content-length": _Note.LENGTH,
    "transfer-encoding": _Note.CODING,
    "content-encoding": _Note.ENCODING,
    "connection": _Note.CONNECTION,
    "server": _Note.SERVER,
    "date": _Note.DATE,
}


class _Names(dict[bytes, tuple[bytes, _Note]]):
    """Of a field's name as it came: how its line in a reply starts, empty if it does not cross, and what is noted.

    This depends on the bytes of the name alone, and is remembered for so many names of so many bytes.
    """

    MAX_NAMES = 1024
    MAX_NAME_BYTES = 64

    def __missing__(self, raw: bytes) -> tuple[bytes, _Note]:
        # a blank may stand behind a name, see `AnswerHead.headers`
        name = raw.decode("latin-1").rstrip(" ")
        lower = name.lower()
        found = b"\r\n%b: " % name.encode() if crosses_transcoded(lower) else b"", _NOTES.get(lower, _Note.NOTHING)
        if not (name.isascii() and name.isprintable()):
            found = b"", _Note.BAD_NAME
        if len(raw) <= self.MAX_NAME_BYTES:
            if len(self) >= self.MAX_NAMES:
                self.clear()
            self[raw] = found
        return found


_names = _Names()
_LENGTH, _SERVER, _DATE = _Note.LENGTH, _Note.SERVER, _Note.DATE


class AnswerHead:
    """The head of an answer, as it was parsed."""

    __slots__ = (
        "_connection",
        "_defect",
        "_has_bad_name",
        "_has_date",
        "_has_server",
        "_headers",
        "_is_read_chunked",
        "_is_to_close",
        "_lines",
        "code",
        "codings",
        "encoding",
        "length",
        "raw_headers",
        "reason",
    )

    def __init__(self, message: RawResponseMessage) -> None:
        """*message* is what aiohttp's parser makes of it, which refuses lengths that are no numbers or repeated."""
        self.code: int = message.code
        raw: Sequence[tuple[bytes, bytes]] = message.raw_headers
        self.raw_headers = raw
        self.length: int | None = None
        """The `Content-Length`, in bytes."""
        self.codings: bytes | None = None
        """All that `Transfer-Encoding` says."""
        self.encoding: bytes | None = None
        """The first `Content-Encoding`."""
        self._headers: Headers | None = None
        self._defect: str | None = _UNJUDGED
        self._is_to_close: bool = message.should_close
        self._is_read_chunked: bool = message.chunked
        reason: str = message.reason
        self.reason = reason if reason.isascii() and reason.isprintable() else ""
        """The words behind the status, if they are printable ASCII."""
        self._connection: bytes | None = None
        self._has_bad_name = False
        has_server = has_date = False
        lines: list[bytes] = []
        self._lines = lines
        names = _names
        for name, value in raw:
            start, note = names[name]
            if start:
                lines += start, value
            if note:
                if note is _DATE:
                    has_date = True
                elif note is _SERVER:
                    has_server = True
                elif note is _LENGTH:
                    self.length = int(value) if len(value) <= MAX_LENGTH_DIGITS else MAX_CONTENT_LENGTH + 1
                else:
                    self._note(note, value)
        self._has_server, self._has_date = has_server, has_date

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
        return self.codings is not None and self.codings.lower() == b"chunked" and self._is_read_chunked

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
        return self._is_to_close or self.code == _UNHANDLED or (is_bodiless and is_announced)

    def defect(self) -> str | None:
        """In words, what of the head must not be passed on, or leaves it open how the body is read; None if nothing."""
        if self._defect is _UNJUDGED:
            self._defect = self._find_defect()
        return self._defect

    def _find_defect(self) -> str | None:
        if not 200 <= self.code <= MAX_STATUS:
            return self._status_defect()
        text = b"".join([value for _, value in self.raw_headers])
        if self._has_bad_name or len(text.translate(None, _CONTROLS)) < len(text):
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
        lines = self._lines
        connection = self._connection
        has_server, has_date = self._has_server, self._has_date
        if connection is not None and connection.lower() not in (b"keep-alive", b"close"):
            lines = self._lines_without_named()
            left = [start.lower() for start in lines[::2]]  # `Connection` may name these two, too
            has_server, has_date = b"\r\nserver: " in left, b"\r\ndate: " in left
        if not lines:
            return None
        return HeaderLines(b"".join(lines)[2:].decode(), len(lines) // 2, has_server, has_date)

    def _lines_without_named(self) -> list[bytes]:
        """The lines that cross, but for those that a `Connection` field names."""
        crossing = {name.encode() for name, _ in self.transcoded_fields()}
        kept = [(_names[name][0], value) for name, value in self.raw_headers if name in crossing]
        return [part for start, value in kept if start for part in (start, value)]


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
