"""Tensors of a few numbers: for trial inferences, as JSON and in binary, and those that come back.

On purpose without the gateway's codec, because the trials judge the codec's work. Not here: sending.
"""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from types import NoneType
from typing import Annotated, Any

import msgspec
import numpy as np
import orjson

from gateway.backend.questions import Answer
from gateway.codec.tensors.datatypes import DATATYPES, Kind
from gateway.codec.v2.framing import HEADER_LENGTH

MAX_ELEMENTS = 4_000_000
"""A model whose input is larger is not tried."""

SIZES = (4, 1, 16, 32, 224)
"""What variable dimensions are set to: the first of these that the model takes. A batch stays 1."""


class UnreadableError(Exception):
    """An answer that is no inference; the message says what is wrong."""


@dataclass(frozen=True)
class Declared:
    """An input or output, as a model's description declares it; -1 is a variable dimension."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    @property
    def words(self) -> str:
        """Such as `x FP32 [-1, 4]`."""
        return f"{self.name} {self.datatype} {list(self.shape)}"

    @property
    def member(self) -> dict[str, Any]:
        """What V2 says of it beside its values."""
        return {"name": self.name, "shape": self.shape, "datatype": self.datatype}


@dataclass(frozen=True)
class Tensor(Declared):
    """An input or output with its values as they are on the wire."""

    blob: bytes

    @property
    def values(self) -> list[Any]:
        """The values as JSON has them, flat."""
        row = DATATYPES[self.datatype]
        if row.kind is not Kind.BYTES:
            numbers = row.widen(np.frombuffer(self.blob, row.wire))
            return list(orjson.loads(orjson.dumps(numbers, option=orjson.OPT_SERIALIZE_NUMPY)))
        blobs, texts = BytesIO(self.blob), []
        while size := blobs.read(4):
            texts.append(blobs.read(int.from_bytes(size, "little")).decode())
        return texts

    @property
    def nested(self) -> Any:
        """The values as nested lists; a scalar is itself."""
        return np.array([*self.values, None], object)[:-1].reshape(self.shape).tolist()


def tensor_of(name: str, datatype: str, data: Any) -> Tensor:
    """The tensor with the values of *data*, nested lists that form one. Raises `UnreadableError` as `blob_of`."""
    array = np.array(data, object)
    return Tensor(name, datatype, array.shape, blob_of(datatype, list(array.flat)))


def described(tensors: Iterable[Declared]) -> dict[str, Any]:
    """*tensors* as in a block of `models`; their first dimension counts as variable, as in a batch."""
    shapes = ((each, [-1, *each.shape[1:]] if each.shape else []) for each in tensors)
    return {each.name: {"datatype": each.datatype, "shape": shape} for each, shape in shapes}


# What is sent


def sample(name: str, datatype: str, shape: Sequence[int]) -> Tensor:
    """A tensor of small values, which any model should survive."""
    # tenths are no sums of powers of two, so they show whether a value is rounded on its way
    forms = {Kind.BYTES: "text {}".format, Kind.FLOAT: lambda number: number % 10 / 10}
    value_of = forms.get(DATATYPES[datatype].kind, lambda number: number % 2)
    return Tensor(name, datatype, tuple(shape), blob_of(datatype, [*map(value_of, range(math.prod(shape)))]))


def samples_for(inputs: Sequence[Declared]) -> Iterator[tuple[Tensor, ...]]:
    """Requests to try with a model that has these *inputs*, the likeliest first."""
    for size in SIZES:
        shapes = [_sized(each.shape, size) for each in inputs]
        if sum(map(math.prod, shapes)) <= MAX_ELEMENTS:
            yield tuple(sample(each.name, each.datatype, shape) for each, shape in zip(inputs, shapes, strict=True))


def _sized(shape: Sequence[int], size: int) -> list[int]:
    """*shape* with *size* for its variable dimensions, and 1 for a batch."""
    sized = [size if each < 0 else each for each in shape]
    return [1, *sized[1:]] if len(shape) > 1 and shape[0] < 0 else sized


def filled(tensors: tuple[Tensor, ...], kind: Kind, value: Any) -> tuple[Tensor, ...]:
    """*tensors* with *value* for all values of those of *kind*; nothing if there is no such value."""
    changed = tuple(
        replace(each, blob=blob_of(each.datatype, [value] * math.prod(each.shape)))
        if DATATYPES[each.datatype].kind is kind
        else each
        for each in tensors
    )
    return changed if changed != tensors else ()


def binary_request(tensors: Iterable[Tensor], **members: Any) -> tuple[bytes, int]:
    """The body of a V2 request with binary inputs that asks for binary outputs, and its header length."""
    inputs = [{**each.member, "parameters": {"binary_data_size": len(each.blob)}} for each in tensors]
    header = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}, **members}).encode()
    return header + b"".join(each.blob for each in tensors), len(header)


# What is in JSON


def flat(data: Any) -> list[Any]:
    """The values inside of nested lists."""
    return list(np.array(data, object).flat)


def shape_of(data: Any) -> tuple[int, ...] | None:
    """The shape of nested lists that form a tensor; None if they do not. Raises as `likely_datatype`."""
    array = np.array(data, object)
    return array.shape if likely_datatype(list(array.flat)) else None


def likely_datatype(values: Sequence[Any]) -> str:
    """The likeliest datatype of *values* of JSON, which holds them exactly, if one does; `null` may be NaN.

    A number with a point is FP64: 0.25 is exact in FP32, too, but 0.35 comes next. Empty for values of several kinds,
    and for lists and objects. Raises `UnreadableError` for an integer that no datatype holds.
    """
    types = set(map(type, values))
    if types == {bool}:
        return "BOOL"
    if types and types <= {str, bytes}:
        return "BYTES"
    if types == {NoneType} or types - {int, float, NoneType}:
        return ""
    if types == {int} and all(-(2**63) <= value < 2**63 for value in values):
        return "INT64"
    if types == {int} and all(0 <= value < 2**64 for value in values):
        return "UINT64"
    blob_of("FP64", values)  # raises for an integer beyond
    return "FP64"


def n_columns(rows: Sequence[Any], *, splits_numbers: bool = False) -> int:
    """How many columns the lists *rows* have, if each column has values of one kind and the columns differ; else 0.

    Integers and numbers with a point are one kind, unless *splits_numbers*. Raises as `likely_datatype`.
    """
    if not rows or not all(isinstance(row, list) and len(row) == len(rows[0]) for row in rows):
        return 0
    kinds = [likely_datatype([row[index] for row in rows]) for index in range(len(rows[0]))]
    is_of_numbers = set(kinds) <= {"INT64", "FP64", "UINT64"}
    return len(kinds) if all(kinds) and len(set(kinds)) > 1 and (splits_numbers or not is_of_numbers) else 0


def blob_of(datatype: str, values: Sequence[Any]) -> bytes:
    """*values* as bytes on the wire. Raises `UnreadableError` if *datatype* cannot hold them."""
    if datatype not in DATATYPES:
        raise UnreadableError(f"an output of the unknown datatype {datatype!r}")
    row = DATATYPES[datatype]
    try:
        if row.kind is Kind.BYTES:
            texts = [value.encode() if isinstance(value, str) else bytes(memoryview(value)) for value in values]
            return b"".join(len(text).to_bytes(4, "little") + text for text in texts)
        if row.kind is Kind.FLOAT:
            numbers = np.array([math.nan if value is None else value for value in values], np.float64)
            with np.errstate(over="ignore"):
                return row.narrow(numbers).astype(row.wire).tobytes()
        return np.array([int(value) for value in values], row.wire).tobytes()
    except (TypeError, ValueError, OverflowError) as error:
        raise UnreadableError(f"values that are not {datatype}: {error}") from None


# What comes back


class _Output(msgspec.Struct):
    name: str
    datatype: str
    shape: tuple[int, ...]
    data: Any = ()
    parameters: dict[str, Any] | None = None


class _Answer(msgspec.Struct):
    outputs: Annotated[list[_Output], msgspec.Meta(min_length=1)]


def outputs_of(answer: Answer) -> tuple[Tensor, ...]:
    """The outputs of a V2 answer, JSON or binary. Raises `UnreadableError`."""
    try:
        length = int(answer.headers.get(HEADER_LENGTH.lower(), len(answer.body)))
        outputs = msgspec.convert(json.loads(answer.body[:length]), _Answer).outputs
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise UnreadableError(f"something that is no answer of V2: {error}") from None
    blobs = BytesIO(answer.body[length:])
    return tuple(Tensor(each.name, each.datatype, each.shape, _blob_in(each, blobs)) for each in outputs)


def _blob_in(output: _Output, blobs: BytesIO) -> bytes:
    size = (output.parameters or {}).get("binary_data_size")
    return blob_of(output.datatype, flat(output.data)) if size is None else blobs.read(size)


def same(one: Iterable[Tensor], other: Iterable[Tensor]) -> bool:
    """Whether the outputs of two answers are the same, whatever their order."""
    return {each.name: each for each in one} == {each.name: each for each in other}
