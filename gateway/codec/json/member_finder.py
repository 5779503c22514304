"""Finds one member in a document that is passed on unparsed, and can replace its value.

The document is walked through, not judged: only strings and brackets are followed, nothing but a key is held, and no
byte but those of the value that is replaced changes. What is not JSON passes too. Not here: documents that are read
(`scanner`, `members`), and what a member means.
"""

import re
from collections.abc import Iterator

import orjson

from gateway.codec.json.brackets import OBJECT, STEP_TOKENS, WALK_BYTES, skip_inside_string
from gateway.codec.json.scanner import CLOSE_TOKEN, KEY_TOKEN, OPEN_TOKEN, TOKEN, is_key
from gateway.codec.tensors.pieces import NOT_SPACE

MAX_KEY_BYTES = 256
"""The longest key that is looked at, with the blanks before its colon: several times what the keys that are looked for
take with every character escaped."""

# Numbers, whole strings, and whole arrays and objects of only these: inside of a value they are skipped.
_WITHOUT_BRACKETS = rb'[^"\[\]{}]++|"(?:[^"\\]++|\\.)*+"'
_FLAT = re.compile(rb"(?:%b|[\[{](?>(?:%b)*)[\]}])+" % (_WITHOUT_BRACKETS, _WITHOUT_BRACKETS), re.DOTALL)


class MemberFinder:
    """Walks through documents, one after the other, up to the members at one path of keys."""

    def __init__(self, *path: str) -> None:
        """*path*: the keys from the top of a document to the member, each but the last that of an object."""
        self.found = False
        """Whether the value of the member begins where the last step ended; there may be blanks before it."""
        self.depth = 0
        """How many brackets are open."""
        self._path = [b'"%b"' % key.encode() for key in path]
        self._matched = 0  # so many of the path's keys lead to the object that is open
        self._is_next = False  # the next value is that of the path's next key
        self._inside_string = False

    def step(self, buffer: bytes | bytearray | memoryview) -> int:
        """Walk through the front of *buffer*: how many bytes are finished with, 0 if more must arrive first.

        Ends where a member is found and where a document ends. At most `MAX_KEY_BYTES` wait for more.
        """
        self.found = False
        if self._inside_string:
            end, is_closed = skip_inside_string(buffer, 0)
            self._inside_string = not is_closed
            return end
        limit = min(len(buffer), WALK_BYTES)
        if self.depth > self._matched + 1:
            flat = _FLAT.match(buffer, 0, limit)  # 3 to 20 times as fast as token by token
            if flat is not None:
                return flat.end()
        for n_tokens, token in enumerate(TOKEN.finditer(buffer, 0, limit)):
            kind = token.lastindex
            if n_tokens == STEP_TOKENS:
                return token.start()
            if kind is None:
                continue
            if kind == KEY_TOKEN:
                if self.depth == self._matched + 1:
                    self._is_next = is_key(token[0], self._path[self._matched])
                    if self._is_next and self.depth == len(self._path):
                        self._is_next = False
                        self.found = True
                        return token.end()
            elif kind == OPEN_TOKEN:
                self.depth += 1
                if self._is_next and token[0][0] == OBJECT:
                    self._matched += 1
                self._is_next = False
            elif kind == CLOSE_TOKEN:
                self.depth = max(0, self.depth - 1)
                self._matched = min(self._matched, max(0, self.depth - 1))
                self._is_next = False
                if self.depth == 0:
                    return token.end()
            elif token.start():
                return token.start()
            elif self.depth == self._matched + 1 and len(buffer) < MAX_KEY_BYTES:
                return 0
            else:  # no key that is looked for: its end is all that matters
                self._inside_string = True
                return 1
        return limit


class MemberReplacer:
    """Puts another string in place of that of one member at the top of each document; all else crosses byte for byte.

    A member whose value is no string stays.
    """

    def __init__(self, key: str, value: str) -> None:
        self._finder = MemberFinder(key)
        self._value = orjson.dumps(value)
        self._buffer = bytearray()
        self._is_before_value = False
        self._is_inside_value = False

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """What crosses of *chunk* and what was before it, in pieces after each step of work; some may be empty."""
        buffer = self._buffer
        buffer += chunk
        while buffer:
            if self._is_before_value:
                first = NOT_SPACE.search(buffer, 0, WALK_BYTES)
                taken = first.start() if first is not None else min(len(buffer), WALK_BYTES)
                piece = bytes(buffer[:taken])
                if first is not None:
                    self._is_before_value = False
                    self._is_inside_value = first[0] == b'"'
                if self._is_inside_value:
                    piece += self._value
                    taken += 1
            elif self._is_inside_value:
                taken, is_closed = skip_inside_string(buffer, 0)
                if not taken:
                    return
                self._is_inside_value = not is_closed
                piece = b""
            else:
                taken = self._finder.step(buffer)
                if not taken:
                    return
                self._is_before_value = self._finder.found
                piece = bytes(buffer[:taken])
            del buffer[:taken]
            yield piece

    def finish(self) -> bytes:
        """What was held back when the body ended."""
        return b"" if self._is_inside_value else bytes(self._buffer)
