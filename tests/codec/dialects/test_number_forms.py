"""Numbers as texts and in base64, in bodies and answers of every form: what is sent, read as an answer, is the same."""

import base64
import json
import math
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gateway.codec.dialects import DIALECTS
from gateway.codec.dialects.body import Body
from gateway.codec.dialects.declared import TensorDescription
from gateway.codec.dialects.description import ModelDescription, Template
from gateway.codec.dialects.paths import AnswerForm, tree_of
from gateway.codec.inference import NonFinite, OutputSelection, TensorPolicy
from gateway.codec.tensors.datatypes import DATATYPES
from gateway.codec.v2.reply import Reply
from gateway.errors import CodecError
from tests.codec.dialects.driving import parse_request, read_answer
from tests.codec.make_pairs import WIRE
from tests.codec.test_properties import NUMERIC, PROFILE, finite_tensors
from tests.codec.walk import cut

NUMBERS = [name for name in NUMERIC if name != "BOOL"]
FORMS = {
    "{a: [0, $x]}": "$.a[1]",
    "{$each: {a: $x, b: $x}}": "$[*].a",
    "{rows: {$each: [$x, $n]}}": "$.rows[*][0]",
    "{$each: $x}": "$",
}
"""Bodies, and the path of the same tensor in an answer that is like them."""


def described(datatype: str, encoding: str, shape: tuple[int, ...] | None, body: str, path: str) -> ModelDescription:
    """A model with an input `x`, and an output `y` that is written as it is."""
    tensor = TensorDescription(DATATYPES[datatype], shape, encoding)
    inputs = {"x": tensor, "n": TensorDescription(DATATYPES["INT32"])}
    template = Body(yaml.safe_load(body), inputs)
    return ModelDescription(
        inputs, {"y": tensor}, template=Template("/", template, AnswerForm(tree_of({"y": path}))), is_complete=True
    )


def sent(model: ModelDescription, datatype: str, values: Any, policy: TensorPolicy | None = None) -> bytes:
    """What the server gets of a binary request with *values*."""
    blob = values.tobytes()
    tensors = [("x", datatype, values.shape, blob)]
    if values.shape:
        numbers = np.arange(values.shape[0], dtype="<i4").tobytes()
        tensors.append(("n", "INT32", values.shape[:1], numbers))
    inputs = [
        {"name": name, "datatype": type_, "shape": shape, "parameters": {"binary_data_size": len(data)}}
        for name, type_, shape, data in tensors
    ]
    header = json.dumps({"inputs": inputs}).encode()
    request = parse_request(header + b"".join(data for *_, data in tensors), len(header), policy)
    written = DIALECTS["template"].write(request, model)
    text = b"".join(written.json_pieces())
    assert written.small_json in (text, None)
    return text


def answered(model: ModelDescription, chunks: list[bytes], *, binary: bool = True) -> tuple[Any, bytes, Reply]:
    """The entry of the output, its bytes, and the reply."""
    form = DIALECTS["template"].answer_form(model)
    reply = read_answer(chunks, form, model, OutputSelection(binary, {}))
    (entry,) = json.loads(b"".join(reply.header))["outputs"]
    return entry, b"".join(map(bytes, reply.blobs)), reply


@pytest.mark.parametrize("body", FORMS)
@pytest.mark.parametrize("encoding", ["text", "base64"])
@pytest.mark.parametrize("datatype", NUMBERS)
@PROFILE
@given(data=st.data())
def test_what_is_sent_is_read_back_to_the_same_bits(
    datatype: str, encoding: str, body: str, data: st.DataObject
) -> None:
    shape, values = data.draw(finite_tensors(datatype))
    values = values.reshape(shape)
    if not values.size or (not shape and "each" in body):
        return
    model = described(datatype, encoding, (-1,) * len(shape), body, FORMS[body])
    text = sent(model, datatype, values)
    at = data.draw(st.integers(0, len(text)))
    for chunks in ([text], [text[:at], text[at:]], cut(text, 1)):
        entry, blob, _ = answered(model, chunks)
        assert entry["shape"] == list(shape)
        assert blob == values.tobytes()


@pytest.mark.parametrize(("n_rows", "row"), [(1, 200_000), (3, 30_000), (3000, 8), (60_000, 1), (20_000, ())])
@pytest.mark.parametrize("body", FORMS)
@pytest.mark.parametrize("encoding", ["text", "base64"])
def test_long_tensors_are_read_back_too(encoding: str, body: str, n_rows: int, row: Any) -> None:
    shape = (n_rows, row) if row else (n_rows,)
    values = np.random.default_rng(1).standard_normal(shape).astype("<f4")
    model = described("FP32", encoding, (-1,) * len(shape), body, FORMS[body])
    text = sent(model, "FP32", values)
    for chunk_bytes in (None, 10_000):
        entry, blob, _ = answered(model, cut(text, chunk_bytes))
        assert entry["shape"] == list(shape)
        assert blob == values.tobytes()


X = np.array([[1, 2.5], [-3, 0.1]], "<f4")


@pytest.mark.parametrize(
    ("body", "encoding", "expected"),
    [
        ("{a: $x, n: $n}", "text", {"a": [["1.0", "2.5"], ["-3.0", "0.1"]], "n": [0, 1]}),
        ("{a: {$flat: x}, n: $n}", "text", {"a": ["1.0", "2.5", "-3.0", "0.1"], "n": [0, 1]}),
        ("{$each: {a: $x, n: $n}}", "text", [{"a": ["1.0", "2.5"], "n": 0}, {"a": ["-3.0", "0.1"], "n": 1}]),
        ("{a: $x, n: $n}", "base64", {"a": ["AACAPwAAIEA=", "AABAwM3MzD0="], "n": [0, 1]}),
        ("{a: {$flat: x}, n: $n}", "base64", {"a": "AACAPwAAIEAAAEDAzczMPQ==", "n": [0, 1]}),
        ("{$each: {a: $x, n: $n}}", "base64", [{"a": "AACAPwAAIEA=", "n": 0}, {"a": "AABAwM3MzD0=", "n": 1}]),
        ("{s: {$shape: x}, n: {$rows: x}}", "base64", {"s": [2, 2], "n": 2}),
    ],
)
def test_numbers_are_written_as_the_encoding_says(body: str, encoding: str, expected: Any) -> None:
    assert json.loads(sent(described("FP32", encoding, None, body, "$"), "FP32", X)) == expected


@pytest.mark.parametrize(
    ("body", "shape", "expected"),
    [
        ("[$x, $n]", (0,), ["", []]),
        ("[$x, $n]", (2, 0), [["", ""], [0, 1]]),
        ("[$x]", (), ["AAAAAA=="]),
        ("{$each: [$x, $n]}", (2,), [["AAAAAA==", 0], ["AAAAAA==", 1]]),
        ("{$each: $x}", (2,), ["AAAAAA==", "AAAAAA=="]),
        ("{$each: $x}", (2, 1), ["AAAAAA==", "AAAAAA=="]),
        ("{$each: [$x, $n]}", (2, 1), [["AAAAAA==", 0], ["AAAAAA==", 1]]),
        ("{$each: [$x, $n]}", (2, 1, 1), [[["AAAAAA=="], 0], [["AAAAAA=="], 1]]),
        ("{$each: [$x, $n]}", (2, 0), [["", 0], ["", 1]]),
        ("{$each: $x}", (2, 0), ["", ""]),
        ("{$each: [$x, $n]}", (0,), []),
        ("{$each: $x}", (0,), []),
    ],
)
def test_empty_tensors_scalars_and_rows_of_one_are_texts_of_their_own(
    body: str, shape: tuple[int, ...], expected: Any
) -> None:
    assert json.loads(sent(described("FP32", "base64", None, body, "$"), "FP32", np.zeros(shape, "<f4"))) == expected


def test_nonfinite_numbers_are_as_the_policy_says() -> None:
    values = np.array([[np.nan, 1], [2, np.inf]], "<f4")
    for encoding, nonfinite, expected in (
        ("text", NonFinite.LITERAL, '[["NaN","1.0"],["2.0","Infinity"]]'),
        ("base64", NonFinite.LITERAL, '["AADAfwAAgD8=","AAAAQAAAgH8="]'),
    ):
        model = described("FP32", encoding, None, "{x: $x, n: $n}", "$.x")
        text = sent(model, "FP32", values, TensorPolicy(nonfinite))
        assert text == b'{"x":%b,"n":[0,1]}' % expected.encode()
        _, blob, reply = answered(model, [text])
        assert np.array_equal(np.frombuffer(blob, "<f4"), values.ravel(), equal_nan=True)
        assert reply.nonfinite == (2 if encoding == "text" else 0)
    model = described("FP32", "text", None, "{$each: [$x, $n]}", "$")
    text = sent(model, "FP32", np.array([np.nan, -1], "<f4"), TensorPolicy(NonFinite.AS_NULL))
    assert text == b'[[null,0],["-1.0",1]]'
    literal = sent(model, "FP32", np.array([-np.inf, -1], "<f4"), TensorPolicy(NonFinite.LITERAL))
    assert literal == b'[["-Infinity",0],["-1.0",1]]'
    for encoding in ("text", "base64"):
        with pytest.raises(CodecError, match="input 'x'"):
            sent(described("FP32", encoding, None, "[$x, $n]", "$"), "FP32", values, TensorPolicy(NonFinite.REJECT))


@pytest.mark.parametrize(
    ("encoding", "shape", "text", "expected_shape"),
    [
        ("base64", (), '"AACAPw=="', []),
        ("base64", (-1,), '"AACAPw=="', [1]),
        ("base64", None, '"AACAPw=="', [1]),
        ("base64", (-1,), '["AACAPw=="]', [1]),
        ("base64", None, '["AACAPw=="]', [1, 1]),
        ("base64", (-1, -1), '["AACAPw=="]', [1, 1]),
        ("base64", (-1, 8), "[]", [0, 8]),
        ("text", (), '"1.0"', []),
        ("text", (-1,), '["1.0"]', [1]),
        ("text", (-1,), '[1.0]', [1]),
    ],
)  # fmt: skip
def test_the_shape_is_that_of_the_lists_and_the_texts(
    encoding: str, shape: tuple[int, ...] | None, text: str, expected_shape: list[int]
) -> None:
    model = described("FP32", encoding, shape, "[$x, $n]", "$.y")
    entry, blob, _ = answered(model, [b'{"y":%b}' % text.encode()])
    assert entry["shape"] == expected_shape
    assert np.frombuffer(blob, "<f4").tolist() == [1.0] * math.prod(expected_shape)
    entry, _, _ = answered(model, [b'{"y":%b}' % text.encode()], binary=False)
    assert entry["data"] == [1.0] * math.prod(expected_shape)


@pytest.mark.parametrize(
    ("encoding", "datatype", "text", "words"),
    [
        ("", "FP32", '["1.5"]', "element 0: FP32 cannot hold \"1.5\", which is no number; `encoding: text`"),
        ("text", "FP32", '["1","1,5"]', "element 1: FP32 cannot hold \"1,5\"$"),
        ("text", "INT8", '["1","128"]', "element 1: INT8 cannot hold 128"),
        ("text", "FP32", '[{"a":"1"}]', "element 0"),
        ("text", "FP32", '{"a":"1"}', "expected values, got"),
        ("base64", "FP32", "[1.5]", "element 0: expected a text in base64, got 1.5"),
        ("base64", "FP32", '["AACA"]', "element 0: expected whole elements of FP32, 4 bytes each, in base64, got 3"),
        ("base64", "FP32", '{"a":"1"}', "expected values, got"),
        ("base64", "FP64", '["AACAPw==","AACAPw=="]', "element 0: expected whole elements of FP64"),
    ],
)  # fmt: skip
def test_values_that_are_not_as_the_encoding_says_are_refused(
    encoding: str, datatype: str, text: str, words: str
) -> None:
    model = described(datatype, encoding, None, "[$x, $n]", "$.y")
    for chunk_bytes in (None, 1):
        with pytest.raises(CodecError, match=f"output 'y' \\({datatype}, at \\$\\.y\\): .*{words}"):
            answered(model, cut(b'{"y":%b}' % text.encode(), chunk_bytes))


def test_a_base64_text_of_all_rows_is_not_taken_for_rows() -> None:
    model = described("FP32", "base64", (-1, 2), "[$x, $n]", "$.y")
    with pytest.raises(CodecError, match="the answer has the shape \\[4\\], and .* says \\[-1, 2\\]"):
        answered(model, [b'{"y":"AACAPwAAIEAAAEDAzczMPQ=="}'])


def test_rows_whose_texts_have_different_lengths_are_refused() -> None:
    model = described("FP32", "base64", (-1, -1), "[$x, $n]", "$[*].y")
    with pytest.raises(CodecError, match="expected 1 elements of FP32 as in element 0, got 2"):
        answered(model, [b'[{"y":"AACAPw=="},{"y":"AACAPwAAgD8="}]'])
    long = json.dumps([{"y": "AACAPw=="}, {"y": "AAAA" * 20_000}]).encode()
    with pytest.raises(CodecError, match="rows of different shapes: \\[1\\], and from row 1 on \\[15000\\]"):
        answered(model, [long])


def test_64_bit_integers_are_read_from_texts_in_every_dialect() -> None:
    for datatype, number in (("INT64", -(2**63)), ("UINT64", 2**64 - 1)):
        model = described(datatype, "", None, "[$x, $n]", "$[*].y")
        text = json.dumps([{"y": str(number)}, {"y": 1}, {"y": str(2**53 + 1)}]).encode()
        for chunk_bytes in (None, 1):
            _, blob, _ = answered(model, cut(text, chunk_bytes))
            assert blob == np.array([number, 1, 2**53 + 1], WIRE[datatype]).tobytes()


@pytest.mark.parametrize("tail_bytes", [0, 100_000])
def test_lists_of_objects_in_lists_of_objects_are_dimensions_too(tail_bytes: int) -> None:
    """Long members beside the values have them read one by one."""
    for encoding, values in (
        ("text", ["1", "2.50", "1e3", "-.5"]),
        ("base64", [packed([n]) for n in (1, 2.5, 1e3, -0.5)]),
    ):
        pairs = [[{"v": values[0]}, {"v": values[1]}], [{"v": values[2]}, {"v": values[3]}]]
        text = json.dumps({"d": [{"c": pair, "t": "x" * tail_bytes} for pair in pairs]}).encode()
        model = described("FP32", encoding, (-1, -1), "[$x, $n]", "$.d[*].c[*].v")
        for chunk_bytes in (None, 10_000 if tail_bytes else 1):
            entry, blob, _ = answered(model, cut(text, chunk_bytes))
            assert entry["shape"] == [2, 2]
            assert np.frombuffer(blob, "<f4").tolist() == [1, 2.5, 1000, -0.5]


def packed(numbers: list[float]) -> str:
    return base64.b64encode(np.array(numbers, "<f4").tobytes()).decode()
