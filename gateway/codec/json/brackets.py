"""Following strings and brackets through JSON text: where a value ends, and where it may be cut.

Not here: whether the text between them is JSON (`prover`).
"""

import re

from gateway.codec.tensors.pieces import PIECE_BYTES
from gateway.errors import CodecError

MAX_TEXT_DEPTH = 512
"""The most brackets that may be open at once in a value that crosses as text."""

STEP_TOKENS = 4096
"""How many strings and brackets one step looks at: it bounds a step over text that has hardly anything else."""

QUOTE, OBJECT, END_OBJECT, ARRAY, END_ARRAY = b'"{}[]'

STRING_OR_BRACKET = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|(\\?\Z))|[\[\]{}]', re.DOTALL)
"""A whole string, one that goes on behind the window (group 1), or a bracket."""

_AFTER_SCALAR = re.compile(rb"[ \t\r\n,}\]]")


def scalar_end(window: bytes, start: int) -> int:
    """Where a number or word ends that begins at *start*; 0 if that is behind the window. Raises for none."""
    end = _AFTER_SCALAR.search(window, start)
    if end is None:
        if len(window) >= PIECE_BYTES:
            raise CodecError(f"a number or word of more than {PIECE_BYTES - start} bytes")
        return 0
    if end.start() == start:
        raise CodecError("data has no value")
    return end.start()


def walk(opened: bytearray, tokens: list[re.Match[bytes]]) -> int:
    """Follow brackets through *tokens*, with *opened* as the stack; the end of the value, or 0 if it goes on."""
    for token in tokens:
        code = token[0][0]
        if code in (OBJECT, ARRAY):
            opened.append(code)
            if len(opened) > MAX_TEXT_DEPTH:
                raise CodecError(f"data is nested deeper than {MAX_TEXT_DEPTH}")
        elif code != QUOTE:
            # '[' + 2 is ']' and '{' + 2 is '}'
            if not opened or opened.pop() + 2 != code:
                raise CodecError(f"brackets do not match: {chr(code)!r} closes what was not opened")
        elif token[1] is not None:
            return 0
        if not opened:
            return token.end()
    return 0


def last_comma(window: bytes, tokens: list[re.Match[bytes]]) -> tuple[int, int]:
    """The last comma outside strings, and how many tokens stand before it; -1 where there is none."""
    limit = len(window)
    for n_tokens in range(len(tokens), -1, -1):
        if n_tokens and tokens[n_tokens - 1][1] is not None:
            limit = tokens[n_tokens - 1].start()
            continue
        start = tokens[n_tokens - 1].end() if n_tokens else 0
        comma = window.rfind(b",", start, limit)
        if comma >= 0:
            return comma, n_tokens
        if n_tokens:
            limit = tokens[n_tokens - 1].start()
    return -1, 0
