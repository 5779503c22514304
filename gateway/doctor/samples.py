"""Tensors for the doctor's trials and the outputs that come back, as JSON and in binary.

Written for tensors of a few numbers, and on purpose without the gateway's codec, because the trials judge the codec's
work. Not here: sending.
"""

import base64
import itertools
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any

import numpy as np

from gateway.backend.questions import Answer
from gateway.codec import DATATYPES, HEADER_LENGTH, Kind

MAX_ELEMENTS = 4_000_000
"""A model whose input is larger is not tried."""

SIZES = (4, 1, 16, 32, 224)
"""What variable dimensions are set to: the first of these that the model takes. A batch stays 1."""


PERIOD = 80
"""After so many values of any datatype those of a sample begin again."""


class UnreadableError(Exception):
    """An answer that is no inference; the message says what is wrong."""


@dataclass(frozen=True)
class Declared:
    """An input or output as the model's metadata declares it."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    @property
    def words(self) -> str:
        """Such as `x FP32 [-1, 4]`."""
        return f"{self.name or '(no name)'} {self.datatype} {list(self.shape)}"


@dataclass(frozen=True)
class Sample:
    """A tensor to send: its *values* are Python's, flat."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: tuple[Any, ...]
    content_type: str = ""
    """Of its values in JSON; empty if they are as V2 has them."""

    @property
    def blob(self) -> bytes:
        """The values on the wire."""
        return blob_of(self.datatype, self.values)

    def as_member(self, **parameters: Any) -> dict[str, Any]:
        """The tensor in a V2 request, without its values."""
        member = {"name": self.name, "shape": list(self.shape), "datatype": self.datatype}
        if self.content_type:
            parameters["content_type"] = self.content_type
        return {**member, "parameters": parameters} if parameters else member

    @property
    def nested(self) -> Any:
        """The values as nested lists; a scalar is itself."""
        return np.array([*self.values, None], object)[:-1].reshape(self.shape).tolist()


@dataclass(frozen=True)
class Output:
    """One output of an answer."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    blob: bytes


def _value(datatype: str, number: int) -> Any:
    """A small value, which any model should survive, and which the datatype holds exactly but for tenths of FP32."""
    row = DATATYPES[datatype]
    if row.kind is Kind.BYTES:
        return f"text {number}"
    if row.kind is Kind.BOOL:
        return number % 2 == 0
    if row.kind is Kind.INTEGER:
        return number % 4
    # tenths are no sums of powers of two, so they show whether a value is rounded on its way
    return number % 16 / 16 if row.item_bytes == 2 else number % 10 / 10


def sample(name: str, datatype: str, shape: Sequence[int]) -> Sample:
    """A tensor of small values, which are the same again after `PERIOD`."""
    values = itertools.cycle([_value(datatype, number) for number in range(PERIOD)])
    return Sample(name, datatype, tuple(shape), tuple(itertools.islice(values, math.prod(shape))))


def shapes(declared: Sequence[int]) -> list[tuple[int, ...]]:
    """Shapes to try for a model that declares this one: the likeliest first."""
    is_batch = [index == 0 and len(declared) > 1 for index in range(len(declared))]
    found = [
        tuple(size if size >= 0 else 1 if first else other for size, first in zip(declared, is_batch, strict=True))
        for other in SIZES
    ]
    return list(dict.fromkeys(found))


def replaced(samples: Sequence[Sample], index: int, new: Sample) -> tuple[Sample, ...]:
    """*samples* with *new* at *index*."""
    return (*samples[:index], new, *samples[index + 1 :])


def with_first_value(samples: Sequence[Sample], kind: Kind, value: Any) -> tuple[Sample, ...] | None:
    """*samples* with *value* as the first one of their first tensor of *kind*; None if there is no such tensor."""
    for index, each in enumerate(samples):
        if DATATYPES[each.datatype].kind is kind and each.values:
            return replaced(samples, index, replace(each, values=(value, *each.values[1:])))
    return None


AS_TRIED = "what the trial sent, and the server took: put the model's names, datatypes and shapes"
"""The comment beside inputs of which the server says nothing."""


def as_described(tensors: Iterable[Sample | Output]) -> dict[str, Any]:
    """*tensors* as in a block of `models`; their first dimension counts as variable, as in a batch."""
    shapes_of = ((each, [-1, *each.shape[1:]] if each.shape else []) for each in tensors)
    return {each.name: {"datatype": each.datatype, "shape": shape} for each, shape in shapes_of}


def flat(data: Any) -> list[Any]:
    """The values inside of nested lists."""
    if not isinstance(data, list):
        return [data]
    return [value for item in data for value in flat(item)]


def shape_of(values: Any, *, has_missing: bool = False) -> tuple[int, ...] | None:
    """The shape of nested lists of values of one kind; None if they are not rectangular.

    `null` is NaN among numbers, and a missing text among texts if these *has_missing*.
    """
    if isinstance(values, dict):
        return None
    if not isinstance(values, list):
        return ()
    shapes_inside = {shape_of(item, has_missing=has_missing) for item in values}
    inner = shapes_inside.pop() if shapes_inside else ()
    if shapes_inside or inner is None:
        return None
    kinds = {_kind(item) for item in flat(values)}
    known = kinds - {None}
    is_number = bool(known) and known <= {Kind.INTEGER, Kind.FLOAT}
    may_be_null = is_number or (has_missing and known == {Kind.BYTES})
    is_tensor = (is_number or len(known) < 2) and (may_be_null or None not in kinds)
    return (len(values), *inner) if is_tensor else None


def guessed(values: Sequence[Any], *, is_double: bool = False) -> str:
    """The likeliest datatype of *values* of JSON, among the datatypes that hold them exactly, if one does.

    *is_double*: floats are FP64 even if FP32 would hold them.
    """
    kinds = {_kind(value) for value in values}
    if Kind.BYTES in kinds:
        return "BYTES"
    if kinds - {None} == {Kind.BOOL}:
        return "BOOL"
    if kinds == {Kind.INTEGER}:
        rows = (DATATYPES["INT64"], DATATYPES["UINT64"])
        fitting = (row.name for row in rows if row.lowest <= min(values) and max(values) <= row.highest)
        return next(fitting, "FP64")
    with np.errstate(over="ignore"):
        return "FP64" if is_double or not all(_is_single(value) for value in values if value is not None) else "FP32"


def _kind(value: Any) -> Kind | None:
    """The kind of datatype that holds *value* of JSON; None for `null`."""
    if value is None:
        return None
    kinds = ((bool, Kind.BOOL), (int, Kind.INTEGER), (float, Kind.FLOAT))
    return next((kind for type_, kind in kinds if isinstance(value, type_)), Kind.BYTES)


def _is_single(value: float) -> bool:
    """Whether FP32 holds *value* exactly, as it does NaN; 0.1, printed short, counts as FP64."""
    try:
        single = np.float32(value)
    except OverflowError:  # an integer that no float holds
        return False
    return float(single) == value or bool(np.isnan(single))


def blob_of(datatype: str, values: Sequence[Any]) -> bytes:
    """*values* as bytes on the wire. Raises `UnreadableError` if *datatype* cannot hold them."""
    row = DATATYPES[datatype]
    try:
        if row.kind is Kind.BYTES:
            texts = [_text(value) for value in values]
            return b"".join(len(text).to_bytes(4, "little") + text for text in texts)
        if row.kind is Kind.FLOAT:
            numbers = np.array([math.nan if value is None else value for value in values], np.float64)
            with np.errstate(over="ignore"):
                return row.narrow(numbers).astype(row.wire).tobytes()
        return np.array([int(value) for value in values], row.wire).tobytes()
    except (TypeError, ValueError, OverflowError) as error:
        raise UnreadableError(f"values that are not {datatype}: {error}") from None


def _text(value: Any) -> bytes:
    """The bytes of a string, of bytes, or of TensorFlow's `{"b64": ...}`."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, dict) and list(value) == ["b64"]:
        return base64.b64decode(value["b64"], validate=True)
    if not isinstance(value, str):
        raise TypeError(f"{value!r}")
    return value.encode()


def binary_request(samples: Sequence[Sample], **members: Any) -> tuple[bytes, int]:
    """The body of a V2 request with binary inputs that asks for binary outputs, and its header length."""
    inputs = [each.as_member(binary_data_size=len(each.blob)) for each in samples]
    header = json.dumps({**members, "inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    return header + b"".join(each.blob for each in samples), len(header)


def outputs_of(answer: Answer) -> list[Output]:
    """The outputs of a V2 answer, JSON or binary. Raises `UnreadableError`."""
    try:
        length = int(answer.headers.get(HEADER_LENGTH.lower(), len(answer.body)))
        header = json.loads(answer.body[:length])
    except (ValueError, RecursionError):
        raise UnreadableError("something that is not JSON") from None
    outputs = header.get("outputs") if isinstance(header, dict) else None
    if not isinstance(outputs, list) or not outputs or not all(isinstance(output, dict) for output in outputs):
        raise UnreadableError("JSON without `outputs`")
    blobs = BytesIO(answer.body[length:])
    try:
        return [_read_output(output, blobs) for output in outputs]
    except (TypeError, AttributeError):
        raise UnreadableError("an output in another form than V2's") from None


def _read_output(output: dict[str, Any], blobs: BytesIO) -> Output:
    """One output of an answer. Raises `UnreadableError`; of other forms `TypeError` and `AttributeError`."""
    missing = [key for key in ("name", "datatype", "shape") if key not in output]
    if missing:
        raise UnreadableError(f"an output without {' and '.join(f'`{key}`' for key in missing)}")
    name, datatype, shape = output["name"], output["datatype"], tuple(output["shape"])
    if datatype not in DATATYPES:
        raise UnreadableError(f"an output of the unknown datatype {datatype!r}")
    parameters = output.get("parameters") or {}
    size = parameters.get("binary_data_size")
    if size is not None:
        return Output(name, datatype, shape, blobs.read(size))
    values = flat(output.get("data", []))
    if parameters.get("content_type") == "base64" and datatype == "BYTES":
        values = [{"b64": value} for value in values]
    return Output(name, datatype, shape, blob_of(datatype, values))


def same(one: Sequence[Output], other: Sequence[Output]) -> bool:
    """Whether the outputs of two answers are the same, whatever their order."""
    return {each.name: each for each in one} == {each.name: each for each in other}


def has_nan(outputs: Sequence[Output]) -> bool:
    """Whether NaN is among the values of an answer."""
    rows = [(DATATYPES[output.datatype], output.blob) for output in outputs]
    floats = [row.widen(np.frombuffer(blob, row.wire)) for row, blob in rows if row.kind is Kind.FLOAT]
    return any(bool(np.isnan(numbers).any()) for numbers in floats)
