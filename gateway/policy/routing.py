"""Which backend a request goes to, under which path, and what that path asks for (protocol section 8).

A route matches by patterns of hosts, paths and model names, and may choose among several backends. Not here: which
endpoint of the backend gets the request (`balancing`).
"""

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple, Protocol
from urllib.parse import quote, unquote

import msgspec

from gateway.headers import Headers
from gateway.policy.sticky import pick_weighted

_MODELS = "/v2/models/"
_REPOSITORY_MODELS = "/v2/repository/models/"
_INFER_VERSION = re.compile(r"/versions/[^/]+/infer")
_RELOADED_PATH = re.compile(r"(.*)/v2/repository/models/([^/]+)/(?:load|unload)")
# /v2/models/stats asks for the statistics of all models
_V2_PATH = re.compile(r"(.*?)/v2(?:/models/(?!stats/?\Z)([^/]+)(?:/versions/([^/]+))?)?(/.*)?", re.DOTALL)
_HOST = re.compile(r"(\[[^\]]*:[^\]]*\]|[^:]*)(?::([^:]*))?")
_SERVER_PATHS = ("/v2", "/v2/")


class PathKind(Enum):
    """What the gateway does with a path."""

    INFER = auto()
    SERVER_METADATA = auto()
    V2 = auto()
    """Any other path of the protocol: errors are replied in the protocol's shape."""
    OTHER = auto()


class RouteRule(Protocol):
    """A row of the configuration's `routes`."""

    @property
    def name(self) -> str:
        """The route's name in metrics and logs."""

    @property
    def backends(self) -> list[str]:
        """The names of the backends that the route leads to."""

    @property
    def split(self) -> dict[str, int] | None:
        """The relative weights of several backends (protocol 8.3)."""

    @property
    def models(self) -> list[str] | None:
        """Patterns of model names, such as `resnet*`."""

    @property
    def host(self) -> str | None:
        """A pattern of host names, such as `*.example.com`; with a port if the port must match, too."""

    @property
    def path_prefix(self) -> str | None:
        """The first segments of the path, such as `/prod`."""

    @property
    def strip_prefix(self) -> bool:
        """Whether the backend gets the path without `path_prefix` (protocol 8.1)."""

    @property
    def rename(self) -> dict[str, str]:
        """The backend's names of models by the names that clients write (protocol 8.2)."""


@dataclass(frozen=True, slots=True)
class Sticky:
    """Which part of a request is its sticky key (protocol 8.4).

    Requests with the same key go to the same endpoint, and in a split to the same backend.
    """

    header: str = ""
    """The name of the header whose value is the key, in lower case; empty for none."""
    by_sequence: bool = False
    """Whether the key is the sequence id of an inference."""

    @classmethod
    def parse(cls, text: str) -> "Sticky":
        """Read *text*, the configuration's `sticky`: `none`, `sequence_id` or `header:NAME`."""
        if text == "sequence_id":
            return cls(by_sequence=True)
        return cls(header=text.removeprefix("header:").lower() if text.startswith("header:") else "")

    def header_key(self, headers: Headers) -> str | None:
        """The key in *headers*, without blanks at its ends; None if there is none, or no header is the key."""
        return (headers.get(self.header).strip() or None) if self.header else None


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a route leads: the same for all its requests."""

    route: str
    weights: dict[str, int]
    """Backends by name with their relative weights, all above 0."""
    sticky: Sticky
    only: str | None
    """The backend, if there is just one."""

    def pick(self, key: str | None, draw: float) -> str:
        """The name of the backend for a request with the sticky *key*, or by *draw* (random, 0 <= draw < 1) without."""
        if self.only is not None:
            return self.only
        if key is not None:
            return pick_weighted(key, self.weights)
        left = draw * sum(self.weights.values())
        for name, weight in self.weights.items():
            if left < weight:
                return name
            left -= weight
        return next(reversed(self.weights))  # rounding may leave the draw just above the sum


class V2Path(NamedTuple):
    """A path of the protocol, taken apart."""

    before: str
    """The part of the path before the protocol's own path, such as a prefix that a route keeps."""
    model: str | None
    """The backend's name of the model, decoded."""
    version: str | None
    """The version of the model, decoded."""
    asked: str
    """The rest of the path, `/infer` or `/health/live` for example; empty for the metadata."""


class Match(msgspec.Struct):
    """Where a route sends one request. A msgspec struct is made in a third of the time of a dataclass."""

    destination: Destination
    model: str | None
    """The client's name of the model in the path; None if the path names none."""
    kind: PathKind
    target: str
    """Raw path and query for the backend: where the route says so, without the prefix and with the backend's name of
    the model."""
    is_renamed: bool = False
    """Whether the backend knows the model under another name."""
    _v2_path: V2Path | None = None  # once it was asked for; the plan keeps matches

    @property
    def path(self) -> str:
        """The path for the backend, without the query."""
        return self.target.partition("?")[0]

    @property
    def v2_path(self) -> V2Path:
        """The path for the backend, taken apart; only for paths whose `kind` is not OTHER."""
        if self._v2_path is None:
            read = _V2_PATH.fullmatch(self.path)
            assert read is not None, self.path
            before, model, version, asked = read.groups()
            parts = before, model and unquote(model), version and unquote(version), (asked or "").rstrip("/")
            self._v2_path = V2Path(*parts)
        return self._v2_path

    def naming_key(self, method: str) -> str:
        """The top-level member of the answer that names the model: `name` in metadata, which GET asks for."""
        return "name" if method in ("GET", "HEAD") else "model_name"

    @property
    def reloaded_path(self) -> str | None:
        """The path for the backend of the model that this request loads or unloads; None for any other request."""
        reloaded = _RELOADED_PATH.fullmatch(self.path)
        return None if reloaded is None else f"{reloaded[1]}/v2/models/{reloaded[2]}"


class _Route:
    """A rule, with its patterns compiled."""

    def __init__(self, rule: RouteRule, stickies: Mapping[str, str]) -> None:
        self.rule = rule
        weights = rule.split if rule.split is not None else dict.fromkeys(rule.backends, 1)
        self.destination = _destination(rule.name, weights, stickies)
        self.prefix = prefix = (rule.path_prefix or "").rstrip("/")
        self._inside = prefix + "/"
        # a prefix that is kept may itself be the beginning of a path of the protocol
        self._n_before = 0 if f"{prefix}/".startswith("/v2/") and not rule.strip_prefix else len(prefix)
        self.kept = "" if rule.strip_prefix else prefix[: self._n_before]
        """The prefix that is put before the rest of the path for the backend."""
        host, port = _split_host(rule.host or "")
        self._host = None if rule.host is None else _compiled([host])
        self._port = None if port is None else _compiled([port])
        self._models = None if rule.models is None else _compiled(rule.models)

    def rest_of(self, path: str) -> str | None:
        """The part of *path* after the prefix, or all of *path* if the prefix is part of the protocol's own path.

        None if *path* does not begin with the prefix.
        """
        if not path.startswith(self._inside) and path != self.prefix:
            return None
        rest = path[self._n_before :]
        if not self.rule.strip_prefix:
            return rest
        # two slashes may be read as the beginning of a host (RFC 3986 section 4.2)
        return None if rest.startswith("//") else rest or "/"

    def takes(self, host: str, model: str | None) -> bool:
        """Whether the rule's patterns match *host* (maybe with a port) and *model* (None if the path names none)."""
        if self._host is not None:
            name, port = _split_host(host)
            if not self._host.match(name) or (self._port is not None and not self._port.match(port or "")):
                return False
        return self._models is None or (model is not None and self._models.match(model) is not None)


class Router:
    """The routes of a configuration; the first that matches wins."""

    def __init__(self, routes: Sequence[RouteRule], stickies: Mapping[str, str]) -> None:
        """*stickies* maps the backends' names to their `sticky`.

        Without *routes* everything goes to the first backend, and the route has the backend's name. In a split the
        first backend that is sticky decides for all.
        """
        self._routes = [_Route(rule, stickies) for rule in routes]
        first = next(iter(stickies))
        self._default = _destination(first, {first: 1}, stickies)

    @property
    def names(self) -> list[str]:
        """The routes as metrics and logs call them."""
        return [route.rule.name for route in self._routes] or [self._default.route]

    def names_for_clients(self, backend: str) -> dict[str, str]:
        """The clients' names of the models of *backend* that routes rename, by the backend's names."""
        rules = (route.rule for route in self._routes)
        return {own: name for rule in rules if backend in rule.backends for name, own in rule.rename.items()}

    def match(self, host: str, path: str, query: str = "") -> Match | None:
        """Find the route for *host* (`Host`, maybe with a port) and *path* (percent-encoded, without query).

        *query* crosses as it is, with its question mark. None if no route matches.
        """
        if not self._routes:
            _, _, model, kind = _read(path)
            return Match(self._default, model, kind, path + query)
        for route in self._routes:
            rest = route.rest_of(path) if route.prefix else path
            if rest is None:
                continue
            before, behind, model, kind = _read(rest)
            if route.takes(host, model):
                renamed = model and route.rule.rename.get(model)
                if renamed:
                    rest = f"{before}{quote(renamed, safe='')}{behind}"
                is_renamed = bool(renamed) and renamed != model
                return Match(route.destination, model, kind, route.kept + rest + query, is_renamed)
        return None


def _destination(route: str, weights: Mapping[str, int], stickies: Mapping[str, str]) -> Destination:
    used = {name: weight for name, weight in weights.items() if weight > 0}
    rules = [Sticky.parse(stickies[name]) for name in used]
    sticky = next((rule for rule in rules if rule != Sticky()), Sticky())
    return Destination(route, used, sticky, next(iter(used)) if len(used) == 1 else None)


def _read(path: str) -> tuple[str, str, str | None, PathKind]:
    """*path* before and after the model's name, the name, and the kind of the path."""
    if path.startswith(_MODELS):
        before = _MODELS
    elif path.startswith(_REPOSITORY_MODELS):
        before = _REPOSITORY_MODELS
    else:
        before = ""
    name, slash, rest = path[len(before) :].partition("/")
    if not before or not name or "\n" in rest:  # no server takes a path with a newline
        if path in _SERVER_PATHS:
            return path, "", None, PathKind.SERVER_METADATA
        return path, "", None, PathKind.V2 if path.startswith("/v2/") else PathKind.OTHER
    behind = slash + rest
    is_infer = before == _MODELS and (behind == "/infer" or _INFER_VERSION.fullmatch(behind) is not None)
    return before, behind, unquote(name) if "%" in name else name, PathKind.INFER if is_infer else PathKind.V2


def _compiled(patterns: Sequence[str]) -> re.Pattern[str]:
    """One pattern that matches whatever any of *patterns* (as of a shell) matches; without any, nothing."""
    return re.compile("|".join(map(fnmatch.translate, patterns)) or r"(?!)")


def _split_host(text: str) -> tuple[str, str | None]:
    """The name in lower case, without the brackets of IPv6 and a final dot, and the port; None if there is none."""
    split = _HOST.fullmatch(text.lower())
    name, port = split.groups() if split is not None else (text.lower(), None)  # IPv6 without brackets has no port
    if ":" in name:  # to fnmatch the brackets would be a set of characters
        name = name.strip("[]")
    return name.removesuffix("."), port
