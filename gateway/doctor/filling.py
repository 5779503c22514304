"""Documents of JSON and the places in them: bodies are filled with tensors, and values are found by path.

The gateway's own writer and reader are not used, on purpose: the trials judge their work.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from gateway.doctor.tensors import Tensor

JsonPlace = tuple[str | int | None, ...]
"""Where a value stands: names of members, indexes, and None for every item of a list."""

MISSING: Any = object()
"""Stands for a value that a document does not have."""


def json_path_of(place: JsonPlace) -> str:
    """*place* as it stands in `answer`, such as `$.rows[*].score`."""
    return "$" + "".join(map(_step, place))


def _step(step: str | int | None) -> str:
    if isinstance(step, str):
        is_word = step.isidentifier() and step.isascii()
        return f".{step}" if is_word else f"[{json.dumps(step)}]"
    return "[*]" if step is None else f"[{step}]"


def found_at(place: JsonPlace, document: Any) -> Any:
    """The value at *place* in *document*: nested lists where the place has `[*]`. `MISSING` if any of it is not there.

    >>> found_at(("rows", None, "x"), {"rows": [{"x": 1}, {"x": 2}]})
    [1, 2]
    """
    for index, step in enumerate(place):
        if step is None:
            if not isinstance(document, list):
                return MISSING
            inside = [found_at(place[index + 1 :], item) for item in document]
            return MISSING if any(item is MISSING for item in inside) else inside
        if isinstance(step, str):
            document = document.get(step, MISSING) if isinstance(document, dict) else MISSING
        else:
            document = document[step] if isinstance(document, list) and step < len(document) else MISSING
        if document is MISSING:
            return MISSING
    return document


def members_of(document: Any, place: JsonPlace = ()) -> dict[JsonPlace, Any]:
    """The members of *document*, and of the objects in it, that are no objects themselves, by their place.

    >>> members_of({"data": {"y": [1]}, "ok": True})
    {('data', 'y'): [1], ('ok',): True}
    """
    if not isinstance(document, dict):
        return {place: document} if place else {}
    return {at: value for name, item in document.items() for at, value in members_of(item, (*place, name)).items()}


def escaped(value: Any) -> Any:
    """*value* as it stands in a body: no text that begins with `$` is a reference."""
    if isinstance(value, dict):
        return {escaped(name): escaped(item) for name, item in value.items()}
    if isinstance(value, list):
        return [escaped(item) for item in value]
    return f"${value}" if isinstance(value, str) and value.startswith("$") else value


def filled_in(body: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The document that a template's *body* stands for, with the values of *tensors*.

    Of the language it knows what doctor writes: `$NAME`, `$$`, `$each`, `$flat`, `$shape`. A member whose input is not
    in *tensors* is left out.
    """
    document = _filled(body, {name: tensor.nested for name, tensor in tensors.items()})
    return None if document is MISSING else document


def _filled(body: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(body, str) and body.startswith("$"):
        return body[1:] if body.startswith("$$") else values.get(body[1:], MISSING)
    if isinstance(body, list):
        items = [_filled(item, values) for item in body]
        return [item for item in items if item is not MISSING]
    if not isinstance(body, dict):
        return body
    if "$each" in body:
        return _rows(body["$each"], values)
    if "$flat" in body or "$shape" in body:
        return _flat_or_shape(body, values)
    members = {name.removeprefix("$"): _filled(item, values) for name, item in body.items()}
    return {name: item for name, item in members.items() if item is not MISSING}


def _rows(item: Any, values: Mapping[str, Any]) -> list[Any]:
    rows = {name: values[name] for name in names_in(item) if name in values}
    n_rows = len(next(iter(rows.values()), []))
    return [_filled(item, {name: column[row] for name, column in rows.items()}) for row in range(n_rows)]


def _flat_or_shape(body: dict[str, str], values: Mapping[str, Any]) -> Any:
    ((word, name),) = body.items()
    of = _flattened if word == "$flat" else _shape
    return of(values[name]) if name in values else MISSING


def _flattened(value: Any) -> list[Any]:
    return [each for item in value for each in _flattened(item)] if isinstance(value, list) else [value]


def _shape(value: Any) -> list[int]:
    return list(np.shape(np.array(value, object)))


def names_in(body: Any) -> list[str]:
    """The names of the inputs in *body*, in their order."""
    if isinstance(body, str):
        return [body[1:]] if body.startswith("$") and not body.startswith("$$") else []
    if isinstance(body, dict) and body.keys() & {"$flat", "$shape"}:
        return list(body.values())
    items = body.values() if isinstance(body, dict) else body if isinstance(body, list) else ()
    return list(dict.fromkeys(name for item in items for name in names_in(item)))


def is_close(one: Any, other: Any) -> bool:
    """Whether two values of JSON are the same, numbers but for the noise of another order of additions."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_close, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_close(item, other[name]) for name, item in one.items())
    if type(one) in (int, float) and type(other) in (int, float):
        return bool(np.isclose(float(one), float(other), rtol=1e-4, atol=1e-6, equal_nan=True))
    return type(one) is type(other) and bool(one == other)
