"""Rows of tensors in another order."""

import tracemalloc

import numpy as np
import pytest
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor

from gateway.codec.tensors.datatypes import DATATYPES
from gateway.codec.tensors.row_order import ORDER_STEP_ROWS, STEP_INDEXES, is_permutation, rows_in_order
from tests.steps import run


@pytest.mark.parametrize("shape", [(0, 3), (1,), (5, 0), (7, 3), (50_000, 2), (3, 100_000)])
def test_row_i_comes_to_the_place_that_is_said(shape: tuple[int, ...]) -> None:
    order = np.random.default_rng(1).permutation(shape[0])
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    expected = np.empty_like(values)
    expected[order] = values
    row_elements = int(np.prod(shape[1:]))
    blob = run(rows_in_order(memoryview(values.tobytes()), DATATYPES["FP32"], row_elements, order))
    assert bytes(blob) == expected.tobytes()


@pytest.mark.parametrize(("n_rows", "row_elements"), [(0, 1), (1, 1), (9000, 1), (400, 30), (4, 0)])
def test_rows_of_strings_keep_their_elements(n_rows: int, row_elements: int) -> None:
    order = np.random.default_rng(2).permutation(n_rows)
    texts = [b"" if number % 7 == 0 else b"%d" % number * (number % 11) for number in range(n_rows * row_elements)]
    if texts:
        texts[-1] = b"x" * 300_000
    blob = b"".join(bytes(serialize_byte_tensor(np.array([text], object)).item()) for text in texts)
    made = run(rows_in_order(memoryview(blob), DATATYPES["BYTES"], row_elements, order))
    expected = np.empty((n_rows, row_elements), object)
    expected[order] = np.array(texts, object).reshape(n_rows, row_elements)
    assert list(deserialize_bytes_tensor(bytes(made))) == list(expected.ravel())


@pytest.mark.parametrize("n_rows", [0, 1, 2, STEP_INDEXES, STEP_INDEXES + 1])
def test_indexes_have_each_place_once(n_rows: int) -> None:
    order = np.random.default_rng(3).permutation(n_rows)
    assert run(is_permutation(order))
    for index in {0, n_rows - 1} if n_rows else ():
        for other in {-1, n_rows, 2**62, int(order[(index + 1) % n_rows])} - {int(order[index])}:
            wrong = order.copy()
            wrong[index] = other
            assert not run(is_permutation(wrong))


def test_strings_are_put_in_order_in_small_steps_and_little_memory() -> None:
    n_rows = 200_000
    blob = memoryview(b"\3\0\0\0abc" * n_rows)
    order = np.random.default_rng(4).permutation(n_rows)
    tracemalloc.start()
    try:
        steps = rows_in_order(blob, DATATYPES["BYTES"], 1, order)
        n_steps = sum(1 for _ in steps)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert n_steps >= n_rows / ORDER_STEP_ROWS
    assert peak_bytes < len(blob) + 2 * 8 * n_rows + 1024 * 1024  # the new blob, and two numbers for each row
