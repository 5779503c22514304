"""What a client's JSON says, whatever the backend speaks; what is refused is in `test_request_header`."""

import json

import pytest

from gateway.codec import HeaderLimits, run
from gateway.codec.v2.declarations import parse_parameters
from gateway.codec.v2.request_reading import RequestReader, reserve_nothing, was_meant_binary
from gateway.errors import CodecError

INPUTS = [
    {"name": "a", "parameters": {"binary_data_size": 3, "keep": 1}},
    {"name": "b", "data": [1, [2]]},
    {"parameters": {"shared_memory_region": "r"}},
]


def reader_of(body: bytes) -> RequestReader:
    return RequestReader(memoryview(body), None, HeaderLimits(), reserve_nothing, recover=True)


def test_inputs_say_where_their_values_are() -> None:
    body = json.dumps({"inputs": INPUTS}).encode() + b"abc"
    reader = reader_of(body)
    top, header_bytes = run(reader.read())
    inputs = run(reader.inputs_of(top))
    blobs, is_recovered = run(reader.frame(inputs, header_bytes))
    assert (bytes(blobs), is_recovered) == (b"abc", True)
    parameters = [parse_parameters(entry.get("parameters", b"null"), "") for entry in inputs]
    labels = [reader.name_input(entry, index) for index, entry in enumerate(inputs)]
    assert labels == ["input 'a'", "input 'b'", "input 2"]
    size, data, shared = (
        reader.source(entry, parameters[index], index, labels[index]) for index, entry in enumerate(inputs)
    )
    assert size == 3
    assert isinstance(data, memoryview)
    assert bytes(data) == b"[1, [2]]"
    assert shared is None
    assert parameters[0] == {"keep": b"1"}


def test_selection_takes_the_words_of_the_extension_out_of_what_stays() -> None:
    outputs = [{"name": "x", "parameters": {"binary_data": True, "classification": 2}}, {"name": "y"}]
    reader = reader_of(json.dumps({"inputs": [], "outputs": outputs}).encode())
    top, _ = run(reader.read())
    requested = run(reader.entries(top, "outputs"))
    parameters = {"binary_data_output": b"true", "priority": b"1"}
    selection = run(reader.select(requested, parameters))
    assert (selection.binary_by_default, dict(selection.named)) == (True, {"x": True, "y": True})
    assert parameters == {"priority": b"1"}
    assert requested is not None
    assert requested[0]["parameters"] == b'{"classification":2}'


def test_same_name_twice_is_refused() -> None:
    reader = reader_of(b"{}")
    reader.name_input({"name": b'"x"'}, 0)
    with pytest.raises(CodecError, match="input 'x' is given more than once"):
        reader.name_input({"name": b'"x"'}, 1)


@pytest.mark.parametrize(("body", "is_meant"), [(b'{"binary_data" :', True), (b"binary_data", False)])
def test_broken_body_was_meant_binary_if_it_has_a_key_of_the_extension(body: bytes, is_meant: bool) -> None:
    assert run(was_meant_binary(memoryview(body))) is is_meant
