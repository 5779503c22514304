"""Where text may be cut into pieces."""

import pytest

from gateway.codec.json.pieces import PIECE_BYTES, check_cut, check_utf8, string_part
from gateway.errors import CodecError


@pytest.mark.parametrize(
    ("piece", "continues", "goes_on"),
    [
        (b"", True, False),
        (b" ", False, True),
        (b"]", True, False),
        (b"}", True, False),
        (b"[", False, True),
        (b"{ ", False, True),
    ],
)
def test_comma_without_a_value_beside_it_is_refused_at_a_cut(piece: bytes, continues: bool, goes_on: bool) -> None:
    check_cut(b"1", 0, 1, continues=continues, goes_on=goes_on)
    with pytest.raises(CodecError, match="comma without a value"):
        check_cut(piece, 0, len(piece), continues=continues, goes_on=goes_on)


def test_utf8_is_checked_across_pieces_wherever_a_character_is_cut() -> None:
    for shift in range(5):
        good = b"a" * shift + "😀".encode() * PIECE_BYTES
        assert sum(1 for _ in check_utf8(memoryview(good), "x")) >= 3
        with pytest.raises(CodecError, match=f"not UTF-8 at byte {len(good) - 4}"):
            list(check_utf8(memoryview(good[:-1]), "x"))


@pytest.mark.parametrize(
    ("text", "part", "is_closed"),
    [
        (b'abc",', b"abc", True),
        (b'"', b"", True),
        (b"abc", b"abc", False),
        (b"abc\\", b"abc", False),
        (b"abc\\u00", b"abc", False),
        (rb"abc\ud83d", b"abc", False),
        (rb"abc\ud83d\ude0", b"abc", False),
        (rb"abc\ud83d\ude00", rb"abc\ud83d\ude00", False),
        (rb"\u00e9\"x", rb"\u00e9\"x", False),
        (b"abc\xf0\x9f\x98", b"abc", False),
        (b"\xf0\x9f\x98", b"", False),
        (b"", b"", False),
    ],
)
def test_part_of_a_string_ends_where_nothing_is_cut(text: bytes, part: bytes, is_closed: bool) -> None:
    assert string_part(text) == string_part(bytearray(text)) == (part, is_closed)


@pytest.mark.parametrize(
    "text", [rb"\ud83d\u0041xx", rb"\ude00xxxxxxxx", rb"\u12g4xxxxxx", b'abc\xf0\x9f"', b"\xf0xxxxxxxxxxxx"]
)
def test_part_of_a_string_that_nothing_can_complete_is_refused(text: bytes) -> None:
    with pytest.raises(CodecError, match="broken escape or lone surrogate|not UTF-8"):
        string_part(text)


def test_bytes_that_begin_no_character_are_no_utf8_wherever_a_piece_ends() -> None:
    with pytest.raises(CodecError, match="^x is not UTF-8 at byte 0$"):
        list(check_utf8(memoryview(b"\x80" * (PIECE_BYTES + 10)), "x"))
