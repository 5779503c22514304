"""The doctor before servers that speak no protocol: `--path` and `--sample`."""

import json
import random
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from gateway import config
from gateway.doctor.tensors import Guess, described, shape_of
from tests.conftest import running
from tests.test_doctor import answered_by, doctor, unwrapped

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
        assert "Guessed from one inference: features FP32, probabilities FP32, labels BYTES." in problem
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
        assert "# GUESSED from one inference" in alone.printed
        backend = yaml.safe_load(alone.printed)["backends"]["default"]
        assert config.parse(alone.printed).backends["default"].dialect == "template"
        del backend["endpoints"]
        async with running(url, "", yaml.safe_dump(backend)) as client:
            entry = {"name": "features", "datatype": "FP32", "shape": [1, 3], "data": [1, 1, 2]}
            reply = await client.request("POST", "/v2/models/model/infer", json={"inputs": [entry]})
            assert [output["data"] for output in reply.json["outputs"]] == [[0.25, 0.25, 0.5], ["green"]]


@pytest.mark.parametrize(
    "content",
    [
        {"example": SAMPLE},
        {"examples": {"one": {"value": SAMPLE}}},
        {"schema": {"$ref": "#/components/schemas/Sample"}},
        {"schema": {"examples": [SAMPLE]}},
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


@pytest.mark.parametrize(
    ("sample", "answer", "words"),
    [
        ("null", [1], "the sample has no value that could be an input"),
        (f"[1{'0' * 400}]", [1], "the sample has values that are not FP64"),
        (f"[1.5, 1{'0' * 400}]", [1], "the sample has values that are not FP64"),
        ("[1]", [10**400], "the answer to the sample has values that are not FP64"),
    ],
)
async def test_a_sample_of_which_no_tensor_can_be_made_ends_with_2(
    sample: str, answer: Any, words: str, tmp_path: Path
) -> None:
    (tmp_path / "sample.json").write_text(sample)
    async with legacy(answer=lambda body: answer) as url:
        found = await doctor(url, "--path", "/predict", "--sample", str(tmp_path / "sample.json"))
    assert found.code == 2
    assert words in found.findings("problem")[0]


async def test_rows_that_differ_in_what_no_tensor_has_are_pointed_out(tmp_path: Path) -> None:
    rows = [{"age": 1, "tags": ["a", None], "of": None}, {"age": 2, "tags": ["b"], "of": None}]
    (tmp_path / "sample.json").write_text(json.dumps({"rows": rows}))
    async with legacy(answer=lambda body: {"sum": [row["age"] for row in body["rows"]]}) as url:
        found = await doctor(url, "--path", "/predict", "--sample", str(tmp_path / "sample.json"))
    assert any("differ at $.rows[*].tags in values" in words for words in found.findings("problem"))


async def test_a_server_that_needs_credentials_says_so(sample: str) -> None:
    async with legacy(token="t") as url:
        found = await doctor(url, "--path", "/predict", "--sample", sample)
        assert "it needs credentials (401" in found.findings("problem")[0]
        arguments = ("--path", "/predict", "--sample", sample, "--header", "Authorization: Bearer ${TOKEN}")
        given = await doctor(url, *arguments, environment={"TOKEN": "t"})
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
    (tmp_path / "b").write_text('"\\ud800"')
    for name, words in (("a", "not JSON"), ("b", "not JSON")):
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


@pytest.mark.parametrize(
    "document",
    [
        {"$x": [1, 2], "$each": {"": [3]}, "$": [4.5]},
        {"id": [1], "a": {"id": [2]}, "b": [{"parameters": 3}]},
        {"x": [0], "a": {"b": {"x": [1]}}, "a_b": {"x": [2]}, "c": {"x": [3]}},
        {"rows": [{}, {}], "x": [1], "deep": {"rows": [{"a": {}}]}},
        {"rows": [{"a": 1}, {"b": "$2"}], "x": [1], "mixed": ["$y", 1, {"$z": None}]},
        {"x": [1], "huge": 2**70},
        {"x": [1, 2**63], "y": [2**64], "mixed": [True, 1], "holes": ["a", None], "nothing": [None]},
    ],
)
def test_any_document_is_a_template_that_loads(document: Any) -> None:
    guess = Guess(document, "only")
    inputs = described(guess.tensors.values())
    model = {"request": {"path": "/", "body": guess.body}, "answer": guess.paths}
    model = {"inputs": inputs, "outputs": inputs, **model}
    backend = {"endpoints": ["http://x"], "dialect": "template", "models": {"m": model}}
    assert config.parse(yaml.safe_dump({"backends": {"b": backend}}))


NAMES = ("x", "y", "id", "parameters", "a b", "$x", "$each", "$flat", "$", "", "é", "0", "a.b", "b64", "error")
SCALARS = (0, -3, 2**40, 2**63, 2**64, 2**70, 0.1, 1.5, 1e300, True, False, None, "", "a", "$x", "$$", "é", "\0", "~")
KINDS = (
    (0, 7, -(2**63)),
    (0.5, 0.1, 1e300),
    ("a", "", "$x"),
    (True, False),
    (1, 0.5),
    (1.5, None),
    (True, 1),
    ("a", None),
)


def any_document(draw: random.Random, depth: int = 0) -> Any:
    """A document with nested lists, records, and what templates have to escape."""
    form = draw.choice(("object", "tensor", "list", "records", "scalar") if depth < 4 else ("scalar",))
    if form == "object":
        return {draw.choice(NAMES): any_document(draw, depth + 1) for _ in range(draw.randint(0, 3))}
    if form == "tensor":
        return nested(draw, [draw.choice((1, 1, 2, 3, 0)) for _ in range(draw.randint(1, 3))], draw.choice(KINDS))
    if form == "list":
        return [any_document(draw, depth + 1) for _ in range(draw.randint(0, 3))]
    if form == "records":
        kinds = {
            draw.choice(NAMES): (draw.choice(([], [], [2])), draw.choice(KINDS)) for _ in range(draw.randint(1, 3))
        }
        return [{name: nested(draw, *kind) for name, kind in kinds.items()} for _ in range(draw.randint(1, 3))]
    return draw.choice(SCALARS)


def nested(draw: random.Random, shape: list[int], values: Sequence[Any]) -> Any:
    if not shape:
        return draw.choice(values)
    return [nested(draw, shape[1:], values) for _ in range(shape[0])]


async def test_any_sample_and_any_answer_give_a_file_that_check_takes_and_that_works(tmp_path: Path) -> None:
    n_working = 0
    for seed in range(30, 60):
        draw = random.Random(seed)
        sent, answered = any_document(draw), any_document(draw)
        came: list[Any] = []

        def answer(body: Any, answered: Any = answered, came: list[Any] = came, *, is_echo: bool = seed % 2 > 0) -> Any:
            came.append(body)
            return {"echo": body, "more": answered} if is_echo else answered

        file = tmp_path / "sample.json"
        file.write_text(json.dumps(sent))
        async with legacy(answer=answer) as url:
            found = await doctor(url, "--path", "/predict", "--sample", str(file), "--yaml")
        if found.code == 2:
            words = ("no value that could be an input", "no JSON that has outputs", "rows of the sample differ")
            assert any(each in unwrapped(found.complained) for each in words), (seed, found.complained)
            continue
        n_working += 1
        assert config.parse(found.printed).backends["default"].dialect == "template"
        table = unwrapped(found.complained)
        assert re.search("infer in binary +yes, with the same values as straight in JSON", table), (seed, table)
        assert came.count(sent) >= len(came) / 2, seed  # the others have NaN, where an input can be that
    assert n_working > 15


def test_shapes_are_those_of_rectangular_lists() -> None:
    assert shape_of([[1, 2.5], [3, None]]) == (2, 2)
    assert shape_of([[], []]) == (2, 0)
    assert shape_of("a") == ()
    assert shape_of(["a", None]) is shape_of([True, 1]) is shape_of([None]) is None
    assert shape_of([[1], 2]) is shape_of([{"a": 1}]) is shape_of(["a", 1]) is None
