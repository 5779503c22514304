"""A value is proved to be JSON piece by piece as it would be proved as a whole."""

import json
import random

import pytest

from gateway.codec.inference import OutputSelection
from gateway.codec.json.pieces import PIECE_BYTES
from gateway.codec.json.sinks import TextSink
from gateway.errors import CodecError
from tests.codec.make_pairs import blob_of
from tests.codec.walk import cut, one_output, only_blob, proved, read_answer


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
            proved(data, chunk_bytes)


FILLER = b"1," * (PIECE_BYTES // 2 - 4)


@pytest.mark.parametrize(
    "broken", [b"1,]", b"],1]", b",1]", b"}]", b"1,,1]", b"[1,],1]", b"[,1],1]", b"1]]", b'"a":1]']
)
def test_checked_value_is_refused_also_where_a_piece_is_cut(broken: bytes) -> None:
    for blanks in range(11):  # the piece ends at each byte of what is broken
        with pytest.raises(CodecError):
            proved(b"[" + FILLER + b" " * blanks + broken)


@pytest.mark.parametrize("shift", range(0, 44, 3))
def test_checked_value_of_nested_objects_is_cut_anywhere_and_stays_whole(shift: int) -> None:
    data = b"[" + b" " * shift + b'{"k":[{"a":"x","b":[1,{}]}],"e":{}},' * 6000 + b"1]"
    assert proved(data) == data


def test_long_string_full_of_brackets_and_commas_stays_whole() -> None:
    data = b'["' + b"x],y[," * (PIECE_BYTES // 4) + b'"]'
    assert proved(data) == data


def test_short_strings_full_of_brackets_and_commas_stay_whole_wherever_a_piece_ends() -> None:
    strings = b",".join([b'"{[1,2],[3],4}"'] * (PIECE_BYTES // 8))
    for shift in range(16):
        data = b"[" + b" " * shift + strings + b"]"
        assert proved(data, 65536) == data, shift


@pytest.mark.parametrize("n_bytes", [PIECE_BYTES - 30, PIECE_BYTES, 3 * PIECE_BYTES, 4 * 1024 * 1024])
@pytest.mark.parametrize("chunk_bytes", [None, 65536])
def test_long_strings_stay_whole(n_bytes: int, chunk_bytes: int | None) -> None:
    for unit in (b"x", b"\\n", b"\\\\"):
        data = b'["a", "%b"]' % (unit * (n_bytes // len(unit)))
        assert proved(data, chunk_bytes) == data


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
def test_strings_longer_than_a_piece_are_kept_as_they_came(data: bytes, unit: bytes) -> None:
    for shift in range(6):
        text = data.replace(b"%b", b"y" * shift + unit * (LONG_BYTES // len(unit)))
        assert proved(text, 100_000) == text


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


def test_text_of_many_brackets_is_taken_in_steps_of_so_many() -> None:
    sink = TextSink("value", None)
    buffer = bytearray(b"[" + b"[1,2]," * PIECE_BYTES + b"3]")
    taken = []
    while not sink.done:
        taken.append(sink.step(buffer))
        del buffer[: taken[-1]]
    assert max(taken) < 4096 * 4


@pytest.mark.slow
def test_long_strings_of_surrogate_pairs_as_python_writes_them_are_read_at_every_alignment() -> None:
    """The pieces of a long string end anywhere, but between the two halves of a pair they must not."""
    dice = random.Random(7)
    for shift in [*range(14), *(dice.randrange(10_000) for _ in range(10))]:
        text = "x" * shift + "".join(dice.choices(["\U0001f600", "é", "a", "\ufffd", "\\", '"'], k=20_000))
        data = json.dumps([text, "b"]).encode()
        expected = blob_of([text, "b"])
        for chunk_bytes in (65536, 100_000, 7 * 1024):
            stays_json = one_output(data, "BYTES", "[2]")
            assert data in b"".join(read_answer(cut(stays_json, chunk_bytes), OutputSelection()).header)
            assert only_blob(one_output(data, "BYTES", "[2]", reversed_keys=True), chunk_bytes) == expected


@pytest.mark.parametrize(
    "broken",
    [rb"\ud83d", rb"\ude00", rb"\ud83d\u0041", rb"\ud83dx", rb"\ude00\ud83d", rb"\ud83d\n", rb"\ud83d\ud83d"],
)
def test_lone_surrogate_in_a_long_string_is_refused_at_every_alignment(broken: bytes) -> None:
    for shift in range(14):
        data = b'["' + b"x" * (PIECE_BYTES - 14 + shift) + broken + b"y" * 100 + b'"]'
        for text in (one_output(data, "BYTES"), one_output(b"[" + data + b',"b"]', "BYTES")):
            with pytest.raises(CodecError):
                read_answer([text], OutputSelection())


def test_piece_without_a_comma_is_refused_at_a_limit() -> None:
    data = b"[1" + b" " * (10 * PIECE_BYTES) + b"]"
    with pytest.raises(CodecError, match="bytes without a comma"):
        proved(data)
