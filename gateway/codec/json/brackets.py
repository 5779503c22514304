"""Following strings and brackets through JSON text: where a value ends, and where it may be cut.

Not here: whether the text between them is JSON (`prover`).
"""

import re

from gateway.codec.json.pieces import PIECE_BYTES
from gateway.errors import CodecError

MAX_TEXT_DEPTH = 512
"""The most brackets that may be open at once in a value that crosses as text."""

STEP_TOKENS = 1600
"""How many strings and brackets one step looks at: it bounds a step over text that has hardly anything else.

More than a value without a comma can have, which is three for each of `MAX_TEXT_DEPTH`: a step that finds a comma can
go on from it.
"""

QUOTE, OBJECT, END_OBJECT, ARRAY, END_ARRAY = b'"{}[]'

WALK_BYTES = 16 * 1024
"""How much text one step walks through only to find where strings end; it may be all escapes."""

STRING_OR_BRACKET = re.compile(rb'["\[\]{}](?:(?<!")|(?:[^"\\]++|\\.)*+(?:"|(\\?\Z)))', re.DOTALL)
"""A whole string, one that goes on behind the window (group 1), or a bracket.

It begins with one set of bytes, for which `re` searches ten times faster than for alternatives.
"""

_INSIDE_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_AFTER_SCALAR = re.compile(rb"[ \t\r\n,}\]]")


def skip_inside_string(text: bytes | bytearray | memoryview, start: int) -> tuple[int, bool]:
    """The end of a string whose inside goes on at *start*, at most `WALK_BYTES` further; whether the string is closed.

    The end of a closed string is behind its quote. Escapes are not judged.
    """
    limit = min(len(text), start + WALK_BYTES)
    inside = _INSIDE_STRING.match(text, start, limit)
    end = inside.end() if inside is not None else start
    is_closed = end < limit and text[end] == QUOTE
    return end + is_closed, is_closed


def scalar_end(window: bytes, start: int) -> int:
    """The end of the number or word that begins at *start*; 0 if it goes on behind the window.

    Raises `CodecError` if no value begins there, or one longer than a piece.
    """
    end = _AFTER_SCALAR.search(window, start)
    if end is None:
        if len(window) >= PIECE_BYTES:
            raise CodecError(f"a number or word of more than {PIECE_BYTES - start} bytes")
        return 0
    if end.start() == start:
        raise CodecError("data has no value")
    return end.start()


def walk(opened: bytearray, tokens: list[re.Match[bytes]]) -> int:
    """Follow the brackets among *tokens*, pushing onto and popping from the stack *opened*.

    Returns the end of the value, where the last open bracket closes, or 0 if the value goes on. Raises `CodecError`
    for brackets that do not match and for more than `MAX_TEXT_DEPTH` of them.
    """
    for token in tokens:
        code = token[0][0]
        if code in (OBJECT, ARRAY):
            opened.append(code)
            if len(opened) > MAX_TEXT_DEPTH:
                raise CodecError(f"data is nested deeper than {MAX_TEXT_DEPTH}")
        elif code != QUOTE:
            # in ASCII a closing bracket is its opening one plus 2: '[' and ']', '{' and '}'
            if not opened or opened.pop() + 2 != code:
                raise CodecError(f"brackets do not match: {chr(code)!r} closes what was not opened")
        elif token[1] is not None:
            return 0
        if not opened:
            return token.end()
    return 0


def last_comma(window: bytes, tokens: list[re.Match[bytes]]) -> tuple[int, int]:
    """The last comma outside strings, and how many tokens stand before it; -1 and 0 where there is none."""
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
