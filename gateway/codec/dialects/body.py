"""The language of templates: a body of a request as a value of YAML in which tensors have their places.

    $x                 the input `x`, nested by its shape; `$$x` is the text `$x`
    {$flat: x}         its values in one list
    {$shape: x}        its shape
    {$rows: x}         its first dimension
    {$b64: x}          a BYTES input, each element in base64
    {$each: ITEM}      a list with ITEM for each row of the inputs in it, which stand there as they are in that row
    $parameters, $id   the request's own parameters, and its id

All else is written as the JSON that it is. In templates of the gateway's own a part of `writing` may stand as a value.
Not here: what the parts write (`writing`), and where outputs stand in an answer (`paths`).
"""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import msgspec
import orjson

from gateway.codec.dialects.request import DialectRequest, Writer
from gateway.codec.dialects.writing import (
    Part,
    Segments,
    Strings,
    each,
    flat_shape,
    identity,
    input_called,
    parameters,
    sequence,
    slot,
    text_or_base64,
    writer_of,
)
from gateway.codec.tensors.datatypes import Datatype, Kind
from gateway.codec.tensors.nested_printing import StringForm
from gateway.errors import CodecError

MAX_DEPTH = 64
"""How deep a body may be nested."""

Inputs = Mapping[str, tuple[Datatype | None, tuple[int, ...] | None]]
"""Datatype and shape of each input that a model is known to have."""

_OF_THE_REQUEST: Mapping[str, Part] = {"$parameters": parameters, "$id": identity}


def body_of(value: Any) -> Writer:
    """What writes a body of the gateway's own."""
    return writer_of(Body(value, {}, text_or_base64({})).part)


class Body:
    """A body that was read from YAML."""

    def __init__(self, value: Any, inputs: Inputs, strings: Strings) -> None:
        """*value* has text, numbers, lists and objects in it; *strings* tells how inputs of BYTES are written."""
        self.faults: dict[str, str] = {}
        """What is wrong with it: words by the key where it is, such as `.rows[0].x`."""
        self._inputs = inputs
        self._strings = strings
        self._found: set[str] = set()
        self._items: list[set[str]] = []  # the inputs in the `$each` that is being read, if one is
        self._depth = 0
        self.part: Part = sequence(_joined(self._read(value, "")))
        for name in inputs:
            if name not in self._found:
                self.faults.setdefault("", f"input `{name}` stands nowhere in it")

    def _read(self, value: Any, at: str) -> Iterator[bytes | Part]:
        """The text of *value*, and the parts in it."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self.faults[at] = f"nested deeper than {MAX_DEPTH} levels"
        elif callable(value):
            yield value
        elif isinstance(value, dict):
            yield from self._object(value, at)
        elif isinstance(value, list):
            yield b"["
            for index, item in enumerate(value):
                yield from (b",",) if index else ()
                yield from self._read(item, f"{at}[{index}]")
            yield b"]"
        elif isinstance(value, str) and value.startswith("$") and not value.startswith("$$"):
            yield self._reference(value, at)
        else:
            yield self._constant(value.removeprefix("$") if isinstance(value, str) else value, at)
        self._depth -= 1

    def _object(self, value: dict[str, Any], at: str) -> Iterator[bytes | Part]:
        operation = next((key for key in value if key.startswith("$") and not key.startswith("$$")), None)
        if operation is not None:
            yield self._operation(operation, value, at)
            return
        before = b"{"
        for key, item in value.items():
            yield before + orjson.dumps(key.removeprefix("$")) + b":"
            yield from self._read(item, f"{at}.{key}")
            before = b","
        yield b"}" if value else b"{}"

    def _operation(self, operation: str, value: dict[str, Any], at: str) -> Part | bytes:
        where = f"{at}.{operation}"
        if len(value) > 1:
            return self._fault(where, f"expected `{operation}` alone in its object")
        if operation == "$each":
            return self._each(value[operation], where)
        placed = _PLACED.get(operation)
        if placed is None:
            known = ", ".join(("$each", *_PLACED))
            return self._fault(where, f"unknown; known are {known}, and $$ for a name that begins with $")
        name = value[operation]
        if not isinstance(name, str) or not self._is_known(name, where):
            return self._fault(where, f"expected the name of an input: {self._listed()}")
        datatype, shape = self._inputs[name]
        if operation == "$b64" and (datatype is None or datatype.kind is not Kind.BYTES):
            return self._fault(where, f"expected an input with `datatype: BYTES`, and `{name}` is none")
        if operation == "$rows" and shape is not None and len(shape) < (2 if self._items else 1):
            return self._fault(where, f"input `{name}` is a scalar there, which has no rows")
        return partial(placed, self._strings, name)

    def _each(self, item: Any, at: str) -> Part | bytes:
        if self._items:
            return self._fault(at, "expected no `$each` inside of another one")
        inside: set[str] = set()
        self._items.append(inside)
        part = sequence(_joined(self._read(item, at)))
        self._items.pop()
        if not inside:
            return (self.faults.get(at) and b"") or self._fault(at, "expected an input in it, such as $x, for its rows")
        first = {name: shape[0] for name in sorted(inside) if (shape := self._inputs[name][1])}
        scalar = next((name for name in sorted(inside) if self._inputs[name][1] == ()), None)
        sizes = {size for size in first.values() if size >= 0}
        if scalar is not None:
            return self._fault(at, f"input `{scalar}` is a scalar, which has no rows")
        if len(sizes) > 1:
            said = ", ".join(f"`{name}` {size}" for name, size in first.items() if size >= 0)
            return self._fault(at, f"expected inputs with the same first dimension: {said}")
        return each(part, "`$each`", frozenset(inside))

    def _reference(self, text: str, at: str) -> Part | bytes:
        part = _OF_THE_REQUEST.get(text)
        if part is not None:
            return part
        name = text[1:]
        if not self._is_known(name, at):
            return self._fault(at, f"no such input: {self._listed()}; $parameters and $id are known, $$ is the text $")
        return partial(_nested, self._strings, name)

    def _is_known(self, name: str, at: str) -> bool:
        if name not in self._inputs:
            return False
        self._found.add(name)
        if self._items:
            self._items[-1].add(name)
        return True

    def _listed(self) -> str:
        return f"there are {', '.join(self._inputs)}" if self._inputs else "`inputs` names none"

    def _constant(self, value: Any, at: str) -> bytes:
        try:
            if isinstance(value, float) and not math.isfinite(value):
                raise TypeError
            return orjson.dumps(value, option=orjson.OPT_PASSTHROUGH_DATETIME)
        except TypeError:
            return self._fault(at, "expected what JSON has: text, a number, true, false or null")

    def _fault(self, at: str, words: str) -> bytes:
        self.faults[at] = words
        return b"null"


def _joined(items: Iterator[bytes | Part]) -> list[bytes | Part]:
    """*items*, in which texts that follow each other are one."""
    joined: list[bytes | Part] = []
    for item in items:
        last = joined[-1] if joined else None
        if isinstance(item, bytes) and isinstance(last, bytes):
            joined[-1] = last + item
        else:
            joined.append(item)
    return joined


def _nested(strings: Strings, name: str, request: DialectRequest) -> Segments:
    return (slot(request, input_called(request, name), strings),)


def _flat(strings: Strings, name: str, request: DialectRequest) -> Segments:
    tensor = input_called(request, name)
    return (slot(request, msgspec.structs.replace(tensor, shape=flat_shape(tensor.shape)), strings),)


def _shape(strings: Strings, name: str, request: DialectRequest) -> Segments:
    return (orjson.dumps(input_called(request, name).shape),)


def _first_dimension(strings: Strings, name: str, request: DialectRequest) -> Segments:
    tensor = input_called(request, name)
    if not tensor.shape:
        raise CodecError(f"{tensor}: a scalar has no rows, which `$rows` in this backend's template needs")
    return (b"%d" % tensor.shape[0],)


def _in_base64(strings: Strings, name: str, request: DialectRequest) -> Segments:
    return (slot(request, input_called(request, name), lambda request, tensor: StringForm.BASE64),)


_PLACED: Mapping[str, Callable[[Strings, str, DialectRequest], Segments]] = {
    "$flat": _flat,
    "$shape": _shape,
    "$rows": _first_dimension,
    "$b64": _in_base64,
}
"""What may stand for one input, by the name of the object's only member."""
