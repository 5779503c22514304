"""File descriptors: how many a process may open, and how many connections of clients fit into them.

Every connection is a descriptor. A process without free descriptors can accept no client, reach no backend and answer
no health check, so the clients' share is bounded.
"""

import logging
import resource
import sys
from contextlib import suppress

import msgspec

from gateway.config import Config

KEPT_DESCRIPTORS = 96
"""Kept for 64 connections to the admin listener, standard streams, listeners, event loop, name lookups and files."""

MIN_CONNECTIONS = 16
"""The fewest client connections that `limits.connections` is lowered to."""

log = logging.getLogger("gateway")


def fit(config: Config, running: Config | None = None) -> Config:
    """Raise the soft limit of descriptors to the hard one; returns *config* with as many connections as fit.

    With several workers each has its own descriptors and its share. Warns if it lowers `limits.connections`, and for
    gRPC `max_connections`, unless *running*, which a reload replaces, was lowered to as many connections.
    """
    descriptors = _raise_soft_limit()
    share, backends = config.share(), config.backends
    wanted, connections = share.limits.connections, connections_that_fit(share, descriptors)
    lowered = [f"limits.connections to {connections}"] if connections < wanted else []
    if config.grpc is not None and descriptors_needed(share, connections) > descriptors:
        to_each = max((descriptors - descriptors_needed(share, 0) - connections) // len(backends), 1)
        most = {name: min(share.max_connections(name), to_each) * config.workers for name in backends}
        backends = {name: msgspec.structs.replace(backends[name], max_connections=n) for name, n in most.items()}
        lowered.append(f"max_connections of each backend to {to_each}, since a client of gRPC may need many")
    elif connections >= wanted:
        return config
    limits = msgspec.structs.replace(config.limits, connections=connections * config.workers)
    fitted = msgspec.structs.replace(config, limits=limits, backends=backends)
    if running is None or _connections(running) != _connections(fitted):
        log.warning(
            "limits.connections: %d client connections of each process do not fit into %d file descriptors, beside "
            "those of backends, probes, the admin listener and files; lowered: %s. Raise the hard limit to %d "
            "(ulimit -Hn, LimitNOFILE=, --ulimit nofile=), or set limits.connections and max_connections",
            *(wanted, descriptors, " and ".join(lowered), descriptors_needed(share, wanted)),
        )
    return fitted


def _connections(config: Config) -> list[int | None]:
    """How many connections there may be, to clients and to each backend."""
    return [config.limits.connections, *(backend.max_connections for backend in config.backends.values())]


def descriptors_needed(config: Config, connections: int) -> int:
    """How many descriptors one process needs at most with so many client *connections*.

    A client connection carries one request at a time, so it occupies at most one connection to each backend; with gRPC
    a few may occupy all. A health probe has a connection of its own; probes of one endpoint never overlap.
    """
    at_once = sys.maxsize if connections and config.grpc is not None else connections
    to_backends = sum(min(at_once, config.max_connections(name)) for name in config.backends)
    to_probed = sum(len(backend.endpoints) for backend in config.backends.values() if backend.health is not None)
    return connections + to_backends + to_probed + KEPT_DESCRIPTORS


def connections_that_fit(config: Config, descriptors: int) -> int:
    """How many client connections, up to `limits.connections`, one process can hold with so many *descriptors*.

    Never fewer than `MIN_CONNECTIONS`, unless the limit itself is lower.
    """
    to_backends = [config.max_connections(name) for name in config.backends]
    left = descriptors - descriptors_needed(config, 0)
    fitting = max(left - sum(to_backends), left // (1 + len(to_backends)))
    return min(config.limits.connections, max(fitting, MIN_CONNECTIONS))


def _raise_soft_limit() -> int:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # some systems have a lower maximum than the hard limit says
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft
