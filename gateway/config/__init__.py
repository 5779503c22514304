"""The configuration: `schema` says what a file may hold, `loading` reads it."""

from gateway.config.loading import decode, encode, for_backend, inspect, inspect_bytes, load, masked, parse
from gateway.config.reading import without_hidden_paths
from gateway.config.rules import SET_BY_GATEWAY
from gateway.config.schema import (
    Backend,
    BackendTls,
    Config,
    Health,
    Limits,
    ListenerTls,
    Model,
    Route,
    Shutdown,
    Tracing,
)
from gateway.config.structure import json_schema
from gateway.config.values import Address, Duration, Endpoint, Size, Workers

__all__ = [
    "SET_BY_GATEWAY", "Address", "Backend", "BackendTls", "Config", "Duration", "Endpoint", "Health",
    "Limits", "ListenerTls", "Model", "Route", "Shutdown", "Size", "Tracing", "Workers", "decode", "encode",
    "for_backend", "inspect", "inspect_bytes", "json_schema", "load", "masked", "parse", "without_hidden_paths",
]  # fmt: skip
