"""Small JSON objects: split, judged, put together; literals that are no JSON."""

import json

import pytest

from gateway.codec.json.members import parse_object, parse_objects, protect_literals, restore_literals
from gateway.errors import CodecError
from tests.codec.walk import Walked


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_brackets_without_end_around_data_are_refused_when_they_are_parsed(opening: bytes) -> None:
    closing = b"]" if opening == b"[" else b"}"
    walked = Walked(b'{"p":' + opening * 100_000 + b"1" + closing * 100_000 + b"}")
    with pytest.raises(CodecError, match="too deep"):
        parse_object(walked.scanner.skeleton)


def test_objects_are_parsed_to_members_as_they_came_and_the_last_duplicate_wins() -> None:
    assert parse_object(b'{"a": 1.50 ,"b":[1, 2],"a":"x"}') == {"a": b'"x"', "b": b"[1, 2]"}
    assert parse_objects(b'[{"a":1},{}]') == [{"a": b"1"}, {}]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"[]", "object"),
        (b"{", "cut off"),
        (b'{"a":1,}', "malformed"),
        (b'{"a":"\xff"}', "not UTF-8"),
        (b'{"a":\xc3}', "not UTF-8"),
        (b"{} {}", "malformed"),
        (b'{"\\ud800":1}', "malformed|cut off"),
        (b"", "cut off"),
        (b'{"a":' + b"[" * 100_000, "deep"),
    ],
)
def test_object_that_is_none_is_refused(text: bytes, words: str) -> None:
    with pytest.raises(CodecError, match=words):
        parse_object(text)


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":NaN,"b":[Infinity, -Infinity],"c":"NaN"}',
        b'{"a":"NaN","NaN":1}',
        b'{"~0~NaN":NaN,"~1~":Infinity}',
        b"{}",
        b'{"a":"\\"NaN","b":NaN}',
    ],
)
def test_literals_are_protected_and_come_back(text: bytes) -> None:
    protected, marker = protect_literals(text)
    json.loads(protected, parse_constant=pytest.fail)
    assert restore_literals(protected, marker) == text


def test_literals_are_protected_with_one_look_whatever_numbers_are_written() -> None:
    """Whoever could foresee the number that takes a literal's place could write it, and the next, and the next."""
    text = b"[NaN,%b]" % b",".join(b"%d" % number for number in range(10**9, 10**9 + 20_000))
    protected, marker = protect_literals(text)
    assert protected.count(marker) == 1
    assert len(marker) == 20
    assert restore_literals(protected, marker) == text
