"""Errors and server metadata of backends, as clients get them: tables."""

import json

import pytest

from gateway.codec import error_body, with_extension


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'{"error":"Model x not found"}', "Model x not found"),
        (b'{"detail":"no"}', "no"),
        (b'{"detail":[{"msg":"field required"}]}', '[{"msg":"field required"}]'),
        (b'{"code":503,"message":"m"}', '{"code":503,"message":"m"}'),
        (b" <html>boom</html>\n", "<html>boom</html>"),
        (b"\xff", "\ufffd"),
        (b"", "the backend answered 500 Oops"),
        (b"[" * 100_000, "[" * 100_000),
    ],
)
def test_every_error_becomes_one_text(text: bytes, words: str) -> None:
    body, said = error_body(text, 500, "Oops")
    assert said == words
    assert json.loads(body) == {"error": words}


def test_an_error_of_the_right_shape_crosses_as_it_is() -> None:
    text = b'{ "error" : "a", "more": 1 }'
    assert error_body(text, 400, "") == (text, "a")


def test_a_reason_that_is_no_text_is_no_trouble() -> None:
    assert error_body(b"", 520, "")[1] == "the backend answered 520"
    assert error_body(b"", 400, "Err\udce9ur")[1] == "the backend answered 400 Err?ur"


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
