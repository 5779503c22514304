"""One connection to an endpoint. All private uses of aiohttp's client are in this file.

aiohttp's `ResponseHandler` parses what the backend sends. It is taken without aiohttp's session and pool, because
these give a connection back as soon as the answer's end is parsed, while the caller still holds it, and hand out a
connection again although bytes have come on it while it was idle.

Here: bytes out, parsed answers in, and whether the request was read, by the kernel's counters. Not here: who may use
the connection (`connections`), and what a request or an answer says (`attempt`). What of aiohttp is private is listed
in tests/backend/test_wire_privates.py, which fails when a new release has lost or changed it.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable

from aiohttp import ClientError, ClientPayloadError, HttpVersion11
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpResponseParser, RawResponseMessage
from aiohttp.streams import EMPTY_PAYLOAD, EofStream, StreamReader

from gateway.backend.known_heads import KnownHead, KnownHeads
from gateway.headers import Headers
from gateway.sockets import ACKED, ESTABLISHED, RECEIVED, SENT, STATE, TcpCounters, Watched, reset_on_close
from gateway.tls import TlsLayer, why_refused

READ_BYTES = 256 * 1024
"""How much of an answer may wait to be read before the backend has to wait."""

MAX_INTERIM = 16
"""How many interim heads (100, 103) may come before an answer."""

HELD_BYTES = 16 * 1024
"""How much of an answer's body is waited for before its head is given to a reader that wants both; see `hold`."""

HEAD_PIECE_BYTES = 4 * 1024
"""How much is parsed in one go until the answer's own head has come: a piece has at most some 200 interim heads."""

_HEAD_END = b"\r\n\r\n"
_SWITCHING = 101  # aiohttp parses nothing that comes behind it
_WITHOUT_BODY = frozenset({204, 304})

_TLS_ALERT = b"\x15\x03"  # how a TLS server's answer to plain HTTP begins (RFC 8446 section 5.1)


class ArrivedBody:
    """The body of an answer with a known head, of which all has come; takes the place of a `StreamReader`."""

    __slots__ = ("_buffer", "total_bytes")

    def __init__(self, body: bytes) -> None:
        self._buffer = [body]
        self.total_bytes = len(body)

    def at_eof(self) -> bool:
        """Whether the body was read."""
        return not self._buffer

    def read_nowait(self) -> bytes:
        """The body; empty if it was read."""
        return self._buffer.pop() if self._buffer else b""


Head = RawResponseMessage | KnownHead
"""What an answer begins with: `code`, `reason` and `raw_headers`."""

Reader = StreamReader | ArrivedBody
"""Reads the body of an answer; see `Wire.read_body`."""


class LostError(Exception):
    """The connection ended before the answer did."""


class NotHttpError(Exception):
    """What the backend sent is not HTTP; the message says what is wrong with it."""


class Wire(ResponseHandler):
    """aiohttp's client protocol, for one request at a time.

    `begin` opens an exchange: the request's bytes go out with `send`, the answer comes from `read_head` and the
    reader that it gives. Between exchanges, any byte that comes closes the connection (design: whose connection).
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_lost: "Callable[[Wire], None]", known_heads: KnownHeads
    ) -> None:
        """*on_lost* is called when the connection is gone. *known_heads* are those of the backend's answers."""
        super().__init__(loop)
        self.on_lost = on_lost
        self._known_heads = known_heads
        self.received_bytes = 0
        """In this exchange."""
        self.idle_since = 0.0
        self.is_reused = False
        self.tls: TlsLayer | None = None
        """Between this and the socket, where the endpoint speaks TLS."""
        self._is_tls_alert = False
        self._is_open = False  # whether an exchange is
        self._is_head = False
        self._is_head_complete = False
        self._head_tail = b""
        self._n_interim = 0
        self._socket: Watched
        self._all_received = 0  # since the connection was opened, without the framing of TLS
        self._before: TcpCounters | None = None
        self._after: TcpCounters | None = None
        self._held: tuple[RawResponseMessage, StreamReader] | None = None
        self._known: KnownHead | None = None  # whose body has not come to its end
        self._pieces: list[bytes] = []  # its bytes, and what has come of the body
        self._n_missing = 0
        self._on_held: Callable[[int], None] | None = None
        self._stream_ended = False
        self._is_premature = False
        self._is_acknowledged = False  # some of the request, as far as was asked
        self._reset: BaseException | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open, with TLS behind the handshake."""
        super().connection_made(transport)
        self._socket = Watched(transport)

    # Between exchanges

    def is_usable(self) -> bool:
        """Whether an idle connection can carry another exchange: still open, and nothing has come on it.

        The kernel is asked, because what has arrived since the event loop last looked is not known here yet. With TLS
        that may be a session ticket, but servers send these before their first answer.
        """
        transport = self.transport
        if transport is None or self._should_close or transport.is_closing():
            return False
        if self.tls is not None and not self.tls.is_at_rest:
            return False  # bytes have left the kernel, and are not decrypted yet
        self._before = now = self._socket.counters()
        if now is not None and now[RECEIVED] == self._all_received and now[STATE] == ESTABLISHED:
            return True  # all that has arrived was read; with TLS, where that counts otherwise, the next line tells
        return not self._socket.has_unread()

    def begin(self, method: str) -> None:
        """Open an exchange for a request of *method*; `send_first` must follow at once."""
        self.received_bytes = 0
        self._is_open = True
        self._is_head = method == "HEAD"
        self._is_head_complete = False
        self._head_tail = b""
        self._n_interim = 0
        self._on_held = self._after = None
        self._stream_ended = self._is_premature = self._is_acknowledged = False
        if not self.is_reused:
            self._before = self._socket.counters()  # else it is what `is_usable` has found

    def end(self) -> bool:
        """Close the exchange; whether another may follow: all is sent, all is read, and nothing more has come.

        Then the connection is idle from now on.
        """
        transport, payload = self.transport, self._payload
        if (
            transport is None
            or self._should_close
            or self._buffer  # another head
            or self._known is not None  # the answer has not come to its end, nor has this:
            or (payload is not None and not payload.is_eof())
            or transport.is_closing()
            or transport.get_write_buffer_size()
            or (self.tls is not None and not self.tls.is_at_rest)
            or self._has_begun_another()
        ):
            return False
        self._is_open = False
        self._parser = None  # what comes from now on is nobody's
        self._payload = None
        self._on_held = None  # it leads to the request, and an idle connection would hold the client's body
        self.idle_since = self._loop.time()
        self.is_reused = True
        return True

    def _has_begun_another(self) -> bool:
        """Whether a part of another head has come behind the answer, which must be at its end.

        The parser holds it back until the rest comes, or until it is told of the end: then it gives what it has.
        """
        if self._parser is None:
            return False
        try:
            return self._parser.feed_eof() is not None
        except Exception:  # what has come of it is no head
            return True

    # Within an exchange

    def send_first(self, data: bytes) -> None:
        """Hand the request's first bytes to the connection. Raises `LostError`.

        On a used connection it is made sure, as far as that can be, that nothing came before these bytes left.
        """
        if not self.is_reused:
            self.send(data)
            return
        transport, has_unread = self.transport, self._socket.has_unread
        if transport is None or transport.is_closing() or has_unread():
            self._discard()
            raise LostError
        self.send(data)
        if self._before is None or self.transport is None or not has_unread():
            return
        now = self._socket.counters()
        if now is None or now[RECEIVED] == self._before[RECEIVED]:
            return
        self._is_acknowledged = now[ACKED] != self._before[ACKED]
        if not self._is_acknowledged:
            # bytes arrived while the request left, and no answer: that would acknowledge the request
            self._is_premature = True
            self._discard()
            raise LostError

    def send(self, data: bytes | bytearray | memoryview) -> None:
        """Hand *data* to the connection; `drain` waits until there is room for more. Raises `LostError`."""
        transport = self.transport
        if transport is None or transport.is_closing():
            raise LostError
        # not `writelines`, which buffers without limit in Python 3.12.0 to 3.12.8 and 3.13.0 to 3.13.1 (CVE-2024-12254)
        transport.write(data)

    def hold(self, on_held: Callable[[int], None]) -> None:
        """Give the head of a 2xx only when its body has come too, or `HELD_BYTES` of that, or the connection's end.

        Servers often write a head and a small body in two pieces, for each of which the reader would wake. Any other
        status is given at once: it may decide without a body. *on_held* is called with the status when a head comes
        whose body has not, and again whenever more of the body comes.
        """
        self._on_held = on_held

    async def drain(self) -> None:
        """Wait until the backend has taken so much that more may be sent. Raises `LostError`."""
        if self._paused:
            try:
                await self._drain_helper()
            except (ClientError, OSError):
                raise LostError from None

    async def read_head(self) -> tuple[Head, Reader]:
        """The next head, interim ones too, and the body's reader. Raises `LostError` and `NotHttpError`."""
        try:
            return await self.read()
        except HttpProcessingError as error:
            if self._is_tls_alert:
                raise NotHttpError("it speaks TLS there: write https:// in the endpoint") from None
            raise NotHttpError(_reason(error)) from None
        except (ClientError, OSError, EofStream):
            raise LostError from None

    async def read_final_head(self) -> tuple[Head, Reader]:
        """As `read_head`, but without interim heads, of which there may be `MAX_INTERIM`."""
        for _ in range(MAX_INTERIM + 1):
            message, reader = await self.read_head()
            if not 100 <= message.code < 200:
                return message, reader
        raise NotHttpError("too many interim answers")

    async def read_body(self, reader: Reader) -> bytes:
        """The next bytes of an answer's body, empty at its end. Raises `LostError` and `NotHttpError`."""
        try:
            # not `readany`, which an error does not wake if the end of a chunk came in the same piece
            while not (chunk := reader.read_nowait()) and isinstance(reader, StreamReader) and not reader.is_eof():
                await reader._wait("read_body")
        # aiohttp keeps the error that it raised, and with the traceback it would keep the last chunk
        except _BrokenBodyError as error:
            raise NotHttpError(error.words) from error.with_traceback(None)
        except (ClientError, OSError) as error:
            raise LostError from error.with_traceback(None)
        except HttpProcessingError as error:
            raise NotHttpError(_reason(error)) from error.with_traceback(None)
        return chunk

    def take_arrived(self, reader: Reader, max_bytes: int) -> bytes | None:
        """The whole body of *reader*, of which nothing was read before; None: it has not come, or is longer."""
        if isinstance(reader, ArrivedBody):
            return reader.read_nowait() if reader.total_bytes <= max_bytes else None
        if not reader.is_eof() or reader.total_bytes > max_bytes or reader.exception() is not None:
            return None
        if reader is EMPTY_PAYLOAD:
            return b""
        pieces = reader._buffer
        whole = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        return whole

    @property
    def was_reset(self) -> bool:
        """Whether the connection ended otherwise than by the end of the backend's stream.

        With TLS a stream that is not ended by a `close_notify` may have been cut by whoever stands between (RFC 9112
        section 9.8).
        """
        return self._reset is not None or (self.tls is not None and not self.tls.has_ended)

    def data_received(self, data: bytes) -> None:
        """Count and parse. Bytes that come while no exchange is open close the connection."""
        if not self._is_open:
            self._discard()
            return
        n_bytes = len(data)
        is_known = False
        if self._known is not None:
            is_known = self._go_on_with_known(self._known, data)
        elif not self.received_bytes:
            if data and self._was_sent_before_the_request():
                self._is_premature = True
                self._discard()
                return
            if self.tls is None:
                self._is_tls_alert = data.startswith(_TLS_ALERT)
            if self._on_held is not None and not self._is_head:
                is_known = self._begin_with_known(self._on_held, data)
        self.received_bytes += n_bytes
        self._all_received += n_bytes
        if is_known:
            return
        self._parse_piece(data)
        error, payload = self._exception, self._payload
        if isinstance(error, HttpProcessingError) and payload is not None and not payload.is_eof():
            # aiohttp would leave the reader waiting for the rest of a body whose framing is broken
            payload.set_exception(_BrokenBodyError(_reason(error)))
        if self._held is not None:
            self._go_on_holding(*self._held)

    def _begin_with_known(self, on_held: Callable[[int], None], data: bytes) -> bool:
        """Whether *data*, the first of the answer, needs no parsing: its head is known, and its body not too long."""
        known = self._known_heads.recognize(data)
        if known is None or known.length > HELD_BYTES:
            return False
        n_missing = known.n_bytes + known.length - len(data)
        if n_missing > 0:
            self._known, self._pieces, self._n_missing = known, [data], n_missing
            on_held(known.code)
        elif n_missing == 0:
            self._give_known(known, data)
        return n_missing >= 0

    def _go_on_with_known(self, known: KnownHead, data: bytes) -> bool:
        """Whether *data*, which comes behind a known head, needs no parsing; else what came before it is parsed."""
        self._n_missing -= len(data)
        if self._n_missing < 0 or self._on_held is None:
            self._parse_known()
            return False
        self._pieces.append(data)
        if self._n_missing:
            self._on_held(known.code)
        else:
            pieces, self._pieces, self._known = self._pieces, [], None
            self._give_known(known, b"".join(pieces))
        return True

    def _give_known(self, known: KnownHead, data: bytes) -> None:
        """Queue an answer that has come whole. The parser stands where it would stand behind it: before another."""
        self._is_head_complete = True
        self.feed_data((known, ArrivedBody(data[known.n_bytes :])))  # type: ignore[arg-type]

    def _parse_known(self) -> None:
        """The answer whose head is known does not come as expected: parse what has come of it, in one go."""
        if self._known is not None:
            pieces, self._pieces, self._known = self._pieces, [], None
            self._parse_piece(b"".join(pieces))  # there may be as many as bytes

    def learn(self, message: Head, headers: Headers) -> None:
        """Remember a head that was read in this exchange, and found right, if others like it need no parsing then.

        *headers* are its fields. See `hold`, without which nothing is remembered.
        """
        if (
            isinstance(message, RawResponseMessage)
            and message.code == 200
            and message.version == HttpVersion11
            and not message.should_close
            and not self._is_head
            and self._on_held is not None
        ):
            self._known_heads.learn(message.reason, headers, self._loop.time())

    def _parse_piece(self, data: bytes) -> None:
        """Parse what was received in one piece."""
        if self._parser is None and len(data) <= HEAD_PIECE_BYTES and not self._is_head:
            self._parse(data)
        elif self._is_head_complete:
            self._parse_behind_head(data)
        elif rest := self._parse_until_head(data):
            self._parse_behind_head(rest)

    def _parse(self, data: bytes) -> None:
        """Give *data* to aiohttp's parser, and queue the heads that it holds, and count the interim ones.

        This is what aiohttp's `data_received` does, without its timeouts and WebSockets.
        """
        if self._upgraded or self.transport is None:
            return
        if self._parser is None:
            self._parser = HttpResponseParser(
                self,
                self._loop,
                READ_BYTES,
                payload_exception=ClientPayloadError,
                response_with_body=not self._is_head,
                read_until_eof=True,
                auto_decompress=False,
            )
        try:
            messages, upgraded, _ = self._parser.feed_data(data)
        except Exception as error:
            if self.transport is not None:
                self.transport.close()
            words = error.message if isinstance(error, HttpProcessingError) else ""
            self.set_exception(HttpProcessingError(message=words), error)
            return
        for message, payload in messages:
            if self._held is not None:  # another head follows: the body is there, and the first answer is the answer
                self._give_held()
            code = message.code
            if message.should_close:
                self._should_close = True
            self._payload = payload
            reader = EMPTY_PAYLOAD if code < 200 or code in _WITHOUT_BODY else payload
            if code < 200 and code != _SWITCHING:
                self._n_interim += 1
            else:
                self._is_head_complete = True
                if self._on_held is not None and 200 <= code < 300 and not reader.is_eof():
                    self._held = message, reader
                    continue
            self.feed_data((message, reader))
        if upgraded:
            self._upgraded = self._should_close = True  # what follows is nobody's

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Go on reading where it was paused.

        aiohttp calls this after every chunk that is read from an answer, also where nothing is paused, and would look
        each time whether more can be parsed, which costs more than a small chunk does.
        """
        if self._reading_paused:
            super().resume_reading(resume_parser)

    def _was_sent_before_the_request(self) -> bool:
        """Whether the first bytes that came cannot be an answer: the backend had nothing of the request by then.

        An answer acknowledges what was read of the request. Where the kernel has counted no acknowledgement, these
        bytes were sent before the request arrived, such as the 408 of a server that tires of an idle connection.
        """
        before = self._before
        if before is None or self._is_acknowledged or self.transport is None:
            return False
        now = self._socket.counters()
        return now is not None and now[ACKED] == before[ACKED]

    def set_exception(self, exc: BaseException, exc_cause: BaseException | None = None) -> None:
        """The connection has ended, or what came is not HTTP; the head that came before is still read."""
        self._give_held()
        if exc_cause is None:
            super().set_exception(exc)
        else:
            super().set_exception(exc, exc_cause)

    def _go_on_holding(self, message: RawResponseMessage, reader: StreamReader) -> None:
        """More of the answer has come: give its head if that is enough."""
        if reader.is_eof() or reader.total_bytes >= HELD_BYTES or reader.exception() is not None:
            self._give_held()
        elif self._on_held is not None:
            self._on_held(message.code)

    def _give_held(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            self.feed_data(held)

    def _parse_until_head(self, data: bytes) -> bytes:
        """Parse *data* piece by piece until the answer's own head has come; what follows it is returned.

        Nothing more is parsed where more than `MAX_INTERIM` interim heads have come, which the caller refuses, or
        where the parser has found an error: the rest is dropped.
        """
        start = 0
        while start < len(data) and not self._is_head_complete:
            if self._n_interim > MAX_INTERIM or self.exception() is not None:
                self.force_close()
                return b""
            piece = data[start : start + HEAD_PIECE_BYTES]
            if self._is_head:
                piece = self._up_to_head_end(piece)
            start += len(piece)
            self._parse(piece)
        return data[start:]

    def _parse_behind_head(self, data: bytes) -> None:
        """Parse the body. An answer to HEAD has none, but some servers send one all the same: it is dropped."""
        if self._is_head:
            self.force_close()
        else:
            self._parse(data)

    def _up_to_head_end(self, piece: bytes) -> bytes:
        """*piece* up to the first end of a head in it: the parser takes what follows the answer to HEAD for another."""
        text = self._head_tail + piece  # the end may have begun in the last piece
        end = text.find(_HEAD_END)
        if end >= 0:
            piece = piece[: end + len(_HEAD_END) - len(self._head_tail)]
        self._head_tail = (self._head_tail + piece)[1 - len(_HEAD_END) :]
        return piece

    def _discard(self) -> None:
        self.force_close()
        if self.transport is not None:
            self.transport.abort()

    # The end

    def eof_received(self) -> None:
        """The backend has ended its stream. Its acknowledgements are counted now, while the socket is surely open."""
        self._stream_ended = True
        self._take_counters()
        super().eof_received()

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection is gone; the socket closes when this returns."""
        if self.tls is None:
            self.socket_closes(exc)
        self._parse_known()
        super().connection_lost(exc)
        self.on_lost(self)

    def socket_closes(self, exc: BaseException | None) -> None:
        """The socket closes when this returns. With TLS that is before `connection_lost`."""
        if isinstance(exc, BrokenPipeError):
            self._stream_ended = True  # the end of the backend's stream had come before what was being written
        elif exc is not None:
            self._reset = exc
        if isinstance(exc, ConnectionError) and self._is_open:
            self._read_what_has_come()
        self._take_counters()
        before, after = self._before, self._after
        is_unsent = before is not None and after is not None and after[SENT] == before[SENT]
        if self._is_open and is_unsent and self.transport is not None:
            # nothing of the request has left, and what the kernel holds of it must not leave any more
            reset_on_close(self.transport)

    def _read_what_has_come(self) -> None:
        """Take what the backend sent before it closed the connection, which asyncio leaves where writing fails.

        A backend may refuse a large request before it has read all of it, and close: the rest of the request is
        answered by a reset, and the answer is still there to be read. What was sent before the request came is none.
        """
        if self.transport is None or (not self.received_bytes and self._was_sent_before_the_request()):
            return
        descriptor = self.transport.get_extra_info("socket").fileno()
        left = READ_BYTES
        with contextlib.suppress(OSError):  # nothing more is there, or the reset
            while left > 0 and (data := os.read(descriptor, left)):
                left -= len(data)
                if self.tls is None:
                    self.data_received(data)
                else:
                    self.tls.decrypt(data)

    def _take_counters(self) -> None:
        if self._after is None and self._is_open and self.transport is not None:
            self._after = self._socket.counters()

    def abort(self) -> None:
        """Close at once. A reader of the answer's body gets `LostError`.

        aiohttp's `abort` forgets the body: its reader would wait for ever, or take the end of the connection for the
        end of a body without length.
        """
        self._parse_known()
        payload = self._payload
        if payload is not None and not payload.is_eof():
            payload.set_exception(ClientPayloadError("the connection was closed"))
        super().abort()

    def cut(self) -> None:
        """Close at once: the backend gets nothing more of what was sent, and learns that by a reset."""
        if self.transport is not None:
            reset_on_close(self.transport)
        self.abort()

    def why_certificate_was_refused(self, where: str) -> str | None:
        """In words why the backend refused the gateway's certificate on a new connection; None if it did not.

        *where* is the path of the TLS settings. Then it has read nothing of the request, see `tls.why_refused`.
        """
        if self.tls is None or self.is_reused or self.received_bytes or self.tls.version != "TLSv1.3":
            return None
        return why_refused(self._reset, where)

    def was_surely_not_read(self) -> bool:
        """Whether it is certain that the backend read nothing of this exchange's request (design: executed once).

        True if none of its bytes left this machine, or if the stream ended, without a reset, and the backend's kernel
        has acknowledged none of them. A reset after bytes were sent proves nothing: the acknowledgement of what was
        read may be what it overtook.
        """
        before, after = self._before, self._after
        if before is None or after is None or self.received_bytes or self._is_premature:
            return False
        if after[SENT] == before[SENT]:
            return True
        return self._stream_ended and self._reset is None and after[ACKED] == before[ACKED]


class _BrokenBodyError(ClientPayloadError):
    """The framing of an answer's body is broken."""

    def __init__(self, words: str) -> None:
        super().__init__(words)
        self.words = words


def _reason(error: BaseException) -> str:
    """Why *error* was raised, without the dump of the backend's bytes that aiohttp's parser adds."""
    lines = str(getattr(error, "message", "") or error).splitlines()
    return lines[0].rstrip(":") if lines else type(error).__name__
