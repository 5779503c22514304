"""Proving, piece by piece, that a value of any type is JSON.

Each piece ends at a comma, or where a string begins or ends that is longer than a piece, and is parsed with what is
open at its start put before it and what is open at its end behind.
"""

import re
from itertools import islice

from gateway.codec.json.brackets import ARRAY, OBJECT, STEP_TOKENS, STRING_OR_BRACKET, last_comma, scalar_end, walk
from gateway.codec.json.members import check_json, protect_literals
from gateway.codec.tensors.pieces import NOT_SPACE, PIECE_BYTES, check_cut
from gateway.errors import CodecError

_CLOSER = {OBJECT: b"}", ARRAY: b"]"}
# As much of a string's inside as is whole.
_INSIDE_STRING_WHOLE = re.compile(rb'(?:[^"\\]++|\\[^u]|\\u[0-9a-fA-F]{4})*+', re.DOTALL)


class Prover:
    """Reads one value of any type; `done` when it has ended."""

    def __init__(self) -> None:
        self.done = False
        self._open = bytearray()
        self._before = b""
        self._long_string: bytes | None = None
        self._window_bytes = PIECE_BYTES

    def step(self, buffer: bytearray) -> int:
        """Prove the front of *buffer*: how many bytes are finished with, 0 if more must arrive first.

        Raises `CodecError` for what is no JSON.
        """
        while True:
            window = bytes(memoryview(buffer)[: self._window_bytes])
            taken = self._step(window)
            if taken or len(buffer) <= self._window_bytes:
                return taken
            if self._window_bytes > 4 * PIECE_BYTES:
                raise CodecError(f"{self._window_bytes} bytes without a comma")
            self._window_bytes *= 2

    def _step(self, window: bytes) -> int:
        if self._long_string is not None:
            return self._continue_string(window, self._long_string)
        if not self._open:
            first = NOT_SPACE.search(window)
            if first is None:
                return 0
            if first.start():
                return first.start()
            if first[0] not in b'[{"':
                end = scalar_end(window, 0)
                if end:
                    self._check(window[:end], b"", b"")
                    self._take(window[:end], done=True)
                return end
        may_go_on = len(window) >= PIECE_BYTES
        tokens = list(islice(STRING_OR_BRACKET.finditer(window), STEP_TOKENS))
        if len(tokens) == STEP_TOKENS:
            window = window[: tokens[-1].end()]
            may_go_on = True
        opened = bytearray(self._open)
        end = walk(opened, tokens)
        if end:
            self._check(window[:end], b"", b"")
            self._take(window[:end], done=True)
            return end
        if not may_go_on:
            return 0
        comma, whole_tokens = last_comma(window, tokens)
        if comma < 0:
            return self._begin_string(window, tokens) if tokens and tokens[-1][1] is not None else 0
        opened = bytearray(self._open)
        walk(opened, tokens[:whole_tokens])
        self._check(window[:comma], b"", opened, goes_on=True)
        self._open = opened
        self._before = b""
        return self._take(window[: comma + 1])

    def _begin_string(self, window: bytes, tokens: list[re.Match[bytes]]) -> int:
        """Take what stands before the inside of a string that goes on behind the window."""
        opened = bytearray(self._open)
        walk(opened, tokens[:-1])
        text = window[: tokens[-1].start() + 1]
        try:
            self._check(text, b'"', opened)
            self._long_string = b'"":0' if opened[-1:] == b"{" else b"0"
        except CodecError:
            self._check(text, b'":0', opened)  # it is a key
            self._long_string = b'""'
        self._open = opened
        return self._take(text)

    def _continue_string(self, window: bytes, stand_in: bytes) -> int:
        """Take as much of a long string as is whole: no escape is cut, and no character."""
        inside = _INSIDE_STRING_WHOLE.match(window)
        end = inside.end() if inside is not None else 0
        is_closed = window[end : end + 1] == b'"'
        if not is_closed and len(window) < PIECE_BYTES:
            return 0
        text = window[:end]
        try:
            text.decode()
        except UnicodeDecodeError as error:
            if is_closed or end - error.start > 3:
                raise CodecError(f"JSON is not UTF-8: {error.reason}") from None
            text = text[: error.start]
        if not text and not is_closed:
            raise CodecError(f"a broken escape in a string: {window[:6]!r}")
        check_json(b'"%b"' % text)
        if not is_closed:
            return self._take(text)
        self._long_string = None
        self._before = stand_in
        return self._take(text + b'"', done=not self._open)

    def _check(self, text: bytes, behind: bytes, opened: bytes | bytearray, *, goes_on: bool = False) -> None:
        """Prove that *text* and then *behind* continue what was open, and leave *opened* open.

        *goes_on*: a comma follows.
        """
        text = self._before + text + behind
        check_cut(text, 0, len(text), continues=bool(self._open), goes_on=goes_on)
        outer = b"".join([b"[" if code == ARRAY else b'{"":' for code in self._open[:-1]])
        suffix = b"".join([_CLOSER[code] for code in reversed(opened)])
        check_json(protect_literals(outer + self._open[-1:] + text + suffix)[0])

    def _take(self, text: bytes, *, done: bool = False) -> int:
        self.done = done
        self._window_bytes = PIECE_BYTES
        return len(text)
