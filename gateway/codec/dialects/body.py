"""The language of templates: a body of a request as a value of YAML in which tensors have their places.

    $x                 the input `x`, nested by its shape; `$$x` is the text `$x`
    {$flat: x}         its values in one list
    {$shape: x}        its shape
    {$rows: x}         its first dimension
    {$b64: x}          a BYTES input, each element in base64
    {$each: ITEM}      a list with ITEM for each row of the inputs in it, which stand there as they are in that row;
                       an input declared `[]` is the same in each row
    $row               in `$each`, or where `rows: 1` makes a request of each row: the row's number, from 0
    $parameters        the object of the request's own parameters
    {$parameters: {a: 1, b: $x}}      this object, with the request's own parameters in place of members of their names
    $model, $version   the names at the backend; without a version null
    $id                the request's id; without one null

An optional input that a request lacks is left out, with the member, or the item of a list, in which it stands alone.
All else is written as the JSON that it is. A template is read once. A request fills the places in it, which raise
`CodecError` for what they cannot say; what stands there becomes JSON piece by piece when the body is sent, so that the
JSON never exists as a whole.
"""

import json
import math
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import msgspec
import orjson
from msgspec import Raw

from gateway.codec.dialects.declared import TensorDescription, missing_input
from gateway.codec.dialects.request import DialectRequest
from gateway.codec.inference import NonFinite, Tensor, label_of
from gateway.codec.json.members import object_text
from gateway.codec.json.pieced import SINGLE_PIECE_BYTES, Piece, PiecedJson
from gateway.codec.tensors.datatypes import BYTES, FLOAT, Datatype
from gateway.codec.tensors.nested_printing import NestedTensor, check_nestable
from gateway.codec.tensors.row_printing import RowNumbers, Rows
from gateway.codec.tensors.string_printing import StringForm
from gateway.codec.v2.messages import LATER
from gateway.errors import CodecError

MAX_DEPTH = 64
"""How deep a body may be nested."""

SMALL_JSON_BYTES = 8 * SINGLE_PIECE_BYTES
"""The most JSON that is made in one go: of one-byte types it is up to six times as long."""

_INPUT = ("$flat", "$shape", "$rows", "$b64")
"""What may stand for one input, by the name of the object's only member."""

_OF_SHAPE = ("$shape", "$rows")
"""Those of `_INPUT` that say nothing of the input's values."""

_OWN = ("$parameters", "$model", "$version", "$id", "$row")
"""What stands for something of the request's own. No input can be called so."""

_BRACED = re.compile(r"\{(model|version)\}")

_LATER, _NULL = Raw(LATER), Raw(b"null")
_ABSENT = object()
"""In the place of an optional input that the request does not have."""

_BASE64, _LITERAL = StringForm.BASE64, NonFinite.LITERAL


# The language


class Place:
    """A place in the JSON of a body that a part of the request fills; immutable."""

    __slots__ = ("item", "name", "operation")

    def __init__(self, name: str = "", operation: str = "", item: Any = None) -> None:
        """*name* is an input's, or *operation* is of `_OWN`, or it is `$each`, with *item* for each row.

        Of an input *operation* is one of `_INPUT`, `$column` for a column of a table, or empty for the nested tensor.
        Of `$parameters` *item* is the object that they are put into, or None.
        """
        self.name = name
        self.operation = operation
        self.item = item


class Body:
    """A body that was read from YAML."""

    def __init__(self, value: Any, inputs: Mapping[str, TensorDescription], *, is_row: bool = False) -> None:
        """*value* has text, numbers, lists and objects in it; *inputs* are those of the model's block.

        *is_row*: each request has one row, and inputs with rows stand in it without their first dimension.
        """
        self.faults: dict[str, str] = {}
        """What is wrong with it: words by the key where it is, such as `.rows[0].x`."""
        self.braced: dict[str, str] = {}
        """Texts that hold `{model}` or `{version}`, which mean nothing here: the name, by the key where it is."""
        self.parameters: set[str] | None = set()
        """The parameters that requests may have; None: any."""
        self.uses_version = False
        """Whether the version stands in it."""
        self.optional = {name for name, each in inputs.items() if each.optional}
        """The inputs that requests may lack."""
        self.varies = bool(self.optional)
        """Whether the members that it has depend on the request."""
        self._inputs = {name: _row_of(each) for name, each in inputs.items()} if is_row else inputs
        self._is_row = is_row
        self.sent: set[str] = set()
        """The inputs whose values stand in it, and not their shapes alone."""
        self._found: set[str] = set()
        self._in_rows: set[str] | None = None  # the inputs in the `$each` that is being read, if one is
        self.template = self._read(value, "", 1)
        """The body as JSON, with a `Place` for each part of a request in it."""
        self.scalars = {name for name, each in self._inputs.items() if each.shape == ()}
        """The inputs that are declared as scalars."""
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
            return self._own(value, at) if value in _OWN else self._input("", value[1:], at)
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
        if operation == "$parameters":
            return self._parameters(value[operation], at, depth)
        if operation not in _INPUT:
            known = ", ".join(("$each", *_INPUT, "$parameters"))
            return self._fault(at, f"unknown; known are {known}, and $$ for a name that begins with $")
        return self._input(operation, value[operation], at)

    def _own(self, word: str, at: str) -> Place | Raw:
        if word == "$parameters":
            self.parameters = None
        elif word == "$version":
            self.uses_version = True
        elif word == "$row" and self._in_rows is None and not self._is_row:
            return self._fault(at, "`$row` is the number of a row: expected it in `$each`, or beside `rows: 1`")
        return Place("", word)

    def _parameters(self, members: Any, at: str, depth: int) -> Place | Raw:
        if not isinstance(members, dict) or next(filter(_is_own, members), None):
            return self._fault(at, "expected an object: the parameters that requests may have, with their defaults")
        item = self._read(members, at, depth + 1)
        self.varies = True
        if self.parameters is not None:
            self.parameters |= item.keys()
        return Place("", "$parameters", item)

    def _input(self, operation: str, name: Any, at: str) -> Place | Raw:
        if not isinstance(name, str) or name not in self._inputs:
            there = f"there are {', '.join(self._inputs)}" if self._inputs else "`inputs` names none"
            also = "its name stands here without $" if operation else f"{', '.join(_OWN)} are known, $$ is the text $"
            return self._fault(at, f"no such input: {there}; {also}")
        datatype, shape = self._inputs[name].datatype, self._inputs[name].shape
        if operation == "$b64" and (datatype is None or datatype.kind is not BYTES):
            self._fault(at, f"expected an input with `datatype: BYTES`, and `{name}` is none")
        if operation == "$rows" and shape is not None and len(shape) < (1 if self._in_rows is None else 2):
            self._fault(at, f"input `{name}` is a scalar there, which has no rows")
        self._found.add(name)
        if operation not in _OF_SHAPE:
            self.sent.add(name)
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
        shapes = {name: self._inputs[name].shape for name in sorted(inside)}
        if all(shape == () for shape in shapes.values()):
            self._fault(at, f"expected an input with rows: {', '.join(f'`{name}`' for name in shapes)} has none")
        sizes = {name: shape[0] for name, shape in shapes.items() if shape and isinstance(shape[0], int)}
        if len(set(sizes.values()) - {-1}) > 1:
            said = ", ".join(f"`{name}` {size}" for name, size in sizes.items() if size != -1)
            self._fault(at, f"expected inputs with the same first dimension: {said}")
        return Place("", "$each", template)

    def _constant(self, value: Any, at: str) -> Raw:
        if isinstance(value, str) and (braced := _BRACED.search(value)):
            self.braced[at] = braced[1]
        try:  # integers may have more than 64 bits
            return Raw(json.dumps(value, allow_nan=False).encode())
        except (TypeError, ValueError):
            return self._fault(at, "expected what JSON has: text, a number, true, false or null")

    def _fault(self, at: str, words: str) -> Raw:
        self.faults[at] = words
        return _NULL


def _row_of(described: TensorDescription) -> TensorDescription:
    """*described* as it is in one row."""
    return msgspec.structs.replace(described, shape=described.shape[1:]) if described.shape else described


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


class ModelNames(NamedTuple):
    """The model's names at the backend, and which of a request's rows are sent."""

    model: str = ""
    version: str | None = None
    first_row: int = 0
    """The number, in the client's request, of the first row that is sent."""


NO_NAMES = ModelNames()


class WrittenRequest(PiecedJson):
    """The body of a request for its backend.

    The JSON of tensors is made anew each time that it is sent.
    """

    def __init__(
        self,
        template: Any,
        request: DialectRequest,
        strings: Callable[[Tensor], StringForm | None],
        datatypes: Mapping[str, Datatype],
        names: ModelNames,
        body: Body | None = None,
    ) -> None:
        """*template* is JSON with a `Place` wherever something of *request* stands.

        *strings* says how elements become strings; None: numbers do not. *datatypes* maps the name of a tensor's
        datatype to another one, as which its numbers are printed. *body* is the one of the configuration that
        *template* belongs to, if it does. Raises `CodecError` for what the body cannot say.
        """
        self._request = request
        self._strings = strings
        self._datatypes = datatypes
        self._names = names
        self._scalars: Container[str] = body.scalars if body is not None else ()
        self._inputs = {tensor.name: tensor for tensor in request.inputs}
        if body is not None and body.varies:
            template = self._expanded(template, body.optional)
            if template is _ABSENT:
                raise CodecError("the request has none of the inputs that this backend's body is made of")
            self._check_sent(template, body.sent)
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

    def _expanded(self, template: Any, optional: Container[str]) -> Any:
        """*template* with the parameters put into their objects, and without the *optional* inputs that are missing."""
        if isinstance(template, dict):
            members = {name: self._expanded(item, optional) for name, item in template.items()}
            return {name: item for name, item in members.items() if item is not _ABSENT}
        if isinstance(template, list):
            return list(filter(_is_there, [self._expanded(item, optional) for item in template]))
        return self._expanded_place(template, optional) if isinstance(template, Place) else template

    def _check_sent(self, template: Any, expected: Container[str]) -> None:
        """Raise `CodecError` for an *expected* input that *template* lacks: a parameter stands in its only place."""
        sent = set(_sent_inputs(template))
        for tensor in self._request.inputs:
            if tensor.name in expected and tensor.name not in sent:
                raise CodecError(
                    f"{tensor}: one of the request's parameters takes its place in this backend's body; "
                    "expected either the input or the parameter"
                )

    def _expanded_place(self, place: Place, optional: Container[str]) -> Any:
        if place.item is None:
            return _ABSENT if place.name in optional and place.name not in self._inputs else place
        item, own = self._expanded(place.item, optional), self._request.parameters
        if place.operation == "$each":
            return Place("", "$each", item) if _has_input(item) else _ABSENT
        return {**item, **{name: Raw(own[name]) for name in place.item if name in own}}

    def _filled(self, template: Any, rows_of: list[Tensor] | None) -> "list[Any]":
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
        if place.operation == "$each":
            return self._rows(place.item)
        if place.operation in _OWN:
            return self._own(place.operation, is_in_rows=rows_of is not None)
        return self._input(place, rows_of)

    def _input(self, place: Place, rows_of: list[Tensor] | None) -> "Segment":
        """What stands at the *place* of an input."""
        operation = place.operation
        tensor = self._inputs.get(place.name)
        if tensor is None:
            raise missing_input(place.name)
        if operation == "$column":
            tensor = _column(tensor)
        shape = tensor.shape
        is_same_in_rows = rows_of is not None and tensor.name in self._scalars
        if rows_of is not None and not is_same_in_rows:
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
        nested = self._nested(tensor, shape, operation)
        return b"".join(nested.pieces()) if is_same_in_rows else nested

    def _nested(self, tensor: Tensor, shape: tuple[int, ...], operation: str) -> NestedTensor:
        """*tensor*, nested like *shape*."""
        datatype = tensor.datatype
        strings = _BASE64 if operation == "$b64" else self._strings(tensor)
        if datatype.kind is BYTES:
            return NestedTensor(tensor.blob, datatype, shape, strings or StringForm.TEXT)
        if strings is _BASE64:
            shape = shape or (1,)  # a scalar is a text of its own, as an only element is
        literals = datatype.kind is FLOAT and self._request.policy.nonfinite is _LITERAL
        printed = self._datatypes.get(datatype.name, datatype)
        return NestedTensor(tensor.blob, printed, shape, literals=literals, number_form=strings)

    def _own(self, word: str, *, is_in_rows: bool) -> "Segment":
        """What *word*, one of `_OWN`, stands for."""
        if word == "$parameters":
            return object_text(self._request.parameters)
        if word == "$row":
            return RowNumbers(self._names.first_row) if is_in_rows else b"%d" % self._names.first_row
        if word == "$id":
            return self._request.id or b"null"
        return msgspec.json.encode(self._names.model if word == "$model" else self._names.version)

    def _rows(self, item: Any) -> "NestedTensor | Rows":
        inputs: list[Tensor] = []
        row = self._filled(item, inputs)
        n_rows = _same_rows(inputs)
        slots = [segment for segment in row if isinstance(segment, NestedTensor)]
        if len(slots) == 1 and not any(segment for segment in row if segment is not slots[0]):
            # the rows of one tensor are its nested lists
            return msgspec.structs.replace(slots[0], shape=(n_rows, *slots[0].shape))
        return Rows([segment for segment in row if not isinstance(segment, Rows)], n_rows)


Segment = bytes | NestedTensor | RowNumbers | Rows


def _is_there(item: Any) -> bool:
    return item is not _ABSENT


def _has_input(template: Any) -> bool:
    """Whether an input stands in *template*."""
    if isinstance(template, dict):
        return any(map(_has_input, template.values()))
    if isinstance(template, list):
        return any(map(_has_input, template))
    return isinstance(template, Place) and (bool(template.name) or _has_input(template.item))


def _sent_inputs(template: Any) -> Iterator[str]:
    """The names of the inputs whose values stand in *template*."""
    if isinstance(template, Place):
        if template.name and template.operation not in _OF_SHAPE:
            yield template.name
        yield from _sent_inputs(template.item)
    elif isinstance(template, dict | list):
        for item in template.values() if isinstance(template, dict) else template:
            yield from _sent_inputs(item)


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
