"""Every option of tritonclient's HTTP clients, sync and aio, and what of it arrives at the backend.

The datatypes are in tests/system/test_tritonclient.py; here the backend is scripted where the embedded server has
no such thing as a sequence, a repository or statistics.
"""

import asyncio
import base64
import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.http as sync_http
import tritonclient.http.aio as aio_http
from tritonclient.http.auth import BasicAuth
from tritonclient.utils import InferenceServerException

from gateway.demo import JsonServer
from tests.conftest import HEADER_LENGTH, Client, Connection, Liar, answering, lying, running

KINDS = ["sync", "aio"]
FLOATS = np.array([[0.1, -0.0, 1e-45, 3.4028235e38]], np.float32)
COMPRESSED = "compression: {responses: true, min_size: 1KiB}\n"


async def call(kind: str, url: str, method: str, *arguments: Any, plugin: Any = None, **options: Any) -> Any:
    """Call *method* of a client of its own; `async` is the sync client with `async_infer` for `infer`."""
    address = url.removeprefix("http://")
    if kind == "aio":
        async with aio_http.InferenceServerClient(address) as triton:
            if plugin is not None:
                triton.register_plugin(plugin)
            return await getattr(triton, method)(*arguments, **options)

    def talk() -> Any:
        with sync_http.InferenceServerClient(address) as triton:
            if plugin is not None:
                triton.register_plugin(plugin)
            if kind == "async":
                return triton.async_infer(*arguments, **options).get_result()
            return getattr(triton, method)(*arguments, **options)

    return await asyncio.to_thread(talk)


def tensor_of(array: npt.NDArray[Any], name: str = "x", datatype: str = "FP32", binary: bool = True) -> Any:
    made = sync_http.InferInput(name, list(array.shape), datatype)
    return made.set_data_from_numpy(array, binary_data=binary)


def answer(*outputs: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"model_name": "m", "model_version": "1", "outputs": list(outputs), **more}).encode()


def output(data: list[Any], datatype: str = "FP32", name: str = "y") -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": [len(data)], "data": data}


def arrived(backend: Liar) -> tuple[str, dict[str, str], Any]:
    """The request line's path, the headers and the JSON of the last request at *backend*."""
    last = backend.connections[-1]
    first, *lines = last.head.decode().strip().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return first.rpartition(" ")[0], headers, json.loads(last.body) if last.body else None


# Infer: what the options put into the request


@pytest.mark.parametrize("kind", ["sync", "async", "aio"])
async def test_every_option_of_infer_arrives(kind: str) -> None:
    async with lying(answering(answer(output([1.5]), id="42"))) as backend, running(backend.url) as client:
        result = await call(
            kind,
            client.url,
            "infer",
            "a model",
            [tensor_of(FLOATS), tensor_of(np.array([7], np.int64), "n", "INT64", binary=False)],
            model_version="3",
            outputs=[sync_http.InferRequestedOutput("y")],
            request_id="42",
            sequence_id=2**63 + 1,
            sequence_start=True,
            sequence_end=False,
            priority=2**64 - 1,
            timeout=1_500_000,
            headers={"X-Tenant": "blue", "Authorization": "Bearer token"},
            query_params={"trace": "a b", "n": [1, 2]},
            parameters={"text": "é", "whole": -(2**63), "flag": False, "fraction": 0.1},
        )
        line, headers, body = arrived(backend)
    assert line == "POST /v2/models/a%20model/versions/3/infer?trace=a+b&n=1&n=2"
    assert (headers["x-tenant"], headers["authorization"]) == ("blue", "Bearer token")
    assert headers["content-type"] == "application/json"
    assert HEADER_LENGTH.lower() not in headers
    assert body == {
        "id": "42",
        "inputs": [
            {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [0.1, -0.0, 1e-45, 3.4028235e38]},
            {"name": "n", "shape": [1], "datatype": "INT64", "data": [7]},
        ],
        "outputs": [{"name": "y"}],
        "parameters": {
            "sequence_id": 2**63 + 1,
            "sequence_start": True,
            "sequence_end": False,
            "priority": 2**64 - 1,
            "timeout": 1_500_000,
            "text": "é",
            "whole": -(2**63),
            "flag": False,
            "fraction": 0.1,
        },
    }
    assert result.get_response()["id"] == "42"
    assert result.as_numpy("y").tolist() == [1.5]


@pytest.mark.parametrize("kind", KINDS)
async def test_sequence_of_requests_with_a_text_as_its_id(kind: str) -> None:
    async with lying(answering(answer(output([1])))) as backend, running(backend.url) as client:
        seen = []
        for step in range(3):
            options = {"sequence_id": "talk", "sequence_start": step == 0, "sequence_end": step == 2}
            await call(kind, client.url, "infer", "m", [tensor_of(FLOATS)], **options)
            seen.append(arrived(backend)[2]["parameters"])
    assert seen == [
        {"sequence_id": "talk", "sequence_start": first, "sequence_end": last}
        for first, last in ((True, False), (False, False), (False, True))
    ]


@pytest.mark.parametrize("kind", KINDS)
async def test_request_without_options_has_no_parameters_left(kind: str) -> None:
    async with lying(answering(answer(output([1])))) as backend, running(backend.url) as client:
        result = await call(kind, client.url, "infer", "m", [tensor_of(FLOATS)])
        line, _, body = arrived(backend)
    assert line == "POST /v2/models/m/infer"
    assert set(body) == {"inputs"}
    assert result.get_output("y")["parameters"] == {"binary_data_size": 4}  # the client asked for binary by default


@pytest.mark.parametrize("kind", KINDS)
async def test_json_request_with_json_outputs_arrives_byte_for_byte(kind: str) -> None:
    wanted = [sync_http.InferRequestedOutput("y", binary_data=False)]
    sent, length = sync_http.InferenceServerClient.generate_request_body([tensor_of(FLOATS, binary=False)], wanted)
    assert length is None
    async with lying(answering(answer(output([0.1])))) as backend, running(backend.url) as client:
        result = await call(kind, client.url, "infer", "m", [tensor_of(FLOATS, binary=False)], outputs=wanted)
        _, headers, body = arrived(backend)
    assert body["inputs"] == json.loads(sent)["inputs"]
    assert headers["content-type"] == "application/json"
    assert result.as_numpy("y").tobytes() == np.array([0.1], np.float32).tobytes()


@pytest.mark.parametrize("kind", ["sync", "async", "aio"])
@pytest.mark.parametrize(("left", "right"), [(True, True), (True, False), (False, True), (False, False)])
async def test_each_tensor_is_binary_or_json_as_it_says(kind: str, client: Client, left: bool, right: bool) -> None:
    inputs = [
        tensor_of(FLOATS, "left", binary=left),
        tensor_of(np.array([b"one", "zwö".encode()], np.object_), "right", "BYTES", binary=right),
    ]
    wanted = [
        sync_http.InferRequestedOutput("left", binary_data=right),
        sync_http.InferRequestedOutput("right", binary_data=left),
    ]
    result = await call(kind, client.url, "infer", "identity", inputs, outputs=wanted)
    assert result.as_numpy("left").tobytes() == FLOATS.tobytes()
    texts = [item.encode() if isinstance(item, str) else item for item in result.as_numpy("right")]
    assert texts == [b"one", "zwö".encode()]
    assert ["data" in result.get_output(name) for name in ("left", "right")] == [not right, not left]


@pytest.mark.parametrize("kind", KINDS)
async def test_empty_tensors(kind: str, client: Client, server: JsonServer) -> None:
    inputs = [
        tensor_of(np.empty((0, 3), np.float32), "numbers"),
        tensor_of(np.empty((0,), np.object_), "texts", "BYTES"),
    ]
    result = await call(kind, client.url, "infer", "identity", inputs)
    assert result.as_numpy("numbers").shape == (0, 3)
    assert result.as_numpy("texts").shape == (0,)
    assert [one["data"] for one in server.last_request["inputs"]] == [[], []]


@pytest.mark.parametrize("kind", KINDS)
async def test_classification_is_asked_for_and_comes_back_as_bytes(kind: str) -> None:
    labels = ["0.9:2:cat", "0.1:0:dog"]
    wanted = [sync_http.InferRequestedOutput("y", class_count=2)]
    async with lying(answering(answer(output(labels, "BYTES")))) as backend, running(backend.url) as client:
        result = await call(kind, client.url, "infer", "m", [tensor_of(FLOATS)], outputs=wanted)
        body = arrived(backend)[2]
    assert body["outputs"] == [{"name": "y", "parameters": {"classification": 2}}]
    assert result.as_numpy("y").tolist() == [label.encode() for label in labels]


@pytest.mark.parametrize("kind", KINDS)
async def test_input_in_shared_memory_crosses_beside_a_binary_one(kind: str) -> None:
    shared = sync_http.InferInput("s", [4], "FP32")
    shared.set_shared_memory("region", 16, 32)
    async with lying(answering(answer(output([1])))) as backend, running(backend.url) as client:
        await call(kind, client.url, "infer", "m", [shared, tensor_of(FLOATS)])
        first, second = arrived(backend)[2]["inputs"]
    assert "data" not in first
    assert first["parameters"] == {
        "shared_memory_region": "region",
        "shared_memory_byte_size": 16,
        "shared_memory_offset": 32,
    }
    assert second["data"] == [0.1, -0.0, 1e-45, 3.4028235e38]


@pytest.mark.parametrize("kind", KINDS)
async def test_output_in_shared_memory_comes_back_without_data(kind: str) -> None:
    place = {"shared_memory_region": "region", "shared_memory_byte_size": 16}
    wanted = [sync_http.InferRequestedOutput("s"), sync_http.InferRequestedOutput("y")]
    wanted[0].set_shared_memory("region", 16)
    stored = {"name": "s", "datatype": "FP32", "shape": [4], "parameters": place}
    async with lying(answering(answer(stored, output([2.5])))) as backend, running(backend.url) as client:
        result = await call(kind, client.url, "infer", "m", [tensor_of(FLOATS)], outputs=wanted)
        asked = arrived(backend)[2]["outputs"]
    assert asked == [{"name": "s", "parameters": place}, {"name": "y"}]
    assert result.get_output("s") == stored
    assert result.as_numpy("y").tolist() == [2.5]


@pytest.mark.parametrize("kind", KINDS)
async def test_basic_authentication(kind: str) -> None:
    plugin = BasicAuth("user", "pass")
    async with lying(answering(answer(output([1])))) as backend, running(backend.url) as client:
        await call(kind, client.url, "infer", "m", [tensor_of(FLOATS)], plugin=plugin)
        assert arrived(backend)[1]["authorization"] == "Basic dXNlcjpwYXNz"
        assert await call(kind, client.url, "is_server_live", plugin=plugin)
        assert arrived(backend)[1]["authorization"] == "Basic dXNlcjpwYXNz"


@pytest.mark.parametrize("kind", KINDS)
async def test_url_with_a_base_path(kind: str) -> None:
    routes = "routes: [{name: prod, path_prefix: /prod, backend: main}]\n"
    async with lying(answering(answer(output([1])))) as backend, running(backend.url, routes) as client:
        result = await call(kind, f"{client.url}/prod", "infer", "m", [tensor_of(FLOATS)])
        line, _, body = arrived(backend)
    assert line == "POST /prod/v2/models/m/infer"
    assert body["inputs"][0]["data"] == [0.1, -0.0, 1e-45, 3.4028235e38]
    assert result.as_numpy("y").tolist() == [1]


@pytest.mark.parametrize("module", [sync_http, aio_http])
async def test_bodies_made_and_read_by_the_client_without_its_connection(module: Any, client: Client) -> None:
    body, length = module.InferenceServerClient.generate_request_body([tensor_of(FLOATS)], request_id="9")
    reply = await client.infer(body, length)
    result = module.InferenceServerClient.parse_response_body(
        reply.body, header_length=int(reply.headers[HEADER_LENGTH])
    )
    assert result.as_numpy("x").tobytes() == FLOATS.tobytes()
    assert result.get_response()["id"] == "9"


async def test_sixteen_requests_over_four_connections(client: Client, server: JsonServer) -> None:
    def talk() -> list[Any]:
        with sync_http.InferenceServerClient(client.url.removeprefix("http://"), concurrency=4) as triton:
            asked = [
                triton.async_infer("identity", [tensor_of(np.array([i], np.float32))], request_id=str(i))
                for i in range(1, 17)
            ]
            return [one.get_result() for one in asked]

    results = await asyncio.to_thread(talk)
    assert [result.as_numpy("x").tolist() for result in results] == [[i] for i in range(1, 17)]
    assert [result.get_response()["id"] for result in results] == [str(i) for i in range(1, 17)]
    assert server.inferences == 16


# Timeouts and errors


async def test_client_that_gives_up_ends_the_call_to_the_backend() -> None:
    async def never(connection: Connection) -> None:
        await connection.read_request()
        await connection.reader.read()  # returns when the gateway lets go

    async with lying(never) as backend, running(backend.url) as client:

        def talk() -> None:
            address = client.url.removeprefix("http://")
            with sync_http.InferenceServerClient(address, network_timeout=0.2) as triton:
                with pytest.raises(TimeoutError):
                    triton.infer("m", [tensor_of(FLOATS)])

        await asyncio.to_thread(talk)
        await asyncio.wait_for(backend.connections[0].ended.wait(), 10)
        assert len(backend.connections) == 1


@pytest.mark.parametrize("kind", ["sync", "async", "aio"])
async def test_slow_backend_is_an_error_that_the_client_reads(kind: str) -> None:
    async def never(connection: Connection) -> None:
        await connection.read_request()
        await connection.reader.read()

    async with lying(never) as backend, running(backend.url, backend="timeouts: {first_byte: 100ms}") as client:
        with pytest.raises(InferenceServerException) as caught:
            await call(kind, client.url, "infer", "m", [tensor_of(FLOATS)])
    assert caught.value.status() == "504"
    assert "first_byte" in str(caught.value.message())


@pytest.mark.parametrize("kind", ["sync", "async", "aio"])
@pytest.mark.parametrize("algorithm", [None, "gzip", "deflate"])
async def test_errors_are_readable_whatever_compression_was_asked_for(
    kind: str, algorithm: str | None, client: Client
) -> None:
    options = {"response_compression_algorithm": algorithm}
    with pytest.raises(InferenceServerException, match="unknown model 'nobody'") as caught:
        await call(kind, client.url, "infer", "nobody", [tensor_of(FLOATS)], **options)
    assert caught.value.status() == "404"
    wrong = tensor_of(FLOATS)
    wrong.set_shape([5])
    with pytest.raises(InferenceServerException, match="expected 20, got 16") as caught:
        await call(kind, client.url, "infer", "identity", [wrong], **options)
    assert caught.value.status() == "400"


# Compression (protocol section 7)


def image() -> npt.NDArray[Any]:
    """Larger than any buffer on the way, and quick to compress."""
    values = np.random.default_rng(0).standard_normal(784, np.float32)
    return np.tile(values, 96).reshape(1, 3, 224, 112)


async def reply_bytes(client: Client) -> float:
    """What the gateway has sent to its clients."""
    samples = await client.metrics()
    return sum(v for k, v in samples.items() if k.startswith("tensor_gateway_client_response_bytes_sum"))


@pytest.mark.parametrize("kind", ["sync", "async", "aio"])
@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
@pytest.mark.parametrize("binary", [True, False])
async def test_compressed_request(kind: str, algorithm: str, binary: bool, client: Client, server: JsonServer) -> None:
    sent = image()
    options = {"request_compression_algorithm": algorithm}
    inputs = [tensor_of(sent, binary=binary), tensor_of(FLOATS, "more", binary=True)]
    result = await call(kind, client.url, "infer", "identity", inputs, **options)
    assert result.as_numpy("x").tobytes() == sent.tobytes()
    assert result.as_numpy("more").tobytes() == FLOATS.tobytes()
    headers = {name.lower() for name, _ in server.headers}
    assert not {"content-encoding", HEADER_LENGTH.lower()} & headers


@pytest.mark.parametrize("kind", ["sync", "aio"])
@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
async def test_compressed_request_that_is_json_alone(
    kind: str, algorithm: str, client: Client, server: JsonServer
) -> None:
    wanted = [sync_http.InferRequestedOutput("x", binary_data=False)]
    inputs = [tensor_of(image(), binary=False)]
    # no binary flag but false ones, and none of the extension's headers
    options = {"request_compression_algorithm": algorithm, "outputs": wanted}
    result = await call(kind, client.url, "infer", "identity", inputs, **options)
    assert result.as_numpy("x").tobytes() == image().tobytes()
    assert "content-encoding" not in {name.lower() for name, _ in server.headers}


@pytest.mark.parametrize("kind", ["sync", "async", "aio"])
@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
@pytest.mark.parametrize("binary", [True, False])
async def test_compressed_reply(kind: str, algorithm: str, binary: bool, server: JsonServer) -> None:
    sent = image()
    wanted = [sync_http.InferRequestedOutput("x", binary_data=binary)]
    async with running(server.url, COMPRESSED) as client:
        result = await call(
            kind,
            client.url,
            "infer",
            "identity",
            [tensor_of(sent)],
            outputs=wanted,
            response_compression_algorithm=algorithm,
        )
        assert await reply_bytes(client) < sent.nbytes / 4
    assert result.as_numpy("x").tobytes() == sent.tobytes()
    assert ("data" in result.get_output("x")) != binary


@pytest.mark.parametrize("kind", ["sync", "async", "aio"])
async def test_compressed_both_ways_with_different_codings(kind: str, server: JsonServer) -> None:
    async with running(server.url, COMPRESSED) as client:
        for there, back in (("gzip", "deflate"), ("deflate", "gzip"), ("gzip", "gzip")):
            options = {"request_compression_algorithm": there, "response_compression_algorithm": back}
            result = await call(kind, client.url, "infer", "identity", [tensor_of(image())], **options)
            assert result.as_numpy("x").tobytes() == image().tobytes()


async def test_reply_is_not_compressed_unless_asked_for(server: JsonServer) -> None:
    async with running(server.url, COMPRESSED) as client:
        result = await call("sync", client.url, "infer", "identity", [tensor_of(image())])
        assert await reply_bytes(client) > image().nbytes
    assert result.as_numpy("x").tobytes() == image().tobytes()


@pytest.mark.parametrize("kind", KINDS)
async def test_reply_smaller_than_the_least_size_is_not_compressed(kind: str, server: JsonServer) -> None:
    zeros = np.zeros(200, np.float32)
    async with running(server.url, COMPRESSED) as client:
        options = {"response_compression_algorithm": "gzip"}
        result = await call(kind, client.url, "infer", "identity", [tensor_of(zeros)], **options)
        assert await reply_bytes(client) > zeros.nbytes
    assert result.as_numpy("x").tobytes() == zeros.tobytes()


@pytest.mark.parametrize("kind", ["sync", "async", "aio"])
@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
async def test_reply_is_not_compressed_unless_configured(kind: str, algorithm: str, client: Client) -> None:
    sent = image()
    options = {"response_compression_algorithm": algorithm}
    result = await call(kind, client.url, "infer", "identity", [tensor_of(sent)], **options)
    assert result.as_numpy("x").tobytes() == sent.tobytes()
    assert await reply_bytes(client) > sent.nbytes


async def test_aio_reads_errors_metadata_and_health_where_replies_are_compressed() -> None:
    # it advertises gzip and deflate with every call, and unpacks only replies of infer
    metadata = {"name": "m", "versions": ["1"], "inputs": [], "outputs": [], "platform": "p" * 4096}
    async with lying(answering(json.dumps(metadata).encode())) as backend:
        async with running(backend.url, COMPRESSED) as client:
            assert await call("aio", client.url, "get_model_metadata", "m") == metadata
            assert (await call("aio", client.url, "get_server_metadata"))["extensions"] == ["binary_tensor_data"]
            assert await call("aio", client.url, "is_server_ready")
    error = json.dumps({"error": "e" * 4096}).encode()
    async with lying(answering(error, "400 Bad Request")) as backend:
        async with running(backend.url, COMPRESSED) as client:
            with pytest.raises(InferenceServerException, match="e{4096}"):
                await call("aio", client.url, "infer", "m", [tensor_of(FLOATS)])


# Everything else that the clients can ask for: relayed

CONFIG = '{"max_batch_size": 4}'

RELAYED: dict[str, tuple[str, tuple[Any, ...], dict[str, Any], str, Any]] = {
    # name: method, arguments, options, what arrives, its JSON
    "live": ("is_server_live", (), {}, "GET /v2/health/live", None),
    "ready": ("is_server_ready", (), {}, "GET /v2/health/ready", None),
    "model ready": ("is_model_ready", ("m",), {}, "GET /v2/models/m/ready", None),
    "version ready": ("is_model_ready", ("m", "2"), {}, "GET /v2/models/m/versions/2/ready", None),
    "model metadata": ("get_model_metadata", ("a b",), {}, "GET /v2/models/a%20b", None),
    "version metadata": ("get_model_metadata", ("m", "2"), {}, "GET /v2/models/m/versions/2", None),
    "config": ("get_model_config", ("m",), {}, "GET /v2/models/m/config", None),
    "version config": ("get_model_config", ("m", "2"), {}, "GET /v2/models/m/versions/2/config", None),
    "statistics": ("get_inference_statistics", (), {}, "GET /v2/models/stats", None),
    "model statistics": ("get_inference_statistics", ("m",), {}, "GET /v2/models/m/stats", None),
    "version statistics": ("get_inference_statistics", ("m", "2"), {}, "GET /v2/models/m/versions/2/stats", None),
    "repository": ("get_model_repository_index", (), {}, "POST /v2/repository/index", None),
    "load": ("load_model", ("m",), {}, "POST /v2/repository/models/m/load", {}),
    "load with files": (
        "load_model",
        ("m",),
        {"config": CONFIG, "files": {"file:1/model.bin": bytes(range(256))}},
        "POST /v2/repository/models/m/load",
        {"parameters": {"config": CONFIG, "file:1/model.bin": base64.b64encode(bytes(range(256))).decode()}},
    ),
    "unload": (
        "unload_model",
        ("m",),
        {"unload_dependents": True},
        "POST /v2/repository/models/m/unload",
        {"parameters": {"unload_dependents": True}},
    ),
    "trace": ("get_trace_settings", (), {}, "GET /v2/trace/setting", None),
    "model trace": ("get_trace_settings", ("m",), {}, "GET /v2/models/m/trace/setting", None),
    "set trace": (
        "update_trace_settings",
        ("m",),
        {"settings": {"trace_level": ["TIMESTAMPS"], "trace_rate": None}},
        "POST /v2/models/m/trace/setting",
        {"trace_level": ["TIMESTAMPS"], "trace_rate": None},
    ),
    "log": ("get_log_settings", (), {}, "GET /v2/logging", None),
    "set log": (
        "update_log_settings",
        ({"log_verbose_level": 1},),
        {},
        "POST /v2/logging",
        {"log_verbose_level": 1},
    ),
    "memory": ("get_system_shared_memory_status", ("r",), {}, "GET /v2/systemsharedmemory/region/r/status", None),
    "register memory": (
        "register_system_shared_memory",
        ("r", "/key", 64),
        {"offset": 8},
        "POST /v2/systemsharedmemory/region/r/register",
        {"key": "/key", "offset": 8, "byte_size": 64},
    ),
    "unregister memory": (
        "unregister_system_shared_memory",
        (),
        {},
        "POST /v2/systemsharedmemory/unregister",
        None,
    ),
    "cuda memory": ("get_cuda_shared_memory_status", (), {}, "GET /v2/cudasharedmemory/status", None),
    "register cuda memory": (
        "register_cuda_shared_memory",
        ("r", base64.b64encode(b"handle").decode(), 0, 64),
        {},
        "POST /v2/cudasharedmemory/region/r/register",
        {"raw_handle": {"b64": "aGFuZGxl"}, "device_id": 0, "byte_size": 64},
    ),
}
HAS_A_RESULT = ("get_", "update_")
ANSWER = {"name": "é", "count": 2**64 - 1, "rest": [None, True]}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", RELAYED)
async def test_call_arrives_as_it_was_made_and_its_answer_too(kind: str, name: str) -> None:
    method, arguments, options, line, body = RELAYED[name]
    async with lying(answering(json.dumps(ANSWER).encode())) as backend, running(backend.url) as client:
        result = await call(
            kind,
            client.url,
            method,
            *arguments,
            headers={"X-Tenant": "blue"},
            query_params={"trace": "a b"},
            **options,
        )
        got_line, headers, got_body = arrived(backend)
    assert got_line == f"{line}?trace=a+b"
    assert headers["x-tenant"] == "blue"
    assert got_body == body
    if method.startswith("is_"):
        assert result is True
    else:
        assert result == (ANSWER if method.startswith(HAS_A_RESULT) else None)


@pytest.mark.parametrize("kind", KINDS)
async def test_server_metadata_has_the_extension_exactly_once(kind: str) -> None:
    for told in ([], ["statistics"], ["binary_tensor_data", "statistics"]):
        script = answering(json.dumps({"name": "s", "version": "1", "extensions": told}).encode())
        async with lying(script) as backend, running(backend.url) as client:
            got = await call(kind, client.url, "get_server_metadata", query_params={"a": 1})
            assert arrived(backend)[0] == "GET /v2?a=1"
        assert got["name"] == "s"
        assert sorted(got["extensions"]) == sorted({*told, "binary_tensor_data"})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [name for name, row in RELAYED.items() if not row[0].startswith("is_")])
async def test_error_of_a_relayed_call_is_read(kind: str, name: str) -> None:
    method, arguments, options, _, _ = RELAYED[name]
    async with lying(answering(b'{"error": "not in this mode"}', "400 Bad Request")) as backend:
        async with running(backend.url) as client:
            with pytest.raises(InferenceServerException, match="not in this mode") as caught:
                await call(kind, client.url, method, *arguments, **options)
    assert caught.value.status() == "400"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ask", [("is_server_live",), ("is_server_ready",), ("is_model_ready", "m")])
async def test_server_that_is_not_healthy_and_server_that_is_down(kind: str, ask: tuple[str, ...]) -> None:
    async with lying(answering(b"", "400 Bad Request")) as backend, running(backend.url) as client:
        assert await call(kind, client.url, *ask) is False
    async with running("http://127.0.0.1:9") as client:
        assert await call(kind, client.url, *ask) is False
