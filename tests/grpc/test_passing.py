"""Inferences over gRPC to servers that read binary themselves, and calls that such servers answer in their own ways."""

import json
from typing import Any

import grpc
import numpy as np
import pytest
from aiohttp import web
from google.protobuf import json_format
from tritonclient.grpc import InferRequestedOutput, service_pb2_grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import InferenceServerException

from gateway.client.grpc.methods import METHODS
from gateway.demo import JsonServer
from tests.conftest import answering, lying
from tests.grpc.conftest import address_of, serving
from tests.grpc.frames import DATA, END_STREAM, FIELDS, connected, fields, frame, message
from tests.grpc.test_clients import Both, answering_json, ask, given, in_message, serving_app
from tests.grpc.test_hostile import BODY
from tests.steps import run

pytestmark = pytest.mark.rule("12.7")

LENGTH = "Inference-Header-Content-Length"


def binary_server(*, is_asked_output_by_output: bool = False, pieces: int = 1, short: int = 0) -> Any:
    """A server that reads the extension, and answers in it, or in JSON where an output does not ask for binary."""

    async def handle(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        header = json.loads(body[: int(request.headers[LENGTH])])
        blob = body[int(request.headers[LENGTH]) :]
        (entry,) = header["inputs"]
        output = {"name": "y", "datatype": entry["datatype"], "shape": entry["shape"]}
        asked = [output.get("parameters", {}).get("binary_data") for output in header.get("outputs", ())]
        if is_asked_output_by_output and asked != [True]:
            values = np.frombuffer(blob, "f4").tolist()
            return web.json_response({"model_name": "own", "outputs": [{**output, "data": values}]})
        output["parameters"] = {"binary_data_size": len(blob)}
        text = json.dumps({"model_name": "own", "outputs": [output]}).encode()
        response = web.StreamResponse(headers={LENGTH: str(len(text)), "Content-Type": "application/octet-stream"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        whole = (text + blob)[: len(text) + len(blob) - short]
        step = -(-len(whole) // pieces)
        for start in range(0, len(whole), step):
            await response.write(whole[start : start + step])
        await response.write_eof()
        return response

    return serving_app(handle)


@pytest.mark.parametrize("options", [{}, {"pieces": 7}])
async def test_a_server_that_reads_binary_gets_it(options: dict[str, Any]) -> None:
    array = np.arange(3000, dtype="f4")
    async with binary_server(**options) as url, serving(url, backend="binary: always") as (client, triton):
        result = await triton.infer("m", [given("x", array)])
        metrics = await client.metrics()
    assert result.as_numpy("y").tobytes() == array.tobytes()
    assert metrics['tensor_gateway_upstream_request_bytes_count{format="binary",route="main"}'] == 1


@pytest.mark.parametrize("outputs", [None, [InferRequestedOutput("y")]])
async def test_each_output_is_asked_for_in_binary(outputs: list[InferRequestedOutput] | None) -> None:
    """Triton and KServe answer in JSON where only `binary_data_output` is set and the request lists its outputs."""
    array = np.ones(2, "f4")
    async with (
        binary_server(is_asked_output_by_output=True) as url,
        serving(url, backend="binary: always") as (_, triton),
    ):
        if outputs is not None:
            result = await triton.infer("m", [given("x", array)], outputs=outputs)
            assert result.as_numpy("y").tobytes() == array.tobytes()
            return
        with pytest.raises(
            InferenceServerException, match="'y': its values came as JSON, .*: set `binary: never`"
        ) as bad:
            await triton.infer("m", [given("x", array)])
    assert bad.value.status() == "StatusCode.INTERNAL"


async def test_an_answer_that_is_cut_off_is_the_servers_fault() -> None:
    async with binary_server(short=5) as url, serving(url, backend="binary: always") as (_, triton):
        with pytest.raises(InferenceServerException, match="ends 5 bytes short") as refused:
            await triton.infer("m", [given("x", np.ones(100, "f4"))])
    assert refused.value.status() == "StatusCode.INTERNAL"


async def test_an_answer_that_ends_inside_of_its_json() -> None:
    async with binary_server(short=460) as url, serving(url, backend="binary: always") as (_, triton):
        with pytest.raises(InferenceServerException, match="bytes short of what it says of itself"):
            await triton.infer("m", [given("x", np.ones(100, "f4"))])


async def test_a_reply_that_no_message_can_hold(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.client.grpc.call.MAX_MESSAGE_BYTES", 400)
    with pytest.raises(grpc.aio.AioRpcError, match="the reply has 4.. bytes, a message of gRPC has at most") as refused:
        await ask(both[0], in_message(np.ones(100, "f4"), "FP32", is_typed=False))
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_answers_that_are_no_messages_are_the_servers_fault() -> None:
    async with answering_json([{"name": 5}]) as url, serving(url) as (_, triton):
        with pytest.raises(InferenceServerException, match="cannot be made the message RepositoryIndexResponse"):
            await triton.get_model_repository_index()


async def test_calls_about_models_need_a_name(both: Both) -> None:
    async with grpc.aio.insecure_channel(address_of(both[0])) as channel:
        for name in ("ModelReady", "ModelMetadata", "RepositoryModelLoad"):
            call: Any = channel.unary_unary(f"/inference.GRPCInferenceService/{name}")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(b"")
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "name`" in (refused.value.details() or "")
        load: Any = channel.unary_unary("/inference.GRPCInferenceService/RepositoryModelLoad")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await load(b"\x12\x01m\x1a\x05\x0a\x01p\x12\x00")
        assert "parameter 'p' has no value" in (refused.value.details() or "")


async def test_versions_and_repositories_stand_in_the_path() -> None:
    asked: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.json_response([] if "index" in request.path else {"name": "m", "ready": False})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[union-attr]
    try:
        async with serving(url) as (client, triton):
            assert not await triton.is_model_ready("m", "7")
            async with grpc.aio.insecure_channel(address_of(client)) as channel:
                index: Any = channel.unary_unary("/inference.GRPCInferenceService/RepositoryIndex")
                await index(b"\x0a\x04mine\x10\x01")
                stats: Any = channel.unary_unary("/inference.GRPCInferenceService/ModelStatistics")
                await stats(b"")
    finally:
        await runner.cleanup()
    assert asked == ["/v2/models/m/versions/7/ready", "/v2/repository/mine/index", "/v2/models/stats"]


async def test_what_is_no_call_of_grpc(both: Both) -> None:
    async with connected(address_of(both[0])) as raw:
        await raw.send(
            fields(1, [("content-type", "text/plain") if each[0] == "content-type" else each for each in FIELDS])
        )
        assert (await raw.status(1))[":status"] == "415"
        await raw.send(fields(3, [*FIELDS, ("grpc-timeout", "soon")]) + frame(DATA, 3, message(BODY), END_STREAM))
        assert (await raw.status(3))["grpc-status"] == "3"
        await raw.send(fields(5, [*FIELDS[:2], (":path", "/other.Service/Call"), *FIELDS[3:]]))
        assert (await raw.status(5))["grpc-status"] == "12"
        await raw.send(fields(7, [*FIELDS, ("grpc-encoding", "snappy")]) + frame(DATA, 7, message(BODY, 1), END_STREAM))
        got = await raw.status(7)
        assert got["grpc-status"] == "12"
        assert "snappy" in got["grpc-message"]


@pytest.mark.rule("12.5")
@pytest.mark.parametrize("fields_", [FIELDS, [*FIELDS, ("grpc-encoding", "identity")]])
@pytest.mark.parametrize("path", ["ModelInfer", "ServerLive"])
async def test_a_message_that_is_marked_as_compressed_and_is_not(
    both: Both, fields_: list[tuple[str, str]], path: str
) -> None:
    named = [(name, value.replace("ModelInfer", path) if name == ":path" else value) for name, value in fields_]
    body = BODY if path == "ModelInfer" else b""
    async with connected(address_of(both[0])) as raw:
        await raw.send(fields(1, named) + frame(DATA, 1, message(body, 1), END_STREAM))
        got = await raw.status(1)
    assert (got["grpc-status"], "does not say how" in got["grpc-message"]) == ("3", True)


async def test_only_metadata_of_grpc_itself_stay_behind() -> None:
    """Of names that begin like one of these, such as `tenant` like `te`, all cross, in both directions."""
    asked: list[list[str]] = []

    async def handle(request: web.Request) -> web.Response:
        asked.append([f"{name.lower()}: {value}" for name, value in request.headers.items()])
        return web.json_response([], headers={"Tenant": "t", "Trailer-Park": "p", "Grpc-Status": "7"})

    sent = ["tenant: a", "team: b", "connection-id: c", "expected: d", "user-agent-hints: e", "test: f"]
    own = ["grpc-tags: a", "content-language: b", "user-agent: raw", "expect: 100-continue", "x-bin: AAA"]
    forged = ["inference-header-content-length: 5", "host: a"]
    metadata = [(name, value) for name, _, value in (each.partition(": ") for each in [*sent, *own, *forged])]
    path = (":path", "/inference.GRPCInferenceService/RepositoryIndex")
    async with serving_app(handle) as url, serving(url) as both, connected(address_of(both[0])) as raw:
        await raw.send(fields(1, [*FIELDS[:2], path, *FIELDS[3:], *metadata]))
        await raw.send(frame(DATA, 1, message(b""), END_STREAM))
        got = await raw.status(1)
    assert got["grpc-status"] == "0"
    assert (got["tenant"], got["trailer-park"]) == ("t", "p")
    assert set(sent) <= set(asked[0])
    assert not set(asked[0]) & {*own, *forged}


async def test_names_that_grpc_does_not_know_stay_behind() -> None:
    """HTTP allows them; a client of gRPC ends the whole call because of one."""
    odd = ["x!y", "x#y", "x$y", "x%y", "x&y", "x'y", "x*y", "x+y", "x^y", "x`y", "x|y", "x~y"]
    headers = "".join(f"{name}: 1\r\n" for name in [*odd, "X_y.Z-0", "x-bin", "Grpc-Status", "Content-Language"])
    body = b'{"outputs": [{"name": "y", "datatype": "FP32", "shape": [1], "data": [1]}]}'
    async with lying(answering(body, headers=headers)) as liar, serving(liar.url) as (client, _):
        async with grpc.aio.insecure_channel(address_of(client)) as channel:
            call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(
                in_message(np.ones(1, "f4"), "FP32", is_typed=False)
            )
            names = [name for name, _ in await call.initial_metadata()]
            assert (await call).outputs[0].name == "y"
    assert set(names) - {"x-request-id"} == {"x_y.z-0"}


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"live": "\xff"}'])
async def test_json_of_servers_that_cannot_be_read(body: bytes) -> None:
    async with lying(answering(body)) as liar, serving(liar.url) as (_, triton):
        assert await triton.is_server_live()  # the status decides, as over HTTP
        with pytest.raises(InferenceServerException, match="cannot be made the message ModelStatisticsResponse") as bad:
            await triton.get_inference_statistics("m")
    assert bad.value.status() == "StatusCode.INTERNAL"


async def test_long_words_that_are_not_ascii_reach_the_client() -> None:
    """Percent-encoded they are thrice as long, and clients refuse answers with more than 8 KiB of fields."""
    words = json.dumps({"error": "\u4f60" * 3000}, ensure_ascii=False).encode()
    async with lying(answering(words, "400 Bad Request")) as liar, serving(liar.url) as (_, triton):
        with pytest.raises(InferenceServerException, match="\u4f60{400}") as refused:
            await triton.infer("m", [given("x", np.ones(1, "f4"))])
    assert refused.value.status() == "StatusCode.INVALID_ARGUMENT"


async def test_what_nobody_waits_for_is_not_sent(both: Both, server: JsonServer) -> None:
    async with connected(address_of(both[0])) as raw:
        for number, name in ((1, "ModelInfer"), (3, "ServerMetadata")):
            head = [*FIELDS[:2], (":path", f"/inference.GRPCInferenceService/{name}"), *FIELDS[3:]]
            body = BODY if name == "ModelInfer" else b""
            await raw.send(fields(number, [*head, ("grpc-timeout", "1n")]) + frame(DATA, number, message(body), 1))
            got = await raw.status(number)
            assert (got["grpc-status"], "grpc-timeout" in got["grpc-message"]) == ("4", True)
    assert server.inferences == 0


async def test_calls_with_many_parameters(both: Both) -> None:
    """Each of a few bytes costs a hundred in memory, and all are read in one step."""
    async with grpc.aio.insecure_channel(address_of(both[0])) as channel:
        load: Any = channel.unary_unary("/inference.GRPCInferenceService/RepositoryModelLoad")
        entries = b"".join(b"\x1a\x0c\x0a\x06%06x\x12\x02\x10\x01" % number for number in range(2000))
        with pytest.raises(grpc.aio.AioRpcError, match="more than 1024 parameters") as refused:
            await load(b"\x12\x01m" + entries)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def loading(n_bytes: int) -> bytes:
    """A message that loads a model with a file of *n_bytes*."""
    request = pb.RepositoryModelLoadRequest(model_name="m")
    request.parameters["file:1"].bytes_param = bytes(n_bytes)
    return bytes(request.SerializeToString())


@pytest.mark.rule("12.3")
@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
async def test_a_message_without_tensors_that_is_too_long_for_one_step(
    both: Both, compression: grpc.Compression
) -> None:
    async with grpc.aio.insecure_channel(address_of(both[0]), compression=compression) as channel:
        load: Any = channel.unary_unary("/inference.GRPCInferenceService/RepositoryModelLoad")
        with pytest.raises(grpc.aio.AioRpcError, match="without tensors has at most 65536 bytes") as refused:
            await load(loading(1_000_000))
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


MODELS = [{"name": f"model-{n}", "version": "1", "state": "READY", "reason": ""} for n in range(500)]
DURATIONS = {name: {"count": 7, "ns": 900} for name in ("success", "fail")}
LONG: dict[str, tuple[Any, Any]] = {
    "RepositoryIndex": (MODELS, {"models": MODELS}),
    "ModelMetadata": ({"name": "m", "inputs": [{"name": f"x{n}", "shape": [-1, n]} for n in range(500)]},) * 2,
    "ModelStatistics": (
        {
            "model_stats": [
                {"name": "m", "batch_stats": [{"batch_size": n, "compute_infer": {"ns": n}} for n in range(250)]},
                {"name": "n", "response_stats": {str(n): DURATIONS for n in range(250)}, "inference_stats": DURATIONS},
            ]
        },
    )
    * 2,
}


@pytest.mark.rule("12.3")
@pytest.mark.parametrize("name", LONG)
def test_a_long_answer_without_tensors_becomes_a_message_in_steps(name: str) -> None:
    """Protobuf's own reader would hold the event loop for all of it."""
    said, expected = LONG[name]
    steps = METHODS[f"/inference.GRPCInferenceService/{name}"].answer(json.dumps(said).encode())
    for _ in range(500):  # so many pauses at least
        next(steps)
    message = json_format.ParseDict(expected, getattr(pb, f"{name}Response")())
    assert type(message).FromString(run(steps).SerializeToString()) == message


@pytest.mark.rule("12.3")
async def test_an_answer_without_tensors_that_is_too_long() -> None:
    """It is told apart in one step. The server has done nothing wrong."""
    async with answering_json(MODELS * 40) as url, serving(url) as (client, triton):
        with pytest.raises(InferenceServerException, match="more than 1048576 bytes of JSON") as refused:
            await triton.get_model_repository_index()
        assert refused.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
        metrics = await client.metrics()
    assert metrics['tensor_gateway_errors_total{blame="client",reason="body_too_large",route="main"}'] == 1


@pytest.mark.rule("12.3")
async def test_the_index_of_all_backends() -> None:
    async with (
        answering_json(MODELS[:2]) as url,
        serving(url, "routes: [{name: other, models: ['other'], backend: main}]") as both,
    ):
        index = await both[1].get_model_repository_index()
    assert [each.name for each in index.models] == ["model-0", "model-1"]


LIES: dict[str, tuple[dict[str, Any], bytes, str]] = {
    "a negative size": ({"parameters": {"binary_data_size": -1}}, b"abcd", "must be an integer >= 0"),
    "a size that is a text": ({"parameters": {"binary_data_size": "4"}}, b"abcd", "must be an integer >= 0"),
    "a datatype that there is not": ({"datatype": "FOO"}, b"abcd", "there is no datatype 'FOO'"),
    "half an element": ({"parameters": {"binary_data_size": 3}}, b"abc", "no whole number of elements"),
    "an element without end": ({"datatype": "BYTES"}, b"\xff\xff\xff\xff", "the last element is cut off"),
    "a shape beyond 64 bits": ({"shape": [2**63]}, b"abcd", "cannot be made a message"),
    "bytes behind the outputs": ({}, b"abcdef", "2 bytes behind its outputs"),
}


@pytest.mark.parametrize("lie", LIES)
async def test_binary_answers_that_lie_are_the_servers_fault(lie: str) -> None:
    """Nobody has read them before: where binary is passed through, the codec does not look inside."""
    changes, blob, words = LIES[lie]
    output = {"name": "y", "datatype": "INT32", "shape": [1], "parameters": {"binary_data_size": 4}, **changes}
    text = json.dumps({"model_name": "m", "outputs": [output]}).encode()
    script = answering(text + blob, headers=f"{LENGTH}: {len(text)}\r\nContent-Type: application/octet-stream\r\n")
    async with lying(script) as liar, serving(liar.url, backend="binary: always") as (client, _):
        with pytest.raises(grpc.aio.AioRpcError, match=words) as refused:
            await ask(client, in_message(np.arange(4, dtype="i4"), "INT32", is_typed=True))
    assert refused.value.code() is grpc.StatusCode.INTERNAL
