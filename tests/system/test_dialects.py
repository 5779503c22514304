"""Clients of V2 before servers that speak another dialect: what a server says, and what the client gets of it.

The servers here are scripted, for what no real one does on demand; real ones and the stand-in for TensorFlow Serving
are in `test_dialect_servers`.
"""

import asyncio
import base64
import gc
import io
import itertools
import json
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor

from gateway.serving import foreign, own_answers
from gateway.serving.call import Call
from gateway.serving.foreign import Foreign
from tests.conftest import HEADER_LENGTH, Client, Reply, access_lines, running, tensor
from tests.system.scripted import CountingBackend, Seen, counting, many_connections, total, until

X = np.array([[1.5, -2, 0.1, 3e38]], np.float32)
TENSORFLOW, MLFLOW = "dialect: tensorflow\n", "dialect: mlflow\n"
ONE = "models: {m: {outputs: {y: {datatype: FP32}}}}\n"
TWO = "models: {m: {outputs: {y: {datatype: FP32}, n: {datatype: INT64}}}}\n"


X_IS_FLOAT: Mapping[str, str] = {"x": "DT_FLOAT"}


def described(inputs: Mapping[str, str] = X_IS_FLOAT, **outputs: str) -> bytes:
    """TensorFlow Serving's metadata of a model with *inputs* and *outputs* by name, each with its dtype."""
    dim = [{"size": "-1", "name": ""}, {"size": "4", "name": ""}]
    shape = {"dim": dim, "unknown_rank": False}

    def tensors(dtypes: Mapping[str, str]) -> dict[str, object]:
        return {name: {"dtype": dtype, "tensor_shape": shape, "name": f"{name}:0"} for name, dtype in dtypes.items()}

    signature = {
        "inputs": tensors(inputs),
        "outputs": tensors(outputs),
        "method_name": "tensorflow/serving/predict",
    }
    definition = {"signature_def": {"serving_default": signature}}
    spec = {"name": "m", "signature_name": "", "version": "7"}
    return json.dumps({"model_spec": spec, "metadata": {"signature_def": definition}}).encode()


@dataclass
class Scripted:
    """A server of another dialect that answers what it is told to."""

    inference: bytes = b"{}"
    status: str = "200 OK"
    paths: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    """Status and body of the answers to GET; all others are 404."""

    async def behave(self, seen: Seen) -> bool:
        """Answer."""
        if seen.method == "POST":
            await seen.answer(self.inference, self.status, "Content-Type: text/plain\r\n")
        else:
            status, body = self.paths.get(seen.target, ("404 Not Found", b'{"error": "nothing here"}'))
            await seen.answer(body, status)
        return True


def tensorflow(
    inference: bytes = b"{}", inputs: Mapping[str, str] = X_IS_FLOAT, status: str = "200 OK", **outputs: str
) -> Scripted:
    """One that speaks TensorFlow Serving's REST API; without *outputs* it does not describe its model."""
    available = {"version": "7", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    paths = {
        "/v1/models": ("400 Bad Request", b'{"error": "Missing model name in request."}'),
        "/v1/models/m": ("200 OK", json.dumps({"model_version_status": [available]}).encode()),
    }
    if outputs:
        paths["/v1/models/m/metadata"] = paths["/v1/models/m/versions/7/metadata"] = (
            "200 OK",
            described(inputs, **outputs),
        )
    return Scripted(inference, status, paths)


@dataclass
class Stage:
    """A client of a gateway before a scripted server."""

    client: Client
    backend: CountingBackend

    async def infer(
        self, array: npt.NDArray[Any] = X, datatype: str = "FP32", *, path: str = "/v2/models/m/infer", **top: object
    ) -> Reply:
        """Send *array* as input `x`, binary, and ask for binary outputs unless *top* says otherwise."""
        header = {"inputs": [tensor("x", array, datatype)], "parameters": {"binary_data_output": True}, **top}
        text = json.dumps(header).encode()
        return await self.client.request(
            "POST", path, data=io.BytesIO(text + array.tobytes()), headers={HEADER_LENGTH: str(len(text))}
        )

    @property
    def sent(self) -> list[Seen]:
        """The inferences that the server got."""
        return [seen for seen in self.backend.seen if seen.method == "POST"]

    @property
    def body(self) -> Any:
        """The JSON of the only one."""
        (seen,) = self.sent
        return json.loads(seen.body)


@asynccontextmanager
async def before(server: Scripted, settings: str, extra: str = "") -> AsyncIterator[Stage]:
    """*server* behind a gateway with *settings* of its backend."""
    async with counting(server.behave) as backend, running(backend.url, extra, settings) as client:
        yield Stage(client, backend)


def error_of(reply: Reply, status: int) -> str:
    """The words of an error with *status*."""
    assert reply.status == status, reply.body
    return str(reply.json["error"])


# Inferences


@pytest.mark.rule("11.1")
async def test_binary_tensors_become_nested_json_and_nested_json_becomes_binary_tensors() -> None:
    server = tensorflow(b'{"outputs": [[1.5, 2], [3, 4.25]]}', y="DT_FLOAT")
    async with before(server, TENSORFLOW) as stage:
        reply = await stage.infer(id="7")
        assert (reply.status, reply.headers["Content-Type"]) == (200, "application/octet-stream"), reply.body
        assert np.frombuffer(reply.binary, np.float32).tolist() == [1.5, 2, 3, 4.25]
        (output,) = reply.json["outputs"]
        assert (output["name"], output["datatype"], output["shape"]) == ("y", "FP32", [2, 2])
        assert (reply.json["model_name"], reply.json["id"]) == ("m", "7")
        assert stage.body == {"inputs": {"x": [[1.5, -2.0, 0.1, 3e38]]}}
        assert stage.sent[0].target == "/v1/models/m:predict"
        assert stage.sent[0].values("Content-Type") == ["application/json"]
        assert not stage.sent[0].values(HEADER_LENGTH)


@pytest.mark.rule("11.1")
async def test_json_tensors_are_read_and_nested() -> None:
    server = tensorflow(b'{"outputs": [1, 2]}', {"x": "DT_INT64"}, y="DT_INT64")
    async with before(server, TENSORFLOW) as stage:
        entry = {"name": "x", "datatype": "INT64", "shape": [2, 2], "data": [1, 2, 3, 2**63 - 1]}
        reply = await stage.client.request("POST", "/v2/models/m/infer", json={"inputs": [entry]})
        assert (reply.status, reply.headers["Content-Type"]) == (200, "application/json"), reply.body
        (output,) = reply.json["outputs"]
        assert (output["name"], output["datatype"], output["shape"]) == ("y", "INT64", [2])
        assert output["data"] == [1, 2]
        assert stage.body == {"inputs": {"x": [[1, 2], [3, 2**63 - 1]]}}


async def test_versions_queries_and_prefixes_reach_the_server() -> None:
    routes = "routes: [{name: all, backend: main, path_prefix: /prod, rename: {mine: m}}]\n"
    server = tensorflow(b'{"outputs": [1]}', y="DT_FLOAT")
    server.paths["/prod/v1/models/m/versions/7/metadata"] = server.paths["/v1/models/m/metadata"]
    async with before(server, TENSORFLOW, routes) as stage:
        reply = await stage.infer(path="/prod/v2/models/mine/versions/7/infer?key=1")
        assert (reply.status, reply.json["model_name"]) == (200, "mine"), reply.body
        assert stage.sent[0].target == "/prod/v1/models/m/versions/7:predict?key=1"


@pytest.mark.rule("11.1")
async def test_a_raw_request_is_read_by_the_servers_description() -> None:
    async with before(tensorflow(b'{"outputs": [1]}', y="DT_FLOAT"), TENSORFLOW) as stage:
        path = "/v2/models/m/infer"
        reply = await stage.client.request("POST", path, data=X.tobytes() * 2, headers={HEADER_LENGTH: "0"})
        assert reply.status == 200, reply.body
        assert reply.binary == np.ones(1, np.float32).tobytes()
        assert np.shape(stage.body["inputs"]["x"]) == (2, 4)


@pytest.mark.rule("11.1")
async def test_a_binary_body_without_header_length_is_recovered() -> None:
    async with before(tensorflow(b'{"outputs": [1]}', y="DT_FLOAT"), TENSORFLOW) as stage:
        text = json.dumps({"inputs": [tensor("x", X, "FP32")]}).encode()
        reply = await stage.client.request("POST", "/v2/models/m/infer", data=text + X.tobytes())
        assert (reply.status, reply.json["outputs"][0]["data"]) == (200, [1]), reply.body
        assert total(await stage.client.metrics(), "header_recovered_total") == 1


@pytest.mark.rule("11.1")
async def test_outputs_are_chosen_and_each_has_its_form() -> None:
    answer = b'{"outputs": {"n": [3, 9007199254740993], "y": [[0.5]], "unknown": "?"}}'
    async with before(tensorflow(answer, y="DT_FLOAT", n="DT_INT64"), TENSORFLOW) as stage:
        outputs = [{"name": "n"}, {"name": "y", "parameters": {"binary_data": True}}]
        reply = await stage.infer(outputs=outputs, parameters={})
        assert reply.status == 200, reply.body
        by_name = {output["name"]: output for output in reply.json["outputs"]}
        assert by_name["n"]["data"] == [3, 9007199254740993]
        assert by_name["y"]["parameters"] == {"binary_data_size": 4}
        assert reply.binary == np.array([0.5], np.float32).tobytes()
        reply = await stage.infer(outputs=[{"name": "y"}], parameters={})
        assert [output["name"] for output in reply.json["outputs"]] == ["y"]


async def test_nothing_of_a_request_waits_for_the_garbage_collector() -> None:
    async with before(tensorflow(b'{"outputs": [1]}', y="DT_FLOAT"), TENSORFLOW) as stage:
        assert (await stage.infer()).status == 200  # asks for the description
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                assert (await stage.infer()).status == 200
            assert sum(isinstance(each, Foreign | Call) for each in gc.get_objects()) <= 1
        finally:
            gc.enable()


# Models that are replaced while they serve


@pytest.fixture
def stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every description is as one that is older than a second."""
    for module in (foreign, own_answers):
        monkeypatch.setattr(module, "FRESH_S", 0.0)


def replace_model(stage_server: Scripted, description: bytes, inference: bytes) -> None:
    """From now on another model is served under the same name."""
    for path in ("/v1/models/m/metadata", "/v1/models/m/versions/7/metadata"):
        stage_server.paths[path] = ("200 OK", description)
    stage_server.inference = inference


def labels(reply: Reply) -> list[tuple[str, str]]:
    """The names and datatypes of the outputs that came."""
    assert reply.status == 200, reply.body
    return [(output["name"], output["datatype"]) for output in reply.json["outputs"]]


@pytest.mark.rule("11.2")
@pytest.mark.parametrize("settings", ["", "max_connections: 1\n"])
async def test_an_answer_that_does_not_fit_the_description_is_labelled_by_a_new_one(settings: str) -> None:
    server = tensorflow(b'{"outputs": [1]}', y="DT_FLOAT")
    async with before(server, TENSORFLOW + settings) as stage:
        assert labels(await stage.infer()) == [("y", "FP32")]
        replace_model(server, described(y="DT_FLOAT", n="DT_INT64"), b'{"outputs": {"y": [1], "n": [2]}}')
        assert labels(await stage.infer()) == [("y", "FP32"), ("n", "INT64")]
        replace_model(server, described(z="DT_DOUBLE"), b'{"outputs": [1e300]}')
        reply = await stage.infer()
        assert labels(reply) == [("z", "FP64")]
        assert reply.binary == np.array([1e300]).tobytes()
        replace_model(server, described(z="DT_INT64"), b'{"outputs": {"w": [1]}}')  # fits neither
        assert "output 'w'" in error_of(await stage.infer(), 502)
        assert len(stage.sent) == 4
        assert [seen.method for seen in stage.backend.seen].count("GET") == 4


@pytest.mark.rule("11.2")
async def test_an_answer_that_has_no_names_is_labelled_by_the_model_that_is_served_now(stale: None) -> None:
    server = tensorflow(b'{"outputs": [1]}', y="DT_FLOAT")
    async with before(server, TENSORFLOW + "max_connections: 1\n") as stage:
        assert labels(await stage.infer()) == [("y", "FP32")]
        replace_model(server, described(z="DT_INT64"), b'{"outputs": [7]}')
        assert labels(await stage.infer()) == [("z", "INT64")]
        metadata = (await get(stage, "/v2/models/m")).json
        assert [output["name"] for output in metadata["outputs"]] == ["z"]


@pytest.mark.rule("11.2")
async def test_one_question_goes_out_beside_all_inferences_that_are_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither waits for the other: the question is answered when all inferences are there, and these behind it."""
    server = tensorflow(b'{"outputs": [1]}', y="DT_FLOAT")
    are_sent, is_asked = asyncio.Event(), asyncio.Event()
    counts = {"POST": 0, "GET": 0}

    async def behave(seen: Seen) -> bool:
        counts[seen.method] += 1
        if counts["GET"] > 1:  # the first describes the model to the first client
            if seen.method == "GET":
                is_asked.set()
                await are_sent.wait()
            elif counts["POST"] == 21:
                are_sent.set()
            await is_asked.wait()
        return await server.behave(seen)

    async with counting(behave) as backend, running(backend.url, backend=TENSORFLOW) as client:
        stage = Stage(client, backend)
        async with asyncio.timeout(20):
            assert labels(await stage.infer()) == [("y", "FP32")]
            monkeypatch.setattr(foreign, "FRESH_S", 0.0)
            replace_model(server, described(z="DT_INT64"), b'{"outputs": [7]}')
            replies = await asyncio.gather(*(stage.infer() for _ in range(20)))
        assert [labels(reply) for reply in replies] == [[("z", "INT64")]] * 20
        assert counts == {"POST": 21, "GET": 2}


async def test_a_request_is_judged_by_the_model_that_is_served_now(stale: None) -> None:
    server = tensorflow(b'{"outputs": [1]}', y="DT_FLOAT")
    ints = np.array([[1, 2, 3, 4]], np.int32)
    async with before(server, TENSORFLOW) as stage:
        assert labels(await stage.infer()) == [("y", "FP32")]
        replace_model(server, described({"x": "DT_INT32"}, z="DT_FLOAT"), b'{"outputs": [1]}')
        assert labels(await stage.infer(ints, "INT32", outputs=[{"name": "z"}])) == [("z", "FP32")]
        assert "takes INT32" in error_of(await stage.infer(), 400)
        raw = await stage.client.request(
            "POST", "/v2/models/m/infer", data=ints.tobytes(), headers={HEADER_LENGTH: "0"}
        )
        assert labels(raw) == [("z", "FP32")]
        assert json.loads(stage.sent[-1].body) == {"inputs": {"x": [[1, 2, 3, 4]]}}


async def test_an_answer_is_not_labelled_where_the_server_no_longer_describes_its_model(stale: None) -> None:
    server = tensorflow(b'{"outputs": [1]}', y="DT_FLOAT")
    async with before(server, TENSORFLOW + "retry: {attempts: 3}\neject: {failures: 1}\n") as stage:
        assert labels(await stage.infer()) == [("y", "FP32")]
        server.paths["/v1/models/m/metadata"] = ("503 Service Unavailable", b'{"error": "loading"}')
        assert error_of(await stage.infer(), 503) == "loading"
        assert len(stage.sent) == 2
        replace_model(server, b"{}", b'{"outputs": [1]}')
        assert "cannot be read" in error_of(await stage.infer(), 502)
        assert total(await stage.client.metrics(), "endpoint_ejected") == 0


async def test_a_long_answer_that_does_not_fit_the_description_is_not_kept_to_be_read_again() -> None:
    server = tensorflow(b'{"outputs": [1]}', y="DT_FLOAT")
    async with before(server, TENSORFLOW) as stage:
        assert labels(await stage.infer()) == [("y", "FP32")]
        long = b"[" + b"1," * 40_000 + b"1]"
        replace_model(server, described(z="DT_INT64"), b'{"outputs": {"z": %b}}' % long)
        assert "output 'z'" in error_of(await stage.infer(), 502)


async def test_a_large_tensor_goes_through_in_pieces_both_ways() -> None:
    big = np.random.default_rng(0).standard_normal((1, 300, 1000), dtype=np.float32)

    async def echo(seen: Seen) -> bool:
        if seen.method == "GET":
            await seen.answer(described(x="DT_FLOAT"))
        else:
            await seen.answer(json.dumps({"outputs": json.loads(seen.body)["inputs"]["x"]}).encode())
        return True

    async with counting(echo) as backend, running(backend.url, backend=TENSORFLOW) as client:
        stage = Stage(client, backend)
        reply = await stage.infer(big)
        assert (reply.status, reply.json["outputs"][0]["shape"]) == (200, [1, 300, 1000])
        assert reply.binary == big.tobytes()
        assert stage.sent[0].values("Transfer-Encoding") == ["chunked"]


async def test_framing_by_length_holds_for_nested_json() -> None:
    big = np.ones((300, 100), np.float32)
    async with before(tensorflow(b'{"outputs": [1]}', y="DT_FLOAT"), TENSORFLOW + "framing: content-length\n") as stage:
        assert (await stage.infer(big)).status == 200
        assert stage.sent[0].values("Content-Length") == [str(len(stage.sent[0].body))]


# Descriptions


async def test_a_model_is_described_once_for_many_requests() -> None:
    async with before(tensorflow(b'{"outputs": [1]}', y="DT_FLOAT"), TENSORFLOW) as stage:
        for _ in range(3):
            assert (await stage.infer()).status == 200
        assert [seen.target for seen in stage.backend.seen if seen.method == "GET"] == ["/v1/models/m/metadata"]


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        (tensorflow(b'{"outputs": [1]}', y="DT_FLOAT"), 200),
        (tensorflow(b'{"outputs": [1]}'), 502),
        (Scripted(paths={"/v1/models/m/metadata": ("500 Internal Server Error", b"no disk")}), 500),
    ],
    ids=["described", "not described", "failing"],
)
async def test_a_hundred_clients_at_once_lead_to_one_question_about_the_model(server: Scripted, expected: int) -> None:
    all_came = asyncio.Event()

    async def behave(seen: Seen) -> bool:
        if seen.target == "/v1/models/m/metadata":
            await all_came.wait()
        return await server.behave(seen)

    async def let_answers_begin(client: Client) -> None:
        await until(client, "requests_in_flight", 100)
        all_came.set()

    async with counting(behave) as backend, running(backend.url, backend=TENSORFLOW) as client:
        async with many_connections(client) as many:
            stage = Stage(many, backend)
            waiting = asyncio.ensure_future(let_answers_begin(client))
            replies = await asyncio.gather(*(stage.infer() for _ in range(100)))
            await waiting
        assert [reply.status for reply in replies] == [expected] * 100
        targets = [seen.target for seen in backend.seen]
        # a slow machine sends the last inferences when the description is too old, and it is asked for again
        at_once = itertools.takewhile(lambda target: target.endswith("/metadata"), targets)
        assert [*at_once] == ["/v1/models/m/metadata"]


@pytest.mark.rule("11.2")
async def test_the_configuration_is_enough_where_the_server_describes_nothing() -> None:
    async with before(tensorflow(b'{"predictions": [1]}'), TENSORFLOW + ONE) as stage:
        for _ in range(3):
            reply = await stage.infer()
            assert (reply.status, reply.json["outputs"][0]["name"]) == (200, "y"), reply.body
        assert [seen.target for seen in stage.backend.seen if seen.method == "GET"] == ["/v1/models/m/metadata"]


@pytest.mark.parametrize(
    ("settings", "answer"),
    [
        (TENSORFLOW + TWO.replace("{m: {", "{m: {format: row, "), b'{"predictions": [[[1.5, 2], 7], [[3, 4.25], 8]]}'),
        (TENSORFLOW + TWO, b'{"outputs": [[[1.5, 2], [3, 4.25]], [7, 8]]}'),
        (MLFLOW + TWO, b'{"predictions": [[[1.5, 2.0], [3.0, 4.25]], [7, 8]]}'),
    ],
    ids=["rows", "columnar", "mlflow"],
)
async def test_outputs_without_names_come_in_the_order_of_the_configuration(settings: str, answer: bytes) -> None:
    server = tensorflow(answer)
    async with before(server, settings) as stage:
        reply = await stage.infer()
        assert reply.status == 200, reply.body
        assert [(entry["name"], entry["shape"]) for entry in reply.json["outputs"]] == [("y", [2, 2]), ("n", [2])]
        assert reply.binary == np.array([1.5, 2, 3, 4.25], "<f4").tobytes() + np.array([7, 8], "<i8").tobytes()
        server.inference = b'{"predictions": [[1]]}'
        assert "expected a list with 2 values, one for each output ('y', 'n'), got 1" in error_of(
            await stage.infer(), 502
        )


async def test_outputs_without_names_have_no_order_where_the_server_describes_some_that_are_not_configured() -> None:
    server = tensorflow(b'{"outputs": [[1], [2]]}', n="DT_INT64", y="DT_FLOAT")
    async with before(server, TENSORFLOW + ONE) as stage:
        assert "the model has 2 ('n', 'y'); `models`" in error_of(await stage.infer(), 502)
    async with before(server, TENSORFLOW + TWO) as stage:
        reply = await stage.infer()
        assert [(entry["name"], entry["datatype"]) for entry in reply.json["outputs"]] == [
            ("y", "FP32"),
            ("n", "INT64"),
        ]


async def test_the_configuration_wins_over_the_servers_description() -> None:
    settings = TENSORFLOW + "models: {'*': {outputs: {y: {datatype: FP64}}}}\n"
    async with before(tensorflow(b'{"outputs": [0.1]}', y="DT_FLOAT"), settings) as stage:
        reply = await stage.infer()
        assert (reply.json["outputs"][0]["datatype"], reply.binary) == ("FP64", np.array([0.1]).tobytes())


@pytest.mark.rule("11.2")
@pytest.mark.parametrize("settings", [TENSORFLOW, MLFLOW], ids=["tensorflow", "mlflow"])
async def test_without_a_datatype_nothing_is_sent_and_the_error_says_what_to_set(settings: str) -> None:
    async with before(tensorflow(), settings) as stage:
        words = error_of(await stage.infer(), 502)
        assert all(part in words for part in ("'m'", "'main'", "models:", "datatype"))
        assert not stage.sent
        words = error_of(await stage.infer(outputs=[{"name": "scores"}]), 502)
        assert "scores: {datatype: FP32}" in words


async def test_a_model_that_the_server_does_not_have_is_its_own_404() -> None:
    async with before(tensorflow(y="DT_FLOAT"), TENSORFLOW) as stage:
        assert error_of(await stage.infer(path="/v2/models/nobody/infer"), 404) == "nothing here"
        assert error_of(await stage.client.request("GET", "/v2/models/nobody"), 404) == "nothing here"


async def test_a_description_that_cannot_be_read_is_no_description() -> None:
    server = tensorflow(b'{"outputs": [1]}')
    server.paths["/v1/models/m/metadata"] = ("200 OK", b'{"metadata": {}}')
    async with before(server, TENSORFLOW) as stage:
        assert "what the server says of the model cannot be read" in error_of(await stage.infer(), 502)
        assert not stage.sent
    async with before(server, TENSORFLOW + ONE) as stage:
        assert (await stage.infer()).status == 200


async def test_a_server_that_cannot_describe_its_model_now_is_asked_again() -> None:
    server = tensorflow(b'{"outputs": [1]}', y="DT_FLOAT")
    good = server.paths["/v1/models/m/metadata"]
    server.paths["/v1/models/m/metadata"] = ("503 Service Unavailable", b'{"error": "loading"}')
    async with before(server, TENSORFLOW) as stage:
        assert error_of(await stage.infer(), 503) == "loading"
        server.paths["/v1/models/m/metadata"] = good
        assert (await stage.infer()).status == 200


@pytest.mark.parametrize("status", ["401 Unauthorized", "403 Forbidden"])
async def test_a_description_that_is_refused_is_refused_in_the_servers_words(status: str) -> None:
    server = tensorflow(b'{"outputs": [1]}', y="DT_FLOAT")
    server.paths["/v1/models/m/metadata"] = (status, b'{"error": "who are you?"}')
    async with before(server, TENSORFLOW) as stage:
        assert error_of(await stage.infer(), int(status[:3])) == "who are you?"
        assert error_of(await get(stage, "/v2/models/m"), int(status[:3])) == "who are you?"
        assert not stage.sent
        server.paths["/v1/models/m/metadata"] = (status, b"no entry")
        words = error_of(await stage.infer(), int(status[:3]))
        assert words.startswith(f'backend "main" answered {status[:3]}: no entry (')
        assert "GET /v1/models/m/metadata, the model's description" in words
    async with before(server, TENSORFLOW + ONE) as stage:
        assert (await stage.infer()).status == 200


async def test_a_redirect_in_place_of_a_description_says_where_it_leads() -> None:
    async def behave(seen: Seen) -> bool:
        await seen.answer(b"", "302 Found", "Location: https://login.example/\r\n")
        return True

    async with counting(behave) as backend, running(backend.url, backend=TENSORFLOW) as client:
        words = error_of(await Stage(client, backend).infer(), 502)
        assert "302 Found, a redirect to https://login.example/" in words
        assert "the model's description" in words


@pytest.mark.rule("11.2")
@pytest.mark.parametrize("answer", [b'{"outputs": {}}', b'{"predictions": [{}, {}]}', b'{"outputs": {"n": [1]}}'])
async def test_an_answer_without_an_output_of_the_model_is_a_502(answer: bytes) -> None:
    async with before(tensorflow(answer, y="DT_FLOAT", n="DT_INT64"), TENSORFLOW) as stage:
        assert "the answer does not have it" in error_of(await stage.infer(), 502)


# Errors


@pytest.mark.rule("11.1")
@pytest.mark.parametrize("settings", ["", "models: {m: {format: row}}\n"])
async def test_a_request_of_a_sequence_is_refused_where_there_are_none(settings: str) -> None:
    async with before(tensorflow(b'{"predictions": [1]}', y="DT_FLOAT"), TENSORFLOW + settings) as stage:
        for identity in (5, "5"):
            parameters = {"sequence_id": identity, "sequence_start": True}
            words = error_of(await stage.infer(parameters=parameters), 400)
            assert words.startswith(f"sequence_id is {json.dumps(identity)}, but this backend has no sequences")
        assert not stage.sent
        for harmless in ({"sequence_id": 0}, {"sequence_id": ""}, {"priority": 1, "timeout": 5}):
            assert (await stage.infer(parameters=harmless)).status == 200


async def test_parameters_go_to_mlflow() -> None:
    async with before(Scripted(b'{"predictions": [1]}'), MLFLOW + ONE) as stage:
        assert (await stage.infer(parameters={"sequence_id": 0, "priority": 1, "alpha": 0.5})).status == 200
        assert stage.body["params"] == {"alpha": 0.5}
        assert "has no sequences" in error_of(await stage.infer(parameters={"sequence_id": 5}), 400)


@pytest.mark.rule("11.1")
async def test_a_parameter_that_tensorflow_would_not_get_is_refused() -> None:
    async with before(tensorflow(b'{"outputs": [1]}', y="DT_FLOAT"), TENSORFLOW) as stage:
        words = error_of(await stage.infer(parameters={"alpha": 0.5}), 400)
        assert words.startswith("parameter 'alpha': the body for model 'm' has no place for it")
        assert not stage.sent


async def test_a_refusal_keeps_its_status_and_its_words() -> None:
    server = tensorflow(b'{"error": "Input x is 2D, not 3D"}', status="400 Bad Request", y="DT_FLOAT")
    async with before(server, TENSORFLOW) as stage:
        reply = await stage.infer()
        assert error_of(reply, 400).startswith("Input x is 2D, not 3D")
        assert reply.headers["Content-Type"] == "application/json"


async def test_mlflows_reason_comes_first() -> None:
    trace = "Traceback (most recent call last):\n  File ...\nValueError: the weights are made of paper\n"
    error = {"error_code": "BAD_REQUEST", "message": "Encountered an unexpected error", "stack_trace": trace}
    server = Scripted(json.dumps(error).encode(), "400 Bad Request")
    async with before(server, MLFLOW + ONE) as stage:
        assert error_of(await stage.infer(), 400).startswith("ValueError: the weights are made of paper")


@pytest.mark.rule("11.2")
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "without a body"),
        (b"{", ""),
        (b'{"outputs": [[1, 2], [3]]}', "output 'y'"),
        (b'{"outputs": [1, "a"]}', "output 'y'"),
        (b'{"outputs": [1, null]', ""),
        (b'{"outputs": [1, nul]}', "output 'y'"),
        (b'{"outputs": {"y": "\\ud800"}}', "output 'y'"),
        (b'{"outputs": [1]} x', "more follows"),
        (b'{"outputs": {"z": [1]}}', "output 'y'"),
        (b'{"error": "out of memory"}', "out of memory"),
        (b'{"something": [1]}', "outputs"),
        (b"[1]", ""),
        (b'{"outputs": [1e39]}', "output 'y'"),
    ],
)
async def test_a_malformed_answer_is_a_502_that_names_the_output(answer: bytes, words: str) -> None:
    async with before(tensorflow(answer, y="DT_FLOAT"), TENSORFLOW) as stage:
        reply = await stage.infer(outputs=[{"name": "y", "parameters": {"binary_data": True}}])
        assert words in error_of(reply, 502)
        # the connection is usable for the next one
        stage_reply = await stage.client.request("GET", "/v2/health/live")
        assert stage_reply.status == 200


@pytest.mark.rule("11.1")
@pytest.mark.parametrize(
    ("array", "datatype", "settings", "words"),
    [
        (np.array([[np.nan]], np.float32), "FP32", "", "element 0 is nan"),
        (np.zeros((0, 4), np.float32), "FP32", "", "[0, 4]"),
        (np.float32(1).reshape(()), "FP32", "models: {m: {format: row}}\n", "input 'x'"),
    ],
)
async def test_what_the_form_cannot_say_is_refused_before_it_is_sent(
    array: npt.NDArray[Any], datatype: str, settings: str, words: str
) -> None:
    async with before(tensorflow(b'{"outputs": [1]}', y="DT_FLOAT"), TENSORFLOW + settings) as stage:
        assert words in error_of(await stage.infer(array, datatype), 400)
        assert not stage.sent


@pytest.mark.rule("11.3")
async def test_a_version_of_mlflows_only_model_does_not_exist() -> None:
    async with before(Scripted(b'{"predictions": [1]}'), MLFLOW + ONE) as stage:
        assert "no versions" in error_of(await stage.infer(path="/v2/models/m/versions/1/infer"), 404)
        assert "no versions" in error_of(await stage.client.request("GET", "/v2/models/m/versions/1"), 404)
        assert not stage.sent


async def test_a_signature_that_the_model_does_not_have_ejects_no_endpoint() -> None:
    settings = TENSORFLOW + "models: {m: {signature: wrong}}\neject: {failures: 1}\n"
    async with before(tensorflow(b'{"outputs": [1]}', y="DT_FLOAT"), settings) as stage:
        for _ in range(3):
            words = error_of(await stage.infer(), 502)
            assert "'wrong'" in words
            assert "serving_default" in words
        assert total(await stage.client.metrics(), "endpoint_ejected") == 0


async def test_another_endpoint_gets_the_same_body_made_anew() -> None:
    big = np.arange(40_000, dtype=np.float32).reshape(100, 400)
    good = tensorflow(b'{"outputs": [1]}', y="DT_FLOAT")
    lost: list[Seen] = []

    async def behave(seen: Seen) -> bool:
        if seen.method == "GET" or lost:
            return await good.behave(seen)
        lost.append(seen)
        return False

    async with counting(behave) as one, counting(behave) as other:
        settings = TENSORFLOW + "retry: {attempts: 2, resend_after_sent: true}\n"
        async with running(f"{one.url}', '{other.url}", backend=settings) as client:
            assert (await Stage(client, one).infer(big)).status == 200
        posts = [seen for seen in one.seen + other.seen if seen.method == "POST"]
        assert [json.loads(seen.body) for seen in posts] == [{"inputs": {"x": big.tolist()}}] * 2


async def test_a_denied_path_is_denied_also_where_the_gateway_would_ask_for_it() -> None:
    extra = "access: {deny: ['/v1/models/secret*']}\n"
    server = tensorflow(b'{"outputs": [1]}', y="DT_FLOAT")
    for path in ("", "/metadata"):
        server.paths[f"/v1/models/secret{path}"] = server.paths[f"/v1/models/m{path}"]
    async with before(server, TENSORFLOW, extra) as stage:
        assert (await stage.infer()).status == 200
        assert "access.deny" in error_of(await stage.infer(path="/v2/models/secret/infer"), 403)
        assert "access.deny" in error_of(await get(stage, "/v2/models/secret/ready"), 403)
        assert "access.deny" in error_of(await get(stage, "/v2/models/secret"), 403)
        assert not [seen for seen in stage.backend.seen if "secret" in seen.target]


async def test_metrics_and_log_tell_what_was_converted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "gateway.access")
    logging = "logging: {access: json}\n"
    async with before(tensorflow(b'{"outputs": [1, 2]}', y="DT_INT64"), TENSORFLOW, logging) as stage:
        assert (await stage.infer()).status == 200
        samples = await stage.client.metrics()
        assert total(samples, "tensors_total", direction="request", datatype="FP32") == 1
        assert total(samples, "tensors_total", direction="response", datatype="INT64") == 1
        assert total(samples, "upstream_request_bytes_count", format="json") >= 1
        assert total(samples, "requests_total", model="m", code="200") == 1
    (line,) = [json.loads(each) for each in access_lines(caplog)]
    assert (line["attempts"], line["model"], line["status"]) == (1, "m", 200)
    assert line["upstream_request_bytes"] > len(stage.sent[0].body) - 1


# Inputs that the model does not have

INPUTS = "models: {m: {inputs: {x: {datatype: FP32}, '1': {datatype: INT64}}, outputs: {y: {datatype: FP32}}}}\n"


@pytest.mark.rule("11.2")
@pytest.mark.parametrize(
    ("array", "datatype"),
    [(np.array([[16777217]], np.int32), "INT32"), (np.array([[1e300]]), "FP64"), (np.ones((1, 1), np.uint8), "UINT8")],
    ids=["INT32", "FP64", "UINT8"],
)
async def test_an_input_of_another_datatype_than_the_models_is_refused(array: npt.NDArray[Any], datatype: str) -> None:
    """TensorFlow makes 16777216 of the INT32 16777217, and infinity of 1e300, and says nothing."""
    before_each = (
        (tensorflow(b'{"outputs": [1]}', y="DT_FLOAT"), TENSORFLOW),
        (tensorflow(b'{"predictions": [1]}'), TENSORFLOW + INPUTS.replace("{m: {", "{m: {format: row, ")),
        (Scripted(b'{"predictions": [1]}'), MLFLOW + INPUTS),
    )
    for server, settings in before_each:
        async with before(server, settings) as stage:
            words = error_of(await stage.infer(array, datatype), 400)
            assert words.startswith(f"input 'x' ({datatype}, shape [1, 1]): model 'm' takes FP32")
            entry = {"name": "x", "datatype": datatype, "shape": [1, 1], "data": [1]}
            reply = await stage.client.request("POST", "/v2/models/m/infer", json={"inputs": [entry]})
            assert "model 'm' takes FP32" in error_of(reply, 400)
            assert not stage.sent


@pytest.mark.rule("11.2")
async def test_an_input_that_the_model_does_not_have_is_refused_and_those_it_has_are_named() -> None:
    """TensorFlow Serving leaves it out, and says nothing."""
    header = {"inputs": [tensor("x", X, "FP32"), tensor("weights", X, "FP32")]}
    before_each = (
        (tensorflow(b'{"outputs": [1]}', {"x": "DT_FLOAT", "1": "DT_INT64"}, y="DT_FLOAT"), TENSORFLOW),
        (Scripted(b'{"predictions": [1]}'), MLFLOW + INPUTS),
    )
    for server, settings in before_each:
        async with before(server, settings) as stage:
            reply = await stage.client.infer_binary(header, X.tobytes() * 2, model="m")
            assert error_of(reply, 400) == "input 'weights': model 'm' has no such input; it has '1', 'x'"
            assert not stage.sent


@pytest.mark.rule("11.2")
async def test_an_input_of_which_nothing_is_known_is_not_judged() -> None:
    for server, settings in (
        (tensorflow(b'{"outputs": [1]}', {"x": "DT_VARIANT"}, y="DT_FLOAT"), TENSORFLOW),
        (tensorflow(b'{"outputs": [1]}'), TENSORFLOW + ONE),
        (Scripted(b'{"predictions": [1]}'), MLFLOW + ONE),
    ):
        async with before(server, settings) as stage:
            assert (await stage.infer(np.ones((1, 4), np.int32), "INT32")).status == 200


async def test_an_input_without_a_name_has_any_name_but_one_datatype() -> None:
    settings = MLFLOW + ONE.replace("{m: {", "{m: {inputs: {'': {datatype: FP32}}, ")
    async with before(Scripted(b'{"predictions": [1]}'), settings) as stage:
        assert (await stage.infer()).status == 200
        assert stage.body == {"inputs": [[1.5, -2, 0.1, 3e38]]}
        words = error_of(await stage.infer(np.ones((1, 4), np.int32), "INT32"), 400)
        assert words.startswith("input 'x' (INT32, shape [1, 4]): model 'm' takes FP32")


# Strings that are missing, and strings of base64


def texts(reply: Reply) -> list[bytes]:
    """The elements of the BYTES that came in binary."""
    assert reply.status == 200, reply.body
    return [bytes(element) for element in deserialize_bytes_tensor(reply.binary)]


MISSING = b'{"predictions": [{"t": "a", "n": 1}, {"t": NaN, "n": NaN}, {"t": null, "n": null}, {"t": "", "n": 4}]}'


@pytest.mark.rule("11.2")
async def test_a_missing_string_is_refused_unless_the_configuration_says_what_it_becomes() -> None:
    """Of a data frame with text: pandas writes `NaN` or `null`, as its column has it."""
    settings = MLFLOW + "models: {m: {outputs: {t: {datatype: BYTES}, n: {datatype: FP64}}}}\n"
    async with before(Scripted(MISSING), settings) as stage:
        words = error_of(await stage.infer(), 502)
        assert "output 't' (BYTES): element 1: expected a string, got NaN, which is no string; `missing`" in words
        assert (await stage.infer(outputs=[{"name": "n"}])).status == 200
    for missing in ("", "n/a", "\\xe9"):
        given = settings.replace("BYTES", f'BYTES, missing: "{missing}"')
        async with before(Scripted(MISSING), given) as stage:
            reply = await stage.infer(outputs=[{"name": "t", "parameters": {"binary_data": True}}])
            expected = missing.replace("\\xe9", "\xe9").encode()
            assert texts(reply) == [b"a", expected, expected, b""]
    settings = settings.replace("BYTES", "BYTES, missing: ''")
    for answer in (b'{"predictions": {"t": ["a", null], "n": [1, 2]}}', b'{"predictions": {"t": null, "n": 1}}'):
        async with before(Scripted(answer), settings) as stage:
            assert texts(await stage.infer(outputs=[{"name": "t", "parameters": {"binary_data": True}}]))[-1] == b""
    for broken in (b'["a", nul]', b'["a", nullx]', b'["a", NaNN]', b'["a", true]'):
        async with before(Scripted(b'{"predictions": {"n": [1], "t": %b}}' % broken), settings) as stage:
            assert "output 't'" in error_of(await stage.infer(), 502)


@pytest.mark.rule("11.2")
async def test_base64_of_an_output_is_read_also_in_lines() -> None:
    settings = MLFLOW + "models: {m: {outputs: {b: {datatype: BYTES, encoding: base64}}}}\n"
    octets = [bytes(range(256)), b"", b"x", b"\xff" * 57]
    lines = [base64.encodebytes(octet).decode() for octet in octets]
    rows = [{"b": line} for line in lines]
    for predictions in (lines, {"b": lines}, rows, [{"b": line, "long": "y" * 9000} for line in lines]):
        async with before(Scripted(json.dumps({"predictions": predictions}).encode()), settings) as stage:
            assert texts(await stage.infer()) == octets
            (output,) = (await stage.infer(parameters={})).json["outputs"]
            assert output["parameters"] == {"content_type": "base64"}
            assert [base64.b64decode(text) for text in output["data"]] == octets
    async with before(Scripted(b'{"predictions": ["YQ"]}'), settings) as stage:
        assert "output 'b' (BYTES, at $.predictions): element 0 is not base64" in error_of(await stage.infer(), 502)


@pytest.mark.parametrize("policy", ["", "bytes: base64\n"])
@pytest.mark.parametrize("form", ["inputs", "dataframe_split"])
async def test_each_column_of_strings_has_its_own_encoding(policy: str, form: str) -> None:
    inputs = "b: {datatype: BYTES, encoding: base64}, t: {datatype: BYTES, encoding: text}"
    settings = (
        f"{MLFLOW}{policy}models: {{m: {{format: {form}, inputs: {{{inputs}}}, outputs: {{y: {{datatype: FP32}}}}}}}}\n"
    )
    octets, text = np.array([b"\x00\xff", b"a"], np.object_), np.array(["\xe9".encode(), b"2020-01-01"], np.object_)
    blobs = [serialize_byte_tensor(array).item() for array in (octets, text)]
    entries = [
        {"name": name, "datatype": "BYTES", "shape": [2], "parameters": {"binary_data_size": len(blob)}}
        for name, blob in zip("bt", blobs, strict=True)
    ]
    async with before(Scripted(b'{"predictions": [1]}'), settings) as stage:
        assert (await stage.client.infer_binary({"inputs": entries}, *blobs, model="m")).status == 200
        columns = {"b": ["AP8=", "YQ=="], "t": ["\xe9", "2020-01-01"]}
        table = {"columns": ["b", "t"], "data": [list(row) for row in zip(*columns.values(), strict=True)]}
        assert stage.body == ({"inputs": columns} if form == "inputs" else {"dataframe_split": table})
        entries[1]["parameters"] = {"binary_data_size": len(blobs[0])}
        reply = await stage.client.infer_binary({"inputs": entries}, blobs[0], blobs[0], model="m")
        assert "input 't' (BYTES, shape [2]): element 0 is not UTF-8" in error_of(reply, 400)


async def test_what_an_answer_has_beside_the_outputs_that_are_listed_is_left_out() -> None:
    for answer in (
        b'{"predictions": [{"y": 1, "z": "a", "n": 2}, {"y": 3, "z": [{}], "n": 4}]}',
        b'{"predictions": {"z": {"deep": [1]}, "y": [1, 3], "n": [2, 4]}}',
        b'{"predictions": [{"y": 1, "n": 2}, {"y": 3, "late": "a", "n": 4}, {"n": 5, "long": "%b", "y": 6}]}'
        % (b"x" * 20_000),
    ):
        async with before(Scripted(answer), MLFLOW + TWO) as stage:
            assert labels(await stage.infer()) == [("y", "FP32"), ("n", "INT64")]


# What the gateway answers itself


async def get(stage: Stage, path: str) -> Reply:
    return await stage.client.request("GET", path)


async def test_health_and_metadata_of_tensorflow_serving() -> None:
    async with before(tensorflow(y="DT_FLOAT"), TENSORFLOW) as stage:
        assert (await get(stage, "/v2/health/live")).json == {"live": True}
        assert (await get(stage, "/v2/health/ready")).json == {"ready": True}
        assert (await get(stage, "/v2/models/m/ready")).json == {"name": "m", "ready": True}
        metadata = (await get(stage, "/v2")).json
        assert metadata["name"] == "tensorflow"
        assert metadata["extensions"] == ["binary_tensor_data"]
        assert (await get(stage, "/v2/")).json == metadata
        model = (await get(stage, "/v2/models/m")).json
        shape = [-1, 4]
        assert model["inputs"] == [{"name": "x", "datatype": "FP32", "shape": shape}]
        assert model["outputs"] == [{"name": "y", "datatype": "FP32", "shape": shape}]
        assert (await get(stage, "/v2/models/m/versions/7")).json["outputs"] == model["outputs"]
        head = await stage.client.request("HEAD", "/v2/health/live")
        assert (head.status, head.body) == (200, b"")


@pytest.mark.rule("8.2")
async def test_words_about_what_is_known_of_a_renamed_model_have_the_clients_name() -> None:
    routes = "routes: [{name: r, rename: {pub: m}, backend: main}]\n"

    async def words(server: Scripted, settings: str, status: int, method: str, path: str) -> str:
        async with counting(server.behave) as backend, running(backend.url, routes, settings) as client:
            body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}
            return error_of(await client.request(method, path, json=body if method == "POST" else None), status)

    server = Scripted(paths={"/ping": ("200 OK", b"")})
    said = await words(server, MLFLOW, 404, "GET", "/v2/models/pub")
    assert said.startswith("nothing is known of model 'pub': its server")
    other = TENSORFLOW + "models: {m: {signature: other}}\n"
    for method, path in (("GET", "/v2/models/pub"), ("POST", "/v2/models/pub/infer")):
        said = await words(tensorflow(y="DT_FLOAT"), other, 502, method, path)
        assert said.startswith("model 'pub': it has no signature 'other'")


async def test_a_model_that_is_loading_is_not_ready() -> None:
    server = tensorflow()
    status = b'{"model_version_status": [{"version": "7", "state": "LOADING"}]}'
    server.paths["/v1/models/m"] = ("200 OK", status)
    async with before(server, TENSORFLOW) as stage:
        assert error_of(await get(stage, "/v2/models/m/ready"), 400) == "model 'm' is not ready"
        assert error_of(await get(stage, "/v2/models/nobody/ready"), 404) == "nothing here"


async def test_health_and_metadata_of_mlflow() -> None:
    server = Scripted(paths={"/ping": ("200 OK", b"\n")})
    async with before(server, MLFLOW + TWO) as stage:
        for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/m/ready"):
            assert (await get(stage, path)).status == 200
        assert (await get(stage, "/v2")).json["name"] == "mlflow"
        names = [output["name"] for output in (await get(stage, "/v2/models/m")).json["outputs"]]
        assert names == ["y", "n"]
        assert "nothing is known of model 'other'" in error_of(await get(stage, "/v2/models/other"), 404)
        server.paths["/ping"] = ("500 Internal Server Error", b"")
        assert "/ping" in error_of(await get(stage, "/v2/health/ready"), 500)


async def test_statistics_of_all_models_are_no_model_called_stats() -> None:
    server = Scripted(paths={"/ping": ("200 OK", b"\n")})
    async with before(server, MLFLOW + "models: {'*': {outputs: {y: {datatype: FP32}}}}\n") as stage:
        assert (await get(stage, "/v2/models/any")).status == 200
        for method in ("GET", "HEAD"):
            assert (await stage.client.request(method, "/v2/models/stats")).status == 404
        assert "have nothing like it" in error_of(await get(stage, "/v2/models/stats"), 404)


@pytest.mark.parametrize("settings", [TENSORFLOW, MLFLOW], ids=["tensorflow", "mlflow"])
async def test_a_server_that_is_not_there_is_neither_alive_nor_ready(settings: str) -> None:
    with socket.socket() as bound:  # so that no other server gets the port
        bound.bind(("127.0.0.1", 0))
        async with running(f"http://127.0.0.1:{bound.getsockname()[1]}", backend=settings) as client:
            for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/m/ready"):
                assert (await client.request("GET", path)).status == 503


@pytest.mark.parametrize(
    ("status", "body", "expected", "words"),
    [
        ("500 Internal Server Error", b'{"error": "no disk"}', 500, "no disk"),
        ("503 Service Unavailable", b"loading", 503, 'backend "main" answered 503: loading (GET {path})'),
        ("404 Not Found", b"", 404, 'backend "main" answered 404: Not Found (GET {path})'),
        (
            "302 Found",
            b"",
            502,
            "the backend answered 302 Found, a redirect, which the gateway does not follow (GET {path})",
        ),
    ],
)
@pytest.mark.parametrize(("settings", "path"), [(TENSORFLOW, "/v1/models"), (MLFLOW, "/ping")])
async def test_a_server_that_is_not_well_says_why(
    settings: str, path: str, status: str, body: bytes, expected: int, words: str
) -> None:
    async with before(Scripted(paths={path: (status, body)}), settings) as stage:
        for asked in ("/v2/health/live", "/v2/health/ready", "/v2"):
            assert error_of(await get(stage, asked), expected).startswith(words.format(path=path))


OTHERS: Sequence[tuple[str, str]] = (
    ("GET", "/v2/models/m/config"),
    ("GET", "/v2/models/m/stats"),
    ("GET", "/v2/models/m/infer"),
    ("GET", "/v2/health/other"),
    ("GET", "/v2/models"),
    ("POST", "/v2/repository/index"),
    ("POST", "/v2/repository/models/m/load"),
    ("GET", "/v2/trace/setting"),
    ("POST", "/v2/models/m/generate"),
    ("DELETE", "/v2/models/m"),
)


@pytest.mark.rule("11.3")
@pytest.mark.parametrize("settings", [TENSORFLOW, MLFLOW], ids=["tensorflow", "mlflow"])
async def test_what_such_servers_do_not_have_is_a_404_with_words(settings: str) -> None:
    async with before(tensorflow(y="DT_FLOAT"), settings) as stage:
        for method, path in OTHERS:
            words = error_of(await stage.client.request(method, path), 404)
            assert words.startswith(f"{method} {path}: "), words
        assert not stage.backend.seen


async def test_the_servers_own_paths_are_relayed() -> None:
    async with before(tensorflow(b'{"own": 1}', y="DT_FLOAT"), TENSORFLOW) as stage:
        assert (await get(stage, "/v1/models/m")).json["model_version_status"][0]["version"] == "7"
        reply = await stage.client.request("POST", "/v1/models/m:predict", data=b"{}")
        assert reply.body == b'{"own": 1}'
