"""One server of a backend: where it is and how it is addressed. Not here: connections to it (`connections`)."""

import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

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
    tls: ssl.SSLContext | None

    @classmethod
    def parse(cls, url: str, tls: ssl.SSLContext) -> "Endpoint":
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
