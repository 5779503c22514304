"""Proving, piece by piece, that a value of any type is JSON.

A value that stays JSON (an output that the client wants as text, or one whose `data` came before its `datatype`) may
have hundreds of megabytes and arrives in pieces. Passing it on unread would let a backend put anything into a reply:
`1]}],"model_name":"x"` closes the array and goes on with members of its own choice. Parsing it as a whole would stall
the event loop and need all of it at once. So each piece is parsed by itself, made complete first:

    the value so far      [{"a":[1,2],"b":[3,           two arrays and an object are open
    the next piece        4],"c":"x"},{"d":5            ends at a comma, outside all strings
    what is parsed        [{"":[4],"c":"x"},{"d":5}]    brackets put before it and behind it

What is put before the piece opens what was open at its start, with a dummy key for the objects further out; what is
put behind it closes what is open at its end. The parser then proves everything that lies inside the piece, and that
its brackets fit to those outside. It cannot see the commas at the cuts, which `check_cut` looks at.

Strings longer than a piece are cut as well. Where one begins, the text up to its quote is proved with an empty string
in its place, once as a value and, if that fails, once as a key. Its inside is proved part by part, each between
quotes; `string_part` sees to it that no escape and no character is cut. Behind it the text goes on after a stand-in:
what was before the cut is replaced by the shortest text in whose place it could stand (`"":0` for a member that has
its value, `""` for a key that needs a colon, `0` for an element).

Which brackets are open is found by walking through strings and brackets alone; a mistake there cannot make wrong text
pass, because the parser judges every byte.
"""

import re
from collections.abc import Callable
from itertools import islice

from gateway.codec.json.brackets import (
    ARRAY,
    OBJECT,
    STEP_TOKENS,
    STRING_OR_BRACKET,
    last_comma,
    scalar_end,
    walk,
)
from gateway.codec.tensors.pieces import NOT_SPACE, PIECE_BYTES, check_cut, string_part
from gateway.errors import CodecError

MAX_WINDOW_BYTES = 8 * PIECE_BYTES
"""How much text without a comma outside strings is looked at for one; only blanks and brackets can be that long."""

_CLOSER = {OBJECT: b"}", ARRAY: b"]"}
_MEMBER_DONE, _KEY_DONE, _ELEMENT_DONE = b'"":0', b'""', b"0"


class Prover:
    """Reads one value of any type; `done` when it has ended."""

    def __init__(self, judge: Callable[[bytes], None]) -> None:
        """*judge* raises `CodecError` unless it is given one JSON value."""
        self.done = False
        self._judge = judge
        self._open = bytearray()
        self._stand_in = b""
        self._stand_in_behind_string: bytes | None = None
        self._window_bytes = PIECE_BYTES

    def step(self, buffer: bytearray | memoryview) -> int:
        """Prove the front of *buffer*: how many bytes are finished with, 0 if more must arrive first.

        Raises `CodecError` for what is no JSON.
        """
        while True:
            window = bytes(memoryview(buffer)[: self._window_bytes])
            taken = self._prove(window)
            if taken:
                self._window_bytes = PIECE_BYTES
            if taken or len(buffer) <= self._window_bytes:
                return taken
            if self._window_bytes >= MAX_WINDOW_BYTES:
                raise CodecError(f"{self._window_bytes} bytes without a comma")
            self._window_bytes *= 2

    def _prove(self, window: bytes) -> int:
        if self._stand_in_behind_string is not None:
            return self._continue_string(window, self._stand_in_behind_string)
        if not self._open:
            first = NOT_SPACE.search(window)
            if first is None:
                return 0
            if first.start():
                return first.start()
            if first[0] not in b'[{"':
                return self._finish(window, scalar_end(window, 0))
        may_go_on = len(window) >= PIECE_BYTES
        tokens = list(islice(STRING_OR_BRACKET.finditer(window), STEP_TOKENS))
        if len(tokens) == STEP_TOKENS:
            window = window[: tokens[-1].end()]
            may_go_on = True
        opened = bytearray(self._open)
        end = walk(opened, tokens)
        if end:
            return self._finish(window, end)
        if not may_go_on:
            return 0
        comma, n_tokens = last_comma(window, tokens)
        if comma < 0:
            return self._begin_string(window, tokens) if tokens and tokens[-1][1] is not None else 0
        opened = bytearray(self._open)
        walk(opened, tokens[:n_tokens])
        self._check(window[:comma], opened, goes_on=True)
        self._open = opened
        self._stand_in = b""
        return comma + 1

    def _finish(self, window: bytes, end: int) -> int:
        """Prove the value's last piece, which ends at *end*; 0 if that is not known yet."""
        if end:
            self._check(window[:end], b"")
            self.done = True
        return end

    def _begin_string(self, window: bytes, tokens: list[re.Match[bytes]]) -> int:
        """Prove what stands before the inside of the string that goes on behind the window, and its quote."""
        opened = bytearray(self._open)
        walk(opened, tokens[:-1])
        text = window[: tokens[-1].start() + 1]
        try:
            self._check(text + b'"', opened)
            self._stand_in_behind_string = _MEMBER_DONE if opened[-1:] == b"{" else _ELEMENT_DONE
        except CodecError:
            self._check(text + b'":0', opened)
            self._stand_in_behind_string = _KEY_DONE
        self._open = opened
        return len(text)

    def _continue_string(self, window: bytes, stand_in: bytes) -> int:
        """Prove the next part of a long string."""
        part, is_closed = string_part(window)
        if not part and not is_closed:
            return 0
        self._judge(b'"%b"' % part)
        if not is_closed:
            return len(part)
        self._stand_in_behind_string = None
        self._stand_in = stand_in
        self.done = not self._open
        return len(part) + 1

    def _check(self, text: bytes, opened: bytes | bytearray, *, goes_on: bool = False) -> None:
        """Prove that *text* continues what is open so far and leaves *opened* open; *goes_on*: a comma follows."""
        text = self._stand_in + text
        check_cut(text, 0, len(text), continues=bool(self._open), goes_on=goes_on)
        outer = b"".join([b"[" if code == ARRAY else b'{"":' for code in self._open[:-1]])
        closing = b"".join([_CLOSER[code] for code in reversed(opened)])
        self._judge(outer + self._open[-1:] + text + closing)
