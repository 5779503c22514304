"""Putting the rows of a tensor into another order, in steps of bounded size."""

from collections.abc import Generator
from itertools import islice, pairwise

import numpy as np
import numpy.typing as npt

from gateway.codec.json.pieces import PIECE_BYTES
from gateway.codec.tensors.datatypes import BYTES, Datatype
from gateway.codec.tensors.elements import STEP_ELEMENTS, WINDOW_BYTES, bounds_of, end_of

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
    bounds = [0]
    n_elements = row_elements * len(indexes)
    while len(bounds) <= n_elements:
        start, most = bounds[-1], min(STEP_ELEMENTS, n_elements + 1 - len(bounds))
        found = bounds_of(bytes(blob[start : start + WINDOW_BYTES]), most).tolist()
        if len(found) > 1:
            bounds += [start + bound for bound in found[1:]]
        else:  # a single element that is longer than the window
            bounds.append((yield from end_of(blob, start, 1)))
        yield
    ends = bounds[::row_elements] if row_elements else [0] * (len(indexes) + 1)
    row_at = np.empty(len(indexes), np.int64)
    row_at[indexes] = np.arange(len(indexes))
    rows = list(pairwise(ends))
    made = bytearray()
    places = iter(row_at.tolist())
    while step := list(islice(places, STEP_ELEMENTS)):
        for start, end in (rows[place] for place in step):
            made += blob[start:end]
        yield
    return memoryview(made)
