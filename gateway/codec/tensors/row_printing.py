"""Several tensors as rows of JSON, each row with one value of every tensor, a piece at a time.

The texts of many elements are made at once, for each tensor, and put together row by row by a template: the JSON of a
row with `%b` for each element. A row that is long, or has long strings, is printed tensor by tensor.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod

import msgspec
import numpy as np
import numpy.typing as npt

from gateway.codec.tensors.datatypes import BYTES
from gateway.codec.tensors.elements import PREFIX_BYTES, WINDOW_BYTES, bounds_of, end_of
from gateway.codec.tensors.nested_printing import NestedTensor, repeated
from gateway.codec.tensors.number_printing import array_text, as_texts
from gateway.codec.tensors.string_printing import StringForm

STEP_VALUES = 1024
"""How many elements one step puts into rows: each costs some ten operations of Python."""

BATCH_VALUES = 8 * STEP_VALUES
"""How many elements' texts are held, of all tensors together."""

STEP_BYTES = 256 * 1024
"""How much of the template's own text one step repeats, unless a single row has more: copying takes time as well."""

Piece = bytes | bytearray


class Column:
    """One tensor, read row by row from its beginning."""

    def __init__(self, tensor: NestedTensor, window_bytes: int) -> None:
        """The shape of *tensor* is that of a row. Longer strings than *window_bytes* are printed by themselves."""
        self.shape = tensor.strings_shape
        self._row_bytes = prod(tensor.shape) * tensor.datatype.item_bytes  # of numbers
        self._tensor = tensor
        self._rest = tensor.blob
        self._window_bytes = window_bytes
        self._bounds: npt.NDArray[np.int64] = np.zeros(1, np.int64)

    def ready_rows(self, most: int) -> int:
        """How many of its next *most* rows `texts` can print."""
        row_values = prod(self.shape)
        if self._tensor.number_form is StringForm.BASE64:
            return min(most, self._window_bytes // max(1, self._row_bytes))
        if self._tensor.datatype.kind is not BYTES or not row_values:
            return most
        self._bounds = bounds_of(bytes(self._rest[: self._window_bytes]), most * row_values)
        return (len(self._bounds) - 1) // row_values

    def texts(self, n_rows: int) -> list[bytes]:
        """The elements of its next *n_rows* rows as JSON."""
        n_elements = n_rows * prod(self.shape)
        if not n_elements:
            return []
        form = self._tensor.number_form
        if form is StringForm.BASE64:
            blob, text_bytes = self._take(n_rows * self._row_bytes), n_rows * self._row_bytes // n_elements
            starts = [index * text_bytes for index in range(n_elements)]
            return [b'"%b"' % form.text_of(blob[start : start + text_bytes]) for start in starts]
        if self._tensor.datatype.kind is not BYTES:
            values = self._tensor.datatype.view(self._take(n_rows * self._row_bytes))
            text = array_text(values, self._tensor.datatype, literals=self._tensor.literals)[1:-1]
            return (text if form is None else as_texts(text)).split(b",")
        bounds = self._bounds[: n_elements + 1].tolist()
        window = bytes(self._take(bounds[-1]))
        elements = [window[start + PREFIX_BYTES : end] for start, end in pairwise(bounds)]
        form = self._tensor.form
        return [form.opening + form.text_of(element) + form.closing for element in elements]

    def row(self) -> Iterator[Piece]:
        """Its next row as nested JSON, in pieces; an empty one ends a step of work."""
        n_bytes = self._row_bytes
        if self._tensor.datatype.kind is BYTES:
            walk = end_of(self._rest, 0, prod(self.shape))
            try:
                while True:
                    next(walk)
                    yield b""
            except StopIteration as stop:
                n_bytes = stop.value
        yield from msgspec.structs.replace(self._tensor, blob=self._take(n_bytes)).pieces()

    def _take(self, n_bytes: int) -> memoryview:
        taken, self._rest = self._rest[:n_bytes], self._rest[n_bytes:]
        return taken


class RowNumbers(msgspec.Struct, frozen=True, gc=False):
    """The number of each row: in the first one *first*."""

    first: int = 0


class NumberColumn:
    """The numbers of rows, read row by row."""

    shape: tuple[int, ...] = ()

    def __init__(self, first: int) -> None:
        self._next = first

    def ready_rows(self, most: int) -> int:
        """See `Column.ready_rows`."""
        return most

    def texts(self, n_rows: int) -> list[bytes]:
        """See `Column.texts`."""
        self._next += n_rows
        return [b"%d" % number for number in range(self._next - n_rows, self._next)]

    def row(self) -> Iterator[Piece]:
        """See `Column.row`."""
        yield from self.texts(1)


class Rows(msgspec.Struct, frozen=True, gc=False):
    """An array with an item for each row of some tensors."""

    item: Sequence[bytes | NestedTensor | RowNumbers]
    """The texts that are the same in all rows, and between them the tensors, with the shape of a row, and numbers."""
    n_rows: int
    window_bytes: int = WINDOW_BYTES
    """How much is looked at of all tensors together; strings that are longer are printed by themselves."""

    def pieces(self) -> Iterator[Piece]:
        """Its JSON; an empty piece ends a step of work."""
        parts_of_rows = [part for part in self.item if not isinstance(part, bytes)]
        columns = [
            NumberColumn(part.first)
            if isinstance(part, RowNumbers)
            else Column(part, self.window_bytes // len(parts_of_rows))
            for part in parts_of_rows
        ]
        *before, behind = _texts_between(self.item)
        yield b"["
        sizes = [prod(column.shape) for column in columns]
        row_values = sum(sizes)
        most_rows = min(STEP_VALUES // max((1, *sizes)), BATCH_VALUES // max(1, row_values))
        template = b""
        if most_rows:
            parts = [
                text.replace(b"%", b"%%") + repeated(b"%b", column.shape)
                for text, column in zip(before, columns, strict=True)
            ]
            template = b"".join(parts) + behind.replace(b"%", b"%%")
        printed = 0
        while printed < self.n_rows:
            if printed:
                yield b","
            most = min(most_rows, self.n_rows - printed)
            ready = min((column.ready_rows(most) for column in columns), default=most) if most else 0
            if ready:
                yield from _batch(columns, sizes, template, ready)
            else:
                for text, column in zip(before, columns, strict=True):
                    yield text
                    yield from column.row()
                yield behind
            printed += ready or 1
        yield b"]"


def _texts_between(item: Sequence[bytes | NestedTensor | RowNumbers]) -> list[bytes]:
    """The text before each tensor or number of *item*, and that after the last."""
    texts = [b""]
    for part in item:
        if isinstance(part, bytes):
            texts[-1] += part
        else:
            texts.append(b"")
    return texts


def _batch(columns: Sequence[Column | NumberColumn], sizes: list[int], template: bytes, n_rows: int) -> Iterator[Piece]:
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
