"""tensor-gateway: binary tensor clients in front of JSON-only inference servers."""

__version__ = "0.3.0.dev0"
