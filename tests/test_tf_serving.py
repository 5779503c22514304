"""The stand-in for TensorFlow Serving answers as the documentation of TensorFlow Serving says."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from gateway.codec.dialects.tensorflow import TensorFlow
from tests.tf_serving import MODELS, NUMPY, tf_serving

TENSORFLOW = TensorFlow()


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with tf_serving() as url:
        yield url


def ask(url: str, body: str | bytes | None = None) -> tuple[int, bytes]:
    """Status and body of a GET, or of a POST of *body*."""
    data = body.encode() if isinstance(body, str) else body
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=30) as response:
            return int(response.status), response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


@pytest.mark.parametrize(
    ("model", "body", "answer"),
    [
        ("half_plus_two", '{"instances": [1.0, 2.0, 5.0]}', {"predictions": [2.5, 3.0, 4.5]}),
        ("half_plus_two", '{"inputs": [[1.0], [2.0]]}', {"outputs": [[2.5], [3.0]]}),
        ("half_plus_two", '{"inputs": {"x": [3]}, "signature_name": "triple"}', {"outputs": [9.0]}),
        ("half_plus_two/versions/122", '{"inputs": [1.0]}', {"outputs": [3.5]}),
        (
            "pair",
            '{"instances": [{"a": [1, 2], "b": 3}, {"a": [4, 5], "b": 9007199254740993}]}',
            {
                "predictions": [
                    {"sum": [4.0, 5.0], "twice": 6},
                    {"sum": [9.00719925e15, 9.00719925e15], "twice": 18014398509481986},
                ]
            },
        ),
        ("pair", '{"inputs": {"a": [[1, 2]], "b": [3]}}', {"outputs": {"sum": [[4.0, 5.0]], "twice": [6]}}),
        ("scalar", '{"inputs": 0.1}', {"outputs": 0.1}),
        ("filter", '{"inputs": [[1, 2]]}', {"outputs": []}),
        ("filter", '{"instances": [[1, 2]]}', {"predictions": []}),
        ("only_bytes", '{"instances": [{"b64": "AP8="}, "é"]}', {"predictions": [{"b64": "AP8="}, {"b64": "w6k="}]}),
        ("double", '{"inputs": [1e-300, 0.1, 12345678]}', {"outputs": [1e-300, 0.1, 12345678.0]}),
        ("uint64", '{"inputs": [18446744073709551615]}', {"outputs": [2**64 - 1]}),
    ],
)
def test_predictions_have_the_form_of_the_request(server: str, model: str, body: str, answer: object) -> None:
    status, text = ask(f"{server}/v1/models/{model}:predict", body)
    assert (status, json.loads(text)) == (200, answer)


def test_what_json_does_not_have_is_written_as_tensorflow_serving_does(server: str) -> None:
    _, text = ask(f"{server}/v1/models/float:predict", '{"instances": [NaN, -Infinity, Infinity, 123456789.0, 1e-7]}')
    assert b"".join(text.split()) == b'{"predictions":[NaN,-Infinity,Infinity,123456792.0,1e-07]}'
    _, text = ask(f"{server}/v1/models/text:predict", '{"instances": [{"b64": "/w=="}]}')
    assert b'"text": "\xff"' in text
    assert b'"raw_bytes": {\n            "b64": "/w=="\n        }' in text


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/v1/models", None, 400, "Missing model name in request."),
        ("/v1/models/no", None, 404, "Could not find any versions of model no"),
        ("/v1/models/image/versions/9", None, 404, "Could not find version 9 of model image"),
        ("/v1/models/no/metadata", None, 404, "Servable not found for request: Latest(no)"),
        ("/v1/other", None, 400, "Malformed request: GET /v1/other"),
        ("/v1/models/loading:predict", "{}", 404, "Servable not found for request: Latest(loading)"),
        ("/v1/models/pair/versions/9:predict", "{}", 404, "Servable not found for request: Specific(pair, 9)"),
        ("/v1/models/pair:predict", "", 400, "JSON Parse error: The document is empty"),
        ("/v1/models/pair:predict", "{", 400, "JSON Parse error"),
        ("/v1/models/pair:predict", "[]", 400, "Is not object"),
        ("/v1/models/pair:predict", "{}", 400, "Missing 'inputs' or 'instances' key"),
        ("/v1/models/pair:predict", '{"inputs": {"a": [[1, 2]]}}', 400, "Missing named input: b in 'inputs' object."),
        ("/v1/models/pair:predict", '{"inputs": [1]}', 400, "inputs is a plain value/list"),
        ("/v1/models/pair:predict", '{"instances": [{"a": [1, 2]}]}', 400, "keys must be equal to: a,b"),
        (
            "/v1/models/pair:predict",
            '{"instances": [{"c": 1}]}',
            400,
            "key: c of 'instances' list. Error: INVALID",
        ),
        (
            "/v1/models/pair:predict",
            '{"instances": [[1]]}',
            400,
            "instances is a plain list, but expecting list",
        ),
        (
            "/v1/models/float:predict",
            '{"instances": [1, {"x": 1}]}',
            400,
            "Expecting value/list but got object at item",
        ),
        ("/v1/models/float:predict", '{"instances": [{"x": 1}, 1]}', 400, "Expecting object but got list at item 1"),
        (
            "/v1/models/float:predict",
            '{"instances": [[1], [1, 2]]}',
            400,
            "Error: INVALID_ARGUMENT: Expecting tensor",
        ),
        ("/v1/models/float:predict", '{"instances": [[1], [[1]]]}', 400, "Expecting shape [1] but got: [1,1]"),
        ("/v1/models/half:predict", '{"instances": [1.0]}', 400, "Error: UNIMPLEMENTED: Conversion of JSON Value: 1.0"),
        ("/v1/models/pair:predict", '{"instances": []}', 400, "No values in 'instances' array"),
        ("/v1/models/no_default:predict", '{"inputs": [1]}', 400, '"serving_default" not found in signature def'),
        ("/v1/models/float:predict", '{"inputs": [[1], [2, 3]]}', 400, "Encountered list at unexpected size: 2"),
        ("/v1/models/float:predict", '{"inputs": [16777217]}', 400, "without loss of precision"),
        ("/v1/models/int32:predict", '{"inputs": [1.0]}', 400, "is not of expected type: int32"),
        ("/v1/models/half:predict", '{"inputs": [1.0]}', 501, "Conversion of JSON Value: 1.0 to type: half"),
        ("/v1/models/image:predict", '{"inputs": [[1]]}', 400, "Cannot feed value of shape [1, 1]"),
        ("/v1/models/weighted:predict", '{"instances": [{"rows": [1, 2], "weights": 1}]}', 400, "Cannot feed value"),
        ("/v1/models/broken:predict", '{"inputs": [1]}', 500, "boom"),
    ],
)
def test_errors_have_its_words_and_statuses(server: str, path: str, body: str | None, status: int, words: str) -> None:
    got, text = ask(server + path, body)
    assert got == status
    assert words in json.loads(text)["error"]


def test_what_is_not_its_own_is_an_empty_404(server: str) -> None:
    assert ask(f"{server}/v2") == (404, b"")


@pytest.mark.parametrize("model", MODELS)
def test_its_metadata_and_status_are_understood(server: str, model: str) -> None:
    is_available = MODELS[model].state == "AVAILABLE"
    status, text = ask(f"{server}{TENSORFLOW.paths(model, None).ready}")
    assert (status, TENSORFLOW.is_ready(text)) == (200, is_available)
    status, text = ask(f"{server}{TENSORFLOW.paths(model, None).description}")
    if not is_available:
        assert status == 404
        return
    described = TENSORFLOW.read_description(text, "custom" if model == "no_default" else "")
    signature = next(iter(MODELS[model].versions[int(described.versions[0])].values()))
    assert {name: tensor.shape for name, tensor in described.outputs.items()} == {
        name: tensor.shape for name, tensor in signature.outputs.items()
    }
    assert all(tensor.datatype is not None for tensor in (*described.inputs.values(), *described.outputs.values()))


def test_it_lives_as_the_dialect_sees_it(server: str) -> None:
    assert TENSORFLOW.is_live(*ask(server + TENSORFLOW.live_path))


def test_there_is_a_model_of_every_datatype() -> None:
    assert NUMPY.keys() <= MODELS.keys()


def test_errors_may_have_a_plain_type() -> None:
    with tf_serving("--plain-errors") as url, pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"{url}/v1/models/no", timeout=30)
    with caught.value as error:
        assert error.headers["Content-Type"].startswith("text/plain")
        assert "error" in json.loads(error.read())
