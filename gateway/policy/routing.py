"""Which backend a request goes to, under which path, and what that path asks for (protocol section 8).

A route matches by patterns of hosts, paths and model names, and may choose among several backends.
"""

import fnmatch
import re
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import NamedTuple
from urllib.parse import quote, unquote

import msgspec

from gateway.policy.balancing import pick_weighted

_V2 = re.compile(r"/v2(?:(/repository)?/models/([^/]+)(?:/versions/([^/]+))?)?(/.*)?", re.DOTALL)
_RELOADED_PATH = re.compile(r"(.*)/v2/repository/models/([^/]+)/(?:load|unload)")
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

    destination: "Destination"
    model: str | None
    """The client's name of the model in the path; None if the path names none."""
    kind: PathKind
    target: str
    """Raw path and query for the backend: where the route says so, without the prefix and with the backend's name of
    the model."""
    v2_path: V2Path
    """The path for the backend, taken apart; of no meaning if `kind` is OTHER."""
    is_renamed: bool = False
    """Whether the backend knows the model under another name."""

    @property
    def path(self) -> str:
        """The path for the backend, without the query."""
        return self.target.partition("?")[0]

    @property
    def reloaded_path(self) -> str | None:
        """The path for the backend of the model that this request loads or unloads; None for any other request."""
        reloaded = _RELOADED_PATH.fullmatch(self.path)
        return None if reloaded is None else f"{reloaded[1]}/v2/models/{reloaded[2]}"


class Destination:
    """A route: which requests it takes, and where it leads them.

    Requests with the same sticky key go to the same endpoint, and in a split to the same backend (protocol 8.4).
    """

    def __init__(self, rule: RouteRule, stickies: Mapping[str, str]) -> None:
        """*stickies* maps the backends' names to their `sticky`; in a split the first that is not `none` decides."""
        self.rule = rule
        self.route = rule.name
        weights = rule.split if rule.split is not None else dict.fromkeys(rule.backends, 1)
        self.weights = {name: weight for name, weight in weights.items() if weight > 0}
        """Backends by name with their relative weights, all above 0."""
        self.only = next(iter(self.weights)) if len(self.weights) == 1 else None
        """The backend, if there is just one."""
        self.sticky = next((stickies[name] for name in self.weights if stickies[name] != "none"), "none")
        """Which part of a request is its sticky key: `none`, `sequence_id` of inferences, or `header:NAME`."""
        self.sticky_header = self.sticky.lower().partition("header:")[2]
        """The name of the header that is the sticky key, in lower case; empty if no header is."""
        self._prefix = prefix = (rule.path_prefix or "").rstrip("/")
        # a prefix that is kept may itself be the beginning of a path of the protocol
        self._n_before = 0 if f"{prefix}/".startswith("/v2/") and not rule.strip_prefix else len(prefix)
        host, port = _split_host(rule.host or "")
        self._host = None if rule.host is None else _compiled([host])
        self._port = None if port is None else _compiled([port])
        self._models = None if rule.models is None else _compiled(rule.models)

    def pick(self, key: str) -> str:
        """The backend of a split for a request with the sticky *key*; with a random text, if it has none."""
        return pick_weighted(key, self.weights)

    def match(self, host: str, path: str, query: str) -> Match | None:
        """As `Router.match`, by this route alone."""
        prefix = self._prefix
        if not path.startswith(f"{prefix}/") and path != prefix:
            return None
        kept, rest = path[: self._n_before], path[self._n_before :]
        if self.rule.strip_prefix:
            kept, rest = "", rest or "/"
            if rest.startswith("//"):  # may be read as the beginning of a host (RFC 3986 section 4.2)
                return None
        read = _V2.fullmatch(rest)
        model = unquote(read[2]) if read is not None and read[2] else None
        if not self._takes(host, model):
            return None
        own, kind = self.rule.rename.get(model or "", model), _kind(rest, read)
        is_renamed = own != model
        if read is not None and own is not None and is_renamed:
            rest = f"{rest[: read.start(2)]}{quote(own, safe='')}{rest[read.end(2) :]}"
        return Match(self, model, kind, kept + rest + query, _taken_apart(kept, rest, read, own), is_renamed)

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
        self._routes = [Destination(rule, stickies) for rule in routes or (RouteRule(name=first, backend=first),)]

    @property
    def names(self) -> list[str]:
        """The routes as metrics and logs call them."""
        return [each.route for each in self._routes]

    def names_for_clients(self, backend: str) -> dict[str, str]:
        """The clients' names of the models of *backend* that routes rename, by the backend's names."""
        rules = (each.rule for each in self._routes)
        return {own: name for rule in rules if backend in rule.backends for name, own in rule.rename.items()}

    def match(self, host: str, path: str, query: str = "") -> Match | None:
        """Find the route for *host* (`Host`, maybe with a port) and *path* (percent-encoded, without query).

        *query* crosses as it is, with its question mark. None if no route matches.
        """
        matches = (each.match(host, path, query) for each in self._routes)
        return next((match for match in matches if match is not None), None)


def _kind(path: str, read: re.Match[str] | None) -> PathKind:
    """What *path* asks for, which `_V2` has *read*."""
    if read is None:
        return PathKind.OTHER
    if path in _SERVER_PATHS:
        return PathKind.SERVER_METADATA
    repository, model, _, asked = read.groups()
    return PathKind.INFER if model and not repository and asked == "/infer" else PathKind.V2


def _taken_apart(before: str, path: str, read: re.Match[str] | None, model: str | None) -> V2Path:
    """*path*, which `_V2` has *read*, for a backend that knows the model as *model*."""
    path = path.rstrip("/")
    if read is None or read[1] or path == "/v2/models/stats":  # asks for the statistics of all models
        return V2Path(before, None, None, path.removeprefix("/v2"))
    return V2Path(before, model, read[3] and unquote(read[3]), (read[4] or "").rstrip("/"))


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
