"""How nested `data` is nested: as a shape says (protocol 4.7), or in a way that says the shape.

Brackets that merely balance can still be ragged: `[[1, 2, 3], [4]]` has as many elements as shape [2, 2]. So all lists
at one depth must have one length: the one that the shape says, or that of the first of them. Data comes in pieces, and
of each piece the lengths of its lists are known by depth, from the outermost on:

    the piece, completed    [[3],[4,5,6],[7,8]]     behind [[1,2], one list goes on and one is left open
    their lengths           [3], [1,3,2]

`lists_in` takes them from the lists that a parser made. Where these are short, one object of Python for each costs more
than the numbers in it; there `short_lists` takes them from the brackets and commas alone. `Layout` holds what the
pieces before had.
"""

import math
import re
from itertools import chain
from typing import Any, NoReturn

import numpy as np

from gateway.codec.json.members import excerpt
from gateway.codec.json.pieces import NOT_SPACE
from gateway.codec.json.prover import Prover
from gateway.errors import CodecError

MAX_DEPTH = 64
"""The most brackets that may be open at once in a tensor's nested `data`; tensors have at most 32 dimensions."""

_OPENING = re.compile(rb"[\[ \t\r\n]*+")
_BESIDE_LISTS = bytes(byte for byte in range(256) if byte not in b"[],")


def blanks_before_array(buffer: bytearray, window: int) -> int:
    """How many blanks *buffer* begins with. Raises `CodecError` if something else than an array follows them."""
    first = NOT_SPACE.search(buffer, 0, window)
    if first is None:
        return 0
    if first[0] != b"[":
        raise CodecError(f"data must be an array, got {excerpt(bytes(buffer[first.start() : window]))}")
    return first.start()


def n_opened(text: bytes | bytearray) -> int:
    """How many lists *text* begins with."""
    opening = _OPENING.match(text)
    assert opening is not None  # it matches anything
    return opening[0].count(b"[")


def occurrences(text: bytes | bytearray, character: bytes) -> int:
    """How often *text* has *character*. `bytes.count` takes ten times as long."""
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) == ord(character)))


def completed(text: bytes | bytearray | memoryview, before: int, behind: int) -> bytes:
    """*text* with *before* brackets that open lists before it and *behind* brackets that close lists behind it."""
    return b"".join((b"[" * before, text, b"]" * behind))


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


def short_lists(text: bytes, rank: int, n_values: int) -> list[list[int]] | None:
    """The lengths of the lists in *text*, *n_values* nested numbers that a parser has read, by depth.

    At each depth all lists but the first and the last must be alike, and the result has only one of these. None for
    any other text. From the innermost lists on, a mark takes the place of each list: [[,,],[,,],[,]] are [3,3,3].
    """
    structure = text.translate(None, _BESIDE_LISTS)
    if occurrences(structure, b",") + 1 != n_values:
        return None
    lengths: list[list[int]] = []
    item = b""
    for depth in range(rank, 0, -1):
        first_end, last_start = structure.find(b"]") + 1, structure.rfind(b"[")
        lists = [structure[depth - 1 : first_end]]
        mark = bytes([128 + depth])
        outer = mark
        if last_start >= first_end:
            between = structure[first_end:last_start]
            end = between.find(b"]", between.find(b"[")) + 1
            if end:
                common = between[between.rfind(b"[", 0, end) : end]
                lists.append(common)
                n_rows = len(between) // (len(common) + 1)
                if between == (b"," + common) * n_rows + b",":  # at once, where no longer list ends among them
                    between = (b"," + mark) * n_rows + b","
                else:
                    between = between.replace(common, mark)
            lists.append(structure[last_start : len(structure) - depth + 1])
            outer = mark + between + mark
        found = [(len(each) - 1) // (len(item) + 1) for each in lists]
        if any(
            each != b"[%b%b]" % ((item + b",") * (length - 1), item) for each, length in zip(lists, found, strict=True)
        ):
            return None
        lengths.insert(0, found)
        structure = completed(outer, depth - 1, depth - 1)
        item = mark
    return lengths


class Layout:
    """How many elements of `data` have come, and how their lists are nested: learned while they pass by, or known.

    Its methods raise `CodecError` if lists at the same depth differ in length, or from the shape.
    """

    def __init__(self, shape: tuple[int, ...] | None) -> None:
        """With a *shape*, `data` may have fewer brackets than it (flat), or more (around each element)."""
        self.count = 0
        """How many elements have come."""
        self.rank = 0
        """How deep the elements are nested; 0 until the first piece has come."""
        self.depth = 0
        """How many lists are open."""
        self._is_scalar = False
        self._shape = shape
        self._most = math.prod(shape) if shape is not None else None
        self._lengths: list[int | None] = []  # of the lists at each depth, the outermost first; None if not known
        self._items: list[int] = []  # how many of them the open lists have

    def begin(self, text: bytes | bytearray) -> None:
        """The data begins with *text*, whose first brackets say how deep it is nested."""
        rank = self.rank = n_opened(text)
        if rank > MAX_DEPTH:
            raise CodecError(f"data is nested deeper than {MAX_DEPTH}")
        self._items = [0] * rank
        self._lengths = [None] * rank
        if self._most and self._shape is not None and rank > 1:
            dimensions = (*self._shape, *[1] * rank)
            self._lengths[1:] = (*dimensions[1 : rank - 1], math.prod(self._shape[rank - 1 :]))

    def listed(self, text: bytes) -> bytes:
        """*text*, a piece of the data; a scalar is read as the only element of a list."""
        self._is_scalar = not text.startswith(b"[")
        if self._is_scalar:
            text = b"[%b]" % text
        if not self.rank:
            self.begin(text)
        return text

    def expect(self, n_elements: int) -> None:
        """Raise `CodecError` if the shape has fewer than *n_elements* more elements."""
        if self._most is not None and self.count + n_elements > self._most:
            raise CodecError(f"expected {self._most} elements, got more")

    def items_in(self, tree: Any) -> tuple[list[list[int]], list[Any]]:
        """The lengths of the lists in *tree*, which the standard library made, and what is in the innermost ones."""
        try:
            lengths, lists = lists_in(tree, self.rank)
        except TypeError:
            self.fail()
        items = list(chain.from_iterable(lists))
        if list in map(type, items):
            self.fail()
        return lengths, items

    def lengths_in(self, tree: Any, text: bytes) -> list[list[int]]:
        """The lengths of the lists of numbers in *tree*, which the fast parser made of *text*."""
        try:
            lengths, _ = lists_in(tree, self.rank)
        except TypeError:
            self.fail()
        if sum(map(len, lengths)) != occurrences(text, b"["):  # others stand among the numbers
            self.fail()
        return lengths

    def take(self, lengths: list[list[int]], n_elements: int, depth: int) -> None:
        """Take a piece with *n_elements*, behind which *depth* lists are open; *lengths* are those of its lists."""
        self.expect(n_elements)
        for index, found in enumerate(lengths):
            if index < self.depth:  # the first has begun before; what is open in it was counted when it began
                found[0] += self._items[index] - (index + 1 < self.depth)
            self._items[index] = found[-1]
            closed = found[:-1] if index < depth else found
            if closed and self._lengths[index] is None:
                self._lengths[index] = closed[0]
            if index and closed.count(self._lengths[index]) != len(closed):  # type: ignore[arg-type]
                self.fail()
        self.count += n_elements
        self.depth = depth

    def finish(self) -> tuple[int, ...]:
        """All is read: the shape, which the lists tell where it was not known."""
        if self._most is not None and self.count != self._most:
            raise CodecError(f"expected {self._most} elements, got {self.count}")
        if self._is_scalar:
            return ()
        return self._shape if self._shape is not None else tuple(length or 0 for length in self._lengths)

    def fail(self) -> NoReturn:
        """Lists are not as they should be."""
        if self._shape is not None:
            raise CodecError(f"data is nested, but not like the shape {list(self._shape)}")
        raise CodecError("data is ragged: lists at the same depth have different lengths, or values stand beside lists")


class TensorSink(Prover):
    """Takes the `data` of one tensor; the classes below it know what an element is."""

    def __init__(self, label: str, shape: tuple[int, ...] | None) -> None:
        """*label* names the tensor in errors, *shape* says how many elements there are and how they are nested.

        Without a *shape* it is learned from the lists, which must be nested in full; a bare value is a scalar.
        """
        super().__init__(label)
        self._shape = shape
        self._layout = Layout(shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape. Where it is learned from the nesting, it is known when all is `done`."""
        assert self._shape is not None
        return self._shape

    def _end_piece(self, lengths: list[list[int]], n_elements: int, opened: bytes | bytearray) -> None:
        """A piece has been stored that leaves *opened* open; other arguments are those of `Layout.take`."""
        self._layout.take(lengths, n_elements, len(opened))
        self._open = bytearray(opened)
        if not opened:
            self._shape = self._layout.finish()
            self.done = True
