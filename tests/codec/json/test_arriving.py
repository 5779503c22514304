"""Documents that are read from their front while they arrive, by generators that ask for more."""

import json
from collections.abc import Iterable
from typing import Any

import pytest

from gateway.codec.json.arriving import MORE, RUN_BYTES, STEP, ArrivingText, Reading, read_items, read_members
from gateway.codec.json.members import MAX_NAME_BYTES, OBJECTS, Members, decoded, restore_members
from gateway.codec.json.sinks import TextSink
from gateway.errors import CodecError
from tests.codec.walk import cut

LONG = f'"{"x" * RUN_BYTES}"'


def parse_objects(text: bytes) -> list[Members]:
    return [restore_members(item) for item in decoded(OBJECTS, text)]


class Found:
    """What a reading found: short members and long ones, in their order."""

    def __init__(self) -> None:
        self.members: list[tuple[str, Any]] = []
        self.n_long = 0
        self.text = ArrivingText()

    def read(self, chunks: Iterable[bytes], reading: Reading[None]) -> "Found":
        """Drive *reading*, which reads from `text`, with *chunks*; what follows what it reads stays in `text`."""
        is_done = False
        for chunk in chunks:
            if self.text.add(chunk) and not is_done:
                is_done = self._drive(reading)
        self.text.end()
        if not is_done:
            assert self._drive(reading)
        return self

    def _drive(self, reading: Reading[None]) -> bool:
        for state in reading:
            assert state in (STEP, MORE)
            if state is MORE:
                return False
        return True

    def members_of_object(self, chunks: Iterable[bytes]) -> "Found":
        return self.read(chunks, read_members(self.text, self.read_run, self.read_long))

    def read_object(self) -> Reading[None]:
        yield from read_members(self.text, self.read_run, self.read_long)

    def read_run(self, members: Members) -> Reading[None]:
        self.members += [(name, json.loads(value)) for name, value in members.items()]
        yield STEP

    def read_long(self, name: str) -> Reading[None]:
        self.n_long += 1
        value: list[bytes] = []
        yield from self.text.pour(TextSink("value", value))
        self.members.append((name, json.loads(b"".join(value))))


DOCUMENTS = [
    ("{}", 0),
    ("{ \n}", 0),
    ('{"a":1}', 0),
    (' {"a" : [1, {"b": "]},{"}] , "c":null , "\\u0061":-0.5e3}'.strip(), 0),
    (f'{{"a":{LONG}}}', 1),
    (f'{{"a":1,"b":{LONG},"c":[{LONG}],"d":2}}', 2),
    (f'{{ "a" : 1 , "\\"b" : {LONG} , "c" : {{ }} }}', 1),
    (json.dumps({str(number): number for number in range(3000)}), 0),
    (f'{{"a":{"[" * 400}1{"]" * 400}}}', 1),  # deeper than what is parsed together
    (f'{{"{"k" * RUN_BYTES}":1}}', 1),
    (f'{{"a":[{"[]," * 900}1]}}', 0),
    (f'{{"a":[{"[]," * 900}1],"b":2}}', 0),
    (f'{{"a":[{"[[[]]]," * 900}1],"b":2}}', 0),
]  # fmt: skip


@pytest.mark.parametrize(("document", "n_long"), DOCUMENTS)
@pytest.mark.parametrize("chunk_bytes", [None, 1, 7, 3000])
def test_members_of_an_object_are_found_however_it_is_cut(document: str, n_long: int, chunk_bytes: int | None) -> None:
    found = Found().members_of_object(cut(document.encode(), chunk_bytes))
    assert dict(found.members) == json.loads(document)
    assert found.n_long == n_long
    assert found.text.consumed == len(document)


@pytest.mark.parametrize("document", ['{"a":1,"b":[1,],"c":2}', '{"a":1,"b":nul,"c":2}', '{"a":1,"b":"\\ud800"}'])
@pytest.mark.parametrize("chunk_bytes", [None, 1, 7])
def test_short_member_that_is_malformed_is_read_as_a_long_one(document: str, chunk_bytes: int | None) -> None:
    found = Found()
    with pytest.raises(CodecError, match="value: "):
        found.members_of_object(cut(document.encode(), chunk_bytes))
    assert found.members == [("a", 1)]
    assert found.n_long >= 1


WRONG = [
    "{",
    '{"a"',
    '{"a":',
    '{"a":1',
    '{"a":1,',
    '{"a":1,}',
    "{,}",
    '{,"a":1}',
    '{"a":1,,"b":2}',
    '{"a":1 "b":2}',
    '{"a" 1}',
    '{"a"}',
    '{"a":}',
    '{"a":1]',
    "{1:2}",
    "{a:1}",
    "{'a':1}",
    '{"\\x":1}',
    '{"\\ud800":1}',
    f'{{"a":{LONG}',
    f'{{"a":{LONG},',
    f'{{"a":{LONG},}}',
    f'{{"a":{LONG} "b":1}}',
    f'{{"a":{LONG}]',
    f'{{"a":{LONG},"b" {LONG}}}',
    f'{{"a":{LONG},b:{LONG}}}',
    f'{{"a" {LONG}}}',
    f'{{"\\ud800":{LONG}}}',
    f'{{"{"k" * MAX_NAME_BYTES}":1}}',
]


@pytest.mark.parametrize("document", WRONG)
@pytest.mark.parametrize("chunk_bytes", [None, 1, 3000])
def test_object_that_is_no_json_is_refused_however_it_is_cut(document: str, chunk_bytes: int | None) -> None:
    with pytest.raises(CodecError):
        Found().members_of_object(cut(document.encode(), chunk_bytes))


@pytest.mark.parametrize(
    ("document", "numbers"),
    [
        ("[]", []),
        ("[ \n ]", []),
        ('[{"n":1},{"n":2}]', [1, 2]),
        ('[ {"n":1} , { "n" : 2 } ] ', [1, 2]),
        (f'[{{"n":1}},{{"n":2,"x":{LONG}}},{{"n":3}}]', [1, 2, 3]),
        (f'[{{"x":{LONG},"n":1}} , {{"n":2,"x":{LONG}}}]', [1, 2]),
        (json.dumps([{"n": number} for number in range(5000)]), list(range(5000))),
        ('[{"n":NaN},{"n":"NaN"},{"n":-Infinity}]', ["NaN", '"NaN"', "-Infinity"]),
    ],
)
@pytest.mark.parametrize("chunk_bytes", [None, 1, 7, 3000])
def test_objects_of_an_array_are_found_however_it_is_cut(
    document: str, numbers: list[Any], chunk_bytes: int | None
) -> None:
    found = Found()
    values: list[bytes] = []

    def read_run(objects: list[Members]) -> Reading[None]:
        values.extend(each["n"] for each in objects)
        yield STEP

    def read_long() -> Reading[None]:
        yield from found.read_object()
        values.append(b"%d" % dict(found.members)["n"])

    found.read(cut(document.encode(), chunk_bytes), read_items(found.text, parse_objects, read_run, read_long))
    assert [value.decode() for value in values] == list(map(str, numbers))
    assert found.text.consumed == len(document.rstrip())


@pytest.mark.parametrize(
    "document", ["[1]", '[{"n":1},2]', '[{"n":1},]', "[,]", '[{"n":1}', '[{"n":1}}', f"[[{LONG}]]"]
)
def test_array_of_anything_but_objects_is_refused(document: str) -> None:
    def read_run(objects: list[Members]) -> Reading[None]:
        yield STEP

    for chunk_bytes in (None, 1):
        found = Found()
        with pytest.raises(CodecError):
            reading = read_items(found.text, parse_objects, read_run, found.read_object)
            found.read(cut(document.encode(), chunk_bytes), reading)


def test_blanks_are_dropped_while_they_come() -> None:
    text = ArrivingText()
    reading = text.first(1)
    text.add(b"[")
    for _ in range(100):
        text.add(b" \n\t\r" * 1000)
        while next(reading) is not MORE:
            pass
        assert len(text.buffer) == 1
    text.add(b" 1")
    with pytest.raises(StopIteration) as stop:
        while True:
            next(reading)
    assert stop.value.value == ord("1")
    assert text.consumed == 400_001


def test_text_that_comes_byte_by_byte_is_looked_at_again_only_when_half_as_much_again_is_there() -> None:
    text = ArrivingText()
    text.add(b'{"')
    reading = read_members(text, Found().read_run, Found().read_long)
    looks = sum(next(reading) is MORE for _ in range(10_000) if text.add(b"x"))
    assert looks < 40


def test_value_that_is_there_as_a_whole_is_read_to_its_end() -> None:
    for value in (b"1", b'"a"', b"[1, 2]", b"null"):
        text = ArrivingText.of_value(bytearray(value))
        pieces: list[bytes] = []
        assert MORE not in list(text.pour(TextSink("value", pieces)))
        assert b"".join(pieces) == value
        assert not text.buffer.strip()
