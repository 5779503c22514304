"""Random requests and answers, right ones and damaged ones."""

import json
import random
from typing import Any

import numpy as np

from gateway.codec.tensors.datatypes import DATATYPES, Kind
from tests.codec.make_pairs import WIRE, blob_of, nested

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
