"""Sockets of listeners: binding, accepting, and how to reach them. Not here: what is spoken on them (`server`)."""

import asyncio
import logging
import socket

from aiohttp import web

from gateway.client.server import CUT_S, Server
from gateway.config import Address
from gateway.policy.quiet import OncePerInterval

BACKLOG = 128
"""The most connections that wait in the kernel to be accepted."""

ACCEPTS_AT_ONCE = 32
"""How many connections are accepted before others run."""

ACCEPT_PAUSE_S = 1.0
"""How long nothing is accepted after the kernel has refused to, mostly for want of descriptors."""

WARNING_S = 60.0
"""How often it is said that nothing can be accepted."""

log = logging.getLogger("gateway")


class ClientListener:
    """The listener for clients: accepts connections, within `limits.connections`, and gives them to a `Server`.

    It accepts by itself, because asyncio's own listener, when descriptors run out, logs a traceback for every place
    of its backlog and tries again as often.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._socket: socket.socket | None = None
        self._paused: asyncio.TimerHandle | None = None
        self._opening: set[asyncio.Task[None]] = set()
        self._warnings = OncePerInterval(WARNING_S, max_keys=1)

    async def open(self, address: Address, *, shared: bool = False) -> str:
        """Listen on *address*, on a port that is *shared* with other processes; the URL.

        Raises `OSError` that names the address.
        """
        bound = await bind(address, shared=shared)
        try:
            bound.listen(BACKLOG)
            bound.setblocking(False)
        except OSError as error:
            bound.close()
            raise OSError(error.errno, f"cannot listen on {address}: {error.strerror}") from None
        self._socket = bound
        asyncio.get_running_loop().add_reader(bound, self._accept, ACCEPTS_AT_ONCE)
        return url_of(address, bound.getsockname()[1])

    async def stop_accepting(self) -> None:
        """Accept what waits in the kernel, and nothing more; connections that are open go on."""
        if self._socket is None:
            return
        if self._paused is not None:
            self._paused.cancel()
            self._paused = None
        asyncio.get_running_loop().remove_reader(self._socket)
        self._accept(BACKLOG)
        if self._paused is not None:
            self._paused.cancel()
        self._socket.close()
        self._socket = None

    async def close(self) -> None:
        """Stop accepting, and cut off what is still being served."""
        await self.stop_accepting()
        for task in self._opening:
            task.cancel()
        await asyncio.sleep(0)
        self._server.pre_shutdown()
        await self._server.shutdown(CUT_S)

    def _accept(self, at_most: int) -> None:
        """Accept what waits, up to *at_most*."""
        assert self._socket is not None
        for _ in range(at_most):
            try:
                client, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:  # this one is gone already
                continue
            except OSError as error:  # mostly: out of descriptors
                self._pause(error)
                return
            if not self._server.admit():
                client.close()
                continue
            client.setblocking(False)
            task = asyncio.get_running_loop().create_task(self._open(client))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, client: socket.socket) -> None:
        """Give an accepted connection to the server."""
        protocol = self._server()
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, client)
        except OSError as error:
            protocol.release()
            client.close()
            log.debug("a connection ended before it was open: %s", error)
        except BaseException:
            protocol.release()
            raise

    def _pause(self, error: OSError) -> None:
        """Accept nothing for a moment: trying again at once would fail again, and keep the processor busy."""
        loop = asyncio.get_running_loop()
        if self._warnings.allows("", loop.time()):
            log.warning(
                "no connection can be accepted: %s; raise the limit of open files (ulimit -n) or lower "
                "limits.connections",
                error.strerror,
            )
        assert self._socket is not None
        loop.remove_reader(self._socket)
        self._paused = loop.call_later(ACCEPT_PAUSE_S, self._resume)

    def _resume(self) -> None:
        self._paused = None
        assert self._socket is not None
        asyncio.get_running_loop().add_reader(self._socket, self._accept, ACCEPTS_AT_ONCE)


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
