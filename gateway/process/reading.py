"""What one process that serves clients says of itself for the status page.

Not here: what is made of it, and of several (`status`).
"""

import os
import time

import msgspec

from gateway.app import DataPlane
from gateway.telemetry.failures import Failure
from gateway.telemetry.metrics import EndpointReading
from gateway.telemetry.recent import Minute

STARTED_S = time.time()
"""When this process was started, in seconds since 1970: when this was imported."""


class Level(msgspec.Struct, frozen=True):
    """How much of a limit is in use at this moment."""

    used: int
    limit: int


class Certificate(msgspec.Struct, frozen=True):
    """A certificate of the gateway's own that is in use."""

    where: str
    """The path of its settings in the configuration."""
    expires_s: float
    """In seconds since 1970."""


class ProcessReading(msgspec.Struct, frozen=True):
    """One process at one moment."""

    pid: int
    started_s: float
    """In seconds since 1970."""
    requests: Level
    body_bytes: Level
    """Of request bodies and decoded answers."""
    connections: Level
    """Of clients."""
    endpoints: list[EndpointReading]
    minute: Minute
    failures: list[Failure]
    certificates: list[Certificate]


def reading_of(data_plane: DataPlane) -> ProcessReading:
    """The process with this *data_plane*, now."""
    data_plane.observe_load()  # counts what has finished up to now
    admission, server = data_plane.gateway.admission, data_plane.server
    return ProcessReading(
        os.getpid(),
        STARTED_S,
        Level(admission.requests, admission.max_requests),
        Level(admission.held_bytes, int(admission.max_bytes)),
        Level(server.open_connections, server.limits.connections),
        data_plane.readings(),
        data_plane.metrics.recent.reading(),
        data_plane.metrics.failures.reading(),
        [Certificate(where, expires_at.timestamp()) for where, expires_at in data_plane.certificates()],
    )
