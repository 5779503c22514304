"""Proving, piece by piece, that a value of any type is JSON.

A value may have hundreds of megabytes and arrives in pieces. Passing it on unread would let a backend put anything into
a reply: `1]}],"model_name":"x"` closes the array and goes on with members of its own choice. Parsing it as a whole
would stall the event loop and need all of it at once. So each piece is parsed by itself, made complete first:

    the value so far      [{"a":[1,2],"b":[3,           two arrays and an object are open
    the next piece        4],"c":"x"},{"d":5            ends at a comma, outside all strings
    what is parsed        [{"":[4],"c":"x"},{"d":5}]    brackets put before it and behind it

What is put before the piece opens what was open at its start, with a dummy key for the objects further out; what is
put behind it closes what is open at its end. The parser then proves everything that lies inside the piece, and that
its brackets fit to those outside. It cannot see the commas at the cuts, which `check_cut` looks at.

Strings longer than a piece are cut as well. The inside of one is proved part by part, each between quotes;
`string_part` sees to it that no escape and no character is cut. The text between the last comma and a long string
waits. It is proved together with the text behind the string, with an empty string in the place of the long one.

Which brackets are open is found by walking through strings and brackets alone; a mistake there cannot make wrong text
pass, because the parser judges every byte.

Not here: what a value means. The sinks for tensors are provers that read what they prove.
"""

import re
from itertools import islice
from typing import ClassVar

from gateway.codec.json.members import check_json
from gateway.codec.json.pieces import (
    ARRAY,
    FIRST_TOKENS,
    NOT_SPACE,
    OBJECT,
    PIECE_BYTES,
    STEP_TOKENS,
    STRING_OR_BRACKET,
    check_cut,
    last_comma,
    scalar_end,
    string_part,
    walk,
)
from gateway.errors import CodecError

MAX_WINDOW_BYTES = 8 * PIECE_BYTES
"""How much text without a comma outside strings is looked at for one; only blanks and brackets can be that long."""

_CLOSER = {OBJECT: b"}", ARRAY: b"]"}


class Prover:
    """Reads one value of any type; `done` when it has ended."""

    piece_bytes: ClassVar[int] = PIECE_BYTES
    """How much text one step works on."""

    def __init__(self, label: str) -> None:
        self.done = False
        self.label = label
        self._open = bytearray()
        self._before = b""  # what waits, up to the quote that a long string begins or ends with
        self._inside_string = False
        self._looked_at_bytes = self.piece_bytes

    def step(self, buffer: bytearray) -> int:
        """See `Sink.step`. Raises `CodecError` for what is no JSON."""
        if self._inside_string:
            return self._continue_string(bytes(memoryview(buffer)[:PIECE_BYTES]))
        while True:
            window = bytes(memoryview(buffer)[: self._looked_at_bytes])
            taken = self._prove(window)
            if taken:
                self._looked_at_bytes = self.piece_bytes
            if taken or len(buffer) <= self._looked_at_bytes:
                return taken
            if self._looked_at_bytes >= MAX_WINDOW_BYTES:
                raise CodecError(f"{self._looked_at_bytes} bytes without a comma")
            self._looked_at_bytes *= 2

    def _judge(self, text: bytes, opened: bytes | bytearray) -> None:
        """Take *text*, a piece that was made complete, and behind which *opened* is open. Raises `CodecError`."""
        check_json(text)

    def _begin_string(self, before: bytes) -> None:
        """A string longer than a piece begins behind *before*, which ends with its quote."""

    def _judge_string(self, part: bytes, *, is_closed: bool) -> None:
        """Take the next *part* of a long string. Raises `CodecError`."""
        check_json(b'"%b"' % part)

    @property
    def _is_begun(self) -> bool:
        """Whether something of the value, and not only blanks before it, has been taken."""
        return bool(self._open or self._before)

    def _prove(self, window: bytes) -> int:
        if not self._is_begun:
            first = NOT_SPACE.search(window)
            if first is None:
                return 0
            if first.start():
                return first.start()
            if first[0] not in b'[{"':
                return self._finish(window, scalar_end(window, 0))
        may_go_on = len(window) >= self._looked_at_bytes
        text = self._before + window
        found, opened = STRING_OR_BRACKET.finditer(text), bytearray(self._open)
        tokens: list[re.Match[bytes]] = []
        while len(tokens) < STEP_TOKENS and (few := list(islice(found, len(tokens) or FIRST_TOKENS))):
            end = walk(opened, few)  # which are as many as those before: short values take little work
            if end:
                return self._finish(text, end)
            tokens += few
        if len(tokens) == STEP_TOKENS:
            text = text[: tokens[-1].end()]
            may_go_on = True
        if not may_go_on:
            return 0
        comma, n_tokens = last_comma(text, tokens)
        if comma < 0:
            return self._wait_at_string(text, tokens[-1]) if tokens and tokens[-1][1] is not None else 0
        opened = bytearray(self._open)
        walk(opened, tokens[:n_tokens])
        self._complete(text[:comma], opened)
        self._open = opened
        return self._take(b"", comma + 1)

    def _complete(self, text: bytes, opened: bytes | bytearray) -> None:
        """Have *text* judged, which continues what is open so far and leaves *opened* open."""
        check_cut(text, 0, len(text), continues=bool(self._open), goes_on=bool(opened))
        outer = b"".join([b"[" if code == ARRAY else b'{"":' for code in self._open[:-1]])
        closing = b"".join([_CLOSER[code] for code in reversed(opened)])
        self._judge(outer + self._open[-1:] + text + closing, opened)

    def _take(self, before: bytes, end: int) -> int:
        """How many bytes of the window are finished with; *before* waits from now on.

        All is finished with up to *end*, which is counted from the front of the text that has waited.
        """
        taken = end - len(self._before)
        self._before = before
        return taken

    def _finish(self, text: bytes, end: int) -> int:
        """Prove the value's last piece, which ends at *end*; 0 if that is not known yet."""
        if not end:
            return 0
        self._complete(text[:end], b"")
        self.done = True
        return self._take(b"", end)

    def _wait_at_string(self, text: bytes, string: re.Match[bytes]) -> int:
        """The *string* that begins in *text* goes on behind the window: take all up to its quote."""
        end = string.start() + 1
        self._begin_string(text[:end])
        self._inside_string = True
        return self._take(text[:end], end)

    def _continue_string(self, window: bytes) -> int:
        """Prove the next part of a long string."""
        part, is_closed = string_part(window)
        if not part and not is_closed:
            return 0
        self._judge_string(part, is_closed=is_closed)
        if not is_closed:
            return len(part)
        self._inside_string = False
        self._before += b'"'
        if not self._open and self._before == b'""':
            self._complete(self._before, b"")
            self.done = True
        return len(part) + 1
