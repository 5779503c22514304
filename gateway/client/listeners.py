"""Listeners for clients, of HTTP/1.1 and of gRPC: their sockets, accepting, and their URLs."""

import asyncio
import errno
import fcntl
import logging
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec

from gateway.client.connection import ClientConnection
from gateway.client.peers import Connection
from gateway.client.server import Server
from gateway.config import Address, Config
from gateway.policy.quiet import OncePerInterval

BACKLOG = 128
"""The most connections that wait in the kernel to be accepted."""

ACCEPTS_AT_ONCE = 32
"""How many connections are accepted in one turn of the event loop."""

ACCEPT_PAUSE_S = 1.0
"""How long nothing is accepted after accepting has failed, mostly for want of file descriptors."""

UNIX_MODE = 0o660
"""Who may connect to a `unix:` listener: the gateway's own user and group."""

log = logging.getLogger("gateway")


def grpc_problems(config: Config) -> Iterator[tuple[str, str]]:
    """Why `grpc` cannot work: the path of the key, and the reason; nothing if it can."""
    if config.grpc is not None and not has_grpc():
        yield "grpc", "needs hpack and protobuf, which are not installed: pip install 'tensor-gateway[grpc]'"


def has_grpc() -> bool:
    """Whether the extra `grpc` is installed."""
    try:
        return all(map(find_spec, ("hpack", "google.protobuf")))
    except ModuleNotFoundError:
        return False


def addresses(config: Config) -> list[Address]:
    """The addresses of the listeners for clients: for HTTP/1.1, and for gRPC if it is configured."""
    return [config.listen] if config.grpc is None else [config.listen, config.grpc]


def listeners(server: Server, config: Config) -> "list[ClientListener]":
    """The listeners at the `addresses`, not open yet; for gRPC its extra must be installed."""
    found = [ClientListener(server)]
    if config.grpc is not None:
        from gateway.client.grpc.connection import GrpcConnection  # noqa: PLC0415  an extra

        found.append(ClientListener(server, GrpcConnection))
    return found


class ClientListener:
    """The listener for clients: accepts connections, and gives them to a `Server`.

    It does not use asyncio's listener: when descriptors run out, that one logs a traceback for every place of its
    backlog, and tries again as often.
    """

    def __init__(self, server: Server, kind: type[Connection] = ClientConnection) -> None:
        """*kind* makes a connection, of HTTP/1.1 or of gRPC."""
        self.url = ""
        """The URL, once it is open."""
        self._server = server
        self._kind = kind
        self._socket: socket.socket | None = None
        self._warnings = OncePerInterval()

    async def open(self, address: Address, bound: socket.socket | None = None) -> str:
        """Listen on *address*, or a socket *bound* to it; return the URL. Raises `OSError` that names the address."""
        bound = bound or await bind(address)
        bound.listen(BACKLOG)
        bound.setblocking(False)
        self._socket = bound
        self._go_on()
        port = 0 if address.is_unix else bound.getsockname()[1]
        self.url = url_of(address, port, "http" if self._server.tls is None else "https")
        return self.url

    def stop_accepting(self) -> None:
        """Accept the connections that wait in the kernel, and then no more; open connections go on."""
        if self._socket is None:
            return
        self._server.loop.remove_reader(self._socket)
        self._accept(BACKLOG)
        release(self._socket)
        self._socket = None

    def _accept(self, at_most: int) -> None:
        """Accept waiting connections, *at_most* so many."""
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
            self._server.take(client, self._kind)

    def _pause(self, error: OSError) -> None:
        """Accept nothing for a moment: trying again at once would fail again, and keep the processor busy."""
        loop = self._server.loop
        if self._warnings.allows(loop.time()):
            log.warning(
                "no connection can be accepted: %s; raise the limit of open files (ulimit -n) or lower "
                "limits.connections",
                error.strerror,
            )
        assert self._socket is not None
        loop.remove_reader(self._socket)
        loop.call_later(ACCEPT_PAUSE_S, self._go_on)

    def _go_on(self) -> None:
        if self._socket is not None:
            self._server.loop.add_reader(self._socket, self._accept, ACCEPTS_AT_ONCE)


class _UnixSocket(socket.socket):
    """A `unix:` listener that this process has made, and removes."""

    path = ""
    file: tuple[int, int] = (0, 0)
    """Device and inode of the socket at *path*, by which it is recognized before it is removed."""


async def bind(address: Address, *, is_shared: bool = False) -> socket.socket:
    """A socket bound to *address*, for this process alone or *is_shared* with others; `release` it at the end.

    The socket listens already, so that no other process can take the port; except if it is shared, or if the kernel
    has chosen a free port. Raises `OSError` that names the address.
    """
    try:
        return _bind_unix(address.path) if address.is_unix else await _bind_tcp(address, is_shared=is_shared)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(error.errno, f"cannot listen on {address}: {reason[:1].lower()}{reason[1:]}") from None


async def _bind_tcp(address: Address, *, is_shared: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    infos = await asyncio.get_running_loop().getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    infos = [info for info in infos if info[0] == family] or infos
    bound = socket.socket(*infos[0][:3])  # asyncio sets TCP_NODELAY only where the protocol is named
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(infos[0][4])
        if address.port and not is_shared:
            bound.listen(BACKLOG)
    except OSError:
        bound.close()
        raise
    return bound


async def reserve(address: Address) -> socket.socket:
    """Reserve the port of *address* for workers, which each `bind` a socket that is shared.

    For a `unix:` address it is a socket that listens, which all workers inherit. `release` it at the end. Raises
    `OSError` that names the address.

    The kernel lets every process of the same user join a shared port (SO_REUSEPORT). So the port is first taken as a
    single process takes it: bound and listened on without sharing, which fails if another process has it. Then this
    socket allows sharing, for which the workers ask; disallows SO_REUSEADDR, for which another gateway would ask; and
    stops listening, so that it gets no connections. At no moment is the port free.
    """
    bound = await bind(address)
    if not address.is_unix:
        if address.port:  # a port that the kernel has chosen is free, and would be lost by this
            bound.shutdown(socket.SHUT_RD)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    return bound


def release(bound: socket.socket) -> None:
    """Close the socket, and remove the file of a `unix:` listener that this process has made."""
    if isinstance(bound, _UnixSocket):
        with suppress(OSError):
            found = os.lstat(bound.path)
            if (found.st_dev, found.st_ino) == bound.file:  # not that of another gateway
                os.unlink(bound.path)
    bound.close()


def _bind_unix(path: str) -> _UnixSocket:
    """Listen at *path*, replacing a stale socket there.

    The folder is locked meanwhile: of two gateways that find the same stale file, one would remove the other's.
    """
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    bound = _UnixSocket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held for the moment that this takes
        _remove_stale(path)
        bound.bind(path)
        os.chmod(path, UNIX_MODE)
        found = os.lstat(path)
        bound.path = path
        bound.file = (found.st_dev, found.st_ino)
        bound.listen(BACKLOG)  # clients can connect only from here on, so none does with another mode
    except BaseException:
        release(bound)
        raise
    finally:
        os.close(folder)
    return bound


def _remove_stale(path: str) -> None:
    """Remove a stale socket at *path*. Raises `OSError` if it is in use or is no socket."""
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise OSError(errno.EEXIST, "a file that is no socket exists there")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            if probe.connect_ex(path) != errno.ECONNREFUSED:  # EAGAIN: somebody listens, and has a full backlog
                raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        os.unlink(path)


def url_of(address: Address, port: int, scheme: str = "http") -> str:
    """The URL of a listener on *address*, whose real port is *port*; for `unix:` the address itself."""
    if address.is_unix:
        return str(address)
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"{scheme}://{host}:{port}"
