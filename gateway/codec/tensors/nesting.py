"""Whether nested `data` is nested the way its shape says (protocol 4.7).

Brackets that merely balance can still be ragged: `[[1, 2, 3], [4]]` has as many elements as shape [2, 2]. In data of
the right shape, a list at depth d (1 is the outermost) holds shape[d-1] x shape[d] x ... elements. So each of its
brackets stands at a multiple of that number, counted in elements from the front, and there are as many such lists as
the tensor has elements, divided by that number. Both are checked; neither needs to hold the lists. Flat data has one
list, about which there is nothing to check.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from gateway.errors import CodecError

MAX_DEPTH = 64
"""The most brackets that may be open at once in a tensor's nested `data`; tensors have at most 32 dimensions."""

_COMMA, _OPEN, _CLOSE = b",[]"


@dataclass(frozen=True, slots=True)
class Brackets:
    """The brackets in a piece of an array of numbers, in order; shape [brackets] each."""

    places: npt.NDArray[np.int64]
    is_open: npt.NDArray[np.bool_]
    depths: npt.NDArray[np.int64]
    """How many lists are open behind each."""
    depth_before: int
    """How many lists are open before the piece."""

    @classmethod
    def of(cls, piece: bytes, depth_before: int) -> "Brackets":
        """Those in *piece*, before which *depth_before* lists are open."""
        codes = np.frombuffer(piece, dtype=np.uint8)
        is_open = codes == _OPEN
        places = np.flatnonzero(is_open | (codes == _CLOSE))
        is_open = is_open[places]
        return cls(places, is_open, depth_before + np.cumsum(np.where(is_open, 1, -1)), depth_before)

    def before(self, place: int) -> "Brackets":
        """Those before *place*."""
        n_brackets = int(np.searchsorted(self.places, place))
        return Brackets(
            self.places[:n_brackets], self.is_open[:n_brackets], self.depths[:n_brackets], self.depth_before
        )

    @property
    def depth(self) -> int:
        """How many lists are open behind the piece."""
        return int(self.depths[-1]) if len(self.depths) else self.depth_before

    @property
    def deepest(self) -> int:
        """How many lists are open at once at most."""
        return max(int(self.depths.max()), self.depth_before) if len(self.depths) else self.depth_before


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
        depths = np.where(is_open, brackets.depths, brackets.depths + 1)
        for level, count in enumerate(np.bincount(depths[is_open]).tolist(), -1):
            if count:
                self._opened[level] += count
        if not self._elements:
            return
        commas = np.flatnonzero(np.frombuffer(text, dtype=np.uint8) == _COMMA)
        if n_values != len(commas) + 1:
            self._fail()  # one of the lists is empty
        elements = element + np.searchsorted(commas, brackets.places) + ~is_open
        if ((elements % self._divisors[depths - 1]) != 0).any():
            self._fail()

    @cached_property
    def _divisors(self) -> npt.NDArray[np.int64]:
        # the sink itself checks how many elements the outermost list has
        return np.array([1, *(min(size, 2**62) for size in self._sizes[1:])])

    def finish(self) -> None:
        """All is read: raise `CodecError` unless there were as many lists as the shape says."""
        if not self._elements:
            return
        for size, opened in zip(self._sizes[1:], self._opened[1:], strict=True):
            if opened and opened != self._elements // size:
                self._fail()

    def _fail(self) -> NoReturn:
        raise CodecError(f"data is nested, but not like the shape {list(self._shape)}")
