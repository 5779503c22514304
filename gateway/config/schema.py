"""The configuration's keys, types and defaults: what one file may say.

Every default lives here, in the type. Not here: how a file is read (`loading`), and what the values are used for.
"""

import typing

import msgspec

from gateway.codec import BytesPolicy, HalfPrecision, NonFinite, TensorPolicy

SIZE_UNITS = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}

NOT_YET = frozenset(
    {
        "limits.client_keep_alive",
        "limits.header_timeout",
        "limits.body_timeout",
        "limits.client_idle",
        "tls",
        "backends.*.dialect",
        "backends.*.balance",
        "backends.*.keep_alive",
        "backends.*.max_connections",
        "backends.*.retry",
        "backends.*.health",
        "backends.*.eject",
        "backends.*.tls",
    }
)
"""Keys of the contract that this version does not have; `*` is any name."""


class Duration(float):
    """Seconds, written as text with a unit: `250ms`, `2s`, `5m`, `1h`."""

    def __str__(self) -> str:
        return f"{self * 1000:g}ms" if 0 < self < 1 else f"{float(self):g}s"


class Size(int):
    """Bytes, written as text with a unit: `512B`, `64KiB`, `256MiB`, `1GiB`."""

    def __str__(self) -> str:
        for unit, factor in reversed(SIZE_UNITS.items()):
            if self >= factor and self % factor == 0:
                return f"{self // factor}{unit}"
        return f"{int(self)}B"


class Address(str):
    """`host:port` of a listener; port 0 is any free port. IPv6 hosts stand in brackets."""

    __slots__ = ()

    @property
    def host(self) -> str:
        """The host, without brackets."""
        return self.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The port."""
        return int(self.rpartition(":")[2])


class Endpoint(str):
    """The base URL of one server of a backend: scheme, host, maybe a port and a path."""

    __slots__ = ()


class _Frozen(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What all parts of the configuration have in common."""


class Limits(_Frozen, frozen=True):
    """The most that is held; beyond it a request or an answer is refused."""

    request_body: Size = Size(256 * 1024**2)
    response_body: Size = Size(1024**3)
    in_flight_bytes: Size = Size(2 * 1024**3)
    concurrent_requests: int = 512


class Shutdown(_Frozen, frozen=True):
    """What happens between SIGTERM and the exit."""

    delay: Duration = Duration(0)
    grace: Duration = Duration(30)


class Logging(_Frozen, frozen=True):
    """What is written to standard output (access) and standard error (the rest)."""

    level: typing.Literal["debug", "info", "warning", "error"] = "info"
    access: typing.Literal["json", "text", "none"] = "json"


class Compression(_Frozen, frozen=True):
    """Which replies are compressed for clients that ask for it."""

    responses: bool = False
    min_size: Size = Size(64 * 1024)


class Timeouts(_Frozen, frozen=True):
    """How long one client request may wait for its backend."""

    connect: Duration = Duration(2)
    first_byte: Duration = Duration(60)
    idle: Duration = Duration(30)
    total: Duration = Duration(120)


class Headers(_Frozen, frozen=True):
    """Changes to the headers that a backend gets."""

    set: dict[str, str] = {}
    remove: list[str] = []


class Backend(_Frozen, frozen=True):
    """One JSON-only server, or several that answer alike."""

    endpoints: list[Endpoint]
    framing: typing.Literal["chunked", "content-length"] = "chunked"
    nonfinite: NonFinite = NonFinite.REJECT
    bytes: BytesPolicy = BytesPolicy.UTF8
    half_precision: HalfPrecision = HalfPrecision.NATIVE
    timeouts: Timeouts = Timeouts()
    headers: Headers = Headers()

    @property
    def tensor_policy(self) -> TensorPolicy:
        """How its tensors are written."""
        return TensorPolicy(self.nonfinite, self.bytes, self.half_precision)


class Route(_Frozen, frozen=True):
    """Which requests go to a backend; what is absent matches everything."""

    name: str
    backend: str
    models: list[str] | None = None
    host: str | None = None
    path_prefix: str | None = None


class Config(_Frozen, frozen=True):
    """The whole file."""

    backends: dict[str, Backend]
    listen: Address = Address("127.0.0.1:8080")
    admin: Address = Address("127.0.0.1:9090")
    workers: int = 1
    limits: Limits = Limits()
    shutdown: Shutdown = Shutdown()
    compression: Compression = Compression()
    recover_header_length: bool = True
    logging: Logging = Logging()
    routes: list[Route] = []
