"""Tensors of numbers and booleans from JSON text, a piece at a time.

The JSON of a tensor is several times its size, so it is never held: text is converted while it arrives, and each
piece is gone when its numbers are stored. The parser (`number_parsing`) wants a whole JSON array, so pieces are made
into arrays:

    the text so far          [[1,2],[3,            two lists are open
    what has arrived next    4],[5,6],[7,8         cut at its last comma: the number behind it may go on
    what is parsed           [[4],[5,6]]           a bracket for each open list, before it and behind it

Where a number must not end, the parser says so; that brackets and commas are in their places is proved too, but for
the commas at the cuts (`check_cut`) and lists of unequal lengths (`Layout`).

The end of the data is found without reading numbers. Inside an array of numbers there is no quote and no brace, so
the array ends at the last `]` before the first of these; if that `]` closes the outermost list, this is the end.
Where this guess or the parser fails, as for null and a quoted "NaN", each bracket and each value of a shorter piece is
looked at, and the standard library's parser reads it.

Not here: the numbers of one text (`number_parsing`), printing (`number_printing`), BYTES (`string_reading`), where in a
document a tensor stands (`scanner`).
"""

import re

import numpy as np

from gateway.codec.json.pieces import NOT_SPACE, SPACE, beginning, check_cut
from gateway.codec.tensors.datatypes import FLOAT, Array, Datatype, element_count
from gateway.codec.tensors.nesting import Layout, completed, short_lists
from gateway.codec.tensors.number_parsing import load_tolerantly, most_bytes, parse, rounded, values_of
from gateway.errors import CodecError

TOLERANT_PIECE_BYTES = 4 * 1024
"""How much text is worked on in one step where every bracket, or every value, is looked at, ten times slower."""

SHORT_LIST_BYTES = 128
"""Shorter lists are counted by `short_lists`: for each list, the parser makes an object of Python."""

_TAIL_BYTES = 256  # where more blanks and brackets end a piece, it is only slower
_BRACKET = re.compile(rb"[\[\]]")
_QUOTED = (b'"NaN"', b'"Infinity"', b'"-Infinity"')
_QUOTED_NUMBERS = re.compile(rb'(?:"(?:NaN|-?Infinity)"[^"{}]*+)*')
_SCALAR = re.compile(rb'("[^"]*+"|[^ \t\r\n,\]}"]++)[ \t\r\n,\]}]')


class NumberSink:
    """Takes the `data` of one tensor, nested or flat, as bytes of its datatype.

    With a shape, into one array; without one, into an array for each piece, so that none is copied to grow.
    """

    def __init__(self, label: str, datatype: Datatype, shape: tuple[int, ...] | None) -> None:
        """*label* names the tensor in errors. With None, the shape is that of the nesting; a bare number is a scalar.

        Raises `CodecError` if this machine has no room for *shape*. The array takes address space, but no memory
        until numbers are stored in it.
        """
        self.done = False
        self.label = label
        self._arrays: list[Array] = []
        if shape is not None:
            n_elements = element_count(shape)
            try:
                self._arrays.append(np.empty(n_elements, dtype=datatype.wire))
            except (MemoryError, ValueError):
                raise CodecError(
                    f"{label}: there is no memory for {n_elements} elements of {datatype.item_bytes} bytes"
                ) from None
        self.nonfinite = 0
        self._datatype = datatype
        self._shape = shape
        self._layout = Layout(shape)
        self._has_short_lists = False
        self._window_bytes = most_bytes()

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
        layout = self._layout
        window = min(len(buffer), self._window_bytes)
        if not layout.rank and not buffer.startswith(b"["):
            return _blanks(buffer, window) or (self._step_scalar(buffer) if buffer else 0)
        limit = _end_of_numbers(buffer, window)
        may_go_on = limit == window < self._window_bytes
        if may_go_on and not _may_be_end(buffer, window):
            return 0
        if not layout.rank:
            layout.begin(buffer)
            first_list = bytes(buffer[: buffer.find(b"]", 0, SHORT_LIST_BYTES) + 1])
            self._has_short_lists = layout.rank > 1 and len(first_list.translate(None, b"[]" + SPACE)) > 0
        piece = self._piece(buffer, limit, can_cut=not may_go_on)
        if piece is not None:
            end, depth = piece
            text = completed(memoryview(buffer)[:end], layout.depth, depth)
            if self._take(text, depth, is_short=limit <= TOLERANT_PIECE_BYTES):
                return end + (depth > 0)
        elif limit <= TOLERANT_PIECE_BYTES:
            return 0 if may_go_on else self._step_without_piece(buffer, limit)
        self._window_bytes = TOLERANT_PIECE_BYTES
        return self.step(buffer)

    def _step_without_piece(self, buffer: bytearray, limit: int) -> int:
        """As `step`, where no piece ends in buffer[:limit]: there are blanks, or what is no number."""
        tail = bytes(buffer[limit : limit + len(_QUOTED[-1])])
        if tail and any(word.startswith(tail) for word in _QUOTED):
            return 0
        n_blanks = _blanks(buffer, limit)
        if n_blanks:
            return n_blanks
        got = beginning(buffer[limit:] or buffer)
        raise CodecError(f"element {self._layout.count}: expected {self._datatype.name}, got {got}")

    def _step_scalar(self, buffer: bytearray) -> int:
        """As `step`, of data that has no bracket."""
        if self._shape is not None:
            raise CodecError(f"data must be an array, got {beginning(buffer)}")
        scalar = _SCALAR.match(buffer, 0, TOLERANT_PIECE_BYTES)
        if scalar is not None:
            self._take(self._layout.listed(scalar[1]), 0, is_short=True)
            return scalar.end(1)
        if buffer[:1] in b"{}],:" or len(buffer) >= TOLERANT_PIECE_BYTES:
            raise CodecError(f"element 0: expected {self._datatype.name}, got {beginning(buffer)}")
        return 0

    def _piece(self, buffer: bytearray, limit: int, *, can_cut: bool) -> tuple[int, int] | None:
        """Where in buffer[:limit] the next piece ends, and how many lists are open there; None if nothing shows it.

        *can_cut*: no more has to arrive before it may end at a comma.
        """
        layout = self._layout
        comma = buffer.rfind(b",", 0, limit) if can_cut else -1
        if limit > TOLERANT_PIECE_BYTES:
            end = buffer.rfind(b"]", 0, limit) + 1
            if layout.rank == _closing(buffer, end):
                return end, 0
            depth = layout.rank - _closing(buffer, max(comma, 0))
        else:
            depth = layout.depth
            for bracket in _BRACKET.finditer(buffer, 0, limit):
                depth += 1 if bracket[0] == b"[" else -1
                if not depth:
                    return bracket.end(), 0
            depth -= buffer.count(b"[", comma, limit) - buffer.count(b"]", comma, limit)
        return (comma, depth) if comma >= 0 and depth > 0 else None

    def _take(self, text: bytes, depth: int, *, is_short: bool) -> bool:
        """Store the numbers of *text*, which leaves *depth* lists open.

        False if they cannot be parsed; one that *is_short* is then parsed tolerantly.
        """
        layout, datatype = self._layout, self._datatype
        before = layout.depth
        check_cut(text, before, len(text) - depth, continues=before > 0, goes_on=depth > 0)
        parsed = parse(text, datatype)
        lengths: list[list[int]] | None = None
        if parsed is not None:
            values, lists = parsed
            if layout.rank == 1 and text.find(b"[", 1) < 0:
                lengths = [[len(values)]]
            elif self._has_short_lists and _closing(text, len(text)) == layout.rank:
                lengths = short_lists(text, layout.rank, len(values))
            if lengths is None and (is_short or not self._has_short_lists):
                lengths = layout.lengths_in(lists, text)
            self._window_bytes = min(most_bytes(), 2 * self._window_bytes)
        elif is_short:
            lengths, items = layout.items_in(load_tolerantly(text, layout.count))
            values = values_of(items, datatype, layout.count)
            if datatype.kind is FLOAT:
                self.nonfinite += int(np.count_nonzero(~np.isfinite(values)))
        if lengths is None:
            return False
        first = layout.count
        layout.take(lengths, len(values), depth)
        values = rounded(values, datatype, first)
        if self._shape is None:
            self._arrays.append(values.astype(datatype.wire))
        else:
            self._arrays[0][first : first + len(values)] = values
        if not depth:
            self._shape = layout.finish()
            self.done = True
        return True


def _blanks(buffer: bytearray, window: int) -> int:
    """How many blanks buffer[:window] begins with."""
    first = NOT_SPACE.search(buffer, 0, window)
    return first.start() if first is not None else window


def _end_of_numbers(buffer: bytearray, window: int) -> int:
    """Where the first quote or brace in buffer[:window] is that is none of a number; else the window's end."""
    quote = buffer.find(b'"', 0, window)
    if quote >= 0:
        numbers = _QUOTED_NUMBERS.match(buffer, quote, min(window, quote + TOLERANT_PIECE_BYTES))
        window = numbers.end() if numbers is not None else quote
    brace = buffer.find(b"}", 0, window)
    return brace if brace >= 0 else window


def _may_be_end(buffer: bytearray, end: int) -> bool:
    """Whether the data may end before *end*, where no more has arrived: it would end there, but for blanks."""
    tail = bytes(memoryview(buffer)[max(end - _TAIL_BYTES, 0) : end]).rstrip(SPACE)
    return not tail or tail.endswith(b"]")


def _closing(text: bytes | bytearray, end: int) -> int:
    """How many closing brackets, with blanks among them, text[:end] ends with."""
    tail = bytes(memoryview(text)[max(end - _TAIL_BYTES, 0) : end])
    return tail[len(tail.rstrip(b"]" + SPACE)) :].count(b"]")
