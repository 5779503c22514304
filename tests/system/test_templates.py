"""Clients of V2 before servers that speak no protocol: `dialect: template`."""

import io
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import yaml
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor

from gateway.config.loading import inspect_bytes
from tests.conftest import HEADER_LENGTH, Client, Reply, running, tensor
from tests.system.scripted import CountingBackend, Seen, counting

IRIS: Mapping[str, Any] = {
    "inputs": {"x": {"datatype": "FP32", "shape": [-1, 4]}},
    "outputs": {"proba": {"datatype": "FP32", "shape": [-1, 3]}, "label": {"datatype": "BYTES"}},
    "request": {"path": "/predict", "body": {"features": "$x", "user": "web"}},
    "answer": {"proba": "$.probabilities", "label": "$.result.labels"},
}
CHURN: Mapping[str, Any] = {
    "inputs": {"age": {"datatype": "INT64", "shape": [-1]}, "plan": {"datatype": "BYTES", "shape": [-1]}},
    "outputs": {"score": {"datatype": "FP64"}},
    "request": {"path": "/score/{model}", "body": {"$each": {"age": "$age", "plan": "$plan"}}},
    "answer": {"score": "$.results[*].score"},
}
FAULTY: Mapping[str, Any] = {**IRIS, "error": "$.fault.reason"}
VERSIONED: Mapping[str, Any] = {**IRIS, "request": {"path": "/v/{version}", "body": {"x": "$x"}}}
X = np.arange(8, dtype=np.float32).reshape(2, 4)
GOOD = b'{"probabilities": [[0.5, 0.25, 0.25], [0, 1, 0]], "result": {"labels": ["a", "\\u00e9"]}, "took": 3}'


@dataclass
class Legacy:
    """A server that answers every POST in one way, and GET /ping."""

    answer: bytes = GOOD
    status: str = "200 OK"
    ping: str = "200 OK"
    seen: list[Seen] = field(default_factory=list)

    async def behave(self, seen: Seen) -> bool:
        """Answer."""
        if seen.method == "POST":
            self.seen.append(seen)
            await seen.answer(self.answer, self.status, "Content-Type: application/json\r\n")
        else:
            await seen.answer(b"pong", self.ping if seen.target == "/ping" else "404 Not Found")
        return True


@dataclass
class Stage:
    """A client of a gateway before a legacy server."""

    client: Client
    backend: CountingBackend
    server: Legacy

    async def infer(self, model: str, *tensors: tuple[dict[str, Any], bytes], path: str = "", **top: object) -> Reply:
        """Send *tensors*, binary, and ask for binary outputs unless *top* says otherwise."""
        inputs = [entry for entry, _ in tensors]
        header = {"inputs": inputs, "parameters": {"binary_data_output": True}, **top}
        text = json.dumps(header).encode()
        body = text + b"".join(blob for _, blob in tensors)
        path = path or f"/v2/models/{model}/infer"
        return await self.client.request("POST", path, data=io.BytesIO(body), headers={HEADER_LENGTH: str(len(text))})


@asynccontextmanager
async def before(
    server: Legacy, models: Mapping[str, Any] | None = None, health: str = "/ping"
) -> AsyncIterator[Stage]:
    settings: dict[str, Any] = {"dialect": "template", "models": models or {"iris": IRIS, "churn": CHURN}}
    if health:
        settings["health"] = {"path": health}
    async with (
        counting(server.behave) as backend,
        running(backend.url, "", yaml.safe_dump(settings, default_flow_style=None, sort_keys=False)) as client,
    ):
        yield Stage(client, backend, server)


def numbers(name: str, array: np.ndarray[Any, Any], datatype: str) -> tuple[dict[str, Any], bytes]:
    return tensor(name, array, datatype), array.tobytes()


def strings(name: str, *values: bytes) -> tuple[dict[str, Any], bytes]:
    blob = bytes(serialize_byte_tensor(np.array(values, dtype=object)).item())
    return (
        {"name": name, "shape": [len(values)], "datatype": "BYTES", "parameters": {"binary_data_size": len(blob)}},
        blob,
    )


def error_of(reply: Reply, status: int) -> str:
    assert reply.status == status, reply.body
    return str(reply.json["error"])


@pytest.mark.rule("11.7")
async def test_a_request_and_its_answer_are_as_the_configuration_says() -> None:
    async with before(Legacy()) as stage:
        reply = await stage.infer("iris", numbers("x", X, "FP32"), id="7")
        assert reply.status == 200, reply.body
        proba, label = reply.json["outputs"]
        assert (proba["name"], proba["datatype"], proba["shape"]) == ("proba", "FP32", [2, 3])
        assert (label["name"], label["datatype"], label["shape"]) == ("label", "BYTES", [2])
        size = proba["parameters"]["binary_data_size"]
        assert np.frombuffer(reply.binary[:size], np.float32).tolist() == [0.5, 0.25, 0.25, 0, 1, 0]
        assert deserialize_bytes_tensor(reply.binary[size:]).tolist() == [b"a", "é".encode()]
        (seen,) = stage.server.seen
        assert seen.target == "/predict"
        assert json.loads(seen.body) == {"features": X.tolist(), "user": "web"}
        assert (reply.json["model_name"], reply.json["id"]) == ("iris", "7")


@pytest.mark.rule("11.7")
async def test_records_are_sent_and_read_row_by_row() -> None:
    server = Legacy(b'{"results": [{"score": 0.5, "why": [1]}, {"why": [], "score": 1}]}')
    async with before(server) as stage:
        ages = numbers("age", np.array([2**53 + 1, -1]), "INT64")
        reply = await stage.infer("churn", ages, strings("plan", b"gold", "é".encode()))
        assert np.frombuffer(reply.binary, np.float64).tolist() == [0.5, 1]
        assert server.seen[0].target == "/score/churn"
        assert json.loads(server.seen[0].body) == [{"age": 2**53 + 1, "plan": "gold"}, {"age": -1, "plan": "é"}]


@pytest.mark.rule("11.7")
@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ([numbers("x", X.astype(np.float64), "FP64")], "takes FP32"),
        ([numbers("y", X, "FP32")], "input 'y': model 'iris' has no such input; it has 'x'"),
        ([], "input 'x' is missing"),
    ],
)
async def test_inputs_that_the_model_does_not_have_are_refused(
    tensors: list[tuple[dict[str, Any], bytes]], words: str
) -> None:
    async with before(Legacy()) as stage:
        assert words in error_of(await stage.infer("iris", *tensors), 400)
        assert not stage.server.seen


@pytest.mark.rule("11.7")
async def test_a_template_without_inputs_takes_none() -> None:
    """What it does not name would be dropped without a word."""
    clock = {
        "outputs": {"y": {"datatype": "FP32"}},
        "request": {"path": "/now", "body": {"zone": "$parameters"}},
        "answer": {"y": "$.t"},
    }
    async with before(Legacy(b'{"t": 1}'), {"clock": clock}) as stage:
        words = error_of(await stage.infer("clock", numbers("x", X, "FP32")), 400)
        assert words == "input 'x': model 'clock' has no such input; it has none"
        assert not stage.server.seen
        assert (await stage.infer("clock")).status == 200


@pytest.mark.rule("11.7")
async def test_outputs_that_the_model_does_not_have_are_refused() -> None:
    async with before(Legacy()) as stage:
        words = error_of(await stage.infer("iris", numbers("x", X, "FP32"), outputs=[{"name": "nope"}]), 400)
        assert words == "output 'nope' was requested, but the model has 'label', 'proba'"
        assert not stage.server.seen


@pytest.mark.rule("11.7")
async def test_rows_of_different_number_are_refused() -> None:
    async with before(Legacy()) as stage:
        ages = numbers("age", np.array([1, 2, 3]), "INT64")
        words = error_of(await stage.infer("churn", ages, strings("plan", b"gold")), 400)
        assert "input 'plan'" in words
        assert "expected 3 rows, as input 'age' has: this backend gets rows of all inputs together" in words
        assert not stage.server.seen


@pytest.mark.rule("11.7")
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b'{"probabilities": [[1, 2, 3]], "result": {"label": []}}',
         "output 'label': nothing at $.result.labels; $.result has the members 'label'"),
        (b'{"probabilities": [[1, 2]], "result": {"labels": ["a"]}}',
         "the answer has the shape [1, 2], and `models` in the backend's configuration says [-1, 3]"),
        (b'{"error": "no such user"}', "but an error: no such user"),
        (b"[]", "output 'proba': nothing at $.probabilities; $ is []"),
        (b"no JSON", "answer: expected a JSON object, got no JSON"),
    ],
)  # fmt: skip
async def test_answers_that_are_not_as_described_are_told(answer: bytes, words: str) -> None:
    async with before(Legacy(answer)) as stage:
        assert words in error_of(await stage.infer("iris", numbers("x", X, "FP32")), 502)


@pytest.mark.rule("11.7")
async def test_errors_are_told_in_the_servers_words() -> None:
    answer = b'{"fault": {"reason": "too hot"}, "detail": "elsewhere"}'
    async with before(Legacy(answer, "503 Busy"), {"a": FAULTY, "b": IRIS}) as stage:
        assert "too hot" in error_of(await stage.infer("a", numbers("x", X, "FP32")), 503)
        assert "elsewhere" in error_of(await stage.infer("b", numbers("x", X, "FP32")), 503)


@pytest.mark.rule("11.7")
async def test_metadata_and_health_are_the_configurations_and_the_servers() -> None:
    server = Legacy()
    async with before(server, {"iris": IRIS, "v": VERSIONED}) as stage:
        for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/iris/ready", "/v2"):
            assert (await stage.client.request("GET", path)).status == 200
        metadata = (await stage.client.request("GET", "/v2/models/iris")).json
        assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
        assert metadata["outputs"][1] == {"name": "label", "datatype": "BYTES", "shape": [-1]}
        for path in ("/v2/models/none", "/v2/models/none/ready"):
            words = error_of(await stage.client.request("GET", path), 404)
            assert words == "model 'none' is not configured: `backends.main.models` has 'iris', 'v'"
        assert "'none' is not configured" in error_of(await stage.infer("none", numbers("x", X, "FP32")), 404)
        server.ping = "500 Oops"
        for path in ("/v2/health/live", "/v2/models/iris/ready"):
            assert (await stage.client.request("GET", path)).status == 500
        assert (await stage.client.request("GET", "/v2/models/iris")).json == metadata  # asks the server for nothing


@pytest.mark.rule("11.7")
async def test_versions_are_those_of_the_path() -> None:
    async with before(Legacy(), {"iris": IRIS, "v": VERSIONED}) as stage:
        tensors = numbers("x", X, "FP32")
        assert (await stage.infer("v", tensors, path="/v2/models/v/versions/2/infer")).status == 200
        assert stage.server.seen[0].target == "/v/2"
        words = error_of(await stage.infer("v", tensors), 404)
        assert words == "model 'v' is asked for with a version: /v2/models/v/versions/VERSION"
        words = error_of(await stage.infer("", tensors, path="/v2/models/iris/versions/2/infer"), 404)
        assert words == "model 'iris' has no versions: leave the version out"


@pytest.mark.rule("8.2")
async def test_words_about_a_renamed_model_have_the_clients_name_and_path() -> None:
    settings = {"dialect": "template", "models": {"iris": IRIS, "v": VERSIONED}}
    rename = "rename: {pub: v, plain: iris, 'a b': v, lost: nowhere}, backend: main"
    routes = (
        f"routes:\n  - {{name: stripped, path_prefix: /prod, strip_prefix: true, {rename}}}\n"
        f"  - {{name: kept, path_prefix: /test, {rename}}}\n  - {{name: all, {rename}}}\n"
    )
    server = Legacy()
    async with counting(server.behave) as backend, running(backend.url, routes, yaml.safe_dump(settings)) as client:
        for prefix in ("", "/prod", "/test"):
            for asked in ("", "/", "/ready", "/infer?a=/infer"):
                method = "POST" if "infer" in asked else "GET"
                for name, quoted in (("pub", "pub"), ("a b", "a%20b")):
                    path = f"{prefix}/v2/models/{quoted}"
                    words = error_of(await client.request(method, path + asked), 404)
                    assert words == f"model {name!r} is asked for with a version: {path}/versions/VERSION"
                words = error_of(await client.request(method, f"{prefix}/v2/models/plain/versions/2{asked}"), 404)
                assert words == "model 'plain' has no versions: leave the version out"
                words = error_of(await client.request(method, f"{prefix}/v2/models/lost{asked}"), 404)
                assert words == "model 'lost' is not configured: `backends.main.models` has 'iris', 'v'"
        assert not server.seen


async def test_the_clients_query_goes_behind_that_of_the_template() -> None:
    models = {"iris": {**IRIS, "request": {"path": "/predict?key=1", "body": "$x"}}}
    async with before(Legacy(), models) as stage:
        tensors = numbers("x", X, "FP32")
        for query, target in (("", "/predict?key=1"), ("?a=1?2", "/predict?key=1&a=1?2")):
            assert (await stage.infer("", tensors, path=f"/v2/models/iris/infer{query}")).status == 200
            assert stage.server.seen[-1].target == target


async def test_without_a_path_for_health_the_gateway_says_what_it_knows() -> None:
    async with before(Legacy(), health="") as stage:
        for path in ("/v2/health/live", "/v2/models/iris/ready"):
            assert (await stage.client.request("GET", path)).status == 200


async def test_large_tensors_stay_exact() -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((50_000, 4)).astype(np.float32)
    labels = [f"é{index}" * (index % 7) for index in range(50_000)]
    answer = {
        "probabilities": rng.standard_normal((50_000, 3)).astype(np.float32).tolist(),
        "result": {"labels": labels},
    }
    async with before(Legacy(json.dumps(answer).encode())) as stage:
        reply = await stage.infer("iris", numbers("x", x, "FP32"))
        size = reply.json["outputs"][0]["parameters"]["binary_data_size"]
        assert np.frombuffer(reply.binary[:size], np.float32).reshape(-1, 3).tolist() == answer["probabilities"]
        assert deserialize_bytes_tensor(reply.binary[size:]).tolist() == [label.encode() for label in labels]
        assert np.array_equal(np.array(json.loads(stage.server.seen[0].body)["features"], np.float32), x)


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/models/iris/ready"])
async def test_a_path_of_probes_that_the_server_does_not_have_is_named(path: str) -> None:
    async with before(Legacy(), health="/pong") as stage:
        words = error_of(await stage.client.request("GET", path), 404)
        assert "(GET /pong)" in words


# The configuration

BAD = """
backends:
  legacy:
    endpoints: ["http://127.0.0.1:1"]
    dialect: template
    health: {}
    models:
      a:
        inputs: {x: {datatype: FP32}, n: {shape: []}}
        outputs: {y: {datatype: FP32}, z: {}}
        request:
          path: predict
          body:
            v: $nope
            e: {$each: [$n]}
        answer: {y: "$.a[*]b", other: $.x}
        error: "$.e[*]"
      b:
        request: {path: "/x/{foo}"}
        format: row
"""


def test_mistakes_are_told_with_their_lines() -> None:
    found = {
        (each.line, each.key.removeprefix("backends.legacy.")): each.reason
        for each in inspect_bytes(BAD.encode(), "f").errors
    }
    expected = {
        (6, "health"): "expected its `path`",
        (10, "models.a.outputs.z"): "expected",
        (12, "models.a.request.path"): "expected a path",
        (14, "models.a.request.body.v"): "no such input: there are x, n",
        (15, "models.a.request.body.e.$each"): "expected an input with rows: `n` has none",
        (16, "models.a.answer.y"): "expected a path such as",
        (16, "models.a.answer.other"): "no such output",
        (17, "models.a.error"): "expected a path without [*]",
        (18, "models.b.answer"): "missing; expected where each output stands",
        (19, "models.b.request.body"): "missing",
        (19, "models.b.request.path"): "expected nothing in braces but {model} and {version}",
        (20, "models.b.format"): "expected none, because `dialect` is template",
    }
    for place, words in expected.items():
        assert words in found.get(place, ""), (place, found)
    assert {key for _, key in found} - {key for _, key in expected} == {"models.a.request.body"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("dialect: v2, models: {a: {request: {path: /x, body: 1}}}", "models.a: `request`, `answer`, `success`"),
        ("dialect: mlflow, models: {a: {answer: {y: $}, outputs: {y: {datatype: FP32}}}}",
         "models.a: `request`, `answer`, `success`"),
        ("dialect: template, models: {a: {}}", "models.a.request: missing; expected what is sent"),
        ("dialect: template, models: {a: {request: {path: /x, body: null}, inputs: {x: {}}}}",
         "a.request.body: input `x` stands nowhere in it"),
        ("dialect: template, models: {a: {request: {path: /x, body: 1}, outputs: {y: {datatype: FP32}}, "
         "answer: {y: $.a, z: $.b}}}", "a.answer.z: no such output"),
        ("dialect: template, models: {a: {request: {path: /x, body: 1}, "
         "outputs: {y: {datatype: FP32}, z: {datatype: FP32}}, answer: {y: $.a, z: $.a.b}}}",
         "a.answer: the paths of the outputs `y`, `z` do not fit together"),
        ("dialect: template, models: {a: {request: {path: '/x#y', body: 1}}}", "without spaces and #"),
        ("dialect: template, models: {a: {request: {path: '/x/../y?z', body: 1}}}", "a segment of the path is '.' or"),
        ("dialect: template, binary: auto, models: {a: {}}", "binary: this is for servers of V2"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_told(settings: str, words: str) -> None:
    text = f"backends: {{legacy: {{endpoints: ['http://127.0.0.1:1'], {settings}}}}}"
    errors = [f"{each.key}: {each.reason}" for each in inspect_bytes(text.encode(), "f").errors]
    assert any(words in error for error in errors), errors


NEW = """
dialect: template
models:
  a:
    inputs: {x: {datatype: FP32, shape: [n, 4], optional: true}, q: {datatype: BYTES, shape: []}}
    outputs: {y: {datatype: FP32, shape: [n]}, z: {datatype: FP32}}
    request: {path: /x, body: {x: $x, q: $q}}
    answer: {y: "$.r[*].y", z: $.z}
"""


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("success: {$.status: ok, $.code: 0}", ""),
        ("success: {$.r.ok: true}", "success.$.r.ok: an output wants another value there"),
        ("success: {'$.r[*].ok': true}", "success.$.r[*].ok: expected a path without [*]"),
        ("success: {status: ok}", "success.status: expected a path such as"),
        ("order: '$.r[*].index'", ""),
        ("order: $.index", "order: expected a path with one [*]"),
        ("order: '$.other[*].index'", "order: no output is in these rows: expected one with a path that begins with"),
        ("order: '$.r[*].y'", "order: the paths of the outputs `y`, `order` do not fit together"),
        ("order: index", "order: expected a path such as"),
    ],
)
def test_what_answers_say_of_themselves_is_checked(key: str, words: str) -> None:
    text = f"backends: {{legacy: {{endpoints: ['http://127.0.0.1:1'], {key_of(NEW, key)}}}}}"
    errors = [f"{each.key}: {each.reason}" for each in inspect_bytes(text.encode(), "f").errors]
    assert (any(words in error for error in errors) and len(errors) == 1) if words else not errors, errors


def key_of(settings: str, key: str) -> str:
    """*settings* with a *key* of their model."""
    loaded = yaml.safe_load(settings)
    loaded["models"]["a"] |= yaml.safe_load(f"{{{key}}}")
    return str(yaml.safe_dump(loaded, default_flow_style=True, width=10**6)).strip().removeprefix("{").removesuffix("}")


def test_braces_that_mean_nothing_in_a_body_are_pointed_out() -> None:
    models = {"m": {**IRIS, "request": {"path": "/{model}", "body": {"x": "$x", "m": "{model}"}}}}
    settings = yaml.safe_dump({"endpoints": ["http://127.0.0.1:1"], "dialect": "template", "models": models})
    text = json.dumps({"backends": {"b": yaml.safe_load(settings)}})
    warnings = {each.key: each.reason for each in inspect_bytes(text.encode(), "f").warnings}
    assert warnings["backends.b.models.m.request.body.m"].startswith("{model} is sent as it stands here: `$model`")


@pytest.mark.rule("11.7")
@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ([2, 3], "input 'x' (FP32, shape [2, 3]): model 'iris' takes the shape [-1, 4], got [2, 3]"),
        ([4], "takes the shape [-1, 4], got [4]"),
    ],
)
async def test_a_shape_that_the_file_does_not_state_is_refused(shape: list[int], words: str) -> None:
    async with before(Legacy()) as stage:
        reply = await stage.infer("iris", numbers("x", np.zeros(shape, np.float32), "FP32"))
        assert words in error_of(reply, 400)
        assert not stage.server.seen


PAIR: Mapping[str, Any] = {
    "inputs": {"query": {"datatype": "BYTES", "shape": []}, "texts": {"datatype": "BYTES", "shape": ["n"]}},
    "outputs": {"score": {"datatype": "FP64", "shape": ["n"]}},
    "request": {"path": "/rank", "body": {"query": "$query", "texts": "$texts", "k": {"$parameters": {"top": 3}}}},
    "answer": {"score": "$.r[*].score"},
    "order": "$.r[*].index",
    "success": {"$.ok": True},
    "error": "$.why",
}


def ranked(*indexes: int, **more: Any) -> bytes:
    rows = [{"index": index, "score": index + 0.25} for index in indexes]
    return json.dumps({"ok": True, "r": rows, **more}).encode()


@pytest.mark.rule("11.7")
async def test_a_scalar_and_one_value_are_the_same_and_two_are_refused() -> None:
    async with before(Legacy(ranked(1, 0)), {"rank": PAIR}) as stage:
        reply = await stage.infer("rank", strings("query", b"q"), strings("texts", b"a", b"b"), id="")
        assert np.frombuffer(reply.binary, np.float64).tolist() == [0.25, 1.25]
        assert json.loads(stage.server.seen[0].body) == {"query": "q", "texts": ["a", "b"], "k": {"top": 3}}
        words = error_of(await stage.infer("rank", strings("query", b"q", b"r"), strings("texts", b"a")), 400)
        assert words == "input 'query' (BYTES, shape [2]): model 'rank' takes the shape [], got [2]"
        assert len(stage.server.seen) == 1


@pytest.mark.rule("11.7")
@pytest.mark.parametrize(
    ("answer", "reason", "words"),
    [
        (ranked(0), "malformed_response", "the answer has 1 rows, and the request has 2"),
        (ranked(), "malformed_response", "the answer has 0 rows, and the request has 2"),
        (ranked(1, 1), "malformed_response", "expected each of the rows 0 to 1 once, got 1, 1"),
        (ranked(0, 1, ok=False, why="no disk"), "backend_error", "no disk"),
        (b'{"ok": true, "r": null, "error": "no disk"}', "backend_error", "no disk"),
    ],
)
async def test_an_answer_to_other_rows_or_of_a_failure_is_told(answer: bytes, reason: str, words: str) -> None:
    async with before(Legacy(answer), {"rank": PAIR}) as stage:
        reply = await stage.infer("rank", strings("query", b"q"), strings("texts", b"a", b"b"))
        assert words in error_of(reply, 502)
        counted = {key for key, value in (await stage.client.metrics()).items() if "errors_total{" in key and value}
        assert [f'reason="{reason}"' in key for key in counted] == [True]


@pytest.mark.rule("11.7")
async def test_parameters_go_where_they_have_a_place_and_are_refused_elsewhere() -> None:
    async with before(Legacy(ranked(0)), {"rank": PAIR, "iris": IRIS}) as stage:
        inputs = strings("query", b"q"), strings("texts", b"a")
        own = {"binary_data_output": True, "top": 1, "priority": 2, "sequence_id": 0}
        assert (await stage.infer("rank", *inputs, parameters=own)).status == 200
        assert json.loads(stage.server.seen[0].body)["k"] == {"top": 1}
        words = error_of(await stage.infer("rank", *inputs, parameters={"tpo": 1}), 400)
        assert words.startswith("parameter 'tpo': the body for model 'rank' has no place for it; it has one for 'top'")
        words = error_of(await stage.infer("iris", numbers("x", X, "FP32"), parameters={"top": 1}), 400)
        assert words.startswith("parameter 'top': the body for model 'iris' has no place for it; `$parameters`")
        words = error_of(await stage.infer("rank", *inputs, parameters={"sequence_id": 3}), 400)
        assert "this backend has no sequences" in words
        assert len(stage.server.seen) == 1


OVERLAID: Mapping[str, Any] = {
    "inputs": {
        "age": {"datatype": "INT64", "shape": []},
        "limit": {"datatype": "FP64", "shape": [], "optional": True},
    },
    "outputs": {"score": {"datatype": "FP64", "shape": []}},
    "request": {"path": "/score", "body": {"$parameters": {"age": "$age", "limit": "$limit"}}},
    "answer": {"score": "$.score"},
}


@pytest.mark.rule("11.7")
async def test_a_parameter_may_stand_for_an_optional_input_and_for_no_other() -> None:
    """It is not judged as an input is: a text would go where the model takes INT64."""
    async with before(Legacy(b'{"score": 1}'), {"m": OVERLAID}) as stage:
        age = numbers("age", np.array(31), "INT64")
        assert (await stage.infer("m", age, parameters={"limit": 0.5})).status == 200
        assert json.loads(stage.server.seen.pop().body) == {"age": 31, "limit": 0.5}
        words = error_of(await stage.infer("m", parameters={"age": "62"}), 400)
        assert words == "input 'age' is missing: the model's server needs all of its inputs"
        words = error_of(await stage.infer("m", age, parameters={"age": 62}), 400)
        assert "one of the request's parameters takes its place" in words
        assert not stage.server.seen


@pytest.mark.rule("11.7")
async def test_members_that_no_output_needs_may_have_any_size() -> None:
    beside = b'"echo": [%b1], ' % (b'"x",' * 400_000)
    async with before(Legacy(GOOD.replace(b"{", b"{" + beside, 1))) as stage:
        assert (await stage.infer("iris", numbers("x", X, "FP32"))).status == 200


@pytest.mark.rule("11.7")
async def test_the_model_and_its_version_may_stand_in_the_body() -> None:
    named = {**IRIS, "request": {"path": "/predict", "body": {"x": "$x", "m": "$model", "v": "$version"}}}
    async with before(Legacy(), {"i*": named}) as stage:
        for version, path in ((None, "/v2/models/iris"), ("7", "/v2/models/iris/versions/7")):
            reply = await stage.infer("iris", numbers("x", X, "FP32"), path=f"{path}/infer")
            assert reply.status == 200, reply.body
            body = json.loads(stage.server.seen.pop().body)
            assert (body["m"], body["v"]) == ("iris", version)
