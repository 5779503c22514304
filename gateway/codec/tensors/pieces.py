"""How JSON text is cut into pieces that are worked on one at a time: how large they are, and where a cut may be.

Not here: what is read from a piece.
"""

import re
from collections.abc import Iterator

from gateway.errors import CodecError

PIECE_BYTES = 64 * 1024
"""How much JSON text one step works on: a quarter of a millisecond of flat numbers, and it fits a cache."""

SPACE = b" \t\r\n"
"""What JSON allows between its tokens."""

NOT_SPACE = re.compile(rb"[^ \t\r\n]")


def check_cut(text: bytes, start: int, end: int, *, continues: bool, goes_on: bool) -> None:
    """Raise `CodecError` where completing text[start:end] with brackets would hide a comma without a value beside it.

    *continues*: a comma stands before the piece. *goes_on*: one stands behind it.
    """
    first, last = text[start : start + 1], text[end - 1 : end]
    if first in SPACE or last in SPACE:
        stripped = text[start:end].strip(SPACE)
        first, last = stripped[:1], stripped[-1:]
    if (continues and first in (b"", b"]", b"}")) or (goes_on and last in (b"", b"[", b"{")):
        raise CodecError("a comma without a value beside it")


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
    """The end of *text*, or the start of the UTF-8 character at *position*, at most three bytes before it."""
    if position >= len(text):
        return len(text)
    for back in range(4):
        if text[position - back] & 0xC0 != 0x80:
            return position - back
    return position
