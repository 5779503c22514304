"""Tensors of BYTES from JSON strings, a piece at a time.

Not here: printing (`string_printing`), and where in a document a tensor stands (`scanner`).
"""

import base64
import binascii
import re
import sys
from collections.abc import Callable, Generator
from typing import NoReturn

import numpy as np
import numpy.typing as npt
import orjson

from gateway.codec.tensors.datatypes import element_count
from gateway.codec.tensors.elements import MAX_ELEMENT_BYTES, PREFIX_BYTES, RUN_ELEMENTS, WINDOW_BYTES, words_of
from gateway.codec.tensors.nesting import MAX_DEPTH, Nesting
from gateway.codec.tensors.pieces import PIECE_BYTES
from gateway.errors import CodecError

_KNOWN_SEPARATORS = (b'","', b'", "', b'",')
_GAP = "____"  # takes the place of a length
_QUOTE = ord('"')
_STEP_TOKENS = 512  # bounds a step over deeply nested strings, where each bracket is looked at
_BLANKS = re.compile(rb"[ \t\r\n]*+")
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_ELEMENTS = re.compile(rb'(?:[ \t\r\n]*+"(?:[^"\\]++|\\.)*+"[ \t\r\n]*+,)++', re.DOTALL)
# As much of a string's inside as is whole: no escape is cut, and no surrogate pair.
_INSIDE = re.compile(
    rb'(?:[^"\\]++|\\[^u]|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}'
    rb"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*+",
    re.DOTALL,
)
_LONGEST_ESCAPE = len(rb"\ud83d\ude00")


class BytesSink:
    """Takes the `data` of one BYTES tensor, nested or flat, into length-prefixed elements.

    A string longer than a piece is decoded in parts and never exists as a whole in two forms.
    """

    def __init__(self, label: str, shape: tuple[int, ...]) -> None:
        """*label* names the tensor in errors, *shape* says how many elements there are and how they are nested."""
        self.done = False
        self.elements = bytearray()
        self.label = label
        self._n_elements = element_count(shape)
        self._shape = shape
        self._nesting: Nesting | None = None
        self._count = 0
        self._depth = 0
        self._wants_value = True
        self._just_opened = False
        self._element_at: int | None = None
        self._separator = _KNOWN_SEPARATORS[0]

    @property
    def held_bytes(self) -> int:
        """The elements so far."""
        return len(self.elements)

    def step(self, buffer: bytearray) -> int:
        """See `Sink.step`. Raises `CodecError` for what protocol 4.7 calls broken."""
        if self._element_at is not None:
            return self._continue_element(buffer, self._element_at)
        window = bytes(memoryview(buffer)[:WINDOW_BYTES])
        position = 0
        has_tried_run = self._nesting is not None  # short ones at best
        for _ in range(_STEP_TOKENS):
            position = _end(_BLANKS, window, position)
            if position == len(window) or self.done:
                break
            code = window[position : position + 1]
            if not self._wants_value:
                if code == b",":
                    self._wants_value = True
                elif code == b"]":
                    self._close()
                else:
                    self._fail(f"expected a comma or a bracket after element {self._count - 1}, got {_shown(code)}")
                position += 1
            elif code == b"[":
                self._depth += 1
                self._just_opened = True
                if self._depth > MAX_DEPTH:
                    self._fail(f"data is nested deeper than {MAX_DEPTH}")
                if self._depth > 1:
                    self._nesting = self._nesting or Nesting(self._shape, MAX_DEPTH)
                    self._check_nesting(self._nesting.open, self._depth, self._count)
                position += 1
            elif code == b"]" and self._just_opened:
                self._close()
                position += 1
            elif code == b'"' and self._depth:
                # a run ends at what is not like its beginning, and with many of these it would be tried too often
                end = position if has_tried_run else self._append_run(window, position)
                has_tried_run = True
                if end > position:
                    self._wants_value = False
                elif (end := _end(_ELEMENTS, window, position)) > position:
                    self._append(window[position : end - 1])
                elif (end := _end(_STRING, window, position)) > position:
                    self._append(window[position:end])
                    self._wants_value = False
                else:
                    # the string goes on behind the window
                    if position == 0 and len(window) >= PIECE_BYTES:
                        self._element_at = len(self.elements)
                        self.elements += bytes(PREFIX_BYTES)
                        return 1
                    break
                position = end
                self._just_opened = False
            elif self._depth:
                self._fail(f"element {self._count}: expected a string, got {_shown(window[position:])}")
            else:
                self._fail(f"data must be an array, got {_shown(window[position:])}")
        return position

    def _append_run(self, window: bytes, start: int) -> int:
        """Store all strings up to the last in *window* that a comma or a bracket follows; where that one ends.

        Answers *start*, and stores nothing, where that place is not between strings, or not only strings are there.
        """
        end = window.rfind(self._separator, start) + 1
        if end <= start:
            # how this backend writes lists; not a comma alone if possible, for a string may begin with one
            for separator in _KNOWN_SEPARATORS:
                end = window.rfind(separator, start) + 1
                if end > start:
                    self._separator = separator
                    break
        end = max(end, window.rfind(b'"]', max(start, end)) + 1)
        if window.find(b"\\", start, end) < 0 and self._append_plain(window[start:end]):
            return end
        try:
            # the end is guessed; if it is wrong, what stands before it is no JSON
            strings = orjson.loads(b"".join((b"[", memoryview(window)[start:end], b"]")))
            self._store(strings)
        except (ValueError, TypeError):
            return start
        return end

    def _append_plain(self, text: bytes) -> bool:
        """Store the strings in *text*, where no backslash is, if there are many and all is in order; else False.

        Without escapes the bytes of a string are those of its element, so that only what stands between them changes.
        """
        inside = bytearray(memoryview(text)[:-1])
        codes = np.frombuffer(inside, np.uint8)
        quotes = np.flatnonzero(codes == _QUOTE)
        opens, closes = quotes[::2], quotes[1::2]
        if len(opens) != len(closes) + 1 or len(opens) < RUN_ELEMENTS or codes.min() < ord(" "):
            return False
        between = self._separator if self._separator[-1] == _QUOTE else _KNOWN_SEPARATORS[0]
        if (opens[1:] - closes != len(between) - 1).any():
            return False
        for place in range(1, len(between) - 1):
            if (codes[closes + place] != between[place]).any():
                return False
        try:
            text.decode()
        except UnicodeDecodeError:
            return False
        if len(between) < PREFIX_BYTES:
            codes[closes] = 0
            inside = inside.replace(b"\0", b"\0\0")
        start = len(self.elements)
        self.elements += bytes(PREFIX_BYTES - 1)
        self.elements += inside
        sizes = np.append(closes, len(text) - 1) - opens - 1
        self._set_lengths(start, sizes)
        return True

    def _set_lengths(self, start: int, sizes: npt.NDArray[np.int64]) -> None:
        """Put the lengths before elements of *sizes* bytes, of which the first begins at *start*."""
        words_of(self.elements, start)[np.cumsum(sizes + PREFIX_BYTES) - sizes - PREFIX_BYTES] = sizes
        self._add(len(sizes))

    def _append(self, text: bytes) -> None:
        """Store the strings in *text*, which are separated by commas."""
        try:
            strings = orjson.loads(b"[%b]" % text)
        except ValueError as error:
            self._fail(f"a string near element {self._count} is not JSON: {error}")
        self._store(strings)

    def _store(self, strings: list[str]) -> None:
        """Store *strings*. Raises `TypeError`, having stored nothing, if one of them is none."""
        if len(strings) < RUN_ELEMENTS:
            parts: list[bytes] = []
            for string in strings:
                element = str.encode(string)
                parts += (len(element).to_bytes(PREFIX_BYTES, "little"), element)
            self.elements += b"".join(parts)
            self._add(len(strings))
            return
        joined = _GAP.join(["", *strings])
        lengths = map(len, strings) if joined.isascii() else [len(string.encode()) for string in strings]
        start = len(self.elements)
        self.elements += joined.encode()
        self._set_lengths(start, np.fromiter(lengths, np.int64, len(strings)))

    def _continue_element(self, buffer: bytearray, element_at: int) -> int:
        """Decode the next part of a string that is longer than a piece."""
        window = min(len(buffer), PIECE_BYTES)
        quote = buffer.find(b'"', 0, window)
        end = quote if quote >= 0 else window
        if buffer.find(b"\\", 0, end) >= 0:
            end = _end(_INSIDE, buffer, 0, window)
        part = bytes(memoryview(buffer)[:end])
        closed = end < len(buffer) and buffer[end : end + 1] == b'"'
        try:
            part.decode()
        except UnicodeDecodeError as error:
            if closed or end - error.start > 3:
                self._fail(f"element {self._count} is not UTF-8")
            part = part[: error.start]
        if not part and not closed:
            if len(buffer) >= _LONGEST_ESCAPE:
                self._fail(f"element {self._count}: broken escape or lone surrogate {_shown(bytes(buffer[:12]))}")
            return 0
        try:
            self.elements += orjson.loads(b'"%b"' % part).encode()
        except ValueError as error:
            self._fail(f"element {self._count} is not JSON: {error}")
        if not closed:
            return len(part)
        size = len(self.elements) - element_at - PREFIX_BYTES
        if size > MAX_ELEMENT_BYTES:
            self._fail(f"element {self._count} has {size} bytes, more than a BYTES element can have")
        self.elements[element_at : element_at + PREFIX_BYTES] = size.to_bytes(PREFIX_BYTES, "little")
        self._element_at = None
        self._wants_value = self._just_opened = False
        self._add(1)
        return end + 1

    def _add(self, n_elements: int) -> None:
        self._count += n_elements
        if self._count > self._n_elements:
            self._fail(f"expected {self._n_elements} elements, got more")

    def _check_nesting(self, check: Callable[..., None], *where: int) -> None:
        try:
            check(*where)
        except CodecError as error:
            self._fail(str(error))

    def _close(self) -> None:
        if self._nesting is not None:
            self._check_nesting(self._nesting.close, self._depth, self._count)
        self._depth -= 1
        self._wants_value = self._just_opened = False
        if self._depth == 0:
            self.done = True
            if self._count != self._n_elements:
                self._fail(f"expected {self._n_elements} elements, got {self._count}")
            if self._nesting is not None:
                self._check_nesting(self._nesting.finish)

    def _fail(self, reason: str) -> NoReturn:
        raise CodecError(f"{self.label}: {reason}")


def from_base64(elements: bytearray, label: str) -> Generator[None, None, bytearray]:
    """*elements* (length-prefixed base64) decoded, length-prefixed again (protocol 4.8); yields between steps."""
    decoded = bytearray()
    view = memoryview(elements)
    offset = index = worked = 0
    while offset < len(view):
        start = offset + PREFIX_BYTES
        offset = start + int.from_bytes(view[offset:start], "little")
        try:
            element = base64.b64decode(view[start:offset], validate=True)
        except binascii.Error as error:
            raise CodecError(f"{label}: element {index} is not base64: {error}") from None
        decoded += len(element).to_bytes(PREFIX_BYTES, "little")
        decoded += element
        index += 1
        worked += len(element) + 64
        if worked > PIECE_BYTES:
            worked = 0
            yield
    return decoded


def _end(pattern: re.Pattern[bytes], text: bytes | bytearray, start: int, limit: int = sys.maxsize) -> int:
    """Where *pattern* ends that is matched at *start*; *start* itself if it does not match."""
    match = pattern.match(text, start, limit)
    return match.end() if match else start


def _shown(text: bytes) -> str:
    return repr(text[:16].decode(errors="replace"))
