"""Tensors as nested JSON, a piece at a time: lists in lists as the shape says, a scalar bare.

Numbers. orjson prints arrays of any rank nested. A list whose items (rows, matrices, ...) are short is printed a run of
items at a time, each run without the brackets around it; one whose items are longer than a step prints is printed item
by item, and so on inward:

    shape [2, 3, 2]       [[   [1,2],[3,4],[5,6]   ],[   [7,8],[9,10],[11,12]   ]]

A list costs orjson as much as two numbers, so it counts as such. Dimensions of 1 at the end ([n, 1]) are printed
without lists, and then each comma becomes `],[`: two times faster. Numbers of 8 and 16 bits are printed by tables of
their texts where that is faster (`_Table`).

Nested strings are printed as flat ones are, in `string_printing`, but with `"],["` between two strings where a list
ends. This separator is longer than the four bytes of a length. So a control character, which JSON text never has, is
put in the length's place first, and then replaced by the rest of the separator.

Elements in `{"b64": "..."}`, the form of TensorFlow for octets, are strings in base64 with longer separators.

Not here: rows of several tensors (`row_printing`), flat data (`number_printing`, `string_printing`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate, chain, groupby
from math import prod

import numpy as np
import numpy.typing as npt
import orjson

from gateway.codec.tensors import string_printing
from gateway.codec.tensors.datatypes import DATATYPES, Array, Datatype
from gateway.codec.tensors.elements import LENGTH, RUN_STEP_ELEMENTS
from gateway.codec.tensors.number_printing import PIECE_ELEMENTS, TABLES, array_text, text_table, with_literals
from gateway.errors import CodecError

MAX_EMPTY_LISTS = 4096
"""The most empty lists that a tensor without elements is printed as; a shape may ask for any number of lists."""

LIST_COST = 2
"""What a list costs beside its elements, in elements."""

MAX_SHORT_LIST = 16
"""The longest list of numbers of 8 bits for which a table is faster than orjson: 2 to 6 times for short ones."""

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
    comma = _separator(n_single)

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
    yield from _list_pieces(outer, 0, comma, 1 + -(-n_single // _BRACKETS_PER_ELEMENT), text_of)
    yield b"]" * (len(shape) - len(outer) + 1)


def _list_pieces(
    shape: tuple[int, ...],
    first: int,
    comma: bytes,
    element_cost: int,
    text_of: Callable[[int, int, tuple[int, ...]], memoryview],
) -> Iterator[bytes]:
    """The inside of a list of *shape* that begins with the element *first*, in pieces of items or parts of them."""
    n_items, item = shape[0], shape[1:]
    size = prod(item)
    cost = size * element_cost + LIST_COST * list_count(item)
    if item and cost > PIECE_ELEMENTS:
        for start in range(first, first + n_items * size, size):
            yield b"[" if start == first else comma + b"["
            yield from _list_pieces(item, start, comma, element_cost, text_of)
            yield b"]"
        return
    n_pieces = -(-n_items // (PIECE_ELEMENTS // cost or 1))  # all of about the same length
    step = -(-n_items // n_pieces) * size
    end = first + n_items * size
    for start in range(first, end, step):
        text = text_of(start, min(start + step, end), item)
        yield b"".join((comma, text)) if start > first else bytes(text)


def _empty(shape: tuple[int, ...]) -> bytes:
    text = b"[]"
    for dimension in reversed(shape[: shape.index(0)]):
        text = b"[%b]" % b",".join([text] * dimension)
    return text


def _separator(n_lists: int) -> bytes:
    """What stands where so many lists end and others begin."""
    return b"]" * n_lists + b"," + b"[" * n_lists


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
            separators[::list_rows] = _separator(n_lists).ljust(before + 1, self.fill)
        separators[0] = (b"[" * (depth + 1)).ljust(before + 1, self.fill)
        printed = text.tobytes()
        return (printed.translate(None, b"\0") if self.fill == b"\0" else printed) + b"]" * (depth + 1)


_TABLES = {name: _Table(texts, b"\0") for name, texts in TABLES.items()} | {
    name: _Table(text_table(DATATYPES[name], b" "), b" ") for name in ("UINT8", "INT8", "BOOL")
}


# Strings


class StringForm(Enum):
    """How an element of BYTES is written: a string of text, one in base64, or an object with one in base64."""

    TEXT = "text"
    BASE64 = "base64"
    B64_OBJECT = "b64"

    @property
    def opening(self) -> bytes:
        """What stands before the text."""
        return b'{"b64":"' if self is StringForm.B64_OBJECT else b'"'

    @property
    def closing(self) -> bytes:
        """What stands behind the text."""
        return b'"}' if self is StringForm.B64_OBJECT else b'"'


def nested_string_pieces(blob: memoryview, shape: tuple[int, ...], form: StringForm) -> Iterator[bytes | bytearray]:
    """The elements of *blob* as nested JSON of *shape*, which `check_nestable` has approved; UTF-8 for a text."""
    if 0 in shape:
        yield _empty(shape)
        return
    if shape:
        yield b"[" * len(shape)
    print_all = string_printing.text_pieces if form is StringForm.TEXT else string_printing.base64_pieces
    yield from print_all(blob, _Lists(shape, form))
    if shape:
        yield b"]" * len(shape)


class _Lists(string_printing.Separators):
    """What stands between strings that are nested: more where lists end and others begin.

    A list of n elements begins at every n-th element. The *kind* of the separator before an element is how many sizes
    of lists divide the element's number. Kind 0 is inside a list. There are at most 32 other kinds: elements have less
    than 2^32 bytes, and a shape's larger sizes are multiples of its smaller ones.
    """

    def __init__(self, shape: tuple[int, ...], form: StringForm) -> None:
        self.closing = form.closing
        self._opening = form.opening
        self._sizes: list[int] = []
        n_lists = [0]
        for size, group in groupby(prod(shape[axis:]) for axis in range(len(shape) - 1, 0, -1)):
            self._sizes.append(size)
            n_lists.append(n_lists[-1] + len(list(group)))
        self._texts = [form.closing + _separator(n) + form.opening for n in n_lists]
        self._words = np.array(
            [LENGTH.unpack(b'", "' if n == 0 else b'"] ' + bytes([kind]))[0] for kind, n in enumerate(n_lists)], "<u4"
        )
        # the quote and a bracket are in the word
        self._rests = [text[2:] for text in self._texts]
        always = n_lists[1] if 1 in self._sizes else 0
        self.most_elements = RUN_STEP_ELEMENTS // (1 + always // _BRACKETS_PER_ELEMENT)

    def words(self, first: int, n_elements: int) -> npt.NDArray[np.uint32]:
        """See `Separators.words`."""
        return self._words.take(self._kinds(first, n_elements))

    def finish(self, text: bytearray, first: int) -> bytes | bytearray:
        """See `Separators.finish`."""
        for kind, rest in enumerate(self._rests):
            if kind and text.find(kind) >= 0:
                text = text.replace(bytes([kind]), rest)
        return text if first else text[3:]

    def join_strings(self, elements: list[bytes], first: int) -> bytes:
        """See `Separators.join_strings`."""
        texts = self.before(first, len(elements))
        strings = [orjson.dumps(str(element, "utf-8"))[1:-1] for element in elements]
        return b"".join(chain.from_iterable(zip(texts, strings, strict=True)))

    def before(self, first: int, n_elements: int) -> list[bytes]:
        """See `Separators.before`."""
        texts = [self._texts[kind] for kind in self._kinds(first, n_elements).tolist()]
        if not first:
            texts[0] = self._opening
        return texts

    def _kinds(self, first: int, n_elements: int) -> npt.NDArray[np.uint8]:
        kinds = np.zeros(n_elements, np.uint8)
        for size in self._sizes:
            kinds[-first % size :: size] += 1
        if not first:
            kinds[0] = 0
        return kinds
