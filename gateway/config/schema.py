"""The configuration's keys, types and defaults: what one file may say."""

import typing
from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.codec.dialects.body import Body
from gateway.codec.dialects.declared import TensorDescription
from gateway.codec.dialects.description import ALL_ROWS, ModelDescription, Template
from gateway.codec.dialects.paths import form_of, steps_of
from gateway.codec.inference import BytesPolicy, HalfPrecision, NonFinite, TensorPolicy
from gateway.codec.tensors.datatypes import DATATYPES
from gateway.config.values import (
    Address,
    Datatype,
    Dimension,
    Duration,
    Endpoint,
    FilePath,
    ProxyNetwork,
    Size,
    Sticky,
    Workers,
)
from gateway.policy.retry import RetryRules
from gateway.policy.routing import RouteRule


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What all parts of the configuration have in common."""


class PerClient(Part, frozen=True):
    """What one client may ask for: its token's name, or its address where there are no tokens. 0: no limit."""

    concurrent: int = 0
    """Requests at once."""
    rate: float = 0
    """Requests a second."""
    burst: int = 0
    """How many requests may come together; 0: as many as `rate` allows in one second."""


class Limits(Part, frozen=True):
    """The most that is held, for the whole gateway; beyond it a request, an answer or a connection is refused."""

    request_body: Size = Size(256 * 1024**2)
    response_body: Size = Size(1024**3)
    in_flight_bytes: Size | None = None
    """None: 2GiB, or more where that is needed, see `Config.in_flight_bytes`."""
    concurrent_requests: int = 512
    connections: int = 4096
    tensors: int = 1024
    header: Size = Size(128 * 1024)
    head: Size = Size(64 * 1024)
    per_client: PerClient = PerClient()
    client_keep_alive: Duration = Duration(75)
    header_timeout: Duration = Duration(10)
    body_timeout: Duration = Duration(60)
    client_idle: Duration = Duration(60)


class ListenerTls(Part, frozen=True):
    """TLS for clients: PEM files, relative to the configuration's file."""

    certificate: FilePath
    """The certificate, followed by the intermediate ones up to the root."""
    key: FilePath
    client_ca: FilePath | None = None
    """The authorities, one of which must have signed a client's certificate; None: clients need no certificate."""


class Access(Part, frozen=True):
    """Who may use the clients' listener, and which paths nobody may use."""

    tokens_file: FilePath | None = None
    """Lines `name: token`; None: no token is needed."""
    deny: list[str] = []


class Shutdown(Part, frozen=True):
    """What happens between SIGTERM and the exit."""

    delay: Duration = Duration(0)
    grace: Duration = Duration(30)


class Logging(Part, frozen=True):
    """What is written to standard output (access) and standard error (the rest)."""

    level: typing.Literal["debug", "info", "warning", "error"] = "info"
    format: typing.Literal["text", "json"] = "text"
    """The form of what goes to standard error."""
    access: typing.Literal["json", "text", "none"] = "json"
    sample: float = 1
    """The share of successful requests that is logged; failed requests always are."""
    server_timing: bool = False
    """Whether replies say in `Server-Timing` where their time went."""


class Tracing(Part, frozen=True):
    """Where spans of requests are sent, by OTLP over HTTP; needs the extra `tracing`."""

    endpoint: Endpoint
    """The collector's URL; without a path, `/v1/traces` is added."""
    sample: float = 1
    """The share that is sampled of the traces that begin at the gateway; of a client's trace the client has decided."""
    headers: dict[str, str] = {}
    """Sent with the spans, for collectors that ask for a key."""
    service_name: str = "tensor-gateway"


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


class Queue(Part, frozen=True):
    """How many requests may wait for a connection to a backend when all are in use, and how long."""

    length: int = 0
    timeout: Duration = Duration(5)


class Retry(RetryRules, Part, frozen=True):
    """When a failed attempt is followed by another."""


class Health(Part, frozen=True):
    """Probes that find out which endpoints are up."""

    path: str | None = None
    """None: the path at which a server of the dialect tells whether it runs."""
    interval: Duration = Duration(5)
    timeout: Duration = Duration(2)
    unhealthy_after: int = 3
    healthy_after: int = 2


class Eject(Part, frozen=True):
    """When an endpoint that fails gets no requests for a while."""

    failures: int = 5
    """How many failures within `window` eject the endpoint; 0: none do."""
    window: Duration = Duration(30)
    for_: Duration = msgspec.field(default=Duration(30), name="for")
    panic_below: float = 0
    """The share of the endpoints that is never ejected."""


class BackendTls(Part, frozen=True):
    """TLS towards the endpoints whose URL begins with https: PEM files, relative to the configuration's file."""

    ca: FilePath | None = None
    """Who may have signed the endpoints' certificates; None: those that the system trusts."""
    certificate: FilePath | None = None
    key: FilePath | None = None
    server_name: str | None = None
    """The name that the certificate must have; None: the one in the URL."""
    verify: bool = True


class Headers(Part, frozen=True):
    """Changes to the headers that a backend gets."""

    set: dict[str, str] = {}
    remove: list[str] = []


class Batch(Part, frozen=True):
    """How many rows of requests that say the same go to the server as one request, and how long they wait for it."""

    max_size: int = 1
    """In rows of the first dimension; 1: each request goes alone."""
    max_delay: Duration = Duration(0.005)


class ModelTensor(Part, frozen=True):
    """What is known of an input or output of a model."""

    datatype: Datatype | None = None
    shape: list[Dimension] | None = None
    """-1 is any size; a name is any size that is the same wherever the name stands in the model's block."""
    encoding: typing.Literal["text", "base64"] | None = None
    """How its elements stand in the server's JSON; None: BYTES as `bytes` says for inputs, as text for outputs.

    `text`: each as a text, such as "1.5". `base64`: each of BYTES in base64; of numbers the little-endian bytes of the
    last dimension (a scalar's own) in one text. None: numbers as JSON numbers.
    """


class ModelInput(ModelTensor, frozen=True):
    """What is known of an input of a model."""

    optional: bool = False
    """Whether requests may lack it, for `dialect: template` and `python`."""


class ModelOutput(ModelTensor, frozen=True):
    """What is known of an output of a model."""

    missing: str | None = None
    """What a missing string becomes; None: the answer is refused."""


class ModelRequest(Part, frozen=True):
    """What inferences of a model send, for `dialect: template`."""

    path: str
    """In which `{model}` and `{version}` are those of the client's path."""
    body: Any
    """The JSON, in which inputs stand as `$NAME`."""
    rows: int | None = None
    """The most rows of the first dimension that one request has; the answers are put together. None: all rows."""
    parallel: int = 4
    """How many of the requests for one inference are under way at once, where `rows` makes several."""


class Model(Part, frozen=True):
    """What is known of the models that a pattern matches; it is merged with what their server says, and wins."""

    inputs: dict[str, ModelInput] = {}
    outputs: dict[str, ModelOutput] = {}
    format: typing.Literal["columnar", "row", "inputs", "instances", "dataframe_split"] | None = None
    """The form of requests; None: the first of the dialect's in `FORMATS`."""
    signature: str | None = None
    """Which signature of a TensorFlow model is used; None: `serving_default`."""
    request: ModelRequest | None = None
    """What is sent, for `dialect: template`."""
    answer: dict[str, str] = {}
    """Where answers have each output, for `dialect: template`: paths after RFC 9535."""
    success: dict[str, Any] = {}
    """What an answer has at these paths if it is no failure, for `dialect: template`."""
    order: str | None = None
    """The path of the member of each row that says which input row it is about, for `dialect: template`."""
    batch: Batch | None = None
    """None: as the backend says."""
    error: str | None = None
    """Where errors have their reason; None: `error`, `detail` or `message`."""

    @property
    def body(self) -> Body | None:
        """The body of inferences, as `request` says it; None without `request`."""
        request = self.request
        return None if request is None else Body(request.body, _described(self.inputs), is_row=request.rows == 1)

    @property
    def description(self) -> ModelDescription:
        """What is known of the models, for the codec. Raises `CodecError` for a path of an output that is malformed."""
        template = None
        if self.request is not None and (body := self.body) is not None:
            error = tuple(steps_of(self.error)) if self.error is not None else ()
            template = Template(
                self.request.path,
                body,
                form_of(self.answer, self.success, self.error, self.order),
                error,
                rows=self.request.rows or ALL_ROWS,
                parallel=self.request.parallel,
            )
        return ModelDescription(
            _described(self.inputs),
            _described(self.outputs),
            self.format or "",
            self.signature or "",
            has_output_order=True,
            template=template,
            is_complete=template is not None,
        )


def _described(tensors: Mapping[str, ModelTensor]) -> dict[str, TensorDescription]:
    return {
        name: TensorDescription(
            DATATYPES[tensor.datatype] if tensor.datatype is not None else None,
            tuple(dimension.value for dimension in tensor.shape) if tensor.shape is not None else None,
            tensor.encoding or "",
            tensor.missing if isinstance(tensor, ModelOutput) else None,
            isinstance(tensor, ModelInput) and tensor.optional,
        )
        for name, tensor in tensors.items()
    }


class Backend(Part, frozen=True):
    """One JSON-only server, or several that give the same answers."""

    endpoints: list[Endpoint]
    dialect: typing.Literal["v2", "tensorflow", "mlflow", "template", "python", "auto"] = "v2"
    adapter: FilePath | None = None
    """The file with the functions of `dialect: python`, relative to the configuration's file."""
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
    batch: Batch = Batch()
    models: dict[str, Model] = {}
    """By pattern, the first that matches a model's name."""

    @property
    def tensor_policy(self) -> TensorPolicy:
        """How its tensors are written as JSON."""
        return TensorPolicy(self.nonfinite, self.bytes, self.half_precision, leave_out=frozenset(self.leave_out))


class Route(RouteRule, Part, frozen=True):
    """Which requests go to a backend; what is absent matches everything."""


class Config(Part, frozen=True):
    """The whole file."""

    backends: dict[str, Backend]
    listen: Address = Address("127.0.0.1:8080")
    admin: Address = Address("127.0.0.1:9090")
    grpc: Address | None = None
    """Where gRPC is spoken; None: nowhere. Needs the extra `grpc`."""
    workers: Workers = Workers(1)
    limits: Limits = Limits()
    shutdown: Shutdown = Shutdown()
    tls: ListenerTls | None = None
    access: Access = Access()
    compression: Compression = Compression()
    recover_header_length: bool = True
    logging: Logging = Logging()
    trusted_proxies: list[ProxyNetwork] = []
    """The proxies whose `X-Forwarded-For` and the like are believed."""
    tracing: Tracing | None = None
    routes: list[Route] = []
    hidden: list[str] = []
    """The paths of the values that came from outside the file; no key of the file sets it."""

    @property
    def in_flight_bytes(self) -> Size:
        """As the file says; else 2GiB, or `limits.request_body` for each of the `workers`, if each is 2GiB at most."""
        of_each = min(self.limits.request_body, 2 * 1024**3)
        return self.limits.in_flight_bytes or Size(max(2 * 1024**3, self.workers * of_each))

    def max_connections(self, backend: str) -> int:
        """The most connections to all endpoints of *backend* together.

        Where the file does not say, every request that is admitted finds one, and 16 more are there for GET and HEAD,
        such as health checks, which are served also when everything else is refused.
        """
        return self.backends[backend].max_connections or self.limits.concurrent_requests + 16

    def share(self) -> "Config":
        """The configuration of one worker: its part of all that is limited for the whole gateway, rounded down."""
        n = self.workers
        limits = msgspec.structs.replace(
            _divided(self.limits, n, "concurrent_requests", "connections"),
            in_flight_bytes=Size(self.in_flight_bytes // n),
            per_client=_divided(self.limits.per_client, n, "concurrent", "rate", "burst"),
        )
        backends = {
            name: _divided(msgspec.structs.replace(each, queue=_divided(each.queue, n, "length")), n, "max_connections")
            for name, each in self.backends.items()
        }
        return msgspec.structs.replace(self, limits=limits, backends=backends)


def _divided(part: Any, n: int, *keys: str) -> Any:
    """*part* with its numbers at *keys* divided by *n*, whole numbers rounded down."""
    numbers = {key: number for key in keys if (number := getattr(part, key)) is not None}
    shares = {key: type(each)(each // n if isinstance(each, int) else each / n) for key, each in numbers.items()}
    return msgspec.structs.replace(part, **shares)
