"""Octets in objects {"b64": "..."}, between strings or alone, short and longer than anything that is held."""

import base64
import json
import math
import random
from typing import Any

import pytest
from hypothesis import given

from gateway.codec.json.pieces import PIECE_BYTES
from gateway.codec.tensors.elements import WINDOW_BYTES
from gateway.codec.tensors.string_reading import BytesSink
from gateway.errors import CodecError
from tests.codec.make_pairs import blob_of, nested
from tests.codec.test_properties import DICE, PROFILE, chunks_of, scrambled
from tests.codec.walk import cut

from .test_string_lists import SHAPES, read

LONG = b"A" * (2 * PIECE_BYTES)


def as_element(octets: bytes, dice: random.Random) -> Any:
    """*octets* as a string, where they are text and by chance, or as an object."""
    if dice.random() < 0.3:
        try:
            return octets.decode()
        except UnicodeDecodeError:
            pass
    return {"b64": base64.b64encode(octets).decode()}


@given(SHAPES, DICE)
@PROFILE
def test_objects_and_strings_may_be_mixed_and_written_in_any_way(shape: list[int], dice: random.Random) -> None:
    elements = [dice.choice([b"", b"a", b"ab", b"abc", dice.randbytes(9), b"x" * 50]) for _ in range(math.prod(shape))]
    data = nested([as_element(element, dice) for element in elements], shape)
    text = (
        scrambled(data, dice) if dice.random() < 0.5 else json.dumps(data, separators=dice.choice([(",", ":"), None]))
    )
    learned = tuple(shape[: shape.index(0) + 1]) if 0 in shape else tuple(shape)
    for known, said in ((None, learned), (tuple(shape), tuple(shape))):
        assert read(chunks_of(text.encode(), dice), known, b64_objects=True) == (said, blob_of(elements))


@pytest.mark.parametrize("chunk_bytes", [None, 1000])
@pytest.mark.parametrize(
    "element",
    [
        b'{"b64":"%b" 5}' % LONG,
        b'{"b64":"%b"]' % LONG,
        b'{"b64":"YQ=="',
        b'{"b64":"YQ=="]',
        b'{"b64","YQ=="}',
        b'{"b64":"YQ==",}',
        b'{"b64":"\xff"}',
        b'{"b64":"\\x"}',
    ],
)
def test_broken_objects_are_refused(element: bytes, chunk_bytes: int | None) -> None:
    text = b'["a",{"b64":"YQ=="},%b,"b"]' % element
    for shape in (None, (4,)):
        with pytest.raises(
            CodecError, match="not JSON|not UTF-8|brackets do not match|no other member|without a value"
        ):
            read(cut(text, chunk_bytes), shape, b64_objects=True)


def test_objects_are_refused_where_they_are_not_expected() -> None:
    for shape in (None, (1,)):
        with pytest.raises(CodecError, match="element 0: expected a string, got {"):
            read([b'[{"b64":"YQ=="}]'], shape)


@pytest.mark.parametrize("chunk_bytes", [None, 1000, 7])
@pytest.mark.parametrize(
    ("element", "words"),
    [
        (b"{}", "no other member"),
        (b'{"b64":5}', "no other member"),
        (b'{"b64":null}', "no other member"),
        (b'{"b64":["YQ=="]}', "no other member"),
        (b'{"b64":{"b64":"YQ=="}}', "no other member"),
        (b'{"b65":"YQ=="}', "no other member"),
        (b'{"b64":"YQ==","":0}', "no other member"),
        (b'{"a":"","b64":"YQ=="}', "no other member"),
        (b'{"b64":"YQ==",%b"a":0}' % (b" " * 2 * PIECE_BYTES), "no other member"),
        (b'{"b65":"%b"}' % LONG, "no other member"),
        (b'{"a":"","b64":"%b"}' % LONG, "no other member"),
        (b'{"b64":"%b","b64":"YQ=="}' % LONG, "no other member"),
        (b'{"b64":"%b\\x"}' % LONG, "not JSON"),
        (b'{"b64":"\\ud800"}', "not base64"),
    ],
)
def test_wrong_objects_are_refused_by_element(element: bytes, words: str, chunk_bytes: int | None) -> None:
    if chunk_bytes == 7 and len(element) > PIECE_BYTES:
        chunk_bytes = 700
    text = b'["a",{"b64":"YQ=="},%b,"b"]' % element
    for shape in (None, (4,)):
        with pytest.raises(CodecError, match=rf"element 2\b.*({words})"):
            read(cut(text, chunk_bytes), shape, b64_objects=True)


@pytest.mark.parametrize("before", ["", "A" * 400, "A" * 4 * PIECE_BYTES])
@pytest.mark.parametrize(
    "text", ["=", "a", "ab", "abc", "ab=c", "YQ==YQ==", "Y Q==", "YQ==\\n", "é", "-_-_", "YQ=", "YWI", "====", "A==="]
)
def test_wrong_base64_is_refused_by_element(text: str, before: str) -> None:
    data = f'[["",""],[{{"b64":"{before}{text}"}},"b"]]'.encode()
    for chunk_bytes in (None, 1000):
        for shape in (None, (2, 2)):
            with pytest.raises(CodecError, match="element 2 is not base64"):
                read(cut(data, chunk_bytes), shape, b64_objects=True)


@pytest.mark.parametrize("place", [PIECE_BYTES - 4, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES - 1])
@pytest.mark.parametrize("broken", [b"=", b"==", b"!", b" ", b"\\n"])
def test_something_else_inside_long_base64_is_refused(broken: bytes, place: int) -> None:
    text = bytearray(b"A" * (3 * PIECE_BYTES))
    text[place : place + len(broken)] = broken
    for chunk_bytes in (None, 1000, PIECE_BYTES):
        with pytest.raises(CodecError, match="element 0 is not base64"):
            read(cut(b'[{"b64":"%b"}]' % bytes(text), chunk_bytes), None, b64_objects=True)


@pytest.mark.parametrize("size", [PIECE_BYTES // 4 * 3 + change for change in range(-20, 4)] + [1_000_000, 1_000_001])
def test_long_objects_are_decoded(size: int) -> None:
    octets = random.Random(size).randbytes(size)
    text = base64.b64encode(octets)
    escaped = text.replace(b"/", rb"\/").replace(b"A", rb"\u0041")
    for element in (b'{"b64":"%b"}' % text, b'{ "b\\u00364" : "%b" \n }' % text, b'{"b64":"%b"}' % escaped):
        data = b'["a",%b,%b,"b"]' % (element, element)
        for chunk_bytes in (None, 4096, PIECE_BYTES):
            assert read(cut(data, chunk_bytes), None, b64_objects=True) == ((4,), blob_of([b"a", octets, octets, b"b"]))


def test_long_object_is_decoded_while_it_arrives() -> None:
    """Of its text no more is held than a step takes, and what was decoded is there."""
    n_bytes = 30_000_000
    sink = BytesSink("y", None, b64_objects=True)
    buffer = bytearray(b'[{"b64":"')
    chunk = base64.b64encode(bytes(range(256)) * 3 * 64)
    fed = 0
    while fed < n_bytes:
        buffer += chunk
        fed += len(chunk)
        while taken := sink.step(buffer):
            assert taken <= WINDOW_BYTES
            del buffer[:taken]
        assert len(buffer) < PIECE_BYTES
        assert sink.held_bytes >= fed * 3 // 4 - PIECE_BYTES
    buffer += b'"}]'
    while not sink.done:
        del buffer[: sink.step(buffer)]
    assert sink.shape == (1,)
    (blob,) = sink.blobs()
    assert blob[:4] == (fed // 4 * 3).to_bytes(4, "little")
    assert blob[4:] == bytes(range(256)) * (fed // 4 * 3 // 256)


def test_many_short_objects_are_decoded_in_steps() -> None:
    data = b"[" + b", ".join([b'{"b64": ""}'] * 50_000) + b"]"
    sink = BytesSink("y", None, b64_objects=True)
    buffer = bytearray(data)
    while not sink.done:
        taken = sink.step(buffer)
        assert 0 < taken <= PIECE_BYTES
        del buffer[:taken]
    assert sink.shape == (50_000,)
    assert bytes(sink.blobs()[0]) == bytes(4 * 50_000)
