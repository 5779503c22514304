"""Tensors as nested JSON, a piece at a time: lists in lists as the shape says, a scalar bare.

Numbers. orjson prints arrays of any rank nested. Items (rows, matrices, ...) of one depth are printed, as
large as a step prints: a run of the items of one list at a time, without the brackets around it:

    shape [2, 3, 2]       [[   [1,2],[3,4],[5,6]   ],[   [7,8],[9,10],[11,12]   ]]

A list costs orjson as much as two numbers, so it counts as such. Dimensions of 1 at the end ([n, 1]) are printed
without lists, and then each comma becomes `],[`: two times faster. Numbers of 8 and 16 bits are printed by tables of
their texts where that is faster (`_Table`).

Not here: rows of several tensors (`row_printing`), flat data and strings (`number_printing`, `string_printing`).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from math import prod

import msgspec
import numpy as np
import numpy.typing as npt
import orjson

from gateway.codec.tensors.datatypes import BYTES, DATATYPES, Array, Datatype
from gateway.codec.tensors.number_printing import PIECE_ELEMENTS, TABLES, array_text, text_table, with_literals
from gateway.codec.tensors.string_printing import StringForm, separator, string_pieces
from gateway.errors import CodecError

MAX_EMPTY_LISTS = 4096
"""The most empty lists that a tensor without elements is printed as; a shape may ask for any number of lists."""

LIST_COST = 2
"""What a list costs beside its elements, in elements."""

MAX_SHORT_LIST = 16
"""The longest list of numbers of 8 bits for which a table is faster than orjson: 2 to 6 times for short ones."""

FEW_ELEMENTS = 256
"""The most numbers that are printed in one call: cutting them into pieces takes five times as long, which is a
twentieth of what a small request costs."""

FEW_DIMENSIONS = 8
"""The most dimensions that these may have; numpy has no arrays of as many as the protocol."""

_BRACKETS_PER_ELEMENT = 4  # so many brackets around a single element cost as much as one more
_OPTIONS = orjson.OPT_SERIALIZE_NUMPY


def check_nestable(shape: tuple[int, ...], label: object) -> None:
    """Raise `CodecError` naming *label* if lists cannot say that a tensor has this *shape*: [0, 4] would be `[]`."""
    if 0 not in shape:
        return
    before, behind = shape[: shape.index(0)], shape[shape.index(0) + 1 :]
    if behind:
        raise CodecError(f"{label}: nested JSON cannot say the shape of this empty tensor")
    if prod(before) > MAX_EMPTY_LISTS:
        raise CodecError(f"{label}: an empty tensor of more than {MAX_EMPTY_LISTS} lists")


def list_count(shape: tuple[int, ...]) -> int:
    """How many lists a tensor of *shape* is printed as."""
    return sum(accumulate(shape[:-1], int.__mul__, initial=1)) if shape else 0


# Numbers


def nested_number_pieces(
    values: Array, datatype: Datatype, shape: tuple[int, ...], *, literals: bool
) -> Iterator[bytes]:
    """*values* (wire layout, shape [n]) as nested JSON of *shape*, which `check_nestable` has approved.

    NaN and infinities come out as `null`, or with *literals* as `NaN`, `Infinity` and `-Infinity`.
    """
    if 0 in shape:
        yield _empty(shape)
        return
    table = _Table.of(datatype, shape)
    n_single = next((n for n, dimension in enumerate(reversed(shape)) if dimension > 1), len(shape))
    if table is not None or not shape:
        n_single = 0
    comma = separator(n_single)

    def text_of(start: int, end: int, item: tuple[int, ...]) -> memoryview:
        """The items from element *start* to *end*, each of shape *item*, without the brackets around them."""
        piece = values[start:end]
        if not item:
            text = array_text(piece, datatype)
        elif table is not None:
            text = table.array_text(piece.view(datatype.bits), item)
        else:
            text = orjson.dumps(datatype.widen(piece.reshape(-1, *item)), option=_OPTIONS)
        if n_single:
            text = text.replace(b",", comma)
        if literals:
            text = with_literals(text, piece, datatype)
        return memoryview(text)[1:-1]

    if not shape:
        yield bytes(text_of(0, 1, ()))
        return
    outer = shape[: len(shape) - n_single] or (1,)
    yield b"[" * (len(shape) - len(outer) + 1)
    for start, end, item, n_lists in _runs(outer, 1 + -(-n_single // _BRACKETS_PER_ELEMENT)):
        before = comma.join((b"]" * n_lists, b"[" * n_lists)) if start else b"[" * n_lists
        yield b"".join((before, text_of(start, end, item)))
    yield b"]" * (len(shape) - len(item))


def _runs(shape: tuple[int, ...], element_cost: int) -> Iterator[tuple[int, int, tuple[int, ...], int]]:
    """Runs of items of one list that are printed in one step.

    Of each run the first element, the one behind it, the shape of its items, and how many lists begin before it.
    """
    items = [shape[axis:] for axis in range(1, len(shape) + 1)]
    costs = [prod(item) * element_cost + LIST_COST * list_count(item) for item in items]
    axis, cost = next((axis, cost) for axis, cost in enumerate(costs, 1) if cost <= PIECE_ELEMENTS)
    n_items, item = shape[axis - 1], shape[axis:]
    size = prod(item)
    n_runs = -(-n_items // (PIECE_ELEMENTS // cost or 1))  # all of about the same length
    step = -(-n_items // n_runs) * size
    sizes = [prod(shape[outer:]) for outer in range(1, axis)]
    for first in range(0, prod(shape), n_items * size):
        end = first + n_items * size
        for start in range(first, end, step):
            yield start, min(start + step, end), item, sum(start % list_size == 0 for list_size in sizes)


def _empty(shape: tuple[int, ...]) -> bytes:
    text = b"[]"
    for dimension in reversed(shape[: shape.index(0)]):
        text = b"[%b]" % b",".join([text] * dimension)
    return text


@dataclass(frozen=True, slots=True)
class _Table:
    """The texts of all numbers of a datatype, in entries of the same width, for printing lists of them.

    A row of the text is a separator and the entries of a list's numbers. All rows have the same width, so numpy writes
    them like any array: all separators at once, all entries at once. The bytes that fill up an entry are zeros, which
    are removed, or blanks, which may stay: JSON is a fifth longer then, and printed two times faster.
    """

    texts: npt.NDArray[np.bytes_]
    """What `text_table` makes."""
    fill: bytes

    @classmethod
    def of(cls, datatype: Datatype, shape: tuple[int, ...]) -> "_Table | None":
        """The table of *datatype*; None where orjson prints lists of *shape* faster."""
        if len(shape) < 2 or (datatype.item_bytes == 1 and shape[-1] > MAX_SHORT_LIST):
            return None
        return _TABLES.get(datatype.name)

    def array_text(self, bits: Array, block: tuple[int, ...]) -> bytes:
        """An array of blocks, with the *bits* of all their numbers."""
        depth = len(block)
        row = block[-1]
        n_rows = len(bits) // row
        width = self.texts.itemsize
        before = 2 * depth + 1  # the longest separator
        text = np.empty((n_rows, before + row * width), np.uint8)
        strides = text.strides[0], width
        entries: Array = np.ndarray((n_rows, row), self.texts.dtype, text, before, strides)
        entries[...] = self.texts.take(bits.reshape(n_rows, row))
        # a separator also takes the place of the comma before a list's first number
        separators: Array = np.ndarray((n_rows,), f"S{before + 1}", text, 0, strides[:1])
        list_rows = 1
        for n_lists, dimension in enumerate((1, *block[-2::-1]), 1):
            list_rows *= dimension
            separators[::list_rows] = separator(n_lists).ljust(before + 1, self.fill)
        separators[0] = (b"[" * (depth + 1)).ljust(before + 1, self.fill)
        printed = text.tobytes()
        return (printed.translate(None, b"\0") if self.fill == b"\0" else printed) + b"]" * (depth + 1)


_TABLES = {name: _Table(texts, b"\0") for name, texts in TABLES.items()} | {
    name: _Table(text_table(DATATYPES[name], b" "), b" ") for name in ("UINT8", "INT8", "BOOL")
}


# Strings, and both


def nested_string_pieces(blob: memoryview, shape: tuple[int, ...], form: StringForm) -> Iterator[bytes | bytearray]:
    """The elements of *blob* as nested JSON of *shape*, which `check_nestable` has approved; UTF-8 for a text."""
    if 0 in shape:
        yield _empty(shape)
        return
    if shape:
        yield b"[" * len(shape)
    yield from string_pieces(blob, form, shape)
    if shape:
        yield b"]" * len(shape)


class NestedTensor(msgspec.Struct, frozen=True, gc=False):
    """A tensor and how it is printed."""

    blob: memoryview
    datatype: Datatype
    shape: tuple[int, ...]
    """That of its nesting, which `check_nestable` has approved."""
    form: StringForm = StringForm.TEXT
    """Of strings."""
    literals: bool = False
    """Whether NaN and infinities are written as such, and not as `null`."""

    def few_numbers(self) -> bytes | None:
        """Its JSON, if that is made in one call; else None."""
        datatype, shape = self.datatype, self.shape
        is_few = 0 < len(self.blob) <= FEW_ELEMENTS * datatype.item_bytes and 0 < len(shape) <= FEW_DIMENSIONS
        if not is_few or self.literals:
            return None
        values: Array = np.ndarray(shape, datatype.wire, self.blob)
        return orjson.dumps(datatype.widen(values), option=_OPTIONS)

    def pieces(self) -> Iterable[bytes | bytearray]:
        """Its JSON."""
        if self.datatype.kind is BYTES:
            return nested_string_pieces(self.blob, self.shape, self.form)
        few = self.few_numbers()
        if few is not None:
            return (few,)
        values = self.datatype.view(self.blob)
        return nested_number_pieces(values, self.datatype, self.shape, literals=self.literals)
