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
JSON never exists as a whole. Not here: where outputs stand in an answer (`paths`).
"""

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum, auto
from functools import partial
from itertools import chain
from typing import Any

import msgspec
import orjson

from gateway.codec.dialects.description import Encodings
from gateway.codec.dialects.request import DialectRequest
from gateway.codec.inference import BytesPolicy, NonFinite, Tensor, label_of
from gateway.codec.json.members import object_text
from gateway.codec.json.pieced import Piece
from gateway.codec.tensors.datatypes import Datatype, Kind
from gateway.codec.tensors.elements import WINDOW_BYTES
from gateway.codec.tensors.nested_printing import (
    StringForm,
    check_nestable,
    nested_number_pieces,
    nested_string_pieces,
)
from gateway.codec.tensors.row_printing import Column, NumberColumn, StringColumn, row_pieces
from gateway.errors import CodecError

MAX_DEPTH = 64
"""How deep a body may be nested."""

MAX_WRITERS = 256
"""How many writers with templates of the gateway's own a dialect keeps, one for each signature and form that is
configured: reading a template takes longer than writing a small body."""

ROW_FORM, TABLE = "row form", "table"
"""How errors call what has rows in it, in templates of the gateway's own."""

FEW_ELEMENTS = 256
"""The most numbers that are printed nested in one call: cutting them into pieces takes five times as long, which is a
twentieth of what a small request costs."""

FEW_DIMENSIONS = 8
"""The most dimensions that these may have; numpy has no arrays of as many as the protocol."""

Inputs = Mapping[str, tuple[Datatype | None, tuple[int, ...] | None]]
"""Datatype and shape of each input that a model is known to have."""

Strings = Callable[[DialectRequest, Tensor], StringForm]
"""How the elements of a tensor of BYTES become strings. Raises `CodecError` if they cannot."""

_PLACES = ("$flat", "$shape", "$rows", "$b64")
"""What may stand for one input, by the name of the object's only member."""


def text_or_base64(encodings: Encodings) -> Strings:
    """Text, unless the model's *encodings* or the policy say base64."""

    def form(request: DialectRequest, tensor: Tensor) -> StringForm:
        encoding = encodings.get("", encodings.get(tensor.name))
        if encoding == "base64":
            return StringForm.BASE64
        if encoding is None and request.policy.bytes is BytesPolicy.BASE64:
            return StringForm.TEXT if tensor.name in request.in_json else StringForm.BASE64
        if tensor.name in request.octets:
            raise request.octets[tensor.name]
        return StringForm.TEXT

    return form


class Every(Enum):
    """All inputs of a request, in templates of the gateway's own, which do not know their names."""

    BY_NAME = auto()
    """An object of all of them."""
    IN_A_ROW = auto()
    """The same; of only one input the value itself."""
    VALUES = auto()
    """A list of them."""
    NAMES = auto()
    """A list of their names."""


# The language


class Body:
    """A body that was read from YAML, or one of the gateway's own."""

    def __init__(self, value: Any, inputs: Inputs, strings: Strings, form: str = "`$each`") -> None:
        """*value* has text, numbers, lists and objects in it; *strings* tells how inputs of BYTES are written.

        *form* is how errors call what has rows in it.
        """
        self.faults: dict[str, str] = {}
        """What is wrong with it: words by the key where it is, such as `.rows[0].x`."""
        self._inputs = inputs
        self._strings = strings
        self._form = form
        self._found: set[str] = set()
        self._items: list[dict[str, None]] = []  # the inputs in the `$each` that is being read, if one is
        self._depth = 0
        self._parts = list(self._read(value, ""))
        for name in inputs:
            if name not in self._found:
                hint = f"; `${name}` is the request's own, so call it something else" if f"${name}" in _OWN else ""
                self.faults.setdefault("", f"input `{name}` stands nowhere in it{hint}")

    def write(self, request: DialectRequest) -> Callable[[], Iterator[Piece]]:
        """See `Writer`."""
        filling = _Filling(request, self._strings, {tensor.name: tensor for tensor in request.inputs})
        return partial(_pieces, filling.filled(self._parts))

    def _read(self, value: Any, at: str) -> "Iterator[bytes | Part]":
        """The text of *value*, and the parts in it."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self.faults[at] = f"nested deeper than {MAX_DEPTH} levels"
        elif isinstance(value, Every):
            yield partial(_Filling.every, how=value)
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

    def _object(self, value: dict[str, Any], at: str) -> "Iterator[bytes | Part]":
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

    def _operation(self, operation: str, value: dict[str, Any], at: str) -> "bytes | Part":
        where = f"{at}.{operation}"
        if len(value) > 1:
            return self._fault(where, f"expected `{operation}` alone in its object")
        if operation == "$each":
            return self._each(value[operation], where)
        if operation not in _PLACES:
            known = ", ".join(("$each", *_PLACES))
            return self._fault(where, f"unknown; known are {known}, and $$ for a name that begins with $")
        name = value[operation]
        if not isinstance(name, str) or not self._is_known(name):
            return self._fault(where, f"expected the name of an input: {self._listed()}")
        datatype, shape = self._inputs[name]
        if operation == "$b64" and (datatype is None or datatype.kind is not Kind.BYTES):
            return self._fault(where, f"expected an input with `datatype: BYTES`, and `{name}` is none")
        if operation == "$rows" and shape is not None and len(shape) < (2 if self._items else 1):
            return self._fault(where, f"input `{name}` is a scalar there, which has no rows")
        return partial(_Filling.place, operation=operation, name=name)

    def _each(self, item: Any, at: str) -> "bytes | Part":
        if self._items:
            return self._fault(at, "expected no `$each` inside of another one")
        self._items.append({})
        parts = list(self._read(item, at))
        inside = self._items.pop()
        if isinstance(item, Every):
            return partial(_Filling.each, parts=parts, names=None, form=self._form)
        if not inside:
            return self._fault(at, self.faults.get(at, "expected an input in it, such as $x, for its rows"))
        first = {name: shape[0] for name in sorted(inside) if (shape := self._inputs[name][1])}
        scalar = next((name for name in sorted(inside) if self._inputs[name][1] == ()), None)
        sizes = {size for size in first.values() if size >= 0}
        if scalar is not None:
            self._fault(at, f"input `{scalar}` is a scalar, which has no rows")
        elif len(sizes) > 1:
            said = ", ".join(f"`{name}` {size}" for name, size in first.items() if size >= 0)
            self._fault(at, f"expected inputs with the same first dimension: {said}")
        return partial(_Filling.each, parts=parts, names=inside, form=self._form)

    def _reference(self, text: str, at: str) -> "bytes | Part":
        part = _OWN.get(text)
        if part is not None:
            return part
        name = text[1:]
        if not self._is_known(name):
            return self._fault(at, f"no such input: {self._listed()}; $parameters and $id are known, $$ is the text $")
        return partial(_Filling.place, operation="", name=name)

    def _is_known(self, name: str) -> bool:
        if name not in self._inputs:
            return False
        self._found.add(name)
        if self._items:
            self._items[-1][name] = None
        return True

    def _listed(self) -> str:
        return f"there are {', '.join(self._inputs)}" if self._inputs else "`inputs` names none"

    def _constant(self, value: Any, at: str) -> bytes:
        try:  # not orjson, which refuses integers beyond 64 bits
            return json.dumps(value, allow_nan=False).encode()
        except (TypeError, ValueError):
            return self._fault(at, "expected what JSON has: text, a number, true, false or null")

    def _fault(self, at: str, words: str) -> bytes:
        self.faults[at] = words
        return b"null"


# From a template and a request to what is sent


class _Slot(msgspec.Struct, frozen=True):
    """A tensor that stands in a body, nested."""

    tensor: Tensor
    shape: tuple[int, ...]
    """Which it has there; in `_Rows` that of a row."""
    strings: StringForm
    literals: bool
    """Whether NaN and infinities are written as such."""

    def pieces(self) -> Iterable[Piece]:
        datatype, shape = self.tensor.datatype, self.shape
        if datatype.kind is Kind.BYTES:
            return nested_string_pieces(self.tensor.blob, shape, self.strings)
        values = datatype.view(self.tensor.blob)
        if 0 < len(values) <= FEW_ELEMENTS and 0 < len(shape) <= FEW_DIMENSIONS and not self.literals:
            return (orjson.dumps(datatype.widen(values.reshape(shape)), option=orjson.OPT_SERIALIZE_NUMPY),)
        return nested_number_pieces(values, datatype, shape, literals=self.literals)

    def column(self, window_bytes: int) -> Column:
        datatype = self.tensor.datatype
        if datatype.kind is Kind.BYTES:
            return StringColumn(self.tensor.blob, self.shape, self.strings, window_bytes)
        return NumberColumn(datatype.view(self.tensor.blob), datatype, self.shape, literals=self.literals)


class _Rows(msgspec.Struct, frozen=True):
    """A list with an item for each row of some tensors."""

    item: "list[bytes | _Slot]"
    n_rows: int

    def pieces(self) -> Iterable[Piece]:
        """The text before each tensor, and behind the last, is the same in all rows."""
        before: list[bytes] = []
        columns: list[Column] = []
        text = b""
        n_slots = sum(isinstance(segment, _Slot) for segment in self.item)
        for segment in self.item:
            if isinstance(segment, _Slot):
                before.append(text)
                columns.append(segment.column(WINDOW_BYTES // n_slots))
                text = b""
            else:
                text += segment
        return chain((b"[",), row_pieces(columns, before, text, self.n_rows), (b"]",))


class _Filling(msgspec.Struct, frozen=True):
    """A request that fills the places of a template."""

    request: DialectRequest
    strings: Strings
    inputs: Mapping[str, Tensor]
    in_rows: bool = False
    """Whether inputs stand there with the shape that they have in a row."""

    def filled(self, parts: "Iterable[bytes | Part]") -> "list[Segment]":
        """All of *parts*."""
        segments: list[Segment] = []
        for part in parts:
            if isinstance(part, bytes):
                segments.append(part)
            else:
                segments += part(self)
        return segments

    def input(self, name: str) -> Tensor:
        """The input called *name*. Raises `CodecError` if there is none."""
        tensor = self.inputs.get(name)
        if tensor is None:
            raise CodecError(f"{label_of('input', name)} is missing: the model's server needs all of its inputs")
        return tensor

    def every(self, how: Every) -> "Iterator[Segment]":
        """All inputs, as *how* says."""
        names = [orjson.dumps(name) for name in self.inputs]
        if how is Every.NAMES:
            yield b"[%b]" % b",".join(names)
            return
        is_value = how is Every.IN_A_ROW and len(names) == 1
        opening, closing = (b"", b"") if is_value else (b"[", b"]") if how is Every.VALUES else (b"{", b"}")
        before = opening
        for name, tensor in zip(names, self.inputs.values(), strict=True):
            yield before if is_value or how is Every.VALUES else b"%b%b:" % (before, name)
            yield self.slot("", tensor)
            before = b","
        yield closing if names else opening + closing

    def place(self, operation: str, name: str) -> "tuple[Segment]":
        """What an *operation* of `_PLACES`, or none, makes of an input."""
        return (self.slot(operation, self.input(name)),)

    def slot(self, operation: str, tensor: Tensor) -> "bytes | _Slot":
        """The same for an input that there is."""
        shape = tensor.shape[1:] if self.in_rows else tensor.shape
        if operation == "$shape":
            return orjson.dumps(shape)
        if operation == "$rows":
            if not shape:
                scalar = "a row of it is a scalar and has" if self.in_rows else "a scalar has"
                raise CodecError(f"{tensor}: {scalar} no rows, which `$rows` in this backend's template needs")
            return b"%d" % shape[0]
        if operation == "$flat":
            shape = (math.prod(shape),)
        else:
            check_nestable(tensor.shape, tensor)
        strings = StringForm.BASE64 if operation == "$b64" else StringForm.TEXT
        if tensor.datatype.kind is Kind.BYTES and operation != "$b64":
            strings = self.strings(self.request, tensor)
        is_float = tensor.datatype.kind is Kind.FLOAT
        return _Slot(tensor, shape, strings, is_float and self.request.policy.nonfinite is NonFinite.LITERAL)

    def each(self, parts: "Sequence[bytes | Part]", names: Collection[str] | None, form: str) -> "tuple[Segment]":
        """A list of *parts* for each row of the inputs called *names*, None: of all; *form* is how errors call it."""
        for name in names or ():
            self.input(name)
        tensors = [tensor for name, tensor in self.inputs.items() if names is None or name in names]
        if not tensors:
            raise CodecError(f"a request without inputs has no rows, which this backend's {form} needs")
        n_rows = _same_rows(tensors, form)
        item = msgspec.structs.replace(self, in_rows=True).filled(parts)
        slots = [segment for segment in item if isinstance(segment, _Slot)]
        if len(slots) == 1 and not any(segment for segment in item if segment is not slots[0]):
            # the rows of one tensor are its nested lists
            return (msgspec.structs.replace(slots[0], shape=(n_rows, *slots[0].shape)),)
        return (_Rows([segment for segment in item if not isinstance(segment, _Rows)], n_rows),)


Segment = bytes | _Slot | _Rows

Part = Callable[[_Filling], Iterable[Segment]]
"""Makes a value of the body, in segments. Raises `CodecError` for what it cannot say."""

_OWN: Mapping[str, Part] = {
    "$parameters": lambda filling: (object_text(filling.request.parameters),),
    "$id": lambda filling: (filling.request.id or b"null",),
}


def _same_rows(inputs: Sequence[Tensor], form: str) -> int:
    """How many rows all *inputs* have. Raises `CodecError` if they are not as many, or one is a scalar."""
    for tensor in inputs:
        if not tensor.shape:
            raise CodecError(f"{tensor}: a scalar has no rows, which this backend's {form} needs")
        if tensor.shape[0] != inputs[0].shape[0]:
            first = f"{inputs[0].shape[0]} rows, as {label_of('input', inputs[0].name)} has"
            raise CodecError(f"{tensor}: expected {first}, for this backend's {form}")
        if not tensor.shape[0]:  # no rows say nothing of their shape
            check_nestable(tensor.shape, tensor)
    return inputs[0].shape[0]


def _pieces(segments: Iterable[Segment]) -> Iterator[Piece]:
    """The JSON of *segments*."""
    return chain.from_iterable([(part,) if isinstance(part, bytes) else part.pieces() for part in segments])
