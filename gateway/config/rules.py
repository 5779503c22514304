"""What values must satisfy beyond their types, and what is allowed but hardly meant: two tables of rules.

Words name keys and never repeat a value, which may be a secret from outside; what limits have to be is none.
"""

import fnmatch
import itertools
import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

from gateway.codec.dialects.paths import canonical, steps_of, tree_of
from gateway.codec.v2.messages import MAX_RANK
from gateway.config.schema import (
    Access,
    Backend,
    BackendTls,
    Config,
    Headers,
    Limits,
    Model,
    ModelOutput,
    ModelRequest,
    ModelTensor,
    Part,
    Route,
    Timeouts,
)
from gateway.config.structure import join, walk
from gateway.config.values import FORMATS, HEADER_NAME, Size, nearest, shortened
from gateway.errors import CodecError
from gateway.policy.paths import find_path_fault

# fmt: off
SET_BY_GATEWAY = frozenset({
    "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "expect", "host",
    "inference-header-content-length", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding",
    "upgrade", "via", "x-request-id",
})
# fmt: on
"""Headers that `headers.set` may not name, in lower case: they frame the message, or the gateway relies on them."""

_PATH = re.compile(r"/[!\"$-~]*")
_PREFIX = re.compile(r"/[!\"$->@-~]*")
_FIELD = re.compile(r"\{[^}]*\}?|\}")
_SERVER_NAME = re.compile(r"(?!.{254})[\w:-]{1,63}(\.[\w:-]{1,63})*\.?", re.ASCII)
_SPECIAL = re.compile(r"[*?\[]")


class Place(NamedTuple):
    """A value that a rule is about."""

    part: Any
    """The part of the configuration that the rule belongs to."""
    name: Any
    """The last name in a mapping, or index in a list, on the way from the part to the value."""
    value: Any


class Rule(NamedTuple):
    """A row of a table. Of several errors of one key only the first row's is shown."""

    part: type[Part]
    keys: str
    """Separated by blanks; `*` is every name of a mapping and every index of a list. Values that are absent (None) are
    skipped."""
    condition: Callable[[Place], object]
    """It gives what was found, if anything. If that is a mapping, its keys are places inside of the value, such as
    `[1].name`, and its values what was found there."""
    words: str
    """In which `{part}` and `{found}` are replaced."""


def check(rules: Sequence[Rule], config: Config | None) -> Iterator[tuple[str, str]]:
    """What *rules* tell of *config*, inner parts first: the path of a key, and the words."""
    for path, part in walk(config):
        for rule in rules:
            if isinstance(part, rule.part):
                yield from _told(rule, path, part)


def _told(rule: Rule, path: str, part: Part) -> Iterator[tuple[str, str]]:
    for key in rule.keys.split() or [""]:
        for inner, place in _places(path, Place(part, None, part), [*filter(None, key.split("."))]):
            found = rule.condition(place)
            for at, what in found.items() if isinstance(found, dict) else [("", found)] if found else []:
                yield inner + at, rule.words.format(part=part, found=what)


def _places(path: str, place: Place, steps: Sequence[str]) -> Iterator[tuple[str, Place]]:
    """The values to which *steps*, parts of a rule's key, lead from the *place* at *path*, each with its path."""
    part, name, value = place
    if value is None or not steps:
        yield from () if value is None else [(path, place)]
    elif steps[0] != "*":
        inner = join(path, steps[0].rstrip("_"))  # `for_` is the key `for`
        yield from _places(inner, Place(part, name, getattr(value, steps[0])), steps[1:])
    else:
        is_mapping = isinstance(value, dict)
        items: Any = value.items() if is_mapping else enumerate(value)
        for key, item in items:
            inner = join(path, shortened(key)) if is_mapping else f"{path}[{key}]"
            yield from _places(inner, Place(part, key, item), steps[1:])


def _refusal(read: Callable[[Any], object], value: Any) -> str | None:
    """Why the codec cannot *read* the *value*."""
    try:
        read(value)
    except CodecError as error:
        return str(error)
    return None


def _paths_fault(at: Place) -> str | None:
    """Why paths of outputs that are sound one by one cannot be followed together."""
    return None if any(_refusal(steps_of, path) for path in at.value.values()) else _refusal(tree_of, at.value)


def _success_fault(at: Place) -> dict[str, str]:
    """Why the values that an answer has if it is no failure cannot be looked at, by path."""
    model = at.part
    faults = {path: _refusal(steps_of, path) for path in at.value}
    faults |= {path: "expected a path without [*]" for path in at.value if "[*]" in path and not faults[path]}
    if not any(faults.values()) and not _refusal(tree_of, model.answer):
        notes = tree_of(model.answer, at.value).notes
        faults |= {path: "an output wants another value there" for path in at.value if canonical(path) not in notes}
    return {f".{path}": fault for path, fault in faults.items() if fault}


def _order_fault(at: Place) -> str | None:
    """Why rows cannot be put into the order that the value at a path says."""
    model = at.part
    if fault := _refusal(steps_of, at.value):
        return fault
    if steps_of(at.value).count(None) != 1:
        return "expected a path with one [*], whose items are the rows"
    if _refusal(tree_of, model.answer):
        return None
    if fault := _refusal(lambda order: tree_of(model.answer, order=order), at.value):
        return fault
    rows = canonical(at.value).partition("[*]")[0]
    is_beside = any(canonical(path).startswith(f"{rows}[*]") for path in model.answer.values())
    return None if is_beside else f"no output is in these rows: expected one with a path that begins with {rows}[*]"


def _expected_formats(at: Place) -> str | None:
    """The formats of the dialect, if the model's is none of them."""
    formats = FORMATS.get(at.part.dialect, ())
    if at.part.dialect == "auto" or at.value in formats:
        return None
    return f"{', '.join(formats[:-1])} or {formats[-1]}" if formats else "none"


def _matches_no_model(pattern: str) -> bool:
    return not pattern or ("/" in pattern and "[" not in pattern)


def _repeated(items: Sequence[Hashable], member: str = "") -> dict[str, int]:
    """The place, or its *member*, of each item that equals an earlier one, with the index of the first such item."""
    first: dict[Hashable, int] = {}
    pairs = [(index, first.setdefault(item, index)) for index, item in enumerate(items)]
    return {f"[{index}]{member}": earlier for index, earlier in pairs if earlier < index}


def _no_backend(name: str, config: Config) -> str | None:
    """Where no backend is called *name*: which was probably meant, or else which backends there are."""
    if name in config.backends:
        return None
    near = nearest(name, known := list(config.backends))
    return f", did you mean `{shortened(near)}`?" if near else f"; there are {shortened(', '.join(known)) or 'none'}"


def _never_matching(at: Place) -> dict[str, int]:
    """The routes that certainly never match, each with the index of the first route that takes all its requests."""
    pairs = itertools.combinations(enumerate(at.value), 2)
    covered = [(later, earlier) for (earlier, wide), (later, narrow) in pairs if _covers(wide, narrow)]
    return {f"[{later}]": earlier for later, earlier in reversed(covered)}


def _covers(wide: Route, narrow: Route) -> bool:
    """Whether *wide* certainly matches every request that *narrow* matches.

    Hosts are compared as they are written. Models are compared behind the same prefix only, because the prefix decides
    which part of a path is the model.
    """
    if wide.host not in (None, "*") and wide.host.lower() != (narrow.host or "").lower():
        return False
    wide_prefix, narrow_prefix = ((each.path_prefix or "").rstrip("/") for each in (wide, narrow))
    if wide.models is None:
        return f"{narrow_prefix}/".startswith(f"{wide_prefix}/")
    if narrow.models is None or wide_prefix != narrow_prefix:
        return False
    return all(any(_covers_pattern(pattern, model) for pattern in wide.models) for model in narrow.models)


def _covers_pattern(wide: str, narrow: str) -> bool:
    """Whether the pattern *wide* certainly matches every name that *narrow* does."""
    if wide == narrow or not _SPECIAL.search(narrow):
        return wide == narrow or fnmatch.fnmatchcase(narrow, wide)
    return wide.endswith("*") and not _SPECIAL.search(wide[:-1]) and narrow.startswith(wide[:-1])


# fmt: off
_POSITIVE = (lambda at: f"{type(at.value)(0)}" if at.value <= 0 else None, "expected more than {found}")
_AT_LEAST_0 = (lambda at: at.value < 0, "expected at least 0")
_AT_LEAST_1 = (lambda at: at.value < 1, "expected at least 1")
_SHARE = (lambda at: not 0 <= at.value <= 1, "expected a share from 0 to 1")
_HEADER = (lambda at: not HEADER_NAME.fullmatch(at.name), "invalid header name")
_HEADER_VALUE = (lambda at: not at.value.isprintable() or not at.value.isascii(),
                 "invalid header value: expected printable ASCII characters")
_FOR_STRINGS = (lambda at: at.part.datatype != "BYTES", "this is for strings: expected `datatype: BYTES` beside it")
_NO_MODEL = "never matches: a model's name is not empty and has no slash"
_ONLY_V2 = (lambda at: at.part.dialect in FORMATS and at.value not in ("never", "client", []),
            "this is for servers of V2, and `dialect` is {part.dialect}")
_NO_BACKEND = "there is no such backend{found}"
_NONE_IS_RESERVED = "the name `none` is reserved for requests without a route"
_OWN = "name the inference server, or listen on another port"

ERRORS = (
    Rule(Backend, "timeouts.connect timeouts.first_byte timeouts.idle timeouts.total queue.timeout keep_alive "
         "dns_refresh health.interval health.timeout eject.window eject.for_ batch.max_delay models.*.batch.max_delay",
         *_POSITIVE),
    Rule(Backend, "queue.length eject.failures", *_AT_LEAST_0),
    Rule(Backend, "retry.attempts max_connections health.unhealthy_after health.healthy_after batch.max_size "
         "models.*.batch.max_size", *_AT_LEAST_1),
    Rule(Config, "backends.*.retry.budget backends.*.eject.panic_below logging.sample tracing.sample", *_SHARE),
    Rule(Limits, "request_body response_body header head", *_POSITIVE),
    Rule(Limits, "header", lambda at: at.value > 256 * 1024, "expected at most 256KiB: it is read in one step"),
    Rule(Limits, "client_keep_alive header_timeout body_timeout client_idle", *_POSITIVE),
    Rule(Access, "deny.*", lambda at: not at.value.startswith(("/", "*")),
         "expected a pattern of paths, which begins with / or *"),
    Rule(Config, "tracing.service_name backends.*.models.*.signature routes.*.name", lambda at: not at.value,
         "expected a name"),
    Rule(Config, "tracing.headers.* backends.*.headers.set.*", *_HEADER),
    Rule(Config, "tracing.headers.* backends.*.headers.set.*", *_HEADER_VALUE),
    Rule(BackendTls, "certificate key",
         lambda at: "key" if at.part.key is None else "certificate" if at.part.certificate is None else None,
         "expected together with `{found}`, which is missing"),
    # what is no name cannot be sent in a handshake
    Rule(BackendTls, "server_name", lambda at: not _SERVER_NAME.fullmatch(at.value),
         "expected the name of a host, such as model.example.com"),
    Rule(Headers, "set.*", lambda at: at.name.lower() in SET_BY_GATEWAY, "the gateway sets this header itself"),
    Rule(Headers, "remove.*", lambda at: not HEADER_NAME.fullmatch(at.value), "invalid header name"),
    Rule(ModelTensor, "shape", lambda at: len(at.value) > MAX_RANK, f"expected at most {MAX_RANK} dimensions"),
    Rule(ModelTensor, "encoding", lambda at: at.part.datatype in (None, "BOOL"),
         "expected `datatype` beside it, BYTES or one of numbers"),
    Rule(ModelOutput, "missing", *_FOR_STRINGS),
    Rule(Model, "outputs", lambda at: "" in at.value, "expected a name for each of them"),
    Rule(Model, "inputs", lambda at: "" in at.value and len(at.value) > 1,
         "expected a name for each of them: only a single input may have none"),
    Rule(Model, "request", lambda at: {f".body{place}": fault for place, fault in at.part.body.faults.items()},
         "{found}"),
    Rule(Model, "answer.* error", lambda at: _refusal(steps_of, at.value), "{found}"),
    Rule(Model, "answer.*", lambda at: at.name not in at.part.outputs,
         "no such output in `outputs`, where its `datatype` has to stand"),
    Rule(Model, "outputs.*", lambda at: at.part.answer and at.name not in at.part.answer,
         "expected a path of it in `answer`"),
    Rule(Model, "answer", _paths_fault, "{found}"),
    Rule(Model, "error", lambda at: "[*]" in at.value, "expected a path without [*]"),
    Rule(Model, "success", _success_fault, "{found}"),
    Rule(Model, "order", _order_fault, "{found}"),
    Rule(ModelRequest, "rows parallel", *_AT_LEAST_1),
    Rule(Model, "request.rows", lambda at: not any(each.shape != [] for each in at.part.inputs.values()),
         "expected an input with rows in `inputs`: one of shape [] is the same in each request"),
    Rule(Model, "outputs.*.shape", lambda at: at.value == [] and at.part.request is not None and at.part.request.rows,
         "expected a first dimension for the rows, because of `request.rows`"),
    Rule(ModelRequest, "path", lambda at: set(_FIELD.findall(at.value)) - {"{model}", "{version}"},
         "expected nothing in braces but {{model}} and {{version}}"),

    Rule(Backend, "health.path models.*.request.path", lambda at: not _PATH.fullmatch(at.value),
         "expected a path that starts with /, of printable ASCII characters without spaces and #"),
    Rule(Backend, "health.path models.*.request.path", lambda at: find_path_fault(at.value.partition("?")[0]),
         "{found}"),
    Rule(Backend, "endpoints", lambda at: _repeated(at.value), "duplicate endpoint"),
    Rule(Backend, "binary leave_out ids", *_ONLY_V2),
    Rule(Backend, "ids", lambda at: at.value == "always" and "id" in at.part.leave_out,
         "expected client, because `leave_out` has id: a request has an id or it has none"),
    Rule(Backend, "models.*", lambda at: _matches_no_model(at.name), _NO_MODEL),
    Rule(Backend, "models.*.inputs.*.encoding models.*.outputs.*.encoding models.*.outputs.*.missing",
         lambda at: at.part.dialect == "v2", "this is for other dialects, and `dialect` is v2"),
    Rule(Backend, "models.*.format", _expected_formats, "expected {found}, because `dialect` is {part.dialect}"),
    Rule(Backend, "models.*.signature", lambda at: at.part.dialect not in ("tensorflow", "auto"),
         "only models of TensorFlow have signatures, and `dialect` is {part.dialect}"),
    Rule(Backend, "models.*.outputs.*",
         lambda at: at.part.dialect in ("mlflow", "template", "python") and at.value.datatype is None,
         "expected its `datatype`: neither the server nor its answers say it"),

    # the walk's own name for `order` has one
    Rule(Backend, "models.*.outputs.*", lambda at: at.part.dialect == "template" and "\0" in at.name,
         "expected a name without NUL characters"),
    Rule(Backend, "models.*",
         lambda at: at.part.dialect != "template" and any(
             (at.value.request, at.value.answer, at.value.error, at.value.success, at.value.order)),
         "`request`, `answer`, `success`, `error` and `order` are for `dialect: template`, and `dialect` is "
         "{part.dialect}"),
    Rule(Backend, "models.*.inputs.*",
         lambda at: at.part.dialect not in ("template", "python") and at.value.optional,
         "`optional` is for `dialect: template` and `python`, and `dialect` is {part.dialect}"),
    Rule(Backend, "models.*", lambda at: at.part.dialect == "template" and not at.value.request and {".request": True},
         "missing; expected what is sent, such as {{path: /predict, body: {{features: $x}}}}"),
    Rule(Backend, "models.*", lambda at: at.part.dialect == "template" and not at.value.answer and {".answer": True},
         "missing; expected where each output stands, such as {{y: $.predictions}}"),
    Rule(Backend, "health", lambda at: at.part.dialect in ("template", "python") and at.value.path is None,
         "expected its `path`: nothing tells what such servers answer, because `dialect` is {part.dialect}"),
    Rule(Backend, "", lambda at: at.part.dialect == "python" and at.part.adapter is None and {".adapter": True},
         "missing; expected the Python file with `request` and `answer`, because `dialect` is python"),
    Rule(Backend, "adapter", lambda at: at.part.dialect != "python",
         "this is for `dialect: python`, and `dialect` is {part.dialect}"),
    Rule(Backend, "models.*", lambda at: at.part.dialect == "python" and not at.value.outputs and {".outputs": True},
         "missing; expected what the adapter's `answer` returns, such as {{y: {{datatype: FP32}}}}"),
    Rule(Backend, "models.*.inputs.*.encoding models.*.outputs.*.encoding", lambda at: at.part.dialect == "python",
         "the adapter writes and reads the server's JSON, because `dialect` is python"),

    Rule(Route, "", lambda at: (at.part.backend is None) == (at.part.split is None) and {".backend": True},
         "expected either `backend` or `split`"),
    Rule(Route, "split", lambda at: not any(at.value.values()) or min(at.value.values()) < 0,
         "expected backends and their weights, such as {{stable: 95, next: 5}}"),
    Rule(Route, "models", lambda at: not at.value, "an empty list matches nothing; leave it out to match everything"),
    Rule(Route, "models.*", lambda at: _matches_no_model(at.value), _NO_MODEL),
    Rule(Route, "host", lambda at: not re.fullmatch("[!-.0-~]+", at.value),
         "expected the name of a host as in a URL, without its scheme, such as api.example.com"),
    Rule(Route, "path_prefix", lambda at: not _PREFIX.fullmatch(at.value),
         "never matches: expected a path as in a URL, which starts with /, percent-encoded and without a query"),
    Rule(Route, "path_prefix", lambda at: find_path_fault(at.value),
         "never matches, because such requests are refused: {found}"),
    Rule(Route, "strip_prefix", lambda at: at.value and not at.part.path_prefix,
         "expected together with `path_prefix`, the prefix that is stripped"),
    Rule(Route, "strip_prefix", lambda at: at.value and f"{at.part.path_prefix}/".startswith("/v2/"),
         "`path_prefix` is part of the protocol's own paths, which the backend needs"),
    Rule(Route, "rename.*", lambda at: not at.name or not at.value or "/" in at.name + at.value,
         "expected names of models, not empty and without a slash"),

    Rule(Config, "workers limits.concurrent_requests limits.connections limits.tensors", *_AT_LEAST_1),
    Rule(Config, "backends backends.*.endpoints", lambda at: not at.value, "expected at least one"),
    Rule(Config, "backends", lambda at: "" in at.value, "expected a name for each of them"),
    Rule(Config, "limits.in_flight_bytes",
         lambda at: at.value < (least := at.part.workers * at.part.limits.request_body)
         and f"{Size(least)}{'; or leave this key out' if at.part.limits.request_body <= 2 * 1024**3 else ''}",
         "expected `limits.request_body` for each of the `workers`, at least {found}"),
    Rule(Config, "limits.request_body", lambda at: not at.part.limits.in_flight_bytes and at.value > 2 * 1024**3,
         "expected at most 2GiB, or `limits.in_flight_bytes`, which has to be as large for each of the `workers`"),
    Rule(Config, "admin", lambda at: at.value.is_unix, "expected host:port; `unix:` is for `listen` only"),
    Rule(Config, "grpc", lambda at: at.part.listen.takes(at.value),
         "the same address as `listen`, where HTTP/1.1 is spoken"),
    Rule(Config, "grpc", lambda at: at.part.admin.takes(at.value),
         "the same address as `admin`, which is never for clients"),
    Rule(Config, "admin", lambda at: at.part.listen.takes(at.value), "the same address as `listen`, which clients use"),
    Rule(Config, "routes", lambda at: not at.value and len(at.part.backends) > 1,
         "needed as soon as there is more than one backend"),
    # every worker has a share of what is counted, or the sum of the shares would be more than the limit
    Rule(Config, "limits.concurrent_requests limits.connections limits.per_client.concurrent limits.per_client.burst "
         "backends.*.max_connections backends.*.queue.length", lambda at: 0 < at.value < at.part.workers,
         "expected at least as many as `workers`"),
    Rule(Config, "backends.*.endpoints.*", lambda at: at.part.admin.is_reached_by(at.value),
         f"this is the gateway's own `admin`, which is never for clients: {_OWN}"),
    Rule(Limits, "per_client.concurrent per_client.rate per_client.burst", *_AT_LEAST_0),
    Rule(Limits, "per_client.rate", lambda at: 0 < at.value < 0.0003,
         "expected at least 0.0003 (one request an hour), or 0 for no limit"),
    Rule(Limits, "per_client.burst", lambda at: at.value and not at.part.per_client.rate,
         "expected together with `rate`, of which it is a part"),
    Rule(Config, "backends.*.endpoints.*", lambda at: at.part.listen.is_reached_by(at.value),
         f"this is the gateway's own listener, `listen`, an endless loop: {_OWN}"),
    Rule(Config, "backends.*.endpoints.*", lambda at: at.part.grpc and at.part.grpc.is_reached_by(at.value),
         f"this is the gateway's own `grpc`, where HTTP/1.1 is not spoken: {_OWN}"),
    Rule(Config, "routes.*.backend", lambda at: _no_backend(at.value, at.part), _NO_BACKEND),
    Rule(Config, "routes.*.split.*", lambda at: _no_backend(at.name, at.part), _NO_BACKEND),
    Rule(Config, "backends.*", lambda at: not at.part.routes and at.name == "none", _NONE_IS_RESERVED),
    Rule(Config, "routes", lambda at: _repeated([route.name for route in at.value], ".name"),
         "duplicate name, as in routes[{found}]"),
    Rule(Config, "routes.*.name", lambda at: at.value == "none", _NONE_IS_RESERVED),
)
"""What stops the start."""

WARNINGS = (
    Rule(Timeouts, "connect first_byte idle", lambda at: at.value > at.part.total,
         "longer than `total`, which ends the call first"),
    Rule(BackendTls, "verify", lambda at: not at.value,
         "false accepts any certificate: anyone on the network path can read and change everything"),
    Rule(Backend, "tls", lambda at: at.value != BackendTls() and not any("https:" in url for url in at.part.endpoints),
         "no effect: no endpoint begins with https://"),
    Rule(Backend, "batch models.*.batch", lambda at: at.value.max_size > 1 and at.part.binary == "always",
         "no effect, because `binary` is always: requests pass as they come, each alone"),
    Rule(Backend, "bytes half_precision", lambda at: at.part.dialect == "python",
         "no effect: the adapter gets the values, and writes them as it likes, because `dialect` is python"),
    Rule(Headers, "set.*", lambda at: re.fullmatch(r"(.* )?\$[A-Za-z_]\w*", at.value, re.ASCII),
         "sent as it stands here: a value from the environment is written ${{NAME}}, with braces"),
    Rule(Access, "deny.*", lambda at: at.value.endswith(("/v2/repository", "/")) and not any(
            "*" in each and fnmatch.fnmatchcase(f"{at.value.rstrip('/')}/", each) for each in at.part.deny),
         "closes only this very path: those below it need a * at the end, as in /v2/repository/*"),
    Rule(Route, "rename.*", lambda at: not any(fnmatch.fnmatchcase(at.name, m) for m in at.part.models or ["*"]),
         "no request is renamed: the route's `models` do not match this name"),
    Rule(Backend, "dialect", lambda at: at.value == "mlflow" and not any(m.outputs for m in at.part.models.values()),
         "every inference gets 502: set the datatypes of the outputs in `models`"),
    Rule(Backend, "dialect", lambda at: at.value in ("template", "python") and not at.part.models,
         "every inference gets 404: describe the models in `models`"),
    Rule(Model, "request", lambda at: {f".body{place}": name for place, name in at.part.body.braced.items()},
         "{{{found}}} is sent as it stands here: `${found}`, as a whole text, is the name at the backend"),
    Rule(Model, "request.body", lambda at: sorted(at.part.inputs.keys() - at.part.body.sent - {""})
         if at.part.body is not None and not at.part.body.faults else None,
         "only the shapes of the inputs {found} stand in it: what clients send as their values is lost"),
    Rule(Config, "listen admin", lambda at: 0 < at.value.port < 1024,
         "a port below 1024 needs a privilege, such as CAP_NET_BIND_SERVICE"),
    Rule(Config, "admin", lambda at: not at.value.is_local,
         "open to other machines, without TLS and tokens: it shows metrics and the configuration"),
    Rule(Config, "access.tokens_file", lambda at: at.part.tls is None and not at.part.listen.is_local,
         "without `tls`, anyone on the network can read the tokens"),
    Rule(Config, "trusted_proxies.*", lambda at: at.value.endswith("/0"),
         "every client may say that it is another: name only the proxies"),
    Rule(Config, "backends.*",
         lambda at: at.part.routes and not any(at.name in route.backends for route in at.part.routes),
         "unused: no route leads to it, see `routes`"),
    Rule(Config, "routes.*.path_prefix", lambda at: at.part.grpc and not re.match("/(v2(/|$)|$)", at.value),
         "matches over HTTP only: the paths of `grpc` begin with /v2"),
    Rule(Config, "routes", _never_matching, "never matches: `routes[{found}]` before it takes all its requests"),
)
"""What is shown for keys that stand in the file."""
# fmt: on
