r"""Tensors of BYTES from JSON strings, a piece at a time (protocol 4.7 and 4.8).

Strings are read in one of three ways, the fastest that fits what stands in the text:

1. A run (`string_runs`): many short strings at a time, flat or nested in full, as far as their lists are known.
2. One string, or one group of strings with commas: found by a pattern and parsed by orjson, with each bracket looked
   at. That is how data is read that is nested in another way, or wrong, and the first list at each depth where the
   shape is learned. A run is tried once in a step: on irregular data each attempt stops early, and many of them would
   make the cost quadratic.
3. A string that is longer than a piece is decoded part by part, so that it never exists in two forms. `string_part`
   sees to it that no escape and no character is cut; the length is put before it at the end.

An object with base64 is decoded at once, or in parts as a long string is.

Not here: printing (`string_printing`), where in a document a tensor stands (`scanner`).
"""

import binascii
import json
import re
from collections.abc import Generator, Sequence

import numpy as np
import numpy.typing as npt
import orjson

from gateway.codec.tensors.datatypes import element_count
from gateway.codec.tensors.elements import (
    MAX_ELEMENT_BYTES,
    PREFIX_BYTES,
    WINDOW_BYTES,
)
from gateway.codec.tensors.nesting import MAX_DEPTH, Nesting
from gateway.codec.tensors.pieces import PIECE_BYTES, beginning, string_part
from gateway.codec.tensors.string_runs import (
    PARSED_BYTES,
    Rows,
    append_octets,
    append_strings,
    end_of_lists,
    rows_of,
    take_run,
)
from gateway.errors import CodecError

BLOB_BYTES = 1024 * 1024
"""Behind so many bytes of elements the next ones go into another blob.

As one, a large tensor would grow over the size from which on the C library asks the kernel for memory (4 MiB, see
`app.settle`), and be copied there in a single step, which takes 2 ms.
"""

_STEP_VALUES = 512  # bounds a step over deeply nested strings, where each bracket is looked at
_BLANKS = re.compile(rb"[ \t\r\n]*+")
_WHOLE_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_STRINGS_AND_COMMAS = re.compile(rb'(?:[ \t\r\n]*+"(?:[^"\\]++|\\.)*+"[ \t\r\n]*+,)+', re.DOTALL)
_EMPTY_LISTS = re.compile(rb"(?:\[\],[ \t\r\n]*+)+")

_B64_OBJECT = rb'\{[ \t\r\n]*+"b64"[ \t\r\n]*+:[ \t\r\n]*+"([^"\\]*+)"[ \t\r\n]*+\}'
_B64_OBJECTS = re.compile(rb"%b(?>(?:[ \t\r\n]*+,[ \t\r\n]*+%b)*)" % (_B64_OBJECT, _B64_OBJECT))
_B64_TEXT = re.compile(_B64_OBJECT)
_OBJECT_PART = re.compile(rb'\{(?>(?:[^"{}\[\]]++|"(?:[^"\\]++|\\.)*+(?:"|\\?\Z))*)', re.DOTALL)
_OBJECT_HEAD = re.compile(rb'\{[ \t\r\n]*+("(?:[^"\\]++|\\.)*+")[ \t\r\n]*+:[ \t\r\n]*+"', re.DOTALL)
_WRONG_OBJECT = 'an object must be {"b64": "..."} with no other member'


class BytesSink:
    """Takes the `data` of one BYTES tensor, nested or flat, into length-prefixed elements."""

    def __init__(self, label: str, shape: tuple[int, ...] | None, *, b64_objects: bool = False) -> None:
        """*label* names the tensor in errors, *shape* says how many elements there are and how they are nested.

        Without a *shape* it is learned from the lists, which must be nested in full. *b64_objects*: an element may be
        an object `{"b64": "..."}`, TensorFlow's form for octets, beside strings.
        """
        self.done = False
        self._elements = bytearray()
        self._full_blobs: list[bytearray] = []
        self._full_bytes = 0
        self.label = label
        self._b64_objects = b64_objects
        self._n_elements = element_count(shape) if shape is not None else None
        self._shape = shape or ()
        self._nesting: Nesting | None = None
        self._learned = LearnedShape() if shape is None else None
        self._rows = rows_of(self._shape[:0:-1]) if self._n_elements else []
        self._count = 0
        self._depth = 0
        self._wants_value = True
        self._just_opened = False
        self._long_element_at: int | None = None
        self._long_base64: bytes | None = None
        self._object_is_open = False

    @property
    def held_bytes(self) -> int:
        """The elements so far."""
        return self._full_bytes + len(self._elements)

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape, learned or given; when it is learned, not before `done`."""
        return self._learned.shape if self._learned is not None else self._shape

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
            self._full_bytes += len(self._elements)
            self._elements = bytearray()
        window = bytes(memoryview(buffer)[:WINDOW_BYTES])
        position = 0
        may_be_run = True  # on irregular data, many attempts would make the cost quadratic
        for _ in range(_STEP_VALUES):
            position = _end(_BLANKS, window, position)
            if position == len(window) or position >= PARSED_BYTES or self.done:
                break
            code = window[position : position + 1]
            if not self._wants_value:
                if code == b",":
                    self._wants_value = True
                elif code == b"]":
                    may_be_run |= self._close()
                else:
                    raise CodecError(
                        f"expected a comma or a bracket after element {self._count - 1}, got {beginning(code)}"
                    )
                position += 1
            elif window.startswith(b"[],", position) and self._depth:
                position = self._take_empty_lists(window, position)
            elif code == b"[":
                self._open()
                position += 1
            elif code == b"]" and self._just_opened:
                self._close()
                position += 1
            elif code == b'"' and self._depth:
                if len(buffer) - position < PARSED_BYTES and buffer.find(b"]", position) < 0:
                    break  # the array goes on, and of many strings at a time each costs less
                end = self._take_run(window, position) if may_be_run else position
                may_be_run = False
                if end > position:
                    self._wants_value = False
                elif (end := _string_end(window, position)) > position and window[end : end + 1] != b",":
                    self._append(window[position:end])
                    self._wants_value = False
                elif (behind := _end(_STRINGS_AND_COMMAS, window, position, PARSED_BYTES)) > position:
                    end = behind
                    self._append(window[position : end - 1])
                elif end > position:
                    self._append(window[position:end])
                    self._wants_value = False
                elif position == 0 and len(window) >= PIECE_BYTES:
                    return self._begin_element()
                else:
                    break  # the string goes on behind the window
                position = end
                self._just_opened = False
            elif code == b"{" and self._depth and self._b64_objects:
                end = self._append_objects(window, position)
                if end > position:
                    position = end
                    self._just_opened = self._wants_value = False
                elif position == 0 and len(window) >= PIECE_BYTES:
                    return self._begin_base64(window)
                else:
                    break  # the object goes on behind the window
            elif self._depth:
                raise CodecError(f"element {self._count}: expected a string, got {beginning(window[position:])}")
            else:
                raise CodecError(f"data must be an array, got {beginning(window[position:])}")
        return position

    def _take_empty_lists(self, window: bytes, start: int) -> int:
        """Take the lists without elements from *start* on, each with a comma behind it: where they end."""
        end = _end(_EMPTY_LISTS, window, start, start + PARSED_BYTES)
        self._open()
        self._close()
        if self._learned is not None:
            self._learned.add_alike(window.count(b"]", start, end) - 1)
        self._wants_value = True
        return end

    def _take_run(self, window: bytes, start: int) -> int:
        """Store many of the strings from *start* on: where they end; *start* itself if they are few or broken."""
        rows = self._rows_here()
        text = window[start:]
        if self._learned is not None and self._learned.n_unknown:
            # not beyond the end of the first list whose length is not known
            text = text[: end_of_lists(text, self._depth - self._learned.n_unknown)]
        n_strings, end = take_run(self._elements, text, self._count, rows)
        if n_strings:
            self._add_run(n_strings, rows)
        return start + end

    def _rows_here(self) -> Sequence[Rows]:
        """The lists that strings may go on through, as far as they are known."""
        if self._learned is not None:
            return self._learned.rows()
        return self._rows if self._depth == len(self._shape) else ()

    def _append(self, text: bytes) -> None:
        """Store the strings in *text*, which are separated by commas."""
        try:
            strings = orjson.loads(b"[%b]" % text)
        except orjson.JSONDecodeError as error:
            raise CodecError(f"a string near element {self._count} is not JSON: {error}") from None
        append_strings(self._elements, strings)
        self._add(len(strings))

    def _begin_element(self) -> int:
        """Begin a string that is longer than a piece: its quote is taken."""
        self._long_element_at = len(self._elements)
        self._elements += bytes(PREFIX_BYTES)
        return 1

    def _append_objects(self, window: bytes, start: int) -> int:
        """Store the element that is the object at *start* and all such objects behind it; where they end.

        *start* itself if it goes on behind *window*.
        """
        end = _end(_B64_OBJECTS, window, start, start + PARSED_BYTES // 2)  # they are decoded one by one
        if end == start:
            end = _end(_B64_TEXT, window, start, start + PIECE_BYTES)
        if end == start:
            end = _end(_OBJECT_PART, window, start, start + PIECE_BYTES)
            if window[end : end + 1] != b"}":
                if end == min(len(window), start + PIECE_BYTES):
                    return start
                raise CodecError(f"element {self._count}: {_WRONG_OBJECT}, got {beginning(window[start:])}")
            end += 1
            texts = [self._b64_member(window[start:end])]
        else:
            texts = _B64_TEXT.findall(window, start, end)
        append_octets(self._elements, [_octets_of(text, index) for index, text in enumerate(texts, self._count)])
        self._add(len(texts))
        return end

    def _b64_member(self, text: bytes) -> bytes:
        """The value of the only member of *text*, an object without lists and objects in it."""
        try:
            members = json.loads(text.decode(), object_pairs_hook=list)
        except ValueError as error:
            raise CodecError(f"element {self._count} is not JSON: {error}") from None
        if [key for key, _ in members] != ["b64"] or type(members[0][1]) is not str:
            raise CodecError(f"element {self._count}: {_WRONG_OBJECT}, got {beginning(text)}")
        value: str = members[0][1]
        return value.encode(errors="replace")

    def _begin_base64(self, window: bytes) -> int:
        """Begin an object whose text is longer than a piece: all is taken up to its text."""
        head = _OBJECT_HEAD.match(window, 0, PIECE_BYTES)
        if head is None or (head[1] != b'"b64"' and self._b64_member(b'{%b:""}' % head[1])):
            raise CodecError(f"element {self._count}: {_WRONG_OBJECT}, got {beginning(window)}")
        self._begin_element()
        self._long_base64 = b""
        return head.end()

    def _decoded_part(self, text: bytes, is_closed: bool) -> bytes:
        """The octets of *text*, the next part of a long element; up to three characters are left for the next."""
        text = (self._long_base64 or b"") + text
        end = len(text) if is_closed else len(text) // 4 * 4
        self._long_base64 = None if is_closed else text[end:]
        return _octets_of(text[:end], self._count, goes_on=not is_closed)

    def _end_object(self, window: bytes) -> int:
        """Take the bracket of an object whose text was longer than a piece."""
        end = _end(_BLANKS, window, 0)
        if end == len(window):
            return end
        if window[end : end + 1] != b"}":
            raise CodecError(
                f"element {self._count - 1}: {_WRONG_OBJECT}, got {beginning(window[end:])} behind its text"
            )
        self._object_is_open = False
        return end + 1

    def _continue_element(self, buffer: bytearray, element_at: int) -> int:
        """Decode the next part of a string that is longer than a piece; its length is at *element_at*."""
        try:
            part, is_closed = string_part(buffer)
            text = orjson.loads(b"".join((b'"', part, b'"'))).encode()
        except (CodecError, orjson.JSONDecodeError) as error:
            raise CodecError(f"element {self._count} is not JSON: {error}") from None
        if self._long_base64 is not None:
            self._object_is_open = is_closed
            text = self._decoded_part(text, is_closed)
        self._elements += text
        if not is_closed:
            return len(part)
        size = len(self._elements) - element_at - PREFIX_BYTES
        if size > MAX_ELEMENT_BYTES:
            raise CodecError(f"element {self._count} has {size} bytes, more than a BYTES element can have")
        self._elements[element_at : element_at + PREFIX_BYTES] = size.to_bytes(PREFIX_BYTES, "little")
        self._long_element_at = None
        self._wants_value = self._just_opened = False
        self._add(1)
        return len(part) + 1

    def _add(self, n_elements: int) -> None:
        """As many elements of the innermost open list have been stored."""
        if self._learned is not None:
            self._learned.add(n_elements)
        self._count += n_elements
        if self._n_elements is not None and self._count > self._n_elements:
            raise CodecError(f"expected {self._n_elements} elements, got more")

    def _add_run(self, n_elements: int, rows: Sequence[Rows]) -> None:
        """As many elements have been stored that are nested in full, as *rows* says."""
        if not rows:
            self._add(n_elements)
            return
        if self._learned is not None:
            self._learned.add_full(n_elements)
        elif self._nesting is not None:  # the lists of the first are open already
            self._nesting.open_full(self._count + 1, self._count + n_elements)
        self._count += n_elements
        if self._n_elements is not None and self._count > self._n_elements:
            raise CodecError(f"expected {self._n_elements} elements, got more")

    def _open(self) -> None:
        self._depth += 1
        self._just_opened = True
        if self._depth > MAX_DEPTH:
            raise CodecError(f"data is nested deeper than {MAX_DEPTH}")
        if self._learned is not None:
            self._learned.open()
        elif self._depth > 1:
            self._nesting = self._nesting or Nesting(self._shape, MAX_DEPTH)
            self._nesting.open(self._depth, self._count)

    def _close(self) -> bool:
        """A list ends; whether it is known only now how long lists are at its depth."""
        is_learned = False
        if self._learned is not None:
            is_learned = self._learned.close()
        elif self._nesting is not None:
            if self._just_opened and self._n_elements:
                raise CodecError(f"data is nested, but not like the shape {list(self._shape)}: a list in it is empty")
            self._nesting.close(self._depth, self._count)
        self._depth -= 1
        self._wants_value = self._just_opened = False
        if self._depth == 0:
            self.done = True
            if self._n_elements is not None and self._count != self._n_elements:
                raise CodecError(f"expected {self._n_elements} elements, got {self._count}")
            if self._nesting is not None:
                self._nesting.finish()
        return is_learned


class LearnedShape:
    """Learns the shape of data that says none: all its lists must be as long as the first at their depth."""

    def __init__(self) -> None:
        self.rank = 0
        """How deep the lists are nested that have been seen; at this depth stand the values, once there is one."""
        self._has_values = False
        self._lengths: list[int] = []
        """By depth from 1: how long all lists are, of which one has ended; else -1."""
        self._taken: list[int] = []
        """By depth from 1: how many items each open list has so far."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of the lists at each depth, when all are closed."""
        return tuple(self._lengths)

    def open(self) -> None:
        """A list begins. Raises `CodecError` if the data is ragged, as `add` and `close` do."""
        if self._taken:
            self._taken[-1] += 1
        self._taken.append(0)
        depth = len(self._taken)
        if depth > self.rank:
            if self._has_values:
                raise CodecError(f"data is ragged: a list stands where the first values are, at depth {self.rank}")
            self.rank = depth
            self._lengths.append(-1)

    def add(self, n_values: int) -> None:
        """As many values stand in the innermost open list."""
        depth = len(self._taken)
        if depth != self.rank:
            raise CodecError(f"data is ragged: a value stands at depth {depth}, and lists at depth {self.rank}")
        self._has_values = True
        self._taken[-1] += n_values

    def add_alike(self, n_lists: int) -> None:
        """As many lists more stand in the innermost open one that are like the last in it."""
        self._taken[-1] += n_lists

    def add_full(self, n_values: int) -> None:
        """As many values stand in lists that are as long as the first."""
        for depth in range(self.rank - 1, -1, -1):
            taken, length = self._taken[depth] + n_values, self._lengths[depth]
            if taken <= length or length < 0:
                self._taken[depth] = taken
                return
            n_values = (taken - 1) // length  # lists that have begun since
            self._taken[depth] = taken - n_values * length

    @property
    def n_unknown(self) -> int:
        """At how many depths, beside the outermost, it is not known how long lists are."""
        return self._lengths[1:].count(-1)

    def rows(self) -> list[Rows]:
        """The lists whose length is known; none before the values are."""
        n_known = self.rank - 1 - self.n_unknown if self._has_values else 0
        return rows_of(self._lengths[: -n_known - 1 : -1])

    def close(self) -> bool:
        """The innermost open list ends; whether it is the first at its depth."""
        length = self._taken.pop()
        depth = len(self._taken)
        if self._lengths[depth] < 0:
            self._lengths[depth] = length
            return True
        if length != self._lengths[depth]:
            raise CodecError(
                f"data is ragged: a list at depth {depth + 1} has {length} items, the first one {self._lengths[depth]}"
            )
        return False


def _octets_of(text: bytes | memoryview, index: int, *, goes_on: bool = False) -> bytes:
    """What base64 *text* means, or a part of it, of whole groups; *index* is the element's, for the `CodecError`."""
    try:
        octets = binascii.a2b_base64(text, strict_mode=True)
    except ValueError as error:
        raise CodecError(f"element {index} is not base64: {error}") from None
    n_missing = len(text) * 3 // 4 - len(octets)
    if len(text) % 4 or n_missing > 2 or n_missing != bytes(text[len(text) - 2 :]).count(b"="):
        raise CodecError(f"element {index} is not base64: wrong padding")
    if n_missing and goes_on:
        raise CodecError(f"element {index} is not base64: padding before its end")
    return octets


def from_base64(blobs: list[memoryview], label: str) -> Generator[None, None, list[memoryview]]:
    """The elements of *blobs* (length-prefixed base64) decoded, length-prefixed again (protocol 4.8).

    Yields between steps. Raises `CodecError` naming *label* and the element.
    """
    decoded: list[memoryview] = []
    first = 0
    for blob in blobs:
        elements, n_elements = yield from _decoded_elements(blob, label, first)
        decoded.append(memoryview(elements))
        first += n_elements
    return decoded


def _decoded_elements(view: memoryview, label: str, first: int) -> Generator[None, None, tuple[bytearray, int]]:
    """Those of *view*, the first of which is number *first*, and how many they are; see `from_base64`."""
    decoded = bytearray()
    offset = worked = 0
    index = first
    while offset < len(view):
        start = offset + PREFIX_BYTES
        offset = start + int.from_bytes(view[offset:start], "little")
        length_at = len(decoded)
        decoded += bytes(PREFIX_BYTES)
        for piece_start in range(start, offset, PIECE_BYTES):
            piece = view[piece_start : min(piece_start + PIECE_BYTES, offset)]
            try:
                decoded += _octets_of(piece, index, goes_on=piece_start + PIECE_BYTES < offset)
            except CodecError as error:
                raise CodecError(f"{label}: {error}") from None
            worked += len(piece)
            if len(piece) == PIECE_BYTES:
                yield
        size = len(decoded) - length_at - PREFIX_BYTES
        decoded[length_at : length_at + PREFIX_BYTES] = size.to_bytes(PREFIX_BYTES, "little")
        index += 1
        worked += 64  # what an element costs by itself, in bytes
        if worked > PIECE_BYTES:
            worked = 0
            yield
    return decoded, index - first


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


def _string_end(window: bytes, start: int) -> int:
    """Where the string ends that begins at *start*; *start* itself if it is longer than a piece, or goes on."""
    end = window.find(b'"', start + 1, start + PIECE_BYTES) + 1
    if end and window.find(b"\\", start, end) < 0:
        return end
    return _end(_WHOLE_STRING, window, start, start + PIECE_BYTES)


def _end(pattern: re.Pattern[bytes], text: bytes, start: int, limit: int = WINDOW_BYTES) -> int:
    """Where *pattern* ends that is matched at *start* in text[:limit]; *start* itself if it does not match."""
    match = pattern.match(text, start, limit)
    return match.end() if match else start
