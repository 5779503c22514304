"""The metadata of a server, as clients get it (protocol section 8)."""

import json

import pytest

from gateway.codec import with_extension


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
