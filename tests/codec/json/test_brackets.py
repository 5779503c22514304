"""Following strings and brackets: each is looked at once, and no step looks at too many."""

import re

import pytest

from gateway.codec.json import prover as prover_module
from gateway.codec.json.pieces import MAX_TEXT_DEPTH, PIECE_BYTES, STEP_TOKENS, walk
from gateway.codec.json.sinks import TextSink
from gateway.errors import CodecError
from tests.codec.walk import proved


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many strings and brackets each step has looked at so far."""
    counts: list[int] = []

    def counting_walk(opened: bytearray, tokens: list[re.Match[bytes]]) -> int:
        counts.append(len(tokens))
        return walk(opened, tokens)

    monkeypatch.setattr(prover_module, "walk", counting_walk)
    return counts


def test_long_string_full_of_quotes_is_looked_at_once(walked: list[int]) -> None:
    """Behind a string that is not whole yet there is nothing to look for: 8 Ki quotes in it make no more tokens."""
    data = b'["' + b'\\"' * 8192 + b'"]'
    assert proved(data, 4096) == data
    assert 0 < sum(walked) < 100


def test_brackets_without_a_comma_are_looked_at_a_piece_at_a_time(walked: list[int]) -> None:
    """In one step they would be millions of matches."""
    with pytest.raises(CodecError):
        proved(b"[" * (4 * PIECE_BYTES))
    assert 0 < max(walked) <= PIECE_BYTES


def test_value_without_a_comma_may_be_nested_as_deep_as_any() -> None:
    assert STEP_TOKENS > 3 * MAX_TEXT_DEPTH
    depth = MAX_TEXT_DEPTH - 1
    for filling in (b"1", b" " * PIECE_BYTES + b"1"):
        data = b'[%b%b%b,"x"]' % (b'{"a":' * depth, filling, b"}" * depth)
        assert proved(data) == data
    with pytest.raises(CodecError, match=f"nested deeper than {MAX_TEXT_DEPTH}"):
        proved(b"[" * (MAX_TEXT_DEPTH + 1) + b"1" + b"]" * (MAX_TEXT_DEPTH + 1))


def test_of_the_text_behind_a_short_value_little_is_looked_at(walked: list[int]) -> None:
    """Thousands of short values may stand in one piece, each of which is proved by itself."""
    for depth in (1, 7, 20, 100):
        value = b"[" * depth + b"]" * depth
        n_values = PIECE_BYTES // len(value)
        buffer = bytearray(value * n_values)
        walked.clear()
        for _ in range(n_values):
            sink = TextSink("value", None)
            del buffer[: sink.step(buffer)]
            assert sink.done
        assert 0 < sum(walked) <= n_values * (2 * len(value) + 25), depth
