"""The listeners for clients: of HTTP/1.1, and of gRPC where that is configured.

A reload gives them new certificates and limits. Not here: accepting (`listeners`), and the protocols themselves.
"""

import socket
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from itertools import zip_longest

from gateway.certificates import HTTP1, HTTP2, TlsContext
from gateway.client.connection import ClientConnection
from gateway.client.listeners import ClientListener
from gateway.client.server import Server
from gateway.client.watching import Connection
from gateway.config import Address, Config
from gateway.errors import ConfigError


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


class Fronts:
    """The listeners of one process."""

    def __init__(self, config: Config, server: Server) -> None:
        """Raises `ConfigError` for certificates that cannot be used, and where the extra `grpc` is missing."""
        self.urls: list[str] = []
        """The URL of each listener, once it is open."""
        kinds: list[Callable[[Server], Connection]] = [ClientConnection]
        if config.grpc is not None:
            for key, reason in grpc_problems(config):
                raise ConfigError(f"{key}: {reason}")
            from gateway.client.grpc.connection import GrpcConnection  # noqa: PLC0415  an extra

            kinds.append(GrpcConnection)
        self._listeners = [ClientListener(server, kind) for kind in kinds]
        self.take(config, self.following(config))

    async def open(self, config: Config, sockets: Sequence[socket.socket]) -> None:
        """Listen on *sockets*, one a listener; without them, on the addresses of *config*.

        Raises `OSError` if an address cannot be used.
        """
        for listener, address, bound in zip_longest(self._listeners, addresses(config), sockets):
            self.urls.append(await listener.open(address, bound))

    @property
    def tls(self) -> list[TlsContext | None]:
        """The contexts of the listeners; None for a listener without TLS."""
        return [listener.tls for listener in self._listeners]

    def following(self, config: Config) -> list[TlsContext | None]:
        """The contexts for *config*, at a start or a reload. Raises `ConfigError`."""
        if config.tls is None:
            return [None] * len(self._listeners)
        return [
            TlsContext.following(listener.tls, "tls", config.tls, protocol)
            for listener, protocol in zip(self._listeners, (HTTP1, HTTP2), strict=False)
        ]

    def take(self, config: Config, contexts: Sequence[TlsContext | None]) -> None:
        """Give *contexts* and the limits of *config* to new connections."""
        for listener, context in zip(self._listeners, contexts, strict=True):
            listener.tls = context
            listener.handshake_timeout_s = config.limits.header_timeout

    @property
    def n_opening(self) -> int:
        """How many connections were accepted and are not open yet."""
        return sum(listener.n_opening for listener in self._listeners)

    async def stop_accepting(self) -> None:
        """See `ClientListener.stop_accepting`."""
        for listener in self._listeners:
            await listener.stop_accepting()

    async def close(self) -> None:
        """See `ClientListener.close`."""
        for listener in self._listeners:
            await listener.close()


def addresses(config: Config) -> list[Address]:
    """The addresses of the listeners for clients: for HTTP/1.1, and for gRPC if it is configured."""
    return [config.listen] if config.grpc is None else [config.listen, config.grpc]
