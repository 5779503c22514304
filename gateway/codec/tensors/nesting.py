"""Whether nested `data` is nested the way its shape says (protocol 4.7).

Brackets that merely balance can still be ragged: `[[1, 2, 3], [4]]` has as many elements as shape [2, 2]. In data of
the right shape, a list at depth d (1 is the outermost) holds shape[d-1] x shape[d] x ... elements. So each of its
brackets stands at a multiple of that number, counted in elements from the front, and there are as many such lists as
the tensor has elements, divided by that number. Both are checked; neither needs to hold the lists. Flat data has one
list, about which there is nothing to check.
"""

import math
from dataclasses import dataclass
from itertools import chain
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from gateway.errors import CodecError

MAX_DEPTH = 64
"""The most brackets that may be open at once in a tensor's nested `data`; tensors have at most 32 dimensions."""

_CLOSING_BYTES = 256  # where more stand between a value and the comma behind it, it is only slower
_COMMA, _OPEN, _CLOSE = b",[]"


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


def lists_per_element(shape: tuple[int, ...]) -> float:
    """How many inner lists there are for each element of data that is nested in full; 0 without elements."""
    if not math.prod(shape):
        return 0
    return sum(1 / math.prod(shape[depth:]) for depth in range(1, len(shape)))


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

    def read(self, text: bytes, brackets: Brackets, element: int, n_values: int) -> None:
        """`open` and `close` for the *brackets* of *text*, which has *n_values* numbers; *element* is the first's."""
        is_open = brackets.is_open
        if not len(is_open):
            return
        depths = brackets.after + ~is_open
        for depth, count in enumerate(np.bincount(depths[is_open]).tolist()):
            if count:
                self._opened[depth - 1] += count
        if not self._elements:
            return
        # 32 bits are enough for a piece, and keep the sums of all its bytes in a cache
        commas = np.cumsum((np.frombuffer(text, dtype=np.uint8) == _COMMA).view(np.uint8), dtype=np.int32)
        if n_values != commas[-1] + 1:
            self._fail()  # one of the lists is empty
        elements = commas.take(brackets.places) + ~is_open
        # the sink itself checks how many elements the outermost list has
        for depth in range(2, int(depths.max()) + 1):
            size = min(self._sizes[depth - 1], 2**62)
            at_depth = elements[depths == depth].astype(np.int64) + element
            if size > 1 and (at_depth // size * size != at_depth).any():
                self._fail()

    def full_depth(self, element: int) -> int:
        """How many lists are open before *element*, and behind the comma before it, in data that is nested in full."""
        if element in (0, self._elements):
            return 0
        return 1 + sum(element % size > 0 for size in self._sizes[1 : len(self._shape)])

    def n_lists_in_full(self, tree: Any, element: int, n_values: int) -> int:
        """How many lists data has that is nested in full; 0 if those of *tree* do not have the lengths that it has.

        *tree* is a piece as it was parsed, between brackets for the lists that are open before and behind it: lists of
        lists with *n_values* values in all, of which *element* is the first. Whether the innermost have lists in place
        of values is for the caller to see.
        """
        if not n_values:
            return 0
        end = element + n_values
        length_of = type(tree).__len__  # refuses what is no list
        n_lists = 0
        level = [tree]
        for dimension, size in zip(self._shape, self._sizes[1:], strict=False):
            if n_lists:
                level = list(chain.from_iterable(level))
            n_lists += len(level)
            first, behind = element // size, -(-end // size)
            head = min(dimension - first % dimension, behind - first)
            n_full, tail = divmod(behind - first - head, dimension)
            try:
                if list(map(length_of, level)) != [head, *[dimension] * n_full, *[tail] * (tail > 0)]:
                    return 0
            except TypeError:
                return 0
        return n_lists

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
