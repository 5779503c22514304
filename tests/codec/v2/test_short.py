"""Random requests and answers, right ones and damaged ones, come to the same bytes by the short and the long way.

`parse_request` and `read_answer` go both ways and compare; here is what they are given, and that most of what is right
and in a common form takes the short way.
"""

import json
import random
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from gateway.codec import DATATYPES, BytesPolicy, OutputSelection, TensorPolicy, read_short_answer, read_short_request
from gateway.codec.tensors.datatypes import Kind
from gateway.errors import CodecError
from tests.codec.make_pairs import WIRE, blob_of, nested
from tests.codec.v2.test_short_request import damage
from tests.codec.walk import LIMITS, parse_request, read_answer

ROUNDS = 150
FLOAT_TEXTS = [
    "0", "-0", "-0.0", "1", "1e-45", "-1e-46", "5e-324", "1e-38", "1.1754943508222874e-38", "16777217", "16777219.0",
    "0.10000000149011612", "1.0000000596046448", "7.038531e-26", "3.4028235e38", "3.4028236e38", "65504", "65519.9",
    "65520", "2.98e-08", "6e-08", "1e39", "1e400", "null", "NaN", "-Infinity", '"NaN"', "9007199254740993",
    "123456789012345678901234567890",
]  # fmt: skip
ODD_STRINGS = ["", "a", "é", "\U0001f600", '"', "\\", "\n", "\x7f", '"data"', "[", "{", "NaN", "x" * 200]


def numbers_of(datatype: str, count: int, dice: random.Random) -> Any:
    """*count* numbers of any bits; floats mostly finite."""
    wire = WIRE[datatype]
    values = np.frombuffer(dice.randbytes(count * wire.itemsize), wire).copy()
    if DATATYPES[datatype].kind is Kind.FLOAT and dice.random() < 0.9:
        with np.errstate(invalid="ignore"):
            values[~np.isfinite(values)] = dice.choice([0.0, -0.0, 1.5])
    return values


def shuffled(members: dict[str, Any], dice: random.Random) -> dict[str, Any]:
    if dice.random() < 0.5:
        return members
    keys = list(members)
    dice.shuffle(keys)
    return {key: members[key] for key in keys}


def separators(dice: random.Random) -> tuple[str, str]:
    return dice.choice([(",", ":"), (",", ":"), (", ", ": "), (" ,\n", " : ")])


def random_request(dice: random.Random, json_share: float = 0.2) -> tuple[bytes, int]:
    """A request in a common form, but for NaN now and then, and the length of its header.

    *json_share* of its inputs are JSON.
    """
    inputs, blobs = [], []
    for index in range(dice.randint(1, 3)):
        datatype = dice.choice(list(DATATYPES))
        shape = [dice.choice([0, *range(1, 6), *range(1, 6)]) for _ in range(dice.randint(0, 3))]
        count = int(np.prod(shape, dtype=int))
        members: dict[str, Any] = {"name": f"é:{index}", "shape": shape, "datatype": datatype}
        if dice.random() < json_share:
            members["data"] = nested([dice.choice([1, -0.0, 1e300, True, "é", "", None]) for _ in range(count)], shape)
            inputs.append(shuffled(members, dice))
            continue
        strings = [dice.choice(ODD_STRINGS) for _ in range(count)]
        blob = blob_of(strings if datatype == "BYTES" else numbers_of(datatype, count, dice))
        members["parameters"] = {"binary_data_size": len(blob)}
        inputs.append(shuffled(members, dice))
        blobs.append(blob)
    top: dict[str, Any] = {"inputs": inputs}
    if dice.random() < 0.5:
        top["id"] = dice.choice(["", "a", 7, None])
    if dice.random() < 0.5:
        flag: dict[str, Any] = dice.choice(
            [{"parameters": {"binary_data": True}}, {"parameters": {"binary_data": False}}, {}]
        )
        top["outputs"] = [shuffled({"name": name, **flag}, dice) for name in ("y", "z")]
    if dice.random() < 0.5:
        more: list[Any] = [{}, {"binary_data_output": True}, {"sequence_id": 5, "binary_data_output": False, "o": [{}]}]
        top["parameters"] = dice.choice(more)
    is_ascii = dice.random() < 0.1
    header = json.dumps(shuffled(top, dice), separators=separators(dice), ensure_ascii=is_ascii).encode()
    return header + b"".join(blobs), len(header)


class Text(str):
    """A number as the text that says it."""


def dumped(value: Any, dice: random.Random, between: tuple[str, str]) -> str:
    """*value* as JSON, its members in random order."""
    comma, colon = between
    if isinstance(value, dict):
        items = shuffled(value, dice).items()
        return "{" + comma.join(f'"{key}"{colon}{dumped(item, dice, between)}' for key, item in items) + "}"
    if isinstance(value, list):
        return "[" + comma.join(dumped(item, dice, between) for item in value) + "]"
    return value if isinstance(value, Text) else json.dumps(value, ensure_ascii=dice.random() < 0.5)


def random_answer(dice: random.Random) -> bytes:
    """An answer in a common form, but now and then for what stands in its data."""
    outputs = []
    for name in dice.choice([["y"], ["y", "z"], ["z", "y"]]):
        datatype = dice.choice(list(DATATYPES))
        shape = [dice.randint(1, 4) for _ in range(dice.randint(1, 3))]
        count = int(np.prod(shape))
        data: list[Any]
        if datatype == "BYTES":
            data = [dice.choice(ODD_STRINGS) for _ in range(count)]
        elif datatype == "BOOL":
            data = [dice.random() < 0.5 for _ in range(count)]
        elif DATATYPES[datatype].kind is Kind.FLOAT:
            data = [Text(repr(float(value))) for value in numbers_of(datatype, count, dice)]
            data = [Text(value.replace("nan", "NaN").replace("inf", "Infinity")) for value in data]
            if dice.random() < 0.3:
                data[dice.randrange(count)] = Text(dice.choice(FLOAT_TEXTS))
        else:
            data = [Text(int(value)) for value in numbers_of(datatype, count, dice)]
            if dice.random() < 0.1:
                data[dice.randrange(count)] = Text(dice.choice(["256", "-1", "1.0", "1e2", "18446744073709551616"]))
        output: dict[str, Any] = {"name": name, "shape": shape, "datatype": datatype}
        output["data"] = nested(data, shape) if dice.random() < 0.5 else data
        if dice.random() < 0.5:
            kinds: list[Any] = [
                None,
                {},
                {"content_type": "np"},
                {"content_type": "base64"},
                {"binary_data_size": 4, "a": [1]},
            ]
            output["parameters"] = dice.choice(kinds)
        outputs.append(output)
    top: dict[str, Any] = {"outputs": outputs}
    others: dict[str, list[Any]] = {
        "model_name": ["m", None, "own"],
        "model_version": ["1", None],
        "id": ["own", "", None],
        "parameters": [None, {}, {"a": 1}],
    }
    for key, values in others.items():
        if dice.random() < 0.5:
            top[key] = dice.choice(values)
    return dumped(top, dice, separators(dice)).encode()


@pytest.mark.parametrize("seed", range(8))
def test_requests_come_to_the_same_both_ways(seed: int) -> None:
    dice = random.Random(seed)
    n_short = 0
    for _ in range(ROUNDS):
        body, header_length = random_request(dice)
        left_out = frozenset(member for member in ("id", "outputs", "parameters") if dice.random() < 0.2)
        policy = TensorPolicy(bytes=dice.choice(list(BytesPolicy)), leave_out=left_out)
        own_id = dice.choice([b"", b'"gateway-7"'])
        n_short += read_short_request(body, header_length, policy, LIMITS, own_id) is not None
        with suppress(CodecError):
            parse_request(body, header_length, policy, own_id=own_id)
    assert n_short > ROUNDS / 2


@pytest.mark.parametrize("seed", range(8))
def test_requests_without_octets_come_to_the_same_both_ways(seed: int) -> None:
    dice = random.Random(seed)
    n_short = n_long = 0
    for _ in range(ROUNDS):
        body, _ = random_request(dice, json_share=1)
        if dice.random() < 0.2:
            changed = bytearray(body)
            damage(changed, dice)
            body = bytes(changed)
        is_short = read_short_request(body, None, TensorPolicy(), LIMITS) is not None
        n_short += is_short
        with suppress(CodecError):
            n_long += parse_request(body, None) is not None and not is_short
        with suppress(CodecError):
            parse_request(body, None, own_id=b'"gateway-7"')
    assert n_short > ROUNDS / 4
    assert n_long > 0


@pytest.mark.parametrize("seed", range(8))
def test_answers_come_to_the_same_both_ways(seed: int) -> None:
    dice = random.Random(seed)
    n_short = 0
    selections = [OutputSelection(), OutputSelection(True), OutputSelection(False, {"y": True})]
    for _ in range(ROUNDS):
        text, selection, request_id = random_answer(dice), dice.choice(selections), dice.choice([b"", b'"7"'])
        short = read_short_answer(text, selection, request_id, model="m", is_renamed=False, limits=LIMITS)
        n_short += short is not None
        for sent_id in (b"", request_id, b'"own"'):
            with suppress(CodecError):
                read_answer([text], selection, request_id=request_id, sent_id=sent_id)
    assert n_short > ROUNDS / 2


@pytest.mark.parametrize("seed", range(8))
def test_damaged_requests_and_answers_come_to_the_same_both_ways(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(ROUNDS):
        body, header_length = random_request(dice)
        header, text = bytearray(body[:header_length]), bytearray(random_answer(dice))
        for _ in range(dice.randint(1, 3)):
            damage(header, dice)
            damage(text, dice)
        with suppress(CodecError):
            parse_request(bytes(header) + body[header_length:], len(header))
        with suppress(CodecError):
            read_answer([bytes(text)], dice.choice([OutputSelection(), OutputSelection(True)]))
