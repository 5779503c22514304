"""The numbers and booleans in one JSON array: from its text to an array of their datatype, exactly.

simdjson does the parsing. It is exact, several times faster than going through Python objects, and returns one flat
array however the text is nested. Where it is not installed, orjson reads the text to a list of Python's numbers, and
`struct` packs them: as exact, but 30 to 45 ns an element instead of 8 to 20. Both return the same or refuse; a property
test compares them. What they refuse (NaN, null, 1.0 for an integer) goes through the standard library's parser, value
by value: ten times slower and tolerant.

Rounding. All parsers return float64, and a number for FP32 would be rounded twice: decimal to float64, float64 to FP32.
The result differs from rounding once only if the float64 lies exactly between two FP32 and the decimal does not. The
bits of a float64 tell whether it lies so; then the decimal is looked up in the text and compared exactly.
"""

import json
import math
import re
import struct
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import orjson

from gateway.codec.json.pieces import SPACE
from gateway.codec.tensors.datatypes import DATATYPES, FLOAT, Array, Datatype, Kind
from gateway.codec.tensors.nesting import occurrences
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
"""The most numbers that `read_few` reads, by Python's numbers: numpy's calls make a small request cost a tenth more."""

LIST_BYTES = 64
"""How much flat text orjson reads in the time of one list, for which it makes an object of Python."""

MAX_EXPONENTS = 64
"""How many numbers of one text may have an exponent for simdjson to read it. With 19 digits or more, as `%.18e` writes
them, each such number takes simdjson 1 to 14 us, and orjson 0.1."""

MAX_TIES = 256
"""How many numbers of one piece are looked up in its text at most, at a microsecond each."""

TIED_PIECE_BYTES = 1024
"""How much text is worked on in one step where more than `MAX_TIES` would have to be looked up in a longer one."""

_PACKED = {"d": "d", "i": "q", "u": "Q"}
_PARSED_DTYPE = {"d": np.dtype("<f8"), "i": np.dtype("<i8"), "u": np.dtype("<u8")}
_PARSER = simdjson.Parser() if simdjson is not None else None

_MINUS, _ZERO, _TRUE, _FALSE = b"-0tf"
_ENDS_NUMBER = np.isin(np.arange(256), list(b",] \t\r\n"))
_DECODERS: dict[Kind, msgspec.json.Decoder[tuple[float, ...]]] = {
    Kind.BOOL: msgspec.json.Decoder(tuple[bool, ...]),
    Kind.INTEGER: msgspec.json.Decoder(tuple[int, ...]),
    Kind.FLOAT: msgspec.json.Decoder(tuple[float, ...]),
}
_PACKABLE = "BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 FP32 FP64"  # `struct` has no BF16 and BYTES
_FEW = {
    (name, n_elements): (_DECODERS[DATATYPES[name].kind], struct.Struct(f"<{n_elements}{letter}"))
    for name, letter in zip(_PACKABLE.split(), "?BHIQbhiqefd", strict=True)
    for n_elements in range(1, MAX_FEW + 1)
}
"""How so many numbers are decoded, and how they are laid out on the wire."""
_BITS = np.dtype("<u8")
_LOW_BYTES_OF_TIE = b"\0\0\0"
"""A float64 between two neighbours of FP32 has at most 25 significant bits, also below the smallest normal number. So
the low 28 of its 52 are zero, and of FP16 and BF16 more."""
_SAMPLE_BYTES = 256  # so much of a longer text shows how long its numbers are
_LONG_NUMBER = re.compile(rb"[1-9][0-9.]{18}[0-9]")
_BESIDE_LETTERS = b"[]rueals," + SPACE
_NUMBER_TEXT = re.compile(r" *[+-]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)? *")
_NONFINITE_TEXT = re.compile(r" *([+-]?)(?:nan|(inf(?:inity)?)) *", re.IGNORECASE | re.ASCII)
_NONFINITE = {None: math.nan, "NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def most_bytes() -> int:
    """How much text the parser that is installed works on in one step."""
    return NATIVE_PIECE_BYTES if _PARSER is not None else LIST_PIECE_BYTES


def parse(text: bytes | bytearray, datatype: Datatype, *, can_be_cut: bool = True) -> tuple[Array, Any] | None:
    """The numbers in *text* (one JSON array, at most `MAX_DEPTH` deep), exactly; None if they need the tolerant path.

    As float64, int64 or uint64, shape [n]; booleans as `bool`, or as 1 and 0. And the lists that the parser made.
    Raises `LongTextError` if it takes too long and *can_be_cut*.
    """
    if datatype.kind is Kind.BOOL and (_TRUE in text or _FALSE in text):
        # simdjson's buffers have no booleans, but in JSON nothing but words leaves these letters
        letters = np.frombuffer(text.translate(None, _BESIDE_LETTERS), dtype=np.uint8)
        truth = letters == _TRUE
        if np.count_nonzero(truth) + np.count_nonzero(letters == _FALSE) < len(letters):
            return None
        try:
            return truth, orjson.loads(text) if _PARSER is None else _PARSER.parse(text)
        except (ValueError, RuntimeError):
            return None
    if _PARSER is not None and not _is_slow(text, datatype):
        parsed = _parse_natively(_PARSER, text, datatype)
    else:
        if can_be_cut:
            _check_length(text)
        parsed = _parse_as_list(text, datatype)
    if parsed is None or datatype.kind is Kind.INTEGER or _MINUS not in text:
        return parsed
    if np.count_nonzero(parsed[0]) == len(parsed[0]):  # of few values in a fifth of the time of `all`
        return parsed
    # both parsers read -0 as the integer 0, which has lost its sign
    return None if _has_negative_zero(text) else parsed


def _parse_natively(parser: "simdjson.Parser", text: bytes | bytearray, datatype: Datatype) -> tuple[Array, Any] | None:
    """`parse` by simdjson, which must not parse again while its lists live."""
    try:
        lists = parser.parse(text)
        assert isinstance(lists, simdjson.Array)  # text starts with a bracket
        buffer = lists.as_buffer(of_type=datatype.parsed)
    except (ValueError, TypeError, RuntimeError):
        return None
    return np.frombuffer(buffer, _PARSED_DTYPE[datatype.parsed]), lists  # a keyword takes twice as long


def _check_length(text: bytes | bytearray) -> None:
    """Raise `LongTextError` if orjson takes too long for *text* in one step."""
    n_bytes = len(text) + LIST_BYTES * occurrences(text, b"[")  # flat text that takes as long
    if n_bytes > 2 * LIST_PIECE_BYTES and len(text) > 2 * TIED_PIECE_BYTES:
        raise LongTextError(max(LIST_PIECE_BYTES * len(text) // n_bytes, TIED_PIECE_BYTES))


def _parse_as_list(text: bytes | bytearray, datatype: Datatype) -> tuple[Array, Any] | None:
    """`parse` by orjson, through Python's numbers.

    `struct` is as strict as the datatype: it takes no float or null for an integer, and no integer beyond 64 bits,
    which orjson gives as a float. It would take true for 1, so there may be no such word.
    """
    if _TRUE in text or _FALSE in text:
        return None
    try:
        lists = numbers = orjson.loads(text)
        while numbers and type(numbers[0]) is list:
            numbers = list(chain.from_iterable(numbers))
        packed = struct.pack(f"{len(numbers)}{_PACKED[datatype.parsed]}", *numbers)
    except (ValueError, TypeError, struct.error):
        return None
    return np.frombuffer(packed, dtype=_PARSED_DTYPE[datatype.parsed]), lists


def _is_slow(text: bytes | bytearray, datatype: Datatype) -> bool:
    """Whether simdjson reads the numbers in *text* slowly: many have an exponent, or more than 18 significant digits.

    Such a number takes it 0.4 us and more. Of the digits only the beginning of a long text is asked, since a server
    writes all numbers of a tensor in one way.
    """
    if sum(occurrences(text, mark) for mark in (b"e", b"E") if text.find(mark) >= 0) > MAX_EXPONENTS:
        return True
    if datatype.kind is not Kind.FLOAT or len(text) <= _SAMPLE_BYTES:
        return False
    return _LONG_NUMBER.search(text, 0, _SAMPLE_BYTES) is not None or text.find(b",", 0, _SAMPLE_BYTES) < 0


def _has_negative_zero(text: bytes | bytearray) -> bool:
    """Whether *text* (JSON numbers) has one that is written `-0`.

    Searching for `-0,` and its like takes as long as parsing it all, because `-0` begins every `-0.5`.
    """
    codes = np.frombuffer(text, dtype=np.uint8)
    signs = ((codes[:-1] == _MINUS) & (codes[1:] == _ZERO)).nonzero()[0]
    return bool(_ENDS_NUMBER[codes[signs + 2]].any())


class LongTextError(Exception):
    """A text with numbers like these takes too long for one step; one of at most *most_bytes* does not."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes


def rounded(values: Array, text: bytes | bytearray, datatype: Datatype, first: int = 0) -> Array:
    """*values* (float64, int64, uint64 or bool), which were parsed from *text*, as what *datatype* can hold.

    Floats become the nearest of the datatype; integers stay as they are, for numpy to narrow when they are stored.
    *first* is the index of the first value in its tensor. Raises `CodecError` for a value beyond the datatype's range,
    and `LongTextError` where a shorter *text* has to be worked on.
    """
    # of 64 bits, the parser has checked the range; words have none
    if datatype.item_bytes == 8 or values.dtype == np.bool_ or not len(values):
        return values
    if datatype.kind is not Kind.FLOAT:
        # of few values, a number at an index is there in a third of the time of `min`
        if values[values.argmin()] < datatype.lowest or values[values.argmax()] > datatype.highest:
            beyond = (values < datatype.lowest) | (values > datatype.highest)
            raise _refusal(values[beyond][0].item(), first + int(np.argmax(beyond)), datatype)
        return values
    magnitudes = np.abs(values)
    tied = _tied(values, magnitudes, datatype)
    if len(tied):
        if len(tied) > MAX_TIES and len(text) > 2 * TIED_PIECE_BYTES:
            raise LongTextError(TIED_PIECE_BYTES)
        values = _moved_off_ties(values, tied, text)
    if magnitudes[magnitudes.argmax()] <= datatype.highest:
        return datatype.narrow(values)
    with np.errstate(over="ignore", invalid="ignore"):
        narrowed = datatype.narrow(values)
    infinite = np.isfinite(values) & ~datatype.is_finite(narrowed)  # type: ignore[misc]
    if infinite.any():
        raise _refusal(values[infinite][0].item(), first + int(np.argmax(infinite)), datatype)
    return narrowed


def _tied(values: Array, magnitudes: Array, datatype: Datatype) -> Array:
    """Which of float64 *values* lie exactly between two of *datatype*, as indices; *magnitudes* are without sign.

    Some may be named that do not.
    """
    tied: Array = ((values.view(_BITS) & datatype.dropped_bits) == datatype.tie).nonzero()[0]
    if magnitudes[magnitudes.argmin()] >= datatype.smallest_normal:
        return tied
    # below the smallest normal number all neighbours have the same distance
    small = ((magnitudes < datatype.smallest_normal) & (magnitudes > 0)).nonzero()[0]
    if not len(small):
        return tied
    steps = magnitudes[small] / datatype.smallest
    return np.union1d(tied, small[steps - np.floor(steps) == 0.5])


def _moved_off_ties(values: Array, tied: Array, text: bytes | bytearray) -> Array:
    """float64 *values*, with those at the indices *tied* moved to the side on which their decimal in *text* lies.

    Of the shortest texts of all 2^32 FP32 one pair needs it: 7.038531e-26 and its negative.
    """
    moved: npt.NDArray[np.float64] = values.astype("<f8")
    decimals = [word for word in text.translate(None, b'[]" \t\r\n').split(b",") if word]
    for index in tied:
        exact, rounded = Decimal(decimals[index].decode()), Decimal(float(moved[index]))
        if exact != rounded:
            moved[index] = np.nextafter(moved[index], math.inf if exact > rounded else -math.inf)
    return moved


def load_tolerantly(text: bytes, datatype: Datatype, first: int) -> Any:
    """The lists in *text*, by the standard library's parser, for `values_of`.

    *first* is the index of the first number in its tensor. Raises `CodecError` for what is no JSON.
    """
    # of FLOAT, -0 and large integers are floats as well; a literal is a word, unlike a number that is infinite
    number, constant = (float, str) if datatype.kind is Kind.FLOAT else (_decimal, float)
    try:
        return json.loads(text.decode(), parse_int=number, parse_float=number, parse_constant=constant)
    except ValueError as error:
        raise CodecError(f"malformed JSON near element {first}: {error}") from None


def _decimal(text: str) -> Decimal | str:
    try:
        return Decimal(text)
    except InvalidOperation:  # an exponent of more than 18 digits
        return text


def values_of(items: list[Any], datatype: Datatype, first: int, *, takes_texts: bool = False, hint: str = "") -> Array:
    """*items* of `load_tolerantly`, the first of which is the element *first*.

    *takes_texts*: an item may be a text with a number in it. Raises `CodecError` for a wrong item; where texts are not
    taken, *hint* ends the error for one that is a number.
    """
    values: list[float] = []
    for index, item in enumerate(items, first):
        number = _number_in(item, datatype) if type(item) is str and (takes_texts or hint) else None
        if number is None:
            values.append(_value(item, index, datatype))
        elif takes_texts:
            values.append(_value(number, index, datatype, item))
        elif item in _NONFINITE:
            values.append(_NONFINITE[item])
        else:
            raise CodecError(f"{_refusal(item, index, datatype)}{hint}")
    return np.array(values, dtype=_PARSED_DTYPE[datatype.parsed])


def _number_in(text: str, datatype: Datatype) -> float | Decimal | str | None:
    """The number that *text* is, as `load_tolerantly` gives numbers of *datatype*; None if it is none.

    It takes what servers print: `1`, `-1.50`, `1.0E-5`, `1e+21`, also `+1`, `1.` and `.5`, with blanks around them; for
    floats `NaN`, `inf`, `-Infinity` and so on, in upper or lower case. It refuses what can be read in two ways: `007`,
    `1,5`, `1_000`, `0x10`.
    """
    if datatype.kind is Kind.FLOAT and (word := _NONFINITE_TEXT.fullmatch(text)):
        return f"{'-' * (word[1] == '-')}Infinity" if word[2] else "NaN"
    if not _NUMBER_TEXT.fullmatch(text):
        return None
    return float(text) if datatype.kind is Kind.FLOAT else _decimal(text)


def _value(item: Any, index: int, datatype: Datatype, got: str | None = None) -> float:
    """*item*, which stands for the element at *index*, as a number of the datatype (protocol 4.7).

    Errors say *got*, if it is given, instead of the item.
    """
    if datatype.kind is Kind.FLOAT:
        if type(item) is float and math.isfinite(item):
            return item
        if (item is None or type(item) is str) and item in _NONFINITE:
            return _NONFINITE[item]
    elif type(item) is Decimal and not (datatype.kind is Kind.BOOL and item.is_signed()):
        # in this order: within the bounds, a number may be written out
        if datatype.lowest <= item <= datatype.highest and item == item.to_integral_value():
            return int(item)
    elif type(item) is bool and datatype.kind is Kind.BOOL:
        return item
    raise _refusal(item if got is None else got, index, datatype)


def _refusal(got: Any, index: int, datatype: Datatype) -> CodecError:
    text = str(got) if type(got) is Decimal else json.dumps(got, default=str)
    is_infinite = type(got) is float and math.isinf(got)
    return CodecError(f"element {index}: {datatype.name} cannot hold {'such a number' if is_infinite else text[:32]}")


def read_few(text: bytes, datatype: Datatype, n_elements: int) -> bytes | None:
    """The *n_elements* numbers in *text*, a JSON array without inner brackets, as they are on the wire.

    None for more than `MAX_FEW`, and for whatever has to be looked at more closely, which `read_flat` may know.
    """
    few = _FEW.get((datatype.name, n_elements))
    if few is None:
        return None
    decoder, layout = few
    try:
        numbers = decoder.decode(text)
        blob = layout.pack(*numbers)
    except (msgspec.DecodeError, struct.error, OverflowError):
        return None
    if datatype.kind is not FLOAT:
        return blob
    if _may_have_ties(numbers):
        # a number that the datatype has, such as 0 or 0.5, is no tie, though its low bytes are zero
        rounded = [number for number, kept in zip(numbers, layout.unpack(blob), strict=True) if number != kept]
        if rounded and _may_have_ties(rounded):
            return None
    # -0 has been read as 0, without its sign
    return None if _MINUS in text and blob.find(bytes(datatype.item_bytes)) >= 0 else blob


def _may_have_ties(numbers: Sequence[float]) -> bool:
    """Whether any of *numbers*, few of them, may be between two neighbours of a smaller datatype."""
    return _FEW["FP64", len(numbers)][1].pack(*numbers).find(_LOW_BYTES_OF_TIE) >= 0


def read_flat(text: bytes, datatype: Datatype, n_elements: int) -> bytes | None:
    """The *n_elements* numbers in *text*, a JSON array nested in any way, as they are on the wire.

    None for what `NumberSink` has to look at more closely or to refuse: other counts, NaN, numbers that are out of
    range, many ties, many exponents in a long text, and what the parser does not read.
    """
    try:
        parsed = parse(text, datatype)
        if parsed is None or len(parsed[0]) != n_elements or not n_elements:
            return None
        return rounded(parsed[0], text, datatype).astype(datatype.wire, copy=False).tobytes()
    except (CodecError, LongTextError):
        return None
