"""BYTES to JSON strings: every character, in pieces that stay small."""

import base64
import json
import random
from math import prod

import orjson
import pytest

from gateway.codec.json.pieced import joined
from gateway.codec.json.pieces import PIECE_BYTES
from gateway.codec.tensors.datatypes import DATATYPES
from gateway.codec.tensors.elements import FEW_TEXTS, STEP_ELEMENTS, check_elements, few_texts
from gateway.codec.tensors.nested_printing import NestedTensor, nested_string_pieces
from gateway.codec.tensors.string_printing import StringForm, string_pieces
from gateway.errors import CodecError
from tests.codec.make_pairs import blob_of
from tests.codec.walk import ODD_TEXTS, with_odd_text


def test_pieces_of_text_stay_small_for_the_worst_characters() -> None:
    for texts in (["\x01" * 3_000_000], ["\x01" * 50_000] * 20, [""] * 200_000):
        pieces = list(string_pieces(memoryview(blob_of(texts)), StringForm.TEXT))
        assert max(map(len, pieces)) <= 1024 * 1024
        assert json.loads(b"[" + b"".join(pieces) + b"]") == texts


@pytest.mark.parametrize("odd", ODD_TEXTS)
def test_odd_string_among_many_is_written_like_others(odd: str) -> None:
    elements = with_odd_text(odd)
    blob = memoryview(blob_of(elements))
    for _ in check_elements(blob, len(elements), "input 'x'", utf8=True):
        pass
    assert orjson.loads(b"[%b]" % b"".join(string_pieces(blob, StringForm.TEXT))) == elements


@pytest.mark.parametrize("seed", range(8))
def test_strings_of_any_lengths_and_characters_are_written_in_windows(seed: int) -> None:
    """Each window has two halves, and a mark of the text's own may stand in either."""
    dice = random.Random(seed)
    for _ in range(15):
        alphabet = dice.choice(["abc", 'ab"', "a\\\n", "aé😀\n", 'a\x7f"', "\x01"])
        longest = dice.choice([0, 3, 30, 150, 2000])
        n_texts = dice.choice([dice.randrange(1, 60), 300_000 // (longest + 50)])
        texts = ["".join(dice.choices(alphabet, k=dice.randint(0, longest))) for _ in range(n_texts)]
        if dice.random() < 0.3:
            texts[dice.randrange(len(texts))] = "\x7f___"
        blob = memoryview(blob_of(texts))
        for _ in check_elements(blob, len(texts), "input 'x'", utf8=True):
            pass
        assert json.loads(b"[" + b"".join(string_pieces(blob, StringForm.TEXT)) + b"]") == texts
        encoded = json.loads(b"[" + b"".join(string_pieces(blob, StringForm.BASE64)) + b"]")
        assert [base64.b64decode(text).decode() for text in encoded] == texts


def test_mark_among_strings_with_escapes_is_printed_as_it_is() -> None:
    """The mark that stands between strings printed as one must not be taken from an element."""
    elements = ["a"] * 20 + ["\x7f___", 'b"'] + ["c"] * 20
    blob = memoryview(blob_of(elements))
    assert json.loads(b"[" + b"".join(string_pieces(blob, StringForm.TEXT)) + b"]") == elements


@pytest.mark.parametrize("text", ["", "a", 'b"\x7f'])
def test_elements_that_are_printed_one_by_one_are_few_in_each_step(text: str) -> None:
    n_elements = 4 * STEP_ELEMENTS + 6
    blob = memoryview(blob_of(['"\x7f', text] * (n_elements // 2)))
    for pieces in (list(string_pieces(blob, StringForm.TEXT)), list(string_pieces(blob, StringForm.BASE64))):
        strings = json.loads(b"[" + b"".join(pieces) + b"]")
        assert len(strings) == n_elements
        assert strings[-1] in (text, base64.b64encode(text.encode()).decode())
        assert max(bytes(piece).count(b'", "') for piece in pieces) <= STEP_ELEMENTS


@pytest.mark.parametrize("form", [StringForm.BASE64, StringForm.B64_OBJECT])
def test_short_strings_in_base64_are_few_in_each_step_though_short_texts_are_sent_together(form: StringForm) -> None:
    blob = memoryview(blob_of([b"a"] * 20_000))
    pieces = list(joined(string_pieces(blob, form)))
    assert b"".join(pieces).count(b"YQ==") == 20_000
    assert max(bytes(piece).count(b"YQ==") for piece in pieces) <= STEP_ELEMENTS // 4


@pytest.mark.parametrize("seed", range(5))
def test_few_texts_are_those_that_are_printed_and_faults_are_left_to_the_check(seed: int) -> None:
    rng = random.Random(seed)
    texts = ["", "plain", 'a "quote"', "\\ \n \x7f___", "\0", "\u00e4\u20ac\U0001f600", "x" * 300]
    n_printed = 0
    for _ in range(2000):
        n_elements = rng.choice((rng.randrange(9), FEW_TEXTS - 1, FEW_TEXTS, FEW_TEXTS + 1))
        blob = bytearray(blob_of([rng.choice(texts).encode() for _ in range(n_elements)]))
        if blob and rng.random() < 0.5:
            blob[rng.randrange(len(blob))] ^= 1 << rng.randrange(8)
        n_elements = max(0, n_elements + rng.choice((0, 0, 0, 1, -1)))
        view = memoryview(bytes(blob))
        found = few_texts(view, n_elements)
        try:
            for _ in check_elements(view, n_elements, "x", utf8=True):
                pass
        except CodecError:
            assert found is None
            continue
        assert (found is not None) == (n_elements <= FEW_TEXTS)
        if found is not None:
            assert found == json.loads(b"[%b]" % b"".join(string_pieces(view, StringForm.TEXT)))
            n_printed += 1
    assert n_printed > 500


@pytest.mark.parametrize("shape", [(3,), (1, 3), (3, 1), (2, 3, 4), (1, 1, 1), (FEW_TEXTS, 1), (FEW_TEXTS, 2)])
def test_few_texts_are_nested_like_many(shape: tuple[int, ...]) -> None:
    texts = [f'text "{number}"' for number in range(prod(shape))]
    blob = memoryview(blob_of(texts))
    few = NestedTensor(blob, DATATYPES["BYTES"], shape).few()
    assert (few is not None) == (len(texts) <= FEW_TEXTS)
    many = b"".join(nested_string_pieces(blob, shape, StringForm.TEXT))
    assert json.loads(b"".join(NestedTensor(blob, DATATYPES["BYTES"], shape).pieces())) == json.loads(many)
    in_base64 = NestedTensor(blob, DATATYPES["BYTES"], shape, StringForm.BASE64)
    assert in_base64.few() is None


@pytest.mark.parametrize("n_bytes", [PIECE_BYTES - 5, PIECE_BYTES - 4, PIECE_BYTES - 3, PIECE_BYTES, 5 * PIECE_BYTES])
def test_a_long_text_is_printed_whole_and_in_pieces(n_bytes: int) -> None:
    text = "".join(random.Random(n_bytes).choices('abc"\\', k=n_bytes))
    blob = memoryview(blob_of([text]))
    assert few_texts(blob, 1) == ([text] if len(blob) <= PIECE_BYTES else None)
    pieces = list(NestedTensor(blob, DATATYPES["BYTES"], (1, 1)).pieces())
    assert json.loads(b"".join(pieces)) == [[text]]
    assert max(map(len, pieces)) <= 2 * PIECE_BYTES
