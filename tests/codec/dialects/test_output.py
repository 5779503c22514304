"""One output while its rows come."""

from typing import Any

import numpy as np
import pytest

from gateway.codec.dialects.declared import TensorDescription
from gateway.codec.dialects.output import JOINED_BYTES, Output
from gateway.codec.tensors.datatypes import DATATYPES
from gateway.codec.values import Value
from gateway.errors import CodecError


def value_of(numbers: Any, nonfinite: int = 0) -> Value:
    array = np.array(numbers, "<i8")
    return Value(array.shape, [array.view("u1").data.cast("B")] if array.size else [], nonfinite)


def test_rows_are_put_behind_each_other_and_small_ones_are_joined() -> None:
    output = Output("y", TensorDescription(), DATATYPES["INT64"])
    large = list(range(JOINED_BYTES // 8 + 1))
    for rows in ([[1]], [[2], [3]], [[number] for number in large], [[4]]):
        output.append(value_of(rows, 1))
    assert output.shape == (4 + len(large), 1)
    assert output.nonfinite == 4
    assert output.n_bytes == 8 * (4 + len(large))
    assert [len(blob) for blob in output.blobs] == [24, JOINED_BYTES + 8, 8]
    assert b"".join(output.blobs) == np.array([1, 2, 3, *large, 4], "<i8").tobytes()
    assert output.n_bytes == sum(map(len, output.blobs))


def test_what_is_joined_is_bounded() -> None:
    output = Output("y", TensorDescription(), DATATYPES["INT64"])
    rows = 1000
    for _ in range(300):
        output.append(value_of([5] * rows))
    assert output.shape == (300 * rows,)
    assert sum(map(len, output.blobs)) == 300 * rows * 8
    assert max(map(len, output.blobs)) <= JOINED_BYTES
    assert len(output.blobs) == -(-300 * rows * 8 // JOINED_BYTES)


def test_rows_of_another_shape_are_refused() -> None:
    output = Output("y", TensorDescription(), DATATYPES["INT64"])
    output.append(value_of([[1, 2]]))
    for other in ([1], [[1]], [[[1, 2]]], [[1, 2, 3]]):
        with pytest.raises(
            CodecError, match="output 'y' \\(INT64\\): rows of different shapes: \\[2\\], and from row 1"
        ):
            output.append(value_of(other))
