"""Small requests to servers of other dialects: the short way comes to what the long way makes, or leaves it alone."""

import json
import random
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from gateway.codec import DATATYPES, BytesPolicy, DialectRequest, HeaderLimits, TensorPolicy, read_short_dialect_request
from gateway.codec.dialects.short_request import MAX_INPUTS
from gateway.codec.v2.short_request import SHORT_BODY_BYTES
from gateway.errors import CodecError
from tests.codec.dialects.both_ways import parse_request
from tests.codec.make_pairs import WIRE, blob_of
from tests.codec.v2.test_short import ROUNDS, random_request
from tests.codec.v2.test_short_request import (
    CPP,
    FOUR,
    GO,
    JAVA,
    PYTHON,
    REQUESTS,
    damage,
)
from tests.codec.walk import LIMITS


def short(header: str | bytes, blobs: bytes = b"", *, is_binary: bool = True, **limits: int) -> DialectRequest | None:
    """What the short way makes of a request."""
    text = header.encode() if isinstance(header, str) else header
    length = len(text) if is_binary else None
    return read_short_dialect_request(memoryview(text + blobs), length, TensorPolicy(), HeaderLimits(**limits))


def one(data: str, datatype: str = "FP32", shape: str = "[2]", more: str = "") -> str:
    """A request with the input `x` in JSON."""
    return f'{{"inputs":[{{"name":"x","datatype":"{datatype}","shape":{shape},"data":{data}{more}}}]}}'


@pytest.mark.parametrize("header", [PYTHON, CPP, JAVA, GO, REQUESTS])
def test_requests_of_real_clients_take_the_short_way(header: str) -> None:
    assert short(header, FOUR) is not None
    parse_request(header.encode() + FOUR, len(header))


@pytest.mark.parametrize("is_binary", [True, False])
@pytest.mark.parametrize("datatype", list(DATATYPES))
def test_every_datatype_takes_the_short_way(datatype: str, *, is_binary: bool) -> None:
    values: list[Any] = ["a", "é"] if datatype == "BYTES" else [0, 1]
    blob = blob_of(values if datatype == "BYTES" else np.array(values, WIRE[datatype]))
    said = f'"parameters":{{"binary_data_size":{len(blob)}}}'
    data = '"data":' + {"BYTES": '["a","é"]', "BOOL": "[false,true]"}.get(datatype, "[0,1]")
    header = f'{{"inputs":[{{"name":"x","datatype":"{datatype}","shape":[2,1],{said if is_binary else data}}}]}}'
    request = short(header, blob if is_binary else b"", is_binary=is_binary)
    assert request is not None
    assert [bytes(tensor.blob) for tensor in request.inputs] == [blob]
    assert (request.datatypes, request.in_json) == (([datatype], frozenset()) if is_binary else ([], frozenset("x")))
    text = header.encode()
    parse_request(text + blob if is_binary else text, len(text) if is_binary else None)


@pytest.mark.parametrize(("shape", "data"), [("[2]", "[1,2]"), ("[2,1]", "[[1],[2]]"), ("[1,2]", "[1, 2.5]")])
def test_json_that_is_flat_or_nested_as_its_shape_takes_the_short_way(shape: str, data: str) -> None:
    assert short(one(data, shape=shape), is_binary=False) is not None


@pytest.mark.parametrize(
    "header",
    [
        one("[1,null]"),
        one("[1,NaN]"),
        one("[1]"),
        one("[[1],[2]]"),
        one("[[1,2]]", shape="[2,1]"),
        one("[]", shape="[0]"),
        one('["a","b"]'),
        one('["YQ==","Yg=="]', "BYTES", more=',"parameters":{"content_type":"base64"}'),
        one("[1,2]", "FP12"),
        one("[1,2]", shape="[-2]"),
        one("[1,2]", more=',"more":1'),
        one("[1,2]").replace("}]}", "},1]}"),
        one("[1,2]").replace('"x"', r'"\u0078"'),
        one("[1,2]").replace("}]}", '}],"outputs":[{"name":"y"},{"name":"y"}]}'),
        one("[1,2]").replace("}]}", '}],"parameters":{"binary_data_output":1}}'),
        one("[1,2]").replace("}]}", '}],"more":1}'),
        '{"inputs":[{"name":"x","datatype":"FP32","shape":[1]}]}',
        "[1]",
        "{",
        "",
    ],
)
def test_what_is_not_common_goes_the_long_way(header: str) -> None:
    assert short(header, is_binary=False) is None
    with suppress(CodecError):
        parse_request(header.encode(), None)


@pytest.mark.parametrize("blobs", [FOUR[:-1], FOUR + b"\0", FOUR[:-4] + b"\0\0\xc0\x7f"])
def test_octets_that_do_not_fit_or_are_not_finite_go_the_long_way(blobs: bytes) -> None:
    assert short(PYTHON, blobs) is None


def test_octets_that_are_no_text_go_the_long_way() -> None:
    header = '{"inputs":[{"name":"x","datatype":"BYTES","shape":[1],"parameters":{"binary_data_size":5}}]}'
    assert short(header, b"\1\0\0\0a") is not None
    assert short(header, b"\1\0\0\0\xff") is None


def test_limits_and_framing_are_for_the_long_way() -> None:
    assert short(PYTHON, FOUR, max_header_bytes=len(PYTHON)) is not None
    assert short(PYTHON, FOUR, max_header_bytes=len(PYTHON) - 1) is None
    assert short(PYTHON, FOUR, max_tensors=0) is None
    assert short(PYTHON, FOUR, is_binary=False) is None
    assert short(one("[1,2]").ljust(SHORT_BODY_BYTES), is_binary=False) is not None
    assert short(one("[1,2]").ljust(SHORT_BODY_BYTES + 1), is_binary=False) is None


def test_many_inputs_and_many_lists_go_the_long_way() -> None:
    for n_inputs, takes_short in ((MAX_INPUTS, True), (MAX_INPUTS + 1, False)):
        inputs = [{"name": f"{i}", "datatype": "FP32", "shape": [1], "data": [1]} for i in range(n_inputs)]
        assert (short(json.dumps({"inputs": inputs}), is_binary=False) is not None) is takes_short
    for shape, takes_short in (([9000], True), ([9000, 1], False)):
        said = {"name": "x", "datatype": "UINT8", "shape": shape, "parameters": {"binary_data_size": 9000}}
        assert (short(json.dumps({"inputs": [said]}), bytes(9000)) is not None) is takes_short


@pytest.mark.parametrize("seed", range(8))
def test_requests_come_to_the_same_both_ways(seed: int) -> None:
    dice = random.Random(seed)
    n_short = 0
    for _ in range(ROUNDS):
        policy = TensorPolicy(bytes=dice.choice(list(BytesPolicy)))
        body, header_length = random_request(dice)
        is_json = dice.random() < 0.2
        if is_json:
            body, header_length = random_request(dice, json_share=1)
        if dice.random() < 0.3:
            header = bytearray(body[:header_length])
            damage(header, dice)
            body, header_length = bytes(header) + body[header_length:], len(header)
        length = None if is_json else header_length
        n_short += read_short_dialect_request(memoryview(body), length, policy, LIMITS) is not None
        with suppress(CodecError):
            parse_request(body, length, policy)
    assert n_short > ROUNDS / 10
