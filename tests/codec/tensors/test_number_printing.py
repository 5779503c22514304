"""Numbers to JSON text: pieces of one array, and literals where JSON has no word."""

import json

import numpy as np
import pytest

from gateway.codec.tensors.datatypes import DATATYPES
from gateway.codec.tensors.number_printing import PIECE_ELEMENTS, text_pieces
from tests.codec.make_pairs import WIRE


@pytest.mark.parametrize("name", [name for name in DATATYPES if name != "BYTES"])
def test_pieces_of_text_are_one_array_whatever_the_length(name: str) -> None:
    row = DATATYPES[name]
    for n_elements in (
        0,
        1,
        PIECE_ELEMENTS,
        PIECE_ELEMENTS + 1,
        2 * PIECE_ELEMENTS + 5,
    ):
        values = (np.arange(n_elements) % 2).astype(WIRE[name])
        pieces = list(text_pieces(row.view(memoryview(values.tobytes())), row))
        parsed = json.loads(b"[" + b"".join(pieces) + b"]")
        assert parsed == [int(value) for value in values]
        assert len(pieces) == -(-n_elements // PIECE_ELEMENTS)


def test_literals_stand_where_the_nonfinite_values_are_in_every_piece() -> None:
    values = np.arange(3 * PIECE_ELEMENTS, dtype="<f4")
    values[[0, 1, PIECE_ELEMENTS - 1, PIECE_ELEMENTS, -1]] = [
        np.nan,
        -np.inf,
        np.inf,
        np.nan,
        -np.inf,
    ]
    text = b"".join(text_pieces(values, DATATYPES["FP32"], literals=True))
    read = np.array(json.loads(b"[" + text + b"]"), "f4")
    assert np.array_equal(read, values, equal_nan=True)
