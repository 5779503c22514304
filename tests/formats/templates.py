"""The template language as the judge understands it: written anew, without the gateway's code.

`bind` finds the inputs with which a template makes a native client's body, and what of that body it cannot make.
`read` finds what the paths of `answer` lead to in a native answer.
"""

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Step = str | int | None
"""The name of a member, the index of an item, or None for every item."""

MISSING = object()
"""What stands where a path leads nowhere."""

NUMPY = {
    "BOOL": "?", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "INT8": "i1", "INT16": "<i2",
    "INT32": "<i4", "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip

_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\[(\*)\]|\[('[^']*'|\"(?:[^\"\\]|\\.)*\")\]")


def steps_of(path: str) -> list[Step]:
    """The steps of *path*, such as `$.rows[*].score`."""
    assert path.startswith("$"), path
    steps: list[Step] = []
    at = 1
    while at < len(path):
        found = _STEP.match(path, at)
        assert found is not None, path
        name, index, every, quoted = found.groups()
        if every:
            steps.append(None)
        elif index is not None:
            steps.append(int(index))
        else:
            steps.append(name if name is not None else json.loads(f'"{quoted[1:-1]}"'))
        at = found.end()
    return steps


def read(steps: Sequence[Step], value: Any, missing: Any = MISSING) -> Any:
    """What *steps* lead to in *value*, as nested lists where they have `[*]`; *missing* where there is nothing."""
    for index, step in enumerate(steps):
        if step is None:
            if not isinstance(value, list):
                return missing
            return [read(steps[index + 1 :], each, missing) for each in value]
        if not _has(step, value):
            return missing
        value = value[step]
    return value


def _has(step: str | int, value: Any) -> bool:
    """Whether *value* is an object or a list that has the member or item *step*."""
    if isinstance(step, str):
        return isinstance(value, dict) and step in value
    return isinstance(value, list) and step < len(value)


def leaves(steps: Sequence[Step], value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the values are that *steps* lead to in *value*: all scalars in what is there."""
    if not steps:
        inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        if not isinstance(value, dict | list):
            yield at
        for key, each in inside:
            yield from leaves((), each, (*at, key))
        return
    step, *rest = steps
    if step is None and isinstance(value, list):
        for index, each in enumerate(value):
            yield from leaves(rest, each, (*at, index))
    elif step is not None and _has(step, value):
        yield from leaves(rest, value[step], (*at, step))


def has_missing(value: Any) -> bool:
    """Whether a path led nowhere in some row."""
    return value is MISSING or (isinstance(value, list) and any(map(has_missing, value)))


# From a native body to inputs


@dataclass
class Bound:
    """What a native body is for a template."""

    inputs: dict[str, Any] = field(default_factory=dict)
    """Values by the input's name, nested as the template nests them."""
    parameters: dict[str, Any] = field(default_factory=dict)
    shapes: dict[str, list[int]] = field(default_factory=dict)
    """Shapes that the body states for inputs whose values are flat there."""
    frozen: dict[str, str] = field(default_factory=dict)
    """What the template cannot make: where it is, and what is wrong."""
    settled: Any = None
    """The body with the template's constants in place of what it cannot make."""


def bind(template: Any, body: Any, names: Mapping[str, Any]) -> Bound:
    """What *body* is for *template*, whose inputs are *names*."""
    bound = Bound()
    bound.settled = _bind(template, body, "$", bound, None, names)
    for name, shape in bound.shapes.items():
        values = np.array([*bound.inputs.get(name, ()), None], object)[:-1]
        if values.size == np.prod(shape):
            bound.inputs[name] = values.reshape(shape).tolist()
    return bound


def _own(text: Any) -> bool:
    return isinstance(text, str) and text.startswith("$") and not text.startswith("$$")


def _constant(template: Any) -> Any:
    """*template* without any input in it as the JSON that it is; MISSING if there is one."""
    if isinstance(template, dict):
        if any(map(_own, template)):
            return MISSING
        made = {name.removeprefix("$"): _constant(each) for name, each in template.items()}
        return MISSING if any(each is MISSING for each in made.values()) else made
    if isinstance(template, list):
        items = [_constant(each) for each in template]
        return MISSING if any(each is MISSING for each in items) else items
    if isinstance(template, str):
        return MISSING if _own(template) else template.removeprefix("$")
    return template


def _bind(template: Any, body: Any, at: str, bound: Bound, row: int | None, names: Mapping[str, Any]) -> Any:
    """Bind *body* to *template*; the body as the template can make it."""
    if _own(template):
        return _bind_name(template, body, at, bound, row, names)
    if isinstance(template, dict) and len(template) == 1 and _own(next(iter(template))):
        ((operation, inner),) = template.items()
        return _bind_operation(operation, inner, body, at, bound, row, names)
    if isinstance(template, dict) and isinstance(body, dict):
        return _bind_object(template, body, at, bound, row, names)
    if isinstance(template, list) and isinstance(body, list) and len(template) == len(body):
        pairs = enumerate(zip(template, body, strict=True))
        return [_bind(each, value, f"{at}[{index}]", bound, row, names) for index, (each, value) in pairs]
    constant = _constant(template)
    if constant is MISSING:
        bound.frozen[at] = "it has another form than the template"
        return body
    if not same_json(constant, body):
        bound.frozen[at] = f"{shown(body)} is always {shown(constant)}"
    return constant


def _put(bound: Bound, name: str, value: Any, row: int | None) -> None:
    if row is None:
        bound.inputs[name] = value
        return
    rows = bound.inputs.setdefault(name, [])
    rows.extend([None] * (row + 1 - len(rows)))
    rows[row] = value


def _bind_name(name: str, body: Any, at: str, bound: Bound, row: int | None, names: Mapping[str, Any]) -> Any:
    if name[1:] in names:
        held = as_held(body, names[name[1:]])
        _put(bound, name[1:], held, row)
        return held
    if name == "$parameters":
        if isinstance(body, dict):
            bound.parameters.update(body)
        return body
    if name == "$row":
        if body != row:
            bound.frozen[at] = f"{shown(body)} is the row's number"
        return row
    return body


def _bind_operation(
    operation: str, inner: Any, body: Any, at: str, bound: Bound, row: int | None, names: Mapping[str, Any]
) -> Any:
    if operation == "$each":
        if not isinstance(body, list):
            bound.frozen[at] = "it is no list"
            return body
        return [_bind(inner, each, f"{at}[{index}]", bound, index, names) for index, each in enumerate(body)]
    if operation == "$parameters":
        return _bind_parameters(inner, body, at, bound, row, names)
    if operation == "$shape":
        bound.shapes[inner] = body
    elif operation == "$flat":
        body = as_held(body, names[inner])
        _put(bound, inner, body, row)
    elif operation == "$b64":
        octets = body if isinstance(body, list) else [body]
        values = [base64.b64decode(each) for each in octets]
        _put(bound, inner, values if isinstance(body, list) else values[0], row)
    return body


def _bind_parameters(
    members: Mapping[str, Any], body: Any, at: str, bound: Bound, row: int | None, names: Mapping[str, Any]
) -> Any:
    """Bind an object whose constants the request's parameters may replace."""
    if not isinstance(body, dict):
        bound.frozen[at] = "it is no object"
        return body
    settled = dict(body)
    for name, each in members.items():
        plain = _constant(each)
        if name in body and plain is not MISSING and not isinstance(plain, dict | list):
            if not same_json(plain, body[name]):
                bound.parameters[name] = body[name]
        elif name in body:
            settled[name] = _bind(each, body[name], f"{at}.{name}", bound, row, names)
        else:
            bound.frozen[f"{at}.{name}"] = "the client does not send it"
    for name in set(body) - set(members):
        bound.frozen[f"{at}.{name}"] = "it is left out"
        del settled[name]
    return settled


def _bind_object(
    template: Mapping[str, Any],
    body: Mapping[str, Any],
    at: str,
    bound: Bound,
    row: int | None,
    names: Mapping[str, Any],
) -> Any:
    settled = {}
    for key, each in template.items():
        name = key.removeprefix("$")
        if name in body:
            settled[name] = _bind(each, body[name], f"{at}.{name}", bound, row, names)
        elif _own(each) and names.get(each[1:], {}).get("optional"):
            continue
        else:
            bound.frozen[f"{at}.{name}"] = "the client does not send it"
            settled[name] = _constant(each)
    for name in body.keys() - settled.keys() - {key.removeprefix("$") for key in template}:
        bound.frozen[f"{at}.{name}"] = "it is left out"
    return settled


def as_held(value: Any, entry: Mapping[str, Any]) -> Any:
    """*value* as a client has it whose tensor is FP32: numbers of 32 bits, as they are printed."""
    if isinstance(value, list):
        return [as_held(each, entry) for each in value]
    if entry.get("datatype") == "FP32" and isinstance(value, int | float) and not isinstance(value, bool):
        with np.errstate(over="ignore"):
            return float(str(np.float32(value)))
    return value


def same_json(one: Any, other: Any) -> bool:
    """Whether two values of JSON are the same to a server: numbers by their value, all else by type too."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_json(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_json, one, other))
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return bool(one == other)


def shown(value: Any) -> str:
    """*value* in at most 60 characters."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


# Tensors


def shape_of(value: Any) -> tuple[int, ...] | None:
    """The shape of nested lists; None if they are ragged, or have objects in them."""
    if isinstance(value, dict):
        return None
    if not isinstance(value, list):
        return ()
    shapes = {shape_of(each) for each in value}
    if len(shapes) > 1 or None in shapes:
        return None
    inner = shapes.pop() if shapes else ()
    assert inner is not None
    return (len(value), *inner)


def flat(value: Any) -> list[Any]:
    """The values in nested lists."""
    return [each for item in value for each in flat(item)] if isinstance(value, list) else [value]


def decoded(value: Any, encoding: str, datatype: str) -> Any:
    """*value* of an answer or a body as the values that it means, by an input's or output's `encoding`."""
    if isinstance(value, list):
        return [decoded(each, encoding, datatype) for each in value]
    if encoding == "text" and isinstance(value, str):
        return float(value) if datatype.startswith("FP") else int(value)
    if encoding == "base64" and isinstance(value, str) and datatype in NUMPY:
        return np.frombuffer(base64.b64decode(value), NUMPY[datatype]).tolist()
    return value


def likely(values: Sequence[Any], declared: str) -> str:
    """The datatype in which a client sends *values*: the declared one, unless it cannot hold them."""
    if all(isinstance(each, str | bytes) for each in values):
        return "BYTES"
    if all(isinstance(each, bool) for each in values):
        return "BOOL" if declared not in NUMPY or declared == "BOOL" else declared
    if all(isinstance(each, int) for each in values):
        if declared in ("FP64", "FP32"):
            return declared
        return declared if declared in NUMPY and declared != "BOOL" else "INT64"
    return declared if declared.startswith("FP") else "FP64"


def blob_of(values: Sequence[Any], datatype: str) -> bytes:
    """*values* as bytes on the wire."""
    if datatype == "BYTES":
        texts = [each if isinstance(each, bytes) else each.encode() for each in values]
        return b"".join(len(each).to_bytes(4, "little") + each for each in texts)
    return np.array(values, NUMPY[datatype]).tobytes()


def values_of(blob: bytes, datatype: str) -> list[Any]:
    """The values in *blob*."""
    if datatype != "BYTES":
        return list(np.frombuffer(blob, NUMPY[datatype]).tolist())
    texts = []
    while blob:
        size = int.from_bytes(blob[:4], "little")
        texts.append(blob[4 : 4 + size].decode())
        blob = blob[4 + size :]
    return texts


def same_values(expected: Any, found: Sequence[Any]) -> bool:
    """Whether the flat values *found* in an output are those *expected*, to the last bit."""
    flattened = flat(expected)
    if len(flattened) != len(found):
        return False
    for one, other in zip(flattened, found, strict=True):
        if one is None:
            if not (isinstance(other, float) and np.isnan(other)):
                return False
        elif isinstance(one, bool | str) or isinstance(other, str):
            if type(one) is not type(other) or one != other:
                return False
        elif one != other:
            return False
    return True
