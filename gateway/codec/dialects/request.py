"""An inference request as a value, and the bodies that other dialects than V2 make of it.

`DialectRequest.parse` reads what clients of V2 send: all inputs, those in JSON too, become tensors, and everything is
proved right before anything is sent. A `Writer` makes the body for a backend. `DialectRequest.bound` asks it first
whether its form can say the request, and it makes the pieces anew each time that the body is sent.

In every form tensors are nested lists, and these say their shape.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain

import msgspec
import numpy as np
import orjson

from gateway.codec.dialects.description import OCTETS_SUFFIX
from gateway.codec.inference import (
    DEFAULT_LIMITS,
    BytesPolicy,
    HeaderLimits,
    NonFinite,
    OutputSelection,
    Tensor,
    TensorPolicy,
    count_text,
    label_of,
)
from gateway.codec.json.members import Members, excerpt, restore_literals
from gateway.codec.json.pieced import SINGLE_PIECE_BYTES, Piece, PiecedJson, joined
from gateway.codec.json.sinks import pour
from gateway.codec.tensors.datatypes import DATATYPES, Array, Kind, element_count
from gateway.codec.tensors.elements import WINDOW_BYTES, check_elements
from gateway.codec.tensors.nested_printing import (
    StringForm,
    check_nestable,
    list_count,
    nested_number_pieces,
    nested_string_pieces,
)
from gateway.codec.tensors.number_reading import NATIVE_PIECE_BYTES, NumberSink
from gateway.codec.tensors.row_printing import Column, NumberColumn, StringColumn, row_pieces
from gateway.codec.tensors.string_reading import BytesSink, from_base64, joined_blobs
from gateway.codec.v2.declarations import datatype_of, name_of, shape_of, sliced_parameters, text_of
from gateway.codec.v2.framing import Cursor
from gateway.codec.v2.request import check_finite, framed_raw
from gateway.codec.v2.request_reading import RequestReader, Reserve, announced, cost_of, reserve_nothing
from gateway.errors import CodecError

Writer = Callable[["DialectRequest"], Iterator[Piece]]
"""Makes the body of a request in one form, in pieces; an empty one ends a step of work.

Calling it raises `CodecError` for what that form cannot say; the pieces are made when they are asked for.
"""


class DialectRequest(msgspec.Struct, frozen=True):
    """A request that has been proved right."""

    inputs: list[Tensor]
    """All of them, in the order in which the client gave them."""
    selection: OutputSelection
    id: bytes
    """The client's id as JSON text; empty if it sent none."""
    parameters: Members
    """The request's own, without those of the extension."""
    header_recovered: bool
    nonfinite: int
    """How many NaN and infinities are let through by policy."""
    datatypes: list[str]
    """The datatype of each binary input."""
    in_json: frozenset[str]
    """The inputs whose values came as JSON, strings as they are and not in base64."""
    octets: Mapping[str, CodecError]
    """The BYTES inputs that are not all text, each with the error that names the element."""
    policy: TensorPolicy

    @staticmethod
    def parse(
        body: memoryview,
        header_length: int | None,
        policy: TensorPolicy,
        limits: HeaderLimits = DEFAULT_LIMITS,
        *,
        recover: bool,
        reserve: Reserve = reserve_nothing,
    ) -> Generator[None, None, "DialectRequest"]:
        """Parse and check a whole body, also one that is pure JSON.

        *header_length* is the client's, None if it sent none; then *recover* allows protocol section 6. *reserve* is
        called with the bytes of memory that the parsed header takes at most, and then for each input in JSON with
        those of its tensor; what it raises passes through. Yields after each step of work.

        Raises `CodecError`, and of these `TooLargeError` for more JSON beside the data than *limits* allow.
        """
        if not body:  # protocol 1.6
            raise CodecError("empty request body")
        reader = RequestReader(body, header_length, limits, reserve, recover=recover)
        return (yield from reader.restoring(_parsed(reader, None, policy, reserve)))

    @staticmethod
    def parse_raw(
        body: memoryview,
        metadata: bytes,
        policy: TensorPolicy,
        limits: HeaderLimits = DEFAULT_LIMITS,
        *,
        reserve: Reserve = reserve_nothing,
    ) -> Generator[None, None, "DialectRequest"]:
        """Parse a raw binary request (protocol section 5): *metadata* is the model's in V2, *body* its only input.

        *reserve* is called as by `parse`; a BYTES element is copied behind its length, and its copy counts too.
        Yields after each step of work. Raises `CodecError`.
        """
        header, blob, reserve = yield from framed_raw(body, metadata, limits, reserve)
        reader = RequestReader(header, len(header), limits, reserve)
        return (yield from reader.restoring(_parsed(reader, blob, policy, reserve)))

    def bound(self, writer: Writer) -> "BoundRequest":
        """The body that *writer* makes. Raises `CodecError` if its form cannot say this request."""
        for tensor in self.inputs:
            check_nestable(tensor.shape, tensor)
        writer(self)
        return BoundRequest(self, writer)

    @property
    def is_small(self) -> bool:
        """Whether its body is small enough to be made and sent in one go."""
        return sum(len(t.blob) + list_count(t.shape) for t in self.inputs) <= SINGLE_PIECE_BYTES

    def whole_json(self, writer: Writer) -> bytes:
        """The body that *writer* makes of a small request without empty tensors. Raises `CodecError` as `bound`."""
        return b"".join(writer(self))


@dataclass(frozen=True, slots=True)
class BoundRequest(PiecedJson):
    """The body of a request in one form."""

    request: DialectRequest
    writer: Writer

    @property
    def is_small(self) -> bool:
        """Whether it is small enough to be made and sent in one go."""
        return self.request.is_small

    def json_pieces(self) -> Iterator[Piece]:
        """The body in pieces of bounded size, of which some may be empty; every call makes it anew."""
        return joined(self.writer(self.request))


# From the body to tensors


def _parsed(
    reader: RequestReader, blobs: memoryview | None, policy: TensorPolicy, reserve: Reserve
) -> Generator[None, None, DialectRequest]:
    """The request that *reader* finds; *blobs* if they are not behind its JSON."""
    top, header_bytes = yield from reader.read()
    entries = yield from reader.inputs_of(top)
    framed, is_recovered = yield from reader.frame(entries, header_bytes)
    cursor = Cursor(framed if blobs is None else blobs)
    parameters = yield from sliced_parameters(top.get("parameters", b"null"), "")
    requested = yield from reader.entries(top, "outputs")
    selection = yield from reader.select(requested, parameters)
    yield from _refuse_extensions(requested or [], reader)
    inputs: list[Tensor] = []
    unread: dict[int, tuple[memoryview, bool]] = {}
    for index, entry in enumerate(entries):
        if reader.steps.is_full_with(cost_of(entry)):
            yield
        label = reader.name_input(entry, index)
        own = yield from sliced_parameters(entry.get("parameters", b"null"), f"{label}: ")
        source = reader.source(entry, own, index, label)
        if source is None:
            raise CodecError(f"{label}: this backend cannot read shared memory; send its values")
        if isinstance(source, int):
            tensor = announced(entry, source, label)
            blob = cursor.take(source, tensor)
        else:
            tensor, blob = (
                Tensor(name_of(entry, label), datatype_of(entry, label), shape_of(entry, label), source),
                source,
            )
            unread[index] = (source, text_of(own, "content_type") == "base64")
        inputs.append(Tensor(tensor.name, tensor.datatype, tensor.shape, blob))
    cursor.finish()
    for index, (data, is_base64) in unread.items():
        inputs[index] = yield from _read(inputs[index], data, reserve, is_base64=is_base64)
    nonfinite = 0
    octets = {}
    for index, tensor in enumerate(inputs):
        if reader.steps.is_full_with(cost_of(entries[index])):
            yield
        if tensor.datatype.kind is Kind.FLOAT:
            nonfinite += yield from check_finite(tensor, policy.nonfinite)
        elif tensor.datatype.kind is Kind.BYTES:
            error = yield from _check_strings(tensor)
            if error is not None:
                octets[tensor.name] = error
    request_id = top.get("id", b"")
    return DialectRequest(
        inputs,
        selection,
        b"" if request_id in (b"null", b'""') else restore_literals(request_id, reader.marker),
        {key: restore_literals(value, reader.marker) for key, value in parameters.items()},
        is_recovered,
        nonfinite,
        [tensor.datatype.name for index, tensor in enumerate(inputs) if index not in unread],
        frozenset(inputs[index].name for index, (_, is_base64) in unread.items() if not is_base64),
        octets,
        policy,
    )


def _refuse_extensions(requested: list[Members], reader: RequestReader) -> Generator[None, None, None]:
    """Raise `CodecError` for *requested* outputs in a form that only a server of V2 could give them."""
    for index, entry in enumerate(requested):
        if "parameters" not in entry:
            continue
        if reader.steps.is_full_with(cost_of(entry)):
            yield
        label = label_of("output", name_of(entry, f"output {index}"))
        own = yield from sliced_parameters(entry["parameters"], f"{label}: ")
        if own.get("shared_memory_region", b"null") != b"null":
            raise CodecError(f"{label}: this backend cannot write into shared memory; ask for its values")
        if own.get("classification", b"0") not in (b"null", b"0"):
            raise CodecError(f"{label}: this backend has no classification; ask for its values")


def _read(tensor: Tensor, data: memoryview, reserve: Reserve, *, is_base64: bool) -> Generator[None, None, Tensor]:
    """*tensor* with the values that are *data* in JSON, nested or flat. Raises `CodecError`."""
    n_elements = element_count(tensor.shape)
    if n_elements * 2 - 1 > len(data):  # every element takes a digit and a comma, or two quotes and a comma
        raise CodecError(f"{tensor}: expected {count_text(n_elements)} elements, got {len(data)} bytes of JSON")
    sink: NumberSink | BytesSink
    if tensor.datatype.kind is Kind.BYTES:
        reserve(len(data) + 2 * n_elements)  # a length is two bytes longer than quotes
        sink = BytesSink(str(tensor), tensor.shape)
    else:
        reserve(n_elements * tensor.datatype.item_bytes)
        sink = NumberSink(str(tensor), tensor.datatype, tensor.shape)
    starts = range(0, len(data), NATIVE_PIECE_BYTES)
    yield from pour((data[start : start + NATIVE_PIECE_BYTES] for start in starts), sink)
    blobs = sink.blobs()
    del sink  # which holds them
    if is_base64 and tensor.datatype.kind is Kind.BYTES:
        blobs = yield from from_base64(blobs, str(tensor))
    return Tensor(tensor.name, tensor.datatype, tensor.shape, (yield from joined_blobs(blobs)))


def _check_strings(tensor: Tensor) -> Generator[None, None, CodecError | None]:
    """Check the elements of *tensor*; the error of the first that is not UTF-8. Raises `CodecError` for all others."""
    n_elements = element_count(tensor.shape)
    try:
        yield from check_elements(tensor.blob, n_elements, tensor, utf8=True)
    except CodecError as error:
        yield from check_elements(tensor.blob, n_elements, tensor, utf8=False)
        return error
    return None


# TensorFlow Serving, and KServe's V1 protocol


def tensorflow_columnar(signature: str) -> Writer:
    """`{"signature_name": ..., "inputs": {NAME: nested}}`; no name for an empty *signature*."""

    def write(request: DialectRequest) -> Iterator[Piece]:
        return _document(_named(signature), b'"inputs":', _by_name(_for_tensorflow(request), _tensorflow_form))

    return write


def tensorflow_row(signature: str) -> Writer:
    """`{"signature_name": ..., "instances": [row, ...]}`; no name for an empty *signature*."""

    def write(request: DialectRequest) -> Iterator[Piece]:
        return _document(_named(signature), b'"instances":', _instances(_for_tensorflow(request), _tensorflow_form))

    return write


def _for_tensorflow(request: DialectRequest) -> DialectRequest:
    """*request* with numbers as TensorFlow Serving takes them. Raises `CodecError` for one of a sequence."""
    if (sequence := request.parameters.get("sequence_id", b"0")) not in _NO_SEQUENCE:
        raise CodecError(
            f"sequence_id is {excerpt(sequence)}, but this backend has no sequences: it would answer each request of "
            "one as if it stood alone; leave sequence_id out if that is meant"
        )
    inputs = [
        msgspec.structs.replace(tensor, datatype=_TENSORFLOW_FP32) if tensor.datatype is _FP32 else tensor
        for tensor in request.inputs
    ]
    return msgspec.structs.replace(request, inputs=inputs)


def _widen_largest(array: Array) -> Array:
    """FP64 where *array*, FP32, holds the largest number or its negative: then it can be written in another way.

    TensorFlow Serving compares with the largest number in FP64. So it refuses its shortest text, 3.4028235e38, which is
    larger, and even the exact one, which its parser does not read exactly. 3.4028234e38 is rounded to it, too. It is
    no rare value: attention masks are made of it.
    """
    is_largest = np.abs(array) == _FP32.highest
    if b"\1" not in is_largest.tobytes():  # for few numbers, `any` takes twice as long
        return array
    wide = array.astype("<f8")
    wide[is_largest] = np.copysign(3.4028234e38, wide[is_largest])
    return wide


_NO_SEQUENCE = (b"0", b'""', b"null")
_FP32 = DATATYPES["FP32"]
_TENSORFLOW_FP32 = replace(_FP32, widen=_widen_largest)


def _named(signature: str) -> dict[str, bytes]:
    return {"signature_name": orjson.dumps(signature)} if signature else {}


def _tensorflow_form(request: DialectRequest, tensor: Tensor) -> StringForm:
    """Octets are objects in base64: what is no text, and what the model or the policy says is octets."""
    is_octets = (
        tensor.name in request.octets
        or tensor.name.endswith(OCTETS_SUFFIX)
        or request.policy.bytes is BytesPolicy.BASE64
    )
    return StringForm.B64_OBJECT if is_octets else StringForm.TEXT


# MLflow


def mlflow_inputs(is_unnamed: bool) -> Writer:
    """`{"inputs": {NAME: nested}, "params": ...}`; *is_unnamed*: the model's only input has no name."""

    def write(request: DialectRequest) -> Iterator[Piece]:
        if not is_unnamed:
            return _document(_params(request), b'"inputs":', _by_name(request, _mlflow_form))
        if len(request.inputs) != 1:
            raise CodecError(f"the model has one input, which has no name; the request has {len(request.inputs)}")
        return _document(_params(request), b'"inputs":', _nested(request, request.inputs[0], _mlflow_form))

    return write


def mlflow_instances() -> Writer:
    """`{"instances": [row, ...], "params": ...}`."""

    def write(request: DialectRequest) -> Iterator[Piece]:
        return _document(_params(request), b'"instances":', _instances(request, _mlflow_form))

    return write


def mlflow_dataframe_split() -> Writer:
    """`{"dataframe_split": {"columns": [NAME, ...], "data": [row, ...]}, "params": ...}`."""

    def write(request: DialectRequest) -> Iterator[Piece]:
        inputs = request.inputs
        for tensor in inputs:
            if len(tensor.shape) not in (1, 2) or tensor.shape[1:] not in ((), (1,)):
                raise CodecError(f"{tensor}: a column of a table has the shape [n] or [n, 1]")
        n_rows = _same_rows(request, "table")
        columns = [_column(request, tensor, (), _mlflow_form) for tensor in inputs]
        before = [b"," if index else b"[" for index in range(len(columns))]
        names = orjson.dumps([tensor.name for tensor in inputs])
        rows = row_pieces(columns, before, b"]", n_rows)
        table = chain((b'{"columns":%b,"data":[' % names,), rows, (b"]}",))
        return _document(_params(request), b'"dataframe_split":', table)

    return write


def _params(request: DialectRequest) -> Members:
    if not request.parameters:
        return {}
    members = b",".join([orjson.dumps(key) + b":" + value for key, value in request.parameters.items()])
    return {"params": b"{%b}" % members}


def _mlflow_form(request: DialectRequest, tensor: Tensor) -> StringForm:
    if request.policy.bytes is BytesPolicy.BASE64:
        return StringForm.TEXT if tensor.name in request.in_json else StringForm.BASE64
    if tensor.name in request.octets:
        raise request.octets[tensor.name]
    return StringForm.TEXT


# What the forms have in common

FEW_ELEMENTS = 256
"""The most numbers that are printed nested in one call: cutting them into pieces takes five times as long, which is a
twentieth of what a small request costs."""

FEW_DIMENSIONS = 8
"""The most dimensions that these may have; numpy has no arrays of as many as the protocol."""

_ChooseForm = Callable[[DialectRequest, Tensor], StringForm]


def _document(members: Members, key: bytes, value: Iterator[Piece]) -> Iterator[Piece]:
    """An object with *members* and, at *key*, a *value* in pieces."""
    head = b"".join([orjson.dumps(name) + b":" + text + b"," for name, text in members.items()])
    return chain((b"{" + head + key,), value, (b"}",))


def _by_name(request: DialectRequest, choose_form: _ChooseForm) -> Iterator[Piece]:
    """The inputs as an object."""
    parts: list[Iterator[Piece]] = []
    for index, tensor in enumerate(request.inputs):
        parts += (iter((_key(index, tensor),)), _nested(request, tensor, choose_form))
    return chain(() if parts else (b"{",), *parts, (b"}",))


def _instances(request: DialectRequest, choose_form: _ChooseForm) -> Iterator[Piece]:
    """The inputs as rows: of values if there is only one, else of objects."""
    n_rows = _same_rows(request, "row form")
    if len(request.inputs) == 1:
        return _nested(request, request.inputs[0], choose_form)
    columns = [_column(request, tensor, tensor.shape[1:], choose_form) for tensor in request.inputs]
    before = [_key(index, tensor) for index, tensor in enumerate(request.inputs)]
    return chain((b"[",), row_pieces(columns, before, b"}", n_rows), (b"]",))


def _key(index: int, tensor: Tensor) -> bytes:
    return (b"," if index else b"{") + orjson.dumps(tensor.name) + b":"


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


def _nested(request: DialectRequest, tensor: Tensor, choose_form: _ChooseForm) -> Iterator[Piece]:
    datatype, shape = tensor.datatype, tensor.shape
    if datatype.kind is Kind.BYTES:
        return nested_string_pieces(tensor.blob, shape, choose_form(request, tensor))
    values = datatype.view(tensor.blob)
    literals = _has_literals(request, tensor)
    if 0 < len(values) <= FEW_ELEMENTS and 0 < len(shape) <= FEW_DIMENSIONS and not literals:
        return iter((orjson.dumps(datatype.widen(values.reshape(shape)), option=orjson.OPT_SERIALIZE_NUMPY),))
    return nested_number_pieces(values, datatype, shape, literals=literals)


def _column(request: DialectRequest, tensor: Tensor, shape: tuple[int, ...], choose_form: _ChooseForm) -> Column:
    datatype = tensor.datatype
    if datatype.kind is Kind.BYTES:
        window_bytes = WINDOW_BYTES // len(request.inputs)
        return StringColumn(tensor.blob, shape, choose_form(request, tensor), window_bytes)
    return NumberColumn(datatype.view(tensor.blob), datatype, shape, literals=_has_literals(request, tensor))


def _has_literals(request: DialectRequest, tensor: Tensor) -> bool:
    return tensor.datatype.kind is Kind.FLOAT and request.policy.nonfinite is NonFinite.LITERAL
