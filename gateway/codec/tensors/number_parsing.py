"""The numbers and booleans in one JSON array: from its text to an array of their datatype, exactly.

simdjson does the parsing. It is exact, several times faster than going through Python objects, and returns one flat
array however the text is nested. Where it is not installed, orjson reads the text to a list of Python's numbers, and
`struct` packs them: as exact, but 30 to 45 ns an element instead of 8 to 20. Both return the same or refuse; a property
test compares them. What they refuse (NaN, null, 1.0 for an integer) goes through the standard library's parser, value
by value: ten times slower and tolerant.

Rounding. All parsers return float64, and a number for FP32 would be rounded twice: decimal to float64, float64 to FP32.
The result differs from rounding once only if the float64 lies exactly between two FP32 and the decimal does not. The
bits of a float64 tell whether it lies so; then the tolerant path compares the decimal in the text exactly.

Not here: text that arrives in pieces, and how it is nested (`number_reading`).
"""

import json
import math
import struct
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import orjson

from gateway.codec.json.pieces import SPACE
from gateway.codec.tensors.datatypes import Array, Datatype, Kind
from gateway.errors import CodecError

try:
    import simdjson
except ImportError:  # no wheel for this Python: orjson reads
    simdjson = None  # type: ignore[assignment]

NATIVE_PIECE_BYTES = 128 * 1024
"""How much text simdjson works on in one step: a fifth of a millisecond of flat numbers."""

LIST_PIECE_BYTES = 32 * 1024
"""How much text orjson works on in one step: it is two to four times slower than simdjson."""

MAX_FEW = 64
"""The most floats that `read_few` reads: up to here Python's numbers cost less than calls of numpy."""

_PACKED = {"d": "d", "i": "q", "u": "Q"}
_PARSED_DTYPE = {"d": np.dtype("<f8"), "i": np.dtype("<i8"), "u": np.dtype("<u8")}
_PARSER = simdjson.Parser() if simdjson is not None else None

_MINUS, _ZERO, _TRUE, _FALSE = b"-0tf"
_ENDS_NUMBER = np.isin(np.arange(256), list(b",] \t\r\n"))
_LAYOUTS = {
    name: [struct.Struct(f"<{n_elements}{letter}") for n_elements in range(MAX_FEW + 1)]
    for name, letter in (("FP16", "e"), ("FP32", "f"), ("FP64", "d"))
}
_FLOATS = msgspec.json.Decoder(tuple[float, ...])
_BITS = np.dtype("<u8")
_LOW_BYTES_OF_TIE = b"\0\0\0"
"""A float64 between two neighbours of FP32 has at most 25 significant bits, also below the smallest normal number. So
the low 28 of its 52 are zero, and of FP16 and BF16 more."""
_BESIDE_LETTERS = b"[]rueals," + SPACE
_NO_INDEX = np.empty(0, np.int64)
_NONFINITE = {None: math.nan, "NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def most_bytes() -> int:
    """How much text the parser that is installed works on in one step."""
    return NATIVE_PIECE_BYTES if _PARSER is not None else LIST_PIECE_BYTES


def parse(text: bytes | bytearray, datatype: Datatype) -> tuple[Array, Any] | None:
    """The numbers in *text* (one JSON array, at most `MAX_DEPTH` deep), exactly, and the lists that the parser made.

    The numbers as float64, int64 or uint64, shape [n]; booleans as `bool`, or as 1 and 0. None if they need the
    tolerant path.
    """
    if datatype.kind is Kind.BOOL:
        letters = np.frombuffer(text.translate(None, _BESIDE_LETTERS), np.uint8)
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
    if parsed is None or datatype.kind is not Kind.FLOAT or not len(parsed[0]):
        return parsed
    values = parsed[0]
    if datatype.item_bytes < 8 and len(_tied(values, datatype)):
        return None
    # Both parsers read -0 as the integer 0, which has lost its sign. Of few values, a count takes a fifth of `all`.
    if np.count_nonzero(values) < len(values) and b"-" in text and _has_negative_zero(text):
        return None
    return parsed


def _load(text: bytes | bytearray) -> Any:
    """The lists in *text*; None if it is no JSON."""
    try:
        return orjson.loads(text) if _PARSER is None else _PARSER.parse(text)
    except (ValueError, RuntimeError):
        return None


def _parse_natively(parser: "simdjson.Parser", text: bytes | bytearray, datatype: Datatype) -> tuple[Array, Any] | None:
    """`parse` by simdjson, which must not parse again while its lists live."""
    try:
        lists = parser.parse(text)
        assert isinstance(lists, simdjson.Array)  # text starts with a bracket
        buffer = lists.as_buffer(of_type=datatype.parsed)
    except (ValueError, TypeError, RuntimeError):
        return None
    return np.frombuffer(buffer, _PARSED_DTYPE[datatype.parsed]), lists  # a keyword takes twice as long


def _parse_as_list(text: bytes | bytearray, datatype: Datatype) -> tuple[Array, Any] | None:
    """`parse` by orjson, through Python's numbers.

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
    return np.frombuffer(packed, _PARSED_DTYPE[datatype.parsed]), lists


def _has_negative_zero(text: bytes | bytearray) -> bool:
    """Whether *text* (JSON numbers) has one that is written `-0`.

    Searching for `-0,` and its like takes as long as parsing it all, because `-0` begins every `-0.5`.
    """
    codes = np.frombuffer(text, dtype=np.uint8)
    signs = np.flatnonzero(codes == _MINUS)
    signs = signs[codes[signs + 1] == _ZERO]
    return bool(_ENDS_NUMBER[codes[signs + 2]].any())


def rounded(values: Array, datatype: Datatype, first: int = 0) -> Array:
    """*values* (float64, int64 or uint64, none of which is tied) as what *datatype* can hold.

    Floats become the nearest of the datatype; integers stay as they are, for numpy to narrow when they are stored.
    *first* is the index of the first value in its tensor. Raises `CodecError` for a value beyond the datatype's range.
    """
    if datatype.item_bytes == 8 or not len(values):  # of 64 bits, the parser has checked the range
        return values
    highest = datatype.highest
    lowest = -highest if datatype.kind is Kind.FLOAT else datatype.lowest
    # of few values, a number at an index is there in a third of the time of `min`
    if values[values.argmin()] >= lowest and values[values.argmax()] <= highest:
        return datatype.narrow(values)
    is_beyond = (values < lowest) | (values > highest)
    narrowed = values
    if datatype.kind is Kind.FLOAT:  # what is nearer to the highest than to the next one is rounded down to it
        with np.errstate(over="ignore", invalid="ignore"):
            narrowed = datatype.narrow(values)
        is_beyond = np.isfinite(values) & ~datatype.is_finite(narrowed)  # type: ignore[misc]
    if is_beyond.any():
        index = int(np.argmax(is_beyond))
        raise CodecError(f"element {first + index}: {datatype.name} cannot hold {values[index]}")
    return narrowed


def _tied(values: Array, datatype: Datatype) -> Array:
    """Which of float64 *values* lie exactly between two of *datatype*, as indices; some may be named that do not."""
    ties = (values.view(_BITS) & datatype.dropped_bits) == datatype.tie
    tied = np.flatnonzero(ties) if np.count_nonzero(ties) else _NO_INDEX
    magnitudes = np.abs(values)
    if magnitudes[magnitudes.argmin()] >= datatype.smallest_normal:
        return tied
    # below the smallest normal number all neighbours have the same distance
    small = np.flatnonzero((magnitudes < datatype.smallest_normal) & (magnitudes > 0))
    steps = magnitudes[small] / datatype.smallest
    return np.union1d(tied, small[steps - np.floor(steps) == 0.5])


def load_tolerantly(text: bytes, first: int) -> Any:
    """The lists in *text*, by the standard library's parser, with numbers as bytes, for `values_of`.

    *first* is the index of the first number in its tensor. Raises `CodecError` for what is no JSON.
    """
    try:
        return json.loads(text.decode(), parse_int=str.encode, parse_float=str.encode)
    except (ValueError, RecursionError) as error:
        raise CodecError(f"malformed JSON near element {first}: {error}") from None


def values_of(items: list[Any], datatype: Datatype, first: int) -> Array:
    """*items* of `load_tolerantly`, the first of which is the element *first*. Raises `CodecError` for a wrong one.

    What is tied is moved to the side on which its decimal lies. Of the shortest texts of all 2^32 FP32 one pair needs
    it: 7.038531e-26 and its negative.
    """
    numbers = [_value(item, index, datatype) for index, item in enumerate(items, first)]
    values = np.array(numbers, _PARSED_DTYPE[datatype.parsed])
    if datatype.kind is Kind.FLOAT and datatype.item_bytes < 8 and len(values):
        for index in _tied(values, datatype).tolist():
            exact, number = Decimal(items[index].decode()), Decimal(numbers[index])
            if exact != number:
                values[index] = math.nextafter(numbers[index], math.inf if exact > number else -math.inf)
    return values


def _value(item: Any, index: int, datatype: Datatype) -> float:
    """*item*, which stands for the element at *index*, as a number of the datatype (protocol 4.7)."""
    is_number = type(item) is bytes
    if datatype.kind is Kind.FLOAT:
        if is_number and not math.isinf(number := float(item)):
            return number
        if item is None or type(item) is str:
            item = _NONFINITE.get(item, item)
        if type(item) is float:
            return item
    elif is_number:
        whole = _whole(item)
        if whole is not None and datatype.lowest <= whole <= datatype.highest:
            return whole
    elif datatype.kind is Kind.BOOL and type(item) is bool:
        return item
    if is_number and item.lstrip(b"-").isdigit():
        raise CodecError(f"element {index}: {datatype.name} cannot hold {item[:32].decode()}")
    got = item.decode() if is_number else json.dumps(item)
    raise CodecError(f"element {index}: expected {datatype.name}, got {got[:32]}")


def _whole(text: bytes) -> int | None:
    """The number *text* without its exponent and its fraction; None if it has a fraction that is not zero."""
    with suppress(InvalidOperation):  # an exponent of more than 18 digits
        exact = Decimal(text.decode())
        # beyond 64 bits it is refused in any case, and 1e999999999 should not be written out first
        if exact.adjusted() < 25 and (whole := int(exact)) == exact:
            return whole
    return None


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

    None for what `NumberSink` has to look at more closely or to refuse: other counts, NaN, numbers that are out of
    range, ties, and what the parser does not read.
    """
    parsed = parse(text, datatype)
    if parsed is None or len(parsed[0]) != n_elements or not n_elements:
        return None
    try:
        return rounded(parsed[0], datatype).astype(datatype.wire, copy=False).tobytes()
    except CodecError:
        return None
