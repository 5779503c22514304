r"""Tensors of BYTES as JSON strings, a piece at a time: UTF-8 as it is, or base64 (protocol 3.5).

On the wire, four bytes of length stand before each element; in JSON, `", "` stands between two strings, which is four
bytes as well. So text without anything to escape is printed by one copy of the window, in which numpy overwrites all
lengths at once:

    5 first 6 second 5 third       ->       ", "first", "second", "third

The first piece leaves out `", ` and so begins with a quote, and one more quote ends the last. The caller puts brackets
around it. Where the text has something to escape (a quote, a backslash, a control character), orjson escapes the
window as one string, with a mark in place of each length: a DEL character, the only control character that JSON does
not escape, and three fillers. Then the marks are found and overwritten. Where an element has a DEL of its own, orjson
prints them one by one.

Nested strings are printed in the same way, but with `"],["` between two strings where a list ends. This separator is
longer than the four bytes of a length. So a control character, which JSON text never has, is put in the length's place
first, and then replaced by the rest of the separator. Elements in `{"b64": "..."}`, the form of TensorFlow for octets,
are strings in base64 with longer separators.

For 10,000 elements of 100 bytes this takes 1.1 ms, with the mark alone 1.4, one by one 2.8; with something to escape
in each element 1.6 against 2.8.

An element that is longer than a window is escaped in parts, cut between two characters; in base64, between two groups
of three bytes.
"""

import binascii
from collections.abc import Iterator
from enum import Enum
from itertools import chain, groupby, pairwise
from math import prod

import numpy as np
import numpy.typing as npt
import orjson

from gateway.codec.json.pieces import PIECE_BYTES, character_start
from gateway.codec.tensors.elements import (
    PREFIX_BYTES,
    RUN_STEP_ELEMENTS,
    STEP_ELEMENTS,
    WINDOW_BYTES,
    bounds_of,
    with_words,
    words_of,
)
from gateway.codec.tensors.number_printing import BRACKETS_PER_ELEMENT, separator

LONG_STEP_BYTES = PIECE_BYTES // 3 * 3
"""How much of a long element one step prints; in base64, three bytes need no padding in the middle."""

_MARK = b"\x7f___"  # nothing to escape is in it


class StringForm(Enum):
    """How an element of BYTES is written: a string of text, one in base64, or an object with one in base64.

    What stands before the text, what behind it, and whether it is base64.
    """

    TEXT = b'"', b'"', False
    BASE64 = b'"', b'"', True
    B64_OBJECT = b'{"b64":"', b'"}', True

    def __init__(self, opening: bytes, closing: bytes, is_base64: bool) -> None:
        self.opening = opening
        self.closing = closing
        self.is_base64 = is_base64

    def text_of(self, element: bytes | memoryview) -> bytes:
        """The text of *element*, or of a part that ends between two characters, or two groups of base64."""
        if self.is_base64:
            return binascii.b2a_base64(element, newline=False)
        return orjson.dumps(str(element, "utf-8"))[1:-1]


class Separators:
    """What stands between strings: more where lists end and others begin.

    A list of n elements begins at every n-th element. The *kind* of the separator before an element is how many sizes
    of lists divide the element's number. Kind 0 is inside a list. There are at most 32 other kinds: elements have less
    than 2^32 bytes, and a shape's larger sizes are multiples of its smaller ones.
    """

    def __init__(self, shape: tuple[int, ...], form: StringForm) -> None:
        self.form = form
        self._sizes: list[int] = []
        n_lists = [0]
        for size, group in groupby(prod(shape[axis:]) for axis in range(len(shape) - 1, 0, -1)):
            self._sizes.append(size)
            n_lists.append(n_lists[-1] + len(list(group)))
        self._texts = [form.closing + separator(n) + form.opening for n in n_lists]
        words = [b'"] ' + bytes([kind]) if n else b'", "' for kind, n in enumerate(n_lists)]
        self._words = np.frombuffer(b"".join(words), "<u4")
        always = n_lists[1] if 1 in self._sizes else 0
        self.most_elements = RUN_STEP_ELEMENTS // (1 + always // BRACKETS_PER_ELEMENT)
        """The most elements that one step prints."""

    def words(self, first: int, n_elements: int) -> npt.NDArray[np.uint32]:
        """What stands in place of the lengths of *n_elements* elements, the first of which is number *first*."""
        return self._words.take(self._kinds(first, n_elements)) if self._sizes else self._words

    def finish(self, text: bytearray, first: int) -> bytes | bytearray:
        """*text*, a run in which `words` stand before the elements from number *first* on, as it goes out."""
        for kind, whole in enumerate(self._texts):
            if kind and text.find(kind) >= 0:
                text = text.replace(bytes([kind]), whole[2:])  # the quote and a bracket are in the word
        return text if first else text[3:]

    def before(self, first: int, n_elements: int) -> list[bytes]:
        """What stands before each of *n_elements* elements, the first of which is number *first*."""
        kinds = self._kinds(first, n_elements).tolist() if self._sizes else [0] * n_elements
        texts = [self._texts[kind] for kind in kinds]
        if not first:
            texts[0] = self.form.opening
        return texts

    def _kinds(self, first: int, n_elements: int) -> npt.NDArray[np.uint8]:
        kinds = np.zeros(n_elements, np.uint8)
        for size in self._sizes:
            kinds[-first % size :: size] += 1
        if not first:
            kinds[0] = 0
        return kinds


_FLAT = {form: Separators((), form) for form in StringForm}


def string_pieces(blob: memoryview, form: StringForm, shape: tuple[int, ...] = ()) -> Iterator[bytes | bytearray]:
    """The elements of *blob* as the inside of a JSON array of strings, in pieces of about `WINDOW_BYTES`.

    With a *shape*, as the inside of lists that are nested like it. `check_elements` has approved the blob, with *utf8*
    for a text.
    """
    separators = Separators(shape, form) if len(shape) > 1 else _FLAT[form]
    offset = index = 0
    while offset < len(blob):
        window = bytes(blob[offset : offset + WINDOW_BYTES])
        bounds = bounds_of(window, separators.most_elements)
        if len(bounds) > 1:
            yield from (_one_by_one if form.is_base64 else _marked_run)(window, bounds, separators, index)
            offset += int(bounds[-1])
            index += len(bounds) - 1
        else:  # one that is longer than a window
            start = offset + PREFIX_BYTES
            offset = start + int.from_bytes(blob[offset:start], "little")
            yield separators.before(index, 1)[0]
            while start < offset:
                end = min(start + LONG_STEP_BYTES, offset)
                if not form.is_base64:
                    end = character_start(blob[:offset], end)
                yield form.text_of(blob[start:end])
                start = end
            index += 1
    if offset:
        yield form.closing


def _marked_run(
    window: bytes, bounds: npt.NDArray[np.int64], separators: Separators, index: int
) -> Iterator[bytes | bytearray]:
    """The elements at *bounds* in *window*, text of which the first is number *index*, by marks between them."""
    text = with_words(window, bounds, _MARK)
    # `in` first takes the bytes that it searches for a number
    if text.find(b'"') < 0 and text.find(b"\\") < 0 and np.frombuffer(text, np.uint8).min() >= ord(" "):
        words_of(text)[bounds[:-1]] = separators.words(index, len(bounds) - 1)  # nothing to escape
        yield separators.finish(text, index)
        return
    # escapes are printed in two steps: they may be half a millisecond's work each
    middle = int(np.searchsorted(bounds, WINDOW_BYTES // 2, "right")) - 1
    for first, half in ((index, bounds[: middle + 1]), (index + middle, bounds[middle:])):
        if len(half) == 1:
            continue
        part = memoryview(text)[half[0] : half[-1]]
        escaped = bytearray(memoryview(orjson.dumps(str(part, "utf-8")))[1:-1])
        marks = np.flatnonzero(np.frombuffer(escaped, np.uint8) == _MARK[0])
        if len(marks) < len(half):  # no element has a DEL of its own
            words_of(escaped)[marks] = separators.words(first, len(marks))
            yield separators.finish(escaped, first)
        else:
            yield from _one_by_one(window, half, separators, first)


def _one_by_one(
    window: bytes, bounds: npt.NDArray[np.int64], separators: Separators, index: int
) -> Iterator[bytes | bytearray]:
    """As `_marked_run`, of elements in any form."""
    step = STEP_ELEMENTS // 4  # printing costs more than finding them
    for first in range(0, len(bounds) - 1, step):
        some = bounds[first : first + step + 1].tolist()
        before = separators.before(index + first, len(some) - 1)
        texts = [separators.form.text_of(window[start + PREFIX_BYTES : end]) for start, end in pairwise(some)]
        yield b"".join(chain.from_iterable(zip(before, texts, strict=True)))
        yield b""  # short as the text may be, a step's work was done for it
