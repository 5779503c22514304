"""The language of templates: a body of a request as a value of YAML in which tensors have their places.

    $x                 the input `x`, nested by its shape; `$$x` is the text `$x`
    {$flat: x}         its values in one list
    {$shape: x}        its shape
    {$rows: x}         its first dimension
    {$b64: x}          a BYTES input, each element in base64
    {$each: ITEM}      a list with ITEM for each row of the inputs in it, which stand there as they are in that row
    $parameters, $id   the request's own parameters, and its id

All else is written as the JSON that it is. A template is read once. A request fills the places in it, which raise
`CodecError` for what they cannot say; what stands there becomes JSON piece by piece when the body is sent, so that the
JSON never exists as a whole.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec
import orjson
from msgspec import Raw

from gateway.codec.dialects.request import DialectRequest
from gateway.codec.inference import NonFinite, Tensor, label_of
from gateway.codec.json.members import object_text
from gateway.codec.json.pieced import SINGLE_PIECE_BYTES, Piece, PiecedJson
from gateway.codec.tensors.datatypes import BYTES, FLOAT, Datatype
from gateway.codec.tensors.nested_printing import NestedTensor, check_nestable
from gateway.codec.tensors.row_printing import Rows
from gateway.codec.tensors.string_printing import StringForm
from gateway.codec.v2.messages import LATER
from gateway.errors import CodecError

MAX_DEPTH = 64
"""How deep a body may be nested."""

SMALL_JSON_BYTES = 8 * SINGLE_PIECE_BYTES
"""The most JSON that is made in one go: of one-byte types it is up to six times as long."""

_INPUT = ("$flat", "$shape", "$rows", "$b64")
"""What may stand for one input, by the name of the object's only member."""

_OWN = ("$parameters", "$id")
"""What stands for something of the request's own."""

_LATER, _NULL = Raw(LATER), Raw(b"null")
_BASE64, _LITERAL = StringForm.BASE64, NonFinite.LITERAL


# The language


class Place:
    """A place in the JSON of a body that a part of the request fills."""

    __slots__ = ("item", "name", "operation")

    def __init__(self, name: str = "", operation: str = "", item: Any = None) -> None:
        """*name* is an input's, or *operation* is of `_OWN`, or it is `$each`, with *item* for each row.

        Of an input *operation* is one of `_INPUT`, `$column` for a column of a table, or empty for the nested tensor.
        """
        self.name = name
        self.operation = operation
        self.item = item


class Body:
    """A body that was read from YAML."""

    def __init__(self, value: Any, inputs: Mapping[str, tuple[Datatype | None, tuple[int, ...] | None]]) -> None:
        """*value* has text, numbers, lists and objects in it; *inputs* are datatypes and shapes, as far as known."""
        self.faults: dict[str, str] = {}
        """What is wrong with it: words by the key where it is, such as `.rows[0].x`."""
        self._inputs = inputs
        self._found: set[str] = set()
        self._in_rows: set[str] | None = None  # the inputs in the `$each` that is being read, if one is
        self.template = self._read(value, "", 1)
        """The body as JSON, with a `Place` for each part of a request in it."""
        for name in inputs:
            if name not in self._found:
                hint = f"; `${name}` is the request's own, so call it something else" if f"${name}" in _OWN else ""
                self.faults.setdefault("", f"input `{name}` stands nowhere in it{hint}")

    def _read(self, value: Any, at: str, depth: int) -> Any:
        """The template of *value*, which stands *at* a key; `null` for what is wrong."""
        if depth > MAX_DEPTH:
            return self._fault(at, f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, list):
            return [self._read(item, f"{at}[{index}]", depth + 1) for index, item in enumerate(value)]
        if isinstance(value, str) and _is_own(value):
            return Place("", value) if value in _OWN else self._input("", value[1:], at)
        if not isinstance(value, dict):
            return self._constant(value.removeprefix("$") if isinstance(value, str) else value, at)
        operation = next(filter(_is_own, value), None)
        if operation is None:
            return {key.removeprefix("$"): self._read(item, f"{at}.{key}", depth + 1) for key, item in value.items()}
        at += f".{operation}"
        if len(value) > 1:
            return self._fault(at, f"expected `{operation}` alone in its object")
        if operation == "$each":
            return self._each(value[operation], at, depth)
        if operation not in _INPUT:
            known = ", ".join(("$each", *_INPUT))
            return self._fault(at, f"unknown; known are {known}, and $$ for a name that begins with $")
        return self._input(operation, value[operation], at)

    def _input(self, operation: str, name: Any, at: str) -> Place | Raw:
        if not isinstance(name, str) or name not in self._inputs:
            there = f"there are {', '.join(self._inputs)}" if self._inputs else "`inputs` names none"
            also = "its name stands here without $" if operation else "$parameters and $id are known, $$ is the text $"
            return self._fault(at, f"no such input: {there}; {also}")
        datatype, shape = self._inputs[name]
        if operation == "$b64" and (datatype is None or datatype.kind is not BYTES):
            self._fault(at, f"expected an input with `datatype: BYTES`, and `{name}` is none")
        if operation == "$rows" and shape is not None and len(shape) < (1 if self._in_rows is None else 2):
            self._fault(at, f"input `{name}` is a scalar there, which has no rows")
        self._found.add(name)
        if self._in_rows is not None:
            self._in_rows.add(name)
        return Place(name, operation)

    def _each(self, item: Any, at: str, depth: int) -> Place | Raw:
        if self._in_rows is not None:
            return self._fault(at, "expected no `$each` inside of another one")
        self._in_rows = inside = set[str]()
        template = self._read(item, at, depth + 1)
        self._in_rows = None
        if not inside:
            return self._fault(at, self.faults.get(at, "expected an input in it, such as $x, for its rows"))
        shapes = {name: self._inputs[name][1] for name in sorted(inside)}
        first = {name: shape[0] if shape else "a scalar" for name, shape in shapes.items() if shape is not None}
        sizes = set(first.values()) - {-1}
        if len(sizes) > 1 or "a scalar" in sizes:
            said = ", ".join(f"`{name}` {size}" for name, size in first.items() if size in sizes)
            self._fault(at, f"expected inputs with the same first dimension: {said}")
        return Place("", "$each", template)

    def _constant(self, value: Any, at: str) -> Raw:
        try:  # integers may have more than 64 bits
            return Raw(json.dumps(value, allow_nan=False).encode())
        except (TypeError, ValueError):
            return self._fault(at, "expected what JSON has: text, a number, true, false or null")

    def _fault(self, at: str, words: str) -> Raw:
        self.faults[at] = words
        return _NULL


def _is_own(text: str) -> bool:
    """Whether *text* is a word of the language, and not a text."""
    return text.startswith("$") and not text.startswith("$$")


# Templates of the gateway's own


def by_name(inputs: Sequence[Tensor]) -> dict[str, Place]:
    """An object of all *inputs*."""
    return {tensor.name: Place(tensor.name) for tensor in inputs}


def in_rows(inputs: Sequence[Tensor]) -> Place:
    """A list of objects, one for each row of *inputs*; of an only input the rows themselves."""
    return Place("", "$each", Place(inputs[0].name) if len(inputs) == 1 else by_name(inputs))


# From a template and a request to what is sent


class WrittenRequest(PiecedJson):
    """The body of a request for its backend.

    The JSON of tensors is made anew each time that it is sent.
    """

    def __init__(
        self,
        template: Any,
        request: DialectRequest,
        strings: Callable[[Tensor], StringForm],
        datatypes: Mapping[str, Datatype],
    ) -> None:
        """*template* is JSON with a `Place` wherever something of *request* stands.

        *strings* says how elements of BYTES become strings. *datatypes* maps the name of a tensor's datatype to another
        one, as which its numbers are printed. Raises `CodecError` for what the body cannot say.
        """
        self._request = request
        self._strings = strings
        self._datatypes = datatypes
        self._inputs = {tensor.name: tensor for tensor in request.inputs}
        self._segments = self._filled(template, None)

    @property
    def small_json(self) -> bytes | None:
        """All of it, if it is small enough to be made and sent in one go."""
        if sum([len(tensor.blob) for tensor in self._request.inputs]) > SINGLE_PIECE_BYTES:
            return None
        made = bytearray()
        for text in self.texts():
            made += text
            if len(made) > SMALL_JSON_BYTES:  # a template may say much beside each row, and a shape has many lists
                return None
        return bytes(made)

    def texts(self) -> Iterator[Piece]:
        """The body in texts of bounded size, of which some may be empty; every call makes it anew."""
        return chain.from_iterable([(part,) if isinstance(part, bytes) else part.pieces() for part in self._segments])

    def _filled(self, template: Any, rows_of: list[Tensor] | None) -> "list[Segment]":
        """The JSON of *template* for whole inputs, or for their rows, if *rows_of* is a list: they are added to it."""
        there: list[Segment] = []

        def fill(place: Place) -> Raw:
            segment = self._at(place, rows_of)
            if isinstance(segment, bytes):
                return Raw(segment)
            there.append(segment)
            return _LATER

        beginning, *texts_behind = msgspec.json.encode(template, enc_hook=fill).split(LATER)
        return [beginning, *chain.from_iterable(zip(there, texts_behind, strict=True))]

    def _at(self, place: Place, rows_of: list[Tensor] | None) -> "Segment":
        """What stands at *place*."""
        operation = place.operation
        if operation == "$each":
            return self._rows(place.item)
        if operation in _OWN:
            return object_text(self._request.parameters) if operation == "$parameters" else self._request.id or b"null"
        tensor = self._inputs.get(place.name)
        if tensor is None:
            raise CodecError(f"{label_of('input', place.name)} is missing: the model's server needs all of its inputs")
        if operation == "$column":
            tensor = _column(tensor)
        shape = tensor.shape
        if rows_of is not None:
            rows_of.append(tensor)
            shape = shape[1:]
        if operation == "$shape":
            return orjson.dumps(shape)
        if operation == "$rows":
            if not shape:
                raise CodecError(f"{tensor}: a scalar stands in `$rows` of this backend's template, which has no rows")
            return b"%d" % shape[0]
        if operation == "$flat":
            shape = (math.prod(shape),)
        else:
            check_nestable(tensor.shape, tensor)
        datatype = tensor.datatype
        strings = _BASE64
        if datatype.kind is BYTES and operation != "$b64":
            strings = self._strings(tensor)
        literals = datatype.kind is FLOAT and self._request.policy.nonfinite is _LITERAL
        return NestedTensor(tensor.blob, self._datatypes.get(datatype.name, datatype), shape, strings, literals)

    def _rows(self, item: Any) -> "NestedTensor | Rows":
        inputs: list[Tensor] = []
        row = self._filled(item, inputs)
        n_rows = _same_rows(inputs)
        slots = [segment for segment in row if isinstance(segment, NestedTensor)]
        if len(slots) == 1 and not any(segment for segment in row if segment is not slots[0]):
            # the rows of one tensor are its nested lists
            return msgspec.structs.replace(slots[0], shape=(n_rows, *slots[0].shape))
        return Rows([segment for segment in row if not isinstance(segment, Rows)], n_rows)


Segment = bytes | NestedTensor | Rows


def _column(tensor: Tensor) -> Tensor:
    """*tensor* as a column of a table. Raises `CodecError` if it is none."""
    if len(tensor.shape) not in (1, 2) or tensor.shape[1:] not in ((), (1,)):
        raise CodecError(f"{tensor}: a column of a table has the shape [n] or [n, 1]")
    return msgspec.structs.replace(tensor, shape=tensor.shape[:1])


def _same_rows(inputs: Sequence[Tensor]) -> int:
    """How many rows all *inputs* have. Raises `CodecError` if they are not as many, or one is a scalar."""
    if not inputs:
        raise CodecError("a request without inputs has no rows, which this backend gets")
    for tensor in inputs:
        if not tensor.shape:
            raise CodecError(f"{tensor}: a scalar has no rows, which this backend gets")
        if tensor.shape[0] != inputs[0].shape[0]:
            first = f"{inputs[0].shape[0]} rows, as {label_of('input', inputs[0].name)} has"
            raise CodecError(f"{tensor}: expected {first}: this backend gets rows of all inputs together")
        if 0 in tensor.shape:  # no rows say nothing of their shape, and empty ones may be any number
            check_nestable(tensor.shape if not tensor.shape[0] else (tensor.shape[0], 0), tensor)
    return inputs[0].shape[0]
