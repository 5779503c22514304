"""Requests as clients write them: what the tests of this folder share."""

import json
from typing import Any

from gateway.codec.inference import TensorPolicy
from gateway.codec.v2.request import InferRequest
from tests.codec.walk import backend_json, parse_request


def entry(
    name: Any = "x", datatype: Any = "FP32", shape: Any = (2, 2), size: Any = 16, **members: Any
) -> dict[str, Any]:
    """A binary input; a member that is `...` is left out."""
    made = {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": size}, **members}
    return {key: value for key, value in made.items() if value is not ...}


def header_of(*inputs: Any, **top: Any) -> bytes:
    return json.dumps({**top, "inputs": list(inputs)}).encode()


def parsed(header: bytes, blobs: bytes = b"", policy: TensorPolicy | None = None) -> InferRequest:
    request = parse_request(header + blobs, len(header), policy)
    assert request is not None
    return request


def sent(header: bytes, blobs: bytes = b"", policy: TensorPolicy | None = None) -> Any:
    return json.loads(backend_json(header, blobs, policy))
