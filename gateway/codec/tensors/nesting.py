"""How nested `data` is nested: as a shape says (protocol 4.7), or in a way that says the shape.

Brackets that merely balance can still be ragged: `[[1, 2, 3], [4]]` has as many elements as shape [2, 2]. In data of a
shape, a list at depth d (1 is the outermost) holds shape[d-1] x shape[d] x ... elements: its size. So each of its
brackets stands at a multiple of the size, counted in elements from the front, and there are as many lists at depth d as
the tensor has elements, divided by the size. Both are checked without holding the lists. Flat data has one list, about
which there is nothing to check. Where no shape is known, the first list that ends at each depth tells the size.

`Layout` counts lists in two ways. `open` and `close` take one bracket: of strings, and of lists without elements.
`take` takes all the lists of many elements that are nested in full, as `flatten` or `fits` has proved for a piece.
"""

import math
import re
from itertools import chain, pairwise
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from gateway.codec.tensors.pieces import SPACE
from gateway.errors import CodecError

MAX_DEPTH = 64
"""The most brackets that may be open at once in a tensor's nested `data`; tensors have at most 32 dimensions."""

LONG_LIST = 64
"""The lengths of lists of so many elements are taken from the parser; in shorter ones, commas are looked for."""

_CLOSING_BYTES = 256  # where more stand between a value and the comma behind it, it is only slower
_COMMA, _OPEN, _CLOSE, _BLANK = b",[] "
_BRACKET = re.compile(rb"[\[\]]")
_OPENING = re.compile(rb"[\[ \t\r\n]*+")
_BRACKET_OR_SPACE = b"]" + SPACE
_NO_PLACES = np.empty(0, np.int64)


def opening(text: bytearray) -> bytes:
    """The brackets, and blanks, that *text* begins with."""
    found = _OPENING.match(text)
    assert found is not None  # it matches anything
    return found[0]


def occurrences(text: bytes | bytearray, character: bytes) -> int:
    """How often *text* has *character*. `bytes.count` takes ten times as long."""
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) == ord(character)))


def lists_in(tree: Any, rank: int) -> tuple[list[list[int]], list[Any]]:
    """The lengths of the lists in *tree*, by depth from the outermost on, and the lists at depth *rank*.

    Raises `TypeError` where something else stands among them.
    """
    length_of = type(tree).__len__  # refuses what is no list
    level = [tree]
    lengths = [list(map(length_of, level))]
    for _ in range(1, rank):
        level = list(chain.from_iterable(level))
        lengths.append(list(map(length_of, level)))
    return lengths, level


def closing(text: bytearray, end: int) -> bytearray:
    """The brackets, and blanks, that text[:end] ends with; no more than `_CLOSING_BYTES`."""
    tail = text[max(end - _CLOSING_BYTES, 0) : end]
    return tail[len(tail.rstrip(_BRACKET_OR_SPACE)) :]


class Layout:
    """How many elements of `data` have come, and how their lists are nested: learned while they pass by, or known.

    The first list at each depth tells the size of lists at this depth. All others have to begin and end at multiples of
    the size, and their number has to fit the number of elements: so no list has to be kept. Where there are no
    elements, as in `[[], []]`, the innermost lists are counted instead.

    Methods that take brackets or values raise `CodecError` if lists at the same depth differ in length, or from the
    shape.
    """

    def __init__(self, shape: tuple[int, ...] | None) -> None:
        """With a *shape*, `data` may have fewer brackets than it (flat), or more (around each element)."""
        self.count = 0
        """How many elements have come."""
        self.rank = 0
        """How deep the elements are nested; 0 until the first one, or an empty list, has come."""
        self.depth = 0
        """How many lists are open."""
        self.is_empty = False
        """Whether the innermost lists have no elements."""
        self._shape = shape
        self._most = math.prod(shape) if shape is not None else None
        self._sizes = [0] * (MAX_DEPTH + 2)  # by depth: elements of each list, 0 if not known yet
        self._opened = [0] * (MAX_DEPTH + 2)
        self._opened_at = -1  # before which element the last bracket was that opened a list; -1 for another bracket

    def begin(self, rank: int) -> None:
        """There are *rank* brackets before the first element."""
        self.rank = rank
        self._sizes[2 : rank + 2] = [0] * (rank - 1) + [1]
        if self._shape is not None and rank == len(self._shape):
            self._sizes[2 : rank + 1] = (self._size_in_shape(depth) for depth in range(2, rank + 1))

    def expect(self, n_elements: int) -> None:
        """Raise `CodecError` if the shape has fewer than *n_elements* more elements."""
        if self._most is not None and self.count + n_elements > self._most:
            raise CodecError(f"expected {self._most} elements, got more")

    def open(self) -> None:
        """A list begins."""
        if not self.depth:
            self.rank = 0
        elif self.count and not self.rank:
            self.begin(self.depth)
        depth = self.depth = self.depth + 1
        if depth > MAX_DEPTH:
            raise CodecError(f"data is nested deeper than {MAX_DEPTH}")
        if 0 < self.rank < depth:
            self.fail()
        self._check(depth)
        self._opened[depth] += 1
        self._opened_at = self.count

    @property
    def has_just_opened(self) -> bool:
        """Whether the innermost open list has nothing in it yet."""
        return self._opened_at == self.count

    def value(self) -> None:
        """A value comes next in the innermost open list."""
        if not self.rank:
            self.begin(self.depth)
        elif self.depth != self.rank or self.is_empty:
            self.fail()

    def add(self, n_values: int) -> None:
        """*n_values* come next in the innermost open list. Raises `CodecError` if the shape has fewer."""
        self.expect(n_values)
        self.count += n_values

    def close(self) -> None:
        """The innermost open list ends."""
        depth = self.depth
        if not self.rank:
            self.begin(depth)
        if self.has_just_opened:
            self._close_empty()
        self._opened_at = -1
        self.depth -= 1
        if 1 < depth <= self._n_counted and not self._sizes[depth]:
            size = self._items()
            if self._shape is not None and not self.is_empty and size != self._size_in_shape(depth):
                self.fail()
            self._sizes[depth] = size
        self._check(depth)

    def _close_empty(self) -> None:
        """The list that ends has nothing in it: then no other innermost list may have an element."""
        if self.count or self.depth != self.rank:
            self.fail()
        if not self.is_empty:
            self.is_empty = True
            self._sizes = [0] * len(self._sizes)  # without elements, the shape tells nothing of them

    def _check(self, depth: int) -> None:
        """A list at *depth* may begin or end here."""
        size = self._sizes[depth]
        if size and 1 < depth <= self._n_counted and self._items() % size:
            self.fail()

    def take_empty(self, text: bytes) -> None:
        """Take the brackets in *text*, which has no elements."""
        for bracket in _BRACKET.findall(text):
            if bracket == b"[":
                self.open()
            else:
                self.close()

    def take(self, n_elements: int, depth: int) -> None:
        """Take elements whose lists are as they should be, and behind which *depth* lists are open; as `expect`."""
        self.expect(n_elements)
        end = self.count + n_elements
        first = self.count + (self.depth == self.rank)  # where all lists are open, those that begin here are counted
        for list_depth in range(1, self.rank + 1):
            size = self._sizes[list_depth]
            self._opened[list_depth] += -(-end // size) - -(-first // size) if size else not first
        self.count = end
        self.depth = depth

    def finish(self) -> tuple[int, ...]:
        """All is read: the shape, which the lists tell where it was not known."""
        if self._most is not None and self.count != self._most:
            raise CodecError(f"expected {self._most} elements, got {self.count}")
        sizes = [self._items(), *self._sizes[2 : self._n_counted + 1]]
        for size, opened in zip(sizes[1:], self._opened[2:], strict=False):
            if size * opened != sizes[0]:
                self.fail()
        if self._shape is not None:
            return self._shape
        if self.is_empty and self.rank == 1:
            return (0,)
        shape = (*(outer // inner for outer, inner in pairwise(sizes)), sizes[-1])
        return (*shape, 0) if self.is_empty else shape

    @property
    def depth_before(self) -> int:
        """How many lists are open before the next element and the brackets that it may be behind."""
        if not self.count:
            return 0
        return self._depth_behind(self._sizes[: self.rank + 1], self.count)

    def has_long_lists(self, text: bytearray, limit: int) -> bool:
        """Whether the innermost lists have `LONG_LIST` elements or more; if not known, the first in text[:limit] tells.

        *text* begins with the next element, or the brackets before it.
        """
        length = self._inner_length(text, limit)
        return not 0 < length < LONG_LIST

    def _inner_length(self, text: bytearray, limit: int) -> int:
        if self._sizes[self.rank]:
            return self._sizes[self.rank]
        end = text.find(b"]", 0, limit)
        return self.count + text.count(b",", 0, end) + 1 if end >= 0 else 0

    def flatten(self, text: bytearray, end: int, depth: int) -> bytearray | None:
        """The piece text[:end] as one list, if its lists begin and end where they have to; None if that is not seen.

        The piece begins with the next element and the brackets before it, and *depth* lists are open behind it.
        Lengths that are not known are learned from the first lists that end in it. There may be a blank behind each
        comma, as in `[[1, 2], [3, 4]]`, or none. What is neither bracket nor comma is for the parser to judge; it
        refuses commas without a number beside them, too.
        """
        head, tail = opening(text), closing(text, end)
        if self.depth_before + head.count(b"[") != self.rank or depth + tail.count(b"]") != self.rank:
            return None
        # the blank is for brackets that are looked for behind a comma without a number
        flat = bytearray().join((b"[", memoryview(text)[len(head) : end - len(tail)], b" ]"))
        is_blanked = self._blank_lists(flat, self._inner_length(text, end), depth)
        return flat if is_blanked and flat.find(b"[", 1) < 0 else None

    def _blank_lists(self, flat: bytearray, inner_length: int, depth: int) -> bool:
        """Replace the brackets inside of *flat* with blanks; whether they are where lists have to begin and end.

        *inner_length* is that of the innermost lists, 0 if it is not known.
        """
        codes = np.frombuffer(flat, np.uint8)
        gap = int(flat.startswith(b", ", flat.find(b",")))
        sizes = self._sizes[: self.rank + 1]
        sizes[-1] = inner_length
        is_single = inner_length == 1
        n_commas = _blank_single_lists(codes, gap) if is_single else 0
        if n_commas is None:
            return False
        commas = _NO_PLACES
        if not is_single or flat.find(b"[", 1) >= 0:  # else no other lists begin in it
            commas = _places(codes, _COMMA)
            n_commas = len(commas)
        end = self.count + n_commas + 1
        size = 1  # of what ends before each of the commas: first numbers, then lists, from the innermost outward
        for list_depth in range(self.rank - is_single, 1, -1):
            n_brackets = self.rank - list_depth + 1
            n_before = self.count // size
            if not sizes[list_depth]:
                ends = np.flatnonzero(codes[commas - n_brackets] == _CLOSE)
                if not len(ends) and depth >= list_depth:
                    break
                sizes[list_depth] = (n_before + int(ends[0]) + 1) * size if len(ends) else end
            if sizes[list_depth] % size:
                return False
            n_items = sizes[list_depth] // size
            commas = commas[(-n_before - 1) % n_items :: n_items]
            size = sizes[list_depth]
            closing_places, opening_places = commas - n_brackets, commas + (gap + n_brackets)
            if (codes[closing_places] != _CLOSE).any() or (codes[opening_places] != _OPEN).any():
                return False
            codes[closing_places] = codes[opening_places] = _BLANK
        return self._settle(sizes, end, depth)

    def fits(self, lengths: list[list[int]], n_values: int, depth: int) -> bool:
        """Whether the lists in a piece as it was parsed begin and end where they have to; *lengths* as of `lists_in`.

        The piece has brackets for the lists that are open before it and for the *depth* ones that are behind it, and
        *n_values* values. Lengths that are not known are learned from the first lists that end in it.
        """
        end = self.count + n_values
        sizes = self._sizes[: self.rank + 1]
        size = 1
        for list_depth in range(self.rank, 0, -1):
            found = lengths[list_depth - 1]
            first, behind = (self.count // size, -(-end // size)) if size else (0, 1)
            if list_depth > 1 and not sizes[list_depth] and (len(found) > 1 or depth < list_depth):
                sizes[list_depth] = (first + found[0]) * size
            head, n_full, tail, length = behind - first, 0, 0, 0
            if sizes[list_depth]:
                length = sizes[list_depth] // size
                head = min(length - first % length, head)
                n_full, tail = divmod(behind - first - head, length)
            if found != [head, *[length] * n_full, *[tail] * (tail > 0)]:
                return False
            size = sizes[list_depth]
        return self._settle(sizes, end, depth)

    def _settle(self, sizes: list[int], end: int, depth: int) -> bool:
        """Keep the *sizes* of lists, by depth, if with these *depth* are open behind the elements before *end*."""
        if self._depth_behind(sizes, end) != max(depth, 1):
            return False
        if self._shape is not None:
            for list_depth in range(2, self.rank + 1):
                if sizes[list_depth] and sizes[list_depth] != self._size_in_shape(list_depth):
                    return False
        self._sizes[: self.rank + 1] = sizes
        return True

    @staticmethod
    def _depth_behind(sizes: list[int], end: int) -> int:
        """How many lists of these *sizes*, by depth, are open behind the elements before *end*."""
        return 1 + sum(not size or end % size > 0 for size in sizes[2:])

    def _size_in_shape(self, depth: int) -> int:
        return math.prod((self._shape or ())[depth - 1 :])

    @property
    def _n_counted(self) -> int:
        """The depth of the lists whose items are counted: elements, or empty lists."""
        return self.rank - self.is_empty

    def _items(self) -> int:
        """How many items have come: elements, or empty lists."""
        return self._opened[self.rank] if self.is_empty else self.count

    def fail(self) -> NoReturn:
        """Lists are not as they should be."""
        if self._shape is not None:
            raise CodecError(f"data is nested, but not like the shape {list(self._shape)}")
        raise CodecError("data is ragged: lists at the same depth have different lengths, or values stand beside lists")


def _places(codes: npt.NDArray[np.uint8], code: int) -> npt.NDArray[np.int64]:
    """Where *code* stands in *codes*, if not twice in a row.

    Numpy finds every tenth byte with branches, which are guessed wrong, but every fifth pair of bytes without.
    """
    is_here = np.zeros(len(codes) + len(codes) % 2, np.bool_)
    np.equal(codes, code, out=is_here[: len(codes)])
    places = np.flatnonzero(is_here.view(np.uint16) != 0) * 2
    return places + is_here.take(places + 1)


def _blank_single_lists(codes: npt.NDArray[np.uint8], gap: int) -> int | None:
    """Replace the brackets on both sides of all commas with blanks: how many commas; None if some have no brackets."""
    is_comma = codes == _COMMA
    n_commas = int(np.count_nonzero(is_comma))
    is_closed = is_comma[1:] & (codes[:-1] == _CLOSE)
    is_opened = is_comma[: -1 - gap] & (codes[1 + gap :] == _OPEN)
    if not n_commas == np.count_nonzero(is_closed) == np.count_nonzero(is_opened):
        return None
    codes[:-1] -= is_closed.view(np.uint8) * np.uint8(_CLOSE - _BLANK)
    codes[1 + gap :] -= is_opened.view(np.uint8) * np.uint8(_OPEN - _BLANK)
    return n_commas
