"""One attempt: a request is sent over one connection, and the head of its answer is read.

Here: what is written and read, what it means when that fails, and when a connection may be used again. Not here:
which endpoint is tried, and whether a failed attempt is followed by another (`calling`).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from gateway.backend.arriving import ArrivingAnswer, LostError, NotHttpError
from gateway.backend.asking import BackendRequest, Pieces, Sending, broken_line
from gateway.backend.connections import Lease
from gateway.backend.deadlines import Deadlines
from gateway.backend.endpoints import Endpoint
from gateway.backend.heads import AnswerHead
from gateway.backend.wire import Wire
from gateway.errors import ErrorKind, GatewayError
from gateway.exchange import Attempt, new_span_id
from gateway.headers import HeaderLines, Headers
from gateway.pacing import Pacer
from gateway.policy.crossing import Fields

SURE_TO_REPEAT = frozenset({"GET", "HEAD"})
"""Methods that are sent again on a new connection even where the backend may have read the request."""

log = logging.getLogger("gateway")

T = TypeVar("T")


class StaleConnectionError(Exception):
    """A kept connection died before any byte of an answer, and the request may be sent once more."""


class Answer:
    """A backend's answer whose head has come; the body is read once, with one of the methods for it."""

    __slots__ = ("_exchange", "_head", "reason", "status")

    def __init__(self, exchange: "Sent", head: AnswerHead) -> None:
        self.status = head.code
        self.reason = head.reason
        """The words behind the status; printable ASCII."""
        self._head = head
        self._exchange = exchange

    @property
    def headers(self) -> Headers:
        """The header fields."""
        return self._head.headers

    def transcoded_headers(self) -> Fields:
        """The header fields for the client, where the gateway makes the body anew; a list of the caller's own."""
        return self._head.transcoded_fields()

    def transcoded_lines(self) -> HeaderLines | Fields:
        """As `transcoded_headers`, but as lines, if there are any."""
        return self._head.transcoded_lines() or []

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives, not decompressed; others run in between, also while all of it is there.

        Raises `GatewayError`.
        """
        exchange = self._exchange
        pacer = Pacer()
        while chunk := await exchange.read():
            yield chunk
            if not exchange.has_read_all():  # a small answer takes no turn behind large requests
                await pacer.breathe()

    async def chunks_for_client(self) -> AsyncIterator[bytes]:
        """As `chunks`, where each is handed to the client before the next is read.

        If `timeouts.total` is over while the client takes one, the client is to blame and not the backend.
        """
        async for chunk in self.chunks():
            self._exchange.wait_for_client()
            yield chunk
            self._exchange.client_has_taken()

    def take_arrived(self, max_bytes: int) -> bytes | None:
        """The whole body if it is there, has at most *max_bytes*, and nothing of it was read; else None."""
        return self._exchange.take_arrived(max_bytes)

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

    async def small_or_chunks(self, small_bytes: int) -> AsyncIterator[bytes]:
        """The body as `chunks`; in one chunk if it has arrived, or is announced to have at most *small_bytes*."""
        if 0 < (self.content_length or 0) <= small_bytes:
            yield await self.read_whole(small_bytes, "the answer")
        elif (text := self.take_arrived(small_bytes)) is not None:
            yield text
        else:
            async for chunk in self.chunks():
                yield chunk

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
        return self._head.length if self._head.codings is None else None

    def limit(self, max_bytes: int, name: str) -> None:
        """Let the body have *max_bytes* at most, a limit called *name*.

        Raises `GatewayError` if the answer announces more; else reading it does, when more has come.
        """
        self._exchange.max_bytes, self._exchange.max_name = max_bytes, name
        self._exchange.check_length(self.content_length or 0)

    def refuse_encoded(self) -> None:
        """Raise `GatewayError` if the body is compressed: the gateway has asked for one that is not."""
        encoding = self._head.encoding
        if encoding and encoding.lower() != b"identity":
            words = (
                f"the answer has Content-Encoding {encoding.decode()[:64]!r}, although the gateway asked for identity"
            )
            raise GatewayError(ErrorKind.MALFORMED_RESPONSE, words)


Read = Callable[[Answer], Awaitable[T]]
"""What is made of an answer."""

Transcode = Callable[[], Awaitable[tuple[BackendRequest, Read[T]]]]
"""Makes of a request that is passed on as it came one that every endpoint reads, and says how its answer is read."""


class Sent:
    """A request that has gone out, or is still going out, over a leased connection."""

    _answer: ArrivingAnswer  # once it is being sent
    _sending: Sending | None = None  # of a stream
    _sender: asyncio.Task[None] | None = None
    _send_error: GatewayError | None = None
    _is_sent = False
    _is_read = False  # the answer, to its end
    is_over = False
    """Whether the connection was given back or closed."""
    status: int | None = None
    """That of the answer, once its head has come and was found right."""
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
            head = await self._answer.read_head()
        except NotHttpError as error:
            raise self._malformed(f"does not speak HTTP: {error}") from None
        except LostError:
            raise self._lost_before_answer(wire, endpoint) from None
        self._head_has_come(head.code)
        defect = head.defect()
        if defect is not None:
            raise self._malformed(defect)
        self.status = head.code
        return Answer(self, head)

    def _head_has_come(self, status: int) -> None:
        """The answer has begun."""
        attempt = self._attempt
        if attempt.first_byte_s is None:
            attempt.code = str(status)
            attempt.first_byte_s = asyncio.get_running_loop().time() - attempt.started_s
        if self._sending is not None:
            self._sending.answered()

    def _body_is_awaited(self, status: int) -> None:
        """The answer has begun, and each piece of its body has `idle` to come; see `ArrivingAnswer.hold`."""
        self._head_has_come(status)
        self._deadlines.enter("idle")

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
        target = f"{endpoint.base_path}{request.raw_path}"
        start = f"{request.method} {target} HTTP/1.1\r\nHost: {endpoint.authority}"
        headers = request.headers
        if request.trace is not None:
            attempt = self._attempt
            attempt.span_id, attempt.target = new_span_id(), target
            headers = headers + request.trace.fields(attempt.span_id)
        head = "\r\n".join([start, *map(": ".join, headers), framing, ""])
        n_lines = len(headers) + (4 if framing else 3)
        if head.count("\n") != n_lines or head.count("\r") != n_lines:
            raise broken_line()
        data = head.encode(errors="surrogateescape")
        if whole:
            data += whole
        self._answer = wire.begin(request.method)
        if request.is_read_whole:
            self._answer.hold(self._body_is_awaited)
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

    async def read(self) -> bytes:
        """The next bytes of the answer's body; empty at its end, where the lease may end. Raises `GatewayError`."""
        if self.is_over or self._is_read:
            return b""
        wire = self._lease.wire
        self._deadlines.enter("idle")
        try:
            chunk = await self._answer.read_body()
        except NotHttpError as error:
            raise self._malformed(f"does not speak HTTP: {error}") from None
        except LostError:
            raise self._send_error or self._closed() from None
        self._deadlines.enter("gateway")
        if chunk:
            self._attempt.response_bytes += len(chunk)
            self.check_length(self._attempt.response_bytes)
            return chunk
        if self._answer.ends_with_connection and wire.was_reset:
            raise self._closed()  # such a body ends with the stream, not with a reset
        self._end()
        return b""

    def has_read_all(self) -> bool:
        """Whether nothing more of the answer is to be waited for."""
        return self.is_over or self._is_read or self._answer.is_read

    def take_arrived(self, max_bytes: int) -> bytes | None:
        """All of the answer's body, which may end the lease; None if it has not arrived, is longer, or was read."""
        whole = None if self.is_over or self._is_read else self._answer.take_arrived(max_bytes)
        if whole is not None:
            self._deadlines.enter("gateway")
            self._attempt.response_bytes += len(whole)
            self._end()
            self.check_length(len(whole))
        return whole

    def check_length(self, n_bytes: int) -> None:
        """Raise `GatewayError` for an answer whose body has *n_bytes* if that is more than `max_bytes`."""
        if self.max_bytes is not None and n_bytes > self.max_bytes:
            raise self._malformed(f"answered with a body larger than {self.max_name}, {self.max_bytes} bytes")

    def _end(self) -> None:
        """The answer was read to its end. Where the gateway still judges it, its connection waits for `approve`."""
        self._is_read = True
        if not self._request.is_read_whole:
            self.approve()

    def approve(self) -> None:
        """The answer is one to this request: if all of it was read, the connection is kept for another one.

        Unless the request is still being sent. An answer that is not approved is maybe another request's, and no other
        request follows it on its connection (docs/configuration.md, "Answers that belong to another request").
        """
        if self.is_over or not self._is_read:
            return
        if self._is_sent:
            self.is_over = True
            self._lease.give_back()
        else:
            self.abandon()

    def wait_for_client(self) -> None:
        """The gateway waits for the client from now on."""
        self._deadlines.enter("client")

    def client_has_taken(self) -> None:
        """The client has taken what it was given; the gateway may have to wait for its own turn before it reads on."""
        self._deadlines.enter("gateway")

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
        """What the loss of the connection before any byte of an answer means.

        See docs/architecture.md, "Connections to backends".
        """
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
