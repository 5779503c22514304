"""Small JSON objects: split, judged, put together; literals that are no JSON."""

import json
import random
import tracemalloc

import pytest

from gateway.codec.json.members import (
    EXCERPT_CHARACTERS,
    HELD_PER_BYTE,
    OBJECTS,
    decoded,
    excerpt,
    object_text,
    parse_list,
    parse_object,
    protect_literals,
    restore_literals,
)
from gateway.errors import CodecError


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_brackets_without_end_around_data_are_refused_when_they_are_parsed(opening: bytes) -> None:
    closing = b"]" if opening == b"[" else b"}"
    with pytest.raises(CodecError, match="too deep"):
        parse_object(b'{"p":' + opening * 100_000 + b"1" + closing * 100_000 + b"}")


def test_objects_are_parsed_to_members_as_they_came_and_the_last_duplicate_wins() -> None:
    assert parse_object(b'{"a": 1.50 ,"b":[1, 2],"a":"x"}') == {"a": b'"x"', "b": b"[1, 2]"}


def test_values_of_arrays_are_the_texts_they_came_as() -> None:
    assert parse_list(b'[1.50 , [1, 2],"x"]') == [b"1.50", b"[1, 2]", b'"x"']
    for text in (b"{}", b"[1,]", b'["\xff"]'):
        with pytest.raises(CodecError):
            parse_list(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"[]", "object"),
        (b"{", "cut off"),
        (b'{"a":1,}', "malformed"),
        (b'{"a":"\xff"}', "not UTF-8"),
        (b'{"a":\xc3}', "not UTF-8"),
        (b"{} {}", "malformed"),
        (b'{"a":[NaN],"-Infinity":NaN} 1', r"\(byte 29\)"),
        (b'{"\\ud800":1}', r"a lone surrogate, \\ud800, in a string"),
        (b'{"a":"\\\\\\uDBFF \\udc00"}', r"a lone surrogate, \\uDBFF, in a string"),
        (b'{"a":"\\ud83d\\ude00', "cut off"),
        (b'{"a":"\\\\ud83d', "cut off"),
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
    protected = protect_literals(text)
    json.loads(protected, parse_constant=pytest.fail)
    assert restore_literals(protected) == text


def test_object_is_put_together_again_as_it_came() -> None:
    text = b'{"a":1.50,"\xc3\xa9\\"":[1, 2],"c":"x"}'
    assert object_text(parse_object(text)) == text


def test_wrong_value_is_shown_up_to_a_readable_length() -> None:
    assert excerpt("é".encode() * 500) == "é" * EXCERPT_CHARACTERS + "..."


def test_wrong_value_is_shown_without_stand_ins() -> None:
    for n_before in range(30):
        text = b"x" * n_before + b"NaN" * 40_000
        assert excerpt(protect_literals(text)) == text[:EXCERPT_CHARACTERS].decode() + "..."


LITERAL_PARTS = ["NaN", "Infinity", "-Infinity", '"NaN"', '"a\\"NaN"', "1", "[NaN,", "xNaN", "NaNx", "-NaN", "é", '"']


@pytest.mark.parametrize("seed", range(20))
def test_literals_are_restored_as_they_were(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(100):
        text = "".join(dice.choices([*LITERAL_PARTS, ",", " ", ":"], k=dice.randrange(40))).encode()
        assert restore_literals(protect_literals(text)) == text


@pytest.mark.parametrize("between", ["", "x", "-", "x" * 20_000, "x" * 100_000])
def test_literals_of_long_texts_are_restored_as_they_were(between: str) -> None:
    dice = random.Random(len(between))
    for _ in range(20):
        literals = dice.choices(["NaN", "Infinity", "-Infinity"], k=200_000 // (len(between) + 40))
        text = between.join(literals).encode() + b"x" * dice.randrange(50_000)
        assert restore_literals(protect_literals(text)) == text


@pytest.mark.parametrize("seed", range(20))
def test_json_with_literals_is_what_python_takes_for_it(seed: int) -> None:
    """Python's parser knows the same three words, and no others."""
    dice = random.Random(seed)
    accepted = 0
    for _ in range(300):
        text = "[" + "".join(dice.choices([*LITERAL_PARTS, ",", ",", ","], k=dice.randrange(6))) + "]"
        try:
            expected = len(json.loads(text))
        except ValueError:
            with pytest.raises(CodecError):
                parse_list(text.encode())
            continue
        accepted += 1
        values = parse_list(text.encode())
        assert len(values) == expected
        assert b",".join(values).decode() == text[1:-1]
    assert accepted > 20


def test_names_with_a_literal_in_them_stay() -> None:
    assert parse_object(b'{"aNaN":NaN,"Infinity":"-Infinity"}') == {"aNaN": b"NaN", "Infinity": b'"-Infinity"'}


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        b"[%b{}]" % (b"{}," * 40_000),
        b"[%b{}]" % (b'{"":10},' * 20_000),
        b"[{%b}]" % b",".join(b'"%b":NaN' % chr(code).encode() for code in range(0x10000, 0x16000)),
        b'[{"a":[%b1]}]' % (b"NaN," * 40_000),
    ],
    ids=["empty", "one_member", "names", "literals"],
)
def test_members_take_no_more_memory_than_is_reserved_for_them(text: bytes) -> None:
    tracemalloc.start()
    try:
        entries = decoded(OBJECTS, text)
        held_bytes, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert entries
    assert len(text) < held_bytes <= peak_bytes <= HELD_PER_BYTE * len(text)
