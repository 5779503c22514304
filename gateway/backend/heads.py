"""The head of an answer: the length of its body, the end of its connection, and the fields for the client.

Not here: how a head is parsed (`http1`), and which fields cross (`policy.crossing`).
"""

import re

from aiohttp.http import RawResponseMessage

from gateway.headers import Headers
from gateway.http1 import MAX_CONTENT_LENGTH, Phase, body_length

MAX_STATUS = 599
"""The highest status of HTTP (RFC 9110 section 15); statuses that a backend makes up would fill metrics with labels."""

MAX_CONNECTION_BYTES = 4096
"""How long `Connection` may be: each name in it is looked up, and 100,000 of them held the event loop for 11 ms."""

# Control characters that no header may hold (RFC 9110 section 5.5; a tab is allowed), and the surrogates that aiohttp's
# parser makes of bytes that are not UTF-8.
_UNFIT = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")

_WITHOUT_BODY = frozenset({204, 304})
_UNHANDLED = 500


class AnswerHead:
    """The parsed head of an answer that is not interim."""

    def __init__(self, message: RawResponseMessage, method: str) -> None:
        """*message* comes from aiohttp's parser, which refuses lengths that are no numbers or repeated.

        A blank at the end of a name is removed (RFC 9112 section 5.1): aiohttp's parser allows one after names that it
        obeys itself, such as `Transfer-Encoding`, and leaves it in the name. *method* is the request's.
        """
        self.code: int = message.code
        reason: str = message.reason
        self.reason = reason if reason.isascii() and reason.isprintable() else ""
        """The reason phrase after the status, if it is printable ASCII; else empty."""
        headers = Headers(message.headers.items())
        if " " in "".join(headers.first):
            headers = Headers((name.rstrip(" "), value) for name, value in headers.pairs)
        self.headers = headers
        """All fields; bytes that are not UTF-8 are surrogates."""
        self.length: int | None = None
        """How many bytes of body the answer announces; None if it does not say."""
        self.phase = Phase.UNTIL_END
        """How the body ends."""
        codings = None
        digits = headers.first.get("content-length")
        if "transfer-encoding" in headers.first:
            codings = headers.joined("transfer-encoding")
            if codings.lower() == "chunked":
                self.phase = Phase.CHUNKED
        elif digits is not None:
            self.length = body_length(digits)
            self.phase = Phase.SIZED
        self.is_last = message.should_close or self.code == _UNHANDLED
        """Whether the connection must not carry another request after this answer.

        There are three reasons. The backend says so. An answer that has no body announces one, and some servers send it
        all the same. The status is 500: uvicorn answers an exception that nobody handles with a whole 500, and closes
        the connection some milliseconds later, without having said so, under the next request.
        """
        self.defect = self._find_defect(codings)
        """Why the head must not be passed on, or does not say how the body ends, in words; None if it is right."""
        if method == "HEAD" or self.code in _WITHOUT_BODY:  # whatever it announces (RFC 9112 section 6.3)
            self.is_last = self.is_last or codings is not None or bool(self.length)
            self.phase = Phase.DONE

    def _find_defect(self, codings: str | None) -> str | None:
        if not 200 <= self.code <= MAX_STATUS:
            return f"answered with status {self.code:03}; expected one from 200 to {MAX_STATUS}"
        headers = self.headers
        names, values = "".join(headers.first), "".join([value for _, value in headers.pairs])
        # most values have neither tabs nor other alphabets, and need no search
        if not (names.isascii() and names.isprintable() and (values.isprintable() or not _UNFIT.search(values))):
            return "answered with a header that holds a control character or bytes that are not UTF-8"
        if "connection" in headers.first and len(headers.joined("connection")) > MAX_CONNECTION_BYTES:
            return f"answered with a Connection header of more than {MAX_CONNECTION_BYTES} bytes"
        if codings is not None and self.phase is not Phase.CHUNKED:
            return f"answered with Transfer-Encoding {codings[:64]!r}; only `chunked` is supported"
        if self.length is not None and self.length > MAX_CONTENT_LENGTH:
            return f"answered with Content-Length {self.length}, at most {MAX_CONTENT_LENGTH} is possible"
        return None
