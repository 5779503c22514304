"""What a dialect makes of a request, as a parsed document."""

import json
from typing import Any

from gateway.codec import TensorPolicy, run
from gateway.codec.dialects.description import ModelDescription
from gateway.codec.dialects.dialect import Dialect
from gateway.codec.dialects.request import DialectRequest


def written(dialect: Dialect, description: ModelDescription, inputs: str) -> Any:
    """What the server gets of a request with these *inputs*, JSON as in V2."""
    body = f'{{"inputs":[{inputs}]}}'.encode()
    request = run(DialectRequest.parse(memoryview(body), None, TensorPolicy(), recover=False))
    return json.loads(b"".join(request.bound(dialect.writer(description)).json_pieces()))
