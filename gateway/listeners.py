"""Sockets: opening a listener, and aiohttp's servers as the gateway wants them."""

import asyncio
import socket

import orjson
from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from gateway.config import Address

CUT_S = 0.05
"""How long handlers have to notice that they are cut off. Not 0, which aiohttp takes for no limit."""

BACKLOG = 1024
"""The most connections that wait to be accepted."""


class _Protocol(RequestHandler):
    """aiohttp's HTTP server protocol, with its own refusals (bad HTTP) in the error shape of the gateway."""

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what never became a request."""
        text = message or (str(exc) if status < 500 and exc is not None else "internal error")
        response = web.Response(
            status=status,
            body=orjson.dumps({"error": text.splitlines()[0] if text else "malformed HTTP"}),
            headers={"Content-Type": "application/json"},
        )
        response.force_close()
        return response


class Server(web.Server):
    """aiohttp's low-level server: no router and no middleware, since every path is the backend's."""

    def __call__(self) -> RequestHandler:
        """A protocol for a new connection."""
        return _Protocol(self, loop=self._loop, **self._kwargs)


async def bind(address: Address, *, shared: bool = False) -> socket.socket:
    """A socket bound to *address*; *shared* with other processes. Raises `OSError` that names the address."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    infos = await asyncio.get_running_loop().getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
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
