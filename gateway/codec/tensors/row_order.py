"""Putting the rows of a tensor into another order, in steps of bounded size."""

from collections.abc import Generator

import numpy as np
import numpy.typing as npt

from gateway.codec.json.pieces import PIECE_BYTES
from gateway.codec.tensors.datatypes import BYTES, Datatype
from gateway.codec.tensors.elements import starts_of

ORDER_STEP_ROWS = 1024
"""How many rows of strings one step copies."""

ORDER_STEP_BYTES = 1024 * 1024
"""How many bytes of strings one step copies."""

STEP_INDEXES = 64 * 1024
"""How many indexes one step looks at."""


def rows_in_order(
    blob: memoryview, datatype: Datatype, row_elements: int, indexes: npt.NDArray[np.int64]
) -> Generator[None, None, memoryview]:
    """The rows in *blob*, of *row_elements* each, with row i at the place `indexes[i]`, as a new blob.

    *indexes* has each place once. Yields after each step of work. The memory is that of one more tensor.
    """
    if datatype.kind is BYTES:
        return (yield from _strings_in_order(blob, row_elements, indexes))
    row_bytes = row_elements * datatype.item_bytes
    made = np.empty((len(indexes), row_bytes), np.uint8)
    rows = np.frombuffer(blob, np.uint8).reshape(len(indexes), row_bytes)
    n_rows = max(1, PIECE_BYTES // max(1, row_bytes))
    for start in range(0, len(indexes), n_rows):
        made[indexes[start : start + n_rows]] = rows[start : start + n_rows]
        yield
    return memoryview(made.tobytes()) if not made.size else made.reshape(-1).data


def is_permutation(indexes: npt.NDArray[np.int64]) -> Generator[None, None, bool]:
    """Whether *indexes* has each place from 0 on once. Yields after each step of work, which sorting would not."""
    is_there = np.zeros(len(indexes), bool)
    for start in range(0, len(indexes), STEP_INDEXES):
        step = indexes[start : start + STEP_INDEXES]
        if step.min() < 0 or step.max() >= len(indexes):
            return False
        is_there[step] = True
        yield
    return bool(is_there.all())


def _strings_in_order(
    blob: memoryview, row_elements: int, indexes: npt.NDArray[np.int64]
) -> Generator[None, None, memoryview]:
    n_rows = len(indexes)
    if not n_rows or not row_elements:
        return memoryview(b"")
    starts = yield from starts_of(blob, n_rows * row_elements, row_elements)
    row_at = np.empty(n_rows, np.int64)
    for start in range(0, n_rows, STEP_INDEXES):
        step = indexes[start : start + STEP_INDEXES]
        row_at[step] = np.arange(start, start + len(step))
        yield
    made = memoryview(np.empty(len(blob), np.uint8).data)
    at = done = 0
    for first in range(0, n_rows, ORDER_STEP_ROWS):
        rows = row_at[first : first + ORDER_STEP_ROWS]
        for start, end in zip(starts[rows].tolist(), starts[rows + 1].tolist(), strict=True):
            for piece in range(start, end, ORDER_STEP_BYTES):
                size = min(end - piece, ORDER_STEP_BYTES)
                made[at : at + size] = blob[piece : piece + size]
                at += size
                if at - done >= ORDER_STEP_BYTES:
                    done = at
                    yield
        yield
    return made
