"""The servers of a backend: where they are, how they are addressed, and what is known of their state.

Not here: connections to them (`connections`), and what is decided from their state (`policy`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from gateway.certificates import TlsContext

_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint of the configuration, taken apart."""

    url: str
    """As it stands in metrics and errors: scheme, host and port, without the path."""
    host: str
    """A name or an address, without brackets."""
    port: int
    authority: str
    """What the `Host` header says."""
    base_path: str
    """Stands before every path; without a slash at its end."""
    tls: TlsContext | None

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
        )


@dataclass(slots=True, eq=False)
class EndpointState:
    """What is known of one endpoint while the gateway runs. It outlives the plans that name it."""

    endpoint: Endpoint
    in_flight: int = 0
    """Attempts that have been sent there and have not ended."""
    is_up: bool = True
    """False from when health probes have found it down until they find it up again."""
    is_ejected: bool = False
    """Whether it gets no requests for a while, because requests to it have failed."""

    @property
    def url(self) -> str:
        """The endpoint as it stands in metrics and errors."""
        return self.endpoint.url


class EndpointSet:
    """The endpoints of one backend at this moment; those that stay keep their state."""

    def __init__(self) -> None:
        self.states: tuple[EndpointState, ...] = ()

    def replace(self, endpoints: Iterable[Endpoint]) -> None:
        """From now on there are these *endpoints*, in this order."""
        known = {state.endpoint: state for state in self.states}
        self.states = tuple(known.get(endpoint) or EndpointState(endpoint) for endpoint in endpoints)
