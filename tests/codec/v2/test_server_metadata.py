"""The metadata of a server, as clients get it (protocol section 8)."""

import json
import tracemalloc

import pytest

from gateway.codec.v2.server_metadata import with_extension

pytestmark = pytest.mark.rule("8")


@pytest.mark.parametrize(
    ("metadata", "extensions"),
    [
        ({}, ["binary_tensor_data"]),
        ({"extensions": None}, ["binary_tensor_data"]),
        ({"extensions": ["a"]}, ["a", "binary_tensor_data"]),
        ({"extensions": ["binary_tensor_data", "binary_tensor_data"]}, ["binary_tensor_data"]),
    ],
)
def test_the_extension_is_named_once(metadata: dict[str, object], extensions: list[str]) -> None:
    assert json.loads(with_extension(json.dumps(metadata).encode()))["extensions"] == extensions


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"<html>", b'{"extensions":5}', b'{"extensions": ["binary_tensor_data"] }']
)
def test_what_needs_no_change_or_is_no_metadata_stays(text: bytes) -> None:
    assert with_extension(text) == text


def test_metadata_is_extended_without_making_objects_of_it() -> None:
    """A mebibyte of empty objects took 38 ms of the loop."""
    rest = b"[" + b",".join([b"{}"] * 300_000) + b"]"
    text = b'{"extensions":["a"],"rest":%b}' % rest
    tracemalloc.start()
    try:
        extended = with_extension(text)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert extended == b'{"extensions":["a","binary_tensor_data"],"rest":%b}' % rest
    assert peak_bytes < 5 * len(text)


@pytest.mark.parametrize("text", [b'{"name":"\xff"}', b'{"extensions":["a"],"name":nope}'])
def test_metadata_that_is_no_sound_json_is_left_as_it_is(text: bytes) -> None:
    assert with_extension(text) == text
