"""Small JSON objects: split, judged, put together; literals that are no JSON."""

import json
import random
import sys
import tracemalloc
from collections.abc import Callable

import pytest

from gateway.codec import run
from gateway.codec.json import members as members_module
from gateway.codec.json.members import (
    EXCERPT_CHARACTERS,
    HELD_PER_BYTE,
    WHOLE_BYTES,
    Members,
    excerpt,
    members_of,
    object_text,
    parse_list,
    parse_lists,
    parse_object,
    parse_objects,
    protect_literals,
    put_last,
    restore_literals,
    sliced_object,
    sliced_objects,
    sliced_protect,
)
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


def test_values_of_arrays_are_the_texts_they_came_as() -> None:
    assert parse_list(b'[1.50 , [1, 2],"x"]') == [b"1.50", b"[1, 2]", b'"x"']
    assert parse_lists(b'[[1.50 , "x"],[]]') == [[b"1.50", b'"x"'], []]
    for parse, text in (
        (parse_list, b"{}"),
        (parse_list, b"[1,]"),
        (parse_lists, b"[1]"),
        (parse_lists, b'[["\xff"]]'),
    ):
        with pytest.raises(CodecError):
            parse(text)


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
    text = b"[NaN,%b]" % b",".join(b"%d" % number for number in range(10**8, 10**8 + 20_000))
    protected, marker = protect_literals(text)
    assert protected.count(marker) == 1
    assert len(marker) == 9
    assert restore_literals(protected, marker) == text


def test_object_is_put_together_again_as_it_came() -> None:
    text = b'{"a":1.50,"\xc3\xa9\\"":[1, 2],"c":"x"}'
    assert object_text(parse_object(text)) == text


def test_wrong_value_is_shown_up_to_a_readable_length() -> None:
    with pytest.raises(CodecError, match="^parameters must be an object, got 1$"):
        members_of(b"1", "parameters")
    assert excerpt("é".encode() * 500) == "é" * EXCERPT_CHARACTERS + "..."


@pytest.fixture
def _tiny_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of a few bytes are long, so that every place is the end of a step."""
    tiny = {"WHOLE_BYTES": 0, "RUN_BYTES": 12, "STEP_TOKENS": 16, "PIECE_BYTES": 48}
    for name, module in list(sys.modules.items()):
        for constant, value in tiny.items():
            if name.startswith("gateway.codec.") and hasattr(module, constant):
                monkeypatch.setattr(module, constant, value)


KEYS = ["a", "b", "é", "data", "\\u0061", "\\n", "k" * 70, "NaN"]
SCALARS = ["1", "-2.5e3", "true", "null", '"x"', '""', '"\\ud83d\\ude00"', '"' + "l," * 40 + '"', '"é\\\\"']


def any_value(dice: random.Random, depth: int) -> str:
    kind = dice.randrange(6) if depth else 0
    if kind < 4:
        return dice.choice(SCALARS)
    values = [any_value(dice, depth - 1) for _ in range(dice.randrange(5))]
    return f"[{','.join(values)}]" if kind == 4 else any_object(dice, depth - 1)


def any_object(dice: random.Random, depth: int = 3) -> str:
    blank = dice.choice(["", "", " ", "\n  "])
    members = [f'"{dice.choice(KEYS)}"{blank}:{blank}{any_value(dice, depth)}' for _ in range(dice.randrange(6))]
    return "{" + f"{blank},{blank}".join(members) + "}"


DAMAGE = [b"", b'"', b",", b"[", b"]", b"{", b"}", b":", b"\\", b" ", b"\0", b"\xc3", b"1", b"-", b"NaN", b"\\ud800"]


def damaged(dice: random.Random, text: bytes) -> bytes:
    changed = bytearray(text)
    for _ in range(dice.choice([0, 1, 1, 2])):
        position = dice.randrange(len(changed) + 1)
        changed[position : position + dice.randrange(3)] = dice.choice(DAMAGE)
    return bytes(changed)


def result_of(parse: Callable[[], Members | list[Members]]) -> Members | list[Members] | None:
    try:
        return parse()
    except CodecError as error:
        assert str(error)
        return None


WANTED = ("a", "k" * 70)


def only_wanted(entries: Members | list[Members] | None) -> list[Members] | None:
    if not isinstance(entries, list):
        return None
    return [{key: value for key, value in entry.items() if key in WANTED} for entry in entries]


@pytest.mark.usefixtures("_tiny_steps")
@pytest.mark.parametrize("seed", range(20))
def test_slices_and_the_whole_come_to_the_same_end(seed: int) -> None:
    dice = random.Random(seed)
    accepted = refused = 0
    for _ in range(150):
        text = damaged(dice, any_object(dice).encode())
        whole = result_of(lambda text=text: parse_object(text))  # type: ignore[misc]
        assert result_of(lambda text=text: run(sliced_object(text))) == whole, text  # type: ignore[misc]
        texts = [any_object(dice, 2) for _ in range(dice.randrange(5))]
        text = damaged(dice, f"[{' , '.join(texts)}]".encode())
        whole = result_of(lambda text=text: parse_objects(text))  # type: ignore[misc]
        assert result_of(lambda text=text: run(sliced_objects(text, 100))) == whole, text  # type: ignore[misc]
        wanted = result_of(lambda text=text: run(sliced_objects(text, 100, WANTED)))  # type: ignore[misc]
        assert wanted == only_wanted(whole), text
        accepted += whole is not None
        refused += whole is None
    assert min(accepted, refused) > 20


def test_more_objects_than_allowed_are_refused_before_all_are_made() -> None:
    assert run(sliced_objects(b"[{},{}]", 2)) == [{}, {}]
    for n_objects in (3, 1_000_000):
        text = b"[%b{}]" % (b"{}," * (n_objects - 1))
        with pytest.raises(CodecError, match=r"more than 2 entries.*`limits.tensors`"):
            run(sliced_objects(text, 2))


def test_brackets_without_end_in_a_long_object_are_refused() -> None:
    for text in (b'{"a":%b' % (b"[" * 100_000), b'{"a":%b%b}' % (b"[" * 50_000, b"]" * 50_000), b'[{"a":' * 50_000):
        for parse in (sliced_object, lambda text: sliced_objects(text, 10)):
            with pytest.raises(CodecError):
                run(parse(text))


LONG = 1_000_000
LONG_OBJECTS = {
    "members": b"{%b}" % b",".join(b'"%d":1' % number for number in range(LONG // 10)),
    "one_array": b'{"a":[%b1],"b":2}' % (b"1," * (LONG // 2)),
    "one_array_of_brackets": b'{"a":[%b1]}' % (b"[]," * (LONG // 3)),
    "one_string": b'{"a":"%b"}' % (b"x\\n" * (LONG // 3)),
    "blanks": b'{"a":1,%b"b":[%b]}' % (b" " * (LONG // 2), b" " * (LONG // 2)),
}


@pytest.mark.parametrize("name", LONG_OBJECTS)
def test_long_object_is_parsed_in_many_steps_to_what_it_is_as_a_whole(name: str) -> None:
    text = LONG_OBJECTS[name]
    steps = sliced_object(text)
    n_steps = 0
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            assert stop.value == parse_object(text)
            break
        n_steps += 1
    assert n_steps >= len(text) // (128 * 1024)


def test_many_objects_are_parsed_in_many_steps() -> None:
    text = b"[%b{}]" % (b'{"a":1},' * 50_000)
    assert sum(1 for _ in sliced_objects(text, 100_000)) > len(text) // (16 * 1024)
    assert run(sliced_objects(text, 100_000)) == parse_objects(text)


LITERAL_PARTS = ["NaN", "Infinity", "-Infinity", '"NaN"', '"a\\"NaN"', "1", "[NaN,", "xNaN", "NaNx", "-NaN", "é", '"']


@pytest.mark.usefixtures("_tiny_steps")
@pytest.mark.parametrize("seed", range(20))
def test_literals_are_protected_the_same_wherever_a_step_ends(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(100):
        text = "".join(dice.choices([*LITERAL_PARTS, ",", " ", ":"], k=dice.randrange(40))).encode()
        in_steps = run(sliced_protect(text))
        with monkeypatch.context() as patch:
            patch.setattr(members_module, "PIECE_BYTES", 1 << 20)
            patch.setattr(members_module, "STEP_TOKENS", 1 << 20)
            assert run(sliced_protect(text)) == in_steps, text
        assert restore_literals(*in_steps) == text


def test_literals_in_a_long_text_are_protected_in_many_steps() -> None:
    text = b"[%b1]" % (b'NaN,"NaN",' * 100_000)
    assert sum(1 for _ in sliced_protect(text)) > len(text) // (64 * 1024)
    protected, marker = run(sliced_protect(text))
    assert protected.count(marker) == 100_000
    assert restore_literals(protected, marker) == text


def test_name_that_is_too_long_to_be_parsed_in_one_step_is_refused() -> None:
    with pytest.raises(CodecError, match='expected a member, got "xxx'):
        run(sliced_object(b'{"%b":1}' % (b"x" * LONG)))


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
        protected, _ = run(sliced_protect(text))
        entries = run(sliced_objects(protected, 100_000))
        held_bytes, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert entries
    assert len(text) < held_bytes <= peak_bytes <= HELD_PER_BYTE * len(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"[1]", "expected an object"),
        (b" ", "cut off"),
        (b'{"a":1}  x', "more follows"),
        (b'{"a":[%b1]' % (b"1," * 5000), "cut off"),
        (b'{"a":"%b' % (b"x" * 9000), "cut off"),
        (b'{"a":"%b"' % (b"x" * 9000), "cut off"),
        (b'{"a":"%b";' % (b"x" * 9000), "expected a comma"),
    ],
)
def test_long_object_that_is_none_is_refused(text: bytes, words: str) -> None:
    with pytest.raises(CodecError, match=words):
        run(sliced_object(text + b" " * WHOLE_BYTES))


@pytest.mark.parametrize("text", [b"{}", b"[1]", b"[%b]" % (b"1," * 5000 + b"1"), b'["%b"]' % (b"x" * 9000)])
def test_long_array_of_something_else_than_objects_is_refused(text: bytes) -> None:
    with pytest.raises(CodecError):
        run(sliced_objects(text + b" " * WHOLE_BYTES, 10_000))


def test_long_empty_containers_are_empty() -> None:
    assert run(sliced_object(b" {%b} " % (b" " * WHOLE_BYTES))) == {}
    assert run(sliced_objects(b" [%b] " % (b" " * WHOLE_BYTES), 0)) == []


def test_unfinished_string_behind_a_literal_is_left_as_it_is() -> None:
    text = b'[NaN,"%b\\' % (b"x" * 100_000)
    assert restore_literals(*run(sliced_protect(text))) == text


def test_members_are_put_last_in_the_order_that_is_asked_for() -> None:
    members = {"b": b"1", "x": b"2", "a": b"3"}
    put_last(members, ("a", "b", "c"))
    assert list(members.items()) == [("x", b"2"), ("a", b"3"), ("b", b"1")]
