"""Raw requests, and what a model's metadata says of them (protocol section 5)."""

import json
import tracemalloc
from typing import Any

import numpy as np
import pytest

from gateway.codec.inference import BytesPolicy, HalfPrecision, HeaderLimits, TensorPolicy
from gateway.codec.json.arriving import RUN_BYTES
from gateway.codec.json.members import HELD_PER_BYTE
from gateway.codec.v2.raw import half_precision_outputs, raw_header, read_raw
from gateway.codec.v2.request import InferRequest
from gateway.errors import CodecError
from tests.codec.v2.test_header_steps import MEMBERS, filled, repeated
from tests.steps import run

pytestmark = pytest.mark.rule("5")


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
    header: dict[str, Any] = json.loads(raw_header(metadata(datatype, shape), n_bytes)[0])
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
        (metadata("FP33", [2]), 5, "cannot be read: Invalid enum value 'FP33' - at `$[0].datatype`"),
        (metadata("FP32", [-2]), 5, "cannot be read: Expected `int` >= -1"),
        (metadata("FP32", [1] * 65), 4, "cannot be read: Expected `array` of length <= 64 - at `$[0].shape`"),
        (metadata("FP32", [2] * 40_000), 4, "of length <= 64"),
        (metadata("BYTES", [1] * 40_000), 4, "cannot be read: Expected `array` of length <= 64"),
        (metadata("FP32", [2**63]), 4, "cannot be read: Expected `int` <= 9223372036854775807"),
        (metadata("FP32", [7]).replace(b"7", b"7" * 5000), 4, "cannot be read: Integer value out of range"),
        (metadata("FP32", [2**62] * 64), 4, "expected more than 2^64 bytes, got 4"),
        (metadata("FP32", [-1] + [2**62] * 63), 4, "expected a multiple of more than 2^64 bytes, got 4"),
        (metadata("BYTES", [2**62] * 64), 4, "one element"),
        (metadata("FP32", [4], 2), 16, "it names 2 inputs; a raw request has only one"),
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
    assert len(str(caught.value)) < 500


def test_bytes_models_are_known() -> None:
    assert raw_header(metadata("BYTES", [1]), 4)[1]
    assert not raw_header(metadata("FP32", [1]), 4)[1]


def test_half_precision_outputs_are_named() -> None:
    text = b'{"outputs":[{"name":"a","datatype":"FP16","shape":[-1,1]},{"name":"b","datatype":"FP32","shape":[1]}]}'
    assert half_precision_outputs(text) == {"a": "FP16"}
    assert half_precision_outputs(b"not json") == {}
    assert half_precision_outputs(b"{}") == {}


def raw(body: bytes | memoryview, text: bytes, policy: TensorPolicy | None = None) -> Any:
    """The JSON that a raw request becomes."""
    request = run(InferRequest.parse(read_raw(memoryview(body), text), policy or TensorPolicy()))
    assert request is not None
    assert request.selection.binary_by_default and not request.selection.named
    assert request.id == b"" and not request.header_recovered
    return json.loads(b"".join(request.json_pieces()))


def test_raw_body_becomes_the_models_only_input() -> None:
    text = raw(b"\1\2\3\4\5\6", metadata("UINT8", [-1, 3]))
    assert text == {"inputs": [{"name": "x0", "shape": [2, 3], "datatype": "UINT8", "data": [1, 2, 3, 4, 5, 6]}]}


def test_raw_bytes_are_one_element() -> None:
    assert raw("é".encode(), metadata("BYTES", [1]))["inputs"][0]["data"] == ["é"]
    assert raw(b"", metadata("BYTES", [-1]))["inputs"][0]["data"] == [""]
    policy = TensorPolicy(bytes=BytesPolicy.BASE64)
    entry = raw(b"\xff", metadata("BYTES", [1]), policy)["inputs"][0]
    assert entry["data"] == ["/w=="]
    assert entry["parameters"] == {"content_type": "base64"}


def test_raw_bytes_that_are_no_text_or_too_long_are_refused() -> None:
    with pytest.raises(CodecError, match="input 'x0'.*element 0 is not UTF-8"):
        raw(b"\xff", metadata("BYTES", [1]))
    # no page of this array is touched
    with pytest.raises(CodecError, match=f"the body has {2**32} bytes, more than a BYTES element can have"):
        raw(np.empty(2**32, np.uint8).data, metadata("BYTES", [1]))


def test_raw_half_precision_is_promoted_where_the_backend_wants_it() -> None:
    policy = TensorPolicy(half_precision=HalfPrecision.PROMOTE)
    request = run(InferRequest.parse(read_raw(memoryview(bytes(4)), metadata("FP16", [2])), policy))
    other = run(InferRequest.parse(read_raw(memoryview(bytes(8)), metadata("FP32", [2])), policy))
    assert request is not None and request.promotes
    assert other is not None and not other.promotes
    assert raw(bytes(4), metadata("FP16", [2]), policy)["inputs"][0]["datatype"] == "FP32"


def test_raw_request_is_read_in_steps_and_asks_for_the_memory_of_its_copy() -> None:
    asked: list[int] = []
    body = memoryview(bytes(10_000_000))
    steps = InferRequest.parse(read_raw(body, metadata("BYTES", [1]), reserve=asked.append), TensorPolicy())
    next(steps)
    assert len(asked) == 1
    assert len(body) < asked[0] < len(body) + 100_000
    assert sum(1 for _ in steps) > 10
    run(InferRequest.parse(read_raw(body[:8], metadata("FP32", [2]), reserve=asked.append), TensorPolicy()))
    assert len(asked) == 3  # for the copy, and for the header of each


INPUT = b'"inputs":[{"name":"x","datatype":"FP32","shape":[-1],"parameters":{%b}}]'
MANY = b"[%b]" % repeated(b'{"name":"y%x","datatype":"FP16","shape":[1],"parameters":{"a":[1,2,3,4]}}')
LONG = {
    "members": (b"{%b,%b}" % (INPUT % b"", MEMBERS), None),
    "parameters of the input": (b"{%b}" % (INPUT % MEMBERS), None),
    "a list that is not needed": (b'{%b,"x":[%b]}' % (INPUT % b"", filled(b"{}")), None),
    "outputs": (b'{%b,"outputs":%b}' % (INPUT % b"", MANY), None),
    "inputs": (b'{"inputs":[%b]}' % filled(b'{"name":"x","datatype":"FP32","shape":[1]}'), "limits.tensors"),
    "a long shape": (
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[%b]}]}' % filled(b"1"),
        "of length <= 64",
    ),
}


@pytest.mark.parametrize("name", LONG)
def test_of_long_metadata_only_what_is_needed_is_decoded(name: str) -> None:
    """All of it was decoded, which took 8 ms for a mebibyte, in each raw request."""
    text, refusal = LONG[name]
    tracemalloc.start()
    try:
        if refusal is None:
            assert json.loads(raw_header(text, 8)[0])["inputs"][0]["shape"] == [2]
        else:
            with pytest.raises(CodecError, match=refusal):
                raw_header(text, 8)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 3 * len(text) + RUN_BYTES * HELD_PER_BYTE * 2


def test_longer_lists_of_tensors_than_a_header_are_not_read() -> None:
    """Each of their entries takes memory and time, however few of them a model can have."""
    text = LONG["parameters of the input"][0]
    with pytest.raises(CodecError, match="limits.header"):
        raw_header(text, 8, HeaderLimits(len(text) // 2))


def test_half_precision_outputs_of_many_are_all_named() -> None:
    assert half_precision_outputs(LONG["outputs"][0]) == {f"y{number:x}": "FP16" for number in range(1024)}
    assert half_precision_outputs(LONG["outputs"][0], HeaderLimits(max_tensors=1000)) == {}
