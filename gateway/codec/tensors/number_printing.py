"""Tensors of numbers and booleans as JSON text, a piece at a time.

Not here: reading them (`number_reading`).
"""

import itertools
import math
import re
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import orjson

from gateway.codec.tensors.datatypes import DATATYPES, Array, Datatype

PIECE_ELEMENTS = 16 * 1024
"""How many elements are printed at once: under half a millisecond for every datatype."""

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY


def text_pieces(values: Array, datatype: Datatype) -> Iterator[bytes]:
    """*values* (wire layout, shape [n]) as the inside of a JSON array, in pieces of `PIECE_ELEMENTS`.

    Every number is the shortest text that reads back to the same bits (protocol 3.3). NaN comes out as
    `null`, as do infinities: the caller has refused what it does not want, or uses `literal_pieces`.
    """
    table = _TABLES.get(datatype.name)
    for start in range(0, len(values), PIECE_ELEMENTS):
        piece = values[start : start + PIECE_ELEMENTS]
        if table is None:
            text = orjson.dumps(datatype.widen(piece), option=_OPTIONS)
            yield b"".join((b"," if start else b"", memoryview(text)[1:-1]))
        else:
            text = table.take(piece.view("<u2")).tobytes().translate(None, b"\0")
            yield text if start else text[1:]


def _table(datatype: Datatype) -> npt.NDArray[np.bytes_]:
    """The text of each number of a 16-bit *datatype*, with a comma before it and filled up with zero bytes."""
    numbers = datatype.view(memoryview(np.arange(2**16, dtype="<u2").tobytes()))
    texts = orjson.dumps(datatype.widen(numbers), option=_OPTIONS)[1:-1].split(b",")
    return np.array([b"," + text for text in texts])


# Looking up and taking out the zero bytes is two thirds of printing; for integers, whose texts are short, it is not.
_TABLES = {name: _table(DATATYPES[name]) for name in ("FP16", "BF16")}


def literal_pieces(values: Array, datatype: Datatype) -> Iterator[bytes]:
    """As `text_pieces`, with `NaN`, `Infinity` and `-Infinity` for what JSON cannot say (protocol 3.4)."""
    for start, text in zip(itertools.count(0, PIECE_ELEMENTS), text_pieces(values, datatype), strict=False):
        if b"null" not in text:
            yield text
            continue
        numbers = datatype.widen(values[start : start + PIECE_ELEMENTS])
        names = iter(_literal(float(number)) for number in numbers[~np.isfinite(numbers)])
        yield re.sub(b"null", lambda _, names=names: next(names), text)  # type: ignore[misc]


def _literal(number: float) -> bytes:
    return b"NaN" if math.isnan(number) else b"Infinity" if number > 0 else b"-Infinity"
