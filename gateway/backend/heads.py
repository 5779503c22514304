"""The head of an answer: the length of its body, the end of its connection, and the fields for the client.

Not here: how a head is parsed (`http1`), and which fields cross (`policy.crossing`).
"""

import re
from operator import itemgetter

from aiohttp.http import RawResponseMessage

from gateway.headers import Headers

MAX_STATUS = 599
"""The highest status of HTTP (RFC 9110 section 15); statuses that a backend makes up would fill metrics with labels."""

MAX_CONTENT_LENGTH = 2**63 - 1
"""The largest length of a body that is believed. aiohttp's parser takes 2**64 - 1 for no body at all."""

MAX_LENGTH_DIGITS = 32
"""How many digits a `Content-Length` may have, zeros before it included; Python converts no more than 4,300."""

MAX_CONNECTION_BYTES = 4096
"""How long `Connection` may be: each name in it is looked up, and 100,000 of them held the event loop for 11 ms."""

# Control characters that no header may hold (RFC 9110 section 5.5; a tab is allowed), and the surrogates that aiohttp's
# parser makes of bytes that are not UTF-8.
_UNFIT = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")

_WITHOUT_BODY = frozenset({204, 304})
_SWITCHING = 101
_UNHANDLED = 500


class AnswerHead:
    """The parsed head of an answer."""

    def __init__(self, message: RawResponseMessage) -> None:
        """*message* comes from aiohttp's parser, which refuses lengths that are no numbers or repeated.

        A blank at the end of a name is removed (RFC 9112 section 5.1): aiohttp's parser allows one after names that it
        obeys itself, such as `Transfer-Encoding`, and leaves it in the name.
        """
        self._message = message
        self.code: int = message.code
        reason: str = message.reason
        self.reason = reason if reason.isascii() and reason.isprintable() else ""
        """The reason phrase after the status, if it is printable ASCII; else empty."""
        headers = Headers(message.headers.items())
        if " " in "".join(headers.first):
            headers = Headers((name.rstrip(" "), value) for name, value in headers.pairs)
        self.headers = headers
        """All fields; bytes that are not UTF-8 are surrogates."""
        first = headers.first
        self.codings = headers.joined("transfer-encoding") if "transfer-encoding" in first else None
        """The value of `Transfer-Encoding`; None without it."""
        self.encoding = headers.joined("content-encoding")
        """The value of `Content-Encoding`; empty without it."""
        digits = first.get("content-length")
        self.length: int | None = None
        """The `Content-Length`, in bytes."""
        if digits is not None:
            self.length = int(digits) if len(digits) <= MAX_LENGTH_DIGITS else MAX_CONTENT_LENGTH + 1
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
        return self.codings is not None and self.codings.lower() == "chunked" and self._message.chunked

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
            return f"answered with status {self.code:03}; expected one from 200 to {MAX_STATUS}"
        headers = self.headers
        names, values = "".join(headers.first), "".join(map(itemgetter(1), headers.pairs))
        # most values have neither tabs nor other alphabets, and need no search
        if not (names.isascii() and names.isprintable() and (values.isprintable() or not _UNFIT.search(values))):
            return "answered with a header that holds a control character or bytes that are not UTF-8"
        if "connection" in headers.first and len(headers.joined("connection")) > MAX_CONNECTION_BYTES:
            return f"answered with a Connection header of more than {MAX_CONNECTION_BYTES} bytes"
        if self.codings is not None:
            if not self.is_chunked:
                return f"answered with Transfer-Encoding {self.codings[:64]!r}; only `chunked` is supported"
        elif self.length is not None and self.length > MAX_CONTENT_LENGTH:
            return f"answered with Content-Length {self.length}, at most {MAX_CONTENT_LENGTH} is possible"
        return None
