"""Which backend a request goes to, under which path, and what that path asks for (protocol section 8).

A route matches by patterns of hosts, paths and model names, and may choose among several backends. Not here: which
endpoint of the backend gets the request (`balancing`).
"""

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple
from urllib.parse import quote, unquote

import msgspec

from gateway.headers import Headers
from gateway.policy.balancing import pick_weighted

_MODELS = "/v2/models/"
# no server takes a path with a newline
_NAMED = re.compile(r"(/v2/(?:repository/)?models/)([^/]+)((?:/.*)?)")
_INFER = re.compile(r"(?:/versions/[^/]+)?/infer")
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


class RouteRule(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the configuration's `routes`."""

    name: str
    backend: str | None = None
    split: dict[str, int] | None = None
    """Backends and their relative weights, instead of `backend` (protocol 8.3)."""
    models: list[str] | None = None
    """Patterns of model names, such as `resnet*`."""
    host: str | None = None
    """A pattern of host names, such as `*.example.com`; with a port if the port must match, too."""
    path_prefix: str | None = None
    strip_prefix: bool = False
    """Whether the backend gets the path without `path_prefix` (protocol 8.1)."""
    rename: dict[str, str] = {}
    """From the name that clients give a model to the name that the backend knows it by (protocol 8.2)."""

    @property
    def backends(self) -> list[str]:
        """The backends that it leads to."""
        return [self.backend] if self.backend is not None else list(self.split or ())


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a route leads: the same for all its requests.

    Requests with the same sticky key go to the same endpoint, and in a split to the same backend (protocol 8.4).
    """

    route: str
    weights: dict[str, int]
    """Backends by name with their relative weights, all above 0."""
    only: str | None
    """The backend, if there is just one."""
    sticky: str
    """Which part of a request is its sticky key: `none`, `sequence_id` of inferences, or `header:NAME`."""

    @classmethod
    def of(cls, route: str, weights: Mapping[str, int], stickies: Mapping[str, str]) -> "Destination":
        """*stickies* maps the backends' names to their `sticky`; in a split the first that is not `none` decides."""
        used = {name: weight for name, weight in weights.items() if weight > 0}
        sticky = next((stickies[name] for name in used if stickies[name] != "none"), "none")
        return cls(route, used, next(iter(used)) if len(used) == 1 else None, sticky)

    def header_key(self, headers: Headers) -> str | None:
        """The key in *headers*, without blanks at its ends; None if there is none, or no header is the key."""
        kind, _, name = self.sticky.partition(":")
        return (headers.get(name.lower()).strip() or None) if kind == "header" else None

    def pick(self, key: str) -> str:
        """The name of the backend for a request with the sticky *key*; with a random text, if it has none."""
        return self.only or pick_weighted(key, self.weights)


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


class _Compiled:
    """A route, with its patterns compiled."""

    def __init__(self, route: RouteRule, stickies: Mapping[str, str]) -> None:
        self.route = route
        weights = route.split if route.split is not None else dict.fromkeys(route.backends, 1)
        self.destination = Destination.of(route.name, weights, stickies)
        self._prefix = prefix = (route.path_prefix or "").rstrip("/")
        # a prefix that is kept may itself be the beginning of a path of the protocol
        self._n_before = 0 if f"{prefix}/".startswith("/v2/") and not route.strip_prefix else len(prefix)
        host, port = _split_host(route.host or "")
        self._host = None if route.host is None else _compiled([host])
        self._port = None if port is None else _compiled([port])
        self._models = None if route.models is None else _compiled(route.models)

    def match(self, host: str, path: str, query: str) -> Match | None:
        """As `Router.match`, by this route alone."""
        prefix = self._prefix
        if not path.startswith(f"{prefix}/") and path != prefix:
            return None
        kept, rest = path[: self._n_before], path[self._n_before :]
        if self.route.strip_prefix:
            kept, rest = "", rest or "/"
            if rest.startswith("//"):  # may be read as the beginning of a host (RFC 3986 section 4.2)
                return None
        before, model, behind, kind = _read(rest)
        if not self._takes(host, model):
            return None
        own = self.route.rename.get(model or "", model)
        is_renamed = own != model
        if own is not None and is_renamed:
            rest = f"{before}{quote(own, safe='')}{behind}"
        return Match(self.destination, model, kind, kept + rest + query, is_renamed)

    def _takes(self, host: str, model: str | None) -> bool:
        """Whether the patterns match *host* (maybe with a port) and *model* (None if the path names none)."""
        if self._host is not None:
            name, port = _split_host(host)
            if not self._host.match(name) or (self._port is not None and not self._port.match(port or "")):
                return False
        return self._models is None or (model is not None and self._models.match(model) is not None)


class Router:
    """The routes of a configuration; the first that matches wins."""

    def __init__(self, routes: Sequence[RouteRule], stickies: Mapping[str, str]) -> None:
        """*stickies* maps the backends' names to their `sticky`.

        Without *routes* everything goes to the first backend, and the route has the backend's name.
        """
        first = next(iter(stickies))
        self._routes = [_Compiled(route, stickies) for route in routes or (RouteRule(name=first, backend=first),)]

    @property
    def names(self) -> list[str]:
        """The routes as metrics and logs call them."""
        return [each.route.name for each in self._routes]

    def names_for_clients(self, backend: str) -> dict[str, str]:
        """The clients' names of the models of *backend* that routes rename, by the backend's names."""
        routes = (each.route for each in self._routes)
        return {own: name for route in routes if backend in route.backends for name, own in route.rename.items()}

    def match(self, host: str, path: str, query: str = "") -> Match | None:
        """Find the route for *host* (`Host`, maybe with a port) and *path* (percent-encoded, without query).

        *query* crosses as it is, with its question mark. None if no route matches.
        """
        matches = (each.match(host, path, query) for each in self._routes)
        return next((match for match in matches if match is not None), None)


def _read(path: str) -> tuple[str, str | None, str, PathKind]:
    """*path* before the model's name, the name, *path* behind it, and the kind of the path."""
    named = _NAMED.fullmatch(path)
    if named is None:
        if path in _SERVER_PATHS:
            return path, None, "", PathKind.SERVER_METADATA
        return path, None, "", PathKind.V2 if path.startswith("/v2/") else PathKind.OTHER
    before, model, behind = named.groups()
    is_infer = before == _MODELS and _INFER.fullmatch(behind) is not None
    return before, unquote(model), behind, PathKind.INFER if is_infer else PathKind.V2


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
