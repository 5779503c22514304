"""Other values for the inputs of a sample: other numbers, longer texts, other rows, other sizes. Not here: sending."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gateway.codec.tensors.datatypes import DATATYPES, Kind
from gateway.doctor.tensors import Tensor, blob_of


def _with_values(tensor: Tensor, array: Any) -> Tensor:
    return replace(tensor, shape=array.shape, blob=blob_of(tensor.datatype, list(array.flat)))


def _array(tensor: Tensor) -> Any:
    """The values as an array of Python's objects."""
    return np.array([*tensor.values, None], object)[:-1].reshape(tensor.shape)


def row_at(tensor: Tensor, index: int) -> Tensor:
    """The row at *index*, with one dimension less."""
    array = _array(tensor)[index : index + 1]
    return _with_values(tensor, array.reshape(tensor.shape[1:]))


def with_rows(tensor: Tensor, indexes: Sequence[int]) -> Tensor:
    """The rows at *indexes*, in this order."""
    return _with_values(tensor, _array(tensor)[list(indexes)])


def stacked(tensors: Sequence[Tensor]) -> Tensor:
    """One tensor with *tensors*, which have the same shape, as its rows."""
    shape = (len(tensors), *tensors[0].shape)
    return replace(tensors[0], shape=shape, blob=b"".join(tensor.blob for tensor in tensors))


def has_same_rows(tensor: Tensor) -> bool:
    """Whether all rows of *tensor* are the same."""
    rows = tensor.nested
    return all(row == rows[0] for row in rows)


def stacked_rows(tensors: Sequence[Tensor]) -> Tensor:
    """One tensor with all rows of *tensors*, which are of the same shape but for their number."""
    return _with_values(tensors[0], np.concatenate([_array(tensor) for tensor in tensors]))


def changed(tensor: Tensor) -> Iterator[Tensor]:
    """Tensors of the same shape with other values, those first that show most; a server may refuse some."""
    values = tensor.values
    seen = [values]
    for others in _others(values, DATATYPES[tensor.datatype].kind):
        if others not in seen:
            seen.append(others)
            yield replace(tensor, blob=blob_of(tensor.datatype, others))


def _others(values: list[Any], kind: Kind) -> Iterator[list[Any]]:
    """Other values of *kind* than *values*."""
    turned = [*values[1:], *values[:1]]  # values that the sample has, for servers that know no others
    if kind is Kind.BYTES:
        yield [f"{value} and more words, {index}" for index, value in enumerate(values)]
        yield turned
        yield [_with_other_digit(value) for value in values]
        yield [value[:1] or "a" for value in values]
    elif kind is Kind.FLOAT:
        yield [None if value is None else _moved(value, index) for index, value in enumerate(values)]
        yield turned
    elif kind is Kind.BOOL:
        yield [not value for value in values]
        yield turned
    else:
        yield [value + 1 + index % 5 if value < 2**62 else value - 1 for index, value in enumerate(values)]
        yield turned
        yield [max(value - 1, 0) for value in values]


def _with_other_digit(text: str) -> str:
    """*text* with another number at its end, for servers that only take dates or codes.

    >>> _with_other_digit("2026-01-31")
    '2026-01-30'
    """
    return re.sub(r"[0-9]{1,18}(?=[^0-9]*$)", lambda digits: _another(digits[0]), text)


def _another(digits: str) -> str:
    """The number before *digits*, with as many of them; after 0 and 1, which may count from one, the next."""
    return str(int(digits) + (-1 if int(digits) > 1 else 1)).zfill(len(digits))


def _moved(value: float, index: int) -> float:
    """Another number, between 0 and 1 if *value* is, with more digits than FP32 has."""
    if not math.isfinite(value) or abs(value) > 1e100:
        return value
    return round(value * 0.5 + 0.2 + 0.0123457 * (index % 7), 7)


def grown(tensor: Tensor, n_more: int) -> Iterator[Tensor]:
    """*tensor* with *n_more* rows behind its own, of other values if the server takes them, else the same again."""
    rows = _array(tensor)
    more = with_rows(tensor, [index % tensor.shape[0] for index in range(n_more)])
    for other in (*changed(more), more):
        yield _with_values(tensor, np.concatenate([rows, _array(other)]))


def widened(tensor: Tensor) -> Tensor:
    """*tensor* with one more value in its last dimension."""
    array = _array(tensor)
    return _with_values(tensor, np.concatenate([array, array[..., -1:]], axis=-1))


def as_floats(tensor: Tensor, more: float = 0.0) -> Tensor:
    """*tensor*, which has integers, as FP64, with *more* added to each."""
    values = [float(value) + more for value in tensor.values]
    return Tensor(tensor.name, "FP64", tensor.shape, blob_of("FP64", values))
