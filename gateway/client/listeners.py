"""Sockets of listeners: binding, listening, and how to reach them. Not here: what is spoken on them (`server`)."""

import asyncio
import socket

from aiohttp import web

from gateway.client.server import CUT_S, Server
from gateway.config import Address

BACKLOG = 128
"""The most connections that wait to be accepted."""


class ClientListener:
    """The listener for clients: accepts connections and gives them to a `Server`."""

    def __init__(self, server: Server) -> None:
        self._runner = web.ServerRunner(server, shutdown_timeout=CUT_S)
        self._site: web.SockSite | None = None

    async def open(self, address: Address, *, shared: bool = False) -> str:
        """Listen on *address*, on a port that is *shared* with other processes; the URL. Raises `OSError`."""
        self._site = await serve(self._runner, address, shared=shared)
        return url_of(address, self._runner.addresses[0][1])

    async def stop_accepting(self) -> None:
        """Accept no more connections; those that are open go on."""
        if self._site is not None:
            await self._site.stop()
            self._site = None

    async def close(self) -> None:
        """Stop accepting, and cut off what is still being served."""
        await self._runner.cleanup()
        self._site = None


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
