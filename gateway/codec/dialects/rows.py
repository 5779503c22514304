"""An inference in several requests of some rows each, for servers that take one instance, or only a few, at a time.

    x [3, 4], rows: 1      three requests, in which x is [4]:           rows 0, 1 and 2
    x [3, 4], rows: 2      two requests, in which x is [2, 4], [1, 4]:  rows 0 to 1, and row 2

`RowCut` cuts a request; its tensors are views of the client's. `RowOutputs` puts the outputs of the answers together,
in the rows' order, whatever the order of the answers. Not here: sending the requests (`serving.row_requests`).
"""

import math
from collections.abc import Collection, Generator, Mapping, MutableMapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import structs

from gateway.codec.dialects.declared import Shape, TensorDescription, declared_text, fits
from gateway.codec.dialects.description import ModelDescription, listed
from gateway.codec.dialects.output import SETTING, Output
from gateway.codec.dialects.request import DialectRequest
from gateway.codec.inference import Tensor, label_of, shape_text
from gateway.codec.tensors.datatypes import BYTES
from gateway.codec.tensors.elements import starts_of
from gateway.codec.tensors.nested_printing import check_nestable
from gateway.codec.v2.request_reading import Reserve, reserve_nothing
from gateway.codec.values import Value
from gateway.errors import CodecError

START_BYTES = 8
"""What it takes to remember where the elements of one request begin in a blob of BYTES."""

Starts = npt.NDArray[np.int64] | int
"""Where each request's elements begin in a blob, and after these where the last element ends. If all requests but the
last have the same number of bytes, that number."""


def rows_label(first: int, n_rows: int) -> str:
    """How errors call *n_rows* rows from number *first* on: `row 3`, `rows 4 to 7`."""
    return f"row {first}" if n_rows == 1 else f"rows {first} to {first + n_rows - 1}"


# The request


class RowCut:
    """A request as several of at most *per_request* rows."""

    def __init__(self, request: DialectRequest, n_rows: int, per_request: int, starts: Sequence[Starts | None]) -> None:
        """*starts* are those of each input, None for one that is the same in all requests. See `cut_rows`."""
        self.request = request
        self.n_rows = n_rows
        self.n_requests = -(-n_rows // per_request)
        self._per_request = per_request
        self._starts = starts

    def rows_of(self, index: int) -> tuple[int, int]:
        """The number of the first row of request *index*, and how many rows it has."""
        first = index * self._per_request
        return first, min(self._per_request, self.n_rows - first)

    def part(self, index: int) -> DialectRequest:
        """Request *index*; with one row for each request, inputs are without their dimension of rows.

        Its tensors are views of their own of the request's blobs.
        """
        n_rows = self.rows_of(index)[1]
        inputs = [
            self._part(tensor, starts, index, n_rows)
            for tensor, starts in zip(self.request.inputs, self._starts, strict=True)
        ]
        return structs.replace(self.request, inputs=inputs)

    def _part(self, tensor: Tensor, starts: Starts | None, index: int, n_rows: int) -> Tensor:
        if starts is None:
            return structs.replace(tensor, blob=tensor.blob[:])
        if isinstance(starts, int):
            blob = tensor.blob[index * starts : (index + 1) * starts]
        else:
            blob = tensor.blob[int(starts[index]) : int(starts[index + 1])]
        inner = tensor.shape[1:]
        return structs.replace(tensor, blob=blob, shape=inner if self._per_request == 1 else (n_rows, *inner))


def cut_rows(
    request: DialectRequest,
    described: Mapping[str, TensorDescription],
    per_request: int,
    reserve: Reserve = reserve_nothing,
) -> Generator[None, None, RowCut]:
    """Cut *request* into requests of at most *per_request* rows.

    An input that is *described* as a scalar is the same in each; a request without other inputs is one row, and so is a
    scalar where the configuration says no shape. *reserve* is called with the bytes that are needed to find the rows of
    BYTES. Yields after each step of work. Raises `CodecError` for inputs with different numbers of rows.
    """
    inputs = [
        structs.replace(tensor, shape=(1,)) if tensor.shape == () and not _is_scalar(tensor, described) else tensor
        for tensor in request.inputs
    ]
    request = structs.replace(request, inputs=inputs)
    with_rows = [tensor for tensor in inputs if tensor.shape]
    for tensor in with_rows:
        first = with_rows[0]
        if tensor.shape[0] != first.shape[0]:
            raise CodecError(
                f"{tensor}: expected {first.shape[0]} rows, as {label_of('input', first.name)} has: "
                "each request to this backend has the same rows of all inputs"
            )
        if 0 in tensor.shape[1:]:  # rows without values cost the client nothing, and a request each
            check_nestable((tensor.shape[0], 0), tensor)
    n_rows = with_rows[0].shape[0] if with_rows else 1
    starts: list[Starts | None] = []
    for tensor in inputs:
        n_elements = per_request * math.prod(tensor.shape[1:])
        if not tensor.shape:
            starts.append(None)
        elif tensor.datatype.kind is BYTES and n_elements:
            reserve((-(-n_rows // per_request) + 1) * START_BYTES)
            starts.append((yield from starts_of(tensor.blob, n_rows * (n_elements // per_request), n_elements)))
        else:
            starts.append(n_elements * tensor.datatype.item_bytes)
    return RowCut(request, n_rows, per_request, starts)


def _is_scalar(tensor: Tensor, described: Mapping[str, TensorDescription]) -> bool:
    said = described.get(tensor.name)
    return said is not None and said.shape == ()


# The answers


def row_description(description: ModelDescription) -> ModelDescription:
    """*description* for the reader of one answer, without shapes of outputs: `RowOutputs` judges these by the rows."""
    outputs = {name: structs.replace(each, shape=None) for name, each in description.outputs.items()}
    return structs.replace(description, outputs=outputs)


class _Answered(msgspec.Struct, frozen=True, gc=False):
    """The outputs of the answer to one request."""

    n_rows: int
    values: Mapping[str, Value]


class RowOutputs:
    """The outputs of an inference, put together from the answers to its requests."""

    def __init__(
        self, described: Mapping[str, TensorDescription], per_request: int, sizes: MutableMapping[str, int]
    ) -> None:
        """*described* are the model's outputs, *sizes* those that names in declared shapes have."""
        self._described = described
        self._per_request = per_request
        self._sizes = sizes
        self._outputs: dict[str, Output] = {}
        self._first: dict[str, tuple[int, ...]] = {}  # the shapes of the rows in the answer that came first
        self._first_label = ""
        self._waiting: dict[int, _Answered] = {}  # answers that came before those to earlier rows
        self._next_row = 0
        self.held_bytes = 0
        """The size of all values so far."""

    def add(self, first_row: int, n_rows: int, outputs: Sequence[Output]) -> Generator[None, None, None]:
        """Take the *outputs* of the answer to *n_rows* rows from number *first_row* on.

        Yields after each answer that was appended; other answers may be added in between. Raises `CodecError`, and
        takes nothing, if the outputs don't have that many rows, or if their rows have another shape than others.
        """
        label = rows_label(first_row, n_rows)
        values = {
            output.name: structs.replace(output.value, shape=self._shape_of(output, n_rows)) for output in outputs
        }
        if not self._outputs:
            self._outputs = {output.name: self._whole(output) for output in outputs}
            self._first = {name: value.shape[1:] for name, value in values.items()}
            self._first_label = label
        self._check(outputs, values)
        self.held_bytes += sum([value.n_bytes for value in values.values()])
        self._waiting[first_row] = _Answered(n_rows, values)
        while (answered := self._waiting.pop(self._next_row, None)) is not None:
            for name, value in answered.values.items():
                self._outputs[name].append(value)
            self._next_row += answered.n_rows
            yield

    def _check(self, outputs: Sequence[Output], values: Mapping[str, Value]) -> None:
        """Raise `CodecError` unless these are the outputs of the answer that came first, with rows of its shapes."""
        if values.keys() != self._first.keys():
            expected, got = listed(self._first), listed(values)
            raise CodecError(f"expected the outputs {expected}, as in the answer to {self._first_label}, got {got}")
        for output in outputs:
            first, row = self._first[output.name], values[output.name].shape[1:]
            if row != first:
                raise CodecError(
                    f"{output.label}: rows of different shapes: {shape_text(first)} in the answer to "
                    f"{self._first_label}, here {shape_text(row)}"
                )

    def finish(self, wanted: Collection[str]) -> list[Output]:
        """The outputs with the rows of all answers; without any answer those that are *wanted* (none: all), empty.

        Raises `CodecError` for an output whose shape is not as declared.
        """
        if not self._next_row:
            self._outputs = {name: self._empty(name) for name in wanted or self._described}
        for name, output in self._outputs.items():
            declared, shape = self._described[name].shape, output.shape
            if declared is not None and not fits(declared, shape, self._sizes):
                raise _other_shape(output, shape, declared, self._sizes)
        return list(self._outputs.values())

    def _whole(self, output: Output) -> Output:
        return Output(output.name, self._described[output.name], output.datatype)

    def _empty(self, name: str) -> Output:
        """The output *name* without rows. Raises `CodecError` if the shape of a row is not declared."""
        described = self._described[name]
        inner = _known_sizes((described.shape or ())[1:], self._sizes)
        if not described.shape or inner is None:
            raise CodecError(
                f"the request has no rows, so this backend is not asked, and the shape of {label_of('output', name)} "
                f"is not known; expected at least one row, or the output's shape in {SETTING}"
            )
        assert described.datatype is not None, "requests for outputs without one are refused"
        output = Output(name, described, described.datatype)
        output.shape = (0, *inner)
        return output

    def _shape_of(self, output: Output, n_rows: int) -> tuple[int, ...]:
        """The shape of *output*, of the answer to *n_rows* rows, with the rows as its first dimension.

        A value with one dimension less than declared is the only row. A value with all declared dimensions has the rows
        in its first one. Without a declared shape a value is a row if each request has one, else a list of rows. Raises
        `CodecError` for a value that is neither.
        """
        described, shape = self._described.get(output.name), output.shape
        if described is None:
            raise CodecError(f"{output.label}: the model has no such output")
        declared = described.shape
        if declared is None:
            whole = (1, *shape) if self._per_request == 1 else shape
            if whole[:1] == (n_rows,):
                return whole
            expected = "a list with a value" if n_rows == 1 else f"a list of {n_rows} values, one"
            raise CodecError(f"{output.label}: expected {expected} for each row, got the shape {shape_text(shape)}")
        wholes = self._wholes(shape, declared)
        if output.may_be_scalars:
            wholes += self._wholes(shape[:-1], declared)
        for whole in wholes:
            if whole[0] == n_rows and fits(declared[1:], whole[1:], self._sizes):
                return whole
        raise _other_shape(output, shape, declared, self._sizes, n_rows)

    def _wholes(self, shape: tuple[int, ...], declared: Shape) -> list[tuple[int, ...]]:
        """The shapes that a value of *shape* may have with the rows as its first dimension, like *declared*.

        An empty list does not show the dimensions inside of it.
        """
        stacked, joined = (1, *shape), shape
        exact = [whole for whole in (stacked, joined) if len(whole) == len(declared)]
        if 0 not in shape:
            return exact
        shorter = [whole for whole in (stacked, joined) if len(whole) < len(declared)]
        completed = [(whole, _known_sizes(declared[len(whole) :], self._sizes)) for whole in shorter]
        return exact + [(*whole, *inner) for whole, inner in completed if inner is not None]


def _known_sizes(declared: Shape, sizes: Mapping[str, int]) -> tuple[int, ...] | None:
    """The sizes of the dimensions that are *declared*; None if one of them may be any."""
    known = [sizes.get(each, -1) if isinstance(each, str) else each for each in declared]
    return None if -1 in known else tuple(known)


def _other_shape(
    output: Output, shape: tuple[int, ...], declared: Shape, sizes: MutableMapping[str, int], n_rows: int = 0
) -> CodecError:
    """The error for an *output* whose *shape*, in the answer to *n_rows* rows or in all together, is not *declared*."""
    said, got = declared_text(declared, sizes), shape_text(shape)
    of = "" if not n_rows else " for a row" if n_rows == 1 else f" for {n_rows} rows"
    return CodecError(f"{output.label}: the answer has the shape {got}{of}, and {SETTING} says {said}")
