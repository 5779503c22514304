"""What the configuration may say and hardly means: tables of rules, and which routes can never match.

A route can never match if earlier ones take all its requests, where that is certain; in doubt it is taken to match
something. Not here: errors, and how tables are read (`rules`); how requests are matched (`policy.routing`), whose rules
these follow.
"""

import fnmatch
import re
from urllib.parse import urlsplit

from gateway.codec import BytesPolicy, HalfPrecision, NonFinite
from gateway.config.rules import Place, Rule
from gateway.config.schema import Backend, BackendTls, Config, Logging, Route, Timeouts, Tracing
from gateway.config.values import FORMATS, shortened

MAX_COMPARED_PATTERNS = 2000
"""The most routes, each counted as often as it has models, for which `check` says whether they can match: each is
compared with all before it. Also the most pairs of a route's renamed models and patterns that are compared."""

MAX_COMPARED_MODELS = 100
"""The most models of a backend for which `check` says whether their patterns can match."""

_TOKEN_HEADERS = ("authorization", "x-api-key")

_FIRST_SEGMENTS = {"v2": "v2", "auto": "v2", "tensorflow": "v1", "mlflow": "invocations"}
"""How the paths of inferences begin."""

_SPECIAL = re.compile(r"[*?\[]")


def _is_not_written(at: Place) -> bool:
    """Whether a policy for the JSON of requests is not the default, although no request becomes JSON."""
    defaults: tuple[object, ...] = (NonFinite.REJECT, BytesPolicy.UTF8, HalfPrecision.NATIVE, [], "client")
    return at.part.binary == "always" and at.value not in defaults


def _has_tls_for_nothing(at: Place) -> bool:
    return at.value != BackendTls() and not any(endpoint.startswith("https:") for endpoint in at.part.endpoints)


def _segment_twice(at: Place) -> str | None:
    """The first segment of inferences' paths, if the endpoint's path has it too."""
    first = _FIRST_SEGMENTS.get(at.part.dialect)
    return first if first in urlsplit(at.value).path.split("/") else None


def _never_reached(at: Place) -> dict[str, str]:
    """The patterns of models that match only what an earlier pattern matches, each with the earlier pattern."""
    patterns = list(at.value)[:MAX_COMPARED_MODELS]
    found = {}
    for index, pattern in enumerate(patterns):
        wide = next((each for each in patterns[:index] if _covers_pattern(each, pattern)), None)
        if wide is not None:
            found[f".{shortened(pattern)}"] = repr(shortened(wide))
    return found


def _never_renamed(at: Place) -> bool:
    """Whether the route does not get the model that it renames."""
    models = at.part.models
    if models is None or len(at.part.rename) * len(models) > MAX_COMPARED_PATTERNS:
        return False
    return not any(fnmatch.fnmatchcase(at.name, pattern) for pattern in models)


def _loses_header(at: Place) -> bool:
    """Whether requests stick by a header that is taken off them."""
    return at.part.access.tokens_file is not None and (at.value.header or "").lower() in _TOKEN_HEADERS


def _is_led_to(at: Place) -> bool:
    return any(at.name in route.backends for route in at.part.routes)


def _sticky_for_nothing(at: Place) -> bool:
    """Whether `sticky` is set where all requests go to one endpoint anyway, and no split leads to another backend."""
    is_shared = any(at.name in route.backends for route in at.part.routes if len(route.backends) > 1)
    return at.value != "none" and at.part.backends[at.name].has_one_endpoint and not is_shared


def _never_matching(at: Place) -> dict[str, int]:
    """The routes that can never match, each with the index of the first route that takes all its requests."""
    routes = at.value
    if sum(max(1, len(route.models or ())) for route in routes) > MAX_COMPARED_PATTERNS:
        return {}
    found = {}
    for index, route in enumerate(routes):
        cover = next((earlier for earlier in range(index) if _covers(routes[earlier], route)), None)
        if cover is not None:
            found[f"[{index}]"] = cover
    return found


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
    if wide in ("*", narrow):
        return True
    if not _SPECIAL.search(narrow):
        return fnmatch.fnmatchcase(narrow, wide)
    beginning = wide[:-1]
    literal = _SPECIAL.split(narrow, maxsplit=1)[0]
    return wide.endswith("*") and not _SPECIAL.search(beginning) and literal.startswith(beginning)


# fmt: off
_CALL_ENDS = ", which ends the call first"

WARNINGS = (
    Rule(Logging, "sample", lambda at: at.part.access == "none" and at.value < 1, "without effect: `access` is none"),
    Rule(Tracing, "endpoint", lambda at: urlsplit(at.value).port == 4317,
         "4317 is usually the port of OTLP over gRPC; that of OTLP over HTTP, used here, is 4318"),
    Rule(Timeouts, "connect first_byte idle", lambda at: at.value > at.part.total, f"longer than `total`{_CALL_ENDS}"),
    Rule(BackendTls, "verify", lambda at: not at.value,
         "false accepts any certificate: anyone on the network path can read and change everything"),

    Rule(Backend, "dialect", lambda at: at.value == "mlflow" and not any(m.outputs for m in at.part.models.values()),
         "every inference gets 502: set the datatypes of the outputs in `models`"),
    Rule(Backend, "dialect", lambda at: at.value == "template" and not at.part.models,
         "every inference gets 404: describe the models in `models`"),
    Rule(Backend, "half_precision", lambda at: at.part.dialect in FORMATS and at.value is HalfPrecision.PROMOTE,
         "without effect: requests name no datatypes, because `dialect` is {part.dialect}"),
    Rule(Backend, "health", lambda at: at.part.dialect == "auto" and at.value.path is None,
         "asks /v2/health/ready, which only servers of V2 answer: set `path`"),
    Rule(Backend, "health.path", lambda at: at.part.dialect in FORMATS and at.value.startswith("/v2/"),
         "most servers that do not speak V2 answer 404 there, which tells nothing"),
    Rule(Backend, "nonfinite bytes half_precision leave_out ids", _is_not_written,
         "without effect on inferences, which are passed on as they are: `binary` is always"),
    Rule(Backend, "models", _never_reached, "never matches: {found} before it does"),
    Rule(Backend, "endpoints.*", _segment_twice,
         "its path is put before that of every request, which begins with /{found} already"),
    Rule(Backend, "tls", _has_tls_for_nothing,
         "without effect: no endpoint's URL begins with https"),
    Rule(Backend, "queue.timeout", lambda at: at.part.queue.length > 0 and at.value > at.part.timeouts.total,
         f"longer than `timeouts.total`{_CALL_ENDS}"),
    Rule(Backend, "endpoints.*", lambda at: urlsplit(at.value).hostname in ("0.0.0.0", "::"),  # noqa: S104  compared
         "this address is for listening; to reach this machine: 127.0.0.1"),

    Rule(Route, "rename.*", _never_renamed, "without effect: no pattern of `models` matches it"),
    Rule(Route, "rename.*", lambda at: "*" in at.name, "without effect on other names: this is a name and no pattern"),

    Rule(Config, "listen admin", lambda at: 0 < at.value.port < 1024,
         "a port below 1024 needs a privilege, such as CAP_NET_BIND_SERVICE"),
    Rule(Config, "admin", lambda at: not at.value.is_local,
         "open to other machines, without TLS and tokens: it shows metrics and the configuration"),
    Rule(Config, "access.tokens_file", lambda at: at.part.tls is None and not at.part.listen.is_local,
         "without `tls`, anyone on the network can read the tokens"),
    Rule(Config, "trusted_proxies.*", lambda at: at.value.is_everybody,
         "every client may say that it is another: name only the proxies"),
    Rule(Config, "trusted_proxies.*", lambda at: at.value == "unix" and not at.part.listen.is_unix,
         "without effect: `listen` is no unix: address"),
    Rule(Config, "backends.*.sticky", _loses_header,
         "without effect where this header holds a token of `access.tokens_file`: it is taken off before"),
)
"""What is shown for keys that stand in the file."""

UNUSED = (
    Rule(Config, "backends.*", lambda at: at.part.routes and not _is_led_to(at), "unused: no route leads to it"),
    Rule(Config, "routes", _never_matching, "never matches: routes[{found}] before it takes all its requests"),
    Rule(Config, "backends.*.sticky", _sticky_for_nothing, "without effect: there is only one endpoint"),
)
"""What else is shown where all routes and backends could be read: rules about which backend a route leads to."""
