"""Whether nested `data` is nested the way its shape says (protocol 4.7).

Brackets that merely balance can still be ragged: `[[1, 2, 3], [4]]` has as many elements as shape [2, 2]. In data of
the right shape, a list at depth d (1 is the outermost) holds shape[d-1] x shape[d] x ... elements. So each of its
brackets stands at a multiple of that number, counted in elements from the front, and there are as many such lists as
the tensor has elements, divided by that number. Both are checked; neither needs to hold the lists. Flat data has one
list, about which there is nothing to check.
"""

import math
from typing import NoReturn

import numpy as np

from gateway.errors import CodecError

MAX_DEPTH = 64
"""The most brackets that may be open at once in a tensor's nested `data`; tensors have at most 32 dimensions."""

_COMMA, _OPEN, _CLOSE = b",[]"


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

    def read(self, text: bytes, depth: int, element: int, n_values: int) -> None:
        """`open` and `close` for all brackets in *text*, which has *n_values* numbers.

        *depth* lists are open before it, and *element* is the number of its first element.
        """
        codes = np.frombuffer(text, dtype=np.uint8)
        opens = codes == _OPEN
        marks = np.flatnonzero(opens | (codes == _CLOSE))
        if not len(marks):
            return
        is_open = opens[marks]
        after = depth + np.cumsum(np.where(is_open, 1, -1))
        depths = np.where(is_open, after, after + 1)
        levels, counts = np.unique(depths[is_open], return_counts=True)
        for level, count in zip(levels.tolist(), counts.tolist(), strict=True):
            self._opened[level - 1] += count
        if not self._elements:
            return
        commas = np.flatnonzero(codes == _COMMA)
        if n_values != len(commas) + 1:
            self._fail()  # one of the lists is empty
        elements = element + np.searchsorted(commas, marks) + ~is_open
        if ((elements % self._divisors()[depths - 1]) != 0).any():
            self._fail()

    def _divisors(self) -> np.ndarray:
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
