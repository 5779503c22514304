"""Elements that come in base64: whole, in parts, broken, and in lines."""

import base64

import pytest

from gateway.codec.json.pieces import PIECE_BYTES
from gateway.codec.tensors.base64_reading import ELEMENT_COST, from_base64
from gateway.errors import CodecError
from tests.codec.make_pairs import blob_of
from tests.steps import run


def test_base64_is_decoded_in_steps() -> None:
    elements = memoryview(blob_of([base64.b64encode(b"x" * 600)] * 1000))
    assert sum(1 for _ in from_base64([elements], "x")) >= 600_000 // PIECE_BYTES


def test_steps_with_short_elements_have_few_of_them() -> None:
    elements = memoryview(blob_of([b"QQ=="] * 10_000))
    assert sum(1 for _ in from_base64([elements], "x")) >= 10_000 * ELEMENT_COST // (PIECE_BYTES + 2 * ELEMENT_COST)


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES // 4 * 3, PIECE_BYTES, 1_000_000])
def test_long_element_in_base64_is_decoded_in_parts(size: int) -> None:
    octets = bytes(range(256)) * (size // 256 + 1)
    elements = memoryview(blob_of([base64.b64encode(octets[:size]), base64.b64encode(b"z")]))
    steps = from_base64([elements], "x")
    n_steps = 0
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            assert b"".join(stop.value) == blob_of([octets[:size], b"z"])
            break
        n_steps += 1
    assert n_steps >= size // PIECE_BYTES


@pytest.mark.parametrize("broken", [b"=", b"==", b"!", b"\n"])
def test_long_element_with_something_else_inside_is_not_base64(broken: bytes) -> None:
    for place in (PIECE_BYTES - 4, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES - 1):
        text = bytearray(b"A" * (3 * PIECE_BYTES))
        text[place : place + len(broken)] = broken
        with pytest.raises(CodecError, match="^x: element 0 is not base64"):
            for _ in from_base64([memoryview(blob_of([bytes(text)]))], "x"):
                pass


@pytest.mark.parametrize("size", [0, 1, 2, 3, 57, 58, 1000, PIECE_BYTES // 4 * 3, 100_000, 1_000_000])
def test_base64_in_lines_is_read_where_lines_may_be(size: int) -> None:
    octets = [(bytes(range(256)) * (size // 256 + 1))[:size], b"z"]
    elements = memoryview(blob_of([base64.encodebytes(octet) for octet in octets]))
    assert b"".join(run(from_base64([elements], "x", b"\r\n"))) == blob_of(octets)
    if size:
        with pytest.raises(CodecError, match="^x: element 0 is not base64"):
            run(from_base64([elements], "x"))
