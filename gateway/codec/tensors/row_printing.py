"""Several tensors as rows of JSON, each row with one value of every tensor, a piece at a time.

The texts of many elements are made at once, for each tensor, and put together row by row by a template: the JSON of a
row with `%b` for each element. A row that is long, or has long strings, is printed tensor by tensor.

Not here: one tensor alone, which is its own rows (`nested_printing`).
"""

import binascii
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod
from typing import Protocol

import numpy as np
import numpy.typing as npt
import orjson

from gateway.codec.tensors.datatypes import Array, Datatype
from gateway.codec.tensors.elements import WINDOW_BYTES, bounds_of
from gateway.codec.tensors.nested_printing import StringForm, nested_number_pieces, nested_string_pieces
from gateway.codec.tensors.number_printing import array_text, with_literals

STEP_VALUES = 1024
"""How many elements one step puts into rows: each costs some ten operations of Python."""

BATCH_VALUES = 8 * STEP_VALUES
"""How many elements' texts are held, of all tensors together."""

STEP_BYTES = 256 * 1024
"""How much of the template's own text one step repeats, unless a single row has more: copying takes time as well."""

Piece = bytes | bytearray


class Column(Protocol):
    """One tensor, read row by row from its beginning."""

    shape: tuple[int, ...]
    """That of its rows."""

    def ready_rows(self, most: int) -> int:
        """How many of its next *most* rows `texts` can print."""

    def texts(self, n_rows: int) -> list[bytes]:
        """The elements of its next *n_rows* rows as JSON."""

    def row(self) -> Iterator[Piece]:
        """Its next row as nested JSON, in pieces; an empty one ends a step of work."""


class NumberColumn:
    """A tensor of numbers; *values* in wire layout, shape [n]."""

    def __init__(self, values: Array, datatype: Datatype, shape: tuple[int, ...], *, literals: bool) -> None:
        """*shape* is that of the rows, *literals* as for `nested_number_pieces`."""
        self.shape = shape
        self._values = values
        self._datatype = datatype
        self._literals = literals
        self._next = 0

    def ready_rows(self, most: int) -> int:
        """See `Column.ready_rows`."""
        return most

    def texts(self, n_rows: int) -> list[bytes]:
        """See `Column.texts`."""
        values = self._take(n_rows)
        if not len(values):
            return []
        text = array_text(values, self._datatype)[1:-1]
        return (with_literals(text, values, self._datatype) if self._literals else text).split(b",")

    def row(self) -> Iterator[Piece]:
        """See `Column.row`."""
        return nested_number_pieces(self._take(1), self._datatype, self.shape, literals=self._literals)

    def _take(self, n_rows: int) -> Array:
        start = self._next
        self._next += n_rows * prod(self.shape)
        return self._values[start : self._next]


class StringColumn:
    """A tensor of BYTES."""

    def __init__(self, blob: memoryview, shape: tuple[int, ...], form: StringForm, window_bytes: int) -> None:
        """*shape* is that of the rows; longer strings than *window_bytes* are printed by themselves."""
        self.shape = shape
        self._blob = blob
        self._form = form
        self._window_bytes = window_bytes
        self._next = 0
        self._window = b""
        self._bounds: npt.NDArray[np.int64] = np.zeros(1, np.int64)

    def ready_rows(self, most: int) -> int:
        """See `Column.ready_rows`."""
        row_values = prod(self.shape)
        if not row_values:
            return most
        self._window = bytes(self._blob[self._next : self._next + self._window_bytes])
        self._bounds = bounds_of(self._window, most * row_values)
        return (len(self._bounds) - 1) // row_values

    def texts(self, n_rows: int) -> list[bytes]:
        """See `Column.texts`."""
        bounds = self._bounds[: n_rows * prod(self.shape) + 1].tolist()
        elements = [self._window[start + 4 : end] for start, end in pairwise(bounds)]
        self._next += bounds[-1]
        if self._form is StringForm.TEXT:
            return [orjson.dumps(str(element, "utf-8")) for element in elements]
        opening, closing = self._form.opening, self._form.closing
        return [opening + binascii.b2a_base64(element, newline=False) + closing for element in elements]

    def row(self) -> Iterator[Piece]:
        """See `Column.row`."""
        start = self._next
        left = prod(self.shape)
        while left:
            window = bytes(self._blob[self._next : self._next + WINDOW_BYTES])
            n_elements = len(bounds := bounds_of(window, left)) - 1
            if n_elements:
                self._next += int(bounds[-1])
            else:
                self._next += 4 + int.from_bytes(self._blob[self._next : self._next + 4], "little")
                n_elements = 1
            left -= n_elements
            yield b""
        yield from nested_string_pieces(self._blob[start : self._next], self.shape, self._form)


def row_pieces(columns: Sequence[Column], before: Sequence[bytes], behind: bytes, n_rows: int) -> Iterator[Piece]:
    """*n_rows* rows of *columns* as the inside of a JSON array, in pieces; an empty one ends a step of work.

    *before* stands before the value of each column in every row, *behind* after the last.
    """
    sizes = [prod(column.shape) for column in columns]
    row_values = sum(sizes)
    most_rows = min(STEP_VALUES // max((1, *sizes)), BATCH_VALUES // max(1, row_values))
    template = b""
    if most_rows:
        parts = [
            text.replace(b"%", b"%%") + _placeholders(column.shape)
            for text, column in zip(before, columns, strict=True)
        ]
        template = b"".join(parts) + behind.replace(b"%", b"%%")
    printed = 0
    while printed < n_rows:
        if printed:
            yield b","
        most = min(most_rows, n_rows - printed)
        ready = min((column.ready_rows(most) for column in columns), default=most) if most else 0
        if ready:
            yield from _batch(columns, sizes, template, ready)
        else:
            for text, column in zip(before, columns, strict=True):
                yield text
                yield from column.row()
            yield behind
        printed += ready or 1


def _batch(columns: Sequence[Column], sizes: list[int], template: bytes, n_rows: int) -> Iterator[Piece]:
    texts: list[Iterator[bytes]] = []
    made = 0
    for column, size in zip(columns, sizes, strict=True):
        texts += [iter(column.texts(n_rows))] * size  # the same one: a row takes so many elements of it
        made += n_rows * size
        if made >= STEP_VALUES // 2:
            made = 0
            yield b""
    rows = list(zip(*texts, strict=False)) if texts else [()] * n_rows
    step = max(1, min(STEP_VALUES // max(1, len(texts)), STEP_BYTES // max(1, len(template))))
    for start in range(0, n_rows, step):
        yield (b"," if start else b"") + b",".join([template % row for row in rows[start : start + step]])
        yield b""


def _placeholders(shape: tuple[int, ...]) -> bytes:
    text = b"%b"
    for dimension in reversed(shape):
        text = b"[%b]" % b",".join([text] * dimension)
    return text
