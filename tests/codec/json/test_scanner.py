"""Reading JSON that arrives in pieces: where strings and brackets are, and that nothing is held."""

import json
import re
from collections.abc import Callable, Iterator

import pytest

from gateway.codec import InferAnswer, OutputSelection
from gateway.codec.json import scanner as scanner_module
from gateway.codec.json.scanner import (
    PIECE_BYTES,
    SKELETON_BYTES,
    Scanner,
    Sink,
    SkipSink,
    TextSink,
    check_cut,
    parse_object,
    parse_objects,
    protect_literals,
    restore_literals,
)
from gateway.errors import CodecError
from tests.codec.walk import MAX_BYTES, cut, one_output, read_answer


class Walked:
    """A document walked by a `Scanner`, with the text of each value that went to a sink."""

    def __init__(self, text: bytes, chunk_bytes: int | None = None, *, check: bool = True) -> None:
        self.values: list[list[bytes]] = []
        self.entries: list[bytes] = []
        self.text = text
        self.check = check
        self.scanner = Scanner("outputs", lambda entry: self._open(entry, check))
        for chunk in cut(text, chunk_bytes):
            exhaust(self.scanner.feed(chunk))
        exhaust(self.scanner.finish())

    def _open(self, entry: Callable[[], bytes], check: bool) -> Sink:
        self.entries.append(entry())
        self.values.append([])
        return TextSink("value", self.values[-1]) if check else SkipSink("value")

    @property
    def texts(self) -> list[bytes]:
        spans = [self.text[start:end] for start, end in self.scanner.spans]
        if self.check:
            assert [span.lstrip(b" \t\r\n") for span in spans] == [b"".join(pieces) for pieces in self.values]
        return spans


def exhaust(steps: Iterator[None]) -> None:
    for _ in steps:
        pass


@pytest.mark.parametrize("chunk_bytes", [None, 1, 7])
@pytest.mark.parametrize(
    "data",
    [
        b"[1,2]",
        b"[ ]",
        b"[[1],[2,[3]]]",
        b'["a","]","\\"]","\\\\"]',
        b'{"data":{"data":[1]}}',
        b"12",
        b"-1.5e3",
        b"null",
        b"true",
        b'"text, ]}"',
        b"[NaN,-Infinity]",
    ],
)
def test_data_goes_to_its_sink_and_a_number_stands_in_its_place(data: bytes, chunk_bytes: int | None) -> None:
    text = b' {"a":{"data":[0]},"outputs":[{"name":"x","data":%b , "p":{"data":[7]}},{"data" : %b}],"z":1}' % (
        data,
        data,
    )
    walked = Walked(text, chunk_bytes)
    assert [value.strip() for value in walked.texts] == [data, data]
    assert walked.scanner.skeleton.replace(b" ", b"") == (
        b'{"a":{"data":[0]},"outputs":[{"name":"x","data":0,"p":{"data":[7]}},{"data":1}],"z":1}'
    )
    assert [text[start:end].strip() for start, end in walked.scanner.spans] == [data, data]
    assert walked.entries == [b'{"name":"x"}', b"{}"]
    assert walked.scanner.consumed == len(text)


@pytest.mark.parametrize("chunk_bytes", [None, 1])
@pytest.mark.parametrize(
    ("text", "n_values"),
    [
        (b'{"outputs":[{"d\\u0061ta":[1]}]}', 1),
        (b'{"\\u006futputs":[{"data":[1]}]}', 1),
        (b'{"outputs":[{"name":"data","x":"outputs","data":[1]}]}', 1),
        (b'{"outputs":[{"data":[1],"data":[2]}]}', 2),
        (b'{"outputs":[{"data":[1]}],"outputs":[{"data":[2]}]}', 2),
        (b'{"outputs":[{"dat\\\\u0061":[1]}]}', 0),
        (b'{"outputs":{"x":{"data":[1]}}}', 0),
        (b'{"outputs":[[{"data":[1]}]]}', 0),
        (b'{"x":"outputs","y":[{"data":[1]}]}', 0),
        (b'{"x":{"outputs":[{"data":[1]}]}}', 0),
        (b'{"inputs":[{"data":[1]}]}', 0),
        (b'{"outputs":[],"other":[{"data":[1]}]}', 0),
        (b'{"outputs":["data",{"x":"data"}]}', 0),
    ],
)
def test_only_data_keys_of_entries_of_the_section_are_values(
    text: bytes, n_values: int, chunk_bytes: int | None
) -> None:
    assert len(Walked(text, chunk_bytes).texts) == n_values


@pytest.mark.parametrize("text", [b"[1]", b"1", b'"x"', b"x{}", b"}", b"  ]", b"\xef\xbb\xbf{}", b"null"])
def test_document_that_is_no_object_is_refused(text: bytes) -> None:
    with pytest.raises(CodecError, match="expected a JSON object"):
        Walked(text)


@pytest.mark.parametrize(
    "text", [b"", b" ", b"{", b'{"a', b'{"a"', b'{"outputs":[', b'{"outputs":[{"data":[1,', b'{"outputs":[{"data":"x']
)
def test_document_that_ends_too_early_is_cut_off(text: bytes) -> None:
    with pytest.raises(CodecError, match="cut off"):
        Walked(text)


def test_what_follows_the_document_is_left_alone() -> None:
    walked = Walked(b'{"outputs":[]}{{{"')
    assert walked.scanner.consumed == 14
    assert walked.scanner.trailing_bytes() == 4


@pytest.mark.parametrize(
    "data",
    [
        b"[1,]",
        b"[,1]",
        b"[1,,2]",
        b"[[1,],[2]]",
        b"[1 2]",
        b"[1}",
        b'{"a":1]',
        b"[tru]",
        b"[01]",
        b'["a":1]',
        b"{1:2}",
        b'{"a"}',
        b'["\\x"]',
        b'["\x01"]',
        b'["\xff"]',
        b"[nan]",
        b"{]}",
    ],
)
def test_checked_value_that_is_no_json_is_refused(data: bytes) -> None:
    for chunk_bytes in (None, 1):
        with pytest.raises(CodecError):
            Walked(b'{"outputs":[{"data":%b}]}' % data, chunk_bytes)


FILLER = b"1," * (PIECE_BYTES // 2 - 4)


@pytest.mark.parametrize(
    "broken", [b"1,]", b"],1]", b",1]", b"}]", b"1,,1]", b"[1,],1]", b"[,1],1]", b"1]]", b'"a":1]']
)
def test_checked_value_is_refused_also_where_a_piece_is_cut(broken: bytes) -> None:
    for blanks in range(11):  # the piece ends at each byte of what is broken
        with pytest.raises(CodecError):
            parse_object_of(Walked(b'{"outputs":[{"data":[' + FILLER + b" " * blanks + broken + b"}]}"))


def parse_object_of(walked: Walked) -> None:
    parse_object(walked.scanner.skeleton)


@pytest.mark.parametrize("shift", range(0, 44, 3))
def test_checked_value_of_nested_objects_is_cut_anywhere_and_stays_whole(shift: int) -> None:
    data = b"[" + b" " * shift + b'{"k":[{"a":"x","b":[1,{}]}],"e":{}},' * 6000 + b"1]"
    assert Walked(b'{"outputs":[{"data":%b}]}' % data).texts == [data]


BRACKETS_IN_STRINGS = (
    "commas behind brackets inside a string that goes on behind the window are taken for the array's own"
)


def test_long_string_full_of_brackets_and_commas_stays_whole() -> None:
    data = b'["' + b"x],y[," * (PIECE_BYTES // 4) + b'"]'
    assert Walked(b'{"outputs":[{"data":%b}]}' % data).texts == [data]


def test_short_strings_full_of_brackets_and_commas_stay_whole_wherever_a_piece_ends() -> None:
    strings = b",".join([b'"{[1,2],[3],4}"'] * (PIECE_BYTES // 8))
    for shift in range(16):
        data = b"[" + b" " * shift + strings + b"]"
        assert Walked(b'{"outputs":[{"data":%b}]}' % data, 65536).texts == [data], shift


@pytest.mark.parametrize("n_bytes", [PIECE_BYTES - 30, PIECE_BYTES, 3 * PIECE_BYTES, 4 * 1024 * 1024])
@pytest.mark.parametrize("chunk_bytes", [None, 65536])
def test_long_strings_stay_whole(n_bytes: int, chunk_bytes: int | None) -> None:
    for unit in (b"x", b"\\n", b"\\\\"):
        data = b'["a", "%b"]' % (unit * (n_bytes // len(unit)))
        assert Walked(b'{"outputs":[{"data":%b}]}' % data, chunk_bytes).texts == [data]


def test_long_string_full_of_quotes_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a string that is not whole yet there is nothing to look for: 8 Ki quotes in it make no more tokens."""
    n_tokens = 0
    walk = scanner_module._walk

    def counting_walk(opened: bytearray, tokens: list[re.Match[bytes]]) -> int:
        nonlocal n_tokens
        n_tokens += len(tokens)
        return walk(opened, tokens)

    monkeypatch.setattr(scanner_module, "_walk", counting_walk)
    data = b'["' + b'\\"' * 8192 + b'"]'
    assert Walked(b'{"outputs":[{"data":%b}]}' % data, 4096).texts == [data]
    assert n_tokens < 100


def test_key_or_string_around_data_may_be_cut_anywhere() -> None:
    text = b'{"id":"a\\"]}","outputs" : [ { "n\\\\" : "\\u00e9", "data" \t : [1] } ] , "x":"{\\\\"}'
    whole = Walked(text)
    for position in range(len(text)):
        scanner = Scanner("outputs", lambda entry: TextSink("value", None))
        for chunk in (text[:position], text[position:]):
            exhaust(scanner.feed(chunk))
        exhaust(scanner.finish())
        assert scanner.skeleton == whole.scanner.skeleton


def test_skeleton_beyond_its_limit_is_refused() -> None:
    with pytest.raises(CodecError, match=f"longer than {SKELETON_BYTES} bytes"):
        Walked(b'{"x":[' + b"1," * (SKELETON_BYTES // 2 + 1), 65536)


def test_long_string_in_the_skeleton_is_read_whole_up_to_the_limit() -> None:
    text = b'{"id":"%b","outputs":[]}' % (b"x" * 1_000_000)
    assert Walked(text, 1000).scanner.skeleton == text


def test_endless_string_in_the_skeleton_is_refused_at_the_limit() -> None:
    scanner = Scanner("outputs", lambda entry: TextSink("value", None))
    exhaust(scanner.feed(b'{"id":"'))
    with pytest.raises(CodecError):
        for _ in range(2 * SKELETON_BYTES // PIECE_BYTES + 2):
            exhaust(scanner.feed(b"x" * PIECE_BYTES))


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_brackets_without_end_around_data_are_refused_when_they_are_parsed(opening: bytes) -> None:
    closing = b"]" if opening == b"[" else b"}"
    walked = Walked(b'{"p":' + opening * 100_000 + b"1" + closing * 100_000 + b"}")
    with pytest.raises(CodecError, match="too deep"):
        parse_object(walked.scanner.skeleton)


def test_brackets_without_end_in_data_are_refused() -> None:
    for text in (b"[" * 100_000, b"[" * 20_000 + b"]" * 20_000, b'[{"a":' * 50_000):
        with pytest.raises(CodecError):
            Walked(b'{"outputs":[{"data":' + text + b"}]}", 65536)


def test_brackets_without_a_comma_are_looked_at_a_piece_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one step they would be millions of matches."""
    longest = 0
    walk = scanner_module._walk

    def measuring_walk(opened: bytearray, tokens: list[re.Match[bytes]]) -> int:
        nonlocal longest
        longest = max(longest, len(tokens))
        return walk(opened, tokens)

    monkeypatch.setattr(scanner_module, "_walk", measuring_walk)
    with pytest.raises(CodecError):
        Walked(b'{"outputs":[{"data":' + b"[" * (4 * PIECE_BYTES) + b"}]}", check=False)
    assert longest <= PIECE_BYTES


def test_duplicate_data_keys_cost_no_more_than_their_length() -> None:
    """Each of n `data` keys of one entry has n / 2 keys before it, so that without a limit n squared is copied."""
    with pytest.raises(CodecError, match="more than 16 times"):
        Walked(b'{"outputs":[{' + b'"data":0,' * 2000 + b'"data":0}]}')
    assert len(Walked(b'{"outputs":[{' + b'"data":0,' * 15 + b'"data":0}]}').texts) == 16


@pytest.mark.parametrize(
    ("data", "datatype"),
    [
        ("[" + "0.10000000149011612," * 200_000 + "1]", "FP32"),
        ("[" + "[[1.5],[-0]]," * 200_000 + "[[1],[2]]]", "FP64"),
        ("[" + "null," * 200_000 + "1]", "FP16"),
        ("[" + '"NaN",' * 200_000 + "1]", "BF16"),
        ("[" + "true,\n      " * 200_000 + "1]", "BOOL"),
        ("[" + '"element",' * 200_000 + '"x"]', "BYTES"),
        ('["' + "\\u00e9" * 1_000_000 + '"]', "BYTES"),
        ('["' + "x" * 10 * 1024 * 1024 + '"]', "BYTES"),
    ],
    ids=["flat", "nested", "nulls", "quoted", "pretty", "strings", "escapes", "one_string"],
)
def test_text_of_a_binary_output_is_gone_as_soon_as_it_is_read(data: str, datatype: str) -> None:
    n_elements = data.count('"') // 2 if datatype == "BYTES" else data.count(",") + 1
    shape = "[200001,2,1]" if "[[" in data else f"[{n_elements}]"
    answer = InferAnswer(OutputSelection(binary_by_default=True), model="m", request_id=b"", max_bytes=MAX_BYTES)
    steps = 0
    for chunk in cut(one_output(data, datatype, shape), 65536):
        for _ in answer.feed(chunk):
            steps += 1
        assert len(answer._scanner._buffer) <= PIECE_BYTES
        assert len(answer._scanner._skeleton) < 1000
        assert not any(value.text for value in answer._values.opened)
    exhaust(answer.finish())
    assert steps >= len(data) // (2 * PIECE_BYTES)


def test_output_that_stays_json_is_kept_in_pieces_of_its_own_text() -> None:
    data = json.dumps([[1.5, 2]] * 100_000)
    reply = read_answer(cut(one_output(data, "FP32", "[100000,2]"), 65536), OutputSelection())
    assert data.encode() in b"".join(reply.header)
    assert max(map(len, reply.header)) <= 2 * PIECE_BYTES


@pytest.mark.parametrize(
    ("piece", "continues", "goes_on"),
    [
        (b"", True, False),
        (b" ", False, True),
        (b"]", True, False),
        (b"}", True, False),
        (b"[", False, True),
        (b"{ ", False, True),
    ],
)
def test_comma_without_a_value_beside_it_is_refused_at_a_cut(piece: bytes, continues: bool, goes_on: bool) -> None:
    check_cut(b"1", 0, 1, continues=continues, goes_on=goes_on)
    with pytest.raises(CodecError, match="comma without a value"):
        check_cut(piece, 0, len(piece), continues=continues, goes_on=goes_on)


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


@pytest.mark.parametrize("text", [b'{"\xff\\u0075":[{"x":1}]}', b'{"outputs":[{"d\xff\\u0061ta":[1]}]}'])
def test_key_with_an_escape_that_is_not_utf8_is_refused(text: bytes) -> None:
    with pytest.raises(CodecError, match="not UTF-8"):
        read_answer([text])


LONG_BYTES = 2 * PIECE_BYTES + 100


@pytest.mark.parametrize(
    "data",
    [
        b'"%b"',
        b'["%b"]',
        b'["a", "%b","b"]',
        b'[["%b"] , "c"]',
        b'{"k":"%b"}',
        b'{"%b":1}',
        b'{"k" : [{"%b" : {"l":"%b"}, "m":"%b" }] ,"n":[1,"%b", 2]}',
    ],
)
@pytest.mark.parametrize("unit", [b"x", b"\\n", b"\\u00e9", b'\\\\\\"', "é".encode(), "\U0001f600".encode(), b"]},"])
@pytest.mark.parametrize("shift", range(6))
def test_strings_longer_than_a_piece_are_kept_as_they_came(data: bytes, unit: bytes, shift: int) -> None:
    text = data.replace(b"%b", b"y" * shift + unit * (LONG_BYTES // len(unit)))
    assert Walked(b'{"outputs":[{"data":%b}]}' % text, 100_000).texts == [text]


@pytest.mark.parametrize(
    "data",
    [
        b'["%b\xff%b"]',
        b'["%b\xc3"]',
        b'["%b\n%b"]',
        b'["%b\\x%b"]',
        b'["%b\\u12g4%b"]',
        b'["%b\\u12"]',
        b'["%b" "a"]',
        b'["%b":1]',
        b'["%b"}',
        b'["%b",]',
        b'[,"%b"]',
        b'[1 "%b"]',
        b'{"%b"}',
        b'{"%b",1}',
        b'{"%b":}',
        b'{"k":"%b":1}',
        b'{"k":"%b" "l":1}',
        b'{"k":"%b",}',
        b'{"k" "%b"}',
        b'["%b',
        b'"%b"1',
    ],
)
@pytest.mark.parametrize("shift", range(3))
def test_strings_longer_than_a_piece_are_judged_like_short_ones(data: bytes, shift: int) -> None:
    for filling in (b"x" * 5, b"x" * (LONG_BYTES + shift)):
        text = b'{"outputs":[{"name":"y","data":%b}]}' % data.replace(b"%b", filling)
        with pytest.raises(CodecError):
            read_answer(cut(text, 100_000), OutputSelection())


def test_long_string_that_stays_json_is_read_in_steps_of_a_piece() -> None:
    taken = []
    sink = TextSink("value", None)
    buffer = bytearray(b'["' + b"x" * 20 * PIECE_BYTES + b'"]')
    while not sink.done:
        taken.append(sink.step(buffer))
        del buffer[: taken[-1]]
    assert max(taken) <= PIECE_BYTES


def test_literals_are_protected_with_one_look_whatever_numbers_are_written() -> None:
    """Whoever could foresee the number that takes a literal's place could write it, and the next, and the next."""
    text = b"[NaN,%b]" % b",".join(b"%d" % number for number in range(10**9, 10**9 + 20_000))
    protected, marker = protect_literals(text)
    assert protected.count(marker) == 1
    assert len(marker) == 20
    assert restore_literals(protected, marker) == text


def test_text_of_many_brackets_is_taken_in_steps_of_so_many() -> None:
    sink = TextSink("value", None)
    buffer = bytearray(b"[" + b"[1,2]," * PIECE_BYTES + b"3]")
    taken = []
    while not sink.done:
        taken.append(sink.step(buffer))
        del buffer[: taken[-1]]
    assert max(taken) < 4096 * 4
