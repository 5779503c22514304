"""The state of one process that serves clients, at one moment, for the metrics and the status page."""

import time
from typing import Literal

import msgspec

STARTED_S = time.time()
"""When this process was started, in seconds since 1970; the time at which this module was imported."""


class Level(msgspec.Struct, frozen=True):
    """How much of a limit is in use at this moment."""

    used: int
    limit: int


class Certificate(msgspec.Struct, frozen=True):
    """A certificate of the gateway's own that is in use."""

    where: str
    """The path of the certificate's settings in the configuration: `tls`, or `backends.NAME.tls`."""
    expires_s: float
    """In seconds since 1970."""


class EndpointReading(msgspec.Struct, frozen=True, array_like=True):
    """The state of one endpoint at this moment, in one process."""

    backend: str
    endpoint: str
    is_up: bool
    is_ejected: bool
    """Whether requests avoid it because some have failed."""
    busy: int
    """How many open connections carry a request."""
    idle: int
    """How many open connections are kept for the next request."""
    reason: str = ""
    """Why the endpoint is in this state, in words; empty if the state has never changed."""
    since_s: float = 0.0
    """Since when, in seconds since 1970."""
    speaks: str = ""
    """What its backend speaks, in words; empty if the servers were not asked yet."""
    is_on_trial: bool = False
    """Whether the ejection has lasted long enough, so that the next request to the endpoint is its trial."""

    @property
    def state(self) -> Literal["up", "on trial", "ejected", "down"]:
        """The state in one word."""
        if not self.is_up:
            return "down"
        if self.is_ejected:
            return "ejected"
        return "on trial" if self.is_on_trial else "up"


class Reading(msgspec.Struct, frozen=True):
    """The state of one process at one moment."""

    pid: int
    started_s: float
    """In seconds since 1970."""
    in_flight: int
    """How many requests are being served."""
    requests: Level
    """The use of `limits.concurrent_requests`: requests with a slot."""
    body_bytes: Level
    """Of request bodies and decoded answers."""
    connections: Level
    """Of clients."""
    endpoints: list[EndpointReading]
    certificates: list[Certificate]
    not_usable: str | None = None
    """Why no request can succeed; None if some backend is usable."""
