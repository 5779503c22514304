"""How nested `data` is nested: as a shape says (protocol 4.7), or in a way that says the shape.

Brackets that merely balance can still be ragged: `[[1, 2, 3], [4]]` has as many elements as shape [2, 2]. In data of a
shape, a list at depth d (1 is the outermost) holds shape[d-1] x shape[d] x ... elements. So each of its brackets stands
at a multiple of that number, counted in elements from the front, and there are as many such lists as the tensor has
elements, divided by that number. Both are checked; neither needs to hold the lists. Flat data has one list, about which
there is nothing to check. Where no shape is known, the first list that ends at each depth tells its number.

`Nesting` counts one list after the other, for strings. `Layout` takes the numbers of a piece together.
"""

import math
import re
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from gateway.codec.tensors.pieces import SPACE
from gateway.errors import CodecError

MAX_DEPTH = 64
"""The most brackets that may be open at once in a tensor's nested `data`; tensors have at most 32 dimensions."""

FEW_BRACKETS = 16
"""Up to here, looking at one after the other costs less than calls of numpy."""

LONG_LIST = 64
"""The lengths of lists of so many elements are taken from the parser; in shorter ones, commas are looked for."""

_CLOSING_BYTES = 256  # where more stand between a value and the comma behind it, it is only slower
_COMMA, _OPEN, _CLOSE, _BLANK = b",[] "
_OPENING = re.compile(rb"[\[ \t\r\n]*+")
_BRACKET_OR_SPACE = b"]" + SPACE
_NO_PLACES = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Brackets:
    """The brackets in a piece of an array of numbers, in order; arrays of shape [brackets].

    Made of whole arrays: in data of many short lists half of the text is brackets and commas.
    """

    places: npt.NDArray[np.int64]
    is_open: npt.NDArray[np.bool_]
    after: npt.NDArray[np.int32]
    """How many lists are open behind each."""
    depth_before: int
    """How many lists are open before the piece."""

    @classmethod
    def of(cls, piece: bytes, depth_before: int) -> "Brackets":
        """Those in *piece*, before which *depth_before* lists are open."""
        codes = np.frombuffer(piece, dtype=np.uint8)
        places = np.flatnonzero((codes == _OPEN) | (codes == _CLOSE))
        kinds = codes.take(places)
        # _CLOSE - _OPEN is 2: an opening bracket is a step of 1, a closing one of -1
        after = np.cumsum(_OPEN + 1 - kinds.astype(np.int32), dtype=np.int32) + np.int32(depth_before)
        return cls(places, kinds == _OPEN, after, depth_before)

    def before(self, place: int) -> "Brackets":
        """Those before *place*."""
        n_brackets = int(np.searchsorted(self.places, place))
        return Brackets(self.places[:n_brackets], self.is_open[:n_brackets], self.after[:n_brackets], self.depth_before)

    @property
    def depth(self) -> int:
        """How many lists are open behind the piece."""
        return int(self.after[-1]) if len(self.after) else self.depth_before

    @property
    def deepest(self) -> int:
        """How many lists are open at once at most."""
        return max(int(self.after.max()), self.depth_before) if len(self.after) else self.depth_before


def opening(text: bytearray) -> bytes:
    """The brackets, and blanks, that *text* begins with."""
    found = _OPENING.match(text)
    assert found is not None  # it matches anything
    return found[0]


def occurrences(text: bytes | bytearray, character: bytes) -> int:
    """How often *text* has *character*. `bytes.count` takes ten times as long."""
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) == ord(character)))


def closing(text: bytearray, end: int) -> bytearray:
    """The brackets, and blanks, that text[:end] ends with; no more than `_CLOSING_BYTES`."""
    tail = text[max(end - _CLOSING_BYTES, 0) : end]
    return tail[len(tail.rstrip(_BRACKET_OR_SPACE)) :]


class Nesting:
    """Counts the lists of one tensor's `data` at each depth, and checks where they begin and end."""

    def __init__(self, shape: tuple[int, ...], max_depth: int) -> None:
        self._shape = shape
        self._elements = math.prod(shape)
        # by depth from 1; deeper than the shape, every list holds one element
        sizes = [math.prod(shape[depth:]) for depth in range(len(shape))] + [1] * max_depth
        self._sizes = sizes[:max_depth]
        self._opened = [0] * max_depth

    def open(self, depth: int, element: int) -> None:
        """A list begins that makes *depth* lists open, before *element*."""
        self._opened[depth - 1] += 1
        self._check(depth, element)

    def close(self, depth: int, element: int) -> None:
        """The innermost of *depth* open lists ends; *element* would come next."""
        self._check(depth, element)

    def _check(self, depth: int, element: int) -> None:
        if self._elements and depth > 1 and element % self._sizes[depth - 1]:
            self._fail()

    def open_full(self, element: int, end: int) -> None:
        """`open` for the lists that begin with the elements from *element* to *end*, in data that is nested in full."""
        for depth, size in enumerate(self._sizes[: len(self._shape)]):
            self._opened[depth] += -(-end // size) - -(-element // size)

    def finish(self) -> None:
        """All is read: raise `CodecError` unless there were as many lists as the shape says."""
        if not self._elements:
            return
        for size, opened in zip(self._sizes[1:], self._opened[1:], strict=True):
            if opened and opened != self._elements // size:
                self._fail()

    def _fail(self) -> NoReturn:
        raise CodecError(f"data is nested, but not like the shape {list(self._shape)}")


class Layout:
    """How the lists of `data` are nested, learned while they pass by, or known from a shape.

    The first list at each depth tells how many elements lists have there. Each other one has to begin and end at a
    multiple of that number, and there have to be as many as that takes: so no list has to be kept. Where there are no
    elements, as in `[[], []]`, the innermost lists are counted in their place.

    `read` takes any text. `flatten` and `fits` cost less: they compare all lists of a piece with the lengths that are
    expected, and learn those that are not known from the same piece. In short lists commas are counted, and brackets
    have to stand at those where a list ends; the lengths of long lists are those that the parser found.
    """

    def __init__(self, shape: tuple[int, ...] | None) -> None:
        """With a *shape*, `data` may have fewer brackets than it (flat), or more (around each element)."""
        self.rank = 0
        """How deep the elements are nested; 0 until something is read."""
        self._shape = shape
        self._sizes = [0] * (MAX_DEPTH + 2)  # by depth: elements of each list, 0 if not known yet
        self._opened = [0] * (MAX_DEPTH + 2)
        self._is_empty = False

    def begin(self, rank: int) -> None:
        """There are *rank* brackets before the first element."""
        self.rank = rank
        self._sizes[2 : rank + 2] = [0] * (rank - 1) + [1]
        if self._shape is not None and rank == len(self._shape):
            self._sizes[2 : rank + 1] = (self._size_in_shape(depth) for depth in range(2, rank + 1))

    @property
    def is_empty(self) -> bool:
        """Whether the innermost lists have no elements, as far as is read."""
        return self._is_empty

    def depth_before(self, element: int) -> int:
        """How many lists are open before *element* and the brackets that it may be behind."""
        if not element:
            return 0
        return 1 + sum(not size or element % size > 0 for size in self._sizes[2 : self.rank + 1])

    def read(self, text: bytes, brackets: Brackets, element: int, n_values: int) -> None:
        """Take the *brackets* of *text*, a piece with *n_values* numbers, of which *element* is the first.

        A piece has a number or an empty list beside each of its commas, and where it was cut. Raises `CodecError` if
        lists at the same depth differ in length, or from the shape.
        """
        is_open = brackets.is_open
        depths = brackets.after + ~is_open
        if not self.rank or not self._opened[1]:
            self._is_empty = not n_values
            self.begin(int(np.argmin(is_open)) or len(is_open))
        if n_values if self._is_empty else n_values != text.count(b",") + 1:
            self._fail()  # one list is empty, another is not
        if len(depths) and int(depths.max()) > self.rank:
            self._fail()
        if n_values and len(depths) <= FEW_BRACKETS:
            for place, depth, opens in zip(brackets.places.tolist(), depths.tolist(), is_open.tolist(), strict=True):
                at_element = element + text.count(b",", 0, place) + (not opens)
                self._opened[depth] += opens
                if depth > 1 and not opens and not self._sizes[depth]:
                    self._learn(depth, at_element)
                size = self._sizes[depth] if depth > 1 else 0
                if at_element % size if size else opens and at_element:
                    self._fail()
            return
        commas = np.cumsum((np.frombuffer(text, dtype=np.uint8) == _COMMA).view(np.uint8), dtype=np.int32)
        elements = commas.take(brackets.places) + ~is_open
        if self._is_empty:
            is_innermost = is_open & (depths == self.rank)
            elements = np.cumsum(is_innermost, dtype=np.int32)
            element = self._opened[self.rank]
            self._opened[self.rank] += int(np.count_nonzero(is_innermost))
        for depth in range(1, self._n_counted + 1):
            is_here = depths == depth
            ends = elements[is_here & ~is_open]
            at_depth = elements[is_here].astype(np.int64) + element
            is_first = not self._opened[depth] and len(at_depth) > 0
            self._opened[depth] += len(at_depth) - len(ends)
            if is_first and at_depth[0]:
                self._fail()
            if depth == 1:
                continue  # how many elements the outermost list has is checked at the end
            if not self._sizes[depth] and len(ends):
                self._learn(depth, int(ends[0]) + element)
            size = min(self._sizes[depth], 2**62)
            if size > 1 and (at_depth // size * size != at_depth).any():
                self._fail()

    def has_long_lists(self, text: bytearray, limit: int, element: int) -> bool:
        """Whether the innermost lists have `LONG_LIST` elements or more; if not known, the first in text[:limit] tells.

        *text* begins with *element*, or the brackets before it.
        """
        length = self._inner_length(text, limit, element)
        return self.rank > 1 and not 0 < length < LONG_LIST

    def _inner_length(self, text: bytearray, limit: int, element: int) -> int:
        if self._sizes[self.rank]:
            return self._sizes[self.rank]
        end = text.find(b"]", 0, limit)
        return element + text.count(b",", 0, end) + 1 if end >= 0 else 0

    def flatten(self, text: bytearray, end: int, element: int, depth: int) -> bytearray | None:
        """The piece text[:end] as one list, if its lists begin and end where they have to; None if that is not seen.

        The piece begins with *element* and the brackets before it, and *depth* lists are open behind it. Lengths that
        are not known are learned from the first lists that end in it. There may be a blank behind each comma, as in
        `[[1, 2], [3, 4]]`, or none. What is neither bracket nor comma is for the parser to judge; it refuses commas
        without a number beside them, too.
        """
        head, tail = opening(text), closing(text, end)
        n_open = self.depth_before(element)
        if n_open + head.count(b"[") != self.rank or depth + tail.count(b"]") != self.rank:
            return None
        # the blank is for brackets that are looked for behind a comma without a number
        flat = bytearray().join((b"[", memoryview(text)[len(head) : end - len(tail)], b" ]"))
        if self.rank > 1:
            codes = np.frombuffer(flat, np.uint8)
            gap = int(flat.startswith(b", ", flat.find(b",")))
            sizes = self._sizes[: self.rank + 1]
            sizes[-1] = self._inner_length(text, end, element)
            is_single = sizes[-1] == 1
            n_commas = _blank_single_lists(codes, gap) if is_single else 0
            if n_commas is None:
                return None
            commas = _NO_PLACES
            if not is_single or flat.find(b"[", 1) >= 0:  # else no other lists begin in it
                commas = _places(codes, _COMMA)
                n_commas = len(commas)
            end_element = element + n_commas + 1
            size = 1  # of what ends before each of the commas: first numbers, then lists, from the innermost outward
            for list_depth in range(self.rank - is_single, 1, -1):
                n_brackets = self.rank - list_depth + 1
                n_before = element // size
                if not sizes[list_depth]:
                    ends = np.flatnonzero(codes[commas - n_brackets] == _CLOSE)
                    if len(ends):
                        sizes[list_depth] = (n_before + int(ends[0]) + 1) * size
                    elif depth < list_depth:
                        sizes[list_depth] = end_element
                    else:
                        break
                if sizes[list_depth] % size:
                    return None
                n_items = sizes[list_depth] // size
                commas = commas[(-n_before - 1) % n_items :: n_items]
                size = sizes[list_depth]
                if len(commas):
                    closing_places, opening_places = commas - n_brackets, commas + (gap + n_brackets)
                    if (codes[closing_places] != _CLOSE).any() or (codes[opening_places] != _OPEN).any():
                        return None
                    codes[closing_places] = codes[opening_places] = _BLANK
            if not self._settle(sizes, end_element, depth):
                return None
        return None if flat.find(b"[", 1) >= 0 else flat

    def fits(self, tree: Any, n_lists: int, element: int, n_values: int, depth: int) -> bool:
        """Whether lists begin and end where they have to in *tree*, a piece as it was parsed.

        It has brackets for the lists that are open before it and for the *depth* ones that are behind it. There are
        *n_lists* lists and *n_values* numbers in it, of which *element* is the first. Lengths that are not known are
        learned from the first lists that end in it.
        """
        length_of = type(tree).__len__  # refuses what is no list
        level = [tree]
        try:
            lengths = [list(map(length_of, level))]
            for _ in range(1, self.rank):
                level = list(chain.from_iterable(level))
                lengths.append(list(map(length_of, level)))
        except TypeError:
            return False
        if n_lists != sum(map(len, lengths)):
            return False
        end = element + n_values
        sizes = self._sizes[: self.rank + 1]
        size = 1
        for list_depth in range(self.rank, 0, -1):
            found = lengths[list_depth - 1]
            first, behind = (element // size, -(-end // size)) if size else (0, 1)
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
        if 1 + sum(not size or end % size > 0 for size in sizes[2:]) != max(depth, 1):
            return False
        if self._shape is not None:
            for list_depth in range(2, self.rank + 1):
                if sizes[list_depth] and sizes[list_depth] != self._size_in_shape(list_depth):
                    return False
        self._sizes[: self.rank + 1] = sizes
        return True

    def take(self, element: int, end: int) -> None:
        """The lists of the elements from *element* to *end* are as they should be."""
        for depth in range(1, self.rank + 1):
            size = self._sizes[depth]
            self._opened[depth] += -(-end // size) - -(-element // size) if size else not element

    def finish(self, n_elements: int) -> tuple[int, ...]:
        """All is read, *n_elements* in all: the shape. Raises `CodecError` as `read` does."""
        n_counted = self._opened[self.rank] if self._is_empty else n_elements
        sizes = [n_counted, *self._sizes[2 : self._n_counted + 1]]
        for size, opened in zip(sizes[1:], self._opened[2:], strict=False):
            if size * opened != n_counted:
                self._fail()
        if not self._is_empty:
            return (*(outer // inner for outer, inner in pairwise(sizes)), sizes[-1])
        if self.rank == 1:
            return (0,)
        return (*(outer // inner for outer, inner in pairwise(sizes)), sizes[-1], 0)

    def _learn(self, depth: int, size: int) -> None:
        if self._shape is not None and not self._is_empty and size != self._size_in_shape(depth):
            self._fail()
        self._sizes[depth] = size

    def _size_in_shape(self, depth: int) -> int:
        return math.prod((self._shape or ())[depth - 1 :])

    @property
    def _n_counted(self) -> int:
        """The depth of the lists whose items are counted as elements."""
        return self.rank - self._is_empty

    def _fail(self) -> NoReturn:
        if self._shape is not None:
            raise CodecError(f"data is nested, but not like the shape {list(self._shape)}")
        raise CodecError("data is ragged: lists at the same depth have different lengths")


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
