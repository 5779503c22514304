"""Numbers to base64: a text for each row, in pieces that stay small."""

import base64
import json
import math
import random

import pytest

from gateway.codec.tensors.packed_printing import packed_pieces

SHAPES = [(), (1,), (5,), (2, 3), (3, 1, 2), (4000,), (2, 1500)]


@pytest.mark.parametrize(
    ("row_bytes", "shape"),
    [
        *((row_bytes, shape) for row_bytes in (0, 1, 2, 12) for shape in SHAPES),
        *((row_bytes, shape) for row_bytes in (65_536, 65_537, 200_000) for shape in SHAPES[:5]),
    ],
    ids=str,
)
def test_each_row_is_a_text_where_the_shape_has_it(row_bytes: int, shape: tuple[int, ...]) -> None:
    n_texts = math.prod(shape)
    blob = random.Random(row_bytes).randbytes(n_texts * row_bytes)
    pieces = list(packed_pieces(memoryview(blob), row_bytes, shape))
    texts = [base64.b64encode(blob[row * row_bytes : (row + 1) * row_bytes]).decode() for row in range(n_texts)]
    tree = json.loads(b"".join(pieces))
    for _ in shape[1:]:
        tree = [item for items in tree for item in items]
    assert (tree if shape else [tree]) == texts
    assert max(map(len, pieces)) < 128 * 1024
