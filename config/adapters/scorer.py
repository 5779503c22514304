"""An adapter for a scorer that takes rows of texts, and answers with the classes of each row that it finds likely.

    POST /3/Predictions/MODEL   {"fields": ["age", "income", "score"], "rows": [["30", "1.5", "0.1"], ...]}
    200                         {"rows": [{"predict": 0.7, "classes": {"gold": 0.9, "free": 0.1}}, ...]}

Names of classes are keys there, and rows have those alone that matter: a template cannot say that.
"""

from typing import Any
from urllib.parse import quote

import numpy as np

from gateway.adapter import AdapterCall, AdapterOutputs, AdapterRequest

FIELDS = ["age", "income", "score"]
CLASSES = ["free", "silver", "gold"]


def request(call: AdapterCall) -> AdapterRequest:
    """The rows, each number as a text."""
    rows = call.inputs["x"]
    if np.isnan(rows).any():
        raise ValueError("the scorer has no missing values: send numbers")
    return f"/3/Predictions/{quote(call.model, safe='')}", {"fields": FIELDS, "rows": rows.astype(str)}


def answer(call: AdapterCall, status: int, body: Any) -> AdapterOutputs:
    """The score of each row, and how likely each class is; one that the answer leaves out is not likely at all."""
    rows = body["rows"]
    return {
        "score": np.array([row["predict"] for row in rows], np.float64),
        "classes": np.array([[row["classes"].get(name, 0) for name in CLASSES] for row in rows], np.float32),
    }
