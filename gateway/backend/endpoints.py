"""The servers of a backend: where they are, how they are addressed, and what is known of their state.

Not here: connections to them (`connections`), and what is decided from their state (`policy`).
"""

import ipaddress
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from gateway.certificates import TlsContext
from gateway.policy.ejection import Ejection

REASON_CHARACTERS = 300
"""The longest reason of a change that is kept; parts of it may come from the endpoint."""

_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint of the configuration, taken apart; or one address of the name in it."""

    url: str = field(compare=False)
    """As it stands in metrics and errors: scheme, host and port, without the path."""
    host: str
    """A name or an address, without brackets."""
    port: int
    authority: str
    """What the `Host` header says."""
    base_path: str
    """Stands before every path; without a slash at its end."""
    tls: TlsContext | None
    addresses: tuple[str, ...] = ()
    """Where to connect: the first that answers is taken. Empty: the name must be looked up first (`resolving`)."""

    def __hash__(self) -> int:
        """Connections are looked up by their endpoint for every request, so not all fields are hashed."""
        return hash((self.host, self.port))

    @property
    def name(self) -> str:
        """What the server is called: the host of `authority`, also where `host` is one of the name's addresses."""
        return urlsplit(f"//{self.authority}").hostname or self.host

    @classmethod
    def parse(cls, url: str, tls: TlsContext | None) -> "Endpoint":
        """The endpoint at *url*, which the configuration has proved right; *tls* is used for https."""
        parts = urlsplit(url)
        assert parts.hostname is not None
        port = parts.port or _DEFAULT_PORTS[parts.scheme]
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        authority = host if port == _DEFAULT_PORTS[parts.scheme] else f"{host}:{port}"
        is_tls = parts.scheme == "https"
        return cls(
            f"{parts.scheme}://{authority}",
            parts.hostname,
            port,
            authority,
            parts.path.rstrip("/"),
            tls if is_tls else None,
            (parts.hostname,) if is_address(parts.hostname) else (),
        )

    @property
    def state_keys(self) -> tuple[tuple[bool, str, int, str, str], ...]:
        """What its state belongs to: scheme, host, port, base path and address, once for each address."""
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
    """When and why the state of an endpoint has changed."""

    reason: str = ""
    """In words, shortened; empty for the first state."""
    at_s: float = field(default_factory=time.time)
    """The time of day, in seconds since 1970."""


@dataclass(slots=True, eq=False)
class EndpointState:
    """What is known of one endpoint while the gateway runs. It outlives the plans that name it."""

    endpoint: Endpoint
    in_flight: int = 0
    """Attempts that have begun there and have not ended."""
    is_up: bool = True
    """False from when health probes have found it down until they find it up again."""
    ejection: Ejection = field(default_factory=Ejection)
    """What its failures have led to."""
    health_change: Change = field(default_factory=Change)
    """When probes last found it down or up."""
    ejection_change: Change = field(default_factory=Change)
    """When an ejection last began or ended."""

    def note_health(self, reason: str) -> None:
        """`is_up` has changed now."""
        self.health_change = Change(reason[:REASON_CHARACTERS])

    def note_ejection(self, reason: str) -> None:
        """An ejection has begun or ended now."""
        self.ejection_change = Change(reason[:REASON_CHARACTERS])

    @property
    def last_change(self) -> Change:
        """When and why it came into its present state: down, else ejected, else up."""
        if not self.is_up:
            return self.health_change
        if self.is_ejected:
            return self.ejection_change
        return max(self.health_change, self.ejection_change, key=lambda change: change.at_s)

    @property
    def url(self) -> str:
        """The endpoint as it stands in metrics and errors."""
        return self.endpoint.url

    @property
    def is_ejected(self) -> bool:
        """Whether it gets no requests for a while, because requests to it have failed; see `ejection`."""
        return self.ejection.is_ejected


class EndpointSet:
    """The endpoints of one backend at this moment; those that stay keep their state."""

    def __init__(self) -> None:
        self.states: tuple[EndpointState, ...] = ()
        self.on_replaced: Callable[[Iterable[Endpoint]], None] = _ignore
        """Called with the endpoints that there are from now on."""

    def replace(self, endpoints: Iterable[Endpoint]) -> None:
        """Set the *endpoints*, in this order; one that is written in two ways is one endpoint.

        State belongs to the address: it stays where a name that had one address has several now, and the other way,
        and where only the certificates are others.
        """
        known = {key: state for state in self.states for key in state.endpoint.state_keys}
        states = []
        for endpoint in dict.fromkeys(endpoints):
            state = next((known[key] for key in endpoint.state_keys if key in known), None)
            if state is None or state in states:
                state = EndpointState(endpoint)
            state.endpoint = endpoint
            states.append(state)
        self.states = tuple(states)
        self.on_replaced([state.endpoint for state in states])


def _ignore(endpoints: Iterable[Endpoint]) -> None:
    pass
