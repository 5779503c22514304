"""The servers of a backend: their addresses, and their state."""

import asyncio
import ipaddress
import math
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gateway.certificates import TlsContext
from gateway.errors import GatewayError
from gateway.policy.ejection import Ejection
from gateway.policy.health import Condition

if TYPE_CHECKING:
    from gateway.backend.wire import Wire

REASON_CHARACTERS = 300
"""The longest reason of a change that is kept; parts of it may come from the endpoint."""

DOUBT_S = 0.1
"""The shortest time between questions because of failed requests, so that one client cannot cause a flood of them."""

TRUSTED_S = 30.0
"""After a doubted endpoint has given the same answer again, new doubts within this time do not make requests wait.

The failed requests were probably wrong themselves. The endpoint is still asked, but beside the requests.
"""

NEVER_S = -math.inf
"""A time before all others."""

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


@dataclass(frozen=True)
class Said:
    """The kind of a server, by its answers."""

    dialect: str
    """A name of `dialect` in the configuration; empty if the answers fit none."""
    is_binary: bool = False
    """Whether the server says that it has the binary extension."""
    title: str = field(default="", compare=False)
    """Name and version, made safe and short for a log line; empty if the server says neither."""
    answers: str = ""
    """If the answers fit no dialect: the questions and the answers, in words."""


@dataclass(slots=True, eq=False)
class Speech:
    """The answers of one endpoint about what it speaks; `speaking` asks."""

    said: Said = Said("")
    heard_s: float = NEVER_S
    """When the endpoint has answered; `NEVER_S` also if another server may run there since."""
    failure: GatewayError | None = None
    """Why the last questions got no usable answer; None if they did, or if there were none."""
    failed_s: float = NEVER_S
    asking: "asyncio.Task[None] | None" = None
    is_doubted: bool = False
    """Whether a request to the endpoint has failed since its last answer."""
    _doubted_s: float = NEVER_S
    _trusted_s: float = NEVER_S

    def hear(self, said: Said, now_s: float) -> None:
        """Take the endpoint's answer."""
        if self.is_doubted:
            self._trusted_s = now_s if said == self.said else NEVER_S
        self.said, self.heard_s, self.failure, self.is_doubted = said, now_s, None, False

    def doubt(self, now_s: float) -> None:
        """Doubt the answer, because a request to the endpoint has failed; at most once in `DOUBT_S`."""
        if now_s - self._doubted_s >= DOUBT_S:
            self._doubted_s = now_s
            self.is_doubted = True
            if now_s - self._trusted_s >= TRUSTED_S:
                self.heard_s = NEVER_S

    def forget(self) -> None:
        """Let the endpoint be asked again before the next request: another server may run there now."""
        self.heard_s = self._trusted_s = NEVER_S


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
    condition: Condition = field(default_factory=Condition)
    """What all probes so far have found."""
    speech: Speech = field(default_factory=Speech)
    """What the endpoint says that it speaks."""
    reason: str = ""
    """Why it was last found down or up, ejected or brought back; empty if it never was."""
    changed_at_s: float = field(default_factory=time.time)
    """The time of that change, or else of the first state, in seconds since 1970."""
    busy: int = 0
    """How many connections carry a request."""
    idle: deque["Wire"] = field(default_factory=deque)
    """The kept connections; the one used last is on the right."""
    is_kept: bool = True
    """Whether the backend still has the endpoint; if not, its connections are closed when they become idle."""

    def note(self, reason: str) -> None:
        """Note that the endpoint was found down or up, ejected or brought back: another server may run there now."""
        self.reason, self.changed_at_s = reason[:REASON_CHARACTERS], time.time()
        self.speech.forget()

    @property
    def url(self) -> str:
        """The endpoint's name in metrics and errors."""
        return self.endpoint.url

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
