"""The short way of requests: what takes it, and that it comes to the bytes of the long way or to nothing."""

import json
import random
from typing import Any

import numpy as np
import pytest

from gateway.codec import (
    DATATYPES,
    BytesPolicy,
    HalfPrecision,
    HeaderLimits,
    NonFinite,
    ShortRequest,
    TensorPolicy,
    read_short_request,
)
from gateway.codec.v2.short_request import SHORT_BODY_BYTES
from gateway.errors import CodecError
from tests.codec.make_pairs import blob_of
from tests.codec.v2.requests import entry, header_of
from tests.codec.walk import LIMITS, parse_request

FOUR = np.arange(4, dtype="<f4").tobytes()

# As these clients write them, with an input x of FP32 [2, 2].
PYTHON = (
    '{"id":"7","inputs":[{"name":"x","shape":[2,2],"datatype":"FP32","parameters":{"binary_data_size":16}}],'
    '"outputs":[{"name":"y","parameters":{"binary_data":true}}]}'
)
PYTHON_SEQUENCE = (
    '{"inputs":[{"name":"x","shape":[2,2],"datatype":"FP32","parameters":{"binary_data_size":16}}],"parameters":'
    '{"sequence_id":42,"sequence_start":true,"sequence_end":false,"priority":1,"binary_data_output":true}}'
)
CPP = (
    '{"id":"","inputs":[{"name":"x","datatype":"FP32","shape":[2,2],"parameters":{"binary_data_size":16}}],'
    '"outputs":[{"name":"y","parameters":{"binary_data":true}},{"name":"z","parameters":{"binary_data":false}}]}'
)
JAVA = (
    '{"id":"a","parameters":{},"inputs":[{"name":"x","parameters":{"binary_data_size":16},"datatype":"FP32",'
    '"shape":[2,2]}],"outputs":[{"name":"y","parameters":{"binary_data":true}}]}'
)
GO = (
    '{"id":"b","inputs":[{"name":"x","shape":[2,2],"datatype":"FP32","parameters":{"binary_data_size":16}}],'
    '"parameters":{"binary_data_output":true}}\n'
)
REQUESTS = (
    '{"inputs": [{"name": "x", "shape": [2, 2], "datatype": "FP32", "parameters": {"binary_data_size": 16}}], '
    '"outputs": [{"name": "y"}], "parameters": {"binary_data_output": true, "trace": {"a": [1, null]}}}'
)


def short(header: str | bytes, blobs: bytes = FOUR, **settings: Any) -> ShortRequest | None:
    """*header* and *blobs* by the short way; `parse_request` proves it equal to the long way."""
    text = header if isinstance(header, bytes) else header.encode()
    policy = TensorPolicy(**settings)
    try:
        parse_request(text + blobs, len(text), policy)
    except CodecError:
        assert read_short_request(text + blobs, len(text), policy, LIMITS) is None
    return read_short_request(text + blobs, len(text), policy, LIMITS)


@pytest.mark.parametrize("header", [PYTHON, PYTHON_SEQUENCE, CPP, JAVA, GO, REQUESTS])
def test_requests_of_real_clients_take_the_short_way(header: str) -> None:
    request = short(header)
    assert request is not None
    sent = json.loads(request.json)
    assert sent["inputs"] == [{"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [0.0, 1.0, 2.0, 3.0]}]
    assert b"binary_data" not in request.json


@pytest.mark.parametrize(
    "body",
    [
        '{"inputs":[{"name":"x","shape":[2],"datatype":"FP32","data":[1.5,2]}],'
        '"outputs":[{"name":"y","parameters":{"binary_data":false}}]}',
        '{"id": "7", "inputs": [{"name": "x", "shape": [1, 2], "datatype": "BYTES", "data":  [["é", "b"]]}], '
        '"parameters": {"binary_data_output": false}}\n',
    ],
)
def test_json_of_tritonclient_takes_the_short_way(body: str) -> None:
    request = parse_request(body.encode(), None)
    short_request = read_short_request(body.encode(), None, TensorPolicy(), LIMITS)
    assert request is not None
    assert short_request is not None
    assert json.loads(short_request.json)["inputs"] == json.loads(body)["inputs"]
    assert short_request.datatypes == []
    assert b"binary_data" not in short_request.json


def test_a_json_input_beside_a_binary_one_takes_the_short_way() -> None:
    octets = PYTHON[PYTHON.index('{"name":"x"') : PYTHON.index('],"outputs')]
    request = short('{"inputs":[{"name":"w","shape":[1],"datatype":"INT8","data":[7]},' + octets + "]}")
    assert request is not None
    assert [entry["data"] for entry in json.loads(request.json)["inputs"]] == [[7], [0.0, 1.0, 2.0, 3.0]]
    assert request.datatypes == ["FP32"]


@pytest.mark.parametrize(
    "body",
    [
        '{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]}],"outputs":[{"name":"y"}]}',
        '{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]}],"parameters":{"binary_data":false}}',
        '{"inputs":[{"name":"binary_data","shape":[1],"datatype":"FP32","data":[1]}]}',
    ],
)
def test_json_without_the_words_of_the_extension_is_not_judged(body: str) -> None:
    assert parse_request(body.encode(), None) is None
    assert read_short_request(body.encode(), None, TensorPolicy(), LIMITS) is None


@pytest.mark.parametrize("datatype", list(DATATYPES))
def test_every_datatype_takes_the_short_way(datatype: str) -> None:
    if datatype == "BYTES":
        blob = blob_of(["a", "", "é", 'q"\\\n', "\x7f", "x" * 300])
    else:
        blob = bytes(6 * DATATYPES[datatype].item_bytes)
    request = short(header_of(entry("x", datatype, [2, 3], len(blob))), blob)
    assert request is not None
    assert request.datatypes == [datatype]


@pytest.mark.parametrize("n_elements", [1, 3, 100])
def test_octets_in_base64_take_the_short_way(n_elements: int) -> None:
    blob = blob_of([bytes([index, 255]) for index in range(n_elements)])
    request = short(header_of(entry("x", "BYTES", [n_elements], len(blob))), blob, bytes=BytesPolicy.BASE64)
    assert request is not None
    assert b'"parameters":{"content_type":"base64"},"data":["AP8="' in request.json


def test_each_request_gets_the_values_of_its_own_body() -> None:
    header = header_of(entry("a", "UINT8", [2], 2), entry("b", "FP32", [1], 4))
    for blobs, sent in ((b"\1\2\0\0\0\0", [[1, 2], [0.0]]), (b"\3\4\0\0\x80\xbf", [[3, 4], [-1.0]])):
        request = short(header, blobs)
        assert request is not None
        assert [item["data"] for item in json.loads(request.json)["inputs"]] == sent


def test_members_are_written_in_the_order_of_the_protocol() -> None:
    """A struct does not keep the order of members, so both ways write one order."""
    request = short(JAVA.replace("{}", '{"priority":1}'))
    assert request is not None
    assert request.json == (
        b'{"id":"a","parameters":{"priority":1},"inputs":[{"name":"x","shape":[2,2],"datatype":"FP32",'
        b'"data":[0.0,1.0,2.0,3.0]}],"outputs":[{"name":"y"}]}'
    )


@pytest.mark.parametrize(
    ("header", "blobs", "settings"),
    [
        (PYTHON, FOUR[:-1], {}),
        (PYTHON, FOUR + b"\0", {}),
        (PYTHON, b"\0\0\xc0\x7f" + FOUR[4:], {}),
        (PYTHON, b"\0\0\xc0\x7f" + FOUR[4:], {"nonfinite": NonFinite.LITERAL}),
        (PYTHON.replace("16", "-16"), FOUR, {}),
        (PYTHON.replace("16", "16.0"), FOUR, {}),
        (PYTHON.replace("16", "-0").replace("[2,2]", "[0]"), b"", {}),
        (PYTHON.replace("16", "99999999999999999999"), FOUR, {}),
        (PYTHON.replace("[2,2]", "[2,-2]"), FOUR, {}),
        (PYTHON.replace("[2,2]", "[2,true]"), FOUR, {}),
        (PYTHON.replace("[2,2]", str([1] * 65)), FOUR, {}),
        (PYTHON.replace('"x"', '"\\u0078"'), FOUR, {}),
        (PYTHON.replace('"x"', "7"), FOUR, {}),
        (PYTHON.replace('"x"', '"\udcff"').encode(errors="surrogateescape"), FOUR, {}),
        (PYTHON.replace("FP32", "fp32"), FOUR, {}),
        (PYTHON.replace('"id"', '"own"'), FOUR, {}),
        (PYTHON.replace("true", "null"), FOUR, {}),
        (PYTHON.replace('{"id"', '\ufeff{"id"'), FOUR, {}),
        (PYTHON + "x", FOUR, {}),
        (PYTHON.replace('"7"', "NaN"), FOUR, {}),
        (PYTHON.replace('"7"', "[" * 600 + "]" * 600), FOUR, {}),
        (CPP.replace('"z"', '"y"'), FOUR, {}),
        (GO.replace("true", "1"), FOUR, {}),
        (header_of(entry("x", "FP16", [2], 4)), bytes(4), {"half_precision": HalfPrecision.PROMOTE}),
        (header_of(entry("x", "BYTES", [1], 5)), b"\1\0\0\0\xff", {}),
        (header_of(entry("x", "BYTES", [1], 5)), b"\2\0\0\0a", {}),
        (header_of(entry("x", size=8), entry("x", size=8)), FOUR, {}),
    ],
)
def test_what_is_not_common_goes_the_long_way(header: str | bytes, blobs: bytes, settings: dict[str, Any]) -> None:
    assert short(header, blobs, **settings) is None


def test_limits_and_framing_are_for_the_long_way() -> None:
    body = PYTHON.encode() + FOUR
    for header_length in (None, 0, len(PYTHON) - 1, len(body) + 1):
        assert read_short_request(body, header_length, TensorPolicy(), LIMITS) is None
    for limits in (HeaderLimits(max_header_bytes=len(PYTHON) - 1), HeaderLimits(max_tensors=0)):
        assert read_short_request(body, len(PYTHON), TensorPolicy(), limits) is None
    large = header_of(entry("x", "UINT8", [SHORT_BODY_BYTES], SHORT_BODY_BYTES))
    assert read_short_request(large + bytes(SHORT_BODY_BYTES), len(large), TensorPolicy(), LIMITS) is None


@pytest.mark.parametrize("seed", range(4))
def test_damaged_requests_come_to_the_same_both_ways(seed: int) -> None:
    dice = random.Random(seed)
    n_short = 0
    for _ in range(400):
        header = bytearray(dice.choice([PYTHON, PYTHON_SEQUENCE, CPP, JAVA, GO, REQUESTS]).encode())
        for _ in range(dice.randrange(3)):
            damage(header, dice)
        n_short += short(bytes(header), FOUR[: dice.choice([16, 16, 16, 15])]) is not None
    assert n_short > 50


def damage(text: bytearray, dice: random.Random) -> None:
    """Flip a byte, cut a part out, put a blank or a part of the text somewhere."""
    start = dice.randrange(len(text))
    match dice.randrange(4):
        case 0:
            text[start] ^= 1 << dice.randrange(8)
        case 1:
            del text[start : start + dice.randrange(1, 9)]
        case 2:
            text[start:start] = dice.choice(
                [b" ", b"\n", b"null", b'"', b"}", b"[", b",", b"\\", b"0", b"-", b"\\u0061", b"-0"]
            )
        case _:
            other = dice.randrange(len(text))
            text[start:start] = text[other : other + dice.randrange(1, 60)]
