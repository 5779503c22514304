"""The doctor before servers that speak no protocol: `--path` and `--sample`. The servers are strict."""

import base64
import json
import random
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from aiohttp import web

from gateway import config
from tests.conftest import running
from tests.test_doctor import Examined, answered_by, doctor, unwrapped
from tests.test_doctor_candidates import any_document

SAMPLE = {"features": [[1.0, 2.0, 1.0]], "user": "$web"}
SAME = re.compile(r"yes; \d+ varied requests \(\d+ rows\) gave the same values as straight, ")


def answer_of(body: Any) -> Any:
    shares = [[value / sum(row) for value in row] for row in body["features"]]
    labels = ["green" if row[1] == max(row) else "red" for row in body["features"]]
    return {"probabilities": shares, "result": {"labels": labels}, "took": 3}


@asynccontextmanager
async def legacy(openapi: Any = None, answer: Callable[[Any], Any] = answer_of, token: str = "") -> AsyncIterator[str]:
    """The URL of a server with `POST /predict` and `GET /health`."""

    async def predict(request: web.Request) -> web.Response:
        if token and request.headers.get("Authorization") != f"Bearer {token}":
            return web.json_response({"detail": "who are you?"}, status=401)
        try:
            return web.json_response(answer(await request.json()))
        except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError, IndexError) as error:
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


async def examined(answer: Callable[[Any], Any], folder: Path, *samples: Any) -> Examined:
    """What the doctor says of a server with this *answer*; its file is in `backend`."""
    options = ["--path", "/predict"]
    for number, each in enumerate(samples):
        file = folder / f"{number}.json"
        file.write_text(json.dumps(each))
        options += ["--sample", str(file)]
    async with legacy(answer=answer) as url:
        found = await doctor(url, *options)
    assert found.complained == "", found.complained
    return found


def model_of(found: Examined) -> dict[str, Any]:
    model: dict[str, Any] = found.backend["models"]["model"]
    return model


def declared(found: Examined, side: str) -> dict[str, str]:
    """The inputs or outputs in the file, as `FP64 [n, 3]`."""
    tensors = model_of(found)[side]
    return {name: f"{each['datatype']} {each['shape']}".replace("'", "") for name, each in tensors.items()}


async def infer(found: Examined, answer: Callable[[Any], Any], **inputs: tuple[str, list[int], Any]) -> Any:
    """The outputs for *inputs*, of a gateway with the file that was *found*; a text if it refuses them."""
    async with (
        legacy(answer=answer) as url,
        running(url, "", yaml.safe_dump(found.backend)) as client,
    ):
        entries = [
            {"name": name, "datatype": datatype, "shape": shape, "data": data}
            for name, (datatype, shape, data) in inputs.items()
        ]
        reply = await client.request("POST", "/v2/models/model/infer", json={"inputs": entries})
        if reply.status != 200:
            return reply.json["error"]
        return {output["name"]: output["data"] for output in reply.json["outputs"]}


def agrees(found: Examined) -> bool:
    """Whether all that was tried gave the same values through the gateway."""
    return bool(SAME.match(found.table["infer in binary"]))


async def test_a_template_is_written_from_a_sample_and_works_at_once(sample: str) -> None:
    async with legacy() as url:
        found = await doctor(url, "--path", "/predict", "--sample", sample, "--model", "colours")
        assert (found.code, found.complained) == (1, "")
        assert '{"probabilities": [[0.25, 0.5, 0.25]]' in found.findings("ok")[1]
        (problem,) = found.findings("problem")
        assert re.search(r"Guessed from \d+ requests: features FP64, probabilities FP64, labels BYTES\.", problem)
        assert agrees(found), found.printed
        assert 'with these constants: $.user: "$web"' in found.table["infer in binary"]
        assert found.backend["health"] == {"path": "/health"}
        assert found.backend["models"]["colours"] == {
            "inputs": {"features": {"datatype": "FP64", "shape": ["n", -1]}},
            "outputs": {
                "probabilities": {"datatype": "FP64", "shape": ["n", -1]},
                "labels": {"datatype": "BYTES", "shape": ["n"]},
            },
            "request": {"path": "/predict", "body": {"features": "$features", "user": "$$web"}},
            "answer": {"probabilities": "$.probabilities", "labels": "$.result.labels"},
        }
        alone = await doctor(url, "--path", "/predict", "--sample", sample, "--yaml")
        assert re.search(r"# GUESSED from \d+ requests", alone.printed)
        backend = yaml.safe_load(alone.printed)["backends"]["default"]
        assert config.parse(alone.printed).backends["default"].dialect == "template"
        del backend["endpoints"]
        async with running(url, "", yaml.safe_dump(backend)) as client:
            entry = {"name": "features", "datatype": "FP64", "shape": [1, 3], "data": [1, 1, 2]}
            reply = await client.request("POST", "/v2/models/model/infer", json={"inputs": [entry]})
            assert [output["data"] for output in reply.json["outputs"]] == [[0.25, 0.25, 0.5], ["red"]]


# What once was guessed in silence


def frame(body: Any) -> Any:
    if body["dataframe_split"]["columns"] != ["age", "plan"]:
        raise ValueError("unknown columns")
    return {"predictions": [age / 7 + len(plan) for age, plan in body["dataframe_split"]["data"]]}


async def test_the_rows_of_a_data_frame_are_inputs_named_after_its_columns(tmp_path: Path) -> None:
    sent = {"dataframe_split": {"columns": ["age", "plan"], "data": [[30, "gold"], [40, "free"]]}}
    found = await examined(frame, tmp_path, sent)
    body = {"dataframe_split": {"columns": ["age", "plan"], "data": {"$each": ["$age", "$plan"]}}}
    assert model_of(found)["request"]["body"] == body
    assert declared(found, "inputs") == {"age": "FP64 [n]", "plan": "BYTES [n]"}
    assert agrees(found), found.printed
    assert 'with these constants: $.dataframe_split.columns: ["age", "plan"]' in found.table["infer in binary"]
    assert any('columns: ["age", "plan"] is the same in every request' in words for words in found.findings("note"))
    outputs = await infer(found, frame, age=("FP64", [1], [35]), plan=("BYTES", [1], ["x"]))
    assert outputs == {"predictions": [6.0]}


def likeness(one: str, other: str) -> float:
    return len(set(one) & set(other)) / len(set(one) | set(other) | {"?"})


def ranker(body: Any) -> Any:
    if not isinstance(body["query"], str):
        raise TypeError("one query")
    scores = [likeness(body["query"], text) for text in body["texts"]]
    rows = [{"index": index, "score": score} for index, score in enumerate(scores)]
    return {"results": sorted(rows, key=lambda row: -row["score"])}


async def test_a_query_beside_texts_is_an_input_and_a_sorted_answer_gets_its_order(tmp_path: Path) -> None:
    found = await examined(ranker, tmp_path, {"query": "hello", "texts": ["abc", "help", "yellow"]})
    assert declared(found, "inputs") == {"query": "BYTES []", "texts": "BYTES [n]"}
    assert any("$.query is a text" in words and "made an input" in words for words in found.findings("note"))
    assert model_of(found)["order"] == "$.results[*].index"
    assert list(model_of(found)["outputs"]) == ["score"]
    assert any("$.results[*].index is no output: it is the number of each row" in n for n in found.findings("note"))
    assert agrees(found), found.printed
    sent: dict[str, Any] = {"query": ("BYTES", [], ["ab"]), "texts": ("BYTES", [3], ["x", "ab", "b"])}
    outputs = await infer(found, ranker, **sent)
    assert outputs == {"score": [likeness("ab", text) for text in ("x", "ab", "b")]}


def sorts(body: Any) -> Any:
    return {"scores": sorted([sum(row) / 7 for row in body["x"]], reverse=True)}


async def test_an_order_that_nothing_tells_is_a_problem_that_names_batch(tmp_path: Path) -> None:
    found = await examined(sorts, tmp_path, {"x": [[1.5, 2.0], [3.0, 4.0]]})
    assert "order" not in model_of(found)
    assert any("`batch` is unsafe" in words and "reverse" in words for words in found.findings("problem"))
    assert any(line.strip().startswith("# - rows in reverse") for line in found.printed.splitlines())


def share(body: Any) -> Any:
    total = sum(row[0] for row in body["x"])
    return {"y": [row[0] / total for row in body["x"]]}


async def test_rows_that_depend_on_each_other_are_a_problem_that_names_batch(tmp_path: Path) -> None:
    found = await examined(share, tmp_path, {"x": [[1.5], [2.5]]})
    assert any("`y`: a row alone is answered otherwise" in words for words in found.findings("problem"))


def one_text(body: Any) -> Any:
    if isinstance(body["text"], list):
        return [{"label": "pair", "score": 1.0}] * len(body["text"])
    return {"label": "odd" if len(body["text"]) % 2 else "even", "score": len(body["text"]) / 37}


async def test_a_single_text_is_one_row_and_each_row_a_request_of_its_own(tmp_path: Path) -> None:
    found = await examined(one_text, tmp_path, {"text": "a good film"})
    assert model_of(found)["request"] == {"path": "/predict", "body": {"text": "$text"}, "rows": 1}
    assert declared(found, "inputs") == {"text": "BYTES [n]"}
    assert declared(found, "outputs") == {"label": "BYTES [n]", "score": "FP64 [n]"}
    assert agrees(found), found.printed
    outputs = await infer(found, one_text, text=("BYTES", [3], ["a", "bb", "ccc"]))
    assert outputs == {"label": ["odd", "even", "odd"], "score": [1 / 37, 2 / 37, 3 / 37]}


def with_status(body: Any) -> Any:
    if any(value > 9 for row in body["x"] for value in row):
        return {"status": "failed", "output": None, "error": "too large"}
    return {"status": "ok", "output": [sum(row) for row in body["x"]], "error": None}


async def test_a_status_is_proposed_as_success_and_what_is_null_is_named(tmp_path: Path) -> None:
    found = await examined(with_status, tmp_path, {"x": [[1.5, 2.0], [3.0, 4.0]]})
    assert any("`success: {$.status: ok}`" in re.sub(" +", " ", words) for words in found.findings("question"))
    assert any("$.error is no output: it is null in all tries" in words for words in found.findings("note"))
    assert list(model_of(found)["outputs"]) == ["output"]


def strict_status(body: Any) -> Any:
    if body["plan"] not in ("gold", "free"):
        return {"status": "failed", "output": None}
    return {"status": "ok", "output": body["age"] / 7}


async def test_a_status_that_was_seen_to_change_is_written_as_success(tmp_path: Path) -> None:
    found = await examined(strict_status, tmp_path, {"plan": "gold", "age": 30.5})
    assert model_of(found)["success"] == {"$.status": "ok"}
    assert any("`plan` was not varied: no other value was taken" in words for words in found.findings("note"))


def pipeline(body: Any) -> Any:
    texts = [body["inputs"]] if isinstance(body["inputs"], str) else body["inputs"]
    shares = [len(text) / (len(text) + 7) for text in texts]
    return [[{"label": "A", "score": each}, {"label": "B", "score": 1 - each}] for each in shares]


@pytest.mark.parametrize("sent", ["I like it", ["I like it", "no"]])
async def test_lists_of_lists_of_objects_have_a_path_with_two_wildcards(tmp_path: Path, sent: Any) -> None:
    found = await examined(pipeline, tmp_path, {"inputs": sent})
    assert model_of(found)["answer"] == {"label": "$[*][*].label", "score": "$[*][*].score"}
    assert declared(found, "outputs")["score"] == "FP64 [n, -1]"
    assert agrees(found), found.printed
    outputs = await infer(found, pipeline, inputs=("BYTES", [2], ["a", "bbb"]))
    assert outputs == {"label": ["A", "B"] * 2, "score": [1 / 8, 1 - 1 / 8, 3 / 10, 7 / 10]}


async def test_numbers_with_a_point_are_fp64_though_the_sample_would_fit_into_fp32(tmp_path: Path) -> None:
    def halved(body: Any) -> Any:
        return {"y": [value / 2 for value in body["x"]]}

    found = await examined(halved, tmp_path, {"x": [0.5, 0.25]})
    assert declared(found, "outputs") == {"y": "FP64 [n]"}
    assert await infer(found, halved, x=("FP64", [2], [0.7, 0.35])) == {"y": [0.35, 0.175]}


async def test_a_difference_between_straight_and_through_the_gateway_is_a_problem(tmp_path: Path) -> None:
    async def predict(request: web.Request) -> web.Response:
        rows = (await request.json())["x"]
        is_gateways = "X-Request-Id" in request.headers and len(rows) > 2
        return web.json_response({"y": [sum(each or 0 for each in row) + is_gateways for row in rows]})

    (tmp_path / "sample.json").write_text(json.dumps({"x": [[0.5, 1.5]]}))
    application = web.Application()
    application.router.add_post("/predict", predict)
    async with answered_by(application) as url:
        found = await doctor(url, "--path", "/predict", "--sample", str(tmp_path / "sample.json"))
    assert any("other values of y. Straight to the server" in words for words in found.findings("problem"))
    assert found.table["infer in binary"].startswith("not always: ")
    assert "the same values" not in found.printed


# Rows


def one_instance(body: Any) -> Any:
    (row,) = body["instances"]
    return {"predictions": [{"sum": sum(row) * 0.1}]}


def first_instance(body: Any) -> Any:
    return {"predictions": [{"sum": sum(body["instances"][0]) * 0.1}]}


@pytest.mark.parametrize("answer", [one_instance, first_instance])
async def test_a_server_that_takes_one_row_in_a_list_gets_one_in_each_request(
    tmp_path: Path, answer: Callable[[Any], Any]
) -> None:
    found = await examined(answer, tmp_path, {"instances": [[1.0, 2.5]]})
    assert model_of(found)["request"] == {"path": "/predict", "body": {"instances": ["$instances"]}, "rows": 1}
    assert declared(found, "outputs") == {"sum": "FP64 [n]"}
    assert any("it takes one row in each request" in words for words in found.findings("note"))
    assert agrees(found), found.printed
    sent = ("FP64", [2, 2], [1.0, 2.0, 30.0, 40.0])
    assert await infer(found, answer, instances=sent) == {"sum": [3 * 0.1, 70 * 0.1]}


def one_record(body: Any) -> Any:
    (row,) = body["rows"]
    return {"score": row["age"] / 7 + len(row["plan"])}


async def test_a_list_of_one_record_is_a_request_for_each_row(tmp_path: Path) -> None:
    found = await examined(one_record, tmp_path, {"rows": [{"age": 30.5, "plan": "gold"}]})
    assert model_of(found)["request"]["body"] == {"rows": [{"age": "$age", "plan": "$plan"}]}
    assert declared(found, "inputs") == {"age": "FP64 [n]", "plan": "BYTES [n]"}
    assert agrees(found), found.printed
    sent: dict[str, Any] = {"age": ("FP64", [2], [7, 14]), "plan": ("BYTES", [2], ["a", "bb"])}
    assert await infer(found, one_record, **sent) == {"score": [2.0, 4.0]}


def vector(body: Any) -> Any:
    if len(body["features"]) != 4:
        raise ValueError("four features")
    return {"prediction": sum(body["features"]) / 3, "shares": [value / 7 for value in body["features"]][:3]}


async def test_one_vector_is_a_row_of_its_own(tmp_path: Path) -> None:
    found = await examined(vector, tmp_path, {"features": [5.1, 3.5, 1.4, 0.2]})
    assert declared(found, "inputs") == {"features": "FP64 [n, 4]"}
    assert declared(found, "outputs") == {"prediction": "FP64 [n]", "shares": "FP64 [n, 3]"}
    assert agrees(found), found.printed


def two_at_most(body: Any) -> Any:
    if len(body["x"]) > 2:
        raise ValueError("two at most")
    return {"y": [sum(row) for row in body["x"]]}


async def test_a_server_that_takes_few_rows_gets_as_many_in_each_request(tmp_path: Path) -> None:
    found = await examined(two_at_most, tmp_path, {"x": [[1.5, 2.5], [0.5, 1.5]]})
    assert model_of(found)["request"]["rows"] == 2
    outputs = await infer(found, two_at_most, x=("FP64", [3, 2], [1, 2, 3, 4, 5, 6]))
    assert outputs == {"y": [3.0, 7.0, 11.0]}


def zero_shot(body: Any) -> Any:
    labels = body["candidate_labels"]
    return [{"scores": [likeness(text, label) for label in labels]} for text in body["sequences"]]


async def test_lists_that_are_as_long_by_chance_are_not_tied_together(tmp_path: Path) -> None:
    found = await examined(zero_shot, tmp_path, {"sequences": ["ab", "cd"], "candidate_labels": ["a", "c"]})
    assert declared(found, "inputs") == {"sequences": "BYTES [n]", "candidate_labels": "BYTES [-1]"}
    assert agrees(found), found.printed


# What moves, and what does not


def verbose(body: Any) -> Any:
    rows = [{"object": "embedding", "index": i, "embedding": [len(t) / 3, 0.5]} for i, t in enumerate(body["input"])]
    usage = {"prompt_tokens": sum(map(len, body["input"]))}
    return {"id": random.random(), "object": "list", "created": 1, "model": body["model"], "data": rows, "usage": usage}


async def test_ids_times_numbers_of_rows_usage_and_names_of_classes_are_no_outputs(tmp_path: Path) -> None:
    found = await examined(verbose, tmp_path, {"input": ["hello there", "abc"], "model": "m"})
    assert list(model_of(found)["outputs"]) == ["embedding"]
    notes = "\n".join(found.findings("note"))
    for path, why in {
        "$.id": "it differs for the same request",
        "$.object": "it is the same in all tries",
        "$.created": "its name says that it is the request's own",
        "$.model": "it is the same in all tries",
        "$.data[*].object": "it is the same in all tries",
        "$.data[*].index": "it is the number of each row",
        "$.usage.prompt_tokens": "it counts what the request took",
    }.items():
        assert f"{path} is no output: {why}" in notes
        assert f"# - {path} is no output: {why}" in found.printed
    assert agrees(found), found.printed


async def test_an_input_that_moves_nothing_is_named(tmp_path: Path) -> None:
    found = await examined(lambda body: {"y": body["x"]}, tmp_path, {"x": [0.5], "note": ["a"]})
    assert any("`note` moves no output" in words for words in found.findings("note"))
    assert any("other values of `x` move y" in words for words in found.findings("ok"))


async def test_values_that_differ_for_the_same_request_are_not_called_the_same(tmp_path: Path) -> None:
    def sampled(body: Any) -> Any:
        return {"text": [f"{text} {random.random()}" for text in body["prompts"]]}

    found = await examined(sampled, tmp_path, {"prompts": ["a", "b"]})
    assert any("`text` differs for the same request" in words for words in found.findings("note"))


async def test_integers_are_fp64_where_the_server_takes_a_point_and_int64_where_it_does_not(tmp_path: Path) -> None:
    def strict(body: Any) -> Any:
        if not all(isinstance(value, int) for value in body["ids"]):
            raise TypeError("integers")
        return {"y": [a / 7 + b for a, b in zip(body["ages"], body["ids"], strict=True)]}

    found = await examined(strict, tmp_path, {"ages": [30, 40], "ids": [1, 2]})
    assert declared(found, "inputs") == {"ages": "FP64 [n]", "ids": "INT64 [n]"}
    notes = "\n".join(found.findings("note"))
    assert "`ages` has integers in the sample, and the server takes numbers with a point: FP64" in notes
    assert "`ids` is INT64" in notes
    assert agrees(found), found.printed


async def test_texts_that_are_numbers_are_a_question(tmp_path: Path) -> None:
    found = await examined(lambda body: {"y": [str(v / 2) for v in body["x"]]}, tmp_path, {"x": [0.5, 0.25]})
    (question,) = found.findings("question")
    assert "y: {datatype: FP64, shape: [n], encoding: text}" in question


async def test_texts_that_look_like_numbers_in_base64_are_a_question(tmp_path: Path) -> None:
    def embedded(body: Any) -> Any:
        vectors = [np.array([len(text) / 3, 0.25, -1.5, 0.1], np.float32) for text in body["input"]]
        return {"data": [{"embedding": base64.b64encode(vector.tobytes()).decode()} for vector in vectors]}

    found = await examined(embedded, tmp_path, {"input": ["a text", "another"]})
    (question,) = found.findings("question")
    assert "embedding: {datatype: FP32, shape: [n, 4], encoding: base64}" in question
    assert declared(found, "outputs") == {"embedding": "BYTES [n]"}


async def test_members_that_are_no_output_are_named_with_their_reason(tmp_path: Path) -> None:
    def answer(body: Any) -> Any:
        words = [text.split() for text in body["texts"]]
        return {
            "n": [len(each) for each in words],
            "words": words,
            "by_name": [{text: 1.5} for text in body["texts"]],
            "more": '{"a": 1}',
            "none": [],
        }

    found = await examined(answer, tmp_path, {"texts": ["a b", "c"]})
    notes = "\n".join(found.findings("note"))
    for path, why in {
        "$.words": "its lists have different lengths (the template language cannot say it: `dialect: python` can)",
        "$.by_name[*]": "the names of its members are data",
        "$.more": "it is JSON inside of a text",
        "$.none": "it is empty in all tries",
    }.items():
        assert f"{path} is no output: {why}" in notes
    assert list(model_of(found)["outputs"]) == ["n"]


# Questions, and several samples


def greeting(body: Any) -> Any:
    return {"y": [value + len(body["user"]) + body["bias"] for value in body["x"]]}


async def test_every_scalar_beside_lists_is_a_question_whose_lines_make_an_input_of_it(tmp_path: Path) -> None:
    found = await examined(greeting, tmp_path, {"x": [0.5, 1.5], "user": "web", "bias": 3})
    questions = {words.partition(":")[0]: words for words in found.findings("question")}
    assert questions.keys() == {"$.user", "$.bias"}
    for words in questions.values():
        assert "is the same in every request as this file stands. If clients decide it, make it an input:" in words
    assert "#     in `inputs`:  user: {datatype: BYTES, shape: []}" in found.printed
    (line,) = re.findall(r"#     in `request`:  (body: .*\$user.*)", found.printed)
    backend = found.backend
    model = backend["models"]["model"]
    model["inputs"]["user"] = {"datatype": "BYTES", "shape": []}
    model["request"] |= yaml.safe_load(line)
    pasted = found._replace(printed=f"A configuration for it\n{yaml.safe_dump(as_file(backend))}")
    sent: dict[str, Any] = {"x": ("FP64", [1], [1.5]), "user": ("BYTES", [], ["longer"])}
    assert await infer(pasted, greeting, **sent) == {"y": [10.5]}


def as_file(backend: dict[str, Any]) -> dict[str, Any]:
    """A configuration with *backend*."""
    return {"backends": {"default": {"endpoints": ["http://x"], **backend}}}


async def test_what_differs_between_two_samples_is_an_input_and_the_rest_is_said_to_be_constant(tmp_path: Path) -> None:
    one = {"x": [[0.5, 1.0]], "user": "web", "kind": "a"}
    other = {"x": [[0.5, 1.5], [2.0, 1.0]], "user": "app", "kind": "a"}

    def answer(body: Any) -> Any:
        return {"y": [sum(row) + len(body["user"]) for row in body["x"]]}

    found = await examined(answer, tmp_path, one, other)
    assert declared(found, "inputs") == {"x": "FP64 [n, -1]", "user": "BYTES []"}
    assert any(
        '$.kind: "a" is the same in every request (the same in all 2 samples)' in w for w in found.findings("note")
    )
    assert found.findings("question") == []
    assert agrees(found), found.printed


async def test_an_input_that_one_sample_lacks_is_optional(tmp_path: Path) -> None:
    def answer(body: Any) -> Any:
        return {"y": [value + body.get("bias", [0.25])[0] for value in body["x"]]}

    found = await examined(answer, tmp_path, {"x": [0.5]}, {"x": [1.5], "bias": [0.5]})
    assert model_of(found)["inputs"]["bias"]["optional"] is True
    assert agrees(found), found.printed


# Samples that are none


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
    found = await examined(lambda body: {"sum": [row["age"] for row in body["rows"]]}, tmp_path, {"rows": rows})
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


async def test_any_sample_and_any_answer_give_a_file_that_check_takes_and_that_works(tmp_path: Path) -> None:
    n_working = 0
    for seed in range(30, 60):
        draw = random.Random(seed)
        sent, answered = any_document(draw), any_document(draw)
        n_samples = 1 + (seed % 5 == 0)  # the same twice says nothing of what differs

        def answer(body: Any, answered: Any = answered, *, is_echo: bool = seed % 2 > 0) -> Any:
            return {"echo": body, "more": answered} if is_echo else answered

        file = tmp_path / "sample.json"
        file.write_text(json.dumps(sent))
        async with legacy(answer=answer) as url:
            samples = ["--sample", str(file)] * n_samples
            found = await doctor(url, "--path", "/predict", *samples, "--yaml")
        if found.code == 2:
            words = ("no value that could be an input", "no JSON that has outputs", "rows of the sample differ")
            assert any(each in unwrapped(found.complained) for each in words), (seed, found.complained)
            continue
        n_working += 1
        assert config.parse(found.printed).backends["default"].dialect == "template"
        table = unwrapped(found.complained)
        # an `error` beside a value that is null is a failure, which is told
        fine = r"infer in binary +(yes; \d+ varied requests|no: 502: .*the backend answered with a failure: )"
        assert re.search(fine, table), (seed, sent, answered, table)
    assert n_working > 15
