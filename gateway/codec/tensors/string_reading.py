r"""Tensors of BYTES from JSON strings, a piece at a time (protocol 4.7).

Strings are read in one of three ways, the first that fits what stands in the text:

1. Flat strings without a backslash: the bytes of each already are its element, and only what stands between two strings
   has to become a length:

       "first","second","third"       ->       5 first 6 second 5 third

   numpy finds all quotes; every second pair of neighbours must enclose a comma. With its quotes, a comma and a blank
   are exactly as long as a length, and a comma alone is made longer. Of strings of up to 20 characters and of those
   beyond ASCII this takes half of what orjson takes, of 100 ASCII characters four fifths: worth the 40 lines.
2. Strings by orjson, which makes a list for each list that they are nested in. The text is cut where the first gap
   between two strings stands for the last time, or where all lists end. Such a place may be inside a string: then
   orjson refuses the piece.
3. Everything else as any `Prover` walks through it: a piece is parsed, made complete, and each element looked at. A
   string that is longer than a piece is decoded part by part, so that it never exists in two forms; its length is put
   before it at the end, and in the text behind it stands an empty one in its place.

An object with base64 is an element with more around it: its octets are decoded at once, or in parts.
"""

import json
import re
from base64 import b64encode
from itertools import chain
from typing import Any

import numpy as np
import orjson

from gateway.codec.json.member_finder import is_key
from gateway.codec.json.members import excerpt
from gateway.codec.json.pieces import OBJECT, PIECE_BYTES
from gateway.codec.tensors.base64_reading import octets_of
from gateway.codec.tensors.elements import (
    PREFIX_BYTES,
    RUN_STEP_ELEMENTS,
    STEP_ELEMENTS,
    append_marked,
    append_octets,
    append_strings,
    prefix_of,
)
from gateway.codec.tensors.nesting import TensorSink, blanks_before_array, completed, lists_in, occurrences
from gateway.errors import CodecError

MIN_STRINGS = 16
"""Fewer are not worth numpy's calls."""

RUN_BYTES = 32 * 1024
"""Shorter text of strings waits for more while the array goes on: of many strings at a time each costs less."""

BLOB_BYTES = 1024 * 1024
"""Behind so many bytes of elements the next ones go into another blob.

As one, a large tensor would grow over the size from which on the C library asks the kernel for memory, up to 32 MiB
with glibc, and be copied there in a single step, which takes 2 ms for 4 MiB.
"""

_B64 = rb'(?:"b64"[ \t\r\n]*+:[ \t\r\n]*+)?"'
_FIRST_GAP = re.compile(
    rb'[\[{ \t\r\n]*+%b(?:[^"\\]++|\\.)*+("[]} \t\r\n]*+,[\[{ \t\r\n]*+%b)' % (_B64, _B64), re.DOTALL
)
_OBJECT_HEAD = re.compile(rb'\{[ \t\r\n]*+("(?:[^"\\]++|\\.)*+")[ \t\r\n]*+:[ \t\r\n]*+"\Z', re.DOTALL)
_BEHIND = re.compile(rb"[ \t\r\n]*+([,\]])")
_COMMA, _QUOTE, _BLANK = b'," '
_WRONG_OBJECT = 'an object must be {"b64": "..."} with no other member'


class BytesSink(TensorSink):
    """Takes the `data` of one BYTES tensor, nested or flat, into length-prefixed elements."""

    keeps_base64 = False
    """Whether elements are left in base64, an object's too; what a missing one becomes is written in it."""

    def __init__(
        self, label: str, shape: tuple[int, ...] | None, *, b64_objects: bool = False, missing: bytes | str = ""
    ) -> None:
        """*b64_objects*: an element may be an object `{"b64": "..."}`, TensorFlow's form for octets, beside strings.

        *missing*: the element that `null` and `NaN` become; a text refuses them, and stands behind the words.
        """
        super().__init__(label, shape)
        self._elements = bytearray()
        self._full_blobs: list[bytearray] = []
        self._b64_objects = b64_objects
        self._missing = missing
        self._long_element_at = -1
        self._long_base64: bytes | None = None
        self._has_long = False

    @property
    def held_bytes(self) -> int:
        """The elements so far."""
        return sum(map(len, self._full_blobs)) + len(self._elements)

    def blobs(self) -> list[memoryview]:
        """The elements, each with its length before it, as they are on the wire: one or several pieces, in order."""
        return [memoryview(blob) for blob in (*self._full_blobs, self._elements) if blob] or [memoryview(b"")]

    def step(self, buffer: bytearray) -> int:
        """See `Sink.step`. Raises `CodecError` for what does not fit the datatype or the shape (protocol 4.7)."""
        if self._before:  # a long string stands there
            return super().step(buffer)
        if not self._is_begun and not buffer.startswith(b"["):
            return super().step(buffer) if self._shape is None else blanks_before_array(buffer, PIECE_BYTES)
        if len(buffer) < RUN_BYTES and buffer.find(b"]") < 0:
            return 0
        self._end_full_blob()
        return self._take_run(bytes(memoryview(buffer)[:PIECE_BYTES])) or super().step(buffer)

    def _end_full_blob(self) -> None:
        if len(self._elements) >= BLOB_BYTES:
            self._full_blobs.append(self._elements)
            self._elements = bytearray()

    def _take_run(self, text: bytes) -> int:
        """Store many of the strings at the front of *text*: where they end; 0 if they are few, or not as expected."""
        layout = self._layout
        if not layout.rank:
            layout.begin(text)
        if layout.rank == 1 and text.find(b"\\") < 0 and (end := self._take_plain(text)):
            return end
        gap = _FIRST_GAP.match(text)
        if gap is None:
            return 0
        cost = occurrences(text, b'"') // 2 + occurrences(text, b"[")  # a list costs as much as a string, or more
        limit = len(text) * min(cost, STEP_ELEMENTS) // cost
        end = text.rfind(gap[1], 0, limit) + gap[1].index(b",")
        depth = layout.rank - gap[1].count(b"]")
        if depth > 0 and end >= gap.start(1) and self._take_lists(text[:end], depth):
            return end + 1
        closing = (b'"}' if b"}" in gap[1] else b'"') + b"]" * layout.rank
        end = text.find(closing, 0, limit)
        return end + len(closing) if end >= 0 and self._take_lists(text[: end + len(closing)], 0) else 0

    def _take_plain(self, text: bytes) -> int:
        """As `_take_run`, of flat strings."""
        before = len(self._elements)
        first = int(not self._layout.depth)  # behind a bracket
        n_strings, n_bytes = append_plain(self._elements, text[first:]) if text[first] == _QUOTE else (0, 0)
        behind = _BEHIND.match(text, first + n_bytes) if n_strings else None
        if behind is None:
            del self._elements[before:]
            return 0
        self._end_piece([[n_strings]], n_strings, b"[" if behind[1] == b"," else b"")
        return behind.end()

    def _take_lists(self, text: bytes, depth: int) -> bool:
        """Store the strings in *text*, behind which *depth* lists are open; False if it is not like that."""
        layout = self._layout
        try:
            tree = orjson.loads(completed(text, layout.depth, depth))
            lengths, lists = lists_in(tree, layout.rank)
        except (orjson.JSONDecodeError, TypeError):
            return False
        items = lists[0] if len(lists) == 1 else list(chain.from_iterable(lists))
        self._store(items)
        self._end_piece(lengths, len(items), b"[" * depth)
        return True

    def _store(self, items: list[Any]) -> None:
        """Store the elements *items*. The empty one in the place of a long element, whose octets are there, is not."""
        before = len(self._elements)
        try:
            append_strings(self._elements, items)
        except (TypeError, UnicodeEncodeError):
            octets = [self._octets(item, index) for index, item in enumerate(items, self._layout.count)]
            append_octets(self._elements, octets)
        if self._has_long:
            del self._elements[before : before + PREFIX_BYTES]
            self._has_long = False

    def _judge(self, text: bytes, opened: bytes | bytearray) -> None:
        """See `Prover`: an element may be anything, and lists may be nested in any way."""
        layout = self._layout
        text = layout.listed(text)
        try:
            tree = json.loads(text.decode())
        except UnicodeDecodeError as error:
            raise CodecError(f"element {layout.count}, or one behind it, is not UTF-8: {error.reason}") from None
        except ValueError as error:
            raise CodecError(f"element {layout.count}, or one behind it, is not JSON: {error}") from None
        lengths, items = layout.items_in(tree)
        if self._has_long and type(items[0]) is dict and b"," in text[: text.find(b"}") + 1]:
            raise CodecError(f"element {layout.count}: {_WRONG_OBJECT}")
        self._store(items)
        if OBJECT in opened:
            raise CodecError(f"element {layout.count + len(items) - 1}: {_WRONG_OBJECT}")
        self._end_piece(lengths, len(items), opened)

    def _octets(self, item: Any, index: int) -> bytes:
        """The element *item*, which is a string, an object, or something else."""
        if type(item) is str:
            try:
                return item.encode()
            except UnicodeEncodeError:
                raise CodecError(f"element {index} is not JSON: a lone surrogate") from None
        if type(item) is list:
            self._layout.fail()
        if type(item) is dict and self._b64_objects:
            if len(item) == 1 and type(item.get("b64")) is str:
                text = item["b64"].encode(errors="replace")
                return text if self.keeps_base64 else octets_of(text, index)
            raise CodecError(f"element {index}: {_WRONG_OBJECT}, got {excerpt(json.dumps(item).encode())}")
        missing = self._missing if item is None or str(item) == "nan" else ""
        if isinstance(missing, bytes):
            return b64encode(missing) if self.keeps_base64 else missing
        raise CodecError(f"element {index}: expected a string, got {excerpt(json.dumps(item).encode())}{missing}")

    def _begin_string(self, before: bytes) -> None:
        """See `Prover`: a long element begins, or the text of an object that is one."""
        layout = self._layout
        if not layout.rank:
            layout.begin(before)
        if b"{" in before:
            head = _OBJECT_HEAD.search(before) if self._b64_objects else None
            if head is None or not is_key(head[1], b'"b64"'):
                words = _WRONG_OBJECT if self._b64_objects else "expected a string"
                raise CodecError(f"element {layout.count}: {words}, got {excerpt(before[before.index(b'{') :])}")
            self._long_base64 = None if self.keeps_base64 else b""
        self._long_element_at = len(self._elements)
        self._elements += bytes(PREFIX_BYTES)
        self._has_long = True

    def _judge_string(self, part: bytes, *, is_closed: bool) -> None:
        """See `Prover`: decode the next part of a long element."""
        index = self._layout.count
        text = part
        if b"\\" in part or not _is_plain(part):  # of ASCII this takes a tenth of the time of decoding
            try:
                text = orjson.loads(b'"%b"' % part).encode()
            except orjson.JSONDecodeError as error:
                raise CodecError(f"element {index} is not JSON: {error}") from None
        if self._long_base64 is not None:
            text = self._long_base64 + text
            end = len(text) if is_closed else (len(text) - 1) // 4 * 4  # the last group may have the padding
            self._long_base64 = None if is_closed else text[end:]
            text = octets_of(text[:end], index, goes_on=not is_closed)
        self._elements += text
        if is_closed:
            start = self._long_element_at
            size = len(self._elements) - start - PREFIX_BYTES
            self._elements[start : start + PREFIX_BYTES] = prefix_of(size, f"element {index}")
            self._end_full_blob()


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


def _is_plain(text: bytes | bytearray) -> bool:
    """Whether *text*, which has no backslash, is UTF-8 without control characters."""
    if text and np.minimum.reduce(np.frombuffer(text, np.uint8)) < ord(" "):
        return False
    try:
        return text.isascii() or bool(text.decode())
    except UnicodeDecodeError:
        return False
