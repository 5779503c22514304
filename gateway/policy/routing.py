"""Which backend a request goes to, and what kind of path it asks for (protocol section 8).

Here: patterns of hosts, paths and model names. Not here: where host and path stand in a request.
"""

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol
from urllib.parse import unquote

_MODEL_PATH = re.compile(r"/v2/models/([^/]+)(?:/.*)?")
_INFER_PATH = re.compile(r"/v2/models/[^/]+(?:/versions/[^/]+)?/infer")
_HOST = re.compile(r"(\[[^\]]*:[^\]]*\]|[^:]*)(?::([^:]*))?")
_SERVER_PATHS = ("/v2", "/v2/")


class PathKind(Enum):
    """What the gateway does with a path."""

    INFER = auto()
    SERVER_METADATA = auto()
    V2 = auto()
    """Any other path of the protocol: errors are put into its shape."""
    OTHER = auto()


class RouteRule(Protocol):
    """A row of the configuration's `routes`."""

    @property
    def name(self) -> str:
        """Its name in metrics and logs."""

    @property
    def backends(self) -> list[str]:
        """The names of the backends that it leads to."""

    @property
    def models(self) -> list[str] | None:
        """Patterns of model names, such as `resnet*`."""

    @property
    def host(self) -> str | None:
        """A pattern of host names, such as `*.example.com`; with a port if that has to match too."""

    @property
    def path_prefix(self) -> str | None:
        """The first segments of the path, such as `/prod`."""


@dataclass(frozen=True, slots=True)
class Match:
    """Where a request goes: route and backend by name, the model in its path (None if none), the kind of its path."""

    route: str
    backend: str
    model: str | None
    kind: PathKind


class Router:
    """The routes of a configuration; the first that matches wins."""

    def __init__(self, routes: Sequence[RouteRule], only_backend: str) -> None:
        """Without *routes*, everything goes to *only_backend*, under its name."""
        self._routes = routes
        self._only_backend = only_backend

    def match(self, host: str, path: str) -> Match | None:
        """Find the route for *host* (`Host`, maybe with a port) and *path* (percent-encoded, without query).

        None if no route matches.
        """
        if not self._routes:
            model, kind = _read(path)
            return Match(self._only_backend, self._only_backend, model, kind)
        for route in self._routes:
            rest = path
            if route.path_prefix is not None:
                prefix = route.path_prefix.rstrip("/")
                if path != prefix and not path.startswith(prefix + "/"):
                    continue
                # the prefix stands before a path of the protocol, or is the beginning of one and stays
                if not f"{prefix}/".startswith("/v2/"):
                    rest = path[len(prefix) :]
            model, kind = _read(rest)
            if route.host is not None and not _matches_host(host, route.host):
                continue
            if route.models is not None and not (model is not None and _matches_any(model, route.models)):
                continue
            return Match(route.name, route.backends[0], model, kind)
        return None


def _read(path: str) -> tuple[str | None, PathKind]:
    model_path = _MODEL_PATH.fullmatch(path)
    if model_path is None:
        if path in _SERVER_PATHS:
            return None, PathKind.SERVER_METADATA
        return None, PathKind.V2 if path.startswith("/v2/") else PathKind.OTHER
    kind = PathKind.INFER if _INFER_PATH.fullmatch(path) else PathKind.V2
    return unquote(model_path[1]), kind


def _matches_any(model: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(model, pattern) for pattern in patterns)


def _matches_host(host: str, pattern: str) -> bool:
    name, port = _split_host(host)
    name_pattern, port_pattern = _split_host(pattern)
    return fnmatch.fnmatchcase(name, name_pattern) and (
        port_pattern is None or fnmatch.fnmatchcase(port or "", port_pattern)
    )


def _split_host(text: str) -> tuple[str, str | None]:
    """Name and port, None if there is none: in lower case, without the brackets of IPv6 and the dot of the root."""
    split = _HOST.fullmatch(text.lower())
    name, port = split.groups() if split is not None else (text.lower(), None)  # IPv6 without brackets has no port
    if ":" in name:  # the brackets would be a set of characters to fnmatch
        name = name.strip("[]")
    return name.removesuffix("."), port
