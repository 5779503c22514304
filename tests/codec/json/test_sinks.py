"""Sinks for values that stay JSON: they keep their text, or only find its end."""

import json
import random
from typing import Any

import pytest

from gateway.codec.inference import OutputSelection
from gateway.codec.json.member_finder import MAX_LEVELS
from gateway.codec.json.pieces import PIECE_BYTES
from gateway.codec.json.sinks import SkipSink, TextSink, pour, taken_out
from gateway.codec.tensors.number_parsing import NATIVE_PIECE_BYTES
from gateway.codec.v2.answer import InferAnswer
from gateway.errors import CodecError
from tests.codec.walk import MAX_BYTES, cut, exhaust, one_output, proved, read_answer


def test_output_that_stays_json_is_kept_in_pieces_of_its_own_text() -> None:
    data = json.dumps([[1.5, 2]] * 100_000)
    reply = read_answer(cut(one_output(data, "FP32", "[100000,2]"), 65536), OutputSelection())
    assert data.encode() in b"".join(reply.header)
    assert max(map(len, reply.header)) <= 2 * PIECE_BYTES


@pytest.mark.parametrize(
    ("data", "datatype"),
    [
        ("[" + "0.10000000149011612," * 50_000 + "1]", "FP32"),
        ("[" + "[[1.5],[-0]]," * 50_000 + "[[1],[2]]]", "FP64"),
        ("[" + "null," * 50_000 + "1]", "FP16"),
        ("[" + '"NaN",' * 50_000 + "1]", "BF16"),
        ("[" + "true,\n      " * 50_000 + "1]", "BOOL"),
        ("[" + '"element",' * 50_000 + '"x"]', "BYTES"),
        ('["' + "\\u00e9" * 1_000_000 + '"]', "BYTES"),
        ('["' + "x" * 10 * 1024 * 1024 + '"]', "BYTES"),
    ],
    ids=["flat", "nested", "nulls", "quoted", "pretty", "strings", "escapes", "one_string"],
)
def test_text_of_a_binary_output_is_gone_as_soon_as_it_is_read(data: str, datatype: str) -> None:
    n_elements = data.count('"') // 2 if datatype == "BYTES" else data.count(",") + 1
    shape = "[50001,2,1]" if "[[" in data else f"[{n_elements}]"
    answer = InferAnswer(OutputSelection(binary_by_default=True), model="m", request_id=b"", max_bytes=MAX_BYTES)
    steps = 0
    for chunk in cut(one_output(data, datatype, shape), 65536):
        for _ in answer.feed(chunk):
            steps += 1
        assert answer._arriving is not None
        assert len(answer._arriving.text.buffer) <= NATIVE_PIECE_BYTES  # the largest of all sinks
        assert answer._arriving.header_bytes < 1000
        assert not any(value.text for value in answer.opened)
    exhaust(answer.finish())
    assert steps >= len(data) // (2 * PIECE_BYTES)


def test_brackets_without_end_in_data_are_refused() -> None:
    for text in (b"[" * 100_000, b"[" * 20_000 + b"]" * 20_000, b'[{"a":' * 50_000):
        with pytest.raises(CodecError):
            proved(text, 65536)


@pytest.mark.parametrize("seed", range(10))
def test_value_is_skipped_to_its_end_however_it_arrives(seed: int) -> None:
    """Lists of numbers are skipped many at once, in windows that have nothing else."""
    dice = random.Random(seed)

    def value(depth: int) -> Any:
        kind = dice.randrange(12 if depth else 4)
        if kind >= 6:
            return [value(depth - 1) for _ in range(dice.randrange(5))]
        return ([1.5, 10**9, None, "][", {"a": [1]}, {"b": "}"}])[kind]

    for _ in range(200):
        n_around = dice.choice([1, 1, MAX_LEVELS + 2])
        text = b"[" * n_around + json.dumps(value(6)).encode() + b"]" * n_around
        assert skipped(text + b",2],[3", dice.choice([1, 3, 10, 40, 1000])) == len(text)


def skipped(text: bytes, chunk_bytes: int) -> int:
    """How much of *text* is a value, for a sink that gets it in chunks; 0 if it does not end."""
    sink = SkipSink("x")
    buffer = bytearray()
    taken = 0
    for chunk in cut(text, chunk_bytes):
        buffer += chunk
        while not sink.done and (n_bytes := sink.step(buffer)):
            taken += n_bytes
            del buffer[:n_bytes]
    return taken if sink.done else 0


def test_errors_of_sinks_get_their_label_once() -> None:
    for pieces in ([b"[1,", b"}"], [b"[1,", b"2"]):
        with pytest.raises(CodecError, match="^output 'y': (?!.*output)"):
            exhaust(pour(pieces, TextSink("output 'y'", None)))


def test_kept_text_is_poured_in_steps_and_given_back() -> None:
    pieces = [b'["a",' * 1, *[b"1," * PIECE_BYTES] * 4, b"2]"]
    text = b"".join(pieces)
    kept: list[bytes] = []
    sink = TextSink("x", kept)
    assert sum(1 for _ in pour(taken_out(pieces), sink)) >= len(text) // PIECE_BYTES
    assert not pieces
    assert b"".join(kept) == text
    assert sink.held_bytes == len(text)


@pytest.mark.parametrize("unit", [b"x", b"\\\\", b'\\"', b"]},"])
def test_value_that_nobody_looks_into_is_skipped_in_steps(unit: bytes) -> None:
    for data in (b'"%b"', b'["a","%b",{"b":[]}]'):
        text = data.replace(b"%b", unit * (300_000 // len(unit)))
        assert skipped(text + b" ,1", 70_000) == len(text)
    sink = SkipSink("x")
    buffer = bytearray(b'"' + unit * (1_000_000 // len(unit)) + b'"')
    steps = 0
    while not sink.done:
        del buffer[: sink.step(buffer)]
        steps += 1
    assert steps > 20


@pytest.mark.parametrize("sink", [SkipSink("x"), TextSink("x", []), TextSink("x", None)])
def test_blanks_before_a_value_wait_for_it(sink: SkipSink | TextSink) -> None:
    assert sink.step(bytearray(b" \n")) == 0
    assert sink.step(bytearray(b"\n 12 ,")) > 0
    assert sink.held_bytes == 0
