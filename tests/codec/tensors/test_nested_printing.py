"""Nested JSON of tensors: exact, nested as the shape says, in pieces that stay small."""

import base64
import json
import math
import random
import re
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.codec.tensors import number_printing
from gateway.codec.tensors.datatypes import DATATYPES
from gateway.codec.tensors.nested_printing import (
    MAX_EMPTY_LISTS,
    NestedTensor,
    check_nestable,
    list_count,
    nested_number_pieces,
    nested_string_pieces,
)
from gateway.codec.tensors.string_printing import StringForm
from gateway.errors import CodecError
from tests.codec.make_pairs import WIRE, blob_of, nested
from tests.codec.test_properties import FLOATS, NUMERIC, PROFILE, UNICODE, bits_of, finite_tensors
from tests.codec.walk import ODD_TEXTS, nearest_bits, with_odd_text

SHAPES = [
    (), (1,), (7,), (3, 1), (1, 3), (2, 3), (1, 1), (1, 1, 1), (2, 1, 3), (2, 3, 1), (2, 3, 4), (5, 1, 1), (1, 5, 1, 2),
    (3, 2, 1, 2, 1, 1), (4, 3, 2), (30, 2), (2, 30), (1,) * 40,
    (3, *(1,) * 40), (*(1,) * 40, 3),
]  # fmt: skip
STEP = number_printing.PIECE_ELEMENTS
LONG_SHAPES = [
    (STEP,), (STEP + 1,), (STEP + 1, 1), (1, STEP + 1), (STEP - 1, 2), (2, STEP - 1), (2, STEP), (2, STEP + 1),
    (3, STEP // 2 + 1), (STEP // 3 + 1, 3), (STEP // 3 + 1, 1, 3), (2, 3, STEP // 5), (STEP // 6 + 1, 3, 2, 1),
    (1, STEP + 1, 1), (5, 7, 11, 50), (3, STEP // 2 - 1, 1, 2), (STEP // 40 + 1, *(1,) * 40), (*(1,) * 40, STEP + 1),
]  # fmt: skip
"""A step ends between lists, inside of one, and beside the end of one at each depth."""


def printed(values: Any, datatype: str, shape: tuple[int, ...], *, literals: bool = False) -> bytes:
    view = DATATYPES[datatype].view(memoryview(blob_of(values)))
    return b"".join(nested_number_pieces(view, DATATYPES[datatype], shape, literals=literals))


def expected(data: list[Any], shape: tuple[int, ...]) -> Any:
    """*data* in lists as *shape* says; numpy nests it another way than the code does."""
    array = np.empty(len(data), object)
    array[:] = data
    return array.reshape(shape).tolist()


@pytest.mark.parametrize("datatype", NUMERIC)
@PROFILE
@given(data=st.data())
def test_numbers_are_nested_as_the_shape_says_without_a_changed_bit(datatype: str, data: st.DataObject) -> None:
    """Any bits -> text that an independent parser reads to the same bits, in the same lists."""
    shape, values = data.draw(finite_tensors(datatype))
    if math.prod(shape) == 0:
        return
    tree = json.loads(printed(values, datatype, tuple(shape)), parse_float=str)
    if datatype == "BOOL":
        assert tree == expected([bool(value) for value in values], tuple(shape))
    elif datatype in FLOATS:
        assert tree_of(tree, datatype) == expected(bits_of(values), tuple(shape))
    else:
        assert tree == expected([int(value) for value in values], tuple(shape))


def strings(blob: bytes, shape: tuple[int, ...], form: StringForm = StringForm.TEXT) -> Any:
    return orjson.loads(b"".join(nested_string_pieces(memoryview(blob), shape, form)))


def tree_of(tree: Any, datatype: str) -> Any:
    return [tree_of(item, datatype) for item in tree] if isinstance(tree, list) else nearest_bits(tree, datatype)


@pytest.mark.parametrize("shape", [*SHAPES, *LONG_SHAPES], ids=str)
def test_lists_are_where_the_shape_says_whatever_a_step_prints(shape: tuple[int, ...]) -> None:
    for datatype in ("FP16", "FP32", "BOOL", "UINT8", "UINT64"):
        values = (np.arange(math.prod(shape)) % {"BOOL": 2, "UINT8": 256}.get(datatype, 1021)).astype(WIRE[datatype])
        tree = orjson.loads(printed(values, datatype, shape))
        assert tree == (nested(values.tolist(), list(shape)) if shape else values[0])


@pytest.mark.parametrize("datatype", FLOATS)
@pytest.mark.parametrize("shape", [(2, 3), (6, 1), (3, 2, 1), (1, 6)])
def test_what_is_not_finite_is_a_literal_or_null_in_its_place(datatype: str, shape: tuple[int, ...]) -> None:
    numbers = [1.5, math.nan, -math.inf, math.inf, -0.0, math.nan]
    values = np.array(numbers, "f8").astype(WIRE[datatype])
    words = [1.5, "NaN", "-Infinity", "Infinity", -0.0, "NaN"]
    text = printed(values, datatype, shape, literals=True)
    assert json.loads(text, parse_constant=str) == expected(words, shape)
    nulls = [None if isinstance(word, str) else word for word in words]
    assert json.loads(printed(values, datatype, shape)) == expected(nulls, shape)


@pytest.mark.parametrize("datatype", ["UINT8", "FP16", "FP64"])
@pytest.mark.parametrize(
    "shape",
    [
        (1, 3, 224, 224), (1, 500_000), (500_000, 1), (100_000, 4), (100, 100, 10, 4), (50, 9000), (3, 40_000),
        (20_000, *(1,) * 60), (5, 2, 16_385), (8191, 3, 2), (16_384, 1, 2),
    ],
    ids=str,
)  # fmt: skip
def test_pieces_are_neither_large_nor_many(datatype: str, shape: tuple[int, ...]) -> None:
    """A piece's elements and lists together are at most as many as the elements of a flat one."""
    values = np.array([1.0]).astype(WIRE[datatype]).repeat(math.prod(shape))
    pieces = list(nested_number_pieces(values, DATATYPES[datatype], shape, literals=False))
    assert max(piece.count(b"1") for piece in pieces) <= number_printing.PIECE_ELEMENTS
    assert max(piece.count(b"[") for piece in pieces) <= 4 * number_printing.PIECE_ELEMENTS
    cost = len(values) + list_count(shape)
    assert len(pieces) <= 2 + 6 * cost / number_printing.PIECE_ELEMENTS
    assert b"".join(pieces).count(b"[") == list_count(shape)


@PROFILE
@given(shape=st.lists(st.integers(1, 5), max_size=4), data=st.data())
def test_strings_are_nested_as_the_shape_says(shape: list[int], data: st.DataObject) -> None:
    n_elements = math.prod(shape)
    texts = data.draw(st.lists(UNICODE, min_size=n_elements, max_size=n_elements))
    blob = blob_of(texts)
    assert strings(blob, tuple(shape)) == expected(texts, tuple(shape))


@PROFILE
@given(shape=st.lists(st.integers(1, 5), max_size=4), data=st.data())
def test_octets_are_nested_in_base64_as_the_shape_says(shape: list[int], data: st.DataObject) -> None:
    n_elements = math.prod(shape)
    octets = data.draw(st.lists(st.binary(max_size=12), min_size=n_elements, max_size=n_elements))
    encoded = [base64.b64encode(element).decode() for element in octets]
    blob = blob_of(octets)
    assert strings(blob, tuple(shape), StringForm.BASE64) == expected(encoded, tuple(shape))
    objects = [{"b64": element} for element in encoded]
    assert strings(blob, tuple(shape), StringForm.B64_OBJECT) == expected(objects, tuple(shape))


@pytest.mark.parametrize("seed", range(6))
def test_strings_of_any_lengths_and_shapes_are_written_in_windows(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(12):
        length = dice.choice([1, 1, 20, 100])
        shape = dice.choice([(40,), (40, 1), (20, 2), (1, 40), (5, 4, 2), (5, 2, 2, 2), (2, 1, 20, 1), (3, 13)])
        shape = dice.choice([(length * shape[0], *shape[1:]), (*shape[:-1], length * shape[-1])])
        alphabet = dice.choice(["abc", 'ab"', "a\\\n", "aé😀\n", 'a\x7f"', "\x01"])
        longest = dice.choice([0, 3, 30, 150])
        texts = ["".join(dice.choices(alphabet, k=dice.randint(0, longest))) for _ in range(math.prod(shape))]
        if dice.random() < 0.3:
            texts[dice.randrange(len(texts))] = "\x7f___"
        blob = blob_of(texts)
        assert strings(blob, shape) == expected(texts, shape)
        encoded = [base64.b64encode(text.encode()).decode() for text in texts]
        assert strings(blob, shape, StringForm.BASE64) == expected(encoded, shape)


@pytest.mark.parametrize("odd", ODD_TEXTS)
@pytest.mark.parametrize("columns", [1, 3, 10_001])
def test_odd_string_among_many_is_nested_like_others(odd: str, columns: int) -> None:
    texts = with_odd_text(odd)[: 10_001 // columns * columns]
    shape = (len(texts) // columns, columns)
    assert strings(blob_of(texts), shape) == expected(texts, shape)


def test_pieces_of_strings_stay_small_for_the_worst_shapes() -> None:
    blob = memoryview(blob_of([""] * 50_000))
    for shape in ((50_000,), (50_000, 1), (50_000, *(1,) * 60), (25_000, 2)):
        pieces = list(nested_string_pieces(blob, shape, StringForm.TEXT))
        assert max(map(len, pieces)) <= 1024 * 1024
        assert b"".join(pieces).count(b"[") == list_count(shape)


def refusal_of(shape: tuple[int, ...]) -> str:
    """Why a tensor of *shape* cannot be nested lists; empty if it can."""
    try:
        check_nestable(shape, "input 'x'")
    except CodecError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("shape", [(0, 4), (0, 0), (2, 0, 3), (MAX_EMPTY_LISTS + 1, 0), (2**40, 2**40, 0)])
def test_empty_tensor_that_lists_cannot_say_is_refused(shape: tuple[int, ...]) -> None:
    assert re.match("input 'x': .*empty tensor", refusal_of(shape))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1, 2, 0), (MAX_EMPTY_LISTS, 0), (2**40, 2**40)])
def test_other_shapes_are_not(shape: tuple[int, ...]) -> None:
    assert refusal_of(shape) == ""


@pytest.mark.parametrize("datatype", [*NUMERIC, "BYTES"])
def test_empty_tensor_is_empty_lists(datatype: str) -> None:
    for shape, text in (((0,), b"[]"), ((2, 0), b"[[],[]]"), ((1, 2, 0), b"[[[],[]]]")):
        assert b"".join(NestedTensor(memoryview(b""), DATATYPES[datatype], shape).pieces()) == text
