"""One answer of a backend while it arrives, from its first interim head to the end of its body.

Bytes go in with `feed`; one reader waits for the head and the pieces of the body. The answer is in one of these states
(`State`):

    state    bytes that come are           the reader gets             left for
    HEAD     a head, maybe interim         nothing                     HELD, BODY, BROKEN, LOST
    HELD     the body                      nothing, see `hold`         BODY, LOST
    BODY     the body; behind it surplus   the head, then the body     BROKEN, LOST
    BROKEN   surplus                       what came before, then `NotHttpError`
    LOST     none, the connection is gone  what came before, then `LostError` unless it was all
    CUT      none, this side has closed    `LostError`, unless it was all

`http1.Phase` says how much of the body has come in the states BODY and LOST. Surplus, bytes that belong to no answer,
is dropped, and the connection is not used again.

Not here: the connection itself (`wire`), and the meaning of a head's fields (`heads`).
"""

import asyncio
from collections.abc import Callable
from enum import Enum, auto

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

HELD_BYTES = 16 * 1024
"""How many bytes of the body a held head waits for; see `hold`."""

DENSE_BYTES = PIECE_BYTES - PIECE_BYTES // 16
MAX_DENSE = 8
"""If a piece has at least 1/8 of content it has large chunks, so that several pieces are decoded in one go."""

_TLS_ALERT = b"\x15\x03"  # the first bytes of a TLS server's answer to plain HTTP (RFC 8446 section 5.1)


class State(Enum):
    """How much of an answer has come; see the table of this module."""

    HEAD = auto()
    HELD = auto()
    BODY = auto()
    BROKEN = auto()
    LOST = auto()
    CUT = auto()


class LostError(Exception):
    """The connection ended before the answer did."""


class NotHttpError(Exception):
    """What the backend sent is not HTTP; the message says what is wrong with it."""


class ArrivingAnswer:
    """The answer to one request, while it arrives."""

    state = State.HEAD
    received_bytes = 0
    """The bytes on the wire, with the head."""
    ends_with_connection = False
    """Whether only the end of the connection ends the body."""
    wakes_at_once = False
    """Whether the reader goes on inside of `feed`, and not in the next turn of the event loop."""
    _is_last = False  # the answer says that it is the connection's last, or surplus has come
    _is_paused = False
    _n_interim = 0
    _head: AnswerHead | None = None
    _on_held: Callable[[int], None] | None = None
    _waiter: Waiter | None = None
    _defect = ""  # the reason for BROKEN, in words

    def __init__(
        self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, heads: Heads, method: str
    ) -> None:
        """The answer to a request of *method*. *transport* is paused while too much waits to be read."""
        self._loop = loop
        self._transport = transport
        self._method = method
        self._message = Incoming(heads)
        self._decoded = bytearray()  # of a chunked body, before the reader asked for it

    def hold(self, on_held: Callable[[int], None]) -> None:
        """Hold back the head of a 2xx until its body has come, or `HELD_BYTES` of it, or the connection's end.

        Servers often write a head and a small body in two pieces, and the reader would wake for each. A head with any
        other status, which may decide without a body, or with a defect is given at once. *on_held* is called with the
        status when a head comes without its body, and again whenever more of the body comes.
        """
        self._on_held = on_held

    @property
    def is_read(self) -> bool:
        """Whether all of the answer has come and was read."""
        return self._head is not None and self._message.is_read and not self._decoded

    def is_last(self) -> bool:
        """Whether the connection can carry no other request, judging by the answer so far."""
        return self._is_last or self._message.has_surplus or self.state is not State.BODY

    # Bytes that arrive

    def feed(self, data: bytes) -> None:
        """Take bytes from the backend. Of a chunked body at most one piece is decoded here."""
        is_first = not self.received_bytes
        self.received_bytes += len(data)
        if self.state is State.HEAD:
            try:
                self._feed_head(data)
            except MalformedError as error:
                is_tls = is_first and data.startswith(_TLS_ALERT)
                self._break("it speaks TLS there: write https:// in the endpoint" if is_tls else str(error))
        elif self.state is State.HELD or self.state is State.BODY:
            self._feed_body(data)
        else:
            self._surplus()

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
            message.expect_nothing()
        elif head.length is not None and head.codings is None:
            message.expect_sized(head.length)
        elif head.is_chunked:
            message.expect_chunks()
        else:
            self.ends_with_connection = True
            message.expect_until_end()
        # an answer with a defect is refused because of its head: there is no need to wait for its body
        is_held = self._on_held is not None and 200 <= head.code < 300 and head.defect is None
        self.state = State.HELD if is_held else State.BODY

    def _feed_body(self, data: bytes) -> None:
        """Take bytes of the body, maybe none."""
        message = self._message
        if data and message.feed_body(data):
            self._surplus()
        if self.state is State.HELD:
            if message.phase is not Phase.DONE and not self._is_enough():
                assert self._head is not None
                assert self._on_held is not None
                self._on_held(self._head.code)
                return
            if self.state is State.HELD:
                self.state = State.BODY
        if message.unread_bytes > READ_BYTES and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        if self._waiter is not None:
            self._wake(wake if self.wakes_at_once else wake_soon)

    def _is_enough(self) -> bool:
        """Whether so much of the body has come that a held head is given to the reader."""
        message = self._message
        if message.phase is Phase.CHUNKED:
            if message.unread_bytes <= PIECE_BYTES:
                self._decode()
            if message.unread_bytes:  # the rest is for the reader to decode: waiting for more bytes could last for ever
                return True
        return (
            message.phase is Phase.DONE
            or self.state is State.BROKEN
            or message.unread_bytes + len(self._decoded) >= HELD_BYTES
        )

    def _decode(self) -> None:
        """Decode one piece of a chunked body ahead of the reader."""
        if self._message.unread_bytes:
            try:
                self._decoded += self._message.read()
            except MalformedError as error:
                self._break(str(error))

    def _break(self, defect: str) -> None:
        """Enter the state BROKEN: the bytes are not HTTP; *defect* says why."""
        self._defect = defect
        self.state = State.BROKEN
        self._message.drop()
        self._surplus()
        self._wake()

    def _surplus(self) -> None:
        """Read no more bytes: they would belong to no answer."""
        self._is_last = True
        self._transport.pause_reading()

    def lose(self) -> None:
        """The connection has ended, which completes a body without length."""
        if self.state in (State.HEAD, State.HELD, State.BODY):
            self.state = State.LOST
            self._message.end()
            self._wake()

    def cut(self) -> None:
        """This side closes the connection: the reader gets nothing more, unless the whole answer has come."""
        if self._message.phase is not Phase.DONE:
            self.state = State.CUT
            self._message.drop()
            self._decoded.clear()
            self._wake()

    def _wake(self, let_go_on: Callable[[Waiter | None], None] = wake_soon) -> None:
        """Let the reader go on, by default in the next turn of the event loop."""
        self._on_held = None  # breaks the cycle of references through the request
        waiter, self._waiter = self._waiter, None
        let_go_on(waiter)

    # The reader's side

    async def read_head(self) -> AnswerHead:
        """Wait for the head that is not interim. Raises `LostError` and `NotHttpError`."""
        while self._head is None or self.state is State.HELD:
            await self._change()
        if self.state is State.CUT:
            raise LostError
        self._on_held = None
        return self._head

    async def read_body(self) -> bytes:
        """Wait for the next bytes of the body; empty at its end. Raises `LostError` and `NotHttpError`."""
        message = self._message
        while True:
            if self._decoded:
                chunk = bytes(self._decoded)
                self._decoded.clear()
            elif message.unread_bytes:
                chunk = self._read_arrived()
            elif message.is_read:
                return b""
            else:
                await self._change()
                continue
            if self._is_paused and message.unread_bytes < READ_BYTES // 2:
                self._is_paused = False
                self._transport.resume_reading()
            if chunk:  # a piece of a chunked body may carry nothing
                return chunk

    def take_arrived(self, max_bytes: int) -> bytes | None:
        """The whole body, if it has come, has at most *max_bytes*, and nothing of it was read; else None.

        A chunked body of more than one piece is not decoded yet. A body that ends with the connection gives None, too:
        only reading it shows whether the connection ended by a reset.
        """
        message = self._message
        if message.phase is Phase.CHUNKED and message.unread_bytes <= PIECE_BYTES:
            self._decode()
        if message.phase is not Phase.DONE or self.ends_with_connection:
            return None
        decoded = self._decoded
        if not decoded:
            return message.read() if message.unread_bytes <= max_bytes else None
        if len(decoded) > max_bytes:
            return None
        whole = bytes(decoded)
        decoded.clear()
        return whole

    def _read_arrived(self) -> bytes:
        """The next bytes that have come; of a chunked body more than one piece if its chunks are large."""
        message = self._message
        pieces: list[bytes] = []
        try:
            pieces.append(message.read())
            while len(pieces[-1]) >= DENSE_BYTES and len(pieces) < MAX_DENSE and message.phase is Phase.CHUNKED:
                if not message.unread_bytes:
                    break
                pieces.append(message.read())
        except MalformedError as error:
            self._break(str(error))
            if not pieces:
                raise NotHttpError(self._defect) from None
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _change(self) -> Waiter:
        """A waiter for the next change. Raises `LostError` and `NotHttpError` if nothing more can come."""
        if self.state is State.BROKEN:
            raise NotHttpError(self._defect)
        if self.state is State.LOST or self.state is State.CUT:
            raise LostError
        self._waiter = waiter = Waiter(self._loop)
        return waiter
