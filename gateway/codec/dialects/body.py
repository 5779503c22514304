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
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

import msgspec
import orjson
from msgspec import Raw

from gateway.codec.dialects.request import DialectRequest
from gateway.codec.inference import NonFinite, Tensor, label_of
from gateway.codec.json.members import object_text
from gateway.codec.json.pieced import SINGLE_PIECE_BYTES, Piece, PiecedJson
from gateway.codec.tensors.datatypes import Datatype, Kind
from gateway.codec.tensors.nested_printing import NestedTensor, check_nestable
from gateway.codec.tensors.row_printing import Rows
from gateway.codec.tensors.string_printing import StringForm
from gateway.codec.v2.messages import LATER
from gateway.errors import CodecError

MAX_DEPTH = 64
"""How deep a body may be nested."""

SMALL_JSON_BYTES = 8 * SINGLE_PIECE_BYTES
"""The most JSON that is made in one go: of one-byte types it is up to six times as long."""

MAX_BODIES = 256
"""How many bodies of the gateway's own templates are kept: making one takes longer than filling it."""

MAX_NAMES_KEPT = 1024
"""The most characters of names in a body that is kept."""

Inputs = Mapping[str, tuple[Datatype | None, tuple[int, ...] | None]]
"""Datatype and shape of each input that a model is known to have."""

Strings = Callable[[Tensor], StringForm]
"""How the elements of a tensor of BYTES become strings. Raises `CodecError` if they cannot."""

_INPUT = ("$flat", "$shape", "$rows", "$b64")
"""What may stand for one input, by the name of the object's only member."""

_OWN = ("$parameters", "$id")
"""What stands for something of the request's own."""


_LATER, _NULL = Raw(LATER), Raw(b"null")


# The language


class Place(msgspec.Struct, frozen=True):
    """Where something of a request stands; also in values for `Body` that are no YAML, whatever the input's name is."""

    name: str = ""
    """The input's."""
    operation: str = ""
    """`$each`, or one of `_INPUT` or `_OWN`; empty for a nested tensor."""
    item: "Sequence[bytes | Place]" = ()
    """Of `$each`: what is printed for each row of some inputs."""
    rows_of: Collection[str] = ()
    """The inputs that are in it."""


Parts = Sequence[bytes | Place]
"""Texts and what stands between them."""


class Body:
    """A body that was read from YAML, or one of the gateway's own."""

    def __init__(self, value: Any, inputs: Inputs) -> None:
        """*value* has text, numbers, lists and objects in it."""
        self.faults: dict[str, str] = {}
        """What is wrong with it: words by the key where it is, such as `.rows[0].x`."""
        self._inputs = inputs
        self._found: set[str] = set()
        self._in_rows: dict[str, None] | None = None  # the inputs in the `$each` that is being read, if one is
        self._met: list[Place] = []  # what stands in the text that is being read
        self._parts = self._parts_of(value, "", 1)
        for name in inputs:
            if name not in self._found:
                hint = f"; `${name}` is the request's own, so call it something else" if f"${name}" in _OWN else ""
                self.faults.setdefault("", f"input `{name}` stands nowhere in it{hint}")

    def write(self, request: DialectRequest, strings: Strings, datatypes: Mapping[str, Datatype]) -> "WrittenRequest":
        """The body of *request*. Raises `CodecError` for what it cannot say.

        *datatypes* are those as which numbers are printed, by the names of the datatypes that they have.
        """
        filling = _Filling(request, strings, datatypes, {tensor.name: tensor for tensor in request.inputs})
        return WrittenRequest(request, filling.filled(self._parts))

    def _parts_of(self, value: Any, at: str, depth: int) -> Parts:
        outside, self._met = self._met, []
        beginning, *texts_behind = msgspec.json.encode(self._read(value, at, depth)).split(LATER)
        met, self._met = self._met, outside
        parts: list[bytes | Place] = [beginning]
        for place, text in zip(met, texts_behind, strict=True):
            parts += (place, text)
        return parts

    def _read(self, value: Any, at: str, depth: int) -> Any:
        """*value* as JSON, with `LATER` for all that is in `_met`."""
        if depth > MAX_DEPTH:
            return self._fault(at, f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, Place):
            return self._place(value.name)
        if isinstance(value, list):
            return [self._read(item, f"{at}[{index}]", depth + 1) for index, item in enumerate(value)]
        if isinstance(value, str) and _is_own(value):
            return self._meet(Place("", value)) if value in _OWN else self._input("", value[1:], at)
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

    def _input(self, operation: str, name: Any, at: str) -> Raw:
        if not isinstance(name, str) or name not in self._inputs:
            there = f"there are {', '.join(self._inputs)}" if self._inputs else "`inputs` names none"
            also = "its name stands here without $" if operation else "$parameters and $id are known, $$ is the text $"
            return self._fault(at, f"no such input: {there}; {also}")
        datatype, shape = self._inputs[name]
        if operation == "$b64" and (datatype is None or datatype.kind is not Kind.BYTES):
            self._fault(at, f"expected an input with `datatype: BYTES`, and `{name}` is none")
        if operation == "$rows" and shape is not None and len(shape) < (1 if self._in_rows is None else 2):
            self._fault(at, f"input `{name}` is a scalar there, which has no rows")
        return self._place(name, operation)

    def _each(self, item: Any, at: str, depth: int) -> Raw:
        if self._in_rows is not None:
            return self._fault(at, "expected no `$each` inside of another one")
        inside: dict[str, None] = {}
        self._in_rows = inside
        parts = self._parts_of(item, at, depth + 1)
        self._in_rows = None
        if not inside:
            return self._fault(at, self.faults.get(at, "expected an input in it, such as $x, for its rows"))
        shapes = {name: self._inputs[name][1] for name in sorted(inside)}
        first = {name: shape[0] if shape else "a scalar" for name, shape in shapes.items() if shape is not None}
        sizes = set(first.values()) - {-1}
        if len(sizes) > 1 or "a scalar" in sizes:
            said = ", ".join(f"`{name}` {size}" for name, size in first.items() if size in sizes)
            self._fault(at, f"expected inputs with the same first dimension: {said}")
        return self._meet(Place("", "$each", parts, inside))

    def _place(self, name: str, operation: str = "") -> Raw:
        self._found.add(name)
        if self._in_rows is not None:
            self._in_rows[name] = None
        return self._meet(Place(name, operation))

    def _meet(self, place: Place) -> Raw:
        self._met.append(place)
        return _LATER

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


def own_body(template: Callable[..., Any], names: tuple[str, ...], *said: str | bool) -> Body:
    """What *template* makes of the *names* of a request's inputs, and of what else is *said*; kept for short names.

    Raises `CodecError` if it has rows of no inputs.
    """
    make = _own_body if sum(map(len, names)) <= MAX_NAMES_KEPT else _own_body.__wrapped__
    body = make(template, names, *said)
    if body.faults:
        raise CodecError("a request without inputs has no rows, which this backend gets")
    return body


@lru_cache(MAX_BODIES)
def _own_body(template: Callable[..., Any], names: tuple[str, ...], *said: str | bool) -> Body:
    return Body(template(names, *said), dict.fromkeys(names, (None, None)))


def as_text(text: str) -> str:
    """*text* as it stands in a template."""
    return f"${text}" if text.startswith("$") else text


def by_name(names: Iterable[str]) -> dict[str, Place]:
    """An object of all inputs."""
    return {as_text(name): Place(name) for name in names}


def in_a_row(names: Sequence[str]) -> Any:
    """The same; of only one input the value itself."""
    return Place(names[0]) if len(names) == 1 else by_name(names)


# From a template and a request to what is sent


@dataclass(frozen=True, slots=True)
class WrittenRequest(PiecedJson):
    """The body of a request for its backend; the JSON of its segments is made anew each time that it is sent."""

    request: DialectRequest
    segments: "list[Segment]"

    @property
    def small_json(self) -> bytes | None:
        """All of it, if it is small enough to be made and sent in one go."""
        if sum([len(tensor.blob) for tensor in self.request.inputs]) > SINGLE_PIECE_BYTES:
            return None
        made = bytearray()
        for text in self.texts():
            made += text
            if len(made) > SMALL_JSON_BYTES:  # a template may say much beside each row, and a shape has many lists
                return None
        return bytes(made)

    def texts(self) -> Iterator[Piece]:
        """The body in texts of bounded size, of which some may be empty; every call makes it anew."""
        return chain.from_iterable([(part,) if isinstance(part, bytes) else part.pieces() for part in self.segments])


class _Filling(msgspec.Struct, frozen=True):
    """A request that fills the places of a template."""

    request: DialectRequest
    strings: Strings
    datatypes: Mapping[str, Datatype]
    inputs: Mapping[str, Tensor]

    def filled(self, parts: Parts, *, in_rows: bool = False) -> "list[Segment]":
        """All of *parts*; *in_rows*: inputs stand there with the shape that they have in a row."""
        return [part if isinstance(part, bytes) else self._at(part, in_rows=in_rows) for part in parts]

    def _input(self, name: str) -> Tensor:
        tensor = self.inputs.get(name)
        if tensor is None:
            raise CodecError(f"{label_of('input', name)} is missing: the model's server needs all of its inputs")
        return tensor

    def _at(self, place: Place, *, in_rows: bool) -> "Segment":
        """What stands at *place*."""
        operation = place.operation
        if operation == "$each":
            return self._rows(place)
        if operation in _OWN:
            return object_text(self.request.parameters) if operation == "$parameters" else self.request.id or b"null"
        tensor = self._input(place.name)
        shape = tensor.shape[1:] if in_rows else tensor.shape
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
        strings = StringForm.BASE64
        if datatype.kind is Kind.BYTES and operation != "$b64":
            strings = self.strings(tensor)
        literals = datatype.kind is Kind.FLOAT and self.request.policy.nonfinite is NonFinite.LITERAL
        return NestedTensor(tensor.blob, self.datatypes.get(datatype.name, datatype), shape, strings, literals)

    def _rows(self, each: Place) -> "NestedTensor | Rows":
        n_rows = _same_rows([self._input(name) for name in each.rows_of])
        item = self.filled(each.item, in_rows=True)
        slots = [segment for segment in item if isinstance(segment, NestedTensor)]
        if len(slots) == 1 and not any(segment for segment in item if segment is not slots[0]):
            # the rows of one tensor are its nested lists
            return msgspec.structs.replace(slots[0], shape=(n_rows, *slots[0].shape))
        return Rows([segment for segment in item if not isinstance(segment, Rows)], n_rows)


Segment = bytes | NestedTensor | Rows


def _same_rows(inputs: Sequence[Tensor]) -> int:
    """How many rows all *inputs* have. Raises `CodecError` if they are not as many, or one is a scalar."""
    for tensor in inputs:
        if not tensor.shape:
            raise CodecError(f"{tensor}: a scalar has no rows, which this backend gets")
        if tensor.shape[0] != inputs[0].shape[0]:
            first = f"{inputs[0].shape[0]} rows, as {label_of('input', inputs[0].name)} has"
            raise CodecError(f"{tensor}: expected {first}: this backend gets rows of all inputs together")
        if not tensor.shape[0]:  # no rows say nothing of their shape
            check_nestable(tensor.shape, tensor)
    return inputs[0].shape[0]
