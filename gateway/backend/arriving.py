"""One answer of a backend while it arrives, from its first interim head to the end of its body.

Bytes go in with `feed`; one reader waits for the head and the pieces of the body. Which part comes next
is its `http1.Phase`. An answer is *over* when nothing more can come:

    why over                            the reader gets
    the bytes are not HTTP              what came before, then `NotHttpError`
    the connection is gone              what came before, then `LostError` unless it was all
    this side has closed, see `cut`     `LostError`, unless the whole answer has come

Surplus, bytes that belong to no answer, is dropped, and the connection is not used again.

Not here: the connection itself (`wire`), and the meaning of a head's fields (`heads`).
"""

import asyncio
from collections.abc import Callable

from aiohttp.http import RawResponseMessage

from gateway.backend.heads import AnswerHead
from gateway.http1 import PIECE_BYTES, Heads, Incoming, MalformedError, Phase
from gateway.waiting import Waiter, wake, wake_soon

READ_BYTES = 256 * 1024
"""How many bytes on the wire may wait to be read before nothing more is read from the backend."""

MAX_HEAD_BYTES = 256 * 1024
"""How long a head may be, with the interim heads before it."""

MAX_INTERIM = 16
"""How many interim heads (100, 103) may come before an answer."""

DENSE_BYTES = PIECE_BYTES - PIECE_BYTES // 16
MAX_DENSE = 8
"""If a piece has at least 1/8 of content it has large chunks, so that several pieces are decoded in one go."""

_TLS_ALERT = b"\x15\x03"  # the first bytes of a TLS server's answer to plain HTTP (RFC 8446 section 5.1)


class LostError(Exception):
    """The connection ended before the answer did."""


class NotHttpError(Exception):
    """What the backend sent is not HTTP; the message says what is wrong with it."""


class ArrivingAnswer:
    """The answer to one request, while it arrives."""

    received_bytes = 0
    """The bytes on the wire, with the head."""
    ends_with_connection = False
    """Whether only the end of the connection ends the body."""
    _head: AnswerHead | None = None
    _over: str | None = None  # set when it is over: why the bytes are not HTTP, empty if the connection is gone
    _is_last = False  # the answer says that it is the connection's last, or surplus has come
    _is_paused = False
    _n_interim = 0
    _waiter: Waiter | None = None

    def __init__(
        self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, heads: Heads, method: str, *, at_once: bool
    ) -> None:
        """The answer to a request of *method*. *transport* is paused while too much waits to be read.

        *at_once*: the reader goes on inside of `feed`, and not in the next turn of the event loop.
        """
        self._loop = loop
        self._transport = transport
        self._method = method
        self.wakes_at_once = at_once
        self._message = Incoming(heads)
        self._decoded = bytearray()  # of a chunked body, before the reader asked for it

    @property
    def is_read(self) -> bool:
        """Whether all of the answer has come and was read."""
        return self._head is not None and self._message.is_read and not self._decoded

    def is_last(self) -> bool:
        """Whether the connection can carry no other request, judging by the answer so far."""
        return self._is_last or self._over is not None or self._head is None or self._message.has_surplus

    # Bytes that arrive

    def feed(self, data: bytes) -> None:
        """Take bytes from the backend. Of a chunked body at most one piece is decoded here."""
        is_first = not self.received_bytes
        self.received_bytes += len(data)
        if self._over is not None:
            self._surplus()
        elif self._head is not None:
            self._feed_body(data)
        else:
            try:
                self._feed_head(data)
            except MalformedError as error:
                is_tls = is_first and data.startswith(_TLS_ALERT)
                self._break("it speaks TLS there: write https:// in the endpoint" if is_tls else str(error))

    def _feed_head(self, data: bytes) -> None:
        """Read heads until the answer's own has come. Raises `MalformedError`."""
        while (found := self._message.feed_head(data)) is not None:
            parsed, data = found
            assert isinstance(parsed, RawResponseMessage)
            head = AnswerHead(parsed)
            if not head.is_interim:
                self._begin_body(head)
                self._feed_body(data)
                return
            self._n_interim += 1
            if self._n_interim > MAX_INTERIM:
                raise MalformedError(f"it sends more than {MAX_INTERIM} interim answers")
            if not data:
                return

    def _begin_body(self, head: AnswerHead) -> None:
        self._head = head
        message = self._message
        is_bodiless = head.is_bodiless(self._method)
        if head.ends_connection(is_bodiless=is_bodiless):
            self._is_last = True
        if is_bodiless:
            message.expect(Phase.DONE)
        elif head.length is not None and head.codings is None:
            message.expect(Phase.SIZED, head.length)
        elif head.is_chunked:
            message.expect(Phase.CHUNKED)
        else:
            self.ends_with_connection = True
            message.expect(Phase.UNTIL_END)

    def _feed_body(self, data: bytes) -> None:
        """Take bytes of the body, maybe none."""
        message = self._message
        if data and message.feed_body(data):
            self._surplus()
        if message.unread_bytes > READ_BYTES and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        if self._waiter is not None:
            self._wake(wake if self.wakes_at_once else wake_soon)

    def _break(self, defect: str) -> None:
        """The bytes are not HTTP; *defect* says why."""
        self._message.drop()
        self._surplus()
        self._end(defect)

    def _surplus(self) -> None:
        """Read no more bytes: they would belong to no answer."""
        self._is_last = True
        self._transport.pause_reading()

    def lose(self) -> None:
        """The connection has ended, which completes a body without length."""
        if self._over is None:
            self._message.end()
            self._end()

    def cut(self) -> None:
        """This side closes the connection: the reader gets nothing more, unless the whole answer has come."""
        if self._message.phase is not Phase.DONE:
            self._head = None
            self._message.drop()
            self._decoded.clear()
            self._end()

    def _end(self, defect: str = "") -> None:
        self._over = defect
        self._wake()

    def _wake(self, let_go_on: Callable[[Waiter | None], None] = wake_soon) -> None:
        """Let the reader go on, by default in the next turn of the event loop."""
        waiter, self._waiter = self._waiter, None
        let_go_on(waiter)

    # The reader's side

    async def read_head(self) -> AnswerHead:
        """Wait for the head that is not interim. Raises `LostError` and `NotHttpError`."""
        while self._head is None:
            await self._change()
        return self._head

    async def read_body(self) -> bytes:
        """Wait for the next bytes of the body; empty at its end. Raises `LostError` and `NotHttpError`."""
        message = self._message
        while not self.is_read:
            if self._decoded:
                chunk = bytes(self._decoded)
                self._decoded.clear()
            elif message.unread_bytes:
                chunk = self._read_arrived()
            else:
                await self._change()
                continue
            if self._is_paused and message.unread_bytes < READ_BYTES // 2:
                self._is_paused = False
                self._transport.resume_reading()
            if chunk:  # a piece of a chunked body may carry nothing
                return chunk
        return b""

    def take_arrived(self, max_bytes: int) -> bytes | None:
        """The whole body, if it has come, has at most *max_bytes*, and nothing of it was read; else None.

        A chunked body of more than one piece is not decoded yet. A body that ends with the connection gives None, too:
        only reading it shows whether the connection ended by a reset.
        """
        message = self._message
        if message.phase is Phase.CHUNKED and message.unread_bytes <= PIECE_BYTES:
            try:
                self._decoded += message.read()
            except MalformedError as error:
                self._break(str(error))
        if message.phase is not Phase.DONE or self.ends_with_connection:
            return None
        if message.unread_bytes + len(self._decoded) > max_bytes:
            return None
        whole = bytes(self._decoded) or message.read()
        self._decoded.clear()
        return whole

    def _read_arrived(self) -> bytes:
        """The next bytes that have come; of a chunked body more than one piece if its chunks are large."""
        message = self._message
        pieces: list[bytes] = []
        try:
            while message.unread_bytes and len(pieces) < MAX_DENSE:
                pieces.append(message.read())
                if len(pieces[-1]) < DENSE_BYTES:
                    break
        except MalformedError as error:
            self._break(str(error))
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _change(self) -> Waiter:
        """A waiter for the next change. Raises `LostError` and `NotHttpError` if nothing more can come."""
        if self._over is not None:
            raise NotHttpError(self._over) if self._over else LostError
        self._waiter = waiter = Waiter(self._loop)
        return waiter
