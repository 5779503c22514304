"""aiohttp's HTTP server, as the gateway wants it. All private uses of aiohttp's server are in this file.

Here: the protocol of a connection, what a parsed request becomes (`ClientRequest`), what happens to bytes that are no
HTTP. Not here: sockets and accepting (`listeners`), bodies (`body`), replies (`reply`). What of aiohttp is private is
listed in tests/client/test_server_privates.py, which fails when a new release has lost or changed it.
"""

import asyncio
import re
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import cast

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.web_protocol import RequestHandler, _ErrInfo

from gateway.client.reply import Reply
from gateway.client.request import ClientRequest, new_request_id
from gateway.errors import ErrorKind, GatewayError
from gateway.exchange import Exchange
from gateway.headers import Headers

CUT_S = 0.05
"""How long handlers have to notice that they are cut off. Not 0, which aiohttp takes for no limit."""

CLIENT_KEEP_ALIVE_S = 75.0
"""How long an idle connection of a client is kept: longer than the 60 s of common load balancers."""

Handler = Callable[[ClientRequest], Awaitable[None]]
"""Serves one request: replies to it with a `Reply` and returns."""

_ABSOLUTE = re.compile(r"https?://(?:[^/?#]*@)?([^/?#]*)", re.IGNORECASE)


class Server(web.Server):
    """aiohttp's low-level server: no router and no middleware, since every path is the backend's."""

    def __init__(self, handler: Handler, record: Callable[[Exchange], None]) -> None:
        """*record* is given the exchanges of what never became a request: bad HTTP. On a running event loop."""
        super().__init__(
            self._serve,
            handler_cancellation=True,
            auto_decompress=False,
            access_log=None,
            keepalive_timeout=CLIENT_KEEP_ALIVE_S,
            lingering_time=0,  # `ClientBody.drop_rest` reads the rest of refused bodies, within bounds
        )
        self._handler = handler
        self._record = record
        self.open_connections = 0
        """Connections of clients that are open now."""

    def __call__(self) -> RequestHandler:
        """A protocol for a new connection."""
        return _Protocol(self, loop=self._loop, **self._kwargs)

    async def _serve(self, http: web.BaseRequest) -> web.StreamResponse:
        """Have one request served, and tell aiohttp whether the connection goes on."""
        protocol = http.protocol
        assert isinstance(protocol, _Protocol)
        connection = protocol.serving = _Connection(http, protocol)
        await self._handler(_client_request(http, protocol, connection))
        protocol.serving = None
        return _KEPT if connection.keeps_alive else _CLOSED

    def refuse(self, http: web.BaseRequest, protocol: "_Protocol", error: GatewayError) -> web.StreamResponse:
        """The reply to what never became a request; recorded when it was sent."""
        exchange = Exchange(protocol.peer, http.method, "", new_request_id(), asyncio.get_running_loop().time())
        connection = _Connection(http, protocol)
        headers = Headers()
        request = ClientRequest(
            http.method, "", headers, "", protocol.peer, http.scheme, (1, 1), None, False, connection
        )
        reply = Reply(request, exchange, body=None, is_draining=lambda: True)

        async def send() -> None:
            try:
                await reply.error(error)
            finally:
                self._record(exchange)

        return _Refusal(send)


class _Protocol(RequestHandler):
    """aiohttp's HTTP server protocol, with its own refusals (bad HTTP) in the error shape of the gateway."""

    peer = "unknown"
    serving: "_Connection | None" = None
    """The request that is being served."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        super().connection_made(transport)
        peername = transport.get_extra_info("peername")
        if isinstance(peername, tuple):
            self.peer = str(peername[0])
        self.server.open_connections += 1

    def connection_lost(self, exc: BaseException | None) -> None:
        """See asyncio."""
        if self._manager is not None:
            self.server.open_connections -= 1
        super().connection_lost(exc)

    @property
    def server(self) -> Server:
        """The server that this connection belongs to."""
        return cast(Server, self._manager)

    def data_received(self, data: bytes) -> None:
        """Parse. A body whose framing breaks later than its head fails at once: aiohttp would leave it open."""
        super().data_received(data)
        request = self._current_request
        if request is not None and self._messages and isinstance(self._messages[-1][0], _ErrInfo):
            content = request.content
            if not content.is_eof():
                content.set_exception(web.RequestPayloadError(self._messages[-1][0].message))

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what never became a request, or whose handler failed; never with a traceback."""
        serving, self.serving = self.serving, None
        if serving is not None and serving.has_begun:
            serving.cut()
            raise ConnectionResetError("a reply has begun and cannot become an error")
        said = message or (str(exc) if status < 500 and exc is not None else "")
        text = (said.splitlines() or ["internal error" if status >= 500 else "malformed HTTP"])[0]
        kind = ErrorKind.MALFORMED_REQUEST if status < 500 else ErrorKind.INTERNAL
        return self.server.refuse(request, self, GatewayError(kind, text, status=status))


class _Connection:
    """See `client.request.Connection`."""

    __slots__ = ("_content", "_protocol", "_writer", "has_begun", "keeps_alive")

    def __init__(self, http: web.BaseRequest, protocol: _Protocol) -> None:
        self._content = http.content
        self._writer = http.writer
        self._protocol = protocol
        self.keeps_alive = http.keep_alive
        self.has_begun = False

    async def read(self) -> bytes:
        try:
            return await self._content.readany()
        except web.RequestPayloadError as error:
            # without its traceback: aiohttp keeps the error, which would keep the last chunk
            raise _malformed_body(error) from error.with_traceback(None)

    def read_arrived(self) -> bytes:
        try:
            return self._content.read_nowait(-1)
        except web.RequestPayloadError as error:
            raise _malformed_body(error) from error.with_traceback(None)

    @property
    def has_arrived(self) -> bool:
        return self._content.is_eof()

    @property
    def is_read(self) -> bool:
        return self._content.at_eof()

    @property
    def is_closing(self) -> bool:
        transport = self._protocol.transport
        return transport is None or transport.is_closing()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        transport = self._protocol.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client closed the connection")
        transport.write(data)

    async def drain(self) -> None:
        if self._protocol.writing_paused:
            await self._writer.drain()

    def cut(self) -> None:
        transport = self._protocol.transport
        if transport is not None:
            client = transport.get_extra_info("socket")
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            transport.abort()


class _Sent(web.StreamResponse):
    """Tells aiohttp that `Reply` has sent everything, and whether the connection is kept."""

    def __init__(self, keeps_alive: bool) -> None:
        super().__init__()
        self._is_kept = keeps_alive

    @property
    def keep_alive(self) -> bool:
        return self._is_kept

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        pass


class _Refusal(_Sent):
    """A reply that is sent when aiohttp asks for it: where it has no request, it asks for a response, not for work."""

    def __init__(self, send: Callable[[], Awaitable[None]]) -> None:
        super().__init__(keeps_alive=False)
        self._send = send

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        await self._send()
        return None


_KEPT = _Sent(keeps_alive=True)
_CLOSED = _Sent(keeps_alive=False)


def _client_request(http: web.BaseRequest, protocol: _Protocol, connection: _Connection) -> ClientRequest:
    headers = Headers(http.headers.items())
    path = http.raw_path
    host = headers.get("host")
    if not path.startswith("/"):
        absolute = _ABSOLUTE.match(path)
        if absolute is not None:
            host = absolute[1]
            path = path[absolute.end() :]
        if not path.startswith("/"):
            path = f"/{path}"
    return ClientRequest(
        http.method,
        path,
        headers,
        host,
        protocol.peer,
        http.scheme,
        http.version,
        http.content_length,
        http.body_exists,
        connection,
    )


def _malformed_body(error: Exception) -> GatewayError:
    return GatewayError(ErrorKind.MALFORMED_REQUEST, f"malformed HTTP body: {error}")
