"""What a dialect makes of a request, as a parsed document."""

import json
from typing import Any

from gateway.codec.dialects.description import ModelDescription
from gateway.codec.dialects.dialect import Dialect
from tests.codec.dialects.driving import parsing
from tests.steps import run


def written(dialect: Dialect, description: ModelDescription, inputs: str) -> Any:
    """What the server gets of a request with these *inputs*, JSON as in V2."""
    body = f'{{"inputs":[{inputs}]}}'.encode()
    return json.loads(b"".join(dialect.write(run(parsing(body)), description).json_pieces()))
