"""What one configuration means at run time: a value that a reload replaces and that a request keeps to its end.

Not here: running state. What is in flight, connections, the memory budget and draining outlive any plan.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.codec import HeaderLimits, KnownHeaders, TensorPolicy
from gateway.config import Backend, Compression, Config, Limits
from gateway.policy.crossing import BackendHeaders
from gateway.policy.routing import Router


@dataclass(frozen=True, slots=True)
class BackendPlan:
    """One backend of the configuration."""

    name: str
    settings: Backend
    headers: BackendHeaders
    """Which headers it gets."""
    tensor_policy: TensorPolicy
    """How its tensors are written."""
    max_connections: int
    workers: int = 1
    """How many processes share what is allowed for the whole gateway."""
    known_headers: KnownHeaders = field(default_factory=KnownHeaders)
    """Headers of earlier requests; what they mean depends on `tensor_policy` and the limits."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The data plane's side of a configuration."""

    router: Router
    backends: Mapping[str, BackendPlan]
    limits: Limits
    header_limits: HeaderLimits
    compression: Compression
    recover_header_length: bool
    name: str
    """What this gateway calls itself in `Via`; all its workers have the same name, and no other gateway has it."""

    @classmethod
    def of(cls, config: Config, name: str) -> "Plan":
        """The plan that *config* means, for the gateway called *name*."""
        limits = config.limits
        backends = {
            backend: BackendPlan(
                backend,
                settings,
                BackendHeaders(settings.headers.set, settings.headers.remove),
                settings.tensor_policy,
                config.max_connections(backend),
                config.workers,
            )
            for backend, settings in config.backends.items()
        }
        return cls(
            Router(config.routes, next(iter(backends))),
            backends,
            limits,
            HeaderLimits(limits.header, limits.tensors),
            config.compression,
            config.recover_header_length,
            name,
        )
