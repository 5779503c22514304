"""Compressed bodies: laws of the inflater and the compressor, and how codings are chosen."""

import gzip
import random
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.codec.compression import (
    PIECE_BYTES,
    WINDOW_BYTES,
    Coding,
    Inflater,
    choose_coding,
    compressed,
    inflated_beginning,
    parse_content_encoding,
)
from gateway.errors import CodecError, TooLargeError

pytestmark = pytest.mark.rule("7")

COMPRESS: dict[Coding, Callable[[bytes], bytes]] = {Coding.GZIP: gzip.compress, Coding.DEFLATE: zlib.compress}
EXPAND: dict[Coding, Callable[[bytes], bytes]] = {Coding.GZIP: gzip.decompress, Coding.DEFLATE: zlib.decompress}


def inflate(coding: Coding, body: bytes, chunk: int, limit: int = 10**9) -> bytes:
    inflater = Inflater(coding, limit)
    pieces: list[bytes] = []
    for start in range(0, len(body), chunk):
        pieces += inflater.feed(body[start : start + chunk])
    inflater.finish()
    assert all(len(piece) <= PIECE_BYTES for piece in pieces)
    return b"".join(pieces)


@given(st.binary(max_size=2000), st.sampled_from(Coding), st.integers(1, 50))
def test_what_the_library_compresses_is_inflated_in_any_chunks(data: bytes, coding: Coding, chunk: int) -> None:
    assert inflate(coding, COMPRESS[coding](data), chunk) == data


@given(st.lists(st.binary(max_size=2000), max_size=5), st.sampled_from(Coding))
def test_what_is_compressed_is_what_the_library_expands(buffers: list[bytes], coding: Coding) -> None:
    assert EXPAND[coding](b"".join(compressed(buffers, coding))) == b"".join(buffers)


@given(st.binary(max_size=500), st.sampled_from(Coding), st.data())
def test_a_body_cut_anywhere_is_refused(data: bytes, coding: Coding, draw: st.DataObject) -> None:
    body = COMPRESS[coding](data)
    cut = draw.draw(st.integers(0, len(body) - 1))
    with pytest.raises(CodecError):
        inflate(coding, body[:cut], 10)


@given(st.binary(max_size=200), st.sampled_from(Coding))
def test_any_bytes_are_inflated_or_refused(body: bytes, coding: Coding) -> None:
    try:
        inflate(coding, body, 7)
    except CodecError as error:
        assert str(error)


@pytest.mark.parametrize("coding", Coding)
def test_the_limit_holds_while_inflating(coding: Coding) -> None:
    inflater = Inflater(coding, 100_000)
    produced = 0
    with pytest.raises(TooLargeError):
        for piece in inflater.feed(COMPRESS[coding](bytes(10_000_000))):
            produced += len(piece)
    assert produced <= 100_000


def test_several_gzip_members_are_one_body_and_several_deflate_bodies_are_not() -> None:
    members = gzip.compress(b"a" * 1000) + gzip.compress(b"") + gzip.compress(b"b")
    for chunk in (1, 7, 1000):
        assert inflate(Coding.GZIP, members, chunk) == b"a" * 1000 + b"b"
        with pytest.raises(CodecError, match="bytes follow"):
            inflate(Coding.DEFLATE, zlib.compress(b"a") + zlib.compress(b"b"), chunk)


def test_gzip_members_that_hold_nothing_are_a_step_each() -> None:
    """bgzip writes an empty one at the end."""
    empty = gzip.compress(b"")
    inflater = Inflater(Coding.GZIP, 10**9)
    assert sum(1 for _ in inflater.feed(empty * 5000)) >= 5000
    inflater.finish()
    assert inflated_beginning(empty * 5000 + gzip.compress(b"a"), "gzip", 10) == b""


def test_each_step_takes_a_bounded_part_of_the_body(monkeypatch: pytest.MonkeyPatch) -> None:
    """zlib copies what a member leaves of its input, so a large input with many members would be quadratic."""
    longest = 0
    engine = zlib.decompressobj

    class Counting:
        def __init__(self, window_bits: int) -> None:
            self._engine = engine(window_bits)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._engine, name)

        def decompress(self, text: bytes, max_length: int) -> bytes:
            nonlocal longest
            longest = max(longest, len(text))
            assert max_length == PIECE_BYTES
            return self._engine.decompress(text, max_length)

    monkeypatch.setattr("gateway.codec.compression.zlib.decompressobj", Counting)
    data = random.Random(1).randbytes(300_000)
    assert inflate(Coding.GZIP, gzip.compress(data) + gzip.compress(b"end"), 10**6) == data + b"end"
    assert longest == WINDOW_BYTES


@pytest.mark.parametrize(
    ("value", "coding"),
    [
        ("", None),
        ("identity", None),
        ("Identity, identity", None),
        ("gzip", Coding.GZIP),
        (" X-GZIP ", Coding.GZIP),
        ("deflate", Coding.DEFLATE),
        ("identity,deflate", Coding.DEFLATE),
    ],
)
def test_content_encodings_are_read(value: str, coding: Coding | None) -> None:
    assert parse_content_encoding(value) is coding


@pytest.mark.parametrize("value", ["br", "gzip, gzip", "gzip,deflate", "zstd", "gzip;q=1"])
def test_other_content_encodings_are_refused(value: str) -> None:
    with pytest.raises(CodecError, match="is not supported"):
        parse_content_encoding(value)


@pytest.mark.parametrize(
    ("value", "coding"),
    [
        ("", None),
        ("gzip", Coding.GZIP),
        ("deflate, gzip", Coding.GZIP),
        ("gzip;q=0.2,deflate;q=0.3", Coding.DEFLATE),
        ("*;q=0.1", Coding.GZIP),
        ("gzip;q=0, *", Coding.DEFLATE),
        ("gzip;q=x", None),
        ("identity, gzip;q=0.1", None),
        ("identity, gzip", Coding.GZIP),
        ("gzip;q=0.5;x=1", Coding.GZIP),
        ("identity", None),
        ("br;q=1.0, zstd", None),
    ],
)
def test_the_best_coding_is_chosen(value: str, coding: Coding | None) -> None:
    assert choose_coding(value) is coding


def test_the_beginning_of_a_body_is_inflated_as_far_as_it_goes() -> None:
    text = random.Random(1).randbytes(5000)
    whole = gzip.compress(text)
    assert inflated_beginning(whole, "gzip", 5000) == text
    cut = inflated_beginning(whole[:3000], "x-gzip", 5000)
    assert len(cut) > 2000
    assert text.startswith(cut)
    assert inflated_beginning(text, "identity", 10) == text
    assert inflated_beginning(whole, "gzip", 4999) == b""
    assert inflated_beginning(whole, "br", 5000) == b""
    assert inflated_beginning(text, "gzip", 5000) == b""
