"""Requests: framing, blobs and their values, and the JSON in pieces (protocol sections 1, 2, 3, 6, 10)."""

import json
import math
import struct
from typing import Any

import numpy as np
import pytest

from gateway.codec.inference import TensorPolicy
from gateway.codec.json.pieces import PIECE_BYTES
from gateway.errors import CodecError
from tests.codec.v2.requests import entry, header_of, parsed, sent
from tests.codec.walk import backend_json, parse_request, parsing


@pytest.mark.rule("1.2", "1.3")
@pytest.mark.parametrize("blanks", ["", " ", "\n\n   "])
def test_header_length_may_be_the_whole_body_and_may_include_padding(blanks: str) -> None:
    header = header_of({"name": "x", "datatype": "INT8", "shape": [1], "data": [1]}) + blanks.encode()
    assert sent(header) == json.loads(header)


@pytest.mark.rule("1.2")
def test_header_length_beyond_the_body_is_refused_with_both_numbers() -> None:
    header = header_of()
    with pytest.raises(CodecError, match=f"is {len(header) + 1}, but the whole body has {len(header)} bytes"):
        parse_request(header, len(header) + 1)


@pytest.mark.rule("1.6")
@pytest.mark.parametrize(
    "text", ["[]", "1", "null", '"x"', "{", "{}}", '{"inputs":[]', "x", '{"inputs":[],}', " ", "{]"]
)
def test_json_that_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(CodecError):
        backend_json(text.encode())


@pytest.mark.rule("1.6")
@pytest.mark.parametrize(
    "text", ["{}", '{"inputs":null}', '{"outputs":[]}', '{"inputs":5}', '{"inputs":{}}', '{"inputs":[1]}']
)
def test_json_without_an_array_of_inputs_is_refused(text: str) -> None:
    with pytest.raises(CodecError, match="inputs"):
        backend_json(text.encode())


@pytest.mark.rule("1.6")
@pytest.mark.parametrize(
    "header",
    [
        b'{"inputs":[],"x":"\xff"}',
        b'{"inputs":[],"\xc3":1}',
        b'{"inputs":[{"name":"x","data":["\xff"]}]}',
        b'{"inputs":[{"name":"x","data":["\xed\xa0\x80"]}]}',
        b'{"inputs":[{"name":"\xe9","datatype":"FP32","shape":[0],"parameters":{"binary_data_size":0}}]}',
    ],
)
def test_json_that_is_not_utf8_is_refused(header: bytes) -> None:
    with pytest.raises(CodecError, match="not UTF-8"):
        backend_json(header)


@pytest.mark.rule("1.6")
def test_empty_body_is_refused() -> None:
    with pytest.raises(CodecError, match="empty request body"):
        parse_request(b"", None)


def test_no_inputs_are_legal() -> None:
    assert sent(header_of()) == {"inputs": []}


@pytest.mark.rule("1.2", "1.7")
@pytest.mark.parametrize(
    "more", [{}, {"more": 1}, {"more": "é" * 10}, {"more": "x" * 20_000}, {"more": [math.nan, -math.inf, "Infinity"]}]
)
@pytest.mark.parametrize("tensor", [entry(), {"name": "x", "datatype": "INT8", "shape": [1], "data": [1]}])
def test_header_length_that_is_not_where_the_json_ends_is_refused_and_named(
    tensor: dict[str, Any], more: dict[str, Any]
) -> None:
    header = json.dumps({"inputs": [tensor], **more}, ensure_ascii=False).encode()
    for wrong in (-3, -len(header) + 1, 3, 16):
        with pytest.raises(CodecError) as caught:
            parse_request(header + b"\1" * 16, len(header) + wrong)
        length = f"the {len(header) + wrong} bytes that Inference-Header-Content-Length says are JSON"
        assert str(caught.value).endswith(f" (in {length})")
        words = str(caught.value).removeprefix("more: ")
        assert words.startswith(("JSON is cut off", "JSON is not UTF-8", "malformed JSON: trailing"))


# blobs


@pytest.mark.rule("1.5")
def test_bytes_left_over_or_missing_are_counted_and_named() -> None:
    header = header_of(entry("a"), entry("b", "INT8", [3], 3))
    parsed(header, bytes(19))
    with pytest.raises(CodecError, match="1 bytes left over"):
        parsed(header, bytes(20))
    with pytest.raises(CodecError, match="input 'b'.*1 bytes missing"):
        parsed(header, bytes(18))
    with pytest.raises(CodecError, match="input 'b'.*3 bytes missing"):
        parsed(header, bytes(16))
    with pytest.raises(CodecError, match="input 'a'.*16 bytes missing"):
        parsed(header)


@pytest.mark.rule("1.5")
def test_blobs_are_taken_in_the_order_of_the_inputs_whatever_stands_between() -> None:
    between = {"name": "j", "datatype": "INT8", "shape": [1], "data": [9]}
    shared = {"name": "s", "datatype": "INT8", "shape": [1], "parameters": {"shared_memory_region": "r"}}
    header = header_of(between, entry("b", "INT8", [1], 1), shared, entry("a", "INT8", [2], 2))
    datas = [item.get("data") for item in sent(header, b"\1\2\3")["inputs"]]
    assert datas == [[9], [1], None, [2, 3]]


def test_tensors_are_views_of_the_body() -> None:
    header = header_of(entry("a", "UINT8", [20_000], 20_000))
    body = bytearray(header + bytes(20_000))
    steps = parsing(memoryview(body), len(header), TensorPolicy(), recover=False)
    with pytest.raises(StopIteration) as stop:
        while True:
            next(steps)
    request = stop.value.value
    body[-1] = 7
    assert b"0,7]" in b"".join(request.json_pieces())


# without a header length


@pytest.mark.rule("3.6")
@pytest.mark.parametrize(
    "body",
    [
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1]}]}',
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1,]}',
        b"not json at all",
        b"\xff\xfe",
        b"[]",
        b'{"inputs":[{"name":"\\u0061"}],"x":tru}',
        b'{"inputs":[{"name":"x","data":["binary_data"]}]}',
        b'{"inputs":[{"name":"x","data":["\\"binary_data_size\\":1"]}],"binary_data":1}',
        b"{}",
        b" ",
    ],
)
def test_body_without_the_words_of_the_extension_is_nobodys_business(body: bytes) -> None:
    assert parse_request(body, None) is None


@pytest.mark.rule("3.6")
@pytest.mark.parametrize(
    "body",
    [
        b'{"inputs":[{"name":"binary_data","datatype":"BYTES","shape":[1]}]}',
        b'{"inputs":[{"name":"x","data":["binary_data"]},{"name":"x","data":[1]}]}',
        b"say binary_data and it is judged",
    ],
)
def test_word_of_the_extension_in_a_value_does_not_make_pure_json_ours(body: bytes) -> None:
    assert parse_request(body, None) is None


@pytest.mark.rule("1.6")
@pytest.mark.parametrize(
    "body",
    [
        header_of(parameters={"binary_data_output": True}),
        header_of(outputs=[{"name": "y", "parameters": {"binary_data": True}}]),
        header_of(parameters={"binary_data_output": True}) + b"\n ",
        header_of(parameters={"binary_data_output": False}).replace(b"binary_data", b"b\\u0069nary_data"),
    ],
)
def test_pure_json_with_a_word_of_the_extension_is_read(body: bytes) -> None:
    request = parse_request(body, None)
    assert request is not None
    assert not request.header_recovered
    assert b"binary" not in b"".join(request.json_pieces())


@pytest.mark.rule("6")
@pytest.mark.parametrize("blob", [b"    ", b"}}}}", b'"\\"{', b"\n\r\t ", b"\xff\0{}"])
@pytest.mark.parametrize("escaped", [False, True])
def test_missing_header_length_is_found_by_scanning_whatever_the_blob_looks_like(blob: bytes, escaped: bool) -> None:
    header = header_of(entry('}\\"{' if escaped else "x", "UINT8", [4], 4))
    request = parse_request(header + blob, None)
    assert request is not None
    assert request.header_recovered
    assert json.loads(b"".join(request.json_pieces()))["inputs"][0]["data"] == list(blob)


@pytest.mark.rule("6")
def test_missing_header_length_is_not_found_where_that_is_not_allowed() -> None:
    with pytest.raises(CodecError, match="Inference-Header-Content-Length is missing"):
        parse_request(header_of(entry()) + bytes(16), None, recover=False)


@pytest.mark.rule("1.7", "6")
@pytest.mark.parametrize("n_bytes", [0, 1, 15, 17, 32])
def test_missing_header_length_that_the_sizes_do_not_make_up_for_is_refused_and_named(n_bytes: int) -> None:
    with pytest.raises(
        CodecError, match=f"Inference-Header-Content-Length is missing.*{n_bytes} bytes follow.*add up to 16"
    ):
        parse_request(header_of(entry()) + b"\1" * n_bytes, None)


@pytest.mark.rule("6")
def test_rules_of_binary_inputs_hold_without_a_header_length_too() -> None:
    with pytest.raises(CodecError, match="expected 16, got 12"):
        parse_request(header_of(entry(size=12)) + bytes(12), None)


# in pieces


@pytest.mark.parametrize("datatype", ["FP64", "INT64", "BOOL", "BF16", "BYTES"])
def test_no_piece_of_a_large_request_is_longer_than_a_mebibyte(datatype: str) -> None:
    sizes = {"FP64": 8, "INT64": 8, "BOOL": 1, "BF16": 2}
    if datatype == "BYTES":
        blob = (3_000_000).to_bytes(4, "little") + b"\x01" * 3_000_000
        shape = [1]
    else:
        shape = [500_000]
        blob = np.random.default_rng(1).integers(0, 100, 500_000 * sizes[datatype], dtype="u1").tobytes()
    header = header_of(entry(datatype=datatype, shape=shape, size=len(blob)), {"name": "j", "data": ["y" * 3_000_000]})
    request = parsed(header, blob)
    assert request.small_json is None
    pieces = list(map(len, request.json_pieces()))
    assert max(pieces) <= 1024 * 1024
    assert len(json.loads(b"".join(request.json_pieces()))["inputs"][0]["data"]) == shape[0]


def test_checking_a_large_request_is_done_in_steps() -> None:
    header = header_of(entry(shape=[4_000_000], size=16_000_000), entry("t", "BYTES", [1], 10_000_004))
    body = memoryview(header + bytes(16_000_000) + struct.pack("<I", 10_000_000) + b"x" * 10_000_000)
    assert sum(1 for _ in parsing(body, len(header), TensorPolicy(), recover=False)) >= 10_000_000 // PIECE_BYTES


def test_small_request_is_one_piece() -> None:
    request = parsed(header_of(entry()), bytes(16))
    assert request.small_json is not None
    assert len(list(request.json_pieces())) == 1
    assert len(b"".join(request.json_pieces())) < PIECE_BYTES
