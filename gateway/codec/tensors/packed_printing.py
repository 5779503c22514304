"""Numbers as JSON in base64: the last dimension of a tensor is one text, its little-endian bytes.

    FP32, shape [2, 2]     [[1, 2], [3, 4]]     ->     ["AACAPwAAAEA=", "AABAQAAAgEA="]
    FP32, shape [2]        [1, 2]               ->     "AACAPwAAAEA="
    FP32, a scalar         1                    ->     "AACAPw=="

So servers write embeddings: OpenAI's `encoding_format: base64` has one text for each row.
"""

from collections.abc import Iterator
from itertools import chain
from math import prod

from gateway.codec.json.pieces import PIECE_BYTES
from gateway.codec.tensors.elements import STEP_ELEMENTS
from gateway.codec.tensors.string_printing import LONG_STEP_BYTES, Separators, StringForm

MAX_TEXTS = STEP_ELEMENTS // 4
"""The most texts that one step prints."""

_FORM = StringForm.BASE64


def packed_pieces(blob: memoryview, row_bytes: int, shape: tuple[int, ...]) -> Iterator[bytes]:
    """The rows of *blob*, *row_bytes* each, as texts in base64, nested like *shape*, which has some."""
    separators = Separators(shape, _FORM)
    n_texts = prod(shape)
    n_at_once = max(1, min(MAX_TEXTS, PIECE_BYTES // max(1, row_bytes)))
    yield b"[" * len(shape)
    for first in range(0, n_texts, n_at_once):
        rows = range(first, min(first + n_at_once, n_texts))
        before = separators.before(first, len(rows))
        if row_bytes <= PIECE_BYTES:
            texts = [_FORM.text_of(blob[row * row_bytes : (row + 1) * row_bytes]) for row in rows]
            yield b"".join(chain.from_iterable(zip(before, texts, strict=True)))
            continue
        yield before[0]
        end = (first + 1) * row_bytes
        for start in range(first * row_bytes, end, LONG_STEP_BYTES):
            yield _FORM.text_of(blob[start : min(start + LONG_STEP_BYTES, end)])
    yield _FORM.closing + b"]" * len(shape)
