"""The configuration: `schema` says what a file may hold, `loading` reads it."""

from gateway.config.loading import decode, encode, for_backend, load, masked, parse
from gateway.config.schema import (
    NOT_YET,
    SET_BY_GATEWAY,
    Address,
    Backend,
    Compression,
    Config,
    Duration,
    Endpoint,
    Limits,
    Queue,
    Route,
    Shutdown,
    Size,
)

__all__ = [
    "NOT_YET",
    "SET_BY_GATEWAY",
    "Address",
    "Backend",
    "Compression",
    "Config",
    "Duration",
    "Endpoint",
    "Limits",
    "Queue",
    "Route",
    "Shutdown",
    "Size",
    "decode",
    "encode",
    "for_backend",
    "load",
    "masked",
    "parse",
]
