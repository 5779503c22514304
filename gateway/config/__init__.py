"""The configuration: `schema` says what a file may hold, `loading` reads it."""

from gateway.config.loading import decode, encode, for_backend, load, masked, parse
from gateway.config.schema import (
    NOT_YET,
    Address,
    Backend,
    Compression,
    Config,
    Duration,
    Endpoint,
    Limits,
    Route,
    Size,
)

__all__ = [
    "NOT_YET",
    "Address",
    "Backend",
    "Compression",
    "Config",
    "Duration",
    "Endpoint",
    "Limits",
    "Route",
    "Size",
    "decode",
    "encode",
    "for_backend",
    "load",
    "masked",
    "parse",
]
