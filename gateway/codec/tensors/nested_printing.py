"""Tensors as nested JSON, a piece at a time: lists in lists as the shape says, a scalar bare.

orjson prints arrays of any rank nested. Of a list, one step prints as many items (rows, matrices, ...) as it can, and
where a single item is too much, that is printed in steps in the same way:

    shape [2, 3, 2]       [[   [1,2],[3,4],[5,6]   ],[   [7,8],[9,10],[11,12]   ]]

A list costs orjson as much as two numbers, so it counts as such. Dimensions of 1 at the end ([n, 1]) are printed
without lists, and then each comma becomes `],[`: two times faster, and numpy has no arrays of as many dimensions as
the protocol.
"""

from collections.abc import Iterable, Iterator
from itertools import accumulate
from math import prod
from typing import Any

import msgspec
import numpy as np
import orjson

from gateway.codec.tensors.datatypes import BYTES, Array, Datatype
from gateway.codec.tensors.elements import few_texts
from gateway.codec.tensors.number_printing import (
    BRACKETS_PER_ELEMENT,
    PIECE_ELEMENTS,
    array_text,
    as_texts,
    separator,
)
from gateway.codec.tensors.packed_printing import packed_pieces
from gateway.codec.tensors.string_printing import StringForm, string_pieces
from gateway.errors import CodecError

MAX_EMPTY_LISTS = 4096
"""The most empty lists that a tensor without elements is printed as; a shape may ask for any number of lists."""

LIST_COST = 2
"""What a list costs beside its elements, in elements."""

FEW_ELEMENTS = 256
"""The most numbers that are printed in one call: cutting them into pieces takes five times as long, which is a
twentieth of what a small request costs."""

FEW_DIMENSIONS = 8
"""The most dimensions that these may have; numpy has no arrays of as many as the protocol."""

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
    values: Array, datatype: Datatype, shape: tuple[int, ...], *, literals: bool, piece_elements: int = PIECE_ELEMENTS
) -> Iterator[bytes]:
    """*values* (wire layout, shape [n]) as nested JSON of *shape*, which has some, *piece_elements* in a step.

    NaN and infinities come out as `null`, or with *literals* as `NaN`, `Infinity` and `-Infinity`.
    """
    if not shape:
        yield array_text(values, datatype, literals=literals)[1:-1]
        return
    n_single = next((n for n, dimension in enumerate(shape[:0:-1]) if dimension > 1), len(shape) - 1)
    most = piece_elements // (1 + -(-n_single // BRACKETS_PER_ELEMENT))
    comma = separator(n_single)
    outer, opening = shape[: len(shape) - n_single], b"[" * (1 + n_single)
    for text in _list_pieces(values, datatype, outer, most, opening, literals=literals):
        yield text.replace(b",", comma) if n_single else text
    if n_single:
        yield b"]" * n_single


def _list_pieces(
    values: Array, datatype: Datatype, shape: tuple[int, ...], most: int, before: bytes, *, literals: bool
) -> Iterator[bytes]:
    """As `nested_number_pieces`, with *before* at the front; *most* is how many elements a step prints."""
    item = shape[1:]
    size = prod(item)
    n_items = most // (size + LIST_COST * list_count(item))
    for start in range(0, len(values), size * max(1, n_items)):
        if n_items:
            items = values[start : start + size * n_items].reshape(-1, *item)
            yield b"".join((before, memoryview(array_text(items, datatype, literals=literals))[1:-1]))
        else:
            list_values = values[start : start + size]
            yield from _list_pieces(list_values, datatype, item, most, before + b"[", literals=literals)
        before = b","
    yield b"]"


def repeated(item: bytes, shape: tuple[int, ...]) -> bytes:
    """*item* in the place of each element of *shape*."""
    for dimension in reversed(shape):
        item = b"[%b]" % b",".join([item] * dimension)
    return item


# Strings, and both


def nested_string_pieces(blob: memoryview, shape: tuple[int, ...], form: StringForm) -> Iterator[bytes | bytearray]:
    """The elements of *blob* as nested JSON of *shape*, which has some; UTF-8 for a text."""
    yield b"[" * len(shape)
    yield from string_pieces(blob, form, shape)
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
    number_form: StringForm | None = None
    """Of numbers: TEXT, each as a text, or BASE64, see `packed_printing`; None: as numbers."""

    @property
    def strings_shape(self) -> tuple[int, ...]:
        """The shape of the nested JSON: of numbers in base64 without the last dimension, which is in the texts."""
        return self.shape[:-1] if self.number_form is StringForm.BASE64 else self.shape

    def few(self) -> bytes | None:
        """Its JSON, if that is made in one call; else None."""
        datatype, shape = self.datatype, self.shape
        if self.literals or not self.blob or not 0 < len(shape) <= FEW_DIMENSIONS:
            return None
        if datatype.kind is BYTES:
            items: Any = few_texts(self.blob, prod(shape)) if self.form is StringForm.TEXT else None
            for size in shape[:0:-1] if items is not None else ():
                items = [items[start : start + size] for start in range(0, len(items), size)]
            return None if items is None else orjson.dumps(items)
        if len(self.blob) > FEW_ELEMENTS * datatype.item_bytes or self.number_form is StringForm.BASE64:
            return None
        text = orjson.dumps(datatype.widen(np.ndarray(shape, datatype.wire, self.blob)), option=_OPTIONS)
        return text if self.number_form is None else as_texts(text)

    def pieces(self) -> Iterable[bytes | bytearray]:
        """Its JSON."""
        few = self.few()
        if few is not None:
            return (few,)
        shape = self.strings_shape
        if 0 in shape:
            return (repeated(b"[]", shape[: shape.index(0)]),)
        if self.datatype.kind is BYTES:
            return nested_string_pieces(self.blob, shape, self.form)
        if self.number_form is StringForm.BASE64:
            row_bytes = self.datatype.item_bytes * prod(self.shape[-1:])
            return packed_pieces(self.blob, row_bytes, shape)
        values = self.datatype.view(self.blob)
        if self.number_form is None:
            return nested_number_pieces(values, self.datatype, shape, literals=self.literals)
        most = PIECE_ELEMENTS // 2  # the quotes take as long as the numbers
        pieces = nested_number_pieces(values, self.datatype, shape, literals=self.literals, piece_elements=most)
        return map(as_texts, pieces)
