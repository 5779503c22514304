"""Requests that are made of values: as if they had come in a binary body."""

import json

import numpy as np
import pytest

from gateway.codec import HeaderLimits, InferRequest, TensorPolicy, run
from gateway.codec.v2.from_values import InputValues, request_from_values
from gateway.errors import CodecError

X = np.array([[1.5, -2.0]], np.float32)


def made(*inputs: InputValues, limits: HeaderLimits = HeaderLimits(), identity: str = "7") -> InferRequest:  # noqa: B008
    outputs = {"y": {"classification": 2, "binary_data": False}, "z": {}}
    text = request_from_values(inputs, outputs, {"priority": 1, "binary_data_output": False}, identity, limits)
    return run(InferRequest.proved(text, TensorPolicy()))


def values(name: str, array: np.ndarray, datatype: str = "FP32", **parameters: object) -> InputValues:
    return InputValues(name, datatype, array.shape, parameters, memoryview(array.tobytes()))


@pytest.mark.parametrize("more", [0, 20_000])
def test_values_become_the_json_that_a_binary_body_becomes(more: int) -> None:
    shared = InputValues("s", "FP32", [1], {"shared_memory_region": "r"}, None)
    long = np.arange(more, dtype=np.int64)
    request = made(values("é", X, key="v", binary_data_size=3), shared, values("n", long, "INT64"))
    assert (request.id, request.datatypes, request.header_recovered) == (b'"7"', ["FP32", "INT64"], False)
    assert (request.selection.binary_by_default, request.selection.named) == (True, {"y": True, "z": True})
    assert json.loads(b"".join(request.json_pieces())) == {
        "id": "7",
        "parameters": {"priority": 1},
        "inputs": [
            {"name": "é", "shape": [1, 2], "datatype": "FP32", "parameters": {"key": "v"}, "data": [1.5, -2.0]},
            {"name": "s", "shape": [1], "datatype": "FP32", "parameters": {"shared_memory_region": "r"}},
            {"name": "n", "shape": [more], "datatype": "INT64", "data": long.tolist()},
        ],
        "outputs": [{"name": "y", "parameters": {"classification": 2}}, {"name": "z"}],
    }


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (InputValues("x", "FP32", [3], {}, memoryview(bytes(8))), "input 'x'.*expected 12, got 8"),
        (InputValues("x", "FP32", [-1], {}, memoryview(bytes(8))), r"input 'x': shape must be.*got \[-1\]"),
        (InputValues("x", "fp32", [2], {}, memoryview(bytes(8))), "input 'x': datatype must be one of.*upper case"),
        (InputValues("x", "BYTES", [1], {}, memoryview(b"\2\0\0\0a")), "element 0 says it has 2 bytes"),
        (values("x", np.array([np.nan], np.float32)), "element 0 is nan"),
        (InputValues("x", "FP32", [2], {}, None), "Input must set only one of the following fields"),
    ],
)
def test_values_are_proved_as_those_of_a_body(tensor: InputValues, words: str) -> None:
    with pytest.raises(CodecError, match=words):
        made(tensor)


def test_more_tensors_than_the_limit_and_the_same_name_twice_are_refused() -> None:
    with pytest.raises(CodecError, match="more than 1 entries in `outputs`"):
        made(limits=HeaderLimits(max_tensors=1))
    with pytest.raises(CodecError, match="input 'x' is given more than once"):
        made(values("x", X), values("x", X))


def test_an_empty_id_is_none() -> None:
    assert made(values("x", X), identity="").id == b""
