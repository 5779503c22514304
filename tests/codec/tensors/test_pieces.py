"""Where text may be cut into pieces."""

import pytest

from gateway.codec.tensors.pieces import PIECE_BYTES, check_cut, check_utf8
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
