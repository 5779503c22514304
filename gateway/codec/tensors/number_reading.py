"""Tensors of numbers and booleans from JSON text, a piece at a time.

The JSON of a tensor is several times its size, so it is never held: text is converted while it arrives, and each
piece is gone when its numbers are stored. The parser (`number_parsing`) wants a whole JSON array, so pieces are made
into arrays:

    the text so far          [[1,2],[3,            two lists are open
    what has arrived next    4],[5,6],[7,8         cut at its last comma: the number behind it may go on
    what is parsed           [[4],[5,6]]           a bracket for each open list, before it and behind it

Where a number must not end, the parser says so; that brackets and commas are in their places is proved too, but for
the commas at the cuts (`check_cut`) and lists of unequal lengths (`Layout`). A piece of flat data is only searched for
brackets. Of nested data where all lists at a depth have one length, as they should, a few calls prove that
(`Layout.flatten`, `Layout.fits`); any other text is read in small pieces, with a look at each bracket.

The end of the data is found without reading numbers. Inside an array of numbers there is no quote and no brace, so
the array ends at the last `]` before the first of these; if that `]` closes the outermost list, this is the end.
Quoted "NaN" and "Infinity" are the exception; their quotes are taken away before parsing.

Not here: the numbers of one text (`number_parsing`), printing (`number_printing`), BYTES (`string_reading`), where in a
document a tensor stands (`scanner`).
"""

import re
from typing import Any

import numpy as np

from gateway.codec.tensors.datatypes import FLOAT, Array, Datatype, element_count
from gateway.codec.tensors.nesting import MAX_DEPTH, Layout, closing, lists_in, occurrences, opening
from gateway.codec.tensors.number_parsing import (
    TIED_PIECE_BYTES,
    ManyTiesError,
    most_bytes,
    parse,
    parse_fast,
    parse_tolerantly,
    rounded,
)
from gateway.codec.tensors.pieces import NOT_SPACE, SPACE, beginning, check_cut
from gateway.errors import CodecError

BRACKETED_PIECE_BYTES = 64 * 1024
"""How much text is worked on in one step of nested numbers with more blanks than one behind each comma."""

TOLERANT_PIECE_BYTES = 4 * 1024
"""How much text is worked on in one step where every bracket, or every value, is looked at, ten times slower."""

_QUOTE, _COMMA, _END_OBJECT = b'",}'
_TAIL_BYTES = 16  # more blanks than these are behind a bracket hardly ever, and then it is only slower
# A run of quoted non-finite numbers and what stands between them; a key would be followed by a colon.
_QUOTED_NONFINITE = re.compile(rb'(?:(?<![-\w."])"(?:NaN|-?Infinity)"(?=[ \t\r\n]*[,\]])[^"}]*+)+')
_QUOTED = (b'"NaN"', b'"Infinity"', b'"-Infinity"')


class NumberSink:
    """Takes the `data` of one tensor, nested or flat, as bytes of its datatype.

    With a shape, into one array; without one, into an array for each piece, so that none is copied to grow.
    """

    def __init__(self, label: str, datatype: Datatype, shape: tuple[int, ...] | None) -> None:
        """*label* names the tensor in errors. With None, the shape is that of the nesting, see `shape`.

        Raises `CodecError` if this machine has no room for *shape*. The array takes address space, but no memory
        until numbers are stored in it.
        """
        self._arrays: list[Array] = []
        if shape is not None:
            n_elements = element_count(shape)
            try:
                self._arrays.append(np.empty(n_elements, dtype=datatype.wire))
            except (MemoryError, ValueError):
                raise CodecError(
                    f"{label}: there is no memory for {n_elements} elements of {datatype.item_bytes} bytes"
                ) from None
        self.done = False
        self.label = label
        self.nonfinite = 0
        self._datatype = datatype
        self._shape = shape
        self._layout = Layout(shape)
        self._most_bytes = most_bytes()
        self._is_compact = True
        self._window_bytes = self._most_bytes

    @property
    def held_bytes(self) -> int:
        """The part of the array that has been filled; what is only announced takes no memory."""
        return self._layout.count * self._datatype.item_bytes

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape. Where it is learned from the nesting, it is known when all is `done`."""
        assert self._shape is not None
        return self._shape

    def blobs(self) -> list[memoryview]:
        """The bytes on the wire, when all is `done`: one piece if the shape was known, else some, in order."""
        return [array.view(np.uint8).data for array in self._arrays]

    def step(self, buffer: bytearray) -> int:
        """See `Sink.step`. Raises `CodecError` for what does not fit the datatype or the shape (protocol 4.7)."""
        window = min(len(buffer), self._window_bytes)
        if not self._layout.depth and not buffer.startswith(b"["):
            return _blanks_before_array(buffer, window)
        is_full = window == self._window_bytes
        limit = _end_of_numbers(buffer, window)
        if limit == window and not is_full and not _may_be_end(buffer, window):
            return 0
        if taken := self._step_regular(buffer, limit, can_cut=limit < window or is_full):
            return taken
        if limit > TOLERANT_PIECE_BYTES:
            comma = buffer.find(b",", 0, limit)
            if 0 <= comma < TOLERANT_PIECE_BYTES:
                self._window_bytes = TOLERANT_PIECE_BYTES
                return self.step(buffer)
            limit = comma + 1 if comma >= 0 else limit
        return self._step_tolerant(buffer, limit, window)

    def _step_tolerant(self, buffer: bytearray, limit: int, window: int) -> int:
        """Store a piece of buffer[:limit] in which each value has to be looked at, or that has none or is wrong."""
        piece = bytes(memoryview(buffer)[:limit])
        depth = self._layout.depth + occurrences(piece, b"[") - occurrences(piece, b"]")
        if depth == 0:
            return self._convert(buffer, piece[: piece.rfind(b"]") + 1], 0)
        if depth < 0 or depth > MAX_DEPTH:
            raise CodecError(f"brackets do not match, or data is nested deeper than {MAX_DEPTH}")
        stop = buffer[limit] if limit < window else _COMMA
        if stop == _END_OBJECT:
            raise CodecError("a bracket is missing: the object ends inside data")
        if stop == _QUOTE:
            if quoted := _QUOTED_NONFINITE.match(buffer, limit, window):
                buffer[limit : quoted.end()] = quoted[0].replace(b'"', b"")
                return self.step(buffer)
            if not _may_become_nonfinite(bytes(buffer[limit:window])):
                index = self._layout.count + piece.count(b",")
                raise CodecError(f"element {index}: expected {self._datatype.name}, got a string")
        comma = piece.rfind(b",")
        if window < self._window_bytes and (comma < 0 or limit == window):
            return 0
        if comma < 0:
            raise CodecError(f"{self._window_bytes} bytes without a comma")
        depth += occurrences(piece[comma:], b"]") - occurrences(piece[comma:], b"[")
        return self._convert(buffer, piece[: comma + 1], depth)

    def _rank(self, buffer: bytearray) -> int:
        """How many brackets *buffer*, which is all of the data so far, begins with."""
        rank = opening(buffer).count(b"[")
        if rank > MAX_DEPTH:
            raise CodecError(f"data is nested deeper than {MAX_DEPTH}")
        return rank

    def _finish(self) -> None:
        self._shape = self._layout.finish()
        self.done = True

    def _step_regular(self, buffer: bytearray, limit: int, *, can_cut: bool) -> int:
        """Store a piece whose lists have the lengths that are expected; 0 if not possible.

        *can_cut*: no more has to arrive before the piece may end at a comma.
        """
        layout = self._layout
        if not layout.depth:
            layout.begin(self._rank(buffer))
        elif layout.depth != layout.depth_before:
            return 0
        end = buffer.rfind(b"]", 0, limit) + 1
        depth = layout.rank - closing(buffer, end).count(b"]")
        if depth:
            end = buffer.rfind(b",", 0, limit)
            depth = layout.rank - closing(buffer, max(end, 0)).count(b"]")
            if end < 0 or depth <= 0 or not can_cut:
                return 0
        try:
            parsed = self._parse_regular(buffer, end, depth)
            if parsed is None:
                return 0
            n_values = self._append(*parsed)
        except ManyTiesError:
            self._window_bytes = TIED_PIECE_BYTES
            return self.step(buffer)
        self._window_bytes = min(self._most_bytes, 2 * self._window_bytes)
        layout.take(n_values, depth)
        if depth:
            return end + 1
        self._finish()
        return end

    def _parse_regular(self, buffer: bytearray, end: int, depth: int) -> tuple[Array, bytes | bytearray] | None:
        """The numbers in buffer[:end], behind which *depth* lists are open, and the text that they were parsed from.

        None if it cannot be parsed, or if its lists are not those that are expected.
        """
        layout = self._layout
        if layout.rank == 1:
            text = b"".join((b"[" * layout.depth, memoryview(buffer)[:end], b"]" * depth))
            values = parse_fast(text, self._datatype) if text.find(b"[", 1) < 0 else None
            return (values, text) if values is not None and len(values) else None
        if self._is_compact and not layout.has_long_lists(buffer, end):
            flat = layout.flatten(buffer, end, depth)
            if flat is not None:
                values = parse_fast(flat, self._datatype)
                return (values, flat) if values is not None and len(values) else None
            self._is_compact = False
            self._most_bytes = min(self._most_bytes, BRACKETED_PIECE_BYTES)
        text = b"".join((b"[" * layout.depth, memoryview(buffer)[:end], b"]" * depth))
        parsed = parse(text, self._datatype)
        if parsed is None or not len(parsed[0]) or not self._fits(*parsed, text, depth):
            return None
        return parsed[0], text

    def _fits(self, values: Array, tree: Any, text: bytes, depth: int) -> bool:
        """Whether the lists of *text*, which was parsed as *values* and *tree*, are those that are expected."""
        try:
            lengths, _ = lists_in(tree, self._layout.rank)
        except TypeError:
            return False
        n_lists = sum(map(len, lengths))
        return n_lists == occurrences(text, b"[") and self._layout.fits(lengths, len(values), depth)

    def _convert(self, buffer: bytearray, piece: bytes, depth: int) -> int:
        """Store the numbers in *piece*, the front of *buffer*, behind which *depth* lists are open: its end."""
        layout = self._layout
        end = len(piece) - 1 if depth else len(piece)
        text = b"".join((b"[" * layout.depth, memoryview(piece)[:end], b"]" * depth))
        check_cut(text, layout.depth, layout.depth + end, continues=layout.depth > 0, goes_on=depth > 0)
        usual = parse(text, self._datatype)
        parsed = parse_tolerantly(text, self._datatype, layout.count) if usual is None else usual
        if usual is not None:
            self._window_bytes = min(self._most_bytes, 2 * self._window_bytes)
        try:
            n_values = self._append(parsed[0], text)
        except ManyTiesError:
            self._window_bytes = TIED_PIECE_BYTES
            return self.step(buffer)
        if usual is None and self._datatype.kind is FLOAT:
            self.nonfinite += int(np.count_nonzero(~np.isfinite(parsed[0])))
        if not n_values:
            layout.take_empty(piece[:end])
        else:
            if not layout.depth:
                layout.begin(self._rank(buffer))
            if layout.is_empty or layout.depth != layout.depth_before or not self._fits(*parsed, text, depth):
                layout.fail()
            layout.take(n_values, depth)
        if not depth:
            self._finish()
        return len(piece)

    def _append(self, values: Array, text: bytes | bytearray) -> int:
        """Check, round and store *values* (float64, int64 or uint64, shape [n]), parsed from *text*: how many."""
        first = self._layout.count
        self._layout.expect(len(values))
        values = rounded(values, text, self._datatype, first)
        if self._shape is None:
            self._arrays.append(values.astype(self._datatype.wire))
        else:
            self._arrays[0][first : first + len(values)] = values
        return len(values)


def _blanks_before_array(buffer: bytearray, window: int) -> int:
    """How many blanks *buffer* begins with. Raises `CodecError` if something else than an array follows them."""
    first = NOT_SPACE.search(buffer, 0, window)
    if first is None:
        return 0
    if first[0] != b"[":
        raise CodecError(f"data must be an array, got {beginning(buffer[first.start() : window])}")
    return first.start()


def _end_of_numbers(buffer: bytearray, window: int) -> int:
    """Where the first quote or brace in buffer[:window] is, which numbers do not have; else the window's end."""
    for stop in (b'"', b"}"):
        found = buffer.find(stop, 0, window)
        window = found if found >= 0 else window
    return window


def _may_be_end(buffer: bytearray, end: int) -> bool:
    """Whether the data may end before *end*, where no more has arrived: it would end there, but for blanks."""
    tail = bytes(memoryview(buffer)[max(end - _TAIL_BYTES, 0) : end]).rstrip(SPACE)
    return not tail or tail.endswith(b"]")


def _may_become_nonfinite(text: bytes) -> bool:
    """Whether *text*, which starts with a quote, is the beginning of a quoted non-finite number."""
    for quoted in _QUOTED:
        if quoted.startswith(text) or (text.startswith(quoted) and not text[len(quoted) :].strip(SPACE)):
            return True
    return False
