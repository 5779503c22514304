"""A model of TorchServe: twice each input. Run by a Python that has torchserve 0.12."""

from typing import Any

import numpy as np


def handle(data: list[Any] | None, context: Any) -> list[Any] | None:
    """Twice each input of V2, or each instance of V1, in *data*, as the envelope has read it."""
    if data is None:  # at the start
        return None
    if isinstance(data[0], dict):
        return [2 * np.array(tensor["data"], "float32") for tensor in data]
    return list((2 * np.array(data, "float32")).tolist())
