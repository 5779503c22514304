"""The configuration's keys, types, defaults and sense checks: what one file may say.

Every default is in the type, and what a value must satisfy beyond its type is in the `problems` of the struct that
holds it. Not here: how a file is read (`loading`), and what the values are used for.
"""

import difflib
import ipaddress
import re
import socket
import typing
from collections.abc import Iterator
from decimal import Decimal
from urllib.parse import urlsplit

import msgspec

from gateway.codec import BytesPolicy, HalfPrecision, NonFinite, TensorPolicy

SIZE_UNITS = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}

UNADMITTED_CONNECTIONS = 16
"""Connections to a backend beside those for `limits.concurrent_requests`: for GET and HEAD, such as health checks,
which are served also when everything else is refused."""

NOT_YET = frozenset(
    {
        "trusted_proxies",
        "tracing",
        "logging.sample",
        "logging.server_timing",
        "backends.*.dialect",
        "backends.*.binary",
        "backends.*.leave_out",
        "backends.*.models",
    }
)
"""Keys that are planned and not built: they are refused as such. `*` is any name, `[]` any place in a list."""

SET_BY_GATEWAY = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "expect",
        "host",
        "inference-header-content-length",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "via",
        "x-request-id",
    }
)
"""Headers that `headers.set` may not name, in lower case: they frame the message, or the gateway relies on them."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

Problem = tuple[str, str]
"""What is wrong: the path of the key, relative to the struct that reports it, and the reason."""

SHOWN_CHARACTERS = 100
"""The most of one value that a message repeats."""


def shortened(text: str) -> str:
    """*text* as a message may repeat it: cut, and without the credentials and the query of a URL."""
    head, at, tail = text.rpartition("@")
    if at and ":" in head:
        scheme = _SCHEME.match(head)
        text = f"{scheme[0] if scheme else ''}***@{tail}"
    if "//" in text and "?" in text:
        text = f"{text.partition('?')[0]}?***"
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def shown(value: object) -> str:
    """*value* as a message may repeat it: `shortened`, on one line, and never what is inside of a list or mapping."""
    if isinstance(value, (dict, list)):
        return "a list" if isinstance(value, list) else "a mapping"
    return repr(shortened(value)) if isinstance(value, str) else shortened(str(value))


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


class Address(str):
    """`host:port` of a listener; port 0 is any free port. IPv6 hosts stand in brackets. Or `unix:` and a path."""

    __slots__ = ()

    @property
    def is_unix(self) -> bool:
        """Whether it is a socket in the file system, at `path`, without host and port."""
        return self.startswith("unix:")

    @property
    def path(self) -> str:
        """The path of a `unix:` address."""
        return self.removeprefix("unix:")

    @property
    def host(self) -> str:
        """The host, without brackets."""
        return self.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The port."""
        return int(self.rpartition(":")[2])

    def is_reached_by(self, endpoint: "Endpoint") -> bool:
        """Whether *endpoint* names this listener, as far as that can be told without asking a name server."""
        url = urlsplit(endpoint)
        if self.is_unix or not self.port or self.port != (url.port or {"http": 80, "https": 443}[url.scheme]):
            return False
        named, own = _addresses(url.hostname or ""), _addresses(self.host)
        if own & _ANY:
            return bool(named & (_ANY | _LOOPBACK | {socket.gethostname().lower()})) or any(map(_is_loopback, named))
        # connecting to 0.0.0.0 or :: reaches what listens on the loopback interface
        return bool(named & own) or bool(named & _ANY and own & _LOOPBACK)


class Endpoint(str):
    """The base URL of one server of a backend: scheme, host, maybe a port and a path."""

    __slots__ = ()


_ANY = {"0.0.0.0", "::"}  # noqa: S104  compared with, not listened on
_LOOPBACK = {"127.0.0.1", "::1"}


def _addresses(host: str) -> set[str]:
    """The addresses that *host* stands for, or its name in lower case if it is some other name."""
    name = host.lower().removesuffix(".")
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


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What all parts of the configuration have in common."""

    def problems(self) -> Iterator[Problem]:
        """What every key allows by its type and must not be; without that of the parts inside."""
        yield from ()

    def _at_least_1(self, *keys: str) -> Iterator[Problem]:
        for key in keys:
            if getattr(self, key) < 1:
                yield key, "expected at least 1"

    def _positive(self, *keys: str) -> Iterator[Problem]:
        for key in keys:
            value = getattr(self, key)
            if value <= 0:
                yield key, f"expected more than {type(value)(0)}"


class Limits(Part, frozen=True):
    """The most that is held, for the whole gateway; beyond it a request, an answer or a connection is refused."""

    request_body: Size = Size(256 * 1024**2)
    response_body: Size = Size(1024**3)
    in_flight_bytes: Size = Size(2 * 1024**3)
    concurrent_requests: int = 512
    connections: int = 4096
    tensors: int = 1024
    header: Size = Size(1024**2)
    client_keep_alive: Duration = Duration(75)
    header_timeout: Duration = Duration(10)
    body_timeout: Duration = Duration(60)
    client_idle: Duration = Duration(60)

    def problems(self) -> Iterator[Problem]:
        """Every limit lets something through."""
        yield from self._positive("request_body", "response_body", "header")
        yield from self._positive("client_keep_alive", "header_timeout", "body_timeout", "client_idle")
        yield from self._at_least_1("concurrent_requests", "connections", "tensors")


class ListenerTls(Part, frozen=True):
    """TLS for clients: PEM files, relative to the configuration's file."""

    certificate: str
    """The certificate, followed by those between it and the root."""
    key: str
    client_ca: str | None = None
    """Clients must show a certificate that one of these has signed; None: they need none."""


class Access(Part, frozen=True):
    """Who may use the clients' listener, and which paths nobody may use."""

    tokens_file: str | None = None
    """Lines `name: token`; None: no token is needed."""
    deny: list[str] = []


class Shutdown(Part, frozen=True):
    """What happens between SIGTERM and the exit."""

    delay: Duration = Duration(0)
    grace: Duration = Duration(30)


class Logging(Part, frozen=True):
    """What is written to standard output (access) and standard error (the rest)."""

    level: typing.Literal["debug", "info", "warning", "error"] = "info"
    access: typing.Literal["json", "text", "none"] = "json"


class Compression(Part, frozen=True):
    """Which replies are compressed for clients that ask for it."""

    responses: bool = False
    min_size: Size = Size(64 * 1024)


class Timeouts(Part, frozen=True):
    """How long one client request may wait for its backend."""

    connect: Duration = Duration(2)
    first_byte: Duration = Duration(60)
    idle: Duration = Duration(30)
    total: Duration = Duration(120)

    def problems(self) -> Iterator[Problem]:
        """Every timeout leaves some time."""
        yield from self._positive("connect", "first_byte", "idle", "total")


class Queue(Part, frozen=True):
    """How many requests may wait for a connection to a backend when all are in use, and how long."""

    length: int = 0
    timeout: Duration = Duration(5)

    def problems(self) -> Iterator[Problem]:
        """A length of 0 is no queue; whoever may wait has some time for it."""
        if self.length < 0:
            yield "length", "expected at least 0"
        yield from self._positive("timeout")


class Retry(Part, frozen=True):
    """When a failed attempt is followed by another."""

    attempts: int = 2
    """The first included."""
    budget: float = 0.2
    """The share of the last ten seconds' requests that may be retries; three a second are always allowed, unless 0."""
    resend_after_sent: bool = False
    """Whether a request that a backend may have read is sent again."""

    def problems(self) -> Iterator[Problem]:
        """The first attempt is always made."""
        yield from self._at_least_1("attempts")
        if not 0 <= self.budget <= 1:
            yield "budget", "expected a share from 0 to 1"


class Health(Part, frozen=True):
    """Probes that find out which endpoints are up."""

    path: str = "/v2/health/ready"
    interval: Duration = Duration(5)
    timeout: Duration = Duration(2)
    unhealthy_after: int = 3
    healthy_after: int = 2

    def problems(self) -> Iterator[Problem]:
        """A path, and time to answer."""
        if not self.path.startswith("/"):
            yield "path", "expected a path that starts with /"
        yield from self._positive("interval", "timeout")
        yield from self._at_least_1("unhealthy_after", "healthy_after")


class Eject(Part, frozen=True):
    """When an endpoint that fails gets no requests for a while."""

    failures: int = 5
    """So many within `window` eject the endpoint; 0: never."""
    window: Duration = Duration(30)
    for_: Duration = msgspec.field(default=Duration(30), name="for")
    panic_below: float = 0
    """The share of the endpoints that is never ejected."""

    def problems(self) -> Iterator[Problem]:
        """Shares are shares, and times are some time."""
        if self.failures < 0:
            yield "failures", "expected at least 0"
        if not 0 <= self.panic_below <= 1:
            yield "panic_below", "expected a share from 0 to 1"
        yield from self._positive("window")
        if self.for_ <= 0:
            yield "for", "expected more than 0s"


class BackendTls(Part, frozen=True):
    """TLS towards the endpoints whose URL begins with https: PEM files, relative to the configuration's file."""

    ca: str | None = None
    """Who may have signed the endpoints' certificates; None: those that the system trusts."""
    certificate: str | None = None
    key: str | None = None
    server_name: str | None = None
    """The name that the certificate must have; None: the one in the URL."""
    verify: bool = True


class Headers(Part, frozen=True):
    """Changes to the headers that a backend gets."""

    set: dict[str, str] = {}
    remove: list[str] = []

    def problems(self) -> Iterator[Problem]:
        """What is set is a header, once, and none of those that the gateway sets itself."""
        seen: dict[str, str] = {}
        for header, text in self.set.items():
            name = header.lower()
            if not _HEADER_NAME.fullmatch(header):
                yield f"set.{header}", "invalid header name"
            elif not text.isprintable() or not text.isascii():
                yield f"set.{header}", "invalid header value: expected printable ASCII characters"
            elif name in SET_BY_GATEWAY:
                yield f"set.{header}", "the gateway sets this header itself"
            elif name in seen:
                yield f"set.{header}", f"duplicate header, `{seen[name]}` is set too"
            seen[name] = header


class Backend(Part, frozen=True):
    """One JSON-only server, or several that give the same answers."""

    endpoints: list[Endpoint]
    framing: typing.Literal["chunked", "content-length"] = "chunked"
    nonfinite: NonFinite = NonFinite.REJECT
    bytes: BytesPolicy = BytesPolicy.UTF8
    half_precision: HalfPrecision = HalfPrecision.NATIVE
    timeouts: Timeouts = Timeouts()
    keep_alive: Duration = Duration(4)
    max_connections: int | None = None
    """None: for all of `limits.concurrent_requests`, see `Config.max_connections`."""
    queue: Queue = Queue()
    dns_refresh: Duration = Duration(30)
    balance: typing.Literal["round_robin", "least_in_flight"] = "least_in_flight"
    sticky: str = "none"
    """`none`, `sequence_id` or `header:NAME`."""
    retry: Retry = Retry()
    health: Health | None = None
    eject: Eject = Eject()
    headers: Headers = Headers()
    tls: BackendTls = BackendTls()

    @property
    def tensor_policy(self) -> TensorPolicy:
        """How its tensors are written as JSON."""
        return TensorPolicy(self.nonfinite, self.bytes, self.half_precision)

    def problems(self) -> Iterator[Problem]:
        """There is an endpoint, and each of them once."""
        if not self.endpoints:
            yield "endpoints", "expected at least one"
        if len(set(self.endpoints)) < len(self.endpoints):
            yield "endpoints", "duplicate endpoint"
        yield from self._positive("keep_alive")
        if self.max_connections is not None:
            yield from self._at_least_1("max_connections")


class Route(Part, frozen=True):
    """Which requests go to a backend; what is absent matches everything."""

    name: str
    backend: str | None = None
    split: dict[str, int] | None = None
    """Backends and their relative weights, instead of `backend`."""
    models: list[str] | None = None
    host: str | None = None
    path_prefix: str | None = None
    strip_prefix: bool = False
    rename: dict[str, str] = {}
    """Models' names as clients write them, and as the backend knows them."""

    @property
    def backends(self) -> list[str]:
        """The backends that it leads to."""
        return [self.backend] if self.backend is not None else list(self.split or ())

    def problems(self) -> Iterator[Problem]:
        """The route can match something, and leads somewhere."""
        if (self.backend is None) == (self.split is None):
            yield "backend", "expected either `backend` or `split`"
        if self.split is not None and (not self.split or min(self.split.values()) < 0 or not any(self.split.values())):
            yield "split", "expected backends and their weights, such as {stable: 95, next: 5}"
        if self.path_prefix is not None and not self.path_prefix.startswith("/"):
            yield "path_prefix", "expected a path that starts with /"
        if self.models is not None and not self.models:
            yield "models", "an empty list matches nothing; leave it out to match everything"


class Config(Part, frozen=True):
    """The whole file."""

    backends: dict[str, Backend]
    listen: Address = Address("127.0.0.1:8080")
    admin: Address = Address("127.0.0.1:9090")
    workers: int = 1
    limits: Limits = Limits()
    shutdown: Shutdown = Shutdown()
    tls: ListenerTls | None = None
    access: Access = Access()
    compression: Compression = Compression()
    recover_header_length: bool = True
    logging: Logging = Logging()
    routes: list[Route] = []

    def max_connections(self, backend: str) -> int:
        """The most connections to all endpoints of *backend* together.

        Where the file does not say, every request that is admitted finds one, and `UNADMITTED_CONNECTIONS` are there
        for those that need no admission.
        """
        return self.backends[backend].max_connections or self.limits.concurrent_requests + UNADMITTED_CONNECTIONS

    def share(self) -> "Config":
        """The configuration of one worker: its part of all that is limited for the whole gateway, rounded down."""
        if self.workers == 1:
            return self
        replace = msgspec.structs.replace
        limits = replace(
            self.limits,
            in_flight_bytes=Size(self.limits.in_flight_bytes // self.workers),
            concurrent_requests=self.limits.concurrent_requests // self.workers,
            connections=self.limits.connections // self.workers,
        )
        backends = {
            name: replace(
                backend,
                max_connections=backend.max_connections and backend.max_connections // self.workers,
                queue=replace(backend.queue, length=backend.queue.length // self.workers),
            )
            for name, backend in self.backends.items()
        }
        return replace(self, limits=limits, backends=backends)

    def problems(self) -> Iterator[Problem]:
        """What every part allows by itself and all together do not."""
        yield from self._at_least_1("workers")
        if not self.backends:
            yield "backends", "expected at least one"
        if self.limits.request_body > self.limits.in_flight_bytes // max(self.workers, 1):
            share = " for each worker" if self.workers > 1 else ""
            yield "limits.in_flight_bytes", f"expected at least `limits.request_body`{share}"
        if self.listen == self.admin and (self.listen.is_unix or self.listen.port):
            yield "admin", "the same address as `listen`"
        if not self.routes and len(self.backends) > 1:
            yield "routes", "needed as soon as there is more than one backend"
        yield from self._worker_problems()
        yield from self._endpoint_problems()
        yield from self._route_problems()

    def _worker_problems(self) -> Iterator[Problem]:
        """Every worker has a share of what is counted, or the sum of the shares would be more than the limit."""
        expected = f"expected at least `workers`, {self.workers}"
        for key in ("concurrent_requests", "connections"):
            if getattr(self.limits, key) < self.workers:
                yield f"limits.{key}", expected
        for name, backend in self.backends.items():
            if (backend.max_connections or self.workers) < self.workers:
                yield f"backends.{name}.max_connections", expected
            if 0 < backend.queue.length < self.workers:
                yield f"backends.{name}.queue.length", f"{expected}, or 0"

    def _endpoint_problems(self) -> Iterator[Problem]:
        """No backend is the gateway itself: every request would go round until a limit ends it."""
        for name, backend in self.backends.items():
            for index, endpoint in enumerate(backend.endpoints):
                if self.listen.is_reached_by(endpoint):
                    yield (
                        f"backends.{name}.endpoints[{index}]",
                        f"{shortened(endpoint)} is the gateway's own listener, `listen: {self.listen}`, an endless "
                        "loop: name the inference server, or listen on another port",
                    )

    def _route_problems(self) -> Iterator[Problem]:
        """Every route leads to a backend, under a name of its own."""
        names = set()
        for index, route in enumerate(self.routes):
            for named in route.backends:
                if named in self.backends:
                    continue
                wanted = shortened(named)
                near = difflib.get_close_matches(wanted, self.backends, n=1)
                hint = f", did you mean `{near[0]}`?" if near else f"; there are {shortened(', '.join(self.backends))}"
                key = "backend" if route.split is None else "split"
                yield f"routes[{index}].{key}", f"no backend `{wanted}`{hint}"
            if route.name in names:
                yield f"routes[{index}].name", f"duplicate name `{shortened(route.name)}`"
            names.add(route.name)
        if "none" in names or (not self.routes and "none" in self.backends):
            yield "routes" if self.routes else "backends", "the name `none` is reserved for requests without a route"
