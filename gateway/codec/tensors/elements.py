"""BYTES on the wire: elements, each with its length before it as a little-endian uint32 (protocol 2.4).

The elements of a blob can only be found one after the other: each length says where the next element begins. Walking
from length to length, a few operations of Python per element, is the most expensive thing about a valid blob. So numpy
finds the bounds of a window of elements at a time where it can, once for checking and once for printing:

1. If the first length fits many elements (keys, hashes, crops of one size), it looks at the places where the lengths
   must be if all are the same: 50 times faster than walking.
2. Short text has no zeros, but each length before it ends with two zeros, which show where the lengths are. This guess
   is then proved by following it from length to length: 3 to 6 times faster than walking.

That every element is UTF-8 is proved for a window at once. Zeros stand in place of the lengths, which are characters
of their own: no character can reach from the end of one element into the next.

Here: proving a blob right, finding its elements, and making one.
"""

import struct
from collections.abc import Generator, Iterator
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from gateway.codec.json.pieces import PIECE_BYTES, check_utf8
from gateway.codec.tensors.datatypes import count_text
from gateway.errors import CodecError

MAX_ELEMENT_BYTES = 2**32 - 1
"""The longest element that a uint32 length can announce."""

PREFIX_BYTES = 4
"""The size of a length."""

WINDOW_BYTES = 4 * PIECE_BYTES
"""How much is looked at for many short elements, so that numpy's calls pay off."""

LENGTH = struct.Struct("<I")
"""How a length is written."""

STEP_ELEMENTS = 4096
"""How many short elements one step works on one by one."""

RUN_STEP_ELEMENTS = 16 * 1024
"""How many short elements one step looks at where numpy finds them."""

SHORT_ELEMENT_BYTES = 256
"""Walking through longer elements is faster than having numpy look at all their bytes."""

RUN_ELEMENTS = 32
"""Fewer elements are not worth numpy's calls."""

FEW_TEXTS = 128
"""How many elements of a small request are found and printed without numpy, whose first calls are slow in a running
gateway. A request with ten elements costs 0.75 of what it would with numpy, one with 128 0.9. 75 lines, with tests."""

BASE64_HINT = ", and JSON has only text; set `bytes: base64` for this backend if it reads base64"
"""What to do about an element that is not UTF-8."""

_WORTH_GUESSING = 512  # a guess costs as much as walking through so many elements


def prefix_of(n_bytes: int, what: str) -> bytes:
    """The length before an element of *n_bytes*. Raises `CodecError` naming *what* if a length cannot say so many."""
    if n_bytes > MAX_ELEMENT_BYTES:
        raise CodecError(f"{what} has {n_bytes} bytes, more than a BYTES element can have")
    return LENGTH.pack(n_bytes)


def check_elements(
    blob: memoryview, n_elements: int, label: object, *, utf8: bool, hint: str = BASE64_HINT
) -> Iterator[None]:
    """Prove that *blob* is exactly *n_elements* length-prefixed elements; with *utf8*, that each is UTF-8.

    *hint* ends the error for one that is not. Yields after each step of work. Raises `CodecError` naming *label* and
    the element (protocol 2.4, 3.5).
    """
    if n_elements * PREFIX_BYTES > len(blob):
        raise CodecError(
            f"{label}: expected {count_text(n_elements)} elements, which take at least "
            f"{count_text(n_elements * PREFIX_BYTES)} bytes for their lengths, got {len(blob)} bytes"
        )
    offset = index = 0
    while index < n_elements:
        window = bytes(blob[offset : offset + WINDOW_BYTES])
        bounds = bounds_of(window, n_elements - index)
        if len(bounds) > 1:
            if utf8 and not window.isascii():
                _check_utf8_of_all(window, bounds, index, label, hint)
            offset += int(bounds[-1])
            index += len(bounds) - 1
            yield
            continue
        # an element that is longer than a window, or broken
        start = offset + PREFIX_BYTES
        left = len(blob) - start
        if left < 0:
            raise CodecError(
                f"{label}: expected {n_elements} elements, got {index} and {left + PREFIX_BYTES} trailing bytes"
            )
        size = int.from_bytes(blob[offset:start], "little")
        if size > left:
            raise CodecError(f"{label}: element {index} says it has {size} bytes, but only {left} are left")
        offset = start + size
        if utf8:
            yield from check_utf8(blob[start:offset], f"{label}: element {index}", hint)
        index += 1
        yield
    if offset != len(blob):
        raise CodecError(
            f"{label}: expected {n_elements} elements, which end after {offset} bytes, "
            f"got {len(blob) - offset} bytes more"
        )


def few_texts(blob: memoryview, n_elements: int) -> list[str] | None:
    """The *n_elements* of *blob* as text; None for many, for long ones, and where `check_elements` finds a fault."""
    if n_elements > FEW_TEXTS or len(blob) > PIECE_BYTES:
        return None
    texts: list[str] = []
    window, end = bytes(blob), 0
    with suppress(struct.error, UnicodeDecodeError):
        for _ in range(n_elements):
            start = end + PREFIX_BYTES
            end = start + LENGTH.unpack_from(window, end)[0]
            texts.append(str(window[start:end], "utf-8"))
        if end == len(window):
            return texts
    return None


def end_of(blob: memoryview, start: int, n_elements: int) -> Generator[None, None, int]:
    """Where the *n_elements* end that begin at *start* of *blob*, which was proved right. Yields after each step."""
    while n_elements:
        bounds = bounds_of(bytes(blob[start : start + WINDOW_BYTES]), n_elements)
        if len(bounds) > 1:
            start += int(bounds[-1])
            n_elements -= len(bounds) - 1
        else:  # one that is longer than a window
            start += PREFIX_BYTES + LENGTH.unpack_from(blob, start)[0]
            n_elements -= 1
        yield
    return start


def starts_of(blob: memoryview, n_elements: int, per_row: int) -> Generator[None, None, npt.NDArray[np.int64]]:
    """Where every *per_row*-th of the *n_elements* of *blob* begins, and where the last ends.

    Yields after each step of work.
    """
    starts = np.zeros(-(-n_elements // per_row) + 1, np.int64)
    index = start = 0
    while index < n_elements:
        bounds = bounds_of(bytes(blob[start : start + WINDOW_BYTES]), n_elements - index)
        n_found = max(1, len(bounds) - 1)
        skipped = -index % per_row  # elements before the first that begins a row
        if skipped < n_found:
            begins = bounds[skipped:n_found:per_row] if len(bounds) > 1 else np.zeros(1, np.int64)
            number = (index + skipped) // per_row
            starts[number : number + len(begins)] = begins + start
        # an element that is longer than a window is alone
        start += int(bounds[-1]) if len(bounds) > 1 else PREFIX_BYTES + LENGTH.unpack_from(blob, start)[0]
        index += n_found
        yield
    starts[-1] = start
    return starts


def bounds_of(window: bytes, most: int) -> npt.NDArray[np.int64]:
    """Where the elements start that are whole at the front of *window*, and where the last ends; shape [n + 1].

    At most *most* elements, and as many as one step looks at; there may be more behind them.
    """
    if len(window) >= PREFIX_BYTES:
        stride = PREFIX_BYTES + LENGTH.unpack_from(window)[0]
        n_elements = min(most, RUN_STEP_ELEMENTS, len(window) // stride)
        if n_elements >= RUN_ELEMENTS:
            lengths: npt.NDArray[np.uint32] = np.ndarray((n_elements,), "<u4", window, strides=(stride,))
            if np.count_nonzero(lengths == stride - PREFIX_BYTES) == n_elements:
                return np.arange(0, n_elements * stride + 1, stride)
    bounds = [0]
    _walk(window, bounds, min(most, RUN_ELEMENTS))
    if len(bounds) > RUN_ELEMENTS:
        is_short = bounds[-1] < RUN_ELEMENTS * SHORT_ELEMENT_BYTES
        if is_short and (guessed := _guessed_bounds(window, most)) is not None:
            return guessed
        _walk(window, bounds, min(most, STEP_ELEMENTS))
    return np.array(bounds)


def _walk(window: bytes, bounds: list[int], most: int) -> None:
    """Go on with *bounds* from length to length, up to *most* elements that are whole."""
    end = bounds[-1]
    length_at = LENGTH.unpack_from
    with suppress(struct.error):  # the window ends
        for _ in range(len(bounds) - 1, most):
            (size,) = length_at(window, end)
            end += PREFIX_BYTES + size
            bounds.append(end)
    if end > len(window):
        bounds.pop()


def _guessed_bounds(window: bytes, most: int) -> npt.NDArray[np.int64] | None:
    """As `bounds_of`, by the zeros in *window*; None if they do not show where the lengths are.

    The upper two bytes of a length below 64 Ki are zeros, and text has none: where two zeros come before another
    byte, a length should end. Then the guess is proved: the first length must be at the front, and each element must
    end where the next one begins; where several in a row are empty, only the last is seen at first, and the others fill
    the gap before it. The guess fails where elements contain zeros.
    """
    most = min(most, RUN_STEP_ELEMENTS)
    is_zero = np.frombuffer(window, np.uint8) == 0
    starts = (is_zero[2:-2] & (is_zero[3:-1] > is_zero[4:])).nonzero()[0][:most]
    if len(starts) < RUN_ELEMENTS:
        return None
    if starts[0]:
        starts = np.concatenate(([0], starts[: most - 1]))
    lengths = words_of(window)
    ends = lengths[starts] + starts + PREFIX_BYTES
    gaps = starts[1:] - ends[:-1]
    if gaps.any() and gaps.min() >= 0 and not (gaps % PREFIX_BYTES).any():
        starts = _with_empty_ones(starts, ends, gaps // PREFIX_BYTES)[:most]
        ends = lengths[starts] + starts + PREFIX_BYTES
        gaps = starts[1:] - ends[:-1]
    n_elements = len(starts)
    if gaps.any():
        n_elements = int(np.argmax(gaps != 0)) + 1
        if n_elements < _WORTH_GUESSING:
            return None
    if ends[n_elements - 1] > len(window):
        n_elements -= 1
    return np.concatenate(([0], ends[:n_elements]))


def _with_empty_ones(
    starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], n_empty: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """*starts*, and among them the starts of empty elements: *n_empty* of these behind each of *ends* but the last."""
    counts = np.ones(len(starts), np.int64)
    counts[:-1] += n_empty
    first_ones = np.cumsum(counts) - counts
    filled = np.repeat(ends - PREFIX_BYTES - first_ones * PREFIX_BYTES, counts)
    filled += np.arange(0, len(filled) * PREFIX_BYTES, PREFIX_BYTES)
    filled[first_ones] = starts
    return filled


def _check_utf8_of_all(window: bytes, bounds: npt.NDArray[np.int64], index: int, label: object, hint: str) -> None:
    """Prove that the elements of *window*, the first of which is number *index*, are UTF-8, each on its own."""
    text = with_words(window, bounds, bytes(PREFIX_BYTES))
    if text.isascii():  # faster than decoding; a length above 127 is none
        return
    try:
        text.decode()
    except UnicodeDecodeError as error:
        number = int(np.searchsorted(bounds, error.start, "right")) - 1
        byte = error.start - int(bounds[number]) - PREFIX_BYTES
        raise CodecError(f"{label}: element {index + number} is not UTF-8 at byte {byte}{hint}") from None


def with_words(window: bytes, bounds: npt.NDArray[np.int64], word: bytes) -> bytearray:
    """The elements of *window*, each with *word* in place of its length."""
    text = bytearray(memoryview(window)[: bounds[-1]])
    words_of(text)[bounds[:-1]] = LENGTH.unpack(word)
    return text


def words_of(text: bytes | bytearray, start: int = 0) -> npt.NDArray[np.uint32]:
    """The uint32 at each byte of *text* from *start* on."""
    return np.ndarray((len(text) - start - PREFIX_BYTES + 1,), "<u4", text, start, strides=(1,))


def joined_blobs(blobs: list[memoryview]) -> Generator[None, None, memoryview]:
    """All of *blobs*, which are taken out of the list, as one; yields between steps."""
    if len(blobs) == 1:
        return blobs[0]
    whole: npt.NDArray[np.uint8] = np.empty(sum(map(len, blobs)), np.uint8)
    end = len(whole)
    while blobs:
        blob = blobs.pop()
        end -= len(blob)
        whole[end : end + len(blob)] = blob
        yield
    return whole.data


def append_strings(elements: bytearray, strings: list[str]) -> None:
    """Append *strings* to *elements*. Raises `TypeError`, with nothing appended, if one of them is no string."""
    if len(strings) < RUN_ELEMENTS:
        append_octets(elements, list(map(str.encode, strings)))
        return
    text = (PREFIX_BYTES * "\0").join(strings).encode()
    sizes = np.fromiter(map(len, strings if text.isascii() else map(str.encode, strings)), np.int64, len(strings))
    append_marked(elements, PREFIX_BYTES, text, sizes)


def append_octets(elements: bytearray, octets: list[bytes]) -> None:
    """Append each of *octets*, which are few or long, to *elements*."""
    parts: list[bytes] = []
    for element in octets:
        parts += (len(element).to_bytes(PREFIX_BYTES, "little"), element)
    elements += b"".join(parts)


def append_marked(elements: bytearray, n_before: int, text: bytes | bytearray, sizes: npt.NDArray[np.int64]) -> None:
    """Append *n_before* bytes and *text*: together elements of *sizes*, each with room for its length before it."""
    starts = np.zeros(len(sizes), np.int64)
    np.cumsum(sizes[:-1] + PREFIX_BYTES, out=starts[1:])
    at = len(elements)
    elements += bytes(n_before)
    elements += text
    words_of(elements, at)[starts] = sizes
