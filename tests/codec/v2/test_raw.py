"""What a model's metadata says of a raw body: a table (protocol section 5)."""

import json
from typing import Any

import pytest

from gateway.codec.v2.raw import half_precision_outputs, is_bytes_model, raw_header
from gateway.errors import CodecError


def metadata(datatype: str, shape: list[int], n_inputs: int = 1) -> bytes:
    inputs = [{"name": f"x{index}", "datatype": datatype, "shape": shape, "extra": 1} for index in range(n_inputs)]
    return json.dumps({"name": "m", "inputs": inputs}).encode()


@pytest.mark.parametrize(
    ("datatype", "shape", "n_bytes", "solved"),
    [
        ("FP32", [-1, 4], 16, [1, 4]),
        ("FP32", [4], 16, [4]),
        ("FP32", [-1, 4], 0, [0, 4]),
        ("FP16", [-1, 2, -1], 12, [1, 2, 3]),
        ("INT64", [-1, -1], 8, [1, 1]),
        ("BOOL", [], 1, []),
        ("UINT8", [0, 4], 0, [0, 4]),
        ("BYTES", [1], 99, [1]),
        ("BYTES", [-1, 1], 0, [1, 1]),
    ],
)
def test_variable_dimensions_are_solved(datatype: str, shape: list[int], n_bytes: int, solved: list[int]) -> None:
    header: dict[str, Any] = json.loads(raw_header(metadata(datatype, shape), n_bytes))
    (entry,) = header["inputs"]
    assert (entry["name"], entry["datatype"], entry["shape"]) == ("x0", datatype, solved)
    assert entry["parameters"] == {"binary_data_size": n_bytes + (4 if datatype == "BYTES" else 0)}
    assert header["parameters"] == {"binary_data_output": True}


@pytest.mark.parametrize(
    ("text", "n_bytes", "words"),
    [
        (metadata("FP32", [4]), 20, "input 'x0' (FP32, shape [4]): expected 16 bytes, got 20"),
        (metadata("FP32", [-1, 4]), 20, "expected a multiple of 16 bytes, got 20"),
        (metadata("FP32", [2, -1, -1]), 16, "more than one variable dimension"),
        (metadata("FP32", [-1, -1, -1]), 16, "besides the batch"),
        (metadata("FP32", [-1, 0]), 16, "expected a multiple of 0 bytes"),
        (metadata("BYTES", [2]), 5, "one element"),
        (metadata("BYTES", [0]), 5, "one element"),
        (metadata("FP33", [2]), 5, "no such datatype"),
        (metadata("FP32", [-2]), 5, "no such datatype or shape"),
        (metadata("FP32", [4], 2), 16, "this one has x0, x1"),
        (metadata("FP32", [4], 0), 16, "needs the model's metadata"),
        (b'{"name":"m"}', 16, "needs the model's metadata"),
        (b"[]", 16, "cannot be read"),
        (b"", 16, "cannot be read"),
        (b'{"inputs":[{"name":"x"}]}', 16, "cannot be read"),
    ],
)
def test_what_does_not_fit_is_refused(text: bytes, n_bytes: int, words: str) -> None:
    with pytest.raises(CodecError) as caught:
        raw_header(text, n_bytes)
    assert words in str(caught.value)


def test_bytes_models_are_known() -> None:
    assert is_bytes_model(metadata("BYTES", [1]))
    assert not is_bytes_model(metadata("FP32", [1]))
    assert not is_bytes_model(metadata("BYTES", [1], 2))


def test_half_precision_outputs_are_named() -> None:
    text = b'{"outputs":[{"name":"a","datatype":"FP16","shape":[1]},{"name":"b","datatype":"FP32","shape":[1]}]}'
    assert half_precision_outputs(text) == {"a": "FP16"}
    assert half_precision_outputs(b"not json") == {}
    assert half_precision_outputs(b"{}") == {}
