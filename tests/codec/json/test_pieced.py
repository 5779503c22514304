"""Documents that are made in pieces."""

from collections.abc import Iterator
from dataclasses import dataclass

from gateway.codec.json.pieced import PIECE_SEGMENTS, Piece, PiecedJson
from gateway.codec.json.pieces import PIECE_BYTES
from tests.steps import run


@dataclass
class Document(PiecedJson):
    made_of: list[Piece]

    def texts(self) -> Iterator[Piece]:
        return iter(self.made_of)


def test_short_texts_are_joined_and_long_ones_are_not_copied() -> None:
    long = bytes(PIECE_BYTES)
    texts: list[Piece] = [b"a", b"b", long, *[b"c"] * PIECE_SEGMENTS, b"d"]
    pieces = list(Document(texts).json_pieces())
    assert pieces == [b"ab", long, b"c" * PIECE_SEGMENTS, b"d"]
    assert pieces[1] is long


def test_empty_text_ends_a_step() -> None:
    pieces = list(Document([b"a", b"", b"", b"b", b"c", b""]).json_pieces())
    assert pieces == [b"a", b"", b"bc"]


def test_the_length_of_a_document_is_that_of_its_pieces() -> None:
    document = Document([b"a", bytearray(PIECE_BYTES), memoryview(b"b")])
    assert run(document.json_bytes()) == PIECE_BYTES + 2
    assert run(Document([]).json_bytes()) == 0
