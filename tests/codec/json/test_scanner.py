"""Reading JSON that arrives in pieces: where strings and brackets are, and that nothing is held."""

import itertools

import pytest

from gateway.codec.json.brackets import STEP_TOKENS, WALK_BYTES
from gateway.codec.json.member_finder import MemberFinder
from gateway.codec.json.pieces import PIECE_BYTES
from gateway.codec.json.scanner import MAX_ENTRY_BYTES
from gateway.codec.json.sinks import TextSink
from gateway.errors import CodecError, TooLargeError
from tests.codec.walk import Walked, exhaust, read_answer, scanner_of


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


def test_key_or_string_around_data_may_be_cut_anywhere() -> None:
    text = b'{"id":"a\\"]}","outputs" : [ { "n\\\\" : "\\u00e9", "data" \t : [1] } ] , "x":"{\\\\"}'
    whole = Walked(text)
    for position in range(len(text)):
        scanner = scanner_of(lambda entry: TextSink("value", None))
        for chunk in (text[:position], text[position:]):
            exhaust(scanner.feed(chunk))
        exhaust(scanner.finish())
        assert scanner.skeleton == whole.scanner.skeleton


def test_skeleton_beyond_its_limit_is_refused() -> None:
    with pytest.raises(TooLargeError, match=f"longer than {1 << 20} bytes"):
        Walked(b'{"x":[' + b"1," * ((1 << 20) // 2 + 1), 65536)


def test_long_string_in_the_skeleton_is_read_whole_up_to_the_limit() -> None:
    text = b'{"id":"%b","outputs":[]}' % (b"x" * 1_000_000)
    assert Walked(text, 1000).scanner.skeleton == text


def test_endless_string_in_the_skeleton_is_refused_at_the_limit() -> None:
    scanner = scanner_of(lambda entry: TextSink("value", None))
    exhaust(scanner.feed(b'{"id":"'))
    with pytest.raises(TooLargeError):
        for _ in range(2 * (1 << 20) // PIECE_BYTES + 2):
            exhaust(scanner.feed(b"x" * PIECE_BYTES))


def test_duplicate_data_keys_cost_no_more_than_their_length() -> None:
    """Each of n `data` keys of one entry has n / 2 keys before it, so that without a limit n squared is copied."""
    with pytest.raises(CodecError, match="more than 16 members called `data`"):
        Walked(b'{"outputs":[{' + b'"data":0,' * 2000 + b'"data":0}]}')
    assert len(Walked(b'{"outputs":[{' + b'"data":0,' * 15 + b'"data":0}]}').texts) == 16


@pytest.mark.parametrize("text", [b'{"\xff\\u0075":[{"x":1}]}', b'{"outputs":[{"d\xff\\u0061ta":[1]}]}'])
def test_key_with_an_escape_that_is_not_utf8_is_refused(text: bytes) -> None:
    with pytest.raises(CodecError, match="not UTF-8"):
        read_answer([text])


@pytest.mark.parametrize("entries", [b"{}," * 5 + b"{}", b'{"a":[{},{}]},' * 5 + b"{}", b"[]," * 5 + b"{}"])
def test_more_entries_than_allowed_are_refused_while_they_are_walked(entries: bytes) -> None:
    text = b'{"x":[[{},{},{}]],"outputs":[%b]}' % entries
    for max_entries in (6, 5):
        scanner = scanner_of(lambda entry: TextSink("value", None), max_entries=max_entries)
        if max_entries == 6:
            exhaust(scanner.feed(text))
        else:
            with pytest.raises(CodecError, match=r"more than 5 entries in `outputs`.*`limits.tensors`"):
                exhaust(scanner.feed(text))


def test_skeleton_limit_counts_the_json_beside_the_data_and_names_what_to_set() -> None:
    text = b'{"outputs":[{"data":[%b1]}],"x":"%b"}' % (b"1," * 5000, b"y" * 1000)
    exhaust(scanner_of(lambda entry: TextSink("value", None), max_skeleton_bytes=1100).feed(text))
    with pytest.raises(TooLargeError, match=r"longer than 1000 bytes.*`limits.header`"):
        exhaust(scanner_of(lambda entry: TextSink("value", None), max_skeleton_bytes=1000).feed(text))


@pytest.mark.parametrize(
    "text",
    [
        b'{"p":[%b1]}' % (b"[]," * 100_000),
        b'{%b"b":1}' % (b'"a":"",' * 100_000),
        b'{%b"b":1}' % (b'"a":1,' * 100_000),
        b'{"p":"%b"}' % (b"\\n" * 200_000),
        b'{"%b":1}' % (b"k" * 500_000),
        b'{"p":[%b1]}' % (b"1," * 200_000),
        b"{%b}" % (b" " * 500_000),
    ],
    ids=["brackets", "strings", "members", "long_string", "long_key", "numbers", "blanks"],
)
def test_each_step_over_the_skeleton_is_short(text: bytes) -> None:
    scanner = scanner_of(lambda entry: TextSink("value", None))
    exhaust(scanner.feed(b" "))
    consumed = [scanner.consumed for _ in scanner.feed(text)]
    exhaust(scanner.finish())
    assert scanner.skeleton == b" " + text
    for start, end in itertools.pairwise(consumed):
        step = text[start:end]
        assert len(step) <= WALK_BYTES
        assert step.count(b"[") + step.count(b"]") + step.count(b'"') / 2 <= STEP_TOKENS + 1


@pytest.mark.parametrize("chunk_bytes", [None, 1000, 1])
@pytest.mark.parametrize("blanks", [10, 5 * WALK_BYTES])
def test_key_with_many_blanks_before_its_colon_is_still_a_key(blanks: int, chunk_bytes: int | None) -> None:
    text = b'{"outputs"%b:[{"data"%b:[1]}]}' % (b" " * blanks, b"\n" * blanks)
    assert Walked(text, chunk_bytes).texts == [b"[1]"]


@pytest.mark.parametrize("key", [b"outputs", b"x"])
def test_string_longer_than_a_window_is_no_key_that_is_looked_for(key: bytes) -> None:
    long = key + b"\\n" * WALK_BYTES
    text = b'{"%b":[{"data":1}],"%b":"%b","outputs":[{"%b":2,"data":3}]}' % (long, key, long, long)
    for chunk_bytes in (None, 1000):
        walked = Walked(text, chunk_bytes)
        assert walked.texts == [b"3"]
        assert walked.scanner.skeleton == text[: -len(b"3}]}")] + b"0 }]}"


def test_entry_that_says_much_before_its_data_is_opened_as_if_it_had_said_nothing() -> None:
    """Its members would have to be parsed within one step."""
    for n_bytes, expected in ((100, b'{"name":"%b"}' % (b"x" * 100)), (MAX_ENTRY_BYTES, b"{}")):
        text = b'{"outputs":[{"name":"%b","data":[1]}]}' % (b"x" * n_bytes)
        assert Walked(text).entries == [expected]


@pytest.mark.parametrize("strings", [b'"%b":1' % (b"x" * 10_000), b",".join([b'"%b":1' % (b"x" * 100)] * 100)])
def test_text_that_comes_byte_by_byte_is_not_walked_through_each_time(
    strings: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_bytes = 0
    step = MemberFinder.step

    def counting_step(finder: MemberFinder, buffer: bytearray) -> int:
        nonlocal n_bytes
        n_bytes += len(buffer)
        return step(finder, buffer)

    monkeypatch.setattr(MemberFinder, "step", counting_step)
    text = b'{"outputs":[],%b}' % strings
    Walked(text, 1)
    assert n_bytes < 5 * len(text)


@pytest.mark.parametrize("items", [b'"",' * 100_000, b'"a",1,' * 100_000, b"0," * 100_000])
def test_what_is_flat_in_a_value_is_passed_over_in_large_steps(items: bytes) -> None:
    scanner = scanner_of(lambda entry: TextSink("value", None))
    steps = list(scanner.feed(b'{"p":[%b1]}' % items))
    assert scanner.done
    assert len(steps) < 2 * len(items) // WALK_BYTES + 10


def test_endless_blanks_behind_a_key_are_refused_at_the_limit() -> None:
    scanner = scanner_of(lambda entry: TextSink("value", None))
    exhaust(scanner.feed(b'{"outputs"'))
    with pytest.raises(TooLargeError, match="limits.header"):
        for _ in range(2 * (1 << 20) // PIECE_BYTES + 2):
            exhaust(scanner.feed(b" " * PIECE_BYTES))
