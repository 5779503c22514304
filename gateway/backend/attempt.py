"""One attempt: a request that goes over one connection, and its answer.

Here: what is read, what it means when that fails, and when a connection may be used again. Not here: which endpoint is
tried, and whether a failed attempt is followed by another (`calling`); how a request is written (`asking`).
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from gateway.backend.arriving import ArrivingAnswer, LostError, NotHttpError
from gateway.backend.asking import BackendRequest, Sending
from gateway.backend.connections import Connections
from gateway.backend.deadlines import Deadlines
from gateway.backend.endpoints import Endpoint
from gateway.backend.heads import AnswerHead
from gateway.backend.wire import Wire
from gateway.errors import ErrorKind, GatewayError
from gateway.exchange import Attempt
from gateway.headers import HeaderLines, Headers
from gateway.pacing import Pacer
from gateway.policy.crossing import Fields

SURE_TO_REPEAT = frozenset({"GET", "HEAD"})
"""Methods that are sent again on a new connection even where the backend may have read the request."""

T = TypeVar("T")


class StaleConnectionError(Exception):
    """A kept connection died before any byte of an answer, and the request may be sent once more."""


class Answer:
    """A backend's answer to a request that goes out over a connection of its own, until that is given back or closed.

    `ask` and `begin` send the request and wait for the answer's head. Then the body is read once, with one of the
    methods for it. The connection is this answer's alone while `_wire` is there, and out of its reach afterwards.
    """

    status = 0
    """0 until the answer's head has come and was found right."""
    reason: str
    """The words behind the status; printable ASCII."""
    sending: Sending | None = None
    """The request's body, if it is a stream that was opened."""
    is_read = False
    """Whether the body was read to its end."""
    _arriving: ArrivingAnswer
    _head: AnswerHead
    _limit: tuple[int, str] | None = None  # of the body's bytes, and how messages name it
    _pacer: Pacer | None = None  # once a part of the body was read

    def __init__(
        self, request: BackendRequest, connections: Connections, wire: Wire, deadlines: Deadlines, attempt: Attempt
    ) -> None:
        """*wire* is one of *connections*, taken for this *attempt*, as is its slot."""
        self._request = request
        self._connections = connections
        self._wire: Wire | None = wire
        self._deadlines = deadlines
        self._attempt = attempt

    # The request, and the answer's head

    def ask(self, first_bytes: bytes) -> None:
        """Send a request that begins with *first_bytes*; a stream behind them goes on being sent by a task."""
        wire, body = self._wire, self._request.body
        assert wire is not None
        self._arriving = arriving = wire.begin(self._request.method)
        if self._request.is_read_whole:
            arriving.hold(self._body_is_awaited)
        try:
            wire.send_first(first_bytes)
        except LostError:
            return  # reading finds out how
        if body.open is None:
            self._deadlines.enter("first_byte")
            return
        sending = Sending(self._deadlines, self._attempt)
        pieces = body.open(sending)
        self.sending = sending
        sending.begin(wire, pieces, in_chunks=body.length is None)

    async def begin(self, endpoint: Endpoint) -> None:
        """Wait for the head of the *endpoint*'s answer. Raises `GatewayError` and `StaleConnectionError`."""
        try:
            head = await self._arriving.read_head()
        except NotHttpError as error:
            raise self._malformed(f"does not speak HTTP: {error}") from None
        except LostError:
            raise self._lost_before_answer(endpoint) from None
        self._head_has_come(head.code)
        if head.defect is not None:
            raise self._malformed(head.defect)
        self._head = head
        self.status, self.reason = head.code, head.reason

    def _head_has_come(self, status: int) -> None:
        """The answer has begun."""
        attempt = self._attempt
        if attempt.first_byte_s is None:
            attempt.code = str(status)
            attempt.first_byte_s = self._deadlines.loop.time() - attempt.started_s
        if self.sending is not None:
            self.sending.is_answered = True

    def _body_is_awaited(self, status: int) -> None:
        """The answer has begun, and each piece of its body has `idle` to come; see `ArrivingAnswer.hold`."""
        self._head_has_come(status)
        self._deadlines.enter("idle")

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

    @property
    def content_length(self) -> int | None:
        """How many bytes of body the answer announces; None if it does not say."""
        return self._head.length if self._head.codings is None else None

    def limit(self, max_bytes: int, name: str) -> None:
        """Let the body have *max_bytes* at most, a limit called *name*.

        Raises `GatewayError` if the answer announces more; else reading it does, when more has come.
        """
        self._limit = max_bytes, name
        self._count(0, self.content_length or 0)

    def refuse_encoded(self) -> None:
        """Raise `GatewayError` if the body is compressed: the gateway has asked for one that is not."""
        encoding = self._head.encoding
        if encoding and encoding.lower() != b"identity":
            words = (
                f"the answer has Content-Encoding {encoding.decode()[:64]!r}, although the gateway asked for identity"
            )
            raise GatewayError(ErrorKind.MALFORMED_RESPONSE, words)

    # The body

    async def next(self, whole_bytes: int = 0) -> bytes:
        """The next bytes of the body as they come, not decompressed; empty at its end. Raises `GatewayError`.

        All of it in one piece, if it has arrived and has at most *whole_bytes*, or is announced to have no more.
        Between two pieces others run, also while all of the body is there.
        """
        if self._wire is None or self.is_read:
            return b""
        if self._pacer is None:
            text = self.take_arrived(whole_bytes)
            if text is not None:
                return text
            self._pacer = Pacer()
            if (self.content_length or whole_bytes + 1) <= whole_bytes:
                return await self.read_whole(whole_bytes, "the answer")
        elif not self._arriving.is_read:  # a small answer takes no turn behind large requests
            await self._pacer.breathe()
        return await self._read(self._wire)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives, see `next`."""
        while chunk := await self.next():
            yield chunk

    async def chunks_for_client(self) -> AsyncIterator[bytes]:
        """As `chunks`, where each is handed to the client before the next is read.

        If `timeouts.total` is over while the client takes one, the client is to blame and not the backend.
        """
        while chunk := await self.next():
            self._deadlines.enter("client")
            yield chunk
            self._deadlines.enter("gateway")  # which may have to wait for its own turn before it reads on

    async def read_whole(self, max_bytes: int, what: str) -> bytes:
        """The body of an answer that has no reason to be large. Raises `GatewayError`, also for more than *max_bytes*.

        *what* is the body's name in that error.
        """
        text = await self.read_beginning(max_bytes + 1)
        if len(text) > max_bytes:
            raise GatewayError(ErrorKind.MALFORMED_RESPONSE, f"{what} is larger than {max_bytes} bytes")
        return text

    async def read_beginning(self, max_bytes: int) -> bytes:
        """The body up to *max_bytes*; the rest is not read. Raises `GatewayError`."""
        text = bytearray()
        while len(text) < max_bytes and (chunk := await self.next()):
            text += chunk[: max_bytes - len(text)]
        return bytes(text)

    def take_arrived(self, max_bytes: int) -> bytes | None:
        """The whole body if it is there, has at most *max_bytes*, and nothing of it was read; else None."""
        if self._wire is None or self.is_read:
            return None
        whole = self._arriving.take_arrived(max_bytes)
        if whole is not None:
            self._deadlines.enter("gateway")
            self._end()
            self._count(len(whole))
        return whole

    async def _read(self, wire: Wire) -> bytes:
        self._deadlines.enter("idle")
        try:
            chunk = await self._arriving.read_body()
        except NotHttpError as error:
            raise self._malformed(f"does not speak HTTP: {error}") from None
        except LostError:
            raise self._lost() from None
        self._deadlines.enter("gateway")
        if chunk:
            self._count(len(chunk))
        elif self._arriving.ends_with_connection and wire.was_reset:
            raise self._lost()  # such a body ends with the stream, not with a reset
        else:
            self._end()
        return chunk

    def _count(self, n_bytes: int, n_announced: int = 0) -> None:
        """*n_bytes* more of the body have come. Raises `GatewayError` for more than `limit` allows."""
        attempt = self._attempt
        attempt.response_bytes += n_bytes
        if self._limit is not None and max(attempt.response_bytes, n_announced) > self._limit[0]:
            max_bytes, name = self._limit
            raise self._malformed(f"answered with a body larger than {name}, {max_bytes} bytes")

    # The end

    def _end(self) -> None:
        """The answer was read to its end. Where the gateway still judges it, its connection waits for `approve`."""
        self.is_read = True
        if not self._request.is_read_whole:
            self.approve()

    def approve(self) -> None:
        """The answer is one to this request: if all of it was read, the connection is kept for another one.

        Unless the request is still being sent. An answer that is not approved is maybe another request's, and no other
        request follows it on its connection (docs/configuration.md, "Answers that belong to another request").
        """
        wire = self._wire
        if wire is None or not self.is_read:
            return
        if self.sending is None or self.sending.is_sent:
            self._wire = None
            self._connections.give_back(wire)
        else:
            self.give_up()

    def abandon(self) -> bool:
        """Stop sending, and close the connection; False if it was given back or closed before.

        Else its slot is the caller's, for another attempt or to be released.
        """
        if self.sending is not None:
            self.sending.stop()
        wire, self._wire = self._wire, None
        if wire is None:
            return False
        self._connections.drop(wire)
        return True

    def give_up(self) -> None:
        """The answer is not needed any more: close the connection, and leave its slot to others."""
        if self.abandon():
            self._connections.release_slot()

    def _lost_before_answer(self, endpoint: Endpoint) -> Exception:
        """What the loss of the connection before any byte of an answer means.

        See docs/architecture.md, "Connections to backends".
        """
        if self.sending is not None and self.sending.error is not None:
            return self.sending.error
        wire, request, tls = self._wire, self._request, endpoint.tls
        assert wire is not None
        refused = wire.why_certificate_was_refused(tls.where) if tls is not None else None
        if refused is not None:
            return self._error(ErrorKind.UNREACHABLE, f"cannot be reached at {endpoint.url}: {refused}", sent=False)
        is_unread = wire.was_surely_not_read()
        may_repeat = request.body.can_be_repeated and (is_unread or request.method in SURE_TO_REPEAT)
        if wire.is_reused and not wire.received_bytes and may_repeat:
            return StaleConnectionError()
        lost = self._lost(sent=not is_unread)
        if tls is not None and not tls.settings.certificate and not wire.is_reused:
            # many servers end such a handshake without the alert that would say so
            lost.message += f"; if it requires a client certificate, set {tls.where}.certificate"
        return lost

    def _lost(self, *, sent: bool = True) -> GatewayError:
        if self.sending is not None and self.sending.error is not None:
            return self.sending.error
        return self._error(ErrorKind.UPSTREAM_CLOSED, "closed the connection before its answer was complete", sent=sent)

    def _malformed(self, words: str) -> GatewayError:
        return self._error(ErrorKind.MALFORMED_RESPONSE, words)

    def _error(self, kind: ErrorKind, words: str, *, sent: bool = True) -> GatewayError:
        return GatewayError(kind, f"backend {self._connections.backend!r} {words}", sent=sent)


Read = Callable[[Answer], Awaitable[T]]
"""What is made of an answer."""

Transcode = Callable[[], Awaitable[tuple[BackendRequest, Read[T]]]]
"""Makes of a request that is passed on as it came one that every endpoint reads, and says how its answer is read."""
