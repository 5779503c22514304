"""One configuration at run time: an immutable value that a reload replaces and that a request keeps to its end.

Not here: running state. Requests in flight, connections, the memory budget and draining outlive any plan.
"""

import fnmatch
import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from gateway.codec.dialects.description import ModelDescription
from gateway.codec.inference import HeaderLimits
from gateway.config import Config
from gateway.config.schema import Batch, PerClient
from gateway.config.tokens import read_tokens
from gateway.errors import LOOP_DETECTED, ErrorKind, GatewayError
from gateway.headers import Headers
from gateway.policy.access import Access
from gateway.policy.crossing import BackendHeaders, went_through
from gateway.policy.paths import find_path_fault
from gateway.policy.proxies import TrustedProxies
from gateway.policy.routing import Match, Router
from gateway.policy.trace_context import TRACE_HEADERS
from gateway.telemetry.server_timing import server_timing

T = TypeVar("T")

KEPT_MATCHES = 1024
KEPT_CHARACTERS = 512
"""How many matches are kept by method, host and target, and how long host and target together may be to be kept."""


class BackendPlan:
    """One backend of the configuration; immutable."""

    def __init__(self, config: Config, name: str) -> None:
        self.name = name
        self.settings = settings = config.backends[name]
        replaced = TRACE_HEADERS if config.tracing is not None else ()
        self.headers = BackendHeaders(settings.headers.set, settings.headers.remove, replaced)
        """Which headers the backend gets."""
        self.is_v2 = settings.dialect == "v2"
        """Whether the configuration says that the servers speak V2."""
        self.tensor_policy = settings.tensor_policy
        """How tensors are written in JSON for the backend."""
        self.max_connections = config.max_connections(name)
        self.workers = config.workers
        """How many processes share the gateway's limits."""
        self.base_paths = {path for url in settings.endpoints if (path := urlsplit(url).path)}
        """The paths in the endpoints' URLs, which go before every path."""
        self.models = {pattern: model.description for pattern, model in settings.models.items()}
        """The configuration's descriptions of the backend's models, by pattern."""
        if settings.dialect == "python":  # nobody else knows its outputs, as with a template
            self.models = {key: msgspec.structs.replace(each, is_complete=True) for key, each in self.models.items()}
        self._batches = {pattern: model.batch or settings.batch for pattern, model in settings.models.items()}
        self.batches = any(batch.max_size > 1 for batch in (settings.batch, *self._batches.values()))
        """Whether requests for any of the backend's models are batched."""
        text = msgspec.json.encode(settings, enc_hook=str)
        self.fingerprint = f"{name} {hashlib.blake2b(text, digest_size=16).hexdigest()}"
        """The name and a digest of the settings, which is part of the key of kept answers. So when a reload has changed
        the backend, no old answer is used, not even one that a request of the old plan fetches later."""

    def described(self, model: str) -> ModelDescription:
        """The configuration's description of *model*, by its first matching pattern; an empty one without a match."""
        return configured_for(self.models, model, ModelDescription())

    def batch(self, model: str) -> Batch:
        """How requests for *model* are batched."""
        return configured_for(self._batches, model, self.settings.batch)


class Plan:
    """The part of a configuration by which requests are served; immutable."""

    def __init__(self, config: Config, name: str) -> None:
        """The plan of the gateway called *name*, by which `Via` names it: all its workers, and no other gateway.

        Reads `access.tokens_file`. Raises `ConfigError` if the file cannot be used.
        """
        access = config.access
        tokens = read_tokens(Path(access.tokens_file)) if access.tokens_file is not None else None
        self.access = Access(tokens, access.deny)
        self.router = _router(config)
        self.backends = {backend: BackendPlan(config, backend) for backend in config.backends}
        self.limits = config.limits
        self.in_flight_bytes = config.in_flight_bytes
        self.limits_clients = config.limits.per_client != PerClient()
        self.header_limits = HeaderLimits(config.limits.header, config.limits.tensors)
        self.compression = config.compression
        self.recover_header_length = config.recover_header_length
        self.proxies = TrustedProxies(config.trusted_proxies) if config.trusted_proxies else None
        """The trusted proxies in front of the gateway; None if there are none."""
        self.timing = server_timing if config.logging.server_timing else None
        """Makes the `Server-Timing` of replies; None if they have none."""
        self.name = name
        self.via = "Via", f"1.1 {name}"
        """The header field that names this gateway."""
        self._kept_match = lru_cache(KEPT_MATCHES)(self._match)

    def route(self, method: str, host: str, target: str, headers: Headers) -> Match:
        """Find where a request goes; *target* is its raw path and query. The last matches are kept (`KEPT_MATCHES`).

        Raises `GatewayError` for a request that has passed through this gateway before, for a path that is denied or
        that servers read in several ways, and if there is no route.
        """
        if "via" in headers.first and went_through(headers.all("via"), self.name):
            raise GatewayError(
                ErrorKind.NO_ROUTE,
                "this request has passed through this gateway before: one of its backends leads back to it",
                status=LOOP_DETECTED,
            )
        find = self._kept_match if len(host) + len(target) <= KEPT_CHARACTERS else self._match
        return find(method, host, target)

    def _match(self, method: str, host: str, target: str) -> Match:
        path, mark, query = target.partition("?")
        if (reason := find_path_fault(path)) is not None:
            raise GatewayError(ErrorKind.MALFORMED_REQUEST, reason)
        self.access.check(path)
        match = self.router.match(host, path, mark + query)
        if match is None:
            raise GatewayError(ErrorKind.NO_ROUTE, f"no route for {method} {path}")
        for backend in match.destination.weights:
            self.check_path(match.path, self.backends[backend])
        return match

    def check_path(self, path: str, backend: BackendPlan) -> None:
        """Raise `GatewayError` if *path*, which *backend* would get, is denied to all clients."""
        for base in ("", *backend.base_paths):
            self.access.check(base + path)


def who_answers(config: Config) -> str:
    """Words for people: which backends answer paths of no model, such as `/v2`; empty if no routes are configured."""
    if not config.routes:
        return ""
    match = _router(config).match("", "/v2")
    backends = " or ".join(match.destination.weights) if match is not None else ""
    return f"; /v2 and health: {backends or 'the gateway, for all of them'}"


def configured_for(by_pattern: Mapping[str, T], model: str, otherwise: T) -> T:
    """The value of the first pattern in *by_pattern* that matches *model*; *otherwise* if none does."""
    for pattern, configured in by_pattern.items():
        if pattern == "*" or fnmatch.fnmatchcase(model, pattern):
            return configured
    return otherwise


def _router(config: Config) -> Router:
    return Router(config.routes, {name: backend.sticky for name, backend in config.backends.items()})
