"""The servers of a backend: their addresses, and their state.

Not here: opening and lending connections (`connections`), and decisions by the state (`policy`).
"""

import ipaddress
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gateway.certificates import TlsContext
from gateway.policy.ejection import Ejection

if TYPE_CHECKING:
    from gateway.backend.wire import Wire

REASON_CHARACTERS = 300
"""The longest reason of a change that is kept; parts of it may come from the endpoint."""

_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint of the configuration, taken apart; or one of several addresses of its host name.

    Two endpoints are equal if a connection to one may serve a request to the other.
    """

    url: str = field(compare=False)
    """The endpoint's name in metrics and errors: scheme, host and port, without the path."""
    host: str
    """A name or an address, without brackets."""
    port: int
    authority: str
    """The value of the `Host` header."""
    base_path: str
    """The part of the URL that goes before every path; without a slash at its end."""
    tls: TlsContext | None
    addresses: tuple[str, ...] = ()
    """Addresses to connect to: the first that answers is used. Empty: the name must be looked up (`resolving`)."""

    @property
    def name(self) -> str:
        """The server's name: the host in `authority`, also if `host` is one of the name's addresses."""
        return urlsplit(f"//{self.authority}").hostname or self.host

    @classmethod
    def parse(cls, url: str, tls: TlsContext | None) -> "Endpoint":
        """The endpoint at *url*, which the configuration has validated; *tls* is used for https."""
        parts = urlsplit(url)
        assert parts.hostname is not None
        port = parts.port or _DEFAULT_PORTS[parts.scheme]
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        authority = host if port == _DEFAULT_PORTS[parts.scheme] else f"{host}:{port}"
        url, base_path = f"{parts.scheme}://{authority}", parts.path.rstrip("/")
        used_tls = tls if parts.scheme == "https" else None
        addresses = (parts.hostname,) if is_address(parts.hostname) else ()
        return cls(url, parts.hostname, port, authority, base_path, used_tls, addresses)

    @property
    def state_keys(self) -> tuple[tuple[bool, str, int, str, str], ...]:
        """The keys of the endpoint's state, one for each address: TLS, host, port, base path and address."""
        key = self.tls is not None, self.host, self.port, self.base_path
        return tuple((*key, address) for address in self.addresses or ("",))


def is_address(host: str) -> bool:
    """Whether *host*, without brackets, is an address and not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Change:
    """A change of an endpoint's state: when and why."""

    reason: str = ""
    """The reason in words, shortened; empty for the first state."""
    at_s: float = field(default_factory=time.time)
    """The time of day, in seconds since 1970."""


@dataclass(slots=True, eq=False)
class EndpointState:
    """The state of one endpoint while the gateway runs. It outlives the plans that name the endpoint."""

    endpoint: Endpoint
    in_flight: int = 0
    """Attempts that have begun there and have not ended."""
    is_up: bool = True
    """False from when health probes have found it down until they find it up again."""
    ejection: Ejection = field(default_factory=Ejection)
    """Whether the endpoint's failures have ejected it."""
    health_change: Change = field(default_factory=Change)
    """When probes last found it down or up."""
    ejection_change: Change = field(default_factory=Change)
    """When an ejection last began or ended."""
    busy: int = 0
    """How many connections carry a request."""
    idle: deque["Wire"] = field(default_factory=deque)
    """The kept connections; the one used last is on the right."""
    is_kept: bool = True
    """Whether the backend still has the endpoint; if not, its connections are closed when they become idle."""

    def note_health(self, reason: str) -> None:
        """Note when and why `is_up` has changed."""
        self.health_change = Change(reason[:REASON_CHARACTERS])

    def note_ejection(self, reason: str) -> None:
        """Note when and why an ejection has begun or ended."""
        self.ejection_change = Change(reason[:REASON_CHARACTERS])

    @property
    def last_change(self) -> Change:
        """The change that led to the present state: down, else ejected, else up."""
        if not self.is_up:
            return self.health_change
        if self.is_ejected:
            return self.ejection_change
        return max(self.health_change, self.ejection_change, key=lambda change: change.at_s)

    @property
    def url(self) -> str:
        """The endpoint's name in metrics and errors."""
        return self.endpoint.url

    @property
    def is_ejected(self) -> bool:
        """Whether the endpoint gets no requests for a while because requests to it have failed."""
        return self.ejection.is_ejected

    def close_idle(self) -> None:
        """Close the kept connections."""
        while self.idle:
            self.idle.popleft().abort()


class EndpointSet:
    """The current endpoints of one backend; when they are replaced, endpoints that stay keep their state."""

    def __init__(self) -> None:
        self.states: tuple[EndpointState, ...] = ()

    def replace(self, endpoints: Iterable[Endpoint]) -> None:
        """Set the *endpoints*, in this order; an endpoint that is written in two ways counts once.

        State belongs to an address. So it is kept if a name that had one address has several now, or the other way
        round, and if only the certificates have changed. Kept connections stay only if nothing but the label changes.
        """
        known = {key: state for state in self.states for key in state.endpoint.state_keys}
        states = []
        for endpoint in dict.fromkeys(endpoints):
            state = next((known[key] for key in endpoint.state_keys if key in known), None)
            if state is None or state in states:
                state = EndpointState(endpoint)
            if state.endpoint != endpoint:
                state.close_idle()
            state.endpoint = endpoint
            states.append(state)
        for state in self.states:
            if state not in states:
                state.is_kept = False
                state.close_idle()
        self.states = tuple(states)
