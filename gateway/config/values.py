"""The kinds of values that YAML does not have: durations, sizes, addresses, URLs, paths; read from text, and written.

Each is a `str`, `float` or `int` with a meaning of its own, and `str()` of it is text that reads back to the same.
Not here: which keys have them (`schema`).
"""

import difflib
import ipaddress
import math
import re
import socket
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gateway.config.cores import usable_cores

SIZE_UNITS = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}

SHOWN_CHARACTERS = 100
"""The most of one value that a message repeats."""

MAX_SOCKET_PATH_BYTES = 107
"""The longest path of a unix: listener, `sun_path` of unix(7) without the NUL at its end."""

HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
_DURATION_UNITS = {"ms": Decimal("0.001"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600)}
_SIZE = re.compile(r"([0-9]{1,15})(B|KiB|MiB|GiB)")
_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+(?:%[\w.-]+)?\]|[\w.:-]+):([0-9]{1,5})", re.ASCII)
_UNIX = "unix:"
_URL = re.compile(r"[\w.~:/\[\]@!$&'()*+,;=%?#-]+", re.ASCII)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_OF_THE_PROTOCOL = re.compile(r"/v2(/?$|/(health|models|repository)(/|$).*)")
"""The end of a URL's path that belongs to the protocol, not to where the server is."""
_ANY = {"0.0.0.0", "::"}  # noqa: S104  compared with, not listened on
_LOOPBACK = {"127.0.0.1", "::1"}


def shortened(text: str) -> str:
    """*text* as a message may repeat it: cut, printable, and without the credentials and the query of a URL."""
    cut = _cut(text)
    return cut if cut.isprintable() else cut.encode("unicode_escape").decode("ascii")


def shown(value: object) -> str:
    """*value* as a message may repeat it: `shortened`, on one line, and never what is inside of a list or mapping."""
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case str():
            return repr(_cut(value))
        case int() | float():
            return _cut(str(value))
        case list():
            return "a list"
        case dict():
            return "keys and values"
        case _:
            return f"a {type(value).__name__}"


def _cut(text: str) -> str:
    head, at, tail = text.rpartition("@")
    if at and ":" in head:
        scheme = _SCHEME.match(head)
        text = f"{scheme[0] if scheme else ''}***@{tail}"
    if "//" in text and "?" in text:
        text = f"{text.partition('?')[0]}?***"
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def nearest(text: str, names: list[str]) -> str | None:
    """The one of *names* that *text* was probably meant to be, in any case of letters."""
    by_lower = {name.lower(): name for name in reversed(names)}
    near = difflib.get_close_matches(_cut(text).lower(), by_lower, n=1)
    return by_lower[near[0]] if near else None


class Duration(float):
    """Seconds, written as text with a unit: `250ms`, `2s`, `5m`, `1h`."""

    def __str__(self) -> str:
        """Decimal digits that read back to exactly this number, never an exponent."""
        seconds = Decimal(repr(float(self)))
        value, unit = (seconds * 1000, "ms") if 0 < seconds < 1 else (seconds, "s")
        digits = format(value, "f")
        return f"{digits.rstrip('0').rstrip('.') if '.' in digits else digits}{unit}"


class Size(int):
    """Bytes, written as text with a unit: `512B`, `64KiB`, `256MiB`, `1GiB`."""

    def __str__(self) -> str:
        for unit, factor in reversed(SIZE_UNITS.items()):
            if self >= factor and self % factor == 0:
                return f"{self // factor}{unit}"
        return f"{int(self)}B"


class Workers(int):
    """How many processes; `auto` is read as one for each core that this process may use."""


class FilePath(str):
    """The path of a file; absolute once it was read."""

    __slots__ = ()


class ProxyNetwork(str):
    """The address of a proxy in front of the gateway, a network, or `unix`: all clients of a `unix:` listener."""

    __slots__ = ()

    @property
    def is_everybody(self) -> bool:
        """Whether it holds all addresses of IPv4 or of IPv6."""
        return self.endswith("/0")


class Sticky(str):
    """What keeps requests on one endpoint: `none`, `sequence_id` or `header:NAME`."""

    __slots__ = ()

    @property
    def header(self) -> str | None:
        """The name of the header whose value decides, None if none does."""
        kind, _, name = self.partition(":")
        return name if kind == "header" else None


class Endpoint(str):
    """The base URL of one server of a backend: scheme, host, maybe a port and a path."""

    __slots__ = ()

    @property
    def is_literal(self) -> bool:
        """Whether it holds an IP address, and so can never stand for several endpoints."""
        return all(":" in each or each.replace(".", "").isdigit() for each in _addresses(urlsplit(self).hostname))


class Address(str):
    """`host:port` of a listener, port 0 is any free port, IPv6 hosts stand in brackets; or `unix:` and a path."""

    __slots__ = ()

    @property
    def is_unix(self) -> bool:
        """Whether it is the path of a socket in the file system."""
        return self.startswith(_UNIX)

    @property
    def path(self) -> str:
        """The path of a `unix:` address; else empty."""
        return self[len(_UNIX) :] if self.is_unix else ""

    @property
    def host(self) -> str:
        """The host, without brackets; empty for `unix:`."""
        return "" if self.is_unix else self.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The port; 0 for `unix:`."""
        return 0 if self.is_unix else int(self.rpartition(":")[2])

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it, as far as that can be told without asking a name server."""
        return self.is_unix or all(address in _LOOPBACK or _is_loopback(address) for address in _addresses(self.host))

    def takes(self, other: "Address") -> bool:
        """Whether *other* cannot be listened on besides this one, as far as that can be told without a name server."""
        if not self.port or self.port != other.port:
            return False
        own, others = _addresses(self.host), _addresses(other.host)
        return bool(own & (others | _ANY) or others & _ANY)

    def is_reached_by(self, endpoint: Endpoint) -> bool:
        """Whether *endpoint* names this listener, as far as that can be told without asking a name server."""
        url = urlsplit(endpoint)
        if not self.port or self.port != (url.port or {"http": 80, "https": 443}[url.scheme]):
            return False
        named, own = _addresses(url.hostname), _addresses(self.host)
        if own & _ANY:
            return bool(named & (_ANY | _LOOPBACK | {socket.gethostname().lower()})) or any(map(_is_loopback, named))
        # connecting to 0.0.0.0 or :: reaches what listens on the loopback interface
        return bool(named & own) or bool(named & _ANY and own & _LOOPBACK)


def _addresses(host: str | None) -> set[str]:
    """The addresses that *host* stands for, or its name in lower case if it is some other name."""
    name = (host or "").lower().removesuffix(".")
    if name == "localhost" or name.endswith(".localhost"):
        return set(_LOOPBACK)
    try:
        # inet_aton reads all that a resolver takes for an IPv4 address: 127.1, 0x7f.0.0.1, 2130706433
        return {str(ipaddress.IPv4Address(socket.inet_aton(name)))}
    except OSError:
        pass
    try:
        address = ipaddress.IPv6Address(name)
    except ValueError:
        return {name}
    return {str(address.ipv4_mapped or address)}


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") and address.count(".") == 3


def _duration(value: Any, base: Path) -> Duration:
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    # exact in decimal, and rounded once: what `Duration.__str__` writes is read back unchanged
    seconds = float(Decimal(match[1]) * _DURATION_UNITS[match[2]]) if match is not None else math.inf
    if not math.isfinite(seconds):
        raise ValueError("expected a duration with a unit, such as 250ms, 2s or 5m")
    return Duration(seconds)


def _size(value: Any, base: Path) -> Size:
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("expected a size with a unit, such as 64KiB, 256MiB or 1GiB")
    return Size(int(match[1]) * SIZE_UNITS[match[2]])


def _workers(value: Any, base: Path) -> Workers:
    if value == "auto":
        return Workers(usable_cores())
    if isinstance(value, str) and re.fullmatch("[0-9]{1,9}", value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 10**9:
        raise ValueError("expected a whole number or auto")
    return Workers(value)


def _address(value: Any, base: Path) -> Address:
    if isinstance(value, str) and value.startswith(_UNIX):
        path = value.removeprefix(_UNIX)
        if not path or "\0" in path:
            raise ValueError("expected the path of a socket, such as unix:/run/tensor-gateway.sock")
        path = str(base / path)
        if len(path.encode("utf-8", "surrogatepass")) > MAX_SOCKET_PATH_BYTES:
            raise ValueError(f"expected a path of at most {MAX_SOCKET_PATH_BYTES} bytes")
        return Address(f"{_UNIX}{path}")
    match = _ADDRESS.fullmatch(value) if isinstance(value, str) else None
    if match is None or int(match[1]) > 65535:
        raise ValueError("expected host:port, such as 127.0.0.1:8080")
    return Address(value)


def _endpoint(value: Any, base: Path) -> Endpoint:
    expected = "expected a URL of scheme, host and port, such as http://127.0.0.1:8000"
    try:
        url = urlsplit(value if isinstance(value, str) else "")
        is_port_valid = url.port is None or url.port > 0
    except ValueError:
        raise ValueError(expected) from None
    if url.scheme in ("grpc", "grpcs"):
        raise ValueError(
            "expected the URL of the server's HTTP port, not of its gRPC port: http://, and of Triton 8000 instead of "
            "8001, of MLServer 8080 instead of 8081"
        )
    if url.scheme not in ("http", "https") or not url.hostname or not is_port_valid or not _URL.fullmatch(value):
        raise ValueError(expected)
    if url.username is not None or url.query or url.fragment:
        raise ValueError("expected a URL without user, query and fragment (credentials go to `headers.set`)")
    if _OF_THE_PROTOCOL.search(url.path):
        raise ValueError("leave out /v2, with which the path of every request begins anyway")
    return Endpoint(value.rstrip("/"))


def meant_endpoint(value: Any) -> str | None:
    """The endpoint that was probably meant by *value*, which is not valid; None if there is no good guess."""
    if not isinstance(value, str) or len(value) > SHOWN_CHARACTERS or "@" in value or "?" in value:
        return None
    meant = _OF_THE_PROTOCOL.split(value)[0] if "://" in value else f"http://{value}"
    try:
        _endpoint(meant, Path())
    except ValueError:
        return None
    # a word alone is more probably something else than a host's name
    return meant if meant != value and ("://" in value or ":" in value or value == "localhost") else None


def _file_path(value: Any, base: Path) -> FilePath:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ValueError("expected the path of a file")
    return FilePath(base / value)


def _proxy_network(value: Any, base: Path) -> ProxyNetwork:
    if value == "unix":
        return ProxyNetwork(value)
    try:
        return ProxyNetwork(ipaddress.ip_network(value if isinstance(value, str) else ""))
    except ValueError:
        expected = "expected an address, a network such as 10.0.0.0/8 (with zeros behind its length), or unix"
        raise ValueError(expected) from None


def _sticky(value: Any, base: Path) -> Sticky:
    kind, _, name = value.partition(":") if isinstance(value, str) else ("", "", "")
    if value not in ("none", "sequence_id") and not (kind == "header" and HEADER_NAME.fullmatch(name)):
        raise ValueError("expected none, sequence_id or header:NAME, such as header:X-Session")
    return Sticky(value)


READERS: dict[type, Callable[[Any, Path], Any]] = {
    Duration: _duration,
    Size: _size,
    Workers: _workers,
    Address: _address,
    Endpoint: _endpoint,
    FilePath: _file_path,
    ProxyNetwork: _proxy_network,
    Sticky: _sticky,
}
"""How each kind is read from what YAML gave, with the folder that paths are relative to.

Raises `ValueError`: what was expected; never the value.
"""

CHOICES = {Sticky: ["none", "sequence_id", "header:"], Workers: ["auto"]}
"""Words that stand for themselves in values of some kinds: one that is misspelt was probably meant to be one of these.
"""

SYNONYMS = {
    "float": "FP32",
    "float32": "FP32",
    "double": "FP64",
    "float64": "FP64",
    "half": "FP16",
    "float16": "FP16",
    "bfloat16": "BF16",
    "string": "BYTES",
    "str": "BYTES",
    "object": "BYTES",
    "tf": "tensorflow",
    "tf-serving": "tensorflow",
    "v1": "tensorflow",
    "oip": "v2",
    "kserve": "v2",
    "triton": "v2",
    "mlserver": "v2",
}
"""Other names for values of some keys, in lower case: those of numpy and TensorFlow, and of servers."""
