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
Where this guess or the parser fails, as for null and a quoted "NaN", the sink walks through a shorter piece as any
`Prover` does, and the standard library's parser reads it.

Numbers may be written as texts. Then blanks take the place of quotes, and the rest is read as it would be without:

    ["1.5","2"],["3"   ->   [ 1.5 , 2 ],[ 3

A text must not become two numbers, so two things are proved. Each quote has a digit or a minus on its inner side and a
comma, a bracket or a blank on its outer side (`number_texts`). So an opening quote stands where a number of the piece
begins, and a closing one where one ends. And there are two quotes for each number that the parser has found: so each
number has its own. Other pieces are walked through, such as those with bare numbers among the texts.
"""

from typing import ClassVar

import numpy as np

from gateway.codec.json.pieces import QUOTE, SPACE, check_cut
from gateway.codec.tensors.datatypes import FLOAT, Array, Datatype, element_count
from gateway.codec.tensors.nesting import TensorSink, blanks_before_array, completed, n_opened, short_lists
from gateway.codec.tensors.number_parsing import LongTextError, load_tolerantly, most_bytes, parse, rounded, values_of
from gateway.codec.tensors.number_texts import Quotes, unquoted
from gateway.errors import CodecError

TOLERANT_PIECE_BYTES = 4 * 1024
"""How much text is worked on in one step where every bracket, or every value, is looked at, ten times slower."""

SHORT_LIST_BYTES = 128
"""Shorter lists are counted by `short_lists`: for each list, the parser makes an object of Python."""

PROTO3_TEXTS = ("INT64", "UINT64")
"""Of these datatypes proto3's JSON has texts, which are read wherever these numbers are (protocol 4.7)."""

_LISTS_PER_PASS = 5  # counting so many lists around each number takes as long as parsing it
_TAIL_BYTES = 256  # where more blanks and brackets end a piece, it is only slower


class NumberSink(TensorSink):
    """Takes the `data` of one tensor, nested or flat, as bytes of its datatype.

    With a shape, into one array; without one, into an array for each piece, so that none is copied to grow.
    """

    piece_bytes: ClassVar[int] = TOLERANT_PIECE_BYTES

    def __init__(
        self,
        label: str,
        datatype: Datatype,
        shape: tuple[int, ...] | None,
        *,
        takes_texts: bool = False,
        texts_hint: str = "",
    ) -> None:
        """See `TensorSink`. *takes_texts*: numbers may be texts; if not, *texts_hint* ends the error for one that is.

        Raises `CodecError` if this machine has no room for *shape*. The array takes address space, but no memory until
        numbers are stored in it.
        """
        super().__init__(label, shape)
        self._arrays: list[Array] = []
        if shape is not None:
            n_elements = element_count(shape)
            try:
                self._arrays.append(np.empty(n_elements, dtype=datatype.wire))
            except (MemoryError, ValueError):
                words = f"there is no memory for {n_elements} elements of {datatype.item_bytes} bytes"
                raise CodecError(f"{label}: {words}") from None
        self.nonfinite = 0
        self._datatype = datatype
        self._takes_texts = takes_texts or datatype.name in PROTO3_TEXTS
        self._texts_hint = texts_hint
        self._has_short_lists = False
        self._most_bytes = self._window_bytes = most_bytes()

    @property
    def held_bytes(self) -> int:
        """The part of the array that has been filled; what is only announced takes no memory."""
        return self._layout.count * self._datatype.item_bytes

    def blobs(self) -> list[memoryview]:
        """The bytes on the wire, when all is `done`: one piece if the shape was known, else some, in order."""
        return [array.view(np.uint8).data for array in self._arrays]

    def step(self, buffer: bytearray) -> int:
        """See `Sink.step`. Raises `CodecError` for what does not fit the datatype or the shape (protocol 4.7)."""
        if not self._layout.rank:
            self._most_bytes = self._window_bytes = most_bytes() // (1 + n_opened(buffer) // _LISTS_PER_PASS)
        window = min(len(buffer), self._window_bytes)
        if not self._is_begun and not buffer.startswith(b"["):
            return super().step(buffer) if self._shape is None else blanks_before_array(buffer, window)
        is_full = window == self._window_bytes
        limit, has_texts = self._limit(buffer, window)
        if limit == window and not is_full and not _may_be_end(buffer, window):
            return 0
        text, limit, quotes = unquoted(buffer, limit) if has_texts else (buffer, limit, None)
        try:
            taken = self._step_regular(text, limit, quotes, can_cut=limit < window or is_full)
            if taken or limit <= TOLERANT_PIECE_BYTES:
                return taken or super().step(buffer)
            self._window_bytes = TOLERANT_PIECE_BYTES
        except LongTextError as error:
            self._window_bytes = error.most_bytes
            self._looked_at_bytes = min(self._looked_at_bytes, error.most_bytes)
        return self.step(buffer)

    def _limit(self, buffer: bytearray, window: int) -> tuple[int, bool]:
        """How far the numbers in buffer[:window] go at most, and whether they are texts."""
        limit = _end_of_numbers(buffer, window)
        if self._takes_texts and limit < window and buffer[limit] == QUOTE:
            return _first(buffer, b"}", window), True
        return limit, False

    def _step_regular(self, buffer: bytearray, limit: int, quotes: Quotes | None, *, can_cut: bool) -> int:
        """Store a piece that ends where the lists of numbers in buffer[:limit] show; 0 if it cannot be parsed.

        *quotes*: where blanks have taken the place of quotes. *can_cut*: no more has to arrive before the piece may end
        at a comma.
        """
        layout = self._layout
        if not layout.rank:
            layout.begin(buffer)
            first = bytes(buffer[: buffer.find(b"]", 0, SHORT_LIST_BYTES) + 1])
            self._has_short_lists = len(first.translate(None, b"[]" + SPACE)) > 0
        end = buffer.rfind(b"]", 0, limit) + 1
        depth = layout.rank - _closing(buffer, end)
        if depth:
            end = buffer.rfind(b",", 0, limit)
            depth = layout.rank - _closing(buffer, max(end, 0))
            if end < 0 or depth <= 0 or not can_cut:
                return 0
        before = layout.depth
        text = completed(memoryview(buffer)[:end], before, depth)
        parsed = parse(text, self._datatype)
        if parsed is None:
            return 0
        values, lists = parsed
        if quotes is not None and int(quotes.searchsorted(end)) != 2 * len(values):
            return 0
        lengths: list[list[int]] | None
        if layout.rank == 1:
            lengths = [[len(values)]] if text.find(b"[", 1) < 0 else None
        elif self._has_short_lists:
            lengths = short_lists(text, layout.rank, len(values))
        else:
            lengths = layout.lengths_in(lists, text)
        if lengths is None:
            return 0
        self._append(values, text)
        self._end_piece(lengths, len(values), b"[" * depth)
        check_cut(text, before, before + end, continues=before > 0, goes_on=depth > 0)
        self._window_bytes = min(self._most_bytes, 2 * self._window_bytes)
        return end + 1 if depth else end

    def _judge(self, text: bytes, opened: bytes | bytearray) -> None:
        """See `Prover`: each value may have to be looked at, and lists may be nested in any way."""
        layout = self._layout
        text = layout.listed(text)
        parsed = parse(text, self._datatype, can_be_cut=False)  # a long one has no comma
        if parsed is not None:
            self._window_bytes = min(self._most_bytes, 2 * self._window_bytes)
            values, lengths = parsed[0], layout.lengths_in(parsed[1], text)
        else:
            lengths, items = layout.items_in(load_tolerantly(text, self._datatype, layout.count))
            takes_texts, hint = self._takes_texts, self._texts_hint
            values = values_of(items, self._datatype, layout.count, takes_texts=takes_texts, hint=hint)
            if takes_texts and b"\\" in text:  # ties are looked up in it
                raise CodecError(f"element {layout.count}, or one behind it, is a number with an escape in its text")
        self._append(values, text)
        if parsed is None and self._datatype.kind is FLOAT:
            self.nonfinite += int(np.count_nonzero(~np.isfinite(values)))
        self._end_piece(lengths, len(values), opened)

    def _begin_string(self, before: bytes) -> None:
        raise CodecError(f"element {self._layout.count}: {self._datatype.name} cannot hold a long string")

    def _append(self, values: Array, text: bytes) -> None:
        """Check, round and store *values* (float64, int64, uint64 or bool, shape [n]), parsed from *text*."""
        first = self._layout.count
        self._layout.expect(len(values))
        values = rounded(values, text, self._datatype, first)
        if self._shape is None:
            self._arrays.append(values.astype(self._datatype.wire))
        else:
            self._arrays[0][first : first + len(values)] = values


def _end_of_numbers(buffer: bytearray, window: int) -> int:
    """Where the first quote or brace in buffer[:window] is, which numbers do not have; else the window's end."""
    return _first(buffer, b"}", _first(buffer, b'"', window))


def _first(buffer: bytearray, stop: bytes, window: int) -> int:
    """Where the first *stop* in buffer[:window] is; else the window's end."""
    found = buffer.find(stop, 0, window)
    return found if found >= 0 else window


def _may_be_end(buffer: bytearray, end: int) -> bool:
    """Whether the data may end before *end*, where no more has arrived: it would end there, but for blanks."""
    tail = buffer[max(end - _TAIL_BYTES, 0) : end].rstrip(SPACE)
    return not tail or tail.endswith(b"]")


def _closing(text: bytearray, end: int) -> int:
    """How many closing brackets, with blanks among them, text[:end] ends with."""
    tail = text[max(end - _TAIL_BYTES, 0) : end]
    return tail[len(tail.rstrip(b"]" + SPACE)) :].count(b"]")
