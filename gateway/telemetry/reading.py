"""What one process that serves clients says of itself at one moment, for the metrics and the status page.

Not here: what it has counted (`counting`), and what is made of the readings of several processes (`metrics`, and
`process.status`).
"""

import time

import msgspec

STARTED_S = time.time()
"""When this process was started, in seconds since 1970: when this was imported."""


class Level(msgspec.Struct, frozen=True):
    """How much of a limit is in use at this moment."""

    used: int
    limit: int


class Certificate(msgspec.Struct, frozen=True):
    """A certificate of the gateway's own that is in use."""

    where: str
    """The path of its settings in the configuration: `tls`, or that of a backend."""
    expires_s: float
    """In seconds since 1970."""


class EndpointReading(msgspec.Struct, frozen=True, array_like=True):
    """What is known of one endpoint at this moment, by one process."""

    backend: str
    endpoint: str
    is_up: bool
    is_ejected: bool
    """Whether requests avoid it because some have failed."""
    busy: int
    """Connections that are open, with a request on them."""
    idle: int
    """Connections that are open and kept for the next."""
    reason: str = ""
    """Why it is in this state, in words; empty if its state has never changed."""
    since_s: float = 0.0
    """Since when, in seconds since 1970."""
    speaks: str = ""
    """What its backend speaks, in words; empty if the servers were not asked yet."""
    is_on_trial: bool = False
    """Whether its ejection has lasted long enough, and a request has yet to show that it works."""


class Reading(msgspec.Struct, frozen=True):
    """One process at one moment."""

    pid: int
    started_s: float
    """In seconds since 1970."""
    in_flight: int
    """Requests that are being served."""
    requests: Level
    """Of these, those that have a slot of `limits.concurrent_requests`."""
    body_bytes: Level
    """Of request bodies and decoded answers."""
    connections: Level
    """Of clients."""
    endpoints: list[EndpointReading]
    certificates: list[Certificate]
    not_usable: str | None = None
    """Why no request can succeed; None if some backend is usable."""
