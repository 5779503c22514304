"""The configuration: `schema` says what a file may hold, `loading` reads it."""

from gateway.config.findings import Finding, Inspected, without_hidden_paths
from gateway.config.json_schema import json_schema
from gateway.config.loading import (
    MAX_FILE_BYTES,
    decode,
    encode,
    for_backend,
    inspect,
    inspect_bytes,
    load,
    masked,
    parse,
)
from gateway.config.rules import SET_BY_GATEWAY
from gateway.config.schema import (
    Access,
    Backend,
    BackendTls,
    Compression,
    Config,
    Eject,
    Health,
    Limits,
    ListenerTls,
    Model,
    Queue,
    Retry,
    Route,
    Shutdown,
    Tracing,
)
from gateway.config.values import FORMATS, Address, Duration, Endpoint, FilePath, ProxyNetwork, Size, Sticky, Workers

__all__ = [
    "FORMATS", "MAX_FILE_BYTES", "SET_BY_GATEWAY", "Access", "Address", "Backend", "BackendTls", "Compression",
    "Config", "Duration", "Eject", "Endpoint", "FilePath", "Finding", "Health", "Inspected", "Limits", "ListenerTls",
    "Model", "ProxyNetwork", "Queue", "Retry", "Route", "Shutdown", "Size", "Sticky", "Tracing", "Workers", "decode",
    "encode", "for_backend", "inspect", "inspect_bytes", "json_schema", "load", "masked", "parse",
    "without_hidden_paths",
]  # fmt: skip
