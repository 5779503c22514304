"""Requests joined and answers divided: what each gets is what it would have got alone, or it goes alone."""

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.codec.inference import HeaderLimits
from gateway.codec.tensors.datatypes import DATATYPES, Kind
from gateway.codec.v2.batches import Share, check_rows, divided, joined, read_share
from gateway.codec.v2.framing import Framing
from gateway.codec.v2.reply import Reply, ReplyOutput
from gateway.errors import CodecError
from tests.steps import run

LIMITS = HeaderLimits()


def entry(blob: bytes, shape: list[int], name: str = "x", datatype: str = "FP32", **more: Any) -> dict[str, Any]:
    """A binary input."""
    return {"name": name, "shape": shape, "datatype": datatype, "parameters": {"binary_data_size": len(blob)}, **more}


def share_of(header: dict[str, Any], *blobs: bytes) -> Share | None:
    """What a request brings."""
    text = json.dumps({"parameters": {"binary_data_output": True}, **header}).encode()
    return run(read_share(memoryview(text + b"".join(blobs)), Framing(len(text)), LIMITS))


def shares(*rows: int, ids: tuple[str, ...] = ()) -> list[Share]:
    """Requests of so many rows of two numbers."""
    made = []
    for number, n_rows in enumerate(rows):
        blob = np.full((n_rows, 2), number, "<f4").tobytes()
        header: dict[str, Any] = {"inputs": [entry(blob, [n_rows, 2])]}
        share = share_of(header | ({"id": ids[number]} if ids else {}), blob)
        assert share is not None
        made.append(share)
    return made


def test_rows_are_put_behind_each_other() -> None:
    parts = shares(1, 3, 2)
    assert len({part.kind for part in parts}) == 1
    header, (blob,) = joined(parts, "own")
    said = json.loads(header)
    assert said["inputs"] == [entry(bytes(48), [6, 2])]
    assert said["parameters"] == {"binary_data_output": True}
    assert "id" not in said
    assert np.frombuffer(blob, "<f4").tolist() == [0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2]
    for number, part in enumerate(parts):  # which has its rows there now
        assert set(np.frombuffer(part.blobs[0], "<f4").tolist()) == {number}
        assert part.blobs[0].obj is blob.obj


def test_a_joined_request_has_an_id_where_one_of_them_has() -> None:
    header, _ = joined([*shares(1), *shares(1, ids=("a",))], "own")
    assert json.loads(header)["id"] == "own"


FOUR = np.zeros(4, "<f4").tobytes()
ALONE: dict[str, tuple[dict[str, Any], bytes]] = {
    "no rows": ({"inputs": [entry(b"", [0, 2])]}, b""),
    "a scalar": ({"inputs": [entry(FOUR[:4], [])]}, FOUR[:4]),
    "values in JSON": ({"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}, b""),
    "no inputs": ({"inputs": []}, b""),
    "inputs of other rows": ({"inputs": [entry(FOUR[:8], [2]), entry(FOUR[8:], [1, 2], "y")]}, FOUR),
    "outputs in JSON": ({"inputs": [entry(FOUR, [4])], "parameters": {}}, FOUR),
    "one output in JSON": (
        {"inputs": [entry(FOUR, [4])], "outputs": [{"name": "y", "parameters": {"binary_data": False}}]},
        FOUR,
    ),
    "bytes are missing": ({"inputs": [entry(FOUR, [4])]}, FOUR[1:]),
    "bytes are left": ({"inputs": [entry(FOUR, [4])]}, FOUR + b"x"),
    "a shape that does not fit": ({"inputs": [entry(FOUR, [3])]}, FOUR),
    "strings that do not fit": ({"inputs": [entry(FOUR, [1], datatype="BYTES")]}, FOUR),
    "the same name twice": ({"inputs": [entry(FOUR[:8], [2]), entry(FOUR[8:], [2])]}, FOUR),
    "a member that is not known": ({"inputs": [entry(FOUR, [4])], "more": 1}, FOUR),
    "a sequence": ({"inputs": [entry(FOUR, [4])], "parameters": {"binary_data_output": True, "sequence_id": 7}}, FOUR),
    "a long header": ({"inputs": [entry(FOUR, [4])], "id": "x" * 20_000}, FOUR),
    "a broken flag": ({"inputs": [entry(FOUR, [4])], "parameters": {"binary_data_output": 1}}, FOUR),
}


@pytest.mark.parametrize("why", ALONE)
def test_what_goes_alone(why: str) -> None:
    header, blob = ALONE[why]
    assert share_of(header, blob) is None


@pytest.mark.parametrize("length", [None, 0, 10**6])
def test_only_a_body_with_header_and_blobs_can_be_joined(length: int | None) -> None:
    assert run(read_share(memoryview(b"{}"), Framing(length), LIMITS)) is None


def test_blobs_in_buffers_of_their_own() -> None:
    text = json.dumps({"inputs": [entry(FOUR, [2, 2])], "parameters": {"binary_data_output": True}}).encode()
    share = run(read_share(memoryview(text), Framing(len(text), blobs=[memoryview(FOUR)]), LIMITS))
    assert share is not None
    assert (share.rows, share.n_bytes) == (2, 16)


def reply_of(*outputs: ReplyOutput, nonfinite: int = 0, **more: Any) -> Reply:
    """The reply to a batch."""
    entries = [
        {
            "name": each.name,
            "shape": list(each.shape),
            "datatype": each.datatype.name,
            "parameters": {"binary_data_size": 0},
        }
        for each in outputs
    ]
    said = {"model_name": "m", "id": "own", "parameters": {"p": 1}, "outputs": entries}
    header = json.dumps(said | more).encode()
    return Reply([header[:10], header[10:]], list(outputs), nonfinite)


def output(array: Any, datatype: str = "FP32", pieces: int = 1, shape: tuple[int, ...] | None = None) -> ReplyOutput:
    """An output whose bytes are in so many *pieces*."""
    blob = array if isinstance(array, bytes) else array.tobytes()
    step = max(1, len(blob) // pieces)
    blobs = [memoryview(blob[start : start + step]) for start in range(0, len(blob), step)] or [memoryview(b"")]
    return ReplyOutput("y", DATATYPES[datatype], shape or array.shape, blobs)


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=6),
    st.sampled_from(sorted(DATATYPES)),
    st.integers(1, 4),
    st.data(),
)
def test_each_gets_its_rows(rows: list[int], datatype: str, pieces: int, data: st.DataObject) -> None:
    """Whatever the datatype, and in how many pieces the answer is."""
    of_three = [b""] * len(rows)
    for number, n_rows in enumerate(rows):
        for _ in range(n_rows * 3):
            if DATATYPES[datatype].kind is Kind.BYTES:
                text = data.draw(st.binary(max_size=5))
                of_three[number] += len(text).to_bytes(4, "little") + text
            else:
                of_three[number] += bytes([number]) * DATATYPES[datatype].item_bytes
    ids = tuple(f"id-{number}" for number in range(len(rows)))
    whole = reply_of(output(b"".join(of_three), datatype, pieces, (sum(rows), 3)))
    for number, part in enumerate(run(divided(whole, shares(*rows, ids=ids)))):
        header = json.loads(b"".join(part.header))
        assert header["id"] == ids[number]
        assert header["parameters"] == {"p": 1}
        assert header["outputs"][0]["shape"] == [rows[number], 3]
        assert header["outputs"][0]["parameters"] == {"binary_data_size": len(of_three[number])}
        assert b"".join(part.blobs) == of_three[number]
        assert part.outputs[0].shape == (rows[number], 3)


@pytest.mark.parametrize("value", ["a,b,c", ["a", "b", "c"], {"0": "a"}])
@pytest.mark.parametrize("is_of_output", [True, False])
def test_parameters_that_may_say_something_of_rows_reach_no_client(value: Any, is_of_output: bool) -> None:
    whole = reply_of(output(np.zeros((3, 2), "<f4")))
    header = json.loads(b"".join(whole.header))
    (header["outputs"][0] if is_of_output else header)["parameters"]["labels"] = value
    reply = Reply([json.dumps(header).encode()], whole.outputs, 0)
    with pytest.raises(CodecError, match="the parameter 'labels' of the answer may say something of one client's rows"):
        run(divided(reply, shares(1, 2)))


@pytest.mark.parametrize(
    "parameters", [None, {}, {"content_type": "np", "p": 1.5, "q": None, "r": True}, {"p": -math.inf}]
)
def test_parameters_that_say_nothing_of_rows_reach_all_clients(parameters: dict[str, Any] | None) -> None:
    whole = reply_of(output(np.zeros((3, 2), "<f4")), parameters=parameters)
    for part in run(divided(whole, shares(1, 2))):
        assert json.loads(b"".join(part.header))["parameters"] == parameters


def test_an_answer_has_as_many_rows_as_its_request() -> None:
    check_rows(reply_of(output(np.zeros((3, 2), "<f4"))), 3)
    with pytest.raises(CodecError, match=r"output 'y' has shape \[3, 2\] in the answer to 4 rows"):
        check_rows(reply_of(output(np.zeros((3, 2), "<f4"))), 4)


def test_an_element_longer_than_a_window() -> None:
    long = b"x" * 600_000
    first, second = len(long).to_bytes(4, "little") + long, b"\1\0\0\0y"
    whole = reply_of(output(first + second, "BYTES", 3, (2,)))
    assert [b"".join(part.blobs) for part in run(divided(whole, shares(1, 1)))] == [first, second]


def test_who_had_no_id_gets_none() -> None:
    (part,) = run(divided(reply_of(output(np.zeros((1, 2), "<f4"))), shares(1)))
    assert "id" not in json.loads(b"".join(part.header))


def test_nan_is_counted_once() -> None:
    array = np.array([[1, np.nan], [np.inf, np.nan], [0, 0]], "<f4")
    parts = run(divided(reply_of(output(array), nonfinite=3), shares(1, 2)))
    assert [part.nonfinite for part in parts] == [3, 0]


@pytest.mark.parametrize(
    "reply",
    [
        reply_of(output(np.zeros((2, 2), "<f4"))),
        reply_of(output(np.zeros(4, "<f4"), shape=(4,))),
        reply_of(output(np.zeros((), "<f4"))),
        reply_of(output(np.zeros((3, 1), "<f4")), strange=1),
    ],
)
def test_what_cannot_be_divided(reply: Reply) -> None:
    """Then the requests, which go alone, are still there, and so is the answer."""
    both = shares(1, 2)
    with pytest.raises(CodecError):
        run(divided(reply, both))
    assert [len(share.blobs[0].tobytes()) for share in both] == [8, 16]
    assert reply.blobs


def test_what_is_divided_is_let_go_before_its_parts_are_made() -> None:
    """The requests at once, the outputs one by one: a batch takes hardly more memory than its requests alone."""
    both, array = shares(1, 2), np.zeros((3, 2), "<f4")
    whole = reply_of(output(array), output(array, pieces=2))
    steps = divided(whole, both)
    next(steps)
    for share in both:
        with pytest.raises(ValueError, match="released"):
            share.blobs[0].tobytes()
    assert [len(each.blobs) for each in whole.outputs] == [0, 2]
    parts = run(steps)
    assert [len(each.blobs) for each in whole.outputs] == [0, 0]
    assert [b"".join(part.blobs) for part in parts] == [bytes(16), bytes(32)]
