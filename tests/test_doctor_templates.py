"""The doctor before servers that speak no protocol: `--path` and `--sample`."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from gateway import config
from gateway.doctor.template_trials import MAX_SAMPLE_BYTES, Guess, filled, shape_of
from tests.conftest import running
from tests.test_doctor import answered_by, doctor

SAMPLE = {"features": [[1.0, 2.0, 1.0]], "user": "$web"}


def answer_of(body: Any) -> Any:
    shares = [[value / sum(row) for value in row] for row in body["features"]]
    return {"probabilities": shares, "result": {"labels": ["green" for _ in shares]}, "took": 3}


@asynccontextmanager
async def legacy(openapi: Any = None, answer: Any = answer_of, token: str = "") -> AsyncIterator[str]:
    """The URL of a server with `POST /predict` and `GET /health`."""

    async def predict(request: web.Request) -> web.Response:
        if token and request.headers.get("Authorization") != f"Bearer {token}":
            return web.json_response({"detail": "who are you?"}, status=401)
        try:
            return web.json_response(answer(await request.json()))
        except (KeyError, TypeError, ValueError) as error:
            return web.json_response({"detail": f"bad sample: {error}"}, status=422)

    async def described(request: web.Request) -> web.Response:
        return web.json_response(openapi) if openapi is not None else web.Response(status=404)

    async def health(request: web.Request) -> web.Response:
        return web.Response(text="fine")

    application = web.Application()
    application.add_routes(
        [web.post("/predict", predict), web.get("/openapi.json", described), web.get("/health", health)]
    )
    async with answered_by(application) as url:
        yield url


@pytest.fixture
def sample(tmp_path: Path) -> str:
    (tmp_path / "sample.json").write_text(json.dumps(SAMPLE))
    return str(tmp_path / "sample.json")


async def test_a_template_is_written_from_a_sample_and_works_at_once(sample: str) -> None:
    async with legacy() as url:
        found = await doctor(url, "--path", "/predict", "--sample", sample, "--model", "colours")
        assert (found.code, found.complained) == (1, "")
        assert '{"probabilities": [[0.25, 0.5, 0.25]]' in found.findings("ok")[1]
        (problem,) = found.findings("problem")
        assert "Guessed from their values: features FP32, probabilities FP32, labels BYTES." in problem
        assert found.table["infer in binary"].startswith("yes, with the same values as straight in JSON")
        assert found.backend["health"] == {"path": "/health"}
        assert found.backend["models"]["colours"] == {
            "inputs": {"features": {"datatype": "FP32", "shape": [-1, 3]}},
            "outputs": {
                "probabilities": {"datatype": "FP32", "shape": [-1, 3]},
                "labels": {"datatype": "BYTES", "shape": [-1]},
            },
            "request": {"path": "/predict", "body": {"features": "$features", "user": "$$web"}},
            "answer": {"probabilities": "$.probabilities", "labels": "$.result.labels"},
        }
        alone = await doctor(url, "--path", "/predict", "--sample", sample, "--yaml")
        assert "# GUESSED from the numbers" in alone.printed
        backend = yaml.safe_load(alone.printed)["backends"]["default"]
        assert config.parse(alone.printed).backends["default"].dialect == "template"
        del backend["endpoints"]
        async with running(url, "", yaml.safe_dump(backend)) as client:
            entry = {"name": "features", "datatype": "FP32", "shape": [1, 3], "data": [1, 1, 2]}
            reply = await client.request("POST", "/v2/models/model/infer", json={"inputs": [entry]})
            assert [output["data"] for output in reply.json["outputs"]] == [[0.25, 0.25, 0.5], ["green"]]


PROPERTIES = {"features": {"type": "array", "examples": [[[1.0, 1.0]]]}, "user": {"type": "string", "default": "web"}}


@pytest.mark.parametrize(
    "content",
    [
        {"example": SAMPLE},
        {"examples": {"one": {"value": SAMPLE}}},
        {"schema": {"$ref": "#/components/schemas/Sample"}},
        {"schema": {"examples": [SAMPLE]}},
        {"schema": {"properties": PROPERTIES}},
    ],
)
async def test_the_servers_own_example_is_a_sample(content: dict[str, Any]) -> None:
    operation = {"requestBody": {"content": {"application/json": content}}}
    openapi = {"paths": {"/predict": {"post": operation}}, "components": {"schemas": {"Sample": {"example": SAMPLE}}}}
    async with legacy(openapi) as url:
        found = await doctor(url, "--path", "/predict")
    assert list(found.backend["models"]["model"]["inputs"]) == ["features"]


@pytest.mark.parametrize(
    ("openapi", "answer", "words"),
    [
        (None, answer_of, "the server's /openapi.json has no example of a request to /predict: give one with --sample"),
        ({"paths": {"/predict": {"post": {}}}}, answer_of, "no example of a request"),
        ({"wrong": SAMPLE}, answer_of, "the sample was refused: 422"),
        ({}, answer_of, "the sample has no value that could be an input"),
        (SAMPLE, lambda body: "done", "has outputs"),
        (SAMPLE, lambda body: None, "the answer to the sample is no JSON that has outputs in it"),
    ],
)
async def test_what_is_no_sample_ends_with_2(openapi: Any, answer: Any, words: str) -> None:
    if openapi is not None and "paths" not in openapi:
        operation = {"requestBody": {"content": {"application/json": {"example": openapi}}}}
        openapi = {"paths": {"/predict": {"post": operation}}}
    async with legacy(openapi, answer) as url:
        found = await doctor(url, "--path", "/predict")
    if words == "has outputs":  # a text alone is one output
        assert found.backend["models"]["model"]["answer"] == {"output": "$"}
        return
    assert found.code == 2
    assert words in found.findings("problem")[0]


async def test_a_server_that_needs_credentials_says_so(sample: str) -> None:
    async with legacy(token="t") as url:
        found = await doctor(url, "--path", "/predict", "--sample", sample)
        assert "it needs credentials (401" in found.findings("problem")[0]
        given = await doctor(url, "--path", "/predict", "--sample", sample, "--header", "Authorization: Bearer t")
        assert given.table["infer in binary"].startswith("yes")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--sample", "x.json"], "--sample: goes with --path"),
        (["--path", "predict"], "--path predict: expected a path that starts with /"),
        (["--path", "/p", "--sample", "/nowhere.json"], "--sample /nowhere.json: cannot be read"),
    ],
)
async def test_what_is_wrong_with_the_options_is_said(options: list[str], words: str) -> None:
    found = await doctor("http://127.0.0.1:1", *options)
    assert found.code == 2
    assert words in found.complained


async def test_a_sample_that_is_none_is_said(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("{")
    (tmp_path / "b").write_bytes(b" " * (MAX_SAMPLE_BYTES + 1))
    for name, words in (("a", "not JSON"), ("b", "more than")):
        found = await doctor("http://127.0.0.1:1", "--path", "/p", "--sample", str(tmp_path / name))
        assert words in found.complained


@pytest.mark.parametrize(
    ("document", "body", "paths"),
    [
        ([{"age": 1, "plan": "a"}, {"age": 2, "plan": "b"}], {"$each": {"age": "$age", "plan": "$plan"}},
         {"age": "$[*].age", "plan": "$[*].plan"}),
        ({"instances": [{"features": [1, 2]}], "k": [1]},
         {"instances": {"$each": {"features": "$features"}}, "k": "$k"},
         {"features": "$.instances[*].features", "k": "$.k"}),
        ({"text": "hello", "n": 3}, {"text": "$text", "n": "$n"}, {"text": "$.text", "n": "$.n"}),
        ({"a": {"x": [1]}, "b": {"x": [2]}, "id": [3]}, {"a": {"x": "$x"}, "b": {"x": "$b_x"}, "id": "$id_2"},
         {"x": "$.a.x", "b_x": "$.b.x", "id_2": "$.id"}),
        ([[1, 2], [3, 4]], "$only", {"only": "$"}),
        ({"mixed": [1, "a"], "ragged": [[1], [1, 2]], "x": [1]},
         {"mixed": [1, "a"], "ragged": [[1], [1, 2]], "x": "$x"},
         {"x": "$.x"}),
        ({"rows": [{"m": {"p": 0.5}, "q": None}]}, {"rows": {"$each": {"m": {"p": "$p"}, "q": None}}},
         {"p": "$.rows[*].m.p"}),
        ({"a b": [1]}, {"a b": "$a b"}, {"a b": '$["a b"]'}),
    ],
)  # fmt: skip
def test_tensors_are_found_in_a_document(document: Any, body: Any, paths: dict[str, str]) -> None:
    guess = Guess(document, "only")
    assert (guess.body, guess.paths) == (body, paths)
    assert filled(body, guess.tensors) == document


@pytest.mark.parametrize(
    "document",
    [
        {"$x": [1, 2], "$each": {"": [3]}, "$": [4.5]},
        {"id": [1], "a": {"id": [2]}, "b": [{"parameters": 3}]},
        {"x": [0], "a": {"b": {"x": [1]}}, "a_b": {"x": [2]}, "c": {"x": [3]}},
        {"rows": [{}, {}], "x": [1], "deep": {"rows": [{"a": {}}]}},
        {"rows": [{"a": 1}, {"b": "$2"}], "x": [1], "mixed": ["$y", 1, {"$z": None}]},
    ],
)
def test_any_document_is_a_template_that_loads(document: Any) -> None:
    guess = Guess(document, "only")
    assert filled(guess.body, guess.tensors) == document
    described = guess.described()
    model = {"request": {"path": "/", "body": guess.body}, "answer": guess.paths}
    model = {"inputs": described, "outputs": described, **model}
    backend = {"endpoints": ["http://x"], "dialect": "template", "models": {"m": model}}
    assert config.parse(yaml.safe_dump({"backends": {"b": backend}}))


def test_shapes_are_those_of_rectangular_lists() -> None:
    assert shape_of([[1, 2.5], [3, None]]) == (2, 2)
    assert shape_of([[], []]) == (2, 0)
    assert shape_of("a") == ()
    assert shape_of([[1], 2]) is shape_of([{"a": 1}]) is shape_of(["a", 1]) is None
