"""What a client's JSON says, whatever the backend speaks; what is refused is in `test_messages`."""

import json
from typing import Any

import pytest

from gateway.codec.inference import HeaderLimits, Tensor
from gateway.codec.v2.messages import label_of_entry
from gateway.codec.v2.request_reading import (
    RequestText,
    read_inputs,
    read_request,
    reserve_nothing,
    select,
)
from gateway.errors import CodecError
from tests.steps import run

INPUTS = [
    {"name": "a", "datatype": "INT8", "shape": [3], "parameters": {"binary_data_size": 3, "keep": 1}},
    {"name": "b", "data": [1, [2]]},
    {"parameters": {"shared_memory_region": "r"}},
]


def read(body: bytes, **settings: Any) -> RequestText | None:
    return run(read_request(memoryview(body), None, HeaderLimits(), reserve_nothing, recover=True, **settings))


@pytest.mark.parametrize("padding", ["", "x" * 20_000])
def test_inputs_say_where_their_values_are(padding: str) -> None:
    """In one that is short, `data` stands where it was; of a long one it is passed by."""
    text = read(json.dumps({"inputs": INPUTS, "padding": padding}).encode() + b"abc")
    assert text is not None
    assert text.is_recovered
    inputs = text.request["inputs"]
    assert [label_of_entry(entry, "input", index) for index, entry in enumerate(inputs)] == [
        "input 'a'",
        "input 'b'",
        "input 2",
    ]
    entries, (tensor, data, shared) = zip(*run(read_inputs(text.request, text.blobs)), strict=True)
    assert entries == tuple(inputs)
    assert isinstance(tensor, Tensor)
    assert (tensor.shape, bytes(tensor.blob)) == ((3,), b"abc")
    assert isinstance(data, memoryview)
    assert bytes(data) == b"[1, [2]]"
    assert shared is None
    assert {key: bytes(value) for key, value in (inputs[0].get("parameters") or {}).items()} == {"keep": b"1"}


def test_selection_takes_the_words_of_the_extension_out_of_what_stays() -> None:
    outputs = [{"name": "x", "parameters": {"binary_data": True, "classification": 2}}, {"name": "y"}]
    top = {"inputs": [], "outputs": outputs, "parameters": {"binary_data_output": True, "priority": 1}}
    text = read(json.dumps(top).encode())
    assert text is not None
    selection = select(text.request)
    assert (selection.binary_by_default, dict(selection.named)) == (True, {"x": True, "y": True})
    assert list(text.request["parameters"] or ()) == ["priority"]
    assert [list(output.get("parameters") or ()) for output in text.request["outputs"] or ()] == [
        ["classification"],
        [],
    ]


def test_same_name_twice_is_refused() -> None:
    text = read(b'{"inputs":[{"name":"x","data":[1]},{"name":"x","data":[]}]}')
    assert text is not None
    with pytest.raises(CodecError, match="input 'x' is given more than once"):
        run(read_inputs(text.request, text.blobs))


@pytest.mark.parametrize("more", ["", ',"more":1'])
def test_json_without_the_extension_is_judged_only_for_the_members_that_are_named(more: str) -> None:
    body = f'{{"id":"7","inputs":[]{more}}}'.encode()
    assert read(body, unjudged=()) is None
    assert read(body, unjudged=("outputs",)) is None
    assert read(body, unjudged=("id",)) is not None
    assert read(body) is not None
