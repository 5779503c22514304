"""One attempt: a request is sent over one connection, and the head of its answer is read.

Here: what is written and read, what it means when that fails, and when a connection may be used again. Not here:
which endpoint is tried, and whether a failed attempt is followed by another (`upstream`).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from itertools import chain

import msgspec

from gateway.backend.connections import Lease
from gateway.backend.deadlines import Deadlines
from gateway.backend.endpoints import Endpoint
from gateway.backend.known_heads import KnownHead
from gateway.backend.wire import MAX_INTERIM, LostError, NotHttpError, Reader, Wire
from gateway.errors import ErrorKind, GatewayError
from gateway.exchange import Attempt, new_span_id
from gateway.headers import HeaderLines, Headers
from gateway.pacing import Pacer
from gateway.policy.crossing import Fields, transcoded_to_client
from gateway.policy.trace_context import Trace

MAX_STATUS = 599
"""The highest status of HTTP (RFC 9110 section 15); what a backend may make up would fill the metrics' labels."""

SURE_TO_REPEAT = frozenset({"GET", "HEAD"})
"""Methods that are sent again on a new connection even where the backend may have read the request."""

MAX_CONTENT_LENGTH = 2**63 - 1
"""The largest length of a body that is believed. aiohttp's parser takes 2**64 - 1 for no body at all."""

# Of these a header that is passed on may hold none (RFC 9110 section 5.5), nor a line break; a tab is allowed.
_CONTROLS = bytes({*range(0x20), 0x7F} - {0x09})

log = logging.getLogger("gateway")

PIECE_BYTES = 256 * 1024
"""A body that the gateway holds is written to the connection in pieces of this size."""

Pieces = AsyncIterator[bytes | bytearray | memoryview]


class Body(msgspec.Struct, frozen=True):
    """A request's body: none, bytes, or a stream that is opened anew for every attempt."""

    whole: bytes | None = None
    open: Callable[["Sending"], Pieces] | None = None
    length: int | None = None
    """Of a stream, in bytes; None: it is sent in chunks."""
    can_be_repeated: bool = True
    """Whether `open` gives the same pieces again."""

    @classmethod
    def of(cls, data: memoryview) -> "Body":
        """*data* whole if it is small, else as a stream of its slices, so that it is not held twice."""
        if len(data) <= PIECE_BYTES:
            return cls(whole=bytes(data))

        async def pieces(sending: "Sending") -> Pieces:
            for start in range(0, len(data), PIECE_BYTES):
                piece = data[start : start + PIECE_BYTES]
                sending.piece(len(piece))
                yield piece
            sending.done()

        return cls(open=pieces, length=len(data))


class BackendRequest(msgspec.Struct, frozen=True):
    """What a backend is asked: the path is raw, with its query."""

    method: str
    raw_path: str
    headers: list[tuple[str, str]]
    """Without `Host` and without the framing of the body."""
    body: Body
    lines: str = ""
    """Fields that were made into text for many requests, by `header_lines`; they go out before `headers`."""
    is_metadata: bool = False
    """Whether the gateway asks for itself, for a model's metadata."""
    trace: Trace | None = None
    """Of which each attempt is a span of its own."""
    is_read_whole: bool = False
    """Whether nothing is done with the answer's head before its body is there, so that small ones are waited for."""
    is_passed: bool = False
    """Whether it is an inference as it came, which only endpoints may get that speak the binary extension."""


def header_lines(fields: Fields) -> str:
    """*fields* as lines of a request, each behind the end of another. Raises `GatewayError` for a line break in one."""
    text = "".join([f"\r\n{name}: {value}" for name, value in fields])
    if text.count("\n") != len(fields) or text.count("\r") != len(fields):
        raise _broken_line()
    return text


def _broken_line() -> GatewayError:
    return GatewayError(ErrorKind.INTERNAL, "a line break in a header of the request to the backend")


class StaleConnectionError(Exception):
    """A kept connection died before any byte of an answer, and the request may be sent once more."""


class Sending:
    """What a streaming body tells of its progress, so that the right timeout runs."""

    __slots__ = ("_attempt", "_deadlines", "_is_answered")

    def __init__(self, deadlines: Deadlines, attempt: Attempt) -> None:
        self._deadlines = deadlines
        self._attempt = attempt
        self._is_answered = False

    def piece(self, n_bytes: int) -> None:
        """*n_bytes* are handed to the connection now: the backend has `idle` to take them."""
        self._attempt.request_bytes += n_bytes
        self._enter("idle")

    def paused(self) -> None:
        """The gateway waits for the client, for which the backend is not to blame."""
        self._enter("client")

    def done(self) -> None:
        """All is sent: the backend has `first_byte` to begin its answer."""
        self._enter("first_byte")

    def answered(self) -> None:
        """The answer has begun, maybe before all was sent: from now on its reading sets the timeouts."""
        self._is_answered = True

    def _enter(self, phase: str) -> None:
        if not self._is_answered:
            self._deadlines.enter(phase)


class Answer:
    """A backend's answer whose head has come; the body is read once, with one of the methods for it."""

    __slots__ = ("_ends_with_connection", "_exchange", "_headers", "_known", "_reader", "reason", "status")

    def __init__(
        self,
        exchange: "Sent",
        status: int,
        reason: str,
        headers: Headers | KnownHead,
        reader: Reader,
        *,
        ends_with_connection: bool = False,
    ) -> None:
        self.status = status
        self.reason = reason
        """The words behind the status; printable ASCII."""
        self._known: KnownHead | None = None
        self._headers: Headers | None = None
        if isinstance(headers, KnownHead):
            self._known = headers
        else:
            self._headers = headers
        self._exchange = exchange
        self._reader = reader
        self._ends_with_connection = ends_with_connection

    @property
    def headers(self) -> Headers:
        """The header fields."""
        if self._headers is None:
            assert self._known is not None
            self._headers = _decoded(self._known.raw_headers)
        return self._headers

    def transcoded_headers(self) -> Fields:
        """The header fields for the client, where the gateway makes the body anew; a list of the caller's own."""
        return transcoded_to_client(self.headers)

    def transcoded_lines(self) -> HeaderLines | Fields:
        """As `transcoded_headers`, but as lines where the head is known and has any."""
        lines = None if self._known is None else self._known.transcoded_lines()
        return self.transcoded_headers() if lines is None else lines

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives, not decompressed; others run in between, also while all of it is there.

        Raises `GatewayError`.
        """
        exchange = self._exchange
        pacer = Pacer()
        while chunk := await exchange.read(self._reader, ends_with_connection=self._ends_with_connection):
            yield chunk
            if not self._reader.at_eof():  # a small answer takes no turn behind large requests
                await pacer.breathe()

    async def chunks_for_client(self) -> AsyncIterator[bytes]:
        """As `chunks`, where each is handed to the client before the next is read.

        If `timeouts.total` is over while the client takes one, the client is to blame and not the backend.
        """
        async for chunk in self.chunks():
            self._exchange.wait_for_client()
            yield chunk

    def take_arrived(self, max_bytes: int) -> bytes | None:
        """The whole body, if it has arrived to its end and is no longer than *max_bytes*; None: read it with `chunks`.

        Nothing of it may have been read before.
        """
        return None if self._ends_with_connection else self._exchange.take_arrived(self._reader, max_bytes)

    async def read_whole(self, max_bytes: int, what: str) -> bytes:
        """The body of an answer that has no reason to be large. Raises `GatewayError`, also for more than *max_bytes*.

        *what* is the body's name in that error.
        """
        text = self.take_arrived(max_bytes)
        if text is not None:
            return text
        text = b""
        async for chunk in self.chunks():
            text += chunk
            if len(text) > max_bytes:
                raise GatewayError(ErrorKind.MALFORMED_RESPONSE, f"{what} is larger than {max_bytes} bytes")
        return text

    async def read_beginning(self, max_bytes: int) -> bytes:
        """The body up to *max_bytes*; the rest is not read. Raises `GatewayError`."""
        text = b""
        async for chunk in self.chunks():
            text += chunk[: max_bytes - len(text)]
            if len(text) >= max_bytes:
                break
        return text

    @property
    def content_length(self) -> int | None:
        """How many bytes of body the answer announces; None if it does not say."""
        if self._known is not None:
            return self._known.length
        length = self.headers.get("content-length")
        return int(length) if length.isdecimal() and "transfer-encoding" not in self.headers else None

    def limit(self, max_bytes: int, name: str) -> None:
        """Let the body have *max_bytes* at most, a limit called *name*.

        Raises `GatewayError` if the answer announces more; else reading it does, when more has come.
        """
        self._exchange.max_bytes, self._exchange.max_name = max_bytes, name
        self._exchange.check_length(self.content_length or 0)

    def refuse_encoded(self) -> None:
        """Raise `GatewayError` if the body is compressed: the gateway has asked for one that is not."""
        if self._known is not None:
            return  # it has no such field
        encoding = self.headers.get("content-encoding", "identity")
        if encoding.lower() not in ("", "identity"):
            words = f"the answer has Content-Encoding {encoding[:64]!r}, although the gateway asked for identity"
            raise GatewayError(ErrorKind.MALFORMED_RESPONSE, words)


def _decoded(raw: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The fields as they are meant. Raises `UnicodeDecodeError`.

    A blank behind a name is removed (RFC 9112 section 5.1): aiohttp's parser allows one behind those of its own fields,
    such as `Transfer-Encoding`, does what they say, and leaves it in the name.
    """
    return Headers([(name.decode().rstrip(" "), value.decode()) for name, value in raw])


class Sent:
    """A request that has gone out, or is still going out, over a leased connection."""

    _sending: Sending | None = None  # of a stream
    _sender: asyncio.Task[None] | None = None
    _send_error: GatewayError | None = None
    _is_sent = False
    is_over = False
    """Whether the connection was given back or closed."""
    has_begun_body = False
    """Whether a streamed body was opened, so that one that cannot be repeated is lost."""
    max_bytes: int | None = None
    """The most that the answer's body may have; None: as much as it likes."""
    max_name = ""
    """How messages name that limit."""

    def __init__(
        self, backend: str, request: BackendRequest, lease: Lease, deadlines: Deadlines, attempt: Attempt
    ) -> None:
        self._backend = backend
        self._request = request
        self._lease = lease
        self._deadlines = deadlines
        self._attempt = attempt

    async def start(self, endpoint: Endpoint) -> Answer:
        """Send the request and read the answer's head. Raises `GatewayError` and `StaleConnectionError`."""
        wire = self._lease.wire
        self._send(wire, endpoint)
        try:
            message, reader = await wire.read_head()
            n_interim = 0
            while message.code < 200:
                if message.code < 100:
                    raise self._malformed(f"answered with status {message.code:03}, which does not exist")
                if message.code == 101:
                    raise self._malformed("answered 101 Switching Protocols, which nobody asked for")
                n_interim += 1
                if n_interim > MAX_INTERIM:
                    raise self._malformed(f"sent more than {MAX_INTERIM} interim answers")
                message, reader = await wire.read_head()
        except NotHttpError as error:
            raise self._malformed(f"does not speak HTTP: {error}") from None
        except LostError:
            raise self._lost_before_answer(wire, endpoint) from None
        status = message.code
        self._head_has_come(status)
        if isinstance(message, KnownHead):
            return Answer(self, status, message.reason, message, reader)
        headers = self._headers_of(message.raw_headers)
        if status > MAX_STATUS:
            raise self._malformed(f"answered with status {status}; the highest is {MAX_STATUS}")
        ends_with_connection = self._check_framing(status, headers)
        reason = message.reason
        if not (reason.isascii() and reason.isprintable()):
            reason = ""
        if self._request.is_read_whole:
            wire.learn(message, headers)
        return Answer(self, status, reason, headers, reader, ends_with_connection=ends_with_connection)

    def _headers_of(self, raw: Sequence[tuple[bytes, bytes]]) -> Headers:
        """The header fields of an answer. Raises `GatewayError` where one holds what must not be passed on."""
        joined = b"".join(chain.from_iterable(raw))
        if len(joined.translate(None, _CONTROLS)) < len(joined):
            raise self._malformed("answered with a header that holds a control character")
        try:
            return _decoded(raw)
        except UnicodeDecodeError:
            raise self._malformed("answered with a header whose bytes are not UTF-8") from None

    def _head_has_come(self, status: int) -> None:
        """The answer has begun."""
        attempt = self._attempt
        if attempt.first_byte_s is None:
            attempt.code = str(status)
            attempt.first_byte_s = asyncio.get_running_loop().time() - attempt.started_s
        if self._sending is not None:
            self._sending.answered()

    def _body_is_awaited(self, status: int) -> None:
        """The answer has begun, and each piece of its body has `idle` to come; see `Wire.hold`."""
        self._head_has_come(status)
        self._deadlines.enter("idle")

    def _check_framing(self, status: int, headers: Headers) -> bool:
        """Whether the answer's body ends with the connection. Raises `GatewayError` where it is not certain how.

        An answer that has no body, but announces one, ends its connection: some servers send that body all the same,
        and it might come when the connection serves another request already.
        """
        length = headers.first.get("content-length")
        is_coded = "transfer-encoding" in headers.first
        if is_coded:
            codings = headers.joined("transfer-encoding")
            if codings.lower() != "chunked":
                raise self._malformed(f"answered with Transfer-Encoding {codings[:64]!r}; only `chunked` is supported")
        elif length is not None and int(length) > MAX_CONTENT_LENGTH:
            raise self._malformed(f"answered with Content-Length {length}, at most {MAX_CONTENT_LENGTH} is possible")
        has_no_body = status in (204, 304) or self._request.method == "HEAD"
        if has_no_body and (is_coded or (length is not None and int(length))):
            self._lease.wire.force_close()
        return length is None and not is_coded

    def _send(self, wire: Wire, endpoint: Endpoint) -> None:
        """Hand the request to the connection; a stream goes on being sent by a task of its own."""
        request = self._request
        body = request.body
        whole = body.whole
        if whole is not None:
            framing = f"Content-Length: {len(whole)}\r\n"
            self._attempt.request_bytes = len(whole)
        elif body.open is None:
            framing = ""
        else:
            framing = "Transfer-Encoding: chunked\r\n" if body.length is None else f"Content-Length: {body.length}\r\n"
        lines = request.lines
        target = f"{endpoint.base_path}{request.raw_path}"
        start = f"{request.method} {target} HTTP/1.1\r\nHost: {endpoint.authority}{lines}"
        headers = request.headers
        if request.trace is not None:
            attempt = self._attempt
            attempt.span_id, attempt.target = new_span_id(), target
            headers = headers + request.trace.fields(attempt.span_id)
        head = "\r\n".join([start, *map(": ".join, headers), framing, ""])
        n_lines = len(headers) + (4 if framing else 3) + (lines.count("\n") if lines else 0)
        if head.count("\n") != n_lines or head.count("\r") != n_lines:
            raise _broken_line()
        data = head.encode(errors="surrogateescape")
        if whole:
            data += whole
        wire.begin(request.method)
        if request.is_read_whole:
            wire.hold(self._body_is_awaited)
        try:
            wire.send_first(data)
        except LostError:
            return  # reading finds out how
        if body.open is None:
            self._is_sent = True
            self._deadlines.enter("first_byte")
            return
        self._sending = Sending(self._deadlines, self._attempt)
        pieces = body.open(self._sending)
        self.has_begun_body = True
        self._sender = asyncio.ensure_future(self._stream(wire, pieces, in_chunks=body.length is None))

    async def _stream(self, wire: Wire, pieces: Pieces, *, in_chunks: bool) -> None:
        try:
            async for piece in pieces:
                if not piece:
                    continue  # as a chunk it would be the end
                if in_chunks:
                    wire.send(b"".join((b"%x\r\n" % len(piece), piece, b"\r\n")))
                else:
                    wire.send(piece)
                await wire.drain()
            if in_chunks:
                wire.send(b"0\r\n\r\n")
            self._is_sent = True
        except LostError:
            pass  # reading finds out how
        except GatewayError as error:
            self._fail_sending(wire, error)
        except ConnectionError:
            self._fail_sending(wire, GatewayError(ErrorKind.CLIENT_CLOSED, "the client left while it was sending"))
        except Exception as error:
            log.exception("the request's body could not be made")
            self._fail_sending(wire, GatewayError(ErrorKind.INTERNAL, f"internal error: {type(error).__name__}"))

    def _fail_sending(self, wire: Wire, error: GatewayError) -> None:
        """The body cannot be sent to its end: close the connection, so that reading the answer ends with *error*."""
        self._send_error = error
        wire.abort()

    async def read(self, reader: Reader, *, ends_with_connection: bool) -> bytes:
        """The next bytes of the answer's body; empty at its end, where the lease ends. Raises `GatewayError`."""
        if self.is_over:
            return b""
        wire = self._lease.wire
        self._deadlines.enter("idle")
        try:
            chunk = await wire.read_body(reader)
        except NotHttpError as error:
            raise self._malformed(f"does not speak HTTP: {error}") from None
        except LostError:
            raise self._send_error or self._closed() from None
        self._deadlines.enter("gateway")
        if chunk:
            self._attempt.response_bytes += len(chunk)
            if self.max_bytes is not None:
                self.check_length(self._attempt.response_bytes)
            return chunk
        if ends_with_connection and wire.was_reset:
            raise self._closed()  # such a body ends with the stream, not with a reset
        self._end()
        return b""

    def take_arrived(self, reader: Reader, max_bytes: int) -> bytes | None:
        """All of the answer's body, which ends the lease; None if it has not arrived, is longer, or that is over."""
        whole = None if self.is_over else self._lease.wire.take_arrived(reader, max_bytes)
        if whole is not None:
            self._deadlines.enter("gateway")
            self._attempt.response_bytes += len(whole)
            self._end()
            if self.max_bytes is not None:
                self.check_length(len(whole))
        return whole

    def check_length(self, n_bytes: int) -> None:
        """Raise `GatewayError` for an answer whose body has *n_bytes* if that is more than `max_bytes`."""
        if self.max_bytes is not None and n_bytes > self.max_bytes:
            raise self._malformed(f"answered with a body larger than {self.max_name}, {self.max_bytes} bytes")

    def _end(self) -> None:
        """The answer was read to its end: the connection is kept, unless the request is still being sent."""
        if self._is_sent:
            self.is_over = True
            self._lease.give_back()
        else:
            self.abandon()

    def wait_for_client(self) -> None:
        """The gateway waits for the client from now on, until more of the answer is read."""
        self._deadlines.enter("client")

    def abandon(self) -> None:
        """Stop sending and close the connection, unless it was given back already."""
        self._stop_sending()
        self._lease.close()

    async def stopped(self) -> None:
        """Wait until nothing reads the request's body any more; `abandon` must have been called."""
        if self._sender is not None and not self._sender.done():
            await asyncio.wait((self._sender,))

    def abandon_and_keep_slot(self) -> bool:
        """As `abandon`, but keep the slot for another attempt; False if the connection was given back already."""
        self._stop_sending()
        return self._lease.close_and_keep_slot()

    def _stop_sending(self) -> None:
        self.is_over = True
        if self._sender is not None:
            self._sender.cancel()

    def _lost_before_answer(self, wire: Wire, endpoint: Endpoint) -> Exception:
        """What the loss of the connection before any byte of an answer means (design: executed once)."""
        if self._send_error is not None:
            return self._send_error
        tls = endpoint.tls
        refused = wire.why_certificate_was_refused(tls.where) if tls is not None else None
        if refused is not None:
            words = f"backend {self._backend!r} cannot be reached at {endpoint.url}: {refused}"
            return GatewayError(ErrorKind.UNREACHABLE, words, sent=False)
        is_unread = wire.was_surely_not_read()
        request = self._request
        may_repeat = request.body.can_be_repeated and (is_unread or request.method in SURE_TO_REPEAT)
        if wire.is_reused and not wire.received_bytes and may_repeat:
            return StaleConnectionError()
        closed = self._closed(sent=not is_unread)
        if tls is not None and not tls.settings.certificate and not wire.is_reused:
            # many servers end such a handshake without the alert that would say so
            closed.message += f"; if it requires a client certificate, set {tls.where}.certificate"
        return closed

    def _closed(self, *, sent: bool = True) -> GatewayError:
        words = f"backend {self._backend!r} closed the connection before its answer was complete"
        return GatewayError(ErrorKind.UPSTREAM_CLOSED, words, sent=sent)

    def _malformed(self, words: str) -> GatewayError:
        return GatewayError(ErrorKind.MALFORMED_RESPONSE, f"backend {self._backend!r} {words}")
