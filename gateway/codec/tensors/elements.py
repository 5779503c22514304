"""BYTES on the wire: elements, each with its length before it as a little-endian uint32 (protocol 2.4).

The elements of a blob can only be found one after the other: each length says where the next one is. That walk, a few
operations of Python per element, is the most expensive thing about a valid blob, so it is done at most once for
checking and once for printing, for a window of elements at a time, whose bounds numpy works on afterwards. If the
first length fits many elements (keys, hashes, crops of one size), they are not walked through: numpy looks at the
places where the lengths must be if all are the same, which is 7 times faster than walking if they are.

That every element is UTF-8 is proved for a window at once. Zeros stand in place of the lengths, which are characters
of their own: no character can reach from the end of one element into the next. Only if that fails are the elements
looked at one by one, for the error.

Here: proving a blob right and finding its elements. Not here: JSON (`string_printing`, `string_reading`).
"""

import struct
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from gateway.codec.tensors.pieces import PIECE_BYTES, check_utf8
from gateway.errors import CodecError

MAX_ELEMENT_BYTES = 2**32 - 1
"""The longest element that a uint32 length can announce."""

PREFIX_BYTES = 4
"""The size of a length."""

WINDOW_BYTES = 2 * PIECE_BYTES
"""How much is looked at for many short elements, so that numpy's calls pay off."""

LENGTH = struct.Struct("<I")
"""How a length is written."""

STEP_ELEMENTS = 4096
"""How many short elements one step looks at."""

RUN_ELEMENTS = 32
"""Fewer elements are not worth numpy's calls."""

_BASE64_HINT = ", and JSON has only text; set `bytes: base64` for this backend if it reads base64"


def check_elements(blob: memoryview, n_elements: int, label: object, *, utf8: bool) -> Iterator[None]:
    """Prove that *blob* is exactly *n_elements* length-prefixed elements; with *utf8*, that each is UTF-8.

    Yields after each step of work. Raises `CodecError` naming *label* and the element (protocol 2.4, 3.5).
    """
    if n_elements * PREFIX_BYTES > len(blob):
        raise CodecError(
            f"{label}: expected {n_elements} elements, which take at least {n_elements * PREFIX_BYTES} bytes "
            f"for their lengths, got {len(blob)} bytes"
        )
    offset = index = 0
    while index < n_elements:
        window = bytes(blob[offset : offset + WINDOW_BYTES])
        bounds = bounds_of(window, n_elements - index)
        if len(bounds) > 1:
            if utf8 and not window.isascii():
                _check_utf8_of_all(window, bounds, index, label)
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
            yield from check_utf8(blob[start:offset], f"{label}: element {index}", _BASE64_HINT)
        index += 1
        yield
    if offset != len(blob):
        raise CodecError(
            f"{label}: expected {n_elements} elements, which end after {offset} bytes, "
            f"got {len(blob) - offset} bytes more"
        )


def bounds_of(window: bytes, most: int) -> npt.NDArray[np.int64]:
    """Where the elements start that are whole at the front of *window*, and where the last ends; shape [n + 1].

    At most *most* and `STEP_ELEMENTS` elements.
    """
    most = min(most, STEP_ELEMENTS)
    if len(window) >= PREFIX_BYTES:
        stride = PREFIX_BYTES + LENGTH.unpack_from(window)[0]
        n_elements = min(most, len(window) // stride)
        if n_elements >= RUN_ELEMENTS:
            lengths: npt.NDArray[np.uint32] = np.ndarray((n_elements,), "<u4", window, strides=(stride,))
            if np.count_nonzero(lengths == stride - PREFIX_BYTES) == n_elements:
                return np.arange(0, n_elements * stride + 1, stride)
    bounds = [0]
    end = 0
    length_at = LENGTH.unpack_from
    with suppress(struct.error):  # the window ends
        for _ in range(most):
            (size,) = length_at(window, end)
            end += PREFIX_BYTES + size
            bounds.append(end)
    if end > len(window):
        bounds.pop()
    return np.array(bounds)


def _check_utf8_of_all(window: bytes, bounds: npt.NDArray[np.int64], index: int, label: object) -> None:
    """Prove that the elements of *window*, the first of which is number *index*, are UTF-8, each on its own."""
    try:
        str(with_words(window, bounds, bytes(PREFIX_BYTES)), "utf-8")
    except UnicodeDecodeError:
        for number, (start, end) in enumerate(pairwise(bounds.tolist()), index):
            run_over = check_utf8(
                memoryview(window)[start + PREFIX_BYTES : end], f"{label}: element {number}", _BASE64_HINT
            )
            for _ in run_over:
                pass


def with_words(window: bytes, bounds: npt.NDArray[np.int64], word: bytes) -> bytearray:
    """The elements of *window*, each with *word* in place of its length."""
    text = bytearray(memoryview(window)[: bounds[-1]])
    words_of(text)[bounds[:-1]] = LENGTH.unpack(word)
    return text


def words_of(text: bytearray, start: int = 0) -> npt.NDArray[np.uint32]:
    """The uint32 at each byte of *text* from *start* on, to be set there."""
    return np.ndarray((len(text) - start - PREFIX_BYTES + 1,), "<u4", text, start, strides=(1,))
