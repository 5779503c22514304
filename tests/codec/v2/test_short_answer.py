"""The short way of answers: what takes it, and that it comes to the bytes of the long way or to nothing."""

import json
import random
from decimal import Decimal

import numpy as np
import pytest

from gateway.codec import DATATYPES, HeaderLimits, OutputSelection, Reply, read_short_answer
from gateway.codec.tensors.number_reading import MAX_FEW
from gateway.codec.v2.short_request import MAX_SHORT_BRACKETS
from gateway.errors import CodecError
from tests.codec.make_pairs import WIRE, blob_of
from tests.codec.v2.test_short_request import damage
from tests.codec.walk import LIMITS, one_output, read_answer

BINARY = OutputSelection(binary_by_default=True)

# As these servers write them, with an output y of FP32 [2, 2].
MLSERVER = (
    '{"model_name":"m","model_version":"v1","id":"f2","parameters":{},"outputs":[{"name":"y","shape":[2,2],'
    '"datatype":"FP32","parameters":{"content_type":"np"},"data":[0.5,-1.0,2.25,0.10000000149011612]}]}'
)
KSERVE = (
    '{"model_name":"m","model_version":null,"id":"f2","parameters":null,"outputs":[{"name":"y","shape":[2,2],'
    '"datatype":"FP32","parameters":null,"data":[0.5,-1.0,2.25,0.10000000149011612]}]}'
)
TRITON = (
    '{"id":"7","model_name":"m","model_version":"1","outputs":[{"name":"y","datatype":"FP32","shape":[2,2],'
    '"data":[0.5,-1.0,2.25,0.10000000149011612]}]}'
)
TORCHSERVE = json.dumps(
    {
        "model_name": "m",
        "outputs": [{"name": "y", "data": [0.5, -1.0, 2.25, 0.1], "datatype": "FP32", "shape": [2, 2]}],
    },
    indent=2,
)
FASTAPI = json.dumps(
    {"outputs": [{"name": "y", "shape": [2, 2], "datatype": "FP32", "data": [[0.5, -1.0], [2.25, 0.1]]}]}
)
ANSWERS = [MLSERVER, KSERVE, TRITON, TORCHSERVE, FASTAPI]


def short(
    answer: str | bytes, selection: OutputSelection = BINARY, request_id: bytes = b"", limits: HeaderLimits = LIMITS
) -> Reply | None:
    """*answer* by the short way; `read_answer` proves it equal to the long way."""
    text = answer if isinstance(answer, bytes) else answer.encode()
    reply = read_short_answer(text, selection, request_id, model="m", is_renamed=False, limits=limits)
    try:
        read_answer([text], selection, request_id=request_id)
    except CodecError:
        assert reply is None
    return reply


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("request_id", [b"", b'"7"'])
def test_answers_of_real_servers_take_the_short_way(answer: str, request_id: bytes) -> None:
    reply = short(answer, request_id=request_id)
    assert reply is not None
    assert bytes(reply.blobs[0]) == np.array([0.5, -1, 2.25, 0.1], "<f4").tobytes()
    kept = short(answer, OutputSelection(), request_id)
    assert kept is not None
    assert kept.blobs == []


def in_base64(data: str) -> bytes:
    return one_output(data, "BYTES").replace(b'"data"', b'"parameters":{"content_type":"base64"},"data"')


def test_octets_in_base64_take_the_short_way() -> None:
    reply = short(in_base64('["AP8="]'))
    assert reply is not None
    assert bytes(reply.blobs[0]) == b"\2\0\0\0\0\xff"


def test_members_are_written_in_the_order_of_the_protocol() -> None:
    """A struct does not keep the order of members, so both ways write one order."""
    reply = short(TRITON.replace('"data"', '"parameters":{"a":1},"data"'))
    assert reply is not None
    assert reply.header == [
        b'{"model_name":"m","model_version":"1","id":"7","outputs":[{"name":"y","shape":[2,2],"datatype":"FP32",'
        b'"parameters":{"a":1,"binary_data_size":16}}]}'
    ]


@pytest.mark.parametrize("datatype", list(DATATYPES))
@pytest.mark.parametrize("shape", [[6], [2, 3], [1, 6], [3, 1, 2]])
def test_every_datatype_takes_the_short_way(datatype: str, shape: list[int]) -> None:
    values = {"BYTES": ["a", "", "é", 'q"\\\n', "\x7f", "x" * 300], "BOOL": [True, False] * 3}.get(
        datatype, [0, 1, 2, 3, 4, 5]
    )
    reply = short(one_output(json.dumps(values), datatype, str(shape)))
    assert reply is not None
    expected = blob_of(values if datatype == "BYTES" else np.array(values, WIRE[datatype]))
    assert bytes(reply.blobs[0]) == expected
    assert reply.datatypes == [datatype]


@pytest.mark.parametrize(("shape", "data"), [
    ("[2,3]", "[[1,2,3],[4,5,6]]"), ("[1,3]", "[[1,2,3]]"), ("[1,1,2]", "[[[1,2]]]"), ("[2,1]", "[[1], [2]]"),
    ("[3,2,1]", "[[[1],[2]],[[3],[4]],[[5],[6]]]"),
])  # fmt: skip
def test_data_that_is_nested_in_full_takes_the_short_way(shape: str, data: str) -> None:
    for datatype in ("FP32", "INT64"):
        assert short(one_output(data, datatype, shape)) is not None


def test_many_lists_that_are_not_deep_take_the_short_way() -> None:
    rows = f"[{','.join(['[7]'] * (2 * MAX_SHORT_BRACKETS))}]"
    assert short(one_output(rows, "FP32", f"[{2 * MAX_SHORT_BRACKETS},1]")) is not None


def test_json_that_may_be_nested_too_deep_goes_the_long_way() -> None:
    deep = "[" * (MAX_SHORT_BRACKETS - 10) + "]" * (MAX_SHORT_BRACKETS - 10)
    assert short(one_output(deep, "FP32"), OutputSelection()) is not None
    deeper = f"{deep[:-1]},{deep[1:]}"
    assert short(one_output(deeper, "FP32"), OutputSelection()) is None
    assert short(one_output("[1]", "FP32").replace(b'"data"', f'"parameters":{{"a":{deeper}}},"data"'.encode())) is None


@pytest.mark.parametrize(("shape", "data"), [
    ("[2,2]", "[[1,2,3],[4]]"), ("[2,2]", "[[1,2],[3],4]"), ("[4]", "[[1,2],[3,4]]"), ("[2,2]", "[[],[1,2,3,4]]"),
    ("[1,1,4]", "[[1,2,3,4]]"), ("[]", "[[1]]"), ("[0]", "[]"), ("[0,2]", "[[]]"), ("[2]", "[1]"), ("[1]", "[1,2]"),
    ("[1099511627776,1099511627776]", "[[1]]"), ("[-1]", "[1]"), ("[1.0]", "[1]"), ("[1]", "1"), ("[1]", "null"),
    ("[1]", "[null]"), ("[1]", "[NaN]"), ("[1]", '["NaN"]'), ("[1]", "[1e39]"), ("[1]", "[-0]"), ("[1]", "[1.5,[]]"),
    ("[1]", "[1.0000000596046448]"), ("[1]", "[true]"),
    ("[1]", "[" * 600 + "1" + "]" * 600),
])  # fmt: skip
def test_what_needs_a_closer_look_goes_the_long_way(shape: str, data: str) -> None:
    assert short(one_output(data, "FP32", shape)) is None


@pytest.mark.parametrize(
    "answer",
    [
        TRITON.replace('"data"', '"d\\u0061ta"'),
        TRITON.replace('"data"', '"data":[1,2,3],"data"'),
        TRITON.replace('"data"', '"data":[1,2,3],"d\\u0061ta"'),
        TRITON.replace('"shape"', '"datatype":"INT8","shape"'),
        TRITON.replace('"outputs"', '"outputs":[{}],"outputs"'),
        TRITON.replace('"y"', '"\\u0079"'),
        TRITON.replace('"y"', '"\\ud800"'),
        TRITON.replace('"y"', "7"),
        TRITON.replace('"id"', '"own"'),
        TRITON.replace('"id":"7"', '"id":NaN'),
        TRITON.replace("FP32", "FP33"),
        TRITON.replace("[0.5", "[0.5x"),
        TRITON + "}",
        "\ufeff" + TRITON,
        TRITON[:-1],
        '{"error":"no"}',
        '{"outputs":null}',
        TRITON.replace('"7"', '"\udcff"').encode(errors="surrogateescape"),
        in_base64('["YQ="]'),
        in_base64('["Y Q=="]'),
        in_base64('["é"]'),
        one_output('["\\ud800"]', "BYTES"),
        one_output("[1]", "BYTES"),
        one_output("[300]", "UINT8"),
        one_output("[1.0]", "INT32"),
        one_output("[2]", "BOOL"),
    ],
)
def test_what_is_not_common_goes_the_long_way(answer: str | bytes) -> None:
    assert short(answer) is None


@pytest.mark.parametrize("datatype", ["FP16", "BF16", "FP32", "FP64"])
@pytest.mark.parametrize("n_elements", [1, 16, MAX_FEW, MAX_FEW + 1])
def test_floats_in_any_spelling_come_to_the_same_both_ways(datatype: str, n_elements: int) -> None:
    """Few and many are read in different ways. Among them are zeros, whole numbers, denormals, neighbours of ties."""
    dice = random.Random(n_elements)
    row = DATATYPES[datatype]
    half_step = float(row.tie) / 2**52
    n_short = 0
    for _ in range(100):
        texts = [repr(dice.uniform(-4, 4)) for _ in range(n_elements)]
        for index in dice.sample(range(n_elements), dice.choice([0, 1, n_elements])):
            value = dice.choice([0.0, row.smallest, row.smallest_normal, 0.1, 1.0, 1000.0])
            steps = dice.choice([0.5, 1.5, dice.randrange(9), dice.uniform(-4, 4)])
            number = Decimal(value * steps) + Decimal(half_step * value) * dice.randrange(-2, 3)
            number *= 1 + dice.choice([0, 0, 0, 1, -1]) * Decimal(10) ** -dice.choice([8, 16, 20, 25])
            texts[index] = dice.choice([repr(float(number)), f"{number:e}", str(round(number)), "-0.0", "-1", "7"])
        if dice.randrange(4) == 0:
            texts[-1] = dice.choice(["-0", "true", "null", "1e39", "65519", "65520", '"1"', "123456789012345678901234"])
        n_short += short(one_output(f"[{','.join(texts)}]", datatype, f"[{n_elements}]")) is not None
    assert n_short > 10


def test_escapes_in_strings_take_the_short_way() -> None:
    reply = short(one_output('["\\u00e9","\\"\\\\"]', "BYTES", "[2]"))
    assert reply is not None
    assert bytes(reply.blobs[0]) == blob_of(["é", '"\\'])


def test_selection_and_limits_hold() -> None:
    two = TRITON.replace("}]}", '},{"name":"z","datatype":"INT8","shape":[1],"data":[1]}]}')
    reply = short(two, OutputSelection(False, {"z": True}))
    assert reply is not None
    assert [bytes(blob) for blob in reply.blobs] == [b"\1"]
    assert short(two, OutputSelection(False, {"q": True})) is None
    assert short(two, limits=HeaderLimits(max_tensors=1)) is None
    assert short(two, limits=HeaderLimits(max_header_bytes=len(two) - 1)) is None


def test_renamed_model_has_the_name_of_the_path() -> None:
    reply = read_short_answer(TRITON.encode(), BINARY, b"", model="own", is_renamed=True, limits=LIMITS)
    assert reply is not None
    assert json.loads(reply.header[0])["model_name"] == "own"


@pytest.mark.parametrize("seed", range(4))
def test_damaged_answers_come_to_the_same_both_ways(seed: int) -> None:
    dice = random.Random(seed)
    n_short = 0
    selections = [BINARY, OutputSelection(), OutputSelection(False, {"y": True})]
    for _ in range(400):
        text = bytearray(dice.choice(ANSWERS).encode())
        for _ in range(dice.randrange(3)):
            damage(text, dice)
        n_short += short(bytes(text), dice.choice(selections), dice.choice([b"", b'"7"'])) is not None
    assert n_short > 50
