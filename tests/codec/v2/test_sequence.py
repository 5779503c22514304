"""The sequence id of a request, found before the request is parsed."""

import json
import random
from typing import Any

import pytest

from gateway.codec.inference import HeaderLimits
from gateway.codec.json.members import HELD_PER_BYTE
from gateway.codec.v2.request_reading import find_sequence_id
from tests.steps import run

pytestmark = pytest.mark.rule("8.4")

INPUT = {"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}


def found(body: bytes, header_length: int | None = None) -> str | None:
    return run(find_sequence_id(memoryview(body), header_length))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5", "5"),
        ('"5"', "5"),
        (" \n-7 ", "-7"),
        (str(2**64 - 1), str(2**64 - 1)),
        ('"a \\"b\\" \\u00e9"', 'a "b" é'),
        ('"0"', "0"),
        ("0", None),
        ("-0", None),
        ('""', None),
        ("null", None),
        ("true", None),
        ("1.0", None),
        ("1e3", None),
        ("[5]", None),
        ("{}", None),
        ('"\\ud800"', None),
        ('"' + "a" * 2000 + '"', "a" * 2000),
    ],
)
def test_a_number_and_a_string_are_the_same_id_and_0_is_none(text: str, expected: str | None) -> None:
    before = f'{{"parameters":{{"priority":1,"sequence_id":{text}}},"inputs":[{json.dumps(INPUT)}]}}'.encode()
    behind = f'{{"inputs":[{json.dumps(INPUT)}],"parameters":{{"sequence_id":{text}}}}}'.encode()
    for body in (before, behind):
        assert found(body) == expected
        assert found(body, len(body)) == expected
        assert found(body + b'\x00"{}[', len(body)) == expected
        assert found(body + b'{"parameters":{"sequence_id":9}}') is None


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"sequence_id": 5},
        {"inputs": [{**INPUT, "parameters": {"sequence_id": 5}}]},
        {"parameters": {"other": {"sequence_id": 5}}},
        {"parameters": [{"sequence_id": 5}]},
        {"parameters": "sequence_id", "x": {"sequence_id": 5}},
        {"outputs": {"parameters": {"sequence_id": 5}}},
        {"id": '"parameters":{"sequence_id":5}'},
    ],
)
def test_only_the_requests_own_parameters_count(document: Any) -> None:
    assert found(json.dumps(document).encode()) is None


def test_escapes_in_the_key_are_read() -> None:
    assert found(b'{"inputs":[],"parameters":{"sequence\\u005fid":5}}') == "5"


@pytest.mark.parametrize("cut", range(0, 60, 3))
def test_what_is_no_json_has_no_id_and_is_not_judged(cut: int) -> None:
    text = json.dumps({"inputs": [INPUT], "parameters": {"sequence_id": 5}}).encode()[: cut + 1]
    assert found(text) is None
    assert found(b"\xff" + text[1:]) is None
    assert found(text[::-1]) is None


@pytest.mark.parametrize("data", [[1], [1] * 100_000])
def test_memory_that_reading_takes_is_reserved(data: list[int]) -> None:
    members = {str(number): number for number in range(5000)}
    body = json.dumps({"inputs": [{**INPUT, "data": data}], "parameters": {"sequence_id": 5, **members}}).encode()
    reserved: list[int] = []
    assert run(find_sequence_id(memoryview(body), None, HeaderLimits(), reserved.append)) == "5"
    assert sum(reserved) > len(json.dumps(members)) * HELD_PER_BYTE


def test_raw_requests_have_none() -> None:
    assert found(b'{"parameters":{"sequence_id":5}}', 0) is None


def test_parameters_behind_much_data_are_found_in_short_steps() -> None:
    body = json.dumps({"inputs": [{**INPUT, "data": [0.5] * 200_000}], "parameters": {"sequence_id": 5}}).encode()
    n_steps = sum(1 for _ in find_sequence_id(memoryview(body), None))
    assert n_steps > len(body) // (64 * 1024)
    assert found(body) == "5"


@pytest.mark.parametrize("seed", range(10))
def test_what_is_found_is_what_a_parser_finds(seed: int) -> None:
    rng = random.Random(seed)
    words = ["parameters", "sequence_id", "x", "inputs", '"sequence_id":3']

    def value(depth: int) -> Any:
        if depth == 4 or rng.random() < 0.2:
            return rng.choice([5, "7", 0, "sequence_id", [[1], [2, "parameters"]], None])
        items = [value(depth + 1) for _ in range(rng.randrange(5))]
        return items if rng.random() < 0.2 else dict(zip(rng.sample(words, len(items)), items, strict=True))

    for _ in range(20):
        document = {"x": value(1), "parameters": value(1), "inputs": [INPUT]}
        parameters = document["parameters"]
        wanted = parameters.get("sequence_id") if isinstance(parameters, dict) else None
        wanted = str(wanted) if isinstance(wanted, (str, int)) and wanted != 0 else None
        assert found(json.dumps(document, indent=rng.choice([None, 30])).encode()) == wanted
