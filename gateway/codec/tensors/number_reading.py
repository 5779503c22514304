"""Tensors of numbers and booleans from JSON text, a piece at a time.

The JSON of a tensor is several times its size, so it is never held: text is converted while it arrives, and each
piece is gone when its numbers are stored. simdjson does the parsing. It is exact, several times faster than going
through Python objects, and returns one flat array however the text was nested. But it wants a whole JSON array, so
pieces are made into arrays:

    the text so far          [[1,2],[3,            two lists are open
    what has arrived next    4],[5,6],[7,8         cut at its last comma: the number behind it may go on
    what simdjson parses     [[4],[5,6]]           a bracket for each open list, before it and behind it

Where a number must not end, the parser says so; that brackets and commas are in their places is proved too, but for
the commas at the cuts (`check_cut`) and lists of unequal lengths (`Layout`). A piece from the inside of one list is
only searched for brackets. Where it has some, and all lists at a depth have one length, as they should, calls of numpy
prove that (`Layout.flatten`, `Layout.fits`); any other text is read in small pieces, with a look at each bracket.

The end of the data is found without reading numbers. Inside an array of numbers there is no quote and no brace, so
the array ends at the last `]` before the first of these; if that `]` closes the outermost list, this is the end.
Quoted "NaN" and "Infinity" are the exception; their quotes are taken away before parsing.

Where simdjson is not installed, orjson reads a piece to a list of Python's numbers, and `struct` packs them: as exact,
but 30 to 45 ns an element instead of 8 to 20. Both return the same or refuse; a property test compares them.

What they refuse (NaN, null, 1.0 for an integer) goes through the standard library's parser, value by value: ten times
slower and tolerant. It works on smaller pieces, so that a step stays short.

Rounding. Both return float64, and a number for FP32 would be rounded twice: decimal to float64, float64 to FP32.
That differs from rounding once only if the float64 lies exactly between two FP32 and the decimal does not. Such
float64s are easily told by their bits; for these few the decimal is looked up in the text and compared exactly.

Not here: printing (`number_printing`), BYTES (`string_reading`), where in a document a tensor stands (`scanner`).
"""

import json
import math
import re
import struct
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from itertools import chain
from typing import Any, NoReturn

import msgspec
import numpy as np
import numpy.typing as npt
import orjson

from gateway.codec.tensors.datatypes import Array, Datatype, Kind, element_count
from gateway.codec.tensors.nesting import MAX_DEPTH, Layout, closing, depth_behind, lists_in, occurrences, opening
from gateway.codec.tensors.pieces import NOT_SPACE, SPACE, beginning, check_cut
from gateway.errors import CodecError

try:
    import simdjson
except ImportError:  # no wheel for this Python: orjson reads
    simdjson = None  # type: ignore[assignment]

NATIVE_PIECE_BYTES = 128 * 1024
"""How much text simdjson works on in one step: a fifth of a millisecond of flat numbers."""

BRACKETED_PIECE_BYTES = 64 * 1024
"""The same of nested numbers whose blanks have to be taken away."""

LIST_PIECE_BYTES = 32 * 1024
"""How much text orjson works on in one step: it is two to four times slower than simdjson."""

TOLERANT_PIECE_BYTES = 4 * 1024
"""How much text is worked on in one step where every bracket, or every value, is looked at, ten times slower."""

MAX_FEW = 64
"""The most floats that `read_few` reads: up to here Python's numbers cost less than calls of numpy."""

MAX_TIES = 256
"""How many numbers of one piece are looked up in its text at most, at a microsecond each."""

TIED_PIECE_BYTES = 1024
"""How much text is worked on in one step where more than `MAX_TIES` would have to be looked up in a longer one."""

ARRAY_ELEMENTS = 64 * 1024
"""The most that an array has room for before there are elements for it, where the shape is not known."""

_PACKED = {"d": "d", "i": "q", "u": "Q"}
_PARSED_DTYPE = {"d": np.dtype("<f8"), "i": np.dtype("<i8"), "u": np.dtype("<u8")}
_PARSER = simdjson.Parser() if simdjson is not None else None
_OPTIONS = orjson.OPT_SERIALIZE_NUMPY

_QUOTE, _COMMA, _END_OBJECT, _MINUS, _ZERO, _TRUE, _FALSE = b'",}-0tf'
_ENDS_NUMBER = np.isin(np.arange(256), list(b",] \t\r\n"))
_TAIL_BYTES = 16  # more blanks than these are behind a bracket hardly ever, and then it is only slower
_LAYOUTS = {
    name: [struct.Struct(f"<{n_elements}{letter}") for n_elements in range(MAX_FEW + 1)]
    for name, letter in (("FP16", "e"), ("FP32", "f"), ("FP64", "d"))
}
_FLOATS = msgspec.json.Decoder(tuple[float, ...])
_BITS = np.dtype("<u8")
_FLOAT64 = _PARSED_DTYPE["d"]
_LOW_BYTES_OF_TIE = b"\0\0\0"
"""A float64 between two neighbours of FP32 has at most 25 significant bits, also below the smallest normal number. So
the low 28 of its 52 are zero, and of FP16 and BF16 more."""
_BESIDE_LETTERS = b"[]rueals," + SPACE
_NO_INDEX = np.empty(0, np.int64)
# A run of quoted non-finite numbers and what stands between them; a key would be followed by a colon.
_QUOTED_NONFINITE = re.compile(rb'(?:(?<![-\w."])"(?:NaN|-?Infinity)"(?=[ \t\r\n]*[,\]])[^"}]*+)+')
_QUOTED = (b'"NaN"', b'"Infinity"', b'"-Infinity"')
_NONFINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class NumberSink:
    """Takes the `data` of one tensor, nested or flat, as bytes of its datatype.

    With a shape, into one array; without one, into arrays of some pieces each, which are never copied to grow.
    """

    def __init__(self, label: str, datatype: Datatype, shape: tuple[int, ...] | None) -> None:
        """*label* names the tensor in errors. With None, the shape is that of the nesting, see `shape`.

        Raises `CodecError` if this machine has no room for *shape*. The array takes address space, but no memory
        until numbers are stored in it.
        """
        self._arrays: list[Array] = []
        self._room = 0
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
        self._most_bytes = NATIVE_PIECE_BYTES if _PARSER is not None else LIST_PIECE_BYTES
        self._is_regular = True
        self._has_blanks = False
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
        if self._is_regular and (taken := self._step_regular(buffer, limit, can_cut=limit < window or is_full)):
            return taken
        if limit > TOLERANT_PIECE_BYTES:
            comma = buffer.find(b",", 0, limit)
            if 0 <= comma < TOLERANT_PIECE_BYTES:
                self._window_bytes = TOLERANT_PIECE_BYTES
                return self.step(buffer)
            limit = comma + 1 if comma >= 0 else limit
        return self._step_irregular(buffer, limit, window)

    def _step_irregular(self, buffer: bytearray, limit: int, window: int) -> int:
        """Store a piece of buffer[:limit] in which each bracket, or each value, has to be looked at."""
        piece = bytes(memoryview(buffer)[:limit])
        depth = self._layout.depth + occurrences(piece, b"[") - occurrences(piece, b"]")
        if depth == 0:
            return self._convert(buffer, piece[: piece.rfind(b"]") + 1])
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
        return self._convert(buffer, piece[: comma + 1])

    def _finish(self) -> None:
        self._shape = self._layout.finish()
        if self._room:
            self._arrays[-1] = self._arrays[-1][: -self._room]
        self.done = True

    def _step_regular(self, buffer: bytearray, limit: int, *, can_cut: bool) -> int:
        """Store a piece whose lists have the lengths that are expected; 0 if not possible.

        *can_cut*: no more has to arrive before the piece may end at a comma.
        """
        layout = self._layout
        if not layout.depth:
            rank = opening(buffer).count(b"[")
            if not 0 < rank <= MAX_DEPTH:
                return 0
            layout.begin(rank)
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
        except _UnlikeLayoutError:
            self._is_regular = False
            return 0
        except _ManyTiesError:
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

        None if it cannot be parsed. Raises `_UnlikeLayoutError` if its lists are not those that are expected.
        """
        layout = self._layout
        if layout.rank == 1:
            text = b"".join((b"[" * layout.depth, memoryview(buffer)[:end], b"]" * depth))
            if text.find(b"[", 1) >= 0:
                raise _UnlikeLayoutError
            values = _parse_fast(text, self._datatype)
            return (values, text) if values is not None and len(values) else None
        is_long = layout.has_long_lists(buffer, end)
        if not is_long and not self._has_blanks:
            flat = layout.flatten(buffer, end, depth)
            if flat is not None:
                values = _parse_fast(flat, self._datatype)
                return (values, flat) if values is not None and len(values) else None
            self._has_blanks = True
            self._most_bytes = min(self._most_bytes, BRACKETED_PIECE_BYTES)
        text = b"".join((b"[" * layout.depth, memoryview(buffer)[:end], b"]" * depth))
        parsed = _parse(text, self._datatype)
        if parsed is None or not len(parsed[0]):
            return None
        values, tree = parsed
        if is_long:
            is_like = self._fits(tree, occurrences(text, b"["), len(values), depth)
        else:
            # the parser has seen that blanks separate no numbers; empty lists it would have let through
            squeezed = buffer[:end].translate(None, SPACE)
            flat = layout.flatten(squeezed, len(squeezed), depth)
            is_like = flat is not None and occurrences(flat, b",") + 1 == len(values)
        if not is_like:
            raise _UnlikeLayoutError
        return values, text

    def _fits(self, tree: Any, n_lists: int, n_values: int, depth: int) -> bool:
        """Whether the *n_lists* lists of the piece that was parsed as *tree* are those that are expected."""
        try:
            lengths, _ = lists_in(tree, self._layout.rank)
        except TypeError:
            return False
        return n_lists == sum(map(len, lengths)) and self._layout.fits(lengths, n_values, depth)

    def _convert(self, buffer: bytearray, piece: bytes) -> int:
        """Store the numbers in *piece*, the front of *buffer*: its end, or up to a comma if a list stays open."""
        layout = self._layout
        depth = depth_behind(piece, layout.depth)
        end = len(piece) - 1 if depth else len(piece)
        text = b"".join((b"[" * layout.depth, memoryview(piece)[:end], b"]" * depth))
        check_cut(text, layout.depth, layout.depth + end, continues=layout.depth > 0, goes_on=depth > 0)
        values = _parse_fast(text, self._datatype)
        if values is None:
            values = self._parse_tolerantly(text)
        else:
            self._window_bytes = min(self._most_bytes, 2 * self._window_bytes)
        try:
            self._append(values, text)
        except _ManyTiesError:
            self._window_bytes = TIED_PIECE_BYTES
            return self.step(buffer)
        layout.read(piece[:end], len(values))
        self._is_regular &= not layout.is_empty  # where there are no elements, none tell where lists end
        if not depth:
            self._finish()
        return len(piece)

    def _append(self, values: Array, text: bytes | bytearray) -> int:
        """Check, round and store *values* (float64, int64 or uint64, shape [n]), parsed from *text*: how many."""
        first = self._layout.count
        self._layout.expect(len(values))
        rounded = _rounded(values, text, self._datatype, first)
        if self._shape is None:
            self._extend(rounded)
        else:
            self._arrays[0][first : first + len(values)] = rounded
        return len(values)

    def _extend(self, values: Array) -> None:
        """Store *values* in the last array, and what it has no room for in a new one."""
        n_fitting = min(self._room, len(values))
        if n_fitting:
            last = self._arrays[-1]
            last[len(last) - self._room : len(last) - self._room + n_fitting] = values[:n_fitting]
            self._room -= n_fitting
        if n_fitting < len(values):
            rest = values[n_fitting:]
            n_elements = max(len(rest), min(self._layout.count, ARRAY_ELEMENTS))
            self._arrays.append(np.empty(n_elements, dtype=self._datatype.wire))
            self._arrays[-1][: len(rest)] = rest
            self._room = n_elements - len(rest)

    def _parse_tolerantly(self, text: bytes) -> Array:
        """The numbers in *text* by the standard library's parser, each looked at."""
        try:
            nested = json.loads(
                text.decode(),
                parse_int=_parse_int,
                parse_float=_parse_float if self._datatype.kind is Kind.FLOAT else _parse_decimal,
                parse_constant=_NONFINITE.__getitem__,
            )
        except ValueError as error:
            raise CodecError(f"malformed JSON near element {self._layout.count}: {error}") from None
        parsed = _PARSED_DTYPE[self._datatype.parsed]
        values = [self._value(item, index) for index, item in enumerate(_flatten(nested), self._layout.count)]
        return np.array(values, dtype=parsed)

    def _value(self, item: Any, index: int) -> float:
        """*item*, which stands for the element at *index*, as a number of the datatype (protocol 4.7)."""
        datatype = self._datatype
        if datatype.kind is Kind.FLOAT:
            if item is None:
                item = math.nan
            if type(item) is float:
                self.nonfinite += not math.isfinite(item)
                return item
            if type(item) is int:
                try:
                    return float(item)
                except OverflowError:
                    raise CodecError(f"element {index}: {datatype.name} cannot hold {str(item)[:32]}...") from None
        else:
            if datatype.kind is Kind.BOOL:
                if type(item) is bool:
                    return int(item)
            elif type(item) is float and item == 0:
                item = 0  # -0, see _parse_int
            if type(item) is int:
                if datatype.lowest <= item <= datatype.highest:
                    return item
                raise CodecError(f"element {index}: {datatype.name} cannot hold {str(item)[:32]}")
        got = "null" if item is None else str(item).lower() if type(item) is bool else str(item)[:32]
        raise CodecError(f"element {index}: expected {datatype.name}, got {got}")


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


def _parse_fast(text: bytes | bytearray, datatype: Datatype) -> Array | None:
    """The numbers in *text* (one JSON array, at most `MAX_DEPTH` deep), exactly; None if they need the tolerant path.

    As float64, int64 or uint64, shape [n]; booleans as `bool`, or as 1 and 0.
    """
    if datatype.kind is Kind.BOOL and b" " not in text:
        # Keep each word's first letter (t or f), print the result back, compare: equality proves the text.
        truth: npt.NDArray[np.bool_] = _letters(text) == _TRUE
        if orjson.dumps(truth, option=_OPTIONS) == text:
            return truth
    parsed = _parse(text, datatype)
    return parsed[0] if parsed is not None else None


def _parse(text: bytes | bytearray, datatype: Datatype) -> tuple[Array, Any] | None:
    """`_parse_fast`, and the lists that the parser made of *text*."""
    if datatype.kind is Kind.BOOL:
        letters = _letters(text)
        truth = letters == _TRUE
        if np.count_nonzero(truth) + np.count_nonzero(letters == _FALSE) == len(letters):
            lists = _load(text)  # in JSON, nothing but words leaves these letters
            return (truth, lists) if lists is not None else None
        # simdjson's buffers have no booleans. A 1 or 0 in place of a word cannot join its neighbours into another
        # valid 0 or 1, except behind a minus sign.
        if b"-" in text:
            return None
        text = text.replace(b"true", b"1").replace(b"false", b"0")
    parsed = _parse_as_list(text, datatype) if _PARSER is None else _parse_natively(_PARSER, text, datatype)
    if parsed is None or datatype.kind is not Kind.FLOAT or b"-" not in text:
        return parsed
    if np.count_nonzero(parsed[0]) == len(parsed[0]):  # of few values in a fifth of the time of `all`
        return parsed
    # both parsers read -0 as the integer 0, which has lost its sign
    return None if _has_negative_zero(text) else parsed


def _letters(text: bytes | bytearray) -> npt.NDArray[np.uint8]:
    """The first letters of the words in *text*, an array of booleans; more characters if there is anything else."""
    return np.frombuffer(text.translate(None, _BESIDE_LETTERS), dtype=np.uint8)


def _load(text: bytes | bytearray) -> Any:
    """The lists in *text*; None if it is no JSON."""
    try:
        return orjson.loads(text) if _PARSER is None else _PARSER.parse(text)
    except (ValueError, RuntimeError):
        return None


def _parse_natively(parser: "simdjson.Parser", text: bytes | bytearray, datatype: Datatype) -> tuple[Array, Any] | None:
    """`_parse` by simdjson, which must not parse again while its lists live."""
    try:
        lists = parser.parse(text)
        assert isinstance(lists, simdjson.Array)  # text starts with a bracket
        buffer = lists.as_buffer(of_type=datatype.parsed)
    except (ValueError, TypeError, RuntimeError):
        return None
    return np.frombuffer(buffer, _PARSED_DTYPE[datatype.parsed]), lists  # a keyword takes twice as long


def _parse_as_list(text: bytes | bytearray, datatype: Datatype) -> tuple[Array, Any] | None:
    """`_parse` by orjson, through Python's numbers.

    `struct` is as strict as the datatype: it takes no float or null for an integer, and no integer beyond 64 bits,
    which orjson gives as a float. It would take true for 1, so there may be no such word.
    """
    if b"t" in text or b"f" in text:
        return None
    try:
        lists = numbers = orjson.loads(text)
        while numbers and type(numbers[0]) is list:
            numbers = list(chain.from_iterable(numbers))
        packed = struct.pack(f"{len(numbers)}{_PACKED[datatype.parsed]}", *numbers)
    except (ValueError, TypeError, struct.error):
        return None
    return np.frombuffer(packed, dtype=_PARSED_DTYPE[datatype.parsed]), lists


def _has_negative_zero(text: bytes | bytearray) -> bool:
    """Whether *text* (JSON numbers) has one that is written `-0`.

    Searching for `-0,` and its like takes as long as parsing it all, because `-0` begins every `-0.5`.
    """
    codes = np.frombuffer(text, dtype=np.uint8)
    signs = np.flatnonzero(codes == _MINUS)
    signs = signs[codes[signs + 1] == _ZERO]
    return bool(_ENDS_NUMBER[codes[signs + 2]].any())


class _UnlikeLayoutError(Exception):
    """The lists of this piece are not those that are expected, or it is not seen that they are."""


class _ManyTiesError(Exception):
    """Looking up the ties of this piece would take too long for one step."""


def _rounded(values: Array, text: bytes | bytearray, datatype: Datatype, first: int = 0) -> Array:
    """*values* (float64, int64 or uint64), which were parsed from *text*, as what *datatype* can hold.

    Floats become the nearest of the datatype; integers stay as they are, for numpy to narrow when they are stored.
    *first* is the index of the first value in its tensor. Raises `CodecError` for a value beyond the datatype's range,
    and `_ManyTiesError` where a shorter *text* has to be worked on.
    """
    # the parser has checked the range of those that have 64 bits
    if datatype.item_bytes == 8 or not len(values):
        return values
    if datatype.kind is not Kind.FLOAT:
        if values.min() < datatype.lowest or values.max() > datatype.highest:
            beyond = (values < datatype.lowest) | (values > datatype.highest)
            _fail_range(values, int(np.argmax(beyond)), datatype, first)
        return values
    magnitudes = np.abs(values)
    tied = _tied(values, magnitudes, datatype)
    if len(tied):
        if len(tied) > MAX_TIES and len(text) > 2 * TIED_PIECE_BYTES:
            raise _ManyTiesError
        values = _moved_off_ties(values, tied, text)
    if magnitudes[magnitudes.argmax()] <= datatype.highest:
        return datatype.narrow(values)
    with np.errstate(over="ignore", invalid="ignore"):
        narrowed = datatype.narrow(values)
    infinite = np.isfinite(values) & ~datatype.is_finite(narrowed)  # type: ignore[misc]
    if infinite.any():
        _fail_range(values, int(np.argmax(infinite)), datatype, first)
    return narrowed


def _fail_range(values: Array, index: int, datatype: Datatype, first: int) -> NoReturn:
    raise CodecError(f"element {first + index}: {datatype.name} cannot hold {values[index]}")


def _tied(values: Array, magnitudes: Array, datatype: Datatype) -> Array:
    """Which of float64 *values* lie exactly between two of *datatype*, as indices; *magnitudes* are without sign.

    Some may be named that do not.
    """
    ties = (values.view(_BITS) & datatype.dropped_bits) == datatype.tie
    tied = np.flatnonzero(ties) if np.count_nonzero(ties) else _NO_INDEX
    if magnitudes[magnitudes.argmin()] >= datatype.smallest_normal:
        return tied
    # below the smallest normal number all neighbours have the same distance
    small = np.flatnonzero((magnitudes < datatype.smallest_normal) & (magnitudes > 0))
    steps = magnitudes[small] / datatype.smallest
    return np.union1d(tied, small[steps - np.floor(steps) == 0.5])


def _moved_off_ties(values: Array, tied: Array, text: bytes | bytearray) -> Array:
    """float64 *values*, with those at the indices *tied* moved to the side on which their decimal in *text* lies.

    Of the shortest texts of all 2^32 FP32 one pair needs it: 7.038531e-26 and its negative.
    """
    moved: npt.NDArray[np.float64] = values.astype("<f8")
    decimals = [word for word in text.translate(None, b"[] \t\r\n").split(b",") if word]
    for index in tied:
        exact, rounded = Decimal(decimals[index].decode()), Decimal(float(moved[index]))
        if exact != rounded:
            moved[index] = np.nextafter(moved[index], math.inf if exact > rounded else -math.inf)
    return moved


def _parse_int(text: str) -> int | float:
    return -0.0 if text == "-0" else int(text)


def _parse_decimal(text: str) -> int | str:
    """A number with fraction or exponent for an integer datatype, exactly; as text if it is no such integer."""
    try:
        number = Decimal(text)
    except InvalidOperation:  # an exponent of more than 18 digits
        return text
    # beyond 64 bits it is refused in any case, and 1e999999999 should not be written out first
    return int(number) if number.adjusted() < 25 and number == number.to_integral_value() else text


def _parse_float(text: str) -> float | str:
    """A number for a float datatype; as text, for the message that refuses it, if it is beyond float64."""
    number = float(text)
    return text if math.isinf(number) else number


def _flatten(nested: list[Any]) -> Iterator[Any]:
    """The leaves of lists in lists, in order."""
    for item in nested:
        if type(item) is list:
            yield from _flatten(item)
        else:
            yield item


def read_few(text: bytes, datatype: Datatype, n_elements: int) -> bytes | None:
    """The *n_elements* floats in *text*, a JSON array without inner brackets, as they are on the wire.

    None for more than `MAX_FEW`, and for whatever has to be looked at more closely, which `read_flat` may know.
    """
    layouts = _LAYOUTS.get(datatype.name)
    if layouts is None or not 0 < n_elements <= MAX_FEW:
        return None
    layout = layouts[n_elements]
    try:
        numbers = _FLOATS.decode(text)
        blob = layout.pack(*numbers)
    except (msgspec.DecodeError, struct.error, OverflowError):
        return None
    if layout.unpack(blob) != numbers and _LOW_BYTES_OF_TIE in _LAYOUTS["FP64"][n_elements].pack(*numbers):
        return None
    # -0 has been read as 0, without its sign
    return None if b"-" in text and bytes(datatype.item_bytes) in blob else blob


def read_flat(text: bytes, datatype: Datatype, n_elements: int) -> bytes | None:
    """The *n_elements* numbers in *text*, a JSON array nested in any way, as they are on the wire.

    None for whatever `NumberSink` has to look at more closely: other counts, NaN, numbers that are out of range, that
    might be rounded twice, or that simdjson does not read.
    """
    values = _parse_fast(text, datatype)
    if values is None or len(values) != n_elements or not n_elements:
        return None
    if datatype.item_bytes == 8 or values.dtype == np.bool_:
        return values.tobytes()
    highest = datatype.highest
    lowest = -highest if datatype.kind is Kind.FLOAT else datatype.lowest
    if values[values.argmin()] < lowest or values[values.argmax()] > highest:
        return None
    if datatype.kind is not Kind.FLOAT:
        return values.astype(datatype.wire).tobytes()
    narrowed = datatype.narrow(values)
    bits = values.tobytes()
    if (
        _LOW_BYTES_OF_TIE in bits
        and datatype.widen(narrowed).astype(_FLOAT64).tobytes() != bits
        and len(_tied(values, np.abs(values), datatype))
    ):
        return None
    return narrowed.tobytes()
