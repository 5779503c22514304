"""How text is cut into pieces that are worked on one at a time: how large they are, and where a cut may be.

Here: following strings and brackets to where a value ends, cuts between the values of an array, and cuts inside a
string that is longer than a piece.
"""

import re
from collections.abc import Iterator

from gateway.errors import CodecError

PIECE_BYTES = 64 * 1024
"""How much JSON text one step works on: a quarter of a millisecond of flat numbers, and it fits a cache."""

SPACE = b" \t\r\n"
"""What JSON allows between its tokens."""

NOT_SPACE = re.compile(rb"[^ \t\r\n]")
"""The first byte that is not blank."""

MAX_TEXT_DEPTH = 512
"""The most brackets that may be open at once in a value that crosses as text."""

FIRST_TOKENS = 25
STEP_TOKENS = 64 * FIRST_TOKENS
"""How many strings and brackets one step looks at: it bounds a step over text that has hardly anything else.

More than a value without a comma can have, which is three for each of `MAX_TEXT_DEPTH`: a step that finds a comma can
go on from it. It begins with few, and goes on with as many again: most values have few, and others stand behind them.
"""

QUOTE, OBJECT, ARRAY = b'"{['

WALK_BYTES = 16 * 1024
"""How much text one step walks through only to find where strings end; it may be all escapes."""

STRING_OR_BRACKET = re.compile(rb'["\[\]{}](?:(?<!")|(?:[^"\\]++|\\.)*+(?:"|(\\?\Z)))', re.DOTALL)
"""A whole string, one that goes on behind the window (group 1), or a bracket.

It begins with one set of bytes, for which `re` searches ten times faster than for alternatives.
"""

_INSIDE_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_AFTER_SCALAR = re.compile(rb"[ \t\r\n,}\]]")
# As much of a string's inside as is whole: no escape is cut, and no surrogate pair.
_WHOLE_INSIDE = re.compile(
    rb'(?:[^"\\]++|\\[^u]|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}'
    rb"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*",
    re.DOTALL,
)
_LONGEST_ESCAPE = len(rb"\ud83d\ude00")
_LONGEST_CHARACTER = 4  # bytes of UTF-8


def skip_inside_string(text: bytes | bytearray) -> tuple[int, bool]:
    """The end of a string whose inside goes on at the front of *text*, at most `WALK_BYTES`; whether it is closed.

    The end of a closed string is behind its quote. Escapes are not judged.
    """
    inside = _INSIDE_STRING.match(text, 0, WALK_BYTES)
    end = inside.end() if inside is not None else 0
    is_closed = text[end : min(end + 1, WALK_BYTES)] == b'"'
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
        start = tokens[n_tokens - 1].end() if n_tokens else 0
        comma = window.rfind(b",", start, limit)
        if comma >= 0:
            return comma, n_tokens
        if n_tokens:
            limit = tokens[n_tokens - 1].start()
    return -1, 0


def check_cut(text: bytes, start: int, end: int, *, continues: bool, goes_on: bool) -> None:
    """Raise `CodecError` if the piece text[start:end] begins or ends beside a comma without a value.

    *continues*: a comma stands before the piece. *goes_on*: a comma stands behind it. A parser that gets the piece
    alone, completed with brackets, cannot see these commas: `[1,` and `]` would pass as `[1]` and `[]`.
    """
    first, last = text[start : start + 1], text[end - 1 : end]
    if first in SPACE or last in SPACE:
        stripped = text[start:end].strip(SPACE)
        first, last = stripped[:1], stripped[-1:]
    if (continues and first in (b"", b"]", b"}")) or (goes_on and last in (b"", b"[", b"{")):
        raise CodecError("a comma without a value beside it")


def string_part(buffer: bytes | bytearray) -> tuple[bytes, bool]:
    r"""The part of a long string's inside that can be read by itself, and whether the closing quote follows it.

    *buffer* begins inside the string. The part has at most `PIECE_BYTES`; it ends before an escape, a surrogate pair
    (`\ud83d\ude00`) or a UTF-8 character that is not complete. It is empty, without a closing quote, if more bytes
    must arrive first. Raises `CodecError` for what no further bytes can complete.
    """
    limit = min(len(buffer), PIECE_BYTES)
    quote = buffer.find(b'"', 0, limit)
    end = quote if quote >= 0 else limit
    if buffer.find(b"\\", 0, end) >= 0:
        whole = _WHOLE_INSIDE.match(buffer, 0, limit)
        end = whole.end() if whole else 0
    part = bytes(memoryview(buffer)[:end])
    is_closed = buffer[end : end + 1] == b'"'
    try:
        part.decode()
    except UnicodeDecodeError as error:
        if is_closed or end - error.start >= _LONGEST_CHARACTER:
            raise CodecError(f"a string is not UTF-8: {error.reason}") from None
        part = part[: error.start]
    if not part and not is_closed and len(buffer) >= _LONGEST_ESCAPE:
        raise CodecError(f"broken escape or lone surrogate in a string: {bytes(buffer[:_LONGEST_ESCAPE])!r}")
    return part, is_closed


def check_utf8(text: memoryview, what: str, hint: str = "") -> Iterator[None]:
    """Prove that *text* is UTF-8, yielding between pieces. Raises `CodecError` naming *what* and the byte."""
    start = 0
    while start < len(text):
        if start:
            yield
        end = character_start(text, start + PIECE_BYTES)
        try:
            str(text[start:end], "utf-8")
        except UnicodeDecodeError as error:
            raise CodecError(f"{what} is not UTF-8 at byte {start + error.start}{hint}") from None
        start = end


def character_start(text: memoryview, position: int) -> int:
    """The start of the UTF-8 character that *position* is in; the end of *text* for any position behind it."""
    if position >= len(text):
        return len(text)
    for back in range(_LONGEST_CHARACTER):
        if text[position - back] & 0xC0 != 0x80:
            return position - back
    return position  # no character has so many continuation bytes: whoever decodes will say so
