r"""Tensors of BYTES from JSON strings, a piece at a time (protocol 4.7).

Strings are read in one of four ways, the first that fits what stands in the text:

1. Flat strings without a backslash: the bytes of each already are its element, and only what stands between two strings
   has to become a length:

       "first","second","third"       ->       5 first 6 second 5 third

   numpy finds all quotes; every second pair of neighbours must enclose a comma. With its quotes, a comma and a blank
   are exactly as long as a length, and a comma alone is made longer. Of strings of up to 20 characters and of those
   beyond ASCII this takes half of what orjson takes, of 100 ASCII characters four fifths: worth the 40 lines.
2. Many strings by orjson, which makes a list for each list that they are nested in; `Layout.fits` compares how long
   these lists are. The text is cut where the first gap between two strings stands for the last time, or where all
   lists end. Such a place may be inside a string: then orjson refuses the piece, or `Layout.fits` does.
3. One string, or one group of strings with commas: found by a pattern and parsed by orjson, with each bracket looked
   at. Data that is nested in another way, or wrong, is read so. Ways 1 and 2 are tried once in a step: on irregular
   data each attempt stops early, and many attempts would make the cost quadratic.
4. A string that is longer than a piece is decoded part by part, so that it never exists in two forms. `string_part`
   sees to it that no escape and no character is cut; the length is put before it at the end.

An object with base64 is decoded at once, or in parts as a long string is.

Not here: base64 (`base64_reading`), printing (`string_printing`), where in a document a tensor stands (`scanner`).
"""

import json
import re
from itertools import chain

import numpy as np
import orjson

from gateway.codec.tensors.base64_reading import octets_of
from gateway.codec.tensors.elements import (
    PREFIX_BYTES,
    RUN_STEP_ELEMENTS,
    STEP_ELEMENTS,
    WINDOW_BYTES,
    append_marked,
    append_octets,
    append_strings,
    prefix_of,
)
from gateway.codec.tensors.nesting import Layout, lists_in, occurrences
from gateway.codec.tensors.pieces import PIECE_BYTES, beginning, string_part
from gateway.errors import CodecError

PARSED_BYTES = 32 * 1024
"""How much text of short strings is read in one step."""

MIN_STRINGS = 16
"""Fewer are not worth numpy's calls."""

BLOB_BYTES = 1024 * 1024
"""Behind so many bytes of elements the next ones go into another blob.

As one, a large tensor would grow over the size from which on the C library asks the kernel for memory (4 MiB, see
`app.settle`), and be copied there in a single step, which takes 2 ms.
"""

_STEP_VALUES = 512  # bounds a step over deeply nested strings, where each bracket is looked at
_BLANKS = re.compile(rb"[ \t\r\n]*+")
_WHOLE_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_STRINGS_AND_COMMAS = re.compile(rb'(?:[ \t\r\n]*+"(?:[^"\\]++|\\.)*+"[ \t\r\n]*+,)+', re.DOTALL)
_FIRST_GAP = re.compile(rb'"(?:[^"\\]++|\\.)*+("[] \t\r\n]*+,[\[ \t\r\n]*+")', re.DOTALL)

_MISSING_WORDS = (b"null", b"NaN")
_MISSING = re.compile(b"|".join(_MISSING_WORDS))

_B64_OBJECT = rb'\{[ \t\r\n]*+"b64"[ \t\r\n]*+:[ \t\r\n]*+"([^"\\]*+)"[ \t\r\n]*+\}'
_B64_OBJECTS = re.compile(rb"%b(?>(?:[ \t\r\n]*+,[ \t\r\n]*+%b)*)" % (_B64_OBJECT, _B64_OBJECT))
_B64_TEXT = re.compile(_B64_OBJECT)
_OBJECT_PART = re.compile(rb'\{(?>(?:[^"{}\[\]]++|"(?:[^"\\]++|\\.)*+(?:"|\\?\Z))*)', re.DOTALL)
_OBJECT_HEAD = re.compile(rb'\{[ \t\r\n]*+("(?:[^"\\]++|\\.)*+")[ \t\r\n]*+:[ \t\r\n]*+"', re.DOTALL)
_COMMA, _QUOTE, _LIST, _END, _OBJECT, _BLANK = b',"[]{ '
_WRONG_OBJECT = 'an object must be {"b64": "..."} with no other member'


class BytesSink:
    """Takes the `data` of one BYTES tensor, nested or flat, into length-prefixed elements."""

    def __init__(
        self,
        label: str,
        shape: tuple[int, ...] | None,
        *,
        b64_objects: bool = False,
        missing: bytes | str = "",
    ) -> None:
        """*label* names the tensor in errors, *shape* says how many elements there are and how they are nested.

        Without a *shape* it is learned from the lists, which must be nested in full. *b64_objects*: an element may be
        an object `{"b64": "..."}`, TensorFlow's form for octets, beside strings. *missing*: the element
        that `null` and `NaN` become; a text refuses them, and stands behind the words.
        """
        self.done = False
        self._elements = bytearray()
        self._full_blobs: list[bytearray] = []
        self.label = label
        self._b64_objects = b64_objects
        self._missing = missing
        self._shape = shape
        self._layout = Layout(shape)
        self._wants_value = True
        self._may_be_run = True
        self._long_element_at: int | None = None
        self._long_base64: bytes | None = None
        self._object_is_open = False

    @property
    def held_bytes(self) -> int:
        """The elements so far."""
        return sum(map(len, self._full_blobs)) + len(self._elements)

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape. Where it is learned from the nesting, it is known when all is `done`."""
        assert self._shape is not None
        return self._shape

    def blobs(self) -> list[memoryview]:
        """The elements, each with its length before it, as they are on the wire: one or several pieces, in order."""
        return [memoryview(blob) for blob in (*self._full_blobs, self._elements) if blob] or [memoryview(b"")]

    def step(self, buffer: bytearray) -> int:
        """See `Sink.step`. Raises `CodecError` for what does not fit the datatype or the shape (protocol 4.7)."""
        if self._long_element_at is not None:
            return self._continue_element(buffer, self._long_element_at)
        if self._object_is_open:
            return self._end_object(bytes(memoryview(buffer)[:PIECE_BYTES]))
        if len(self._elements) >= BLOB_BYTES:
            self._full_blobs.append(self._elements)
            self._elements = bytearray()
        window = bytes(memoryview(buffer)[:WINDOW_BYTES])
        position = 0
        self._may_be_run = True  # on irregular data, many attempts would make the cost quadratic
        for _ in range(_STEP_VALUES):
            position = _end(_BLANKS, window, position)
            if position == len(window) or position >= PARSED_BYTES or self.done:
                break
            end = self._take(window, position)
            if end == position:
                break  # it goes on behind the window
            is_much = end - position > PARSED_BYTES // 4  # a run: what is behind it is work for another step
            position = end
            if is_much or self._long_element_at is not None:
                break
        return position

    def _take(self, window: bytes, start: int) -> int:
        """Take what is at *start*, which is no blank: where it ends; *start* itself if it goes on behind *window*."""
        code = window[start]
        if not self._wants_value:
            if code == _END:
                return self._close(start)
            if code != _COMMA:
                got = beginning(window[start : start + 1])
                raise CodecError(f"expected a comma or a bracket after element {self._layout.count - 1}, got {got}")
            self._wants_value = True
            return start + 1
        if code == _LIST:
            self._layout.open()
            return start + 1
        if not self._layout.depth:
            raise CodecError(f"data must be an array, got {beginning(window[start:])}")
        if code == _QUOTE:
            return self._take_strings(window, start)
        if code == _OBJECT and self._b64_objects:
            return self._take_objects(window, start)
        if code == _END and self._layout.has_just_opened:
            return self._close(start)
        return self._take_missing(window, start)

    def _take_missing(self, window: bytes, start: int) -> int:
        """Take the missing element at *start*: where it ends; *start* itself if it goes on behind *window*."""
        end = _end(_MISSING, window, start)
        if end == start and any(word.startswith(window[start:]) for word in _MISSING_WORDS):
            return start
        missing = self._missing
        if end == start or isinstance(missing, str):
            hint = missing if isinstance(missing, str) and end > start else ""
            raise CodecError(f"element {self._layout.count}: expected a string, got {beginning(window[start:])}{hint}")
        self._layout.value()
        append_octets(self._elements, [missing])
        self._layout.add(1)
        self._wants_value = False
        return end

    def _take_strings(self, window: bytes, start: int) -> int:
        """Take one or many strings from *start* on: where they end; *start* itself if the first goes on."""
        if len(window) - start < PARSED_BYTES and window.find(b"]", start) < 0:
            return start  # the array goes on, and of many strings at a time each costs less
        self._layout.value()
        if self._may_be_run:
            self._may_be_run = False
            if taken := self._take_run(window[start : start + PIECE_BYTES]):
                self._wants_value = False
                return start + taken
        end = _end(_STRINGS_AND_COMMAS, window, start, PARSED_BYTES)
        if end > start:
            self._append(window[start : end - 1])
            return end
        end = _end(_WHOLE_STRING, window, start, start + PIECE_BYTES)
        if end > start:
            self._append(window[start:end])
            self._wants_value = False
        elif start == 0 and len(window) >= PIECE_BYTES:
            return self._begin_element()
        return end

    def _take_run(self, text: bytes) -> int:
        """Store many of the strings at the front of *text*: where they end; 0 if they are few, or not as expected."""
        layout = self._layout
        if layout.rank == 1 and b"\\" not in text:
            n_strings, end = append_plain(self._elements, text)
            layout.add(n_strings)
            if end:
                return end
        gap = _FIRST_GAP.match(text)
        if gap is None:
            return 0
        cost = occurrences(text, b'"') // 2 + occurrences(text, b"[")  # a list costs as much as a string, or more
        limit = len(text) * min(cost, STEP_ELEMENTS) // cost
        end = text.rfind(gap[1], 0, limit) + gap[1].index(b",")
        depth = layout.rank - gap[1].count(b"]")
        if depth > 0 and self._take_lists(text, end, depth):
            return end
        end = text.find(b'"' + b"]" * layout.rank, 0, limit) + layout.rank
        return end if end >= layout.rank and self._take_lists(text, end, 1) else 0

    def _take_lists(self, text: bytes, end: int, depth: int) -> bool:
        """Store the strings in text[:end], behind which *depth* lists are open; False if they are not as expected."""
        layout = self._layout
        try:
            tree = orjson.loads(b"".join((b"[" * layout.rank, memoryview(text)[:end], b"]" * depth)))
            lengths, lists = lists_in(tree, layout.rank)
            strings = lists[0] if len(lists) == 1 else list(chain.from_iterable(lists))
            before = len(self._elements)
            append_strings(self._elements, strings)
        except (orjson.JSONDecodeError, TypeError):
            return False
        if not layout.fits(lengths, len(strings), depth):
            del self._elements[before:]
            return False
        layout.take(len(strings), depth)
        return True

    def _append(self, text: bytes) -> None:
        """Store the strings in *text*, which are separated by commas."""
        try:
            strings = orjson.loads(b"[%b]" % text)
        except orjson.JSONDecodeError as error:
            raise CodecError(f"a string near element {self._layout.count} is not JSON: {error}") from None
        append_strings(self._elements, strings)
        self._layout.add(len(strings))

    def _begin_element(self) -> int:
        """Begin a string that is longer than a piece: its quote is taken."""
        self._long_element_at = len(self._elements)
        self._elements += bytes(PREFIX_BYTES)
        return 1

    def _take_objects(self, window: bytes, start: int) -> int:
        """Take the element that is the object at *start* and all such objects behind it; where they end.

        *start* itself if the object goes on behind *window*.
        """
        self._layout.value()
        end = _end(_B64_OBJECTS, window, start, start + PARSED_BYTES // 2)  # they are decoded one by one
        if end == start:
            end = _end(_B64_TEXT, window, start, start + PIECE_BYTES)
        if end == start:
            end = _end(_OBJECT_PART, window, start, start + PIECE_BYTES)
            if window[end : end + 1] != b"}":
                if end == min(len(window), start + PIECE_BYTES):
                    return self._begin_base64(window) if start == 0 and len(window) >= PIECE_BYTES else start
                raise CodecError(f"element {self._layout.count}: {_WRONG_OBJECT}, got {beginning(window[start:])}")
            end += 1
            texts = [self._b64_member(window[start:end])]
        else:
            texts = _B64_TEXT.findall(window, start, end)
        append_octets(self._elements, [octets_of(text, index) for index, text in enumerate(texts, self._layout.count)])
        self._layout.add(len(texts))
        self._wants_value = False
        return end

    def _b64_member(self, text: bytes) -> bytes:
        """The value of the only member of *text*, an object without lists and objects in it."""
        try:
            members = json.loads(text.decode(), object_pairs_hook=list)
        except ValueError as error:
            raise CodecError(f"element {self._layout.count} is not JSON: {error}") from None
        if [key for key, _ in members] != ["b64"] or type(members[0][1]) is not str:
            raise CodecError(f"element {self._layout.count}: {_WRONG_OBJECT}, got {beginning(text)}")
        value: str = members[0][1]
        return value.encode(errors="replace")

    def _begin_base64(self, window: bytes) -> int:
        """Begin an object whose text is longer than a piece: all is taken up to its text."""
        head = _OBJECT_HEAD.match(window, 0, PIECE_BYTES)
        if head is None or (head[1] != b'"b64"' and self._b64_member(b'{%b:""}' % head[1])):
            raise CodecError(f"element {self._layout.count}: {_WRONG_OBJECT}, got {beginning(window)}")
        self._begin_element()
        self._long_base64 = b""
        return head.end()

    def _decoded_part(self, text: bytes, is_closed: bool) -> bytes:
        """The octets of *text*, the next part of a long element; up to three characters are left for the next."""
        text = (self._long_base64 or b"") + text
        end = len(text) if is_closed else len(text) // 4 * 4
        self._long_base64 = None if is_closed else text[end:]
        return octets_of(text[:end], self._layout.count, goes_on=not is_closed)

    def _end_object(self, window: bytes) -> int:
        """Take the bracket of an object whose text was longer than a piece."""
        end = _end(_BLANKS, window, 0)
        if end == len(window):
            return end
        if window[end : end + 1] != b"}":
            raise CodecError(
                f"element {self._layout.count - 1}: {_WRONG_OBJECT}, got {beginning(window[end:])} behind its text"
            )
        self._object_is_open = False
        return end + 1

    def _continue_element(self, buffer: bytearray, element_at: int) -> int:
        """Decode the next part of a string that is longer than a piece; its length is at *element_at*."""
        try:
            part, is_closed = string_part(buffer)
            text = orjson.loads(b"".join((b'"', part, b'"'))).encode()
        except (CodecError, orjson.JSONDecodeError) as error:
            raise CodecError(f"element {self._layout.count} is not JSON: {error}") from None
        if self._long_base64 is not None:
            self._object_is_open = is_closed
            text = self._decoded_part(text, is_closed)
        self._elements += text
        if not is_closed:
            return len(part)
        size = len(self._elements) - element_at - PREFIX_BYTES
        self._elements[element_at : element_at + PREFIX_BYTES] = prefix_of(size, f"element {self._layout.count}")
        self._long_element_at = None
        self._wants_value = False
        self._layout.add(1)
        return len(part) + 1

    def _close(self, start: int) -> int:
        """The innermost open list ends with the bracket at *start*: where the bracket ends."""
        self._layout.close()
        self._wants_value = False
        if not self._layout.depth:
            self.done = True
            self._shape = self._layout.finish()
        return start + 1


def _end(pattern: re.Pattern[bytes], text: bytes, start: int, limit: int = WINDOW_BYTES) -> int:
    """Where *pattern* ends that is matched at *start* in text[:limit]; *start* itself if it does not match."""
    match = pattern.match(text, start, limit)
    return match.end() if match else start


def append_plain(elements: bytearray, text: bytes) -> tuple[int, int]:
    """Append the strings at the front of *text*, which has no backslash: how many, and where the last ends.

    They must have the same commas between them; 0 and 0, with nothing appended, if they are few or no JSON.
    """
    codes = np.frombuffer(text, np.uint8)
    quotes = (codes == _QUOTE).nonzero()[0][: 2 * RUN_STEP_ELEMENTS]
    n_strings = len(quotes) // 2
    if n_strings < MIN_STRINGS:
        return 0, 0
    opens, ends = quotes[: 2 * n_strings : 2], quotes[1 : 2 * n_strings : 2]
    gap_bytes = 1 + (text[ends[0] + 2] == _BLANK)
    is_gap = (opens[1:] - ends[:-1] == gap_bytes + 1) & (codes[ends[:-1] + 1] == _COMMA)
    if gap_bytes == 2:
        is_gap &= codes[opens[1:] - 1] == _BLANK
    if np.count_nonzero(is_gap) < len(is_gap):
        n_strings = int(is_gap.argmin()) + 1
    opens, ends = opens[:n_strings], ends[:n_strings]
    plain = bytearray(memoryview(text)[: ends[-1]])
    if n_strings < MIN_STRINGS or not _is_plain(plain):
        return 0, 0
    if gap_bytes == 1:
        np.frombuffer(plain, np.uint8)[ends[:-1] + 1] = 0  # no JSON string has this character
        plain = plain.replace(b"\0", bytes(2))
    append_marked(elements, PREFIX_BYTES - 1, plain, ends - opens - 1)  # the first quote is the last byte of its length
    return n_strings, int(ends[-1]) + 1


def _is_plain(text: bytearray) -> bool:
    """Whether *text*, which has no backslash, is UTF-8 without control characters."""
    if np.minimum.reduce(np.frombuffer(text, np.uint8)) < ord(" "):
        return False
    try:
        return text.isascii() or bool(text.decode())
    except UnicodeDecodeError:
        return False
