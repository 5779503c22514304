"""One answer of a backend while it arrives, from its first interim head to the end of its body.

Bytes go in with `feed`; one reader waits for the head and the pieces of the body. Which part comes next
is its `http1.Phase`. An answer is *over* when nothing more can come:

    why over                            the reader gets
    the bytes are not HTTP              what came before, then `NotHttpError`
    the connection is gone              what came before, then `LostError` unless it was all
    this side has closed, see `cut`     `LostError`, unless the whole answer has come

Surplus, bytes that belong to no answer, is dropped, and the connection is not used again.
"""

import asyncio
import re

from aiohttp.http import RawResponseMessage

from gateway.headers import Headers
from gateway.http1 import MAX_CONTENT_LENGTH, MAX_DIGITS, PIECE_BYTES, Heads, Incoming, MalformedError, Phase
from gateway.waiting import Waiter, wake_soon

READ_BYTES = 256 * 1024
"""How many bytes on the wire may wait to be read before nothing more is read from the backend."""

MAX_HEAD_BYTES = 256 * 1024
"""How long a head may be, with the interim heads before it."""

MAX_INTERIM = 16
"""How many interim heads (100, 103) may come before an answer."""

DENSE_BYTES = PIECE_BYTES - PIECE_BYTES // 16
MAX_DENSE = 8
"""If a piece has at least 1/8 of content it has large chunks, so that several pieces are decoded in one go."""

MAX_STATUS = 599
"""The highest status of HTTP (RFC 9110 section 15); statuses that a backend makes up would fill metrics with labels."""

MAX_CONNECTION_BYTES = 4096
"""How long `Connection` may be: each name in it is looked up, and 100,000 of them held the event loop for 11 ms."""

# Control characters that no header may hold (RFC 9110 section 5.5; a tab is allowed), and the surrogates that aiohttp's
# parser makes of bytes that are not UTF-8.
_UNFIT = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")

_WITHOUT_BODY = frozenset({204, 304})
_UNHANDLED = 500
_TLS_ALERT = b"\x15\x03"  # the first bytes of a TLS server's answer to plain HTTP (RFC 8446 section 5.1)
_SWITCHING = 101

# as globals, because looking up an enum's attribute costs as much as a call
_SIZED, _CHUNKED, _UNTIL_END, _DONE = Phase.SIZED, Phase.CHUNKED, Phase.UNTIL_END, Phase.DONE


class LostError(Exception):
    """The connection ended before the answer did."""


class NotHttpError(Exception):
    """What the backend sent is not HTTP; the message says what is wrong with it."""


class AnswerHead:
    """The parsed head of an answer that is not interim."""

    headers: Headers
    """All fields; bytes that are not UTF-8 are surrogates."""
    length: int | None = None
    """How many bytes of body the answer announces; None if it does not say."""
    phase = _UNTIL_END
    """How the body ends."""
    is_last: bool
    """Whether the connection must not carry another request after this answer.

    There are three reasons. The backend says so. An answer that has no body announces one, and some servers send it all
    the same. The status is 500: uvicorn answers an exception that nobody handles with a whole 500, and closes the
    connection some milliseconds later, without having said so, under the next request.
    """
    defect: str | None = None
    """Why the head must not be passed on, or does not say how the body ends, in words; None if it is right."""

    def __init__(self, message: RawResponseMessage, method: str) -> None:
        """*message* comes from aiohttp's parser, which refuses lengths that are no numbers or repeated.

        A blank at the end of a name is removed (RFC 9112 section 5.1): aiohttp's parser allows one after names that it
        obeys itself, such as `Transfer-Encoding`, and leaves it in the name. *method* is the request's.
        """
        self.code: int = message.code
        self._reason: str = message.reason
        self.headers = headers = Headers(message.headers.items())
        names = "".join(headers.first)
        if " " in names:
            self.headers = headers = Headers((name.rstrip(" "), value) for name, value in headers.pairs)
        if "transfer-encoding" in headers.first:
            codings = headers.joined("transfer-encoding")
            if codings.lower() == "chunked":
                self.phase = _CHUNKED
            else:
                self.defect = f"answered with Transfer-Encoding {codings[:64]!r}; only `chunked` is supported"
        elif (digits := headers.first.get("content-length")) is not None:
            self.phase = _SIZED
            self.length = length = int(digits) if len(digits) <= MAX_DIGITS else MAX_CONTENT_LENGTH + 1
            if length > MAX_CONTENT_LENGTH:
                self.defect = f"answered with Content-Length {length}, at most {MAX_CONTENT_LENGTH} is possible"
        self.is_last = message.should_close or self.code == _UNHANDLED
        if method == "HEAD" or self.code in _WITHOUT_BODY:  # whatever it announces (RFC 9112 section 6.3)
            self.is_last = self.is_last or "transfer-encoding" in headers.first or bool(self.length)
            self.phase = _DONE
        self.defect = self._find_defect(names, "".join(message.headers.values())) or self.defect

    @property
    def reason(self) -> str:
        """The reason phrase after the status, if it is printable ASCII; else empty."""
        return self._reason if self._reason.isascii() and self._reason.isprintable() else ""

    def _find_defect(self, names: str, values: str) -> str | None:
        if not 200 <= self.code <= MAX_STATUS:
            return f"answered with status {self.code:03}; expected one from 200 to {MAX_STATUS}"
        # most values have neither tabs nor other alphabets, and need no search
        if not (names.isascii() and names.isprintable() and (values.isprintable() or not _UNFIT.search(values))):
            return "answered with a header that holds a control character or bytes that are not UTF-8"
        if "connection" in self.headers.first and len(self.headers.joined("connection")) > MAX_CONNECTION_BYTES:
            return f"answered with a Connection header of more than {MAX_CONNECTION_BYTES} bytes"
        return None


class ArrivingAnswer(Incoming):
    """The answer to one request, while it arrives."""

    received_bytes = 0
    """The bytes on the wire, with the head."""
    head: AnswerHead | None = None
    """The answer's own head, once it has come."""
    is_last = False
    """Whether the answer says that it is the connection's last, or surplus has come."""
    _over: str | None = None  # set when it is over: why the bytes are not HTTP, empty if the connection is gone
    _is_paused = False
    _n_interim = 0
    _waiter: Waiter | None = None

    def __init__(
        self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, heads: Heads, method: str, *, at_once: bool
    ) -> None:
        """The answer to a request of *method*. *transport* is paused while too much waits to be read.

        *at_once*: the reader goes on inside of `feed`, and not in the next turn of the event loop.
        """
        super().__init__(heads)
        self._loop = loop
        self._transport = transport
        self._method = method
        self.wakes_at_once = at_once

    # Bytes that arrive

    def feed(self, data: bytes) -> None:
        """Take bytes from the backend. No part of a chunked body is decoded here."""
        self.received_bytes += len(data)
        if self._over is not None:
            self._surplus()
            return
        if self.head is None:
            try:
                data = self._take_heads(data)
            except MalformedError as error:
                is_tls = self.received_bytes == len(data) and data.startswith(_TLS_ALERT)
                self._break("it speaks TLS there: write https:// in the endpoint" if is_tls else str(error))
            if self.head is None:
                return
        if data and self.feed_body(data):
            self._surplus()
        if self.unread_bytes > READ_BYTES and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if self.wakes_at_once:
                waiter.wake()
            else:
                waiter.wake_soon()

    def _take_heads(self, data: bytes) -> bytes:
        """Read heads until the answer's own has come; returns the bytes behind it. Raises `MalformedError`."""
        while (found := self.feed_head(data)) is not None:
            parsed, data = found
            assert isinstance(parsed, RawResponseMessage)
            if not 100 <= parsed.code < 200 or parsed.code == _SWITCHING:  # nobody has asked to switch protocols
                self.head = head = AnswerHead(parsed, self._method)
                self.is_last = head.is_last
                self.expect(head.phase, head.length or 0)
                return data
            self._n_interim += 1
            if self._n_interim > MAX_INTERIM:
                raise MalformedError(f"it sends more than {MAX_INTERIM} interim answers")
            if not data:
                break
        return b""

    def _break(self, defect: str) -> None:
        """The bytes are not HTTP; *defect* says why."""
        self.drop()
        self._surplus()
        self._end(defect)

    def _surplus(self) -> None:
        """Read no more bytes: they would belong to no answer."""
        self.is_last = True
        self._transport.pause_reading()

    def lose(self, *, was_reset: bool) -> None:
        """The connection has ended, which completes a body without length, unless it was reset."""
        if self._over is None:
            if not was_reset:
                self.end()
            self._end()

    def cut(self) -> None:
        """This side closes the connection: the reader gets nothing more, unless the whole answer has come."""
        if not self.has_arrived:
            self.head = None
            self.drop()
            self._end()

    def _end(self, defect: str = "") -> None:
        self._over = defect
        waiter, self._waiter = self._waiter, None
        wake_soon(waiter)

    # The reader's side

    def change(self) -> Waiter:
        """A waiter for the next change, awaited at once. Raises `LostError`, `NotHttpError` if no more can come."""
        if self._over is not None:
            raise NotHttpError(self._over) if self._over else LostError
        self._waiter = waiter = Waiter(self._loop)
        return waiter

    async def read_head(self) -> AnswerHead:
        """Wait for the head that is not interim. Raises `LostError` and `NotHttpError`."""
        while self.head is None:
            await self.change()
        return self.head

    async def read_body(self) -> bytes:
        """Wait for the next bytes of the body; empty at its end. Raises `LostError` and `NotHttpError`."""
        while not (chunk := self.read_arrived()) and not self.is_read:  # a chunked body's piece may carry nothing
            if not self.unread_bytes:
                await self.change()
        return chunk

    def read_arrived(self) -> bytes:
        """The next bytes of the body that have come, maybe none; does not wait.

        Of a chunked body it is one piece, or several if its chunks are large.
        """
        pieces: list[bytes] = []
        try:
            pieces.append(self.read())
            while self.unread_bytes and len(pieces[-1]) >= DENSE_BYTES and len(pieces) < MAX_DENSE:
                pieces.append(self.read())
        except MalformedError as error:
            self._break(str(error))
        if self._is_paused and self.unread_bytes < READ_BYTES // 2:
            self._is_paused = False
            self._transport.resume_reading()
        return b"".join(pieces)
