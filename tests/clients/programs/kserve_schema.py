"""Compares an InferenceService, JSON on standard input, with the models that KServe's package generates from its CRD.

Prints one line for each difference, and `compared N values` at the end.
"""

import json
import re
import sys
from typing import Any

import kserve.models
import kubernetes.client.models as kubernetes

SCALARS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "bool": (bool,),
    "float": (int, float),
    "ResourceQuantity": (str, int),
}
n_values = 0


def compare(value: Any, kind: str, path: str) -> None:
    """Print every place in *value* that a *kind* of the OpenAPI models does not have."""
    global n_values  # noqa: PLW0603
    n_values += 1
    if kind == "object":  # a number or a name, such as a probe's port
        correct = isinstance(value, str | int)
    elif kind in SCALARS:
        correct = isinstance(value, SCALARS[kind]) and (kind == "bool" or not isinstance(value, bool))
    elif found := re.fullmatch(r"[lL]ist\[(.+)\]", kind):
        correct = isinstance(value, list)
        for index, item in enumerate(value if correct else []):
            compare(item, found[1], f"{path}[{index}]")
    elif found := re.fullmatch(r"[dD]ict[(\[]str, (.+)[)\]]", kind):
        correct = isinstance(value, dict)
        for key, item in (value if correct else {}).items():
            compare(item, found[1], f"{path}.{key}")
    else:
        correct = isinstance(value, dict)
        if correct:
            compare_model(value, getattr(kserve.models, kind, None) or getattr(kubernetes, kind), path)
    if not correct:
        print(f"{path}: expected {kind}, got {value!r}")


def compare_model(value: dict[str, Any], model: Any, path: str) -> None:
    """As `compare`, for an object with named members."""
    attributes = {key: attribute for attribute, key in model.attribute_map.items()}
    for key, item in value.items():
        if key in attributes:
            compare(item, model.openapi_types[attributes[key]], f"{path}.{key}")
        else:
            print(f"{path}: {model.__name__} has no {key!r}")
    try:
        model(**{attributes[key]: item for key, item in value.items() if key in attributes})
    except ValueError as error:  # what is required is missing
        print(f"{path}: {error}")


compare(json.load(sys.stdin), "V1beta1InferenceService", "")
print(f"compared {n_values} values")
