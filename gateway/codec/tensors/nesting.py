"""Whether nested `data` is nested the way its shape says (protocol 4.7).

Brackets that merely balance can still be ragged: `[[1, 2, 3], [4]]` has as many elements as shape [2, 2]. In data of
the right shape, a list at depth d (1 is the outermost) holds shape[d-1] x shape[d] x ... elements. So each of its
brackets stands at a multiple of that number, counted in elements from the front, and there are as many such lists as
the tensor has elements, divided by that number. Both are checked; neither needs to hold the lists. Flat data has one
list, about which there is nothing to check.
"""

import math
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from gateway.errors import CodecError

MAX_DEPTH = 64
"""The most brackets that may be open at once in a tensor's nested `data`; tensors have at most 32 dimensions."""

FEW_BRACKETS = 16
"""Up to here, looking at one after the other costs less than calls of numpy."""

_CLOSING_BYTES = 256  # where more stand between a value and the comma behind it, it is only slower
_COMMA, _OPEN, _CLOSE, _BLANK = b",[] "


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


def n_closed(text: bytes | bytearray, end: int) -> int:
    """How many lists are closed where text[:end] ends, with blanks between the brackets or none."""
    tail = text[max(end - _CLOSING_BYTES, 0) : end]
    return tail.count(b"]", len(tail.rstrip(b"] \t\r\n")))


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

    `read` takes any text. `skeleton` and `fits` are for elements whose lists are known, and cost less.
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
    def is_known(self) -> bool:
        """Whether the lengths of all lists are known but for the outermost."""
        return 0 not in self._sizes[2 : self.rank + 1]

    @property
    def is_empty(self) -> bool:
        """Whether the innermost lists have no elements, as far as is read."""
        return self._is_empty

    @property
    def n_known(self) -> int:
        """Of how many depths, from the innermost, the length of lists is known; all but the outermost may be."""
        return next((self.rank - depth for depth in range(self.rank, 1, -1) if not self._sizes[depth]), self.rank - 1)

    @property
    def inner_length(self) -> int:
        """How many elements each of the innermost lists has; 0 if not known."""
        return self._sizes[self.rank]

    def depth_before(self, element: int) -> int:
        """How many lists are open before *element* and the brackets that it may be behind."""
        if not element:
            return 0
        return 1 + sum(not size or element % size > 0 for size in self._sizes[2 : self.rank + 1])

    def first_unknown(self, text: bytearray, limit: int) -> int:
        """Where the first list ends in text[:limit] of those whose lengths are not known; -1 if none does.

        It may miss one where there are blanks between brackets.
        """
        if self.is_known:
            return -1
        n_known = self.n_known
        if not n_known:
            return text.find(b"]", 0, limit)
        is_close = np.frombuffer(text, np.uint8, limit) == _CLOSE
        for _ in range(n_known):
            is_close = is_close[1:] & is_close[:-1]
        place = int(is_close.argmax()) if len(is_close) else 0
        return place if is_close[place : place + 1].any() else -1

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

    def is_in_one_list(self, first: int, end: int) -> bool:
        """Whether the elements from *first* to the one before *end* are in one of the lists around the innermost."""
        size = self._sizes[self.rank - 1] if self.rank > 2 else 0
        return not size or first // size == (end - 1) // size

    def skeleton(self, first: int, end: int, element: bytes = b"") -> bytes:
        """The brackets and commas between element *first* and the one before *end*, with *element* for each of them."""
        return self._inside(1, first, end, element)

    def _inside(self, depth: int, first: int, end: int, element: bytes) -> bytes:
        """As `skeleton`, without what opens and closes lists of *depth*, in which elements are counted."""
        if depth == self.rank:
            return (element + b",") * (end - first - 1) + element
        size = self._sizes[depth + 1]
        if not size:
            return self._inside(depth + 1, first, end, element)
        before, behind = first // size, (end - 1) // size
        first -= before * size
        end -= behind * size
        if before == behind:
            return self._inside(depth + 1, first, end, element)
        between = b"]" * (self.rank - depth) + b"," + b"[" * (self.rank - depth)
        whole = self._inside(depth + 1, 0, size, element) + between if behind - before > 1 else b""
        head = self._inside(depth + 1, first, size, element)
        return b"".join((head, between, whole * (behind - before - 1), self._inside(depth + 1, 0, end, element)))

    def fits(self, tree: Any, element: int, n_values: int) -> int:
        """How many lists *tree* has; 0 if their lengths are not those that are known.

        *tree* is a piece as it was parsed, between brackets for the lists that are open before and behind it: lists of
        lists with *n_values* values in all, of which *element* is the first. Whether the innermost have lists in place
        of values is for the caller to see.
        """
        end = element + n_values
        length_of = type(tree).__len__  # refuses what is no list
        n_lists = 0
        level = [tree]
        for depth in range(1, self.rank + 1):
            if n_lists:
                level = list(chain.from_iterable(level))
            n_lists += len(level)
            size, inner = self._sizes[depth], self._sizes[depth + 1]
            first, behind = (element // inner, -(-end // inner)) if inner else (0, 1)
            head, n_full, tail = behind - first, 0, 0
            if size:
                length = size // inner
                head = min(length - first % length, head)
                n_full, tail = divmod(behind - first - head, length)
            lengths = [head, *[size // (inner or 1)] * n_full, *[tail] * (tail > 0)]
            try:
                if list(map(length_of, level)) != lengths:
                    return 0
            except TypeError:
                return 0
        return n_lists

    def learn(self, tree: Any) -> None:
        """Take the first lists of *tree*, which is all data as it was parsed, for those whose lengths all have.

        Raises `CodecError` if their lengths are not those of the shape.
        """
        lengths = [len(tree)]
        for _ in range(1, self.rank):
            tree = tree[0]
            lengths.append(len(tree))
        for depth in range(2, self.rank + 1):
            size = math.prod(lengths[depth - 1 :])
            if size:
                self._learn(depth, size)

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


def n_opening(text: bytes) -> int:
    """How many lists *text* opens. `bytes.count` takes ten times as long."""
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) == _OPEN))


def without_single_lists(text: bytes) -> tuple[bytes, int] | None:
    """*text* as one list, and how many numbers are in it, each in lists of its own if all is well.

    *text* begins and ends with a number: without what opens lists before it and closes them behind it. None if a
    bracket is not between two of the numbers as in `1],[2` or `1], [2`. What stands between brackets or commas must be
    one number, which is for the parser to see; it also sees commas without brackets, as there are more numbers then.
    """
    codes = np.frombuffer(text, dtype=np.uint8)
    is_open, is_close, is_comma = codes == _OPEN, codes == _CLOSE, codes == _COMMA
    width = 2 if b"], [" in text[:_CLOSING_BYTES] else 1
    is_between = is_close[: -1 - width] & is_comma[1:-width]
    is_between &= is_open[1 + width :]
    n_between = int(np.count_nonzero(is_between))
    if not n_between == np.count_nonzero(is_open) == np.count_nonzero(is_close):
        return None
    blanks = is_open.view(np.uint8) * np.uint8(_OPEN ^ _BLANK)
    blanks ^= is_close.view(np.uint8) * np.uint8(_CLOSE ^ _BLANK)
    blanks ^= codes
    return b"".join((b"[", blanks.data, b"]")), n_between + 1
