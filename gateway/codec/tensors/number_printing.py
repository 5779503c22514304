"""Tensors of numbers and booleans as JSON text, a piece at a time.

orjson prints numpy arrays: the shortest text that reads back to the same bits, several times faster than going
through Python's numbers. It prints FP32 as FP32 (0.1, not 0.10000000149011612). What numpy or orjson does not know is
widened first: FP16 and BF16 to FP32, which is exact, and BOOL to true or false by comparing with zero.

Each piece is an array of its own, printed as `[1.5,2.5]`; its brackets are cut off, and a comma goes before all but
the first. So the pieces are the inside of one array, and memory holds one of them at a time.

FP16 and BF16 have only 65,536 patterns, whose texts are printed once, when this module is imported, into a table of
fixed-width entries: a comma, the text, and zero bytes to fill up. Printing is then one lookup of all elements and the
removal of the zero bytes, 1.5 times faster for FP16 and 1.2 times for BF16. For lists of UINT8, see `_byte_lists`. For
other integers, whose texts are shorter, orjson is as fast.

orjson prints NaN and the infinities as null without a word: the caller has refused what it does not want. Where it
wants literals, the nulls of each piece are found, and the literals put in their places, in order.

Where a server wants numbers as texts, `as_texts` puts quotes around the numbers of a piece.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import orjson

from gateway.codec.tensors.datatypes import DATATYPES, Array, Datatype

PIECE_ELEMENTS = 16 * 1024
"""How many elements are printed at once: under half a millisecond for every datatype."""

BRACKETS_PER_ELEMENT = 4
"""So many brackets around a single element cost as much as one more."""

_MARKS = 128  # behind ASCII, which all texts of numbers are
_OPTIONS = orjson.OPT_SERIALIZE_NUMPY


def text_pieces(values: Array, datatype: Datatype, *, literals: bool = False) -> Iterator[bytes]:
    """*values* (wire layout, shape [n]) as the inside of a JSON array, in pieces of `PIECE_ELEMENTS`.

    Every number is the shortest text that reads back to the same bits (protocol 3.3). What JSON cannot say comes out as
    `null`, or with *literals* as `NaN`, `Infinity` and `-Infinity` (protocol 3.4).
    """
    for start in range(0, len(values), PIECE_ELEMENTS):
        text = array_text(values[start : start + PIECE_ELEMENTS], datatype, literals=literals)
        yield b"".join((b"," if start else b"", memoryview(text)[1:-1]))


def _text_table(datatype: Datatype) -> npt.NDArray[np.bytes_]:
    """The text of each number of a *datatype* of 16 bits, with a comma before it, filled up with zero bytes."""
    numbers = datatype.view(memoryview(np.arange(2**16, dtype=datatype.bits).tobytes()))
    texts: list[bytes] = orjson.dumps(datatype.widen(numbers), option=_OPTIONS)[1:-1].split(b",")
    return np.array([b"," + text for text in texts])


_TABLES = {name: _text_table(DATATYPES[name]) for name in ("FP16", "BF16")}
_BYTE_TEXTS = np.array([b",%-3d" % number for number in range(256)])


def array_text(values: Array, datatype: Datatype, *, literals: bool = False) -> bytes:
    """*values* (wire layout, no scalar) as one JSON array, in one step, for few elements; see `text_pieces`."""
    if datatype.name == "UINT8" and values.ndim > 1:
        text = _byte_lists(values)
    elif datatype.name in _TABLES and values.ndim == 1:
        entries = _TABLES[datatype.name].take(values.view(datatype.bits)).tobytes().translate(None, b"\0")
        text = b"".join((b"[", memoryview(entries)[1:], b"]"))
    else:
        text = orjson.dumps(datatype.widen(values), option=_OPTIONS)
    # `n` is found ten times as fast as `null`, the only word of numbers that has one
    return _with_literals(text, datatype.widen(values)) if literals and b"n" in text else text


def _byte_lists(values: Array) -> bytes:
    """*values* of UINT8 in lists, as images are: in half of the time that orjson takes for pixels of three.

    All texts have one width, filled up with blanks, so the commas where lists end are at known places: another
    character stands there until the brackets take its place. The 15 lines halve what the gateway needs for an image.
    """
    entries = _BYTE_TEXTS.take(values)
    commas = entries.view(np.uint8).reshape(-1, entries.itemsize)[:, 0]
    size = 1
    for n_lists, length in enumerate(values.shape[:0:-1], 1):
        size *= length
        commas[::size] = _MARKS + n_lists
    text = entries.tobytes()
    for n_lists in range(1, values.ndim):
        text = text.replace(bytes([_MARKS + n_lists]), separator(n_lists))
    return b"[" * values.ndim + text[2 * values.ndim - 1 :] + b"]" * values.ndim


def separator(n_lists: int) -> bytes:
    """What stands where so many lists end and others begin."""
    return b"]" * n_lists + b"," + b"[" * n_lists


def as_texts(text: bytes) -> bytes:
    """*text*, a piece of nested lists that ends beside whole numbers, with each number in quotes.

        [[1.5,2],[null   ->   [["1.5","2"],[null

    A null stays one: JSON has no text that stands for NaN in its place. Where lists end and others begin, marks stand
    for the first and the last bracket and for the comma, and each becomes what it was and the quote beside it.
    """
    numbers = bytearray(text.strip(b"[],"))
    if not numbers:
        return text
    before = len(text) - len(text.lstrip(b"[],"))
    behind = before + len(numbers)
    if numbers.find(b" ") >= 0:  # short integers are filled up
        numbers = numbers.replace(b" ", b"")
    has_lists = numbers.find(b"]") >= 0
    if has_lists:
        codes = np.frombuffer(numbers, np.uint8)
        closing = (codes == ord("]")).nonzero()[0]
        is_first = np.diff(closing, prepend=-2) > 1
        first, commas = closing[is_first], closing[np.append(is_first[1:], True)] + 1
        codes[first] = _MARKS
        codes[commas] = _MARKS + 1
        codes[2 * commas - first] = _MARKS + 2  # as many brackets open as have closed
    numbers = numbers.replace(b",", b'","')
    for mark, quoted in enumerate((b'"]', b",", b'["'), _MARKS) if has_lists else ():
        numbers = numbers.replace(bytes([mark]), quoted)
    numbers = bytearray(b'"%b"' % bytes(numbers))
    if numbers.find(b"n") >= 0:
        numbers = numbers.replace(b'"null"', b"null")
    return b"".join((text[:before], numbers, text[behind:]))


def _with_literals(text: bytes, numbers: Array) -> bytes:
    """*text*, the printed *numbers*, with literals in place of its nulls, by a mark for each literal."""
    numbers = numbers[~np.isfinite(numbers)]
    marked = bytearray(text.replace(b"null", bytes([_MARKS])))
    codes = np.frombuffer(marked, np.uint8)
    codes[codes == _MARKS] = np.where(np.isnan(numbers), _MARKS, np.where(numbers > 0, _MARKS + 1, _MARKS + 2))
    for mark, literal in enumerate((b"NaN", b"Infinity", b"-Infinity"), _MARKS):
        marked = marked.replace(bytes([mark]), literal)
    return bytes(marked)
