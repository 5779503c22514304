"""One attempt: a request that goes over one connection, and its answer.

An attempt sends the request, reads the answer, names the error if this fails, and decides whether its connection may be
used again.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from gateway.backend.arriving import AnswerHead, LostError, NotHttpError
from gateway.backend.asking import BackendRequest, Pieces
from gateway.backend.connections import Connections
from gateway.backend.deadlines import Deadlines
from gateway.backend.wire import Wire
from gateway.errors import ErrorKind, GatewayError
from gateway.exchange import Attempt
from gateway.headers import Headers
from gateway.pacing import Pacer
from gateway.waiting import Waiter

SURE_TO_REPEAT = frozenset({"GET", "HEAD"})
"""Methods that are sent again on a new connection even if the backend may have read the request."""

T = TypeVar("T")

log = logging.getLogger("gateway")


class StaleConnectionError(Exception):
    """A kept connection died before any byte of an answer, and the request may be sent once more."""


class Answer:
    """A backend's answer to one request. The answer owns the connection until it is given back or closed.

    `begin` waits for the answer's head. Then one of the reading methods reads the body, once.
    """

    status = 0
    """The status; 0 until a head without defects has come."""
    head: AnswerHead
    headers: Headers
    """The header fields."""
    is_streamed = False
    """Whether the request's body is a stream that was opened."""
    is_sent = True
    """Whether the request was sent to its end: a body that is no stream goes out with the head."""
    is_read = False
    """Whether the body was read to its end."""
    _sending: asyncio.Task[None] | None = None  # of a streamed body
    _unsendable: GatewayError | None = None  # why the body cannot be sent to its end
    _pacer: Pacer | None = None  # set when a part of the body was read

    def __init__(
        self, request: BackendRequest, connections: Connections, wire: Wire, deadlines: Deadlines, attempt: Attempt
    ) -> None:
        """*wire* is one of *connections*, taken for the attempt with a slot; on it *request* has begun."""
        self._request = request
        self._connections = connections
        self._wire: Wire | None = wire  # None as soon as it is not the answer's any more
        self._deadlines = deadlines
        self._attempt = attempt
        attempt.connection = "reused" if wire.is_reused else "new"
        attempt.request_bytes = len(request.body.whole or ())
        assert wire.answer is not None
        self._arriving = wire.answer

    # The request, and the answer's head

    async def begin(self) -> None:
        """Send the rest of the request, and wait for the answer's head.

        Raises `GatewayError` and `StaleConnectionError`. A streamed body is sent by a task from now on.
        """
        open_ = self._request.body.open
        if open_ is None:
            self._deadlines.enter("first_byte")
        else:
            assert self._wire is not None
            self.is_streamed, self.is_sent = True, False
            self._sending = asyncio.ensure_future(self._send(self._wire, open_()))
        while (head := self._arriving.head) is None:
            await self._change()
        if head.defect is not None:
            raise self._malformed(head.defect)
        attempt = self._attempt
        attempt.code = str(head.code)
        attempt.first_byte_s = self._deadlines.loop.time() - attempt.started_s
        self.head = head
        self.status, self.headers = head.code, head.headers

    async def _send(self, wire: Wire, pieces: Pieces) -> None:
        """Send the body beside the reading of the answer.

        The backend has `timeouts.idle` to take each piece, and `timeouts.first_byte` to begin its answer afterwards. If
        the body cannot be sent to its end, the connection is closed, so that reading the answer ends.
        """
        body = self._request.body
        try:
            async for piece in pieces:
                if not piece:
                    continue  # an empty chunk would end the body
                self._attempt.request_bytes += len(piece)
                self._enter_sending("idle")
                wire.send(b"".join((b"%x\r\n" % len(piece), piece, b"\r\n")) if body.length is None else piece)
                await wire.drain()
                self._enter_sending("gateway" if body.can_be_repeated else "client")
            if body.length is None:
                wire.send(b"0\r\n\r\n")
            self.is_sent = True
            self._enter_sending("first_byte")
            return
        except LostError:
            return  # reading the answer will say how the connection ended
        except GatewayError as error:
            self._unsendable = error
        except ConnectionError:
            self._unsendable = GatewayError(ErrorKind.CLIENT_CLOSED, "the client left while it was sending")
        except Exception as error:
            log.exception("the request's body could not be made")
            self._unsendable = GatewayError(ErrorKind.INTERNAL, f"internal error: {type(error).__name__}")
        wire.abort()

    def _enter_sending(self, phase: str) -> None:
        """Set the timeout, unless the answer has begun: then reading the answer sets the timeouts."""
        if self._attempt.first_byte_s is None:
            self._deadlines.enter(phase)

    async def stopped(self) -> None:
        """Wait, after the end of the attempt, until nothing reads the request's body any more.

        The task is then forgotten: a cancelled task keeps its error, whose traceback would keep the body in memory.
        """
        if self._sending is not None and not self._sending.done():
            await asyncio.wait((self._sending,))
        self._sending = None

    def refuse_encoded(self) -> None:
        """Raise `GatewayError` if the body is compressed, although the gateway has asked for `identity`."""
        if "content-encoding" in self.headers.first:
            encoding = self.headers.joined("content-encoding")
            if encoding and encoding.lower() != "identity":
                words = f"the answer has Content-Encoding {encoding[:64]!r}, although the gateway asked for identity"
                raise GatewayError(ErrorKind.MALFORMED_RESPONSE, words)

    # The body

    def read_arrived(self) -> bytes:
        """The next bytes of the body that have come, maybe none; `is_read` says whether they are its last.

        Raises `GatewayError`.
        """
        if self._wire is None or self.is_read:
            return b""
        arriving, attempt = self._arriving, self._attempt
        chunk = arriving.read_arrived()
        if chunk:
            self._deadlines.enter("gateway")
            attempt.response_bytes += len(chunk)
        if (self.head.length or attempt.response_bytes) > self._request.max_answer_bytes and self.status < 300:
            max_bytes = int(self._request.max_answer_bytes)
            raise self._malformed(f"answered with a body larger than limits.response_body, {max_bytes} bytes")
        if arriving.has_arrived and not arriving.unread_bytes:
            self.is_read = True
            if not self._request.is_read_whole:
                self.give_up(is_right=True)
        return chunk

    async def next(self, whole_bytes: int = 0) -> bytes:
        """The next bytes of the body as they come, not decompressed; empty at its end. Raises `GatewayError`.

        If the body has arrived, or announces *whole_bytes* at most, it comes in one piece. Between two pieces other
        requests run, even if the whole body has arrived.
        """
        if self._wire is None or self.is_read:
            return b""
        if not self._arriving.has_arrived:  # the last piece takes no turn behind large requests
            if self._pacer is None:
                self._pacer = Pacer()
            else:
                await self._pacer.breathe()
        is_one_piece = (self.head.length or whole_bytes + 1) <= whole_bytes
        pieces = [self.read_arrived()]
        while not self.is_read and (is_one_piece or not pieces[-1]):
            if not self._arriving.unread_bytes:
                self._deadlines.enter("idle")
                await self._change()
            pieces.append(self.read_arrived())
        return b"".join(pieces)

    def _change(self) -> Waiter:
        """A waiter for more of the answer, awaited at once. Raises `GatewayError` and `StaleConnectionError`."""
        try:
            return self._arriving.change()
        except NotHttpError as error:
            raise self._malformed(f"does not speak HTTP: {error}") from None
        except LostError:
            raise self._lost() from None

    async def chunks_for_client(self, chunk: bytes = b"") -> AsyncIterator[bytes]:
        """The body as it arrives, for a caller that hands each chunk to the client before it reads the next.

        *chunk*, if any, was read before. If `timeouts.total` is over while the client takes a chunk, the client is to
        blame and not the backend.
        """
        while chunk or (chunk := await self.next()):
            self._deadlines.enter("client")
            yield chunk
            self._deadlines.enter("gateway")  # the gateway's own turn may come later
            chunk = b""

    async def read_whole(self, max_bytes: int, what: str) -> bytes:
        """Read the whole body, *what* in errors. Raises `GatewayError`, also for more than *max_bytes*."""
        text = await self.read_beginning(max_bytes + 1)
        if len(text) > max_bytes:
            raise GatewayError(ErrorKind.MALFORMED_RESPONSE, f"{what} is larger than {max_bytes} bytes")
        return text

    async def read_beginning(self, max_bytes: int) -> bytes:
        """Read *max_bytes* of the body, or all if it has fewer; the rest is not read. Raises `GatewayError`."""
        text = bytearray()
        while len(text) < max_bytes and (chunk := await self.next()):
            text += chunk[: max_bytes - len(text)]
        return bytes(text)

    # The end

    def end(self, *, is_right: bool = False) -> bool:
        """End the exchange: its connection is kept if request and answer have come to their ends and *is_right*.

        Otherwise it is closed: an answer that was not found right may be another request's
        (docs/configuration.md, "Answers that belong to another request"). True if the slot is the caller's then, for
        another attempt or to be released; False if it went with the connection, now or before.
        """
        if self._sending is not None:
            self._sending.cancel()
        wire, self._wire = self._wire, None
        if wire is None:
            return False
        if is_right and self.is_read and self.is_sent:
            self._connections.give_back(wire)
            return False
        self._connections.drop(wire)
        return True

    def give_up(self, *, is_right: bool = False) -> None:
        """End the exchange, see `end`, and release its slot, since nothing more of the answer is needed."""
        if self.end(is_right=is_right):
            self._connections.release_slot()

    def _lost(self) -> Exception:
        """The error for a connection that was lost; see docs/architecture.md, "Connections to backends"."""
        words = "closed the connection before its answer was complete"
        wire = self._wire
        if self._unsendable is not None:
            return self._unsendable
        if self.status or wire is None:
            return self._error(ErrorKind.UPSTREAM_CLOSED, words)
        refused = wire.why_certificate_was_refused()
        if refused is not None:
            return self._error(
                ErrorKind.UNREACHABLE, f"cannot be reached at {wire.endpoint.url}: {refused}", sent=False
            )
        request = self._request
        is_unread = wire.was_surely_not_read()
        may_repeat = request.body.can_be_repeated and (is_unread or request.method in SURE_TO_REPEAT)
        if wire.is_reused and not wire.received_bytes and may_repeat:
            return StaleConnectionError()
        return self._error(ErrorKind.UPSTREAM_CLOSED, words, sent=not is_unread)

    def _malformed(self, words: str) -> GatewayError:
        return self._error(ErrorKind.MALFORMED_RESPONSE, words)

    def _error(self, kind: ErrorKind, words: str, *, sent: bool = True) -> GatewayError:
        return GatewayError(kind, f"backend {self._connections.backend!r} {words}", sent=sent)


Read = Callable[[Answer], Awaitable[T]]
"""Reads an answer, and makes a value of it."""

Transcode = Callable[[], Awaitable[tuple[BackendRequest, Read[T]]]]
"""Turns a request that passes unchanged into one in JSON, which every endpoint reads, and a reader of its answer."""
