"""Bodies of requests in other dialects than V2, put together of parts.

A part makes one value of the body of a request: an object of other parts, a constant, the request's parameters, or its
tensors: all by name, the only one as it is, as rows, or as a table. Calling it raises `CodecError` for what it cannot
say. Its pieces are made when they are asked for, so that the JSON never exists as a whole.

In every form tensors are nested lists, and these say their shape. Not here: which parts a dialect's body has.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

import orjson

from gateway.codec.dialects.request import DialectRequest, Writer
from gateway.codec.inference import NonFinite, Tensor, label_of
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

Part = Callable[[DialectRequest], Iterator[Piece] | None]
"""Makes a value of the body; None: the member that it would be is left out."""

Strings = Callable[[DialectRequest, Tensor], StringForm]
"""How the elements of a tensor of BYTES become strings. Raises `CodecError` if they cannot."""


def body_of(members: dict[str, Part]) -> Writer:
    """An object with these *members*, in their order."""

    def write(request: DialectRequest) -> Iterator[Piece]:
        parts = ((name, part(request)) for name, part in members.items())
        return _object([(name, pieces) for name, pieces in parts if pieces is not None])

    return write


def constant(value: object) -> Part:
    """The same JSON for every request; left out if it is empty."""
    return lambda _: iter((orjson.dumps(value),)) if value else None


def parameters(request: DialectRequest) -> Iterator[Piece] | None:
    """The request's own parameters; left out if it has none."""
    return iter((object_text(request.parameters),)) if request.parameters else None


def names(request: DialectRequest) -> Iterator[Piece]:
    """The names of the inputs, as a list."""
    return iter((orjson.dumps([tensor.name for tensor in request.inputs]),))


def by_name(strings: Strings) -> Part:
    """The inputs as an object."""
    return lambda request: _object((tensor.name, _nested(request, tensor, strings)) for tensor in request.inputs)


def only(strings: Strings) -> Part:
    """The only input, which has no name there."""

    def write(request: DialectRequest) -> Iterator[Piece]:
        if len(request.inputs) != 1:
            raise CodecError(f"the model has one input, which has no name; the request has {len(request.inputs)}")
        return _nested(request, request.inputs[0], strings)

    return write


def instances(strings: Strings) -> Part:
    """The inputs as rows: of values if there is only one, else of objects."""

    def write(request: DialectRequest) -> Iterator[Piece]:
        n_rows = _same_rows(request, "row form")
        if len(request.inputs) == 1:
            return _nested(request, request.inputs[0], strings)
        columns = [_column(request, tensor, tensor.shape[1:], strings) for tensor in request.inputs]
        before = [_key(index, tensor.name) for index, tensor in enumerate(request.inputs)]
        return _rows(columns, before, b"}", n_rows)

    return write


def table(strings: Strings) -> Part:
    """The inputs as rows of a table, each a list with a value of every input."""

    def write(request: DialectRequest) -> Iterator[Piece]:
        for tensor in request.inputs:
            if len(tensor.shape) not in (1, 2) or tensor.shape[1:] not in ((), (1,)):
                raise CodecError(f"{tensor}: a column of a table has the shape [n] or [n, 1]")
        n_rows = _same_rows(request, "table")
        columns = [_column(request, tensor, (), strings) for tensor in request.inputs]
        return _rows(columns, [b"[", *[b","] * (len(columns) - 1)], b"]", n_rows)

    return write


def _object(members: Iterable[tuple[str, Iterator[Piece]]]) -> Iterator[Piece]:
    parts: list[Iterable[Piece]] = []
    for name, pieces in members:
        parts += ((_key(len(parts), name),), pieces)
    return chain(*parts or ((b"{",),), (b"}",))


def _key(n_before: int, name: str) -> bytes:
    """What stands before the value of a member, behind *n_before* others."""
    return (b"," if n_before else b"{") + orjson.dumps(name) + b":"


def _rows(columns: Sequence[Column], before: Sequence[bytes], behind: bytes, n_rows: int) -> Iterator[Piece]:
    return chain((b"[",), row_pieces(columns, before, behind, n_rows), (b"]",))


def _same_rows(request: DialectRequest, form: str) -> int:
    """How many rows all inputs have. Raises `CodecError` if they are not as many, or one is a scalar."""
    n_rows = -1
    for tensor in request.inputs:
        if not tensor.shape:
            raise CodecError(f"{tensor}: a scalar has no rows, which this backend's {form} needs")
        if n_rows >= 0 and tensor.shape[0] != n_rows:
            first = label_of("input", request.inputs[0].name)
            raise CodecError(f"{tensor}: expected {n_rows} rows, as {first} has, for this backend's {form}")
        n_rows = tensor.shape[0]
    if n_rows < 0:
        raise CodecError(f"a request without inputs has no rows, which this backend's {form} needs")
    return n_rows


def _nested(request: DialectRequest, tensor: Tensor, strings: Strings) -> Iterator[Piece]:
    """The values of *tensor* as nested lists."""
    datatype, shape = tensor.datatype, tensor.shape
    if datatype.kind is Kind.BYTES:
        return nested_string_pieces(tensor.blob, shape, strings(request, tensor))
    values = datatype.view(tensor.blob)
    literals = _has_literals(request, tensor)
    if 0 < len(values) <= FEW_ELEMENTS and 0 < len(shape) <= FEW_DIMENSIONS and not literals:
        return iter((orjson.dumps(datatype.widen(values.reshape(shape)), option=orjson.OPT_SERIALIZE_NUMPY),))
    return nested_number_pieces(values, datatype, shape, literals=literals)


def _column(request: DialectRequest, tensor: Tensor, shape: tuple[int, ...], strings: Strings) -> Column:
    """The values of *tensor* as a column of rows, in each of which it has this *shape*."""
    datatype = tensor.datatype
    if datatype.kind is Kind.BYTES:
        return StringColumn(tensor.blob, shape, strings(request, tensor), WINDOW_BYTES // len(request.inputs))
    return NumberColumn(datatype.view(tensor.blob), datatype, shape, literals=_has_literals(request, tensor))


def _has_literals(request: DialectRequest, tensor: Tensor) -> bool:
    return tensor.datatype.kind is Kind.FLOAT and request.policy.nonfinite is NonFinite.LITERAL
