"""The kinds of values that YAML does not have: durations, sizes, addresses, URLs, paths; read from text, and written.

Each is a `str`, `float` or `int` with a meaning of its own, and `str()` of it is text that reads back to the same.
"""

import difflib
import ipaddress
import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

SIZE_UNITS = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}

SHOWN_CHARACTERS = 100
"""The most of one value that a message repeats."""

FORMATS: Mapping[str, tuple[str, ...]] = {
    "tensorflow": ("columnar", "row"),
    "mlflow": ("inputs", "instances", "dataframe_split"),
    "template": (),
    "python": (),
}
"""The forms that requests of a dialect may have, its default first."""

Datatype = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BF16",
    "BYTES",
]  # fmt: skip

HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

_DURATION_UNITS = {"ms": Decimal("0.001"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600)}
_UNIX = "unix:"
_HOST_AND_PORT = re.compile(r"localhost|([\w.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):[0-9]{1,5}", re.ASCII)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_OF_THE_PROTOCOL = re.compile(r"/v2(/?$|/(health|models|repository)(/|$).*)")
"""The end of a URL's path that belongs to the protocol, not to where the server is."""
_ANY = {"0.0.0.0", "::"}  # noqa: S104  compared with, not listened on
_LOOPBACK = {"127.0.0.1", "::1"}


def shortened(text: str) -> str:
    """*text* as a message may repeat it: cut, printable, and without the credentials and the query of a URL."""
    cut = _cut(text)
    return cut if cut.isprintable() else cut.encode("unicode_escape").decode("ascii")


def first_of(texts: Sequence[str], most: int) -> str:
    """The first *most* of *texts*, as one line lists them, and how many more there are."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return f"{', '.join(texts[:most])}{more}"


def shown(value: object) -> str:
    """*value* as a message may repeat it: `shortened`, on one line, and never what is inside of a list or mapping."""
    if isinstance(value, str):
        return repr(_cut(value))
    if isinstance(value, (int, float)):
        return _cut(str(value).lower())  # as YAML writes true and false
    names = {type(None): "nothing", list: "a list", dict: "keys and values"}
    return names.get(type(value), f"a {type(value).__name__}")


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
        return f"{value.normalize():f}{unit}"


class Size(int):
    """Bytes, written as text with a unit: `512B`, `64KiB`, `256MiB`, `1GiB`."""

    def __str__(self) -> str:
        for unit, factor in reversed(SIZE_UNITS.items()):
            if self >= factor and self % factor == 0:
                return f"{self // factor}{unit}"
        return f"{int(self)}B"


class Workers(int):
    """How many processes; `auto` is read as one for each core that this process may use."""


class Dimension(str):
    """One dimension of a shape: a size, -1 for any, or a name, which is the same number wherever it stands."""

    @property
    def value(self) -> int | str:
        """The size as a number, -1 for any; a name as it is."""
        return int(self) if self.lstrip("-").isdigit() else str(self)


class FilePath(str):
    """The path of a file; absolute once it was read."""


class ProxyNetwork(str):
    """The address of a proxy in front of the gateway, a network, or `unix`: all clients of a `unix:` listener."""


class Sticky(str):
    """What keeps requests on one endpoint: `none`, `sequence_id` or `header:NAME`."""


class Endpoint(str):
    """The base URL of one server of a backend: scheme, host, maybe a port and a path."""


class Address(str):
    """`host:port` of a listener, port 0 is any free port, IPv6 hosts stand in brackets; or `unix:` and a path."""

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
        return self.is_unix or all(map(_is_loopback, _addresses(self.host)))

    def takes(self, other: "Address") -> bool:
        """Whether *other* cannot be listened on besides this one, as far as that can be told without a name server."""
        own, others = _addresses(self.host), _addresses(other.host)
        return 0 < self.port == other.port and bool(own & (others | _ANY) or others & _ANY)

    def is_reached_by(self, endpoint: Endpoint) -> bool:
        """Whether *endpoint* names this listener, as far as that can be told without asking a name server."""
        url = urlsplit(endpoint)
        named, own = _addresses(url.hostname), _addresses(self.host)
        if own & _ANY:
            own |= _ANY | _LOOPBACK | {socket.gethostname().lower(), *filter(_is_loopback, named)}
        elif own & _LOOPBACK:
            own |= _ANY  # connecting to 0.0.0.0 or :: reaches what listens on the loopback interface
        return 0 < self.port == (url.port or {"http": 80, "https": 443}[url.scheme]) and bool(named & own)


def _addresses(host: str | None) -> set[str]:
    """The addresses that *host* stands for if it is `localhost`, else *host* alone, in lower case."""
    name = (host or "").lower()
    return set(_LOOPBACK) if name == "localhost" else {name}


def _is_loopback(address: str) -> bool:
    return address == "::1" or re.fullmatch(r"127(\.[0-9]+){3}", address) is not None


def plain(value: Any) -> int | str:
    """*value*, which is of one of the kinds, as YAML has it."""
    if isinstance(value, Dimension):
        return value.value
    return int(value) if isinstance(value, Workers) else str(value)


def read(type_: type, value: Any, base: Path) -> Any:
    """The *value* that YAML gave as *type_*, one of `KINDS`; paths are relative to the folder *base*.

    Raises `ValueError`: what was expected; never the value.
    """
    kind = KINDS[type_]
    text = str(value) if type_ in (Workers, Dimension) and type(value) is int else value
    match = re.fullmatch(kind.pattern, text, re.ASCII) if isinstance(text, str) else None
    read_value = kind.read(match, base) if match is not None else None
    if read_value is None:
        raise ValueError(f"expected {kind.expected}")
    return read_value


def _address(match: re.Match[str], base: Path) -> Address | None:
    if match[2] is not None:
        return Address(match[0]) if int(match[2]) <= 65535 else None
    return Address(f"{_UNIX}{base / match[1]}")


def _endpoint(match: re.Match[str], base: Path) -> Endpoint | None:
    if "$" in match[0].partition("//")[2].partition("/")[0]:
        raise ValueError("expected `${NAME}`, with braces, for a value from the environment")
    try:
        url = urlsplit(match[0])
        is_port_valid = url.port is None or url.port > 0
    except ValueError:
        return None
    if not url.hostname or not is_port_valid:
        return None
    if url.scheme.startswith("grpc"):
        raise ValueError(
            "expected the URL of the server's HTTP port, not of its gRPC port: http://, and of Triton 8000 instead of "
            "8001, of MLServer 8080 instead of 8081"
        )
    if url.username is not None or url.query or url.fragment:
        raise ValueError("expected a URL without user, query and fragment (credentials go to `headers.set`)")
    if _OF_THE_PROTOCOL.search(url.path):
        raise ValueError("leave out /v2, with which the path of every request begins anyway")
    return Endpoint(match[0].rstrip("/"))


def _proxy_network(match: re.Match[str], base: Path) -> ProxyNetwork | None:
    with suppress(ValueError):
        return ProxyNetwork(match[0] if match[0] == "unix" else ipaddress.ip_network(match[0]))
    return None


def usable_cores(cgroups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """The meaning of `workers: auto`: the cores that this process gets, and its control groups pay for; at least 1.

    Half a core of a quota is rounded down: a worker that nobody pays for is stopped in the middle of requests. Control
    groups are those of version 2; each around the process's own may set a quota, or say nothing, or `max`.
    """
    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, UnicodeDecodeError):
        group = Path(own.read_text().partition("0::/")[2].partition("\n")[0])
        for folder in (group, *group.parents):
            with suppress(OSError, ValueError, ZeroDivisionError):
                quota, period = (cgroups / folder / "cpu.max").read_text().split()
                n_cores = min(n_cores, int(quota) // int(period))
    return max(1, n_cores)


class Kind(NamedTuple):
    """How values of a kind are written."""

    expected: str
    """In words."""
    pattern: str
    """What the whole text matches."""
    read: Callable[[re.Match[str], Path], Any]
    """None: the text is not of the kind. What is nearly right is a `ValueError` with words of its own."""


# fmt: off
KINDS: dict[type, Kind] = {
    Duration: Kind("a duration with a unit, such as 250ms, 2s or 5m",
                   r"([0-9]{1,15}(?:\.[0-9]+)?)(ms|s|m|h)",
                   # exact in decimal, and rounded once: what `Duration.__str__` writes is read back unchanged
                   lambda match, base: Duration(Decimal(match[1]) * _DURATION_UNITS[match[2]])),
    Size: Kind("a size with a unit, such as 64KiB, 256MiB or 1GiB", "([0-9]{1,15})(B|KiB|MiB|GiB)",
               lambda match, base: Size(int(match[1]) * SIZE_UNITS[match[2]])),
    Workers: Kind("a whole number or auto", "auto|-?[0-9]{1,9}",
                  lambda match, base: Workers(usable_cores() if match[0] == "auto" else match[0])),
    Address: Kind("host:port, such as 127.0.0.1:8080",
                  r"unix:([^\0]+)|(?:\[[0-9A-Fa-f:.]+(?:%[\w.-]+)?\]|[\w.:-]+):([0-9]{1,5})", _address),
    Endpoint: Kind("a URL of scheme, host and port, such as http://127.0.0.1:8000",
                   r"(?:http|grpc)s?://[\w.~:/\[\]@!$&'()*+,;=%?#-]+", _endpoint),
    Dimension: Kind("a size of at least 0, -1 for any, or a name such as n", r"-1|[0-9]{1,19}|[A-Za-z_]\w{0,63}",
                    lambda match, base: Dimension(match[0])),
    FilePath: Kind("the path of a file", ".+",
                   lambda match, base: FilePath(base / match[0]) if match[0].isprintable() else None),
    ProxyNetwork: Kind("an address, a network such as 10.0.0.0/8 (with zeros behind its length), or unix",
                       "unix|[0-9A-Fa-f:.]+(/[0-9]{1,3})?", _proxy_network),
    Sticky: Kind("none, sequence_id or header:NAME, such as header:X-Session",
                 f"none|sequence_id|header:{HEADER_NAME.pattern}", lambda match, base: Sticky(match[0])),
}

_MEANT = (("mil", "ms"), ("ms", "ms"), ("s", "s"), ("m", "m"), ("h", "h"),
          ("b", "B"), ("k", "KiB"), ("m", "MiB"), ("g", "GiB"))
"""How words begin, in lower case, that probably mean a unit; the first that makes a valid value counts."""
# fmt: on


def meant(value: Any, type_: Any, choices: list[str], key: str) -> str | None:
    """What was probably meant by *value* of *key*, no valid *type_*, maybe one of *choices*; None for no good guess."""
    text = str(value)
    if type_ is Endpoint:
        return f"http://{text}" if _HOST_AND_PORT.fullmatch(text) else None
    if type_ is Address and (port := re.fullmatch(":?([0-9]{1,5})", text)) and int(port[1]) <= 65535:
        return f"{'127.0.0.1' if key == 'admin' else '0.0.0.0'}:{port[1]}"  # noqa: S104  clients come from anywhere
    if type_ in (Size, Duration) and (match := re.fullmatch("([0-9.]+) *([a-z]+)", text.lower())):
        guesses = (f"{match[1]}{unit}" for word, unit in _MEANT if match[2].startswith(word))
        return next((guess for guess in guesses if re.fullmatch(KINDS[type_].pattern, guess)), None)
    return nearest(value, choices) if isinstance(value, str) else None
