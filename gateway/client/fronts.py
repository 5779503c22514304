"""The fronts for clients: HTTP/1.1, and gRPC where that is configured.

Not here: accepting (`listeners`), and the protocols themselves.
"""

from collections.abc import Iterator
from importlib.util import find_spec

from gateway.client.connection import ClientConnection
from gateway.client.peers import Connection
from gateway.config import Address, Config


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


def fronts(config: Config) -> list[tuple[type[Connection], Address]]:
    """The kind of connection at each of the `addresses`; for gRPC its extra must be installed."""
    kinds: list[type[Connection]] = [ClientConnection]
    if config.grpc is not None:
        from gateway.client.grpc.connection import GrpcConnection  # noqa: PLC0415  an extra

        kinds.append(GrpcConnection)
    return list(zip(kinds, addresses(config), strict=True))
