"""Sockets: opening a listener, and aiohttp's servers as the gateway wants them."""

import asyncio
import socket
from collections.abc import Awaitable, Callable

import orjson
from aiohttp import web
from aiohttp.web_protocol import RequestHandler, _ErrInfo

from gateway.config import Address

CUT_S = 0.05
"""How long handlers have to notice that they are cut off. Not 0, which aiohttp takes for no limit."""

CLIENT_KEEP_ALIVE_S = 75.0
"""How long an idle connection of a client is kept: longer than the 60 s of common load balancers."""

BACKLOG = 1024
"""The most connections that wait to be accepted."""


OnRefused = Callable[[web.BaseRequest, int, str], None]


class _Protocol(RequestHandler):
    """aiohttp's HTTP server protocol, with its own refusals (bad HTTP) in the error shape of the gateway."""

    on_refused: OnRefused

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
        """Answer what never became a request."""
        if request.writer.output_size > 0:
            raise ConnectionResetError("a reply has begun and cannot become an error")
        said = message or (str(exc) if status < 500 and exc is not None else "")
        text = (said.splitlines() or ["internal error" if status >= 500 else "malformed HTTP"])[0]
        self.on_refused(request, status, text)
        response = web.Response(
            status=status,
            body=orjson.dumps({"error": text.encode(errors="replace").decode()}),
            headers={"Content-Type": "application/json", "Server": "tensor-gateway"},
        )
        response.force_close()
        return response


class Server(web.Server):
    """aiohttp's low-level server: no router and no middleware, since every path is the backend's."""

    def __init__(
        self, handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], on_refused: OnRefused
    ) -> None:
        """*on_refused* is told of what never became a request: bad HTTP."""
        super().__init__(
            handler,
            handler_cancellation=True,
            auto_decompress=False,
            access_log=None,
            keepalive_timeout=CLIENT_KEEP_ALIVE_S,
            lingering_time=0,  # the corridor drops the rest of refused bodies itself, within bounds
        )
        self._on_refused = on_refused

    def __call__(self) -> RequestHandler:
        """A protocol for a new connection."""
        protocol = _Protocol(self, loop=self._loop, **self._kwargs)
        protocol.on_refused = self._on_refused
        return protocol


async def bind(address: Address, *, shared: bool = False) -> socket.socket:
    """A socket bound to *address*; *shared* with other processes. Raises `OSError` that names the address."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        infos = await asyncio.get_running_loop().getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise OSError(error.errno, f"cannot listen on {address}: {error.strerror}") from None
    infos = [info for info in infos if info[0] == family] or infos
    bound = socket.socket(infos[0][0], socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(infos[0][4])
    except OSError as error:
        bound.close()
        raise OSError(error.errno, f"cannot listen on {address}: {error.strerror}") from None
    return bound


async def serve(runner: web.BaseRunner, address: Address, *, shared: bool = False) -> web.SockSite:
    """Listen on *address* with *runner*. Raises `OSError` that names the address."""
    await runner.setup()
    bound = await bind(address, shared=shared)
    try:
        site = web.SockSite(runner, bound, backlog=BACKLOG)
        await site.start()
    except OSError as error:
        bound.close()
        raise OSError(error.errno, f"cannot listen on {address}: {error.strerror}") from None
    return site


def url_of(address: Address, port: int) -> str:
    """How to reach a listener on *address*, whose real port is *port*."""
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"http://{host}:{port}"
