"""BYTES on the wire: elements that fill their blob exactly, and are text where they have to be."""

import json
import random
import struct
import sys
from types import FrameType

import pytest

from gateway.codec.inference import BytesPolicy, TensorPolicy
from gateway.codec.json.pieces import PIECE_BYTES
from gateway.codec.tensors.elements import RUN_STEP_ELEMENTS, WINDOW_BYTES, bounds_of, check_elements, prefix_of
from gateway.codec.tensors.string_printing import StringForm, string_pieces
from gateway.errors import CodecError
from tests.codec.make_pairs import blob_of
from tests.codec.walk import backend_json, bytes_header


@pytest.mark.rule("2.4")
@pytest.mark.parametrize(
    ("blob", "n_elements", "words"),
    [
        (blob_of(["a"])[:3], 1, "at least 4 bytes"),
        (blob_of(["ab"])[:5], 1, "element 0 says it has 2 bytes, but only 1 are left"),
        (blob_of(["a", "b"]), 1, "expected 1 elements, which end after 5 bytes, got 5 bytes more"),
        (blob_of(["a"]), 2, "expected 2 elements"),
        (blob_of(["abcdef"]), 2, "expected 2 elements, got 1 and 0 trailing bytes"),
        (blob_of(["abcdef"]) + b"\0\0\0", 2, "expected 2 elements, got 1 and 3 trailing bytes"),
        (blob_of(["a"]) + b"\0", 1, "got 1 bytes more"),
        (blob_of(["a"]) + b"\0\0\0", 1, "got 3 bytes more"),
        (struct.pack("<I", 2**32 - 1), 1, "element 0 says it has 4294967295 bytes, but only 0 are left"),
        (b"\0\0\0\0", 0, "expected 0 elements"),
        (b"", 1, "expected 1 elements"),
        (b"", 2**60, "expected 1152921504606846976 elements"),
    ],
)
def test_elements_that_do_not_fill_the_blob_exactly_are_refused(blob: bytes, n_elements: int, words: str) -> None:
    for policy in (TensorPolicy(), TensorPolicy(bytes=BytesPolicy.BASE64)):
        with pytest.raises(CodecError, match=f"input 't' \\(BYTES.*{words}"):
            backend_json(bytes_header(n_elements, len(blob)), blob, policy)


@pytest.mark.rule("3.5")
@pytest.mark.parametrize(
    "octets",
    [b"\xff", b"a\xc3", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"x" * PIECE_BYTES + b"\x80", b"\x80" * 9],
)
def test_element_that_is_no_text_is_refused_by_number_and_byte_with_the_way_out(octets: bytes) -> None:
    blob = blob_of(["ok", octets.decode("latin-1").encode("latin-1"), "ok"])
    position = next(index for index in range(len(octets)) if not is_text(octets[: index + 1]) and octets[index] > 127)
    with pytest.raises(CodecError, match=f"element 1 is not UTF-8 at byte {position}.*bytes: base64"):
        backend_json(bytes_header(3, len(blob)), blob)


def is_text(octets: bytes) -> bool:
    try:
        octets.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_checking_many_elements_is_done_in_steps() -> None:
    blob = blob_of(["x" * 60] * 10_000)
    assert sum(1 for _ in check_elements(memoryview(blob), 10_000, "x", utf8=True)) >= len(blob) // WINDOW_BYTES


@pytest.mark.parametrize("size", [10, 200])
def test_character_that_reaches_from_one_element_into_the_next_is_refused_by_element(size: int) -> None:
    elements = [b"x" * (size - 1) + b"\xc3", b"\xa9" + b"y" * (size - 1)]
    elements = [b"z" * size] * 700 + elements + [b"z" * size] * 700
    blob = b"".join(struct.pack("<I", len(element)) + element for element in elements)
    with pytest.raises(CodecError, match=f"element 700 is not UTF-8 at byte {size - 1}"):
        for _ in check_elements(memoryview(blob), len(elements), "input 'x'", utf8=True):
            pass


@pytest.mark.parametrize("size", [0, 1, 5])
def test_last_of_many_elements_that_is_no_text_is_found_without_looking_at_the_others(size: int) -> None:
    elements = ["a" * size] * (RUN_STEP_ELEMENTS - 1)
    blob = blob_of(elements) + b"\3\0\0\0ab\xc3"
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        with pytest.raises(CodecError, match=f"element {len(elements)} is not UTF-8 at byte 2"):
            for _ in check_elements(memoryview(blob), len(elements) + 1, "input 'x'", utf8=True):
                pass
    finally:
        sys.setprofile(before)
    assert calls < 500


@pytest.mark.parametrize("size", [0, 1, 6, 100, PIECE_BYTES - 6, PIECE_BYTES - 4, PIECE_BYTES - 3])
@pytest.mark.parametrize("last", [0, 3, PIECE_BYTES + 5000])
def test_strings_of_one_length_with_another_at_the_end(size: int, last: int) -> None:
    elements = ["a" * size] * (800_000 // (size + 4) % 9000 + 3) + ["b" * last]
    blob = memoryview(blob_of(elements))
    for _ in check_elements(blob, len(elements), "input 'x'", utf8=True):
        pass
    assert json.loads(b"[" + b"".join(string_pieces(blob, StringForm.TEXT)) + b"]") == elements
    for cut_blob, words in ((blob[:-1], "are left|trailing|at least"), (bytes(blob) + b"c", "1 bytes more")):
        with pytest.raises(CodecError, match=words):
            for _ in check_elements(memoryview(cut_blob), len(elements), "input 'x'", utf8=True):
                pass


def bounds_by_walking(window: bytes) -> list[int]:
    bounds = [0]
    while len(window) - bounds[-1] >= 4:
        end = bounds[-1] + 4 + int(struct.unpack_from("<I", window, bounds[-1])[0])
        if end > len(window):
            break
        bounds.append(end)
    return bounds


def random_elements(dice: random.Random) -> list[bytes]:
    """Elements whose lengths are short, alike, empty, or multiples of 256, of text or of any octets."""
    alphabet = dice.choice([b"abc ", b"ab\0", bytes(range(256)), b"\0"])
    sizes = dice.choice([[3], [0], [0, 1, 2], list(range(1, 40)), [5, 255, 256, 257, 512], [7, 7, 7, 7, 7, 7, 0]])
    odd = dice.choice([0, 0, 0.005, 0.1])
    return [
        bytes(dice.choices(alphabet, k=dice.choice([0, 1, 256, 300]) if dice.random() < odd else dice.choice(sizes)))
        for _ in range(dice.choice([0, 1, 31, 32, 33, 34, 100, 700]))
    ]


@pytest.mark.parametrize("seed", range(20))
def test_bounds_are_those_that_walking_finds_also_in_damaged_windows(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(20):
        elements = random_elements(dice)
        whole = bytearray(b"".join(struct.pack("<I", len(element)) + element for element in elements))
        for n_damages in (0, 0, 1, 3):
            window = bytearray(whole)
            for _ in range(n_damages if window else 0):
                window[dice.randrange(len(window))] = dice.choice([0, 1, 255, dice.randrange(256)])
            if dice.random() < 0.5:
                del window[dice.randrange(len(window) + 1) :]
            walked = bounds_by_walking(bytes(window))
            position, found = 0, [0]
            while True:
                most = dice.choice([1, 40, 10_000])
                bounds = bounds_of(bytes(window[position:]), most).tolist()
                assert bounds[0] == 0
                assert len(bounds) <= most + 1
                found += [position + bound for bound in bounds[1:]]
                if len(bounds) == 1:
                    break
                position = found[-1]
            assert found == walked


def test_an_element_that_is_longer_than_a_length_can_say_is_refused() -> None:
    assert prefix_of(2**32 - 1, "element 3") == b"\xff\xff\xff\xff"
    with pytest.raises(CodecError, match=f"^element 3 has {2**32} bytes, more than a BYTES element can have"):
        prefix_of(2**32, "element 3")
