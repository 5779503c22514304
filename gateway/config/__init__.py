"""The configuration: `schema` says what a file may hold, `loading` reads it."""

from gateway.config.loading import decode, encode, for_backend, inspect, inspect_bytes, load, masked, parse
from gateway.config.reading import without_hidden_paths
from gateway.config.schema import Backend, BackendTls, Config, Health, Limits, ListenerTls, Route, Tracing
from gateway.config.structure import json_schema
from gateway.config.values import Address, Duration, Endpoint, Size, Workers

__all__ = [
    "Address", "Backend", "BackendTls", "Config", "Duration", "Endpoint", "Health", "Limits", "ListenerTls", "Route",
    "Size", "Tracing", "Workers", "decode", "encode", "for_backend", "inspect", "inspect_bytes", "json_schema",
    "load", "masked", "parse", "without_hidden_paths",
]  # fmt: skip
