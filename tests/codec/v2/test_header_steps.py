"""No step of work on a header is long, whatever the header holds within its limits.

Counted in lines of Python, which a busy machine does not change. A common header is read in one step: what msgspec
does, and Python's work on each tensor, of which there are at most a thousand. One with NaN or with members that the
protocol does not know takes several steps, each with the entries and parameters that it looks at.
"""

import sys
from collections.abc import Generator
from types import FrameType
from typing import Any

import pytest

from gateway.codec.inference import HeaderLimits, OutputSelection, TensorPolicy
from gateway.codec.json.pieced import PIECE_SEGMENTS
from gateway.codec.v2.answer import InferAnswer
from gateway.errors import CodecError
from tests.codec.walk import cut, parsing
from tests.steps import run

STEP_LINES = 40_000
HEADER_LINES = 30_000  # 1 ms
HEADER_BYTES = 128 * 1024
CHUNK_BYTES = 64 * 1024


def filled(item: bytes, n_bytes: int = HEADER_BYTES - 1000) -> bytes:
    """As many items as go into *n_bytes*, with commas between; each `%x` in them is another number."""
    items: list[bytes] = []
    length = 0
    while length < n_bytes:
        items.append(item.replace(b"%x", b"%x" % len(items)))
        length += len(items[-1]) + 1
    return b",".join(items)


def repeated(item: bytes) -> bytes:
    """As many items as there may be tensors."""
    return b",".join([item.replace(b"%x", b"%x" % number) for number in range(HeaderLimits().max_tensors)])


MEMBERS = filled(b'"%x":1')
NAN_MEMBERS = filled(b'"%x":NaN')
SOME_MEMBERS = filled(b'"%x":1', 10).replace(b"%", b"")
NANS = filled(b"NaN")
INPUT = b'"name":"%x","datatype":"FP32","shape":[0]'
SIZE = b'"binary_data_size":0'
OUTPUT = b'"name":"%x","datatype":"INT8","shape":[1]'

REQUESTS = {
    "top-level keys": b'{"inputs":[],%b}' % MEMBERS,
    "top-level keys with NaN": b'{"inputs":[],%b}' % filled(b'"%x":NaN'),
    "parameters": b'{"inputs":[],"parameters":{"binary_data_output":true,%b}}' % MEMBERS,
    "parameters of NaN": b'{"inputs":[],"parameters":{"binary_data_output":true,"x":[%b]}}' % NANS,
    "parameters that are NaN": b'{"inputs":[],"parameters":{"binary_data_output":true,%b}}' % NAN_MEMBERS,
    "parameters with NaN": b'{"inputs":[],"parameters":{"binary_data_output":true,%b}}' % filled(b'"%x":[NaN]'),
    "parameters named NaN": b'{"inputs":[],"parameters":{"binary_data_output":true,%b}}' % filled(b'"NaN%x":NaN'),
    "parameters of an input that are NaN": b'{"inputs":[{%b,"parameters":{%b,%b}}]}' % (INPUT, SIZE, NAN_MEMBERS),
    "an array of NaN in an input": b'{"inputs":[{%b,"parameters":{%b,"x":[%b]}}]}' % (INPUT, SIZE, NANS),
    "many inputs with unknown members": b'{"inputs":[%b]}' % repeated(b'{%b,"u":1,"parameters":{%b}}' % (INPUT, SIZE)),
    "many inputs with NaN": b'{"inputs":[%b]}' % repeated(b'{%b,"u":NaN,"parameters":{%b,"k":[NaN]}}' % (INPUT, SIZE)),
    "members of an input that are NaN": b'{"inputs":[{%b,%b,"parameters":{%b}}]}' % (INPUT, NAN_MEMBERS, SIZE),
    "parameters of an output": b'{"inputs":[],"outputs":[{"name":"y","parameters":{"binary_data":true,%b}}]}' % MEMBERS,
    "parameters of an input": b'{"inputs":[{%b,"parameters":{%b,%b}}]}' % (INPUT, SIZE, MEMBERS),
    "members of an input": b'{"inputs":[{%b,%b,"parameters":{%b}}]}' % (INPUT, MEMBERS, SIZE),
    "many inputs": b'{"inputs":[%b]}' % repeated(b'{%b,"parameters":{%b,%b}}' % (INPUT, SIZE, SOME_MEMBERS)),
    "many outputs": b'{"inputs":[],"outputs":[%b]}'
    % repeated(b'{"name":"%%x","parameters":{"binary_data":true,%b}}' % SOME_MEMBERS),
    "empty inputs": b'{"inputs":[%b]}' % filled(b"{}"),
    "a long shape": b'{"inputs":[{"name":"x","datatype":"FP32","shape":[%b],"parameters":{%b}}]}'
    % (filled(b"1"), SIZE),
}

ANSWERS = {
    "top-level keys": b'{"outputs":[],%b}' % MEMBERS,
    "parameters of NaN": b'{"outputs":[{%b,"data":[1],"parameters":{"x":[%b]}}]}' % (OUTPUT, NANS),
    "parameters before data that are NaN": b'{"outputs":[{%b,"parameters":{%b},"data":[1]}]}' % (OUTPUT, NAN_MEMBERS),
    "parameters that are NaN": b'{"outputs":[{%b,"data":[1],"parameters":{%b}}]}' % (OUTPUT, NAN_MEMBERS),
    "many outputs with NaN": b'{"outputs":[%b]}'
    % repeated(b'{%b,"u":NaN,"parameters":{"k":[NaN]},"data":[1]}' % OUTPUT),
    "members before data": b'{"outputs":[{%b,%b,"data":[1]}]}' % (OUTPUT, MEMBERS),
    "parameters behind data": b'{"outputs":[{%b,"data":[1],"parameters":{%b}}]}' % (OUTPUT, MEMBERS),
    "many outputs": b'{"outputs":[%b]}' % repeated(b'{%b,"parameters":{%b},"data":[1]}' % (OUTPUT, SOME_MEMBERS)),
    "data before all else": b'{"outputs":[%b]}' % repeated(b'{"data":[1],%b}' % OUTPUT),
    "an error": b'{"error":{%b}}' % MEMBERS,
}


REFUSED = {"empty inputs": "limits.tensors", "a long shape": "shape must be", "an error": "but an error"}


def lines_of(steps: Generator[None, None, Any]) -> int:
    """The most lines of the codec that one of the *steps* runs; where they fail, they end."""
    return _count(steps)[0]


def check_steps(steps: Generator[None, None, Any], refusal: str | None) -> None:
    """Count the lines of the codec that each step runs, and see that *steps* come to the end they should."""
    longest, total, error = _count(steps)
    assert longest < STEP_LINES
    if refusal is None:
        assert error is None
        assert total > STEP_LINES  # so that the work as one step would have been seen
    else:
        assert refusal in (error or "")


def _count(steps: Generator[None, None, Any]) -> tuple[int, int, str | None]:
    """The lines of the longest step, those of all, and the error that ended them."""
    lines = total = longest = 0

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        return count if "/gateway/codec/" in frame.f_code.co_filename else None

    before = sys.gettrace()
    error = None
    is_done = False
    while not is_done:
        lines = 0
        sys.settrace(enter)
        try:
            next(steps)
        except StopIteration:
            is_done = True
        except CodecError as caught:
            error = str(caught)
            is_done = True
        finally:
            sys.settrace(before)
        longest = max(longest, lines)
        total += lines
    return longest, total, error


@pytest.mark.slow
@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("has_length", [True, False])
def test_header_of_a_request_takes_few_lines(name: str, has_length: bool) -> None:
    text = REQUESTS[name]
    assert len(text) <= HEADER_BYTES
    length = len(text) if has_length else None
    longest, _, error = _count(
        parsing(memoryview(text), length, TensorPolicy(), HeaderLimits(HEADER_BYTES), recover=True)
    )
    assert longest < HEADER_LINES
    assert (error is not None) == (name in REFUSED and (has_length or name != "empty inputs"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ANSWERS)
def test_header_of_an_answer_takes_few_lines(name: str) -> None:
    text = ANSWERS[name]
    assert len(text) <= HEADER_BYTES
    limits = HeaderLimits(HEADER_BYTES)
    answer = InferAnswer(OutputSelection(True), model="m", request_id=b"", max_bytes=10**9, limits=limits)

    def steps() -> Generator[None, None, None]:
        for chunk in cut(text, CHUNK_BYTES):
            yield from answer.feed(chunk)
        yield from answer.finish()

    longest, _, error = _count(steps())
    assert longest < HEADER_LINES
    assert REFUSED.get(name, "") in (error or "")
    assert (error is not None) == (name in REFUSED)


def test_many_small_tensors_are_printed_in_pieces_of_few() -> None:
    text = REQUESTS["many inputs"]
    limits = HeaderLimits(HEADER_BYTES)
    request = run(parsing(memoryview(text), len(text), TensorPolicy(), limits, recover=False))
    assert request is not None
    pieces = list(request.json_pieces())
    assert len(pieces) > 10
    assert max(bytes(piece).count(b'"datatype"') for piece in pieces) <= PIECE_SEGMENTS
