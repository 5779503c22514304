"""Rows of several tensors: the values of each in their places, in pieces that stay small."""

import base64
import math
import random
from typing import Any

import numpy as np
import orjson
import pytest

from gateway.codec.tensors import row_printing
from gateway.codec.tensors.datatypes import DATATYPES
from gateway.codec.tensors.nested_printing import NestedTensor
from gateway.codec.tensors.row_printing import Piece, Rows
from gateway.codec.tensors.string_printing import StringForm
from tests.codec.make_pairs import WIRE, blob_of


def numbers(datatype: str, n_rows: int, shape: tuple[int, ...]) -> tuple[NestedTensor, list[Any]]:
    values = (np.arange(n_rows * math.prod(shape)) % 120).astype(WIRE[datatype])
    blob = memoryview(values.tobytes())
    return NestedTensor(blob, DATATYPES[datatype], shape), values.reshape(n_rows, *shape).tolist()


def texts(
    elements: list[str], shape: tuple[int, ...], form: StringForm = StringForm.TEXT
) -> tuple[NestedTensor, list[Any]]:
    blob = memoryview(blob_of(elements))
    array = np.empty(len(elements), object)
    array[:] = [written(element, form) for element in elements]
    n_rows = len(elements) // math.prod(shape)
    return NestedTensor(blob, DATATYPES["BYTES"], shape, form), array.reshape(n_rows, *shape).tolist()


def written(element: str, form: StringForm) -> Any:
    encoded = base64.b64encode(element.encode()).decode()
    return {StringForm.TEXT: element, StringForm.BASE64: encoded, StringForm.B64_OBJECT: {"b64": encoded}}[form]


def rows_of(columns: list[tuple[NestedTensor, list[Any]]], n_rows: int) -> tuple[Any, list[Piece]]:
    """The rows and their pieces; each column is named by its number and a character to be wary of."""
    item: list[bytes | NestedTensor] = [b"{"]
    for index, (tensor, _) in enumerate(columns):
        item += (b"," if index else b"", b'"%%b%d":' % index, tensor)
    pieces = list(Rows([*item, b"}"], n_rows, window_bytes=1000).pieces())
    return orjson.loads(b"".join(pieces)), pieces


def expected(columns: list[tuple[NestedTensor, list[Any]]], n_rows: int) -> list[Any]:
    return [{f"%b{number}": rows[row] for number, (_, rows) in enumerate(columns)} for row in range(n_rows)]


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 2), (2, 0), (1025,)], ids=str)
@pytest.mark.parametrize("n_rows", [0, 1, 7, 2000])
def test_each_row_has_its_values_of_every_tensor(shape: tuple[int, ...], n_rows: int) -> None:
    if math.prod(shape) * n_rows > 10**6:
        n_rows = 300
    columns = [numbers("FP32", n_rows, shape), numbers("INT64", n_rows, ()), numbers("FP16", n_rows, (2,))]
    rows, pieces = rows_of(columns, n_rows)
    assert rows == expected(columns, n_rows)
    assert max(map(len, pieces), default=0) < 128 * 1024


@pytest.mark.parametrize("seed", range(20))
def test_strings_of_any_length_stand_in_their_rows(seed: int) -> None:
    dice = random.Random(seed)
    n_rows = dice.choice([1, 30, row_printing.STEP_VALUES // 5, row_printing.BATCH_VALUES // 5, 4000])
    columns = []
    for form in dice.choices([*StringForm], k=3):
        shape: tuple[int, ...] = dice.choice([(), (2,), (2, 3), (1,)])
        longest = dice.choice([3, 20, 400]) if n_rows < 1000 else dice.choice([3, 20])
        elements = [
            "".join(dice.choices('abé"\\\n%b', k=dice.randint(0, longest))) for _ in range(n_rows * math.prod(shape))
        ]
        columns.append(texts(elements, shape, form))
    columns.insert(dice.randrange(4), numbers("UINT8", n_rows, (2,)))
    assert rows_of(columns, n_rows)[0] == expected(columns, n_rows)


def test_row_with_a_long_string_is_printed_in_pieces() -> None:
    columns = [texts(["a", "é" * 1_000_000, "b"], ()), numbers("BOOL", 3, ())]
    columns[1] = (columns[1][0], [False, True, True])
    rows, pieces = rows_of(columns, 3)
    assert rows == expected(columns, 3)
    assert max(map(len, pieces)) < 1024 * 1024


def test_many_tensors_are_printed_in_steps() -> None:
    """Between two pieces are the texts of no more elements than a step works on."""
    columns = [numbers("INT32", 100, ()) for _ in range(1000)]
    rows, pieces = rows_of(columns, 100)
    assert rows == expected(columns, 100)
    assert len(pieces) > 100 * 1000 / row_printing.STEP_VALUES


def test_text_beside_each_row_is_repeated_in_pieces() -> None:
    """The values are few bytes, but a template may say much beside them."""
    tensor, rows = numbers("INT8", 1000, ())
    said = b"%s" % (b"a" * 3000)
    pieces = list(Rows([b'{"x":', tensor, b',"said":"%b"}' % said], 1000).pieces())
    assert orjson.loads(b"".join(pieces)) == [{"x": row, "said": said.decode()} for row in rows]
    assert max(map(len, pieces)) < row_printing.STEP_BYTES + len(said)
