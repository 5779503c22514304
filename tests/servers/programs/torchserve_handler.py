"""A model of TorchServe: twice each input. Run by a Python that has torchserve 0.12."""

from typing import Any

import numpy as np


def handle(data: list[dict[str, Any]] | None, context: Any) -> list[Any] | None:
    """An array for each input in *data*, which KServe's V2 envelope has read; asked without data at the start."""
    if data is None:
        return None
    return [2 * np.array(tensor["data"], "float32") for tensor in data]
