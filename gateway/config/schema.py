"""The configuration's keys, types, defaults and sense checks: what one file may say.

Every default is in the type. What a value must satisfy beyond its type is in the `problems` of the struct that holds
it, and what is allowed but hardly meant is in its `warnings`. Neither repeats a value, only keys: a value may be a
secret from outside. Not here: how a file is read (`loading`), and what the values are used for.
"""

import fnmatch
import itertools
import re
import typing
from collections.abc import Iterator
from urllib.parse import quote, urlsplit

import msgspec

from gateway.codec import (
    DATATYPES,
    MAX_RANK,
    BytesPolicy,
    HalfPrecision,
    ModelDescription,
    NonFinite,
    TensorDescription,
    TensorPolicy,
)
from gateway.config.shadowing import covers_pattern, first_cover
from gateway.config.values import (
    HEADER_NAME,
    Address,
    Duration,
    Endpoint,
    FilePath,
    ProxyNetwork,
    Size,
    Sticky,
    Workers,
    nearest,
    shortened,
)
from gateway.policy.paths import find_path_fault

UNADMITTED_CONNECTIONS = 16
"""Connections to a backend beside those for `limits.concurrent_requests`: for GET and HEAD, such as health checks,
which are served also when everything else is refused."""

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

TOKEN_HEADERS = frozenset({"authorization", "x-api-key"})
"""Headers in which clients may show their tokens, in lower case."""

MAX_SUGGESTED = 100
"""The most names among which a misspelt one is looked for."""

FORMATS = {"tensorflow": ("columnar", "row"), "mlflow": ("inputs", "instances", "dataframe_split")}
"""The forms that requests of a dialect may have, its default first."""

MAX_COMPARED_PATTERNS = 2000
"""The most routes, each counted as often as it has models, for which `check` says whether they can match: each is
compared with all before it. Also the most pairs of a route's renamed models and patterns that are compared."""

_SERVER_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._:-]*[A-Za-z0-9])?\.?")
_PATH = re.compile(r"/[!-~]*")
_HOST_PATTERN = re.compile(r"[!-.0-~]+")

Problem = tuple[str, str]
"""What is wrong: the path of the key, relative to the struct that reports it, and the reason."""


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What all parts of the configuration have in common."""

    def problems(self) -> Iterator[Problem]:
        """Values that the types allow and that make no sense; parts inside report their own."""
        yield from ()

    def warnings(self) -> Iterator[Problem]:
        """Values that are allowed and hardly meant; shown only for keys that are in the file."""
        yield from ()

    def _at_least_1(self, *keys: str) -> Iterator[Problem]:
        yield from ((key, "expected at least 1") for key in keys if getattr(self, key) < 1)

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
    header: Size = Size(128 * 1024)
    head: Size = Size(64 * 1024)
    client_keep_alive: Duration = Duration(75)
    header_timeout: Duration = Duration(10)
    body_timeout: Duration = Duration(60)
    client_idle: Duration = Duration(60)

    def problems(self) -> Iterator[Problem]:
        """No limit is zero, and a header is read in one step."""
        yield from self._positive("request_body", "response_body", "header", "head")
        yield from self._positive("client_keep_alive", "header_timeout", "body_timeout", "client_idle")
        yield from self._at_least_1("concurrent_requests", "connections", "tensors")
        if self.header > 256 * 1024:
            yield "header", "expected at most 256KiB: it is read in one step"


class ListenerTls(Part, frozen=True):
    """TLS for clients: PEM files, relative to the configuration's file."""

    certificate: FilePath
    """The certificate, followed by those between it and the root."""
    key: FilePath
    client_ca: FilePath | None = None
    """Clients must show a certificate that one of these has signed; None: they need none."""


class Access(Part, frozen=True):
    """Who may use the clients' listener, and which paths nobody may use."""

    tokens_file: FilePath | None = None
    """Lines `name: token`; None: no token is needed."""
    deny: list[str] = []

    def problems(self) -> Iterator[Problem]:
        """A pattern that begins with neither a slash nor an asterisk matches no path."""
        for index, pattern in enumerate(self.deny):
            if not pattern.startswith(("/", "*")):
                yield f"deny[{index}]", "expected a pattern of paths, which begins with / or *"


class Shutdown(Part, frozen=True):
    """What happens between SIGTERM and the exit."""

    delay: Duration = Duration(0)
    grace: Duration = Duration(30)


class Logging(Part, frozen=True):
    """What is written to standard output (access) and standard error (the rest)."""

    level: typing.Literal["debug", "info", "warning", "error"] = "info"
    access: typing.Literal["json", "text", "none"] = "json"
    sample: float = 1
    """The share of successful requests that is logged; failed ones always are."""
    server_timing: bool = False
    """Whether replies say in `Server-Timing` where their time went."""

    def problems(self) -> Iterator[Problem]:
        """A share is from 0 to 1."""
        if not 0 <= self.sample <= 1:
            yield "sample", "expected a share from 0 to 1"

    def warnings(self) -> Iterator[Problem]:
        """Without an access log there is nothing to sample."""
        if self.access == "none" and self.sample < 1:
            yield "sample", "without effect: `access` is none"


class Tracing(Part, frozen=True):
    """Where spans of requests are sent, by OTLP over HTTP; needs the extra `tracing`."""

    endpoint: Endpoint
    """Of the collector; without a path, `/v1/traces`."""
    sample: float = 1
    """The share of traces that is sampled, of those that begin here; for others the client has decided."""
    headers: dict[str, str] = {}
    """Sent with the spans, for collectors that ask for a key."""
    service_name: str = "tensor-gateway"

    def problems(self) -> Iterator[Problem]:
        """A share is from 0 to 1, and headers can be sent."""
        if not 0 <= self.sample <= 1:
            yield "sample", "expected a share from 0 to 1"
        if not self.service_name:
            yield "service_name", "expected a name"
        for header, text in self.headers.items():
            if not HEADER_NAME.fullmatch(header):
                yield f"headers.{shortened(header)}", "invalid header name"
            elif not text.isprintable() or not text.isascii():
                yield f"headers.{shortened(header)}", "invalid header value: expected printable ASCII characters"

    def warnings(self) -> Iterator[Problem]:
        """Collectors have a port for each of the two forms of OTLP."""
        if urlsplit(self.endpoint).port == 4317:
            yield "endpoint", "4317 is usually the port of OTLP over gRPC; that of OTLP over HTTP, used here, is 4318"


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
        """No timeout is zero."""
        yield from self._positive("connect", "first_byte", "idle", "total")

    def warnings(self) -> Iterator[Problem]:
        """A call never takes longer than `total`."""
        for key in ("connect", "first_byte", "idle"):
            if getattr(self, key) > self.total:
                yield key, "longer than `total`, which ends the call first"


class Queue(Part, frozen=True):
    """How many requests may wait for a connection to a backend when all are in use, and how long."""

    length: int = 0
    timeout: Duration = Duration(5)

    def problems(self) -> Iterator[Problem]:
        """A length of 0 means no queue; the timeout is not zero."""
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

    path: str | None = None
    """None: the one that tells whether a server of the dialect runs."""
    interval: Duration = Duration(5)
    timeout: Duration = Duration(2)
    unhealthy_after: int = 3
    healthy_after: int = 2

    def problems(self) -> Iterator[Problem]:
        """A path, and time to answer."""
        if self.path is not None and not _PATH.fullmatch(self.path):
            yield "path", "expected a path that starts with /, of printable ASCII characters without spaces"
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
        """Shares are from 0 to 1, and times are not zero."""
        if self.failures < 0:
            yield "failures", "expected at least 0"
        if not 0 <= self.panic_below <= 1:
            yield "panic_below", "expected a share from 0 to 1"
        yield from self._positive("window")
        if self.for_ <= 0:
            yield "for", "expected more than 0s"


class BackendTls(Part, frozen=True):
    """TLS towards the endpoints whose URL begins with https: PEM files, relative to the configuration's file."""

    ca: FilePath | None = None
    """Who may have signed the endpoints' certificates; None: those that the system trusts."""
    certificate: FilePath | None = None
    key: FilePath | None = None
    server_name: str | None = None
    """The name that the certificate must have; None: the one in the URL."""
    verify: bool = True

    def problems(self) -> Iterator[Problem]:
        """A certificate and its key go together; the server's name is the name of a host."""
        if (self.certificate is None) != (self.key is None):
            there, missing = ("key", "certificate") if self.certificate is None else ("certificate", "key")
            yield there, f"expected together with `{missing}`, which is missing"
        if self.server_name is not None and not _SERVER_NAME.fullmatch(self.server_name):
            yield "server_name", "expected the name of a host, such as model.example.com"

    def warnings(self) -> Iterator[Problem]:
        """Encryption without verification does not protect from an attacker on the network path."""
        if not self.verify:
            yield "verify", "false accepts any certificate: anyone on the network path can read and change everything"


class Headers(Part, frozen=True):
    """Changes to the headers that a backend gets."""

    set: dict[str, str] = {}
    remove: list[str] = []

    def problems(self) -> Iterator[Problem]:
        """What is set is a header, once, and none of those that the gateway sets itself."""
        seen: dict[str, str] = {}
        for header, text in self.set.items():
            name = header.lower()
            key = f"set.{shortened(header)}"
            if not HEADER_NAME.fullmatch(header):
                yield key, "invalid header name"
            elif not text.isprintable() or not text.isascii():
                yield key, "invalid header value: expected printable ASCII characters"
            elif name in SET_BY_GATEWAY:
                yield key, "the gateway sets this header itself"
            elif name in seen:
                yield key, f"duplicate header, `{shortened(seen[name])}` is set too"
            seen[name] = header
        for index, header in enumerate(self.remove):
            if not HEADER_NAME.fullmatch(header):
                yield f"remove[{index}]", "invalid header name"


class ModelTensor(Part, frozen=True):
    """What is known of an input or output of a model."""

    datatype: (
        typing.Literal[
            "BOOL",
            "UINT8",
            "UINT16",
            "UINT32",
            "UINT64",
            "INT8",
            "INT16",
            "INT32",
            "INT64",
            "FP16",
            "FP32",
            "FP64",
            "BF16",
            "BYTES",
        ]
        | None
    ) = None
    shape: list[int] | None = None
    """-1 is a variable dimension."""

    def problems(self) -> Iterator[Problem]:
        """A shape is one that a server could have."""
        if self.shape is not None and (len(self.shape) > MAX_RANK or any(size < -1 for size in self.shape)):
            yield "shape", f"expected at most {MAX_RANK} numbers, each at least 0, or -1 for a variable dimension"


class Model(Part, frozen=True):
    """What is known of the models that a pattern matches; it is merged with what their server says, and wins."""

    inputs: dict[str, ModelTensor] = {}
    outputs: dict[str, ModelTensor] = {}
    format: typing.Literal["columnar", "row", "inputs", "instances", "dataframe_split"] | None = None
    """The form of requests; None: the first of the dialect's in `FORMATS`."""
    signature: str | None = None
    """Of TensorFlow's models; None: `serving_default`."""

    @property
    def description(self) -> ModelDescription:
        """The same for the codec."""
        return ModelDescription(
            _described(self.inputs),
            _described(self.outputs),
            self.format or "",
            self.signature or "",
            has_output_order=True,
        )

    def problems(self) -> Iterator[Problem]:
        """Only a single input may have no name."""
        if "" in self.outputs:
            yield "outputs", "expected a name for each of them"
        if "" in self.inputs and len(self.inputs) > 1:
            yield "inputs", "expected a name for each of them: only a single input may have none"
        if self.signature == "":
            yield "signature", "expected a name, such as serving_default"


def _described(tensors: dict[str, ModelTensor]) -> tuple[TensorDescription, ...]:
    return tuple(
        TensorDescription(
            name,
            DATATYPES[tensor.datatype] if tensor.datatype is not None else None,
            tuple(tensor.shape) if tensor.shape is not None else None,
        )
        for name, tensor in tensors.items()
    )


class Backend(Part, frozen=True):
    """One JSON-only server, or several that give the same answers."""

    endpoints: list[Endpoint]
    dialect: typing.Literal["v2", "tensorflow", "mlflow", "auto"] = "v2"
    binary: typing.Literal["never", "auto", "always"] = "never"
    """Whether binary requests are passed on as they are; `auto`: to servers that say that they read them."""
    framing: typing.Literal["chunked", "content-length"] = "chunked"
    nonfinite: NonFinite = NonFinite.REJECT
    bytes: BytesPolicy = BytesPolicy.UTF8
    half_precision: HalfPrecision = HalfPrecision.NATIVE
    leave_out: list[typing.Literal["id", "outputs", "parameters"]] = []
    """Members of requests that the server refuses."""
    ids: typing.Literal["client", "always"] = "client"
    """Whether requests without an `id` get one of the gateway's, so that every answer says whose it is."""
    timeouts: Timeouts = Timeouts()
    keep_alive: Duration = Duration(4)
    max_connections: int | None = None
    """None: for all of `limits.concurrent_requests`, see `Config.max_connections`."""
    queue: Queue = Queue()
    dns_refresh: Duration = Duration(30)
    balance: typing.Literal["round_robin", "least_in_flight"] = "least_in_flight"
    sticky: Sticky = Sticky("none")
    retry: Retry = Retry()
    health: Health | None = None
    eject: Eject = Eject()
    headers: Headers = Headers()
    tls: BackendTls = BackendTls()
    models: dict[str, Model] = {}
    """By pattern, the first that matches a model's name."""

    @property
    def has_one_endpoint(self) -> bool:
        """Whether it is certain that all requests go to the same address."""
        return len(self.endpoints) == 1 and self.endpoints[0].is_literal

    @property
    def tensor_policy(self) -> TensorPolicy:
        """How its tensors are written as JSON."""
        return TensorPolicy(self.nonfinite, self.bytes, self.half_precision, leave_out=frozenset(self.leave_out))

    def problems(self) -> Iterator[Problem]:
        """There is an endpoint, and each of them once."""
        if not self.endpoints:
            yield "endpoints", "expected at least one"
        seen = set()
        for index, endpoint in enumerate(self.endpoints):
            if endpoint in seen:
                yield f"endpoints[{index}]", "duplicate endpoint"
            seen.add(endpoint)
        yield from self._positive("keep_alive", "dns_refresh")
        if self.max_connections is not None:
            yield from self._at_least_1("max_connections")
        yield from self._dialect_problems()
        yield from self._model_problems()

    def _dialect_problems(self) -> Iterator[Problem]:
        """What only servers of V2 can do."""
        if self.dialect in FORMATS:
            only = f"this is for servers of V2, and `dialect` is {self.dialect}"
            if self.binary != "never":
                yield "binary", only
            if self.leave_out:
                yield "leave_out", only
            if self.ids != "client":
                yield "ids", only
        if len(set(self.leave_out)) < len(self.leave_out):
            yield "leave_out", "duplicate member"
        if self.ids == "always" and "id" in self.leave_out:
            yield "ids", "expected client, because `leave_out` has id: a request has an id or it has none"

    def _model_problems(self) -> Iterator[Problem]:
        """A model is described as its dialect needs it."""
        for pattern, model in self.models.items():
            key = f"models.{shortened(pattern)}"
            if not pattern or ("/" in pattern and "[" not in pattern):
                yield key, "never matches: a model's name is not empty and has no slash"
            formats = FORMATS.get(self.dialect, ())
            if model.format is not None and self.dialect == "v2":
                yield f"{key}.format", "this is for other dialects, and `dialect` is v2"
            elif model.format is not None and formats and model.format not in formats:
                expected = f"{', '.join(formats[:-1])} or {formats[-1]}"
                yield f"{key}.format", f"expected {expected}, because `dialect` is {self.dialect}"
            if model.signature is not None and self.dialect not in ("tensorflow", "auto"):
                yield f"{key}.signature", f"only models of TensorFlow have signatures, and `dialect` is {self.dialect}"
            if "" in model.inputs and (self.dialect not in ("mlflow", "auto") or model.format not in (None, "inputs")):
                yield f"{key}.inputs", "expected a name: only MLflow's format `inputs` has an input without one"
            for name, tensor in model.outputs.items():
                if self.dialect == "mlflow" and tensor.datatype is None:
                    yield (
                        f"{key}.outputs.{shortened(name)}",
                        "expected its `datatype`: MLflow's server does not say it, nor do its answers",
                    )

    def warnings(self) -> Iterator[Problem]:
        """What has no effect with this server and these endpoints."""
        yield from self._dialect_warnings()
        if self.tls != BackendTls() and not any(endpoint.startswith("https:") for endpoint in self.endpoints):
            yield "tls", "without effect: no endpoint's URL begins with https"
        if self.queue.length and self.queue.timeout > self.timeouts.total:
            yield "queue.timeout", "longer than `timeouts.total`, which ends the call first"
        first = _FIRST_SEGMENTS[self.dialect]
        for index, endpoint in enumerate(self.endpoints):
            if first in urlsplit(endpoint).path.split("/"):
                yield (
                    f"endpoints[{index}]",
                    f"its path is put before that of every request, which begins with /{first} already",
                )
            if urlsplit(endpoint).hostname in ("0.0.0.0", "::"):  # noqa: S104  compared with, not listened on
                yield f"endpoints[{index}]", "this address is for listening; to reach this machine: 127.0.0.1"

    def _dialect_warnings(self) -> Iterator[Problem]:
        """Keys that do nothing for such a server, or less than they seem to."""
        if self.dialect == "mlflow" and not any(model.outputs for model in self.models.values()):
            yield "dialect", "every inference gets 502: set the datatypes of the outputs in `models`"
        if self.dialect in FORMATS and self.half_precision is HalfPrecision.PROMOTE:
            yield "half_precision", f"without effect: requests name no datatypes, because `dialect` is {self.dialect}"
        if self.dialect == "auto" and self.health is not None and self.health.path is None:
            yield "health", "asks /v2/health/ready, which only servers of V2 answer: set `path`"
        if self.dialect in FORMATS and self.health is not None and (self.health.path or "").startswith("/v2/"):
            yield "health.path", "most servers that do not speak V2 answer 404 there, which tells nothing"
        if self.binary == "always":
            default = Backend(self.endpoints)
            for key in ("nonfinite", "bytes", "half_precision", "leave_out", "ids"):
                if getattr(self, key) != getattr(default, key):
                    yield key, "without effect on inferences, which are passed on as they are: `binary` is always"
        patterns = list(self.models)[:MAX_SUGGESTED]
        for index, pattern in enumerate(patterns):
            wide = next((each for each in patterns[:index] if covers_pattern(each, pattern)), None)
            if wide is not None:
                yield f"models.{shortened(pattern)}", f"never matches: {shortened(wide)!r} before it does"


_FIRST_SEGMENTS = {"v2": "v2", "auto": "v2", "tensorflow": "v1", "mlflow": "invocations"}
"""How the paths of inferences begin."""


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
        if not self.name:
            yield "name", "expected a name"
        if (self.backend is None) == (self.split is None):
            yield "backend", "expected either `backend` or `split`"
        if self.split is not None and (not self.split or min(self.split.values()) < 0 or not any(self.split.values())):
            yield "split", "expected backends and their weights, such as {stable: 95, next: 5}"
        yield from self._never_matching()
        if self.strip_prefix and self.path_prefix is None:
            yield "strip_prefix", "expected together with `path_prefix`, which is missing"
        elif self.strip_prefix and f"{self.path_prefix}/".startswith("/v2/"):
            yield "strip_prefix", "`path_prefix` is part of the protocol's own paths, which the backend needs"
        for name, model in self.rename.items():
            if not _may_be_in_path(name) or not _may_be_in_path(model):
                reason = "expected names of models, not empty, not `.` or `..`, and without a slash or backslash"
                yield f"rename.{shortened(name)}", reason

    def _never_matching(self) -> Iterator[Problem]:
        """What no request has, because requests with it are refused or it would be written in another way."""
        if self.models is not None and not self.models:
            yield "models", "an empty list matches nothing; leave it out to match everything"
        for index, pattern in enumerate(self.models or ()):
            if not pattern or ("/" in pattern and "[" not in pattern):
                yield f"models[{index}]", "never matches: a model's name is not empty and has no slash"
        if self.host is not None and not _HOST_PATTERN.fullmatch(self.host):
            yield "host", "expected the name of a host as in a URL, without its scheme, such as api.example.com"
        prefix = self.path_prefix
        if prefix is not None and not prefix.startswith("/"):
            yield "path_prefix", "expected a path that starts with /"
        elif prefix is not None and (not _PATH.fullmatch(prefix) or "?" in prefix or "#" in prefix):
            yield "path_prefix", "never matches: expected a path as in a URL, percent-encoded and without a query"
        elif prefix is not None and (fault := find_path_fault(prefix)) is not None:
            yield "path_prefix", f"never matches, because such requests are refused: {fault}"

    def warnings(self) -> Iterator[Problem]:
        """What it renames and never gets."""
        are_few = len(self.rename) * len(self.models or ()) <= MAX_COMPARED_PATTERNS
        for name in self.rename:
            if self.models is not None and are_few and not any(fnmatch.fnmatchcase(name, each) for each in self.models):
                yield f"rename.{shortened(name)}", "without effect: no pattern of `models` matches it"
            elif "*" in name:
                yield f"rename.{shortened(name)}", "without effect on other names: this is a name and no pattern"


def _may_be_in_path(model: str) -> bool:
    """Whether *model* can be a model's name in a path that is not refused."""
    return bool(model) and find_path_fault(f"/v2/models/{quote(model, safe='')}/infer") is None


class Config(Part, frozen=True):
    """The whole file."""

    backends: dict[str, Backend]
    listen: Address = Address("127.0.0.1:8080")
    admin: Address = Address("127.0.0.1:9090")
    workers: Workers = Workers(1)
    limits: Limits = Limits()
    shutdown: Shutdown = Shutdown()
    tls: ListenerTls | None = None
    access: Access = Access()
    compression: Compression = Compression()
    recover_header_length: bool = True
    logging: Logging = Logging()
    trusted_proxies: list[ProxyNetwork] = []
    """From these, `X-Forwarded-For` and the like are believed."""
    tracing: Tracing | None = None
    routes: list[Route] = []
    hidden: list[str] = []
    """The paths of the values that came from outside the file; no key of the file sets it."""

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
        if "" in self.backends:
            yield "backends", "expected a name for each of them"
        if self.limits.request_body > self.limits.in_flight_bytes // max(self.workers, 1):
            share = " for each worker: raise it, or set fewer `workers`" if self.workers > 1 else ""
            yield "limits.in_flight_bytes", f"expected at least `limits.request_body`{share}"
        if self.admin.is_unix:
            yield "admin", "expected host:port; `unix:` is for `listen` only"
        elif self.listen.takes(self.admin):
            yield "admin", "the same address as `listen`, which clients use"
        if not self.routes and len(self.backends) > 1:
            yield "routes", "needed as soon as there is more than one backend"
        yield from self._worker_problems()
        yield from self._endpoint_problems()
        yield from self._route_problems()

    def warnings(self) -> Iterator[Problem]:
        """What is open to others."""
        for key, address in (("listen", self.listen), ("admin", self.admin)):
            if 0 < address.port < 1024:
                yield key, "a port below 1024 needs a privilege, such as CAP_NET_BIND_SERVICE"
        if not self.admin.is_local:
            yield "admin", "open to other machines, without TLS and tokens: it shows metrics and the configuration"
        if self.access.tokens_file is not None and self.tls is None and not self.listen.is_local:
            yield "access.tokens_file", "without `tls`, anyone on the network can read the tokens"
        for index, network in enumerate(self.trusted_proxies):
            if network.is_everybody:
                yield f"trusted_proxies[{index}]", "every client may say that it is another: name only the proxies"
            elif network == "unix" and not self.listen.is_unix:
                yield f"trusted_proxies[{index}]", "without effect: `listen` is no unix: address"
        for name, backend in self.backends.items():
            if self.access.tokens_file is not None and (backend.sticky.header or "").lower() in TOKEN_HEADERS:
                yield (
                    f"backends.{shortened(name)}.sticky",
                    "without effect where this header holds a token of `access.tokens_file`: it is taken off before",
                )

    def unused(self) -> Iterator[Problem]:
        """More warnings: backends and their keys that have no effect with these routes, and routes that never match."""
        used = {name for route in self.routes for name in route.backends}
        shared = {name for route in self.routes if len(route.backends) > 1 for name in route.backends}
        for name, backend in self.backends.items():
            if self.routes and name not in used:
                yield f"backends.{shortened(name)}", "unused: no route leads to it"
            if backend.sticky != "none" and name not in shared and backend.has_one_endpoint:
                yield f"backends.{shortened(name)}.sticky", "without effect: there is only one endpoint"
        if sum(max(1, len(route.models or ())) for route in self.routes) > MAX_COMPARED_PATTERNS:
            return
        for index, route in enumerate(self.routes):
            earlier = first_cover(route, self.routes[:index])
            if earlier is not None:
                yield f"routes[{index}]", f"never matches: routes[{earlier}] before it takes all its requests"

    def _worker_problems(self) -> Iterator[Problem]:
        """Every worker has a share of what is counted, or the sum of the shares would be more than the limit."""
        expected = "expected at least as many as `workers`"
        for key in ("concurrent_requests", "connections"):
            if 0 < getattr(self.limits, key) < self.workers:
                yield f"limits.{key}", expected
        for name, backend in self.backends.items():
            if 0 < (backend.max_connections or 0) < self.workers:
                yield f"backends.{shortened(name)}.max_connections", expected
            if 0 < backend.queue.length < self.workers:
                yield f"backends.{shortened(name)}.queue.length", f"{expected}, or 0"

    def _endpoint_problems(self) -> Iterator[Problem]:
        """No backend is the gateway itself: requests would go round, or clients would reach the admin listener."""
        for name, backend in self.backends.items():
            for index, endpoint in enumerate(backend.endpoints):
                if self.admin.is_reached_by(endpoint):
                    yield (
                        f"backends.{shortened(name)}.endpoints[{index}]",
                        "this is the gateway's own `admin`, which is never for clients: name the inference server, or "
                        "listen on another port",
                    )
                if self.listen.is_reached_by(endpoint):
                    yield (
                        f"backends.{shortened(name)}.endpoints[{index}]",
                        "this is the gateway's own listener, `listen`, an endless loop: name the inference server, or "
                        "listen on another port",
                    )

    def _route_problems(self) -> Iterator[Problem]:
        """Every route leads to a backend, under a name of its own."""
        names: dict[str, int] = {}
        known = list(itertools.islice(self.backends, MAX_SUGGESTED))
        for index, route in enumerate(self.routes):
            for named in route.backends:
                if named in self.backends:
                    continue
                near = nearest(named, known)
                hint = f", did you mean `{shortened(near)}`?" if near else f"; there are {shortened(', '.join(known))}"
                key = "backend" if route.backend is not None else f"split.{shortened(named)}"
                yield f"routes[{index}].{key}", f"there is no such backend{hint}"
            if route.name in names:
                yield f"routes[{index}].name", f"duplicate name, as in routes[{names[route.name]}]"
            names.setdefault(route.name, index)
        if "none" in names:
            yield f"routes[{names['none']}].name", "the name `none` is reserved for requests without a route"
        if not self.routes and "none" in self.backends:
            yield "backends.none", "the name `none` is reserved for requests without a route"
