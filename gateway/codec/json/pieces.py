"""How text is cut into pieces that are worked on one at a time: how large they are, and where a cut may be.

Here: cuts between the values of an array, and cuts inside a string that is longer than a piece. Not here: what is
read from a piece.
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

# As much of a string's inside as is whole: no escape is cut, and no surrogate pair.
_WHOLE_INSIDE = re.compile(
    rb'(?:[^"\\]++|\\[^u]|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}'
    rb"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*",
    re.DOTALL,
)
# A word, a string, or a list or object without others in it, with what shows that it ends.
_SHORT_VALUE = re.compile(rb'(?:[\w.+-]++|"[^"\\]*+"|[\[{][^\[\]{}]*+[\]}])(?=[ \t\r\n,\]}])')
_SHORT_VALUE_BYTES = 64
_LONGEST_ESCAPE = len(rb"\ud83d\ude00")
_LONGEST_CHARACTER = 4  # bytes of UTF-8


def beginning(text: bytes | bytearray) -> str:
    """The value at the start of *text*, for an error; of what is no short value the first characters, quoted."""
    value = _SHORT_VALUE.match(bytes(text[:_SHORT_VALUE_BYTES]) + b" " * (len(text) < _SHORT_VALUE_BYTES))
    return value[0].decode(errors="replace") if value else repr(text[:16].decode(errors="replace"))


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
