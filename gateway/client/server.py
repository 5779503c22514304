"""aiohttp's HTTP server, as the gateway wants it. All private uses of aiohttp's server are in this file.

Here: the protocol of a connection, what a parsed request becomes (`ClientRequest`), what happens to bytes that are no
HTTP, and to clients that are too slow (`ClientProtocol.look`). Not here: sockets and accepting (`listeners`), bodies
(`body`), replies (`reply`). What of aiohttp is private is listed in tests/client/test_server_privates.py, which fails
when a new release has lost or changed it.

A client that only shuts down its sending side counts as gone, as it does with nginx: on the wire this cannot be told
from a client that closed, whose request must not go on running at the backend.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from aiohttp import web
from aiohttp.http import RawRequestMessage
from aiohttp.http_exceptions import BadStatusLine, HttpProcessingError, InvalidHeader, InvalidURLError, LineTooLong
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from aiohttp.web_protocol import RequestHandler, _ErrInfo

from gateway.client.heads import MAX_HEAD_BYTES, Arrived, KnownHeads
from gateway.client.reply import Reply
from gateway.client.request import ABSOLUTE, MAX_CONTENT_LENGTH, ClientRequest, find_fault, new_request_id
from gateway.client.watching import GoneCheck, Watcher
from gateway.config import Limits
from gateway.errors import ErrorKind, GatewayError
from gateway.exchange import Exchange
from gateway.headers import Headers
from gateway.policy.crossing import UNIX_PEER
from gateway.policy.quiet import OncePerInterval
from gateway.policy.slowness import Backlog, find_slowness
from gateway.sockets import has_unread, reset_on_close, unacknowledged_bytes

PIECES_AT_ONCE = 64
"""How many heads and bodies in one piece of data are parsed one by one: twice the requests that aiohttp queues."""

_HEAD_END = b"\r\n\r\n"
_TLS = "Received HTTPS traffic on an HTTP port"  # says aiohttp's parser

CUT_S = 0.05
"""How long handlers have to notice that they are cut off. Not 0, which aiohttp takes for no limit."""

_UNKNOWN = "UNKNOWN"  # the method of what is no HTTP

DEFAULT_LIMITS = Limits()

Handler = Callable[[ClientRequest], Awaitable[None]]
"""Serves one request: replies to it with a `Reply` and returns."""

log = logging.getLogger("gateway")


class Server(web.Server):
    """aiohttp's low-level server: no router and no middleware, since every path is the backend's."""

    def __init__(self, handler: Handler, record: Callable[[Exchange], None], limits: Limits = DEFAULT_LIMITS) -> None:
        """Must be made on a running event loop.

        *record* is given the exchanges of what never became a request: bad HTTP.
        """
        super().__init__(
            _never_called,
            handler_cancellation=True,
            auto_decompress=False,
            access_log=None,
            logger=log,
            keepalive_timeout=0,  # the watcher closes idle connections
            lingering_time=0,  # `ClientBody.drop_rest` reads the rest of refused bodies, within bounds
        )
        self.handler = handler
        """Serves each request."""
        self._record = record
        self.limits = limits
        """The limits that hold now: a reload replaces them as a whole, for connections that are open, too."""
        self.open_connections = 0
        """Connections of clients that are open now, also those that are still being opened."""
        self.refused_connections = 0
        """Connections that were closed as soon as they were accepted, since the start."""
        self.slow_connections = dict.fromkeys(("header_timeout", "body_timeout", "client_idle"), 0)
        """Connections that were ended because their clients were too slow, by the limit's name, since the start."""
        self.watcher = Watcher(lambda: self.limits)
        self.no_timer = self._loop.call_soon(_nothing)
        """Stands where aiohttp looks for its timer of an idle connection, so that it sets none."""
        self.no_timer.cancel()
        self._warnings = OncePerInterval()
        self.known_heads = KnownHeads()
        """The heads of requests that come again and again."""
        self.gone_check = GoneCheck()
        """Of the connections that are not read at the moment."""

    def __call__(self) -> "ClientProtocol":
        """A protocol for a new connection, which holds a slot that `admit` has taken."""
        return ClientProtocol(self, loop=self._loop, **self._kwargs)

    def admit(self) -> bool:
        """Take a slot for a new connection; False if there is none, which is counted and logged once a minute."""
        if self.open_connections < self.limits.connections:
            self.open_connections += 1
            return True
        self.refused_connections += 1
        if self._warnings.allows("", self._loop.time()):
            log.warning(
                "limits.connections (%d) is reached: new connections are closed, %d so far",
                self.limits.connections,
                self.refused_connections,
            )
        return False

    def n_unfinished_heads(self) -> int:
        """Connections on which the beginning of a request has come, and nothing is served yet."""
        return sum(isinstance(each, ClientProtocol) and each.is_in_head for each in self.connections)

    def n_silent(self) -> int:
        """Connections on which nothing has come since they were accepted."""
        return sum(isinstance(each, ClientProtocol) and each.is_silent for each in self.connections)

    async def refuse(
        self, protocol: "ClientProtocol", connection: "_Connection", method: str, fault: GatewayError
    ) -> None:
        """Reply to what never became a request, or whose handler failed, and record it."""
        exchange = Exchange(protocol.peer, method, "", new_request_id(), self._loop.time())
        request = ClientRequest(
            method, "", Headers(), "", protocol.peer, protocol.scheme, (1, 1), None, False, connection
        )
        reply = Reply(request, exchange, body=None, is_draining=lambda: True)
        try:
            await reply.error(fault)
        finally:
            self._record(exchange)


class ClientProtocol(RequestHandler):
    """aiohttp's HTTP server protocol, with its own refusals (bad HTTP) in the error shape of the gateway."""

    peer = "unknown"
    """The client's address, or `UNIX_PEER`."""
    scheme = "http"
    """`https` on a connection with TLS."""
    serving: "_Connection | None" = None
    """The request that is being served."""
    cut_reason = ""
    """Why the gateway has cut the connection; empty if it has not."""
    written_bytes = 0
    """Given to the connection so far."""
    _is_broken = False
    _is_released = False
    _last_bytes = b""  # the end of a head may be spread over several pieces of data
    _body_left = 0  # what is still to come of a body whose length is known
    _upgrade: object = None  # the last message that asked for an upgrade
    _behind_upgrade: int | None = None
    _is_astray = False  # a body has come whose end is not known here, so `_last_bytes` may be of that
    _first_data: bytes | None = None  # where the first request that is queued begins, if its head may be kept
    _wire: asyncio.Transport | None = None  # also while it is closing, when aiohttp has forgotten it
    _backlog: Backlog | None = None  # while the client is behind in reading
    _n_requests = 0  # at the last look that found the connection idle
    _idle_since_s = 0.0

    def __init__(self, server: Server, **options: Any) -> None:
        super().__init__(server, **options)
        self._server = server  # aiohttp forgets its own reference when the connection ends
        self._keepalive_handle = server.no_timer
        self._head_since_s: float | None = server.watcher.time()  # of the first request: from the connection, with TLS

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        super().connection_made(transport)
        assert isinstance(transport, asyncio.Transport)
        self._wire = transport
        self._server.watcher.watch(self)
        peername = transport.get_extra_info("peername")
        if isinstance(peername, tuple):
            self.peer = str(peername[0])
        elif transport.get_extra_info("socket").family == socket.AF_UNIX:
            self.peer = UNIX_PEER
        if transport.get_extra_info("sslcontext") is not None:
            self.scheme = "https"

    async def start(self) -> None:
        """Serve the requests of this connection one after the other, to its end.

        aiohttp's own loop makes a request, a writer, a task and a response for each of them, which a `Reply` has no
        use for. As there, the task of the connection is cancelled when the client leaves, and so is what it serves.
        """
        messages = self._messages
        try:
            while not self._force_close:
                if not messages:
                    self._waiter = self._loop.create_future()
                    try:
                        await self._waiter
                    finally:
                        self._waiter = None
                if not await self._serve_next() or self._close:
                    break
                if messages:
                    await asyncio.sleep(0)  # other connections come before the next request of a pipeline
        except Exception:
            log.exception("the connection of client %s failed", self.peer)
            self.force_close()
        if not self._force_close:
            self._task_handler = None
            if self.transport is not None:
                self.transport.close()

    async def _serve_next(self) -> bool:
        """Serve the next request that is queued; whether another may follow. Keeps nothing of it."""
        message, payload = self._messages.popleft()
        data, self._first_data = self._first_data, None
        if not isinstance(message, Arrived):
            assert self._parser is not None
            self._parser.message_consumed()
        if self._buffer_paused and len(self._messages) <= self._msg_queue_resume_size:
            self._resume_reading_if_drained()
        connection = self.serving = _Connection(self, payload)
        self._current_request = connection  # type: ignore[assignment]  # for `shutdown` and `connection_lost`
        self._request_in_progress = True
        method = _UNKNOWN
        try:
            if isinstance(message, Arrived):
                method = message.head.method
                connection.whole = message.body
                connection.keeps_alive = True
                await self._server.handler(message.request(self.peer, self.scheme, connection))
            elif isinstance(message, _ErrInfo):
                text = _reason(message.exc, message.message) or "malformed HTTP"
                fault = GatewayError(ErrorKind.MALFORMED_REQUEST, text, status=message.status)
                await self._server.refuse(self, connection, method, fault)
            else:
                method = message.method
                connection.keeps_alive = not message.should_close
                if message.upgrade:
                    connection.upgrade = message
                request = _client_request(message, payload, self, connection)
                if data is not None:
                    request.head = self._server.known_heads.keep(data, request, self._loop.time())
                await self._server.handler(request)
        except asyncio.CancelledError:
            # not raised again: the task ends here anyway, and the error that it would keep holds the request
            self.force_close()
            return False
        except Exception as error:
            await self._fail(connection, method, error)
            return False
        finally:
            self.serving = self._current_request = None
            self._request_in_progress = False
            if self._handler_waiter is not None and not self._handler_waiter.done():
                self._handler_waiter.set_result(None)
        if self._upgraded:
            self._decline_upgrade()
        if not connection.has_arrived:
            self.close()
            return False
        return connection.keeps_alive

    async def _fail(self, connection: "_Connection", method: str, error: Exception) -> None:
        """The handler has raised *error*: reply 500, never with a traceback, or cut off the reply that has begun.

        A client that has left gets no reply: its connection is closing, and its handler is not cancelled yet.
        """
        if connection.has_begun:
            connection.cut()
            return
        if isinstance(error, ConnectionError):  # the client left, which its handler has recorded
            self.force_close()
            return
        log.error("a handler failed", exc_info=error)
        connection.keeps_alive = False
        with suppress(ConnectionError):
            await self._server.refuse(self, connection, method, GatewayError(ErrorKind.INTERNAL, "internal error"))

    def _decline_upgrade(self) -> None:
        """Go on after a request that asked for an upgrade, with what came behind it meanwhile."""
        if self._messages or self._parser is None:
            return
        self._parser.set_upgraded(False)
        self._upgraded = False
        tail, self._message_tail = self._message_tail, b""
        if tail:
            self._parse(tail, False)
        if self._buffer_paused and len(self._messages) < self._max_msg_queue_size:
            self._resume_reading_if_drained()

    def connection_lost(self, exc: BaseException | None) -> None:
        """See asyncio."""
        self.release()
        self._wire = None
        self._server.watcher.unwatch(self)
        self._server.gone_check.unwatch(self)
        super().connection_lost(exc)

    def release(self) -> None:
        """Release the connection's slot among `limits.connections`; only the first time counts."""
        if not self._is_released:
            self._is_released = True
            self._server.open_connections -= 1

    @property
    def is_in_head(self) -> bool:
        """Whether a part of a request's head has come, which is not served yet."""
        return self.serving is None and bool(self._last_bytes) and not self._is_astray and not self._is_broken

    @property
    def is_silent(self) -> bool:
        """Whether nothing has come yet."""
        return self._request_count == 0 and not self._last_bytes

    def look(self, now_s: float, limits: Limits) -> None:
        """End the connection if the client is too slow for *limits* (design: limits).

        What is seen here is at most one look old, so a limit takes effect a little late, and never early.
        """
        wire = self._wire
        if wire is None:
            return
        unsent = wire.get_write_buffer_size()
        if not unsent:
            self._backlog = None
        else:
            # what the kernel takes says little: it may take nothing for seconds from a client that reads all the time
            taken = self.written_bytes - unsent - unacknowledged_bytes(wire)
            if self._backlog is None:
                self._backlog = Backlog(taken, now_s)
            elif (words := self._backlog.find_slowness(taken, now_s, limits.client_idle)) is not None:
                self._server.slow_connections["client_idle"] += 1
                self.cut_reason = f"the client read its reply too slowly: {words} (limits.client_idle)"
                self.reset()
                return
        if wire.is_closing():
            return
        if self.serving is not None:
            if self.serving.fail_if_slow(now_s, limits.body_timeout):
                self._server.slow_connections["body_timeout"] += 1
        elif self._waiter is not None and not self._waiter.done():
            self._look_at_head(wire, now_s, limits)

    def _look_at_head(self, wire: asyncio.Transport, now_s: float, limits: Limits) -> None:
        """Close a connection on which no request is open, and on which none, or none to its end, has come in time.

        Of a head that began while an earlier request was served, the time before that request's end does not count.
        """
        if self._request_count != self._n_requests:
            self._n_requests = self._request_count
            self._idle_since_s = now_s
            self._head_since_s = None
        if self._head_since_s is None and self._last_bytes and not self._is_astray:
            self._head_since_s = now_s
        if self._head_since_s is None:
            if now_s - self._idle_since_s >= limits.client_keep_alive and not has_unread(wire):
                wire.close()
        elif now_s - self._head_since_s >= limits.header_timeout and (self._last_bytes or not has_unread(wire)):
            self._server.slow_connections["header_timeout"] += 1
            wire.abort()

    def reset(self) -> None:
        """End the connection with a reset; what waits to be sent is dropped."""
        wire = self._wire
        if wire is not None:
            reset_on_close(wire)  # also while it is closing, with what is unsent
            wire.abort()

    def data_received(self, data: bytes) -> None:
        """Parse, and end at once what can no longer become a request.

        aiohttp's parser forgets the requests of a piece of data in which an error follows, so the data is parsed up
        to the end of each head (`PIECES_AT_ONCE` at most): what is complete before the error gets its reply.
        """
        waiter = self._waiter
        if waiter is not None and not (
            self._body_left or self._last_bytes or self._is_astray or self._close or waiter.done()
        ):
            # the parser is at the beginning of a message, and stays there if it is not needed
            arrived = self._server.known_heads.find(data)
            if arrived is not None:
                self._messages.append((arrived, EMPTY_PAYLOAD))  # type: ignore[arg-type]  # `_serve_next` knows it
                self._request_count += 1
                waiter.set_result(None)
                return
            self._first_data = data[:MAX_HEAD_BYTES]  # not more, since it may stay as long as the connection is idle
        start, n_bytes = 0, len(data)
        for _ in range(PIECES_AT_ONCE):
            body_left = self._body_left
            if body_left:
                # passed over unseen: looking for heads in it took a sixth of the work on a body of 10 MiB
                end, ends_head = min(start + body_left, n_bytes), False
                self._body_left = body_left - (end - start)
                self._last_bytes = b""
            else:
                end, ends_head = self._next_end(data, start)
            if not self._parse(data[start:end], ends_head) or end == n_bytes:
                return
            start = end
        # where the messages of the rest end is not followed any more
        self._body_left, self._last_bytes, self._is_astray = 0, b"", True
        self._parse(data[start:], False)

    def _next_end(self, data: bytes, start: int) -> tuple[int, bool]:
        """Where the head ends with which *data* goes on at *start*, and whether it is one that ends there.

        The end of *data* if no head ends in it.
        """
        before = b"" if start else self._last_bytes
        self._last_bytes = b""
        if before:
            found = (before + data[:3]).find(_HEAD_END)
            if found >= 0:
                return found + len(_HEAD_END) - len(before), True
        found = data.find(_HEAD_END, start)
        if found >= 0:
            return found + len(_HEAD_END), True
        self._last_bytes = (before + data[max(start, len(data) - 3) :])[-3:]
        return len(data), False

    def _parse(self, data: bytes, ends_head: bool) -> bool:
        """Give *data* to aiohttp's parser, and queue the requests that it holds; whether more may be parsed.

        *ends_head*: the end of *data* is that of a head, if it holds one. This is what aiohttp's `data_received` does,
        and in the same step takes down what `_next_end` has to know.

        Where a request asks for an upgrade, which it never gets, the parser drops what comes behind that request in
        the same piece. So it is counted what came behind its head, see `bytes_behind`.
        """
        if self._is_broken or self._force_close or self._close:
            return False
        if self._behind_upgrade is not None:
            self._behind_upgrade += len(data)
        if self._upgraded:  # until the request that asked for it is served
            super().data_received(data)
            return True
        assert self._parser is not None
        is_paused = self._buffer_paused or self._reading_paused  # the parser may hold bytes that came before *data*
        try:
            messages, self._upgraded, tail = self._parser.feed_data(data)
        except HttpProcessingError as error:
            self._break(error)
            return False
        if self._upgraded and tail:
            self._message_tail = tail
        if not messages:
            return True
        for message, _ in messages:
            if message.upgrade:
                self._upgrade = message
                self._behind_upgrade = 0 if ends_head and not is_paused else None
                self._is_astray = True
            elif ends_head and not is_paused:
                self._body_left = int(message.headers.get("Content-Length", "0"))
                self._is_astray = False
            else:
                self._is_astray = True
        self._queue(messages)
        return True

    def _queue(self, messages: Sequence[tuple[RawRequestMessage | _ErrInfo, StreamReader]]) -> None:
        """Let *messages* be served in their turn; if too many wait, nothing is read for now."""
        queue = self._messages
        queue.extend(messages)
        self._request_count += len(messages)
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        if len(queue) >= self._max_msg_queue_size and not self._buffer_paused:
            self._pause_reading_for_buffer()

    def _break(self, error: HttpProcessingError) -> None:
        """The parser has given up: reply to that. A body that it leaves open fails at once, instead of never."""
        self._is_broken = True
        bodies = [payload for _, payload in self._messages]
        if self.serving is not None:
            bodies.append(self.serving.content)
        self._queue([(_ErrInfo(status=400, exc=error, message=error.message), EMPTY_PAYLOAD)])
        for body in bodies:
            if not body.is_eof():
                body.set_exception(web.RequestPayloadError(_reason(error, error.message)))

    def bytes_behind(self, message: object) -> int | None:
        """How many bytes came behind the head of *message*, which asks for an upgrade; None if that is not known."""
        return self._behind_upgrade if message is self._upgrade else None

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Go on reading where it was paused.

        aiohttp calls this after every chunk that is read from a body, also where nothing is paused, and would look
        each time whether more can be parsed: that cost more than the chunk, and a body in chunks of one byte held the
        loop for 45 ms.
        """
        if self._reading_paused:
            super().resume_reading(resume_parser)

    def _pause_transport_reading(self) -> None:
        """Read no more for now: too many requests are queued, or too much of a body waits to be read."""
        super()._pause_transport_reading()
        if self.transport is not None:
            self._server.gone_check.watch(self)

    def _resume_transport_reading(self) -> None:
        super()._resume_transport_reading()
        self._server.gone_check.unwatch(self)


class _Connection:
    """See `client.request.Connection`."""

    __slots__ = (
        "_has_arrived",
        "_protocol",
        "_received_bytes",
        "_waited_s",
        "_waits_since_s",
        "content",
        "has_begun",
        "keeps_alive",
        "upgrade",
        "whole",
    )

    def __init__(self, protocol: ClientProtocol, content: StreamReader) -> None:
        self._protocol = protocol
        self.content = content
        self._has_arrived = content.is_eof()  # before it is served, as nearly all small ones have
        self.keeps_alive = False
        self.has_begun = False
        self.upgrade: RawRequestMessage | None = None  # the request's head, if it asks for an upgrade
        self.whole = b""  # the unread body of a request whose head was known
        self._received_bytes = 0
        self._waited_s = 0.0  # by `read`, in all that have ended
        self._waits_since_s: float | None = None

    def _cancel(self, exc: BaseException) -> None:
        """Let whoever reads the body fail; aiohttp's `connection_lost` and `shutdown` call this."""
        if not isinstance(exc, asyncio.CancelledError):  # a time-out or an error of TLS is no `ConnectionError`
            exc = ConnectionResetError("the client closed the connection")
        self.content.set_exception(exc)

    async def read(self) -> bytes:
        if self.whole:
            return self.read_arrived()
        now_s = self._protocol._server.watcher.time
        self._waits_since_s = since_s = now_s()
        try:
            # not `readany`, which an error does not wake if the end of a chunk came in the same piece
            while not (chunk := self.content.read_nowait(-1)) and not self.content.is_eof():
                await self.content._wait("read")
        except web.RequestPayloadError as error:
            # without its traceback: aiohttp keeps the error, which would keep the last chunk
            raise _malformed_body(error) from error.with_traceback(None)
        except GatewayError as error:  # from `fail_if_slow`
            self.keeps_alive = False
            raise error.with_traceback(None) from None
        finally:
            self._waits_since_s = None
            self._waited_s += now_s() - since_s
        self._received_bytes += len(chunk)
        return chunk

    def fail_if_slow(self, now_s: float, limit_s: float) -> bool:
        """Let the `read` that waits at the moment raise SLOW_CLIENT if the client takes too long; whether it does.

        Only the time in which the gateway waits for the client counts, not that in which it does not read.
        """
        if self._waits_since_s is None:
            return False
        silent_s = now_s - self._waits_since_s
        words = find_slowness(self._received_bytes, self._waited_s + silent_s, silent_s, limit_s)
        if words is None:
            return False
        words = f"the client sent its body too slowly: {words} (limits.body_timeout)"
        self.content.set_exception(GatewayError(ErrorKind.SLOW_CLIENT, words))
        self._waits_since_s = None
        return True

    def read_arrived(self) -> bytes:
        if self.whole:
            body, self.whole = self.whole, b""
            return body
        content = self.content
        if (
            self._has_arrived
            and content is not EMPTY_PAYLOAD
            and content._exception is None
            and not self._protocol._reading_paused
        ):
            # nothing comes any more and nothing waits for this to be read, so aiohttp's accounts need not be kept
            body = b"".join(content._buffer)
            content._buffer.clear()
            return body
        try:
            return content.read_nowait(-1)
        except web.RequestPayloadError as error:
            raise _malformed_body(error) from error.with_traceback(None)

    @property
    def has_arrived(self) -> bool:
        return self._has_arrived or self.content.is_eof()

    @property
    def is_read(self) -> bool:
        return not self.whole and self.content.at_eof()

    @property
    def may_have_lost_bytes(self) -> bool:
        if self.upgrade is None:
            return False
        n_body = int(self.upgrade.headers.get("Content-Length", "0"))
        return not self.content.is_eof() or self._protocol.bytes_behind(self.upgrade) != n_body

    @property
    def is_closing(self) -> bool:
        transport = self._protocol.transport
        return transport is None or transport.is_closing()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        protocol = self._protocol
        transport = protocol.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client closed the connection")
        protocol.written_bytes += len(data)
        transport.write(data)

    @property
    def is_behind(self) -> bool:
        return self._protocol._paused

    async def drain(self) -> None:
        if self._protocol.transport is not None:
            await self._protocol._drain_helper()

    @property
    def cut_reason(self) -> str:
        return self._protocol.cut_reason

    def cut(self) -> None:
        self._protocol.reset()


def _client_request(
    message: RawRequestMessage, payload: StreamReader, protocol: ClientProtocol, connection: _Connection
) -> ClientRequest:
    method, path, version = message.method, message.path, message.version
    headers = Headers(message.headers.items())
    first = headers.first
    given_length = first.get("content-length")
    length = int(given_length) if given_length else None
    fault = find_fault(method, path, version, headers, length)
    if fault is not None:
        path = path.encode(errors="backslashreplace").decode()  # may stand in a log
        if (
            fault.status != ErrorKind.MALFORMED_REQUEST.status
            or "transfer-encoding" in first
            or method == "CONNECT"  # the parser knows no body of it
            or (length is not None and length > MAX_CONTENT_LENGTH)
        ):
            connection.keeps_alive = False  # where its body ends is not certain
    host = first.get("host", "")
    if not path.startswith("/"):
        absolute = ABSOLUTE.match(path)
        if absolute is not None:
            host = absolute[1]
            path = path[absolute.end() :]
        if not path.startswith("/"):
            path = f"/{path}"
    return ClientRequest(
        method,
        path,
        headers,
        host,
        protocol.peer,
        protocol.scheme,
        version,
        length,
        payload is not EMPTY_PAYLOAD,
        connection,
        fault,
    )


def _malformed_body(error: Exception) -> GatewayError:
    return GatewayError(ErrorKind.MALFORMED_REQUEST, f"malformed HTTP body: {_reason(error, str(error))}")


def _reason(error: BaseException | None, text: str) -> str:
    """What aiohttp's parser says in *text* of its *error*, without the client's bytes, which may hold a secret.

    Some errors have a dump of these bytes in further lines, others quote them in the middle of their words.
    """
    if isinstance(error, LineTooLong):
        return f"a line is longer than {error.args[1]} bytes"
    line, dump, _ = text.partition("\n")
    if isinstance(error, InvalidURLError | InvalidHeader | BadStatusLine) and not dump and line != _TLS:
        return "malformed HTTP"
    return line.rstrip(":")


def _nothing() -> None:
    """Is never called."""


async def _never_called(http: web.BaseRequest) -> web.StreamResponse:
    """Stands where aiohttp looks for a handler, which `ClientProtocol.start` does not ask."""
    raise AssertionError
