"""Where the JSON of a body ends whose client did not say it (protocol section 6)."""

import json

import pytest

from gateway.codec.inference import HeaderLimits
from gateway.codec.v2.request_reading import find_header_length
from gateway.errors import CodecError
from tests.steps import run

pytestmark = pytest.mark.rule("6")

BINARY = {"name": "x", "datatype": "UINT8", "shape": [4], "parameters": {"binary_data_size": 4}}
IN_JSON = {"name": "x", "datatype": "UINT8", "shape": [2], "data": [1, 2]}
HEADER = json.dumps({"inputs": [BINARY]}).encode()
WITHOUT_BLOBS = [
    b'{"inputs": []}',
    json.dumps({"inputs": [IN_JSON]}).encode(),
    json.dumps({"inputs": [IN_JSON], "parameters": {"binary_data_output": True}}).encode(),
    json.dumps({"inputs": [IN_JSON], "outputs": [{"name": "y", "parameters": {"binary_data": True}}]}).encode(),
    b"no JSON",
]


@pytest.mark.parametrize("blob", [b"\0\1\2\3", b"    ", b"}}}}", b'"{}"'])
def test_the_json_ends_where_the_blobs_begin(blob: bytes) -> None:
    assert run(find_header_length(memoryview(HEADER + blob))) == len(HEADER)


@pytest.mark.parametrize("blob", [b" " * 500, b"\0" * 500])
def test_a_blob_of_blanks_does_not_count_as_header(blob: bytes) -> None:
    """It would make JSON with blanks behind it, which is longer than a header may be here."""
    entry = BINARY | {"shape": [500], "parameters": {"binary_data_size": 500}}
    header = json.dumps({"inputs": [entry]}).encode()
    assert run(find_header_length(memoryview(header + blob), HeaderLimits(200))) == len(header)


@pytest.mark.parametrize("body", WITHOUT_BLOBS)
def test_a_body_without_blobs_is_json_to_its_end(body: bytes) -> None:
    assert run(find_header_length(memoryview(body))) is None


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (HEADER + b"\0" * 3, "Inference-Header-Content-Length"),
        (HEADER + b"\0" * 5, "Inference-Header-Content-Length"),
        (HEADER, "Inference-Header-Content-Length"),
        (b"", "empty request body"),
    ],
)
def test_blobs_of_another_length_are_refused(body: bytes, words: str) -> None:
    with pytest.raises(CodecError, match=words):
        run(find_header_length(memoryview(body)))


def test_the_memory_of_the_header_is_asked_for_before_it_is_built() -> None:
    asked = []

    def reserve(n_bytes: int) -> None:
        asked.append(n_bytes)
        raise MemoryError

    with pytest.raises(MemoryError):
        run(find_header_length(memoryview(HEADER + b"\0\1\2\3"), reserve=reserve))
    assert asked[0] >= len(HEADER)
