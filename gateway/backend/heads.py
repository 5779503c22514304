"""The head of an answer: the length of its body, the end of its connection, and the fields for the client.

The fields are kept as bytes. One pass over them, with one look-up for each name, finds the fields that decide how the
answer is read, and the lines that cross. All other fields are decoded when they are asked for, which small inferences
never do.

Not here: how a head is parsed (`http1`), and which fields cross (`policy.crossing`).
"""

from collections.abc import Callable, Sequence
from operator import itemgetter

from aiohttp.http import RawResponseMessage

from gateway.headers import Headers
from gateway.policy.crossing import crosses_transcoded, transcoded_to_client

MAX_STATUS = 599
"""The highest status of HTTP (RFC 9110 section 15); statuses that a backend makes up would fill metrics with labels."""

MAX_CONTENT_LENGTH = 2**63 - 1
"""The largest length of a body that is believed. aiohttp's parser takes 2**64 - 1 for no body at all."""

MAX_LENGTH_DIGITS = 32
"""How many digits a `Content-Length` may have, zeros before it included; Python converts no more than 4,300."""

MAX_CONNECTION_BYTES = 4096
"""How long `Connection` may be: each name in it is looked up, and 100,000 of them held the event loop for 11 ms."""

# Control characters that no header may hold (RFC 9110 section 5.5); a tab is allowed.
_CONTROLS = bytes({*range(0x20), 0x7F} - {0x09})

_WITHOUT_BODY = frozenset({204, 304})
_SWITCHING = 101
_VALUE: Callable[[tuple[bytes, bytes]], bytes] = itemgetter(1)

_UNHANDLED = 500
_BAD = "bad"
_NOTED = frozenset({"content-length", "transfer-encoding", "content-encoding", "connection", "server", "date"})


class _Names(dict[bytes, tuple[bytes, str]]):
    """By a field's name as it came: the start of its line in a reply, and the name under which its value is noted.

    The first is empty if the field does not cross, the second if its value decides nothing. Both depend on the bytes of
    the name alone, and are remembered for `MAX_NAMES` names of at most `MAX_NAME_BYTES`.
    """

    MAX_NAMES = 1024
    MAX_NAME_BYTES = 64

    def __missing__(self, raw: bytes) -> tuple[bytes, str]:
        # a name may end with a blank, see `AnswerHead.headers`
        name = raw.decode("latin-1").rstrip(" ")
        lower = name.lower()
        found = b"\r\n%b: " % name.encode() if crosses_transcoded(lower) else b"", lower if lower in _NOTED else ""
        if not (name.isascii() and name.isprintable()):
            found = b"", _BAD
        if len(raw) <= self.MAX_NAME_BYTES:
            if len(self) >= self.MAX_NAMES:
                self.clear()
            self[raw] = found
        return found


_names = _Names()


class AnswerHead:
    """The parsed head of an answer."""

    length: int | None = None
    """The `Content-Length`, in bytes."""
    _headers: Headers | None = None

    def __init__(self, message: RawResponseMessage) -> None:
        """*message* comes from aiohttp's parser, which refuses lengths that are no numbers or repeated."""
        self._message = message
        self.code: int = message.code
        reason: str = message.reason
        self.reason = reason if reason.isascii() and reason.isprintable() else ""
        """The reason phrase after the status, if it is printable ASCII; else empty."""
        raw: Sequence[tuple[bytes, bytes]] = message.raw_headers
        self.raw_headers = raw
        lines: list[bytes] = []
        said: dict[str, bytes] = {}
        self._lines, self._said = lines, said
        names = _names
        for name, value in raw:
            start, noted = names[name]
            if start:
                lines += start, value
            if noted:
                said[noted] = b"%b, %b" % (said[noted], value) if noted in said else value
        digits = said.get("content-length")
        if digits is not None:
            self.length = int(digits) if len(digits) <= MAX_LENGTH_DIGITS else MAX_CONTENT_LENGTH + 1
        self.codings = said.get("transfer-encoding")
        """The value of `Transfer-Encoding`; None without it."""
        self.encoding = said.get("content-encoding")
        self.defect = self._find_defect()
        """Why the head must not be passed on, or does not say how the body ends, in words; None if it is right."""

    @property
    def is_interim(self) -> bool:
        """Whether another head follows; not after `101 Switching Protocols`, for which nobody has asked."""
        return 100 <= self.code < 200 and self.code != _SWITCHING

    @property
    def is_chunked(self) -> bool:
        """Whether the body is chunked and coded in no other way, by the fields here and by aiohttp's parser.

        Both are asked, because the parser unfolds lines differently.
        """
        return self.codings is not None and self.codings.lower() == b"chunked" and self._message.chunked

    def is_bodiless(self, method: str) -> bool:
        """Whether an answer to *method* with this head has no body, whatever it announces (RFC 9112 section 6.3)."""
        return method == "HEAD" or self.code in _WITHOUT_BODY or self.code < 200

    def ends_connection(self, *, is_bodiless: bool) -> bool:
        """Whether the connection must not carry another request after this answer.

        There are three reasons. The backend says so. An answer that has no body announces one (*is_bodiless*), and some
        servers send it all the same. The status is 500: uvicorn answers an exception that nobody handles with a whole
        500, and closes the connection some milliseconds later, without having said so, under the next request.
        """
        is_announced = self.codings is not None or bool(self.length)
        return self._message.should_close or self.code == _UNHANDLED or (is_bodiless and is_announced)

    def _find_defect(self) -> str | None:
        if not 200 <= self.code <= MAX_STATUS:
            return self._status_defect()
        said, text = self._said, b"".join(map(_VALUE, self.raw_headers))
        if _BAD in said or text.translate(None, _CONTROLS) != text:
            return "answered with a header that holds a control character"
        if not text.isascii() and not all(_is_utf8(value) for _, value in self.raw_headers):
            return "answered with a header whose bytes are not UTF-8"
        if "connection" in said and len(said["connection"]) > MAX_CONNECTION_BYTES:
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
        """All fields; only for a head without `defect`.

        A blank at the end of a name is removed (RFC 9112 section 5.1): aiohttp's parser allows one after names that it
        obeys itself, such as `Transfer-Encoding`, and leaves it in the name.
        """
        if self._headers is None:
            self._headers = Headers([(name.decode().rstrip(" "), value.decode()) for name, value in self.raw_headers])
        return self._headers

    def transcoded_lines(self) -> str:
        """The fields for the client if the gateway makes the body anew, as lines of a reply's head.

        They are text with CR LF between them, without `X-Request-Id`, which every reply writes itself.
        """
        lines: list[bytes] = self._lines
        connection = self._said.get("connection")
        if connection is not None and connection.lower() not in (b"keep-alive", b"close"):
            kept = {name.encode() for name, _ in transcoded_to_client(self.headers)}  # not what `Connection` names
            crossing = [(_names[name][0], value) for name, value in self.raw_headers if name in kept]
            lines = [part for start, value in crossing if start for part in (start, value)]
        return b"".join(lines)[2:].decode()


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
