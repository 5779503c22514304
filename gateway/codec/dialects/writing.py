"""Bodies of requests in other dialects than V2, written as texts with tensors between them.

A part gives one value of a body as segments: text, a tensor that stands there nested (`Slot`), or an item for each row
of some tensors (`Rows`). Parts are asked when a request is bound to a form, and raise `CodecError` for what the form
cannot say. The segments become JSON piece by piece when the body is sent, so that it never exists as a whole.

In every form tensors are nested lists, and these say their shape. Not here: which parts a dialect's body has
(`template` puts them together).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from math import prod

import msgspec
import orjson

from gateway.codec.dialects.description import Encodings
from gateway.codec.dialects.request import DialectRequest, Writer
from gateway.codec.inference import BytesPolicy, NonFinite, Tensor, label_of
from gateway.codec.json.members import object_text
from gateway.codec.json.pieced import Piece
from gateway.codec.tensors.datatypes import Kind
from gateway.codec.tensors.elements import WINDOW_BYTES
from gateway.codec.tensors.nested_printing import StringForm, nested_number_pieces, nested_string_pieces
from gateway.codec.tensors.row_printing import Column, NumberColumn, StringColumn, row_pieces
from gateway.errors import CodecError

FEW_ELEMENTS = 256
"""The most numbers that are printed nested in one call: cutting them into pieces takes five times as long, which is a
twentieth of what a small request costs."""

FEW_DIMENSIONS = 8
"""The most dimensions that these may have; numpy has no arrays of as many as the protocol."""


class Slot(msgspec.Struct, frozen=True):
    """Where a tensor stands."""

    tensor: Tensor
    """In `Rows` with the shape that it has in each row."""
    strings: StringForm


class Rows(msgspec.Struct, frozen=True):
    """A list with an item for each row of some tensors."""

    item: list["bytes | Slot"]
    n_rows: int


Segments = Sequence[bytes | Slot | Rows]

Part = Callable[[DialectRequest], Segments]
"""Makes a value of the body. Raises `CodecError` for what it cannot say."""

Strings = Callable[[DialectRequest, Tensor], StringForm]
"""How the elements of a tensor of BYTES become strings. Raises `CodecError` if they cannot."""


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


def writer_of(part: Part) -> Writer:
    """What writes bodies that are *part*."""

    def write(request: DialectRequest) -> Callable[[], Iterator[Piece]]:
        segments = part(request)
        return lambda: chain.from_iterable([_pieces(request, segment) for segment in segments])

    return write


def sequence(parts: Iterable[bytes | Part]) -> Part:
    """*parts*, texts among them, one behind the other."""
    parts = list(parts)

    def write(request: DialectRequest) -> Segments:
        segments: list[bytes | Slot | Rows] = []
        for part in parts:
            if isinstance(part, bytes):
                segments.append(part)
            else:
                segments += part(request)
        return segments

    return write


def identity(request: DialectRequest) -> Segments:
    """The request's id; null without one."""
    return (request.id or b"null",)


def parameters(request: DialectRequest) -> Segments:
    """The request's own parameters."""
    return (object_text(request.parameters),)


def names(request: DialectRequest) -> Segments:
    """The names of the inputs, as a list."""
    return (orjson.dumps([tensor.name for tensor in request.inputs]),)


def input_called(request: DialectRequest, name: str) -> Tensor:
    """The input called *name*. Raises `CodecError` if there is none."""
    for tensor in request.inputs:
        if tensor.name == name:
            return tensor
    raise CodecError(f"{label_of('input', name)} is missing: the model's server needs all of its inputs")


def slot(request: DialectRequest, tensor: Tensor, strings: Strings) -> Slot:
    """Where *tensor* stands, nested."""
    is_bytes = tensor.datatype.kind is Kind.BYTES
    return Slot(tensor, strings(request, tensor) if is_bytes else StringForm.TEXT)


def by_name(strings: Strings) -> Part:
    """The inputs as an object."""

    def write(request: DialectRequest) -> list[bytes | Slot]:
        segments: list[bytes | Slot] = []
        for tensor in request.inputs:
            segments.append((b"," if segments else b"{") + orjson.dumps(tensor.name) + b":")
            segments.append(slot(request, tensor, strings))
        segments.append(b"}" if segments else b"{}")
        return segments

    return write


def only(strings: Strings) -> Part:
    """The only input, which has no name there."""

    def write(request: DialectRequest) -> Segments:
        if len(request.inputs) != 1:
            raise CodecError(f"the model has one input, which has no name; the request has {len(request.inputs)}")
        return (slot(request, request.inputs[0], strings),)

    return write


def instances(strings: Strings) -> Part:
    """The inputs as rows: of values if there is only one, else of objects."""
    rows_of_values = each(only(strings), "row form")
    rows_of_objects = each(by_name(strings), "row form")
    return lambda request: (rows_of_values if len(request.inputs) == 1 else rows_of_objects)(request)


def table(strings: Strings) -> Part:
    """The inputs as rows of a table, each a list with a value of every input."""

    def write_row(request: DialectRequest) -> Segments:
        segments: list[bytes | Slot] = []
        for tensor in request.inputs:
            segments.append(b"," if segments else b"[")
            segments.append(slot(request, msgspec.structs.replace(tensor, shape=()), strings))
        return [*segments, b"]"]

    rows = each(write_row, "table")

    def write(request: DialectRequest) -> Segments:
        for tensor in request.inputs:
            if len(tensor.shape) not in (1, 2) or tensor.shape[1:] not in ((), (1,)):
                raise CodecError(f"{tensor}: a column of a table has the shape [n] or [n, 1]")
        return rows(request)

    return write


def each(item: Part, form: str, only_of: frozenset[str] | None = None) -> Part:
    """A list of *item* for each row of the inputs, or of those *only_of*; *form* is how errors call it.

    *item* sees these inputs with the shape that they have in one row.
    """

    def write(request: DialectRequest) -> Segments:
        inputs = [tensor for tensor in request.inputs if only_of is None or tensor.name in only_of]
        n_rows = _same_rows(inputs, form)
        in_a_row = [msgspec.structs.replace(tensor, shape=tensor.shape[1:]) for tensor in inputs]
        segments = item(msgspec.structs.replace(request, inputs=in_a_row))
        flat = [segment for segment in segments if not isinstance(segment, Rows)]
        if len(flat) == 1 and isinstance(flat[0], Slot):  # the rows of one tensor are its nested lists
            tensor, strings = flat[0].tensor, flat[0].strings
            return (Slot(msgspec.structs.replace(tensor, shape=(n_rows, *tensor.shape)), strings),)
        return (Rows(flat, n_rows),)

    return write


def _same_rows(inputs: Sequence[Tensor], form: str) -> int:
    """How many rows all *inputs* have. Raises `CodecError` if they are not as many, or one is a scalar."""
    n_rows = -1
    for tensor in inputs:
        if not tensor.shape:
            raise CodecError(f"{tensor}: a scalar has no rows, which this backend's {form} needs")
        if n_rows >= 0 and tensor.shape[0] != n_rows:
            first = label_of("input", inputs[0].name)
            raise CodecError(f"{tensor}: expected {n_rows} rows, as {first} has, for this backend's {form}")
        n_rows = tensor.shape[0]
    if n_rows < 0:
        raise CodecError(f"a request without inputs has no rows, which this backend's {form} needs")
    return n_rows


# From segments to JSON


def _pieces(request: DialectRequest, segment: bytes | Slot | Rows) -> Iterable[Piece]:
    match segment:
        case bytes():
            return (segment,)
        case Slot():
            return _nested(request, segment)
        case Rows():
            return _rows(request, segment)


def _nested(request: DialectRequest, slot: Slot) -> Iterable[Piece]:
    """The values of a tensor as nested lists."""
    tensor = slot.tensor
    datatype, shape = tensor.datatype, tensor.shape
    if datatype.kind is Kind.BYTES:
        return nested_string_pieces(tensor.blob, shape, slot.strings)
    values = datatype.view(tensor.blob)
    literals = _has_literals(request, tensor)
    if 0 < len(values) <= FEW_ELEMENTS and 0 < len(shape) <= FEW_DIMENSIONS and not literals:
        return (orjson.dumps(datatype.widen(values.reshape(shape)), option=orjson.OPT_SERIALIZE_NUMPY),)
    return nested_number_pieces(values, datatype, shape, literals=literals)


def _rows(request: DialectRequest, rows: Rows) -> Iterator[Piece]:
    """The rows as a list; the text before each tensor, and behind the last, is the same in all of them."""
    before: list[bytes] = []
    columns: list[Column] = []
    text = b""
    slots = [segment for segment in rows.item if isinstance(segment, Slot)]
    for segment in rows.item:
        if isinstance(segment, Slot):
            before.append(text)
            columns.append(_column(request, segment, WINDOW_BYTES // len(slots)))
            text = b""
        else:
            text += segment
    return chain((b"[",), row_pieces(columns, before, text, rows.n_rows), (b"]",))


def _column(request: DialectRequest, slot: Slot, window_bytes: int) -> Column:
    """The values of a tensor as a column of rows."""
    tensor = slot.tensor
    if tensor.datatype.kind is Kind.BYTES:
        return StringColumn(tensor.blob, tensor.shape, slot.strings, window_bytes)
    literals = _has_literals(request, tensor)
    return NumberColumn(tensor.datatype.view(tensor.blob), tensor.datatype, tensor.shape, literals=literals)


def _has_literals(request: DialectRequest, tensor: Tensor) -> bool:
    return tensor.datatype.kind is Kind.FLOAT and request.policy.nonfinite is NonFinite.LITERAL


def flat_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """That of the same values in one list."""
    return (prod(shape),)
