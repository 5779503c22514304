"""Unmodified tritonclient over gRPC, through a running gateway to a server that reads only JSON."""

import asyncio
import json
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.grpc as sync
import tritonclient.grpc.aio as triton
from aiohttp import web
from google.protobuf import json_format
from tritonclient.grpc import model_config_pb2, service_pb2_grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import InferenceServerException, np_to_triton_dtype, serialize_byte_tensor

from gateway.demo import JsonServer
from tests.conftest import Client
from tests.grpc.conftest import address_of, serving
from tests.values import VALUES

pytestmark = pytest.mark.rule("12")

Both = tuple[Client, triton.InferenceServerClient]

TYPED = {
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "BOOL": "bool_contents",
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def given(name: str, array: npt.NDArray[Any], datatype: str = "") -> Any:
    """An input of tritonclient."""
    made = sync.InferInput(name, list(array.shape), datatype or np_to_triton_dtype(array.dtype))
    made.set_data_from_numpy(array)
    return made


def raw(name: str, shape: list[int], datatype: str, data: bytes) -> Any:
    """An input whose bytes are *data*, whether they fit or not."""
    made = sync.InferInput(name, shape, datatype)
    made._raw_content = data
    return made


def in_message(array: npt.NDArray[Any], datatype: str, *, is_typed: bool) -> pb.ModelInferRequest:
    """A message for the model `identity` with one input."""
    message = pb.ModelInferRequest(model_name="identity")
    entry = message.inputs.add(name="x", datatype=datatype, shape=array.shape)
    if is_typed:
        getattr(entry.contents, TYPED[datatype]).extend(array.ravel().tolist())
    elif datatype == "BYTES":
        message.raw_input_contents.append(serialize_byte_tensor(array).item())
    else:
        message.raw_input_contents.append(array.tobytes())
    return message


async def ask(client: Client, message: pb.ModelInferRequest, **options: Any) -> pb.ModelInferResponse:
    """The answer to *message*, with the stub that is generated from Triton's own schema."""
    async with grpc.aio.insecure_channel(address_of(client)) as channel:
        return await service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(message, **options)


@pytest.mark.parametrize("datatype", VALUES)
async def test_every_datatype_crosses_exactly(grpc_client: triton.InferenceServerClient, datatype: str) -> None:
    array = VALUES[datatype]
    result = await grpc_client.infer("identity", [given("x", array, datatype)], request_id="17")
    got = result.as_numpy("x")
    assert result.get_response().id == "17"
    assert result.get_output("x").datatype == datatype
    assert got.shape == array.shape
    assert list(got.ravel()) == list(array.ravel()) if datatype == "BYTES" else got.tobytes() == array.tobytes()


@pytest.mark.rule("12.1")
async def test_empty_contents_beside_raw_ones_are_none(both: Both) -> None:
    message = in_message(np.ones(2, "f4"), "FP32", is_typed=False)
    message.inputs[0].contents.SetInParent()  # as MLServer's converter leaves them
    answer = await ask(both[0], message)
    assert list(answer.raw_output_contents) == [np.ones(2, "f4").tobytes()]


@pytest.mark.rule("12.1")
@pytest.mark.parametrize("datatype", sorted(VALUES.keys() & TYPED.keys()))
async def test_typed_contents_come_back_typed(both: Both, datatype: str) -> None:
    array = VALUES[datatype]
    if array.dtype.kind == "f":
        array = array[np.isfinite(array)]
    answer = await ask(both[0], in_message(array, datatype, is_typed=True))
    assert not answer.raw_output_contents
    (output,) = answer.outputs
    got = list(getattr(output.contents, TYPED[datatype]))
    assert got == array.ravel().tolist()
    if array.dtype.kind == "f":  # 0.0 == -0.0
        assert np.signbit(got).tolist() == np.signbit(array.ravel()).tolist()


@pytest.mark.parametrize("datatype", ["INT64", "UINT8", "FP64", "BOOL", "BYTES"])
async def test_long_typed_contents_are_converted_in_slices(both: Both, datatype: str) -> None:
    n = 100_000
    arrays = {
        "INT64": np.arange(-n // 2, n // 2) * 2**40,
        "UINT8": np.arange(n).astype("u1"),
        "FP64": np.random.default_rng(1).random(n),
        "BOOL": np.arange(n) % 3 == 0,
        "BYTES": np.array([b"%d" % i for i in range(n)], object),
    }
    answer = await ask(both[0], in_message(arrays[datatype], datatype, is_typed=True))
    got = getattr(answer.outputs[0].contents, TYPED[datatype])
    assert list(got) == arrays[datatype].tolist()


async def test_unpacked_numbers_are_read_too(both: Both) -> None:
    values = list(range(10_000))
    contents = b"".join(b"\x18" + _varint(value) for value in values)  # int64_contents, each with its tag
    entry = pb.ModelInferRequest.InferInputTensor(name="x", datatype="INT64", shape=[len(values)])
    entry_bytes = entry.SerializeToString() + b"\x2a" + _varint(len(contents)) + contents
    message = pb.ModelInferRequest(model_name="identity").SerializeToString()
    message += b"\x2a" + _varint(len(entry_bytes)) + entry_bytes
    async with grpc.aio.insecure_channel(address_of(both[0])) as channel:
        call: Any = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        answer = pb.ModelInferResponse.FromString(await call(message))
    assert list(answer.outputs[0].contents.int64_contents) == values


def _varint(number: int) -> bytes:
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*written, number])


async def test_parameters_ids_and_selected_outputs_cross(both: Both, server: JsonServer) -> None:
    grpc_client = both[1]
    a, b = np.arange(3, dtype="f4"), np.arange(2)
    result = await grpc_client.infer(
        "identity",
        [given("a", a), given("b", b)],
        outputs=[sync.InferRequestedOutput("b")],
        request_id="a/ü",
        parameters={"flag": True, "count": 3, "text": "x", "ratio": 1.5},
    )
    assert result.as_numpy("a") is None
    assert list(result.as_numpy("b")) == [0, 1]
    assert result.get_response().id == "a/ü"
    sent = server.last_request
    assert sent["parameters"] == {"flag": True, "count": 3, "text": "x", "ratio": 1.5}
    assert sent["outputs"] == [{"name": "b"}]


@pytest.mark.rule("12.2")
async def test_answers_parameters_of_every_kind() -> None:
    answer = {
        "model_name": "m",
        "model_version": 3,
        "parameters": {"list": [1, {"a": None}], "none": None, "big": 2**64 - 1, "low": -(2**63), "f": 0.5, "b": False},
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [1], "data": [1], "parameters": {"unit": "m"}}],
    }
    async with answering_json(answer) as url, serving(url) as (client, _):
        got = await ask(client, in_message(np.ones(1, "f4"), "FP32", is_typed=False))
    assert got.model_version == "3"
    assert got.parameters["list"].string_param == '[1,{"a":null}]'
    assert "none" not in got.parameters
    assert got.parameters["big"].uint64_param == 2**64 - 1
    assert got.parameters["low"].int64_param == -(2**63)
    assert got.parameters["f"].double_param == 0.5
    assert got.parameters["b"].WhichOneof("parameter_choice") == "bool_param"
    assert got.outputs[0].parameters["unit"].string_param == "m"
    assert list(got.raw_output_contents) == [np.float32(1).tobytes()]


def answering_json(answer: object, status: int = 200) -> Any:
    """A server whose answer to every POST is *answer*."""

    async def handle(request: web.Request) -> web.Response:
        await request.read()
        return web.json_response(answer, status=status)

    return serving_app(handle)


class serving_app:  # noqa: N801
    """A server on the loopback interface in which *handle* answers every POST, or *method*; its URL."""

    def __init__(self, handle: Any, method: str = "POST") -> None:
        app = web.Application(client_max_size=2**30)
        app.router.add_route(method, "/{path:.*}", handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)

    async def __aenter__(self) -> str:
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[union-attr]

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()


async def test_all_that_a_client_asks_before_it_infers(both: Both) -> None:
    grpc_client = both[1]
    assert await grpc_client.is_server_live()
    assert await grpc_client.is_server_ready()
    assert await grpc_client.is_model_ready("identity")
    server = await grpc_client.get_server_metadata()
    assert "binary_tensor_data" in server.extensions
    model = await grpc_client.get_model_metadata("simple")
    assert [(each.name, each.datatype, list(each.shape)) for each in model.inputs] == [
        ("INPUT0", "INT32", [1, 16]),
        ("INPUT1", "INT32", [1, 16]),
    ]
    with pytest.raises(InferenceServerException) as refused:
        await grpc_client.get_model_metadata("nobody")
    assert refused.value.status() == "StatusCode.NOT_FOUND"


TRITONS = {
    "/v2/models/m/config": {
        "name": "m",
        "platform": "onnxruntime_onnx",
        "backend": "onnxruntime",
        "max_batch_size": 8,
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1, 4], "reshape": {"shape": [4]}}],
        "parameters": {"k": {"string_value": "v"}},
        "unheard_of": {"a": [1]},
    },
    "/v2/models/m/stats": {
        "model_stats": [
            {
                "name": "m",
                "version": "1",
                "inference_count": 7,
                "inference_stats": {"success": {"count": 7, "ns": 900}},
                "batch_stats": [{"batch_size": 1, "compute_infer": {"count": 7, "ns": 70}}],
            }
        ]
    },
    "/v2/repository/index": [{"name": "m", "version": "1", "state": "READY", "reason": ""}],
    "/v2/repository/models/m/load": {},
    "/v2/repository/models/m/unload": {},
}


@pytest.mark.rule("12.3")
async def test_calls_for_operators_are_those_of_http() -> None:
    asked: list[tuple[str, str, bytes]] = []

    async def handle(request: web.Request) -> web.Response:
        asked.append((request.method, request.path, await request.read()))
        return web.json_response(TRITONS[request.path])

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        async with serving(f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}") as (_, client):  # type: ignore[union-attr]
            config = (await client.get_model_config("m")).config
            assert (config.max_batch_size, config.input[0].data_type, list(config.input[0].dims)) == (8, 11, [-1, 4])
            assert config.parameters["k"].string_value == "v"
            (stats,) = (await client.get_inference_statistics("m")).model_stats
            assert stats.inference_stats.success.ns == 900
            (model,) = (await client.get_model_repository_index()).models
            assert (model.name, model.state) == ("m", "READY")
            await client.load_model("m", config='{"backend": "x"}', files={"file:1/model": b"\0\xff"})
            await client.unload_model("m")
    finally:
        await runner.cleanup()
    load = next(body for _, path, body in asked if path.endswith("/load"))
    assert json.loads(load) == {"parameters": {"config": '{"backend": "x"}', "file:1/model": "AP8="}}


RICH_CONFIG = {
    "name": "m",
    "platform": "ensemble",
    "version_policy": {"specific": {"versions": [1, 3]}},
    "max_batch_size": 8,
    "input": [{"name": "x", "data_type": "TYPE_FP32", "format": "FORMAT_NCHW", "dims": [3], "reshape": {"shape": []}}],
    "batch_input": [{"kind": "BATCH_ELEMENT_COUNT", "target_name": ["n"], "data_type": "TYPE_INT32"}],
    "optimization": {"priority": "PRIORITY_MAX", "cuda": {"graph_spec": [{"input": {"x": {"dim": ["3"]}}}]}},
    "instance_group": [{"kind": "KIND_CPU", "count": 2, "gpus": [], "profile": ["p"]}],
    "model_warmup": [{"name": "w", "batch_size": 1, "inputs": {"x": {"dims": [3], "random_data": True}}}],
    "model_transaction_policy": {"decoupled": True},
    "response_cache": {"enable": True},
}
SCHEDULING: dict[str, object] = {
    "sequence_batching": {
        "oldest": {"max_candidate_sequences": 4, "preferred_batch_size": [2]},
        "control_input": [{"name": "a", "control": [{"kind": "CONTROL_SEQUENCE_START", "fp32_false_true": [0, 1]}]}],
        "state": [{"input_name": "s", "initial_state": [{"data_type": "TYPE_INT8", "dims": [1], "zero_data": True}]}],
    },
    "ensemble_scheduling": {"step": [{"model_name": "a", "model_version": -1, "input_map": {"x": "y"}}]},
    "dynamic_batching": {"preferred_batch_size": [4], "priority_queue_policy": {"1": {"timeout_action": "DELAY"}}},
}
RICH_STATISTICS = {
    "model_stats": [
        {
            "name": "m",
            "inference_stats": {"success": {"count": 3, "ns": "900"}},
            "memory_usage": [{"type": "GPU", "id": 1, "byte_size": 2**40}],
            "response_stats": {"0": {"success": {"count": 1, "ns": 5}}},
        }
    ]
}


@pytest.mark.parametrize("scheduling", SCHEDULING)
async def test_every_field_of_a_configuration_and_of_statistics_crosses(scheduling: str) -> None:
    said = {**RICH_CONFIG, scheduling: SCHEDULING[scheduling]}

    async def handle(request: web.Request) -> web.Response:
        return web.json_response(said if request.path.endswith("/config") else RICH_STATISTICS)

    async with serving_app(handle, "GET") as url, serving(url) as (_, client):
        config = (await client.get_model_config("m")).config
        statistics = await client.get_inference_statistics("m")
    assert config == json_format.ParseDict(said, model_config_pb2.ModelConfig())
    assert statistics == json_format.ParseDict(RICH_STATISTICS, pb.ModelStatisticsResponse())


async def test_a_model_that_the_server_does_not_know_is_not_ready() -> None:
    async with answering_json({}) as url, serving(url) as (_, client):  # it answers 405 to GET
        assert not await client.is_model_ready("nobody")


@pytest.mark.rule("12.3", "12.5")
@pytest.mark.parametrize(
    ("status", "expected"),
    [
        *dict.fromkeys((400, 404, 405, 501, 503), False).items(),
        (401, "UNAUTHENTICATED"),
        (403, "PERMISSION_DENIED"),
        (429, "RESOURCE_EXHAUSTED"),
        (500, "INTERNAL"),
        (502, "INTERNAL"),
    ],
)
async def test_only_a_refusal_that_says_so_means_that_something_is_not_ready(status: int, expected: object) -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.json_response({"error": "no"}, status=status)

    async with serving_app(refuse, "GET") as url, serving(url) as (_, client):
        try:
            got: object = await client.is_model_ready("m")
        except InferenceServerException as error:
            got = error.status().removeprefix("StatusCode.")
    assert got == expected


async def test_calls_that_belong_to_the_server_alone_are_unimplemented(
    grpc_client: triton.InferenceServerClient,
) -> None:
    with pytest.raises(InferenceServerException) as refused:
        await grpc_client.get_system_shared_memory_status()
    assert refused.value.status() == "StatusCode.UNIMPLEMENTED"
    assert "SystemSharedMemoryStatus: the gateway has no such call" in refused.value.message()


async def test_the_health_service_of_grpc(both: Both) -> None:
    async with grpc.aio.insecure_channel(address_of(both[0])) as channel:
        check: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert await check(b"") == b"\x08\x01"
        assert await check(b"\x0a\x1einference.GRPCInferenceService") == b"\x08\x01"
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await check(b"\x0a\x01x")
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND  # as its protocol has it
    assert refused.value.details() == "there is no service 'x'"


REFUSED = {
    "too few bytes": (
        [raw("x", [3, 5], "FP32", b"1234")],
        "input 'x' (FP32, shape [3, 5]): binary_data_size: expected 60, got 4",
    ),
    "no datatype": ([raw("x", [1], "FP33", b"1234")], "FP33"),
    "NaN": ([given("x", np.array([1, np.nan], "f4"))], "is nan, which JSON cannot carry"),
    "twice": ([given("x", np.ones(1, "f4")), given("x", np.ones(1, "f4"))], "input 'x' is given more than once"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_what_http_refuses_with_400_is_an_invalid_argument(both: Both, server: JsonServer, case: str) -> None:
    inputs, words = REFUSED[case]
    with pytest.raises(InferenceServerException) as refused:
        await both[1].infer("identity", inputs)
    assert refused.value.status() == "StatusCode.INVALID_ARGUMENT"
    assert words in refused.value.message()
    assert not server.inferences


def broken(change: Any) -> pb.ModelInferRequest:
    message = in_message(np.ones(2, "f4"), "FP32", is_typed=False)
    change(message)
    return message


def _typed_and_raw(message: pb.ModelInferRequest) -> None:
    message.inputs[0].contents.fp32_contents.extend([1, 2])


def _wrong_field(message: pb.ModelInferRequest) -> None:
    del message.raw_input_contents[:]
    message.inputs[0].contents.int_contents.extend([1, 2])


def _wrong_count(message: pb.ModelInferRequest) -> None:
    del message.raw_input_contents[:]
    message.inputs[0].contents.fp32_contents.extend([1, 2, 3])


def _too_small(message: pb.ModelInferRequest) -> None:
    del message.raw_input_contents[:]
    message.inputs[0].datatype = "INT8"
    message.inputs[0].contents.int_contents.extend([1, 128])


def _half(message: pb.ModelInferRequest) -> None:
    del message.raw_input_contents[:]
    message.inputs[0].datatype = "FP16"
    message.inputs[0].contents.fp32_contents.extend([1, 2])


def _no_value(message: pb.ModelInferRequest) -> None:
    message.parameters["x"].SetInParent()


BROKEN = {
    "typed and raw": (_typed_and_raw, "input 'x': has `contents`, but there are `raw_input_contents` too"),
    "raw for nobody": (lambda m: m.raw_input_contents.append(b""), "`raw_input_contents` has 2 entries, but 1 inputs"),
    "no values": (lambda m: m.raw_input_contents.pop(), "input 'x': has no values"),
    "another field": (
        _wrong_field,
        "input 'x' (FP32, shape [2]): expected its values in `fp32_contents`, got `int_contents`",
    ),
    "too many values": (_wrong_count, "input 'x' (FP32, shape [2]): expected 2 elements in `fp32_contents`, got 3"),
    "out of range": (_too_small, "input 'x' (INT8, shape [2]): 128 does not fit into INT8"),
    "no field": (_half, "`contents` has no field for FP16; send `raw_input_contents`"),
    "no value": (_no_value, "the request: parameter 'x' has no value"),
    "no model": (lambda m: m.ClearField("model_name"), "the request has no `model_name`"),
    "NaN parameter": (lambda m: setattr(m.parameters["x"], "double_param", float("nan")), "which JSON cannot carry"),
}


@pytest.mark.parametrize("case", BROKEN)
async def test_messages_that_contradict_themselves_are_refused(both: Both, server: JsonServer, case: str) -> None:
    change, words = BROKEN[case]
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await ask(both[0], broken(change))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert words in (refused.value.details() or "")
    assert not server.inferences


STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    422: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


@pytest.mark.rule("12.5")
@pytest.mark.parametrize("status", STATUSES)
async def test_a_servers_refusal_has_the_paired_status_and_its_words(status: int) -> None:
    async with (
        answering_json({"error": "the model says no: 100 % ü"}, status) as url,
        serving(url) as (client, triton_),
    ):
        with pytest.raises(InferenceServerException) as refused:
            await triton_.infer("m", [given("x", np.ones(1, "f4"))])
        metrics = await client.metrics()
    assert refused.value.status() == f"StatusCode.{STATUSES[status]}"
    assert "the model says no: 100 % ü" in refused.value.message()
    sample = f'tensor_gateway_requests_total{{code="{status}",model="other",protocol="grpc",route="main"}}'
    assert metrics[sample] == 1


async def test_a_redirect_is_no_answer() -> None:
    async def redirect(request: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": "/elsewhere"})

    async with serving_app(redirect) as url, serving(url) as (_, client):
        for call in (client.infer("m", [given("x", np.ones(1, "f4"))]), client.get_model_repository_index()):
            with pytest.raises(InferenceServerException, match="answered 302") as refused:
                await call
            assert refused.value.status() == "StatusCode.INTERNAL"


async def test_a_client_that_gives_up_is_told_whose_deadline_it_was() -> None:
    async def wait(request: web.Request) -> web.Response:
        await asyncio.sleep(30)
        return web.json_response({})

    async with serving_app(wait) as url, serving(url, backend="timeouts: {total: 1s}") as (client, triton_):
        with pytest.raises(InferenceServerException) as late:
            await triton_.infer("m", [given("x", np.ones(1, "f4"))], client_timeout=0.3)
        with pytest.raises(InferenceServerException) as total:
            await triton_.infer("m", [given("x", np.ones(1, "f4"))], client_timeout=20)
        assert client.gateway.gateway.in_flight == 0
    assert late.value.status() == total.value.status() == "StatusCode.DEADLINE_EXCEEDED"
    assert "timeouts.total" in total.value.message()


async def test_a_call_that_is_cancelled_ends_at_the_server() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def wait(request: web.Request) -> web.Response:
        begun.set()
        try:
            await asyncio.sleep(30)
        finally:
            ended.set()
        return web.json_response({})

    async with serving_app(wait) as url, serving(url) as (client, triton_):
        call = asyncio.ensure_future(triton_.infer("m", [given("x", np.ones(1, "f4"))]))
        await begun.wait()
        call.cancel()
        async with asyncio.timeout(5):
            while client.gateway.gateway.in_flight:
                await asyncio.sleep(0.01)
        metrics = await client.metrics()
        assert metrics['tensor_gateway_requests_total{code="499",model="other",protocol="grpc",route="main"}'] == 1
        assert metrics["tensor_gateway_in_flight_bytes"] == 0


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
async def test_compressed_messages_are_inflated(grpc_client: triton.InferenceServerClient, algorithm: str) -> None:
    array = np.zeros(100_000, "f4")
    result = await grpc_client.infer("identity", [given("x", array)], compression_algorithm=algorithm)
    assert result.as_numpy("x").tobytes() == array.tobytes()


@pytest.mark.rule("12.4")
async def test_a_stream_answers_each_request_in_its_order(grpc_client: triton.InferenceServerClient) -> None:
    async def requests() -> Any:
        for number in range(50):
            array = np.full((50 - number) * 1000, number, "f4")
            yield {"model_name": "identity", "inputs": [given("x", array)], "request_id": str(number)}

    numbers = []
    async for result, error in grpc_client.stream_infer(requests()):
        assert error is None
        numbers.append(int(result.get_response().id))
        assert result.get_response().parameters["triton_final_response"].bool_param
        assert result.as_numpy("x").tobytes() == np.full((50 - numbers[-1]) * 1000, numbers[-1], "f4").tobytes()
    assert numbers == list(range(50))


@pytest.mark.parametrize("ends", [False, True])
async def test_an_error_in_a_stream(grpc_client: triton.InferenceServerClient, ends: bool) -> None:
    async def requests() -> Any:
        yield {"model_name": "identity", "inputs": [given("x", np.ones(2, "f4"))]}
        yield {"model_name": "identity", "inputs": [raw("x", [3], "FP32", b"1")]}
        if ends:  # grpc.aio may report an error of its own if it writes at the moment at which a stream is ended
            await is_over.wait()
        yield {"model_name": "identity", "inputs": [given("x", np.ones(3, "f4"))]}

    is_over = asyncio.Event()
    headers = {"triton_grpc_error": "true"} if ends else None
    got = []
    try:
        async for result, error in grpc_client.stream_infer(requests(), headers=headers):
            got.append(error.message() if error else list(result.as_numpy("x")))
    except grpc.aio.AioRpcError as error:  # tritonclient passes it on as it is
        got.append((error.code().name, error.details()))
    is_over.set()
    assert got[0] == [1, 1]
    if ends:
        assert got[1][0] == "INVALID_ARGUMENT"
        assert len(got) == 2
    else:
        assert "expected 12, got 1" in got[1]
        assert got[2] == [1, 1, 1]


@pytest.mark.rule("12.4")
async def test_an_error_in_a_stream_has_the_id_of_its_request(both: Both) -> None:
    named = {
        "short": (broken(lambda m: m.raw_input_contents.__setitem__(0, b"1")), "expected 8, got 1"),
        "unknown": (broken(lambda m: setattr(m, "model_name", "nobody")), "nobody"),
        "\u00fc" * 500: (broken(lambda m: m.parameters["x"].SetInParent()), "parameter 'x' has no value"),
        "long": (broken(lambda m: setattr(m.parameters["x"], "string_param", "x" * 200_000)), "limits.header"),
        **{case: (broken(change), words) for case, (change, words) in BROKEN.items()},
    }
    messages = []
    for id_, (message, _) in named.items():
        message.id = id_
        messages.append(message.SerializeToString())
    messages += [b"\x1a\4last\xff", b"\x1a\2\xff\xff", b"\x1a" + _varint(200_000) + bytes(200_000)]
    async with grpc.aio.insecure_channel(address_of(both[0])) as channel:
        stream: Any = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        answers = [pb.ModelStreamInferResponse.FromString(answer) async for answer in stream(iter(messages))]
    assert [answer.infer_response for answer in answers] == [
        pb.ModelInferResponse(id=id_) for id_ in (*named, "last", "", "")
    ]
    for answer, (_, words) in zip(answers, named.values(), strict=False):
        assert words in answer.error_message


async def test_tokens_and_denied_paths_are_those_of_http(server: JsonServer, tmp_path: Any) -> None:
    (tmp_path / "tokens.txt").write_text("ann: secret\n")
    extra = f"access: {{tokens_file: {tmp_path}/tokens.txt, deny: ['/v2/repository/*']}}\n"
    async with serving(server.url, extra) as (_, client):
        inputs = [given("x", np.ones(2, "f4"))]
        with pytest.raises(InferenceServerException) as nobody:
            await client.infer("identity", inputs)
        assert nobody.value.status() == "StatusCode.UNAUTHENTICATED"
        for headers in ({"authorization": "Bearer secret"}, {"x-api-key": "secret"}):
            assert (await client.infer("identity", inputs, headers=headers)).as_numpy("x") is not None
        with pytest.raises(InferenceServerException) as denied:
            await client.get_model_repository_index(headers={"x-api-key": "secret"})
        assert denied.value.status() == "StatusCode.PERMISSION_DENIED"
    names = {name.lower() for name, _ in server.headers}
    assert not names & {"authorization", "x-api-key", "te", "grpc-accept-encoding", "grpc-timeout"}


@pytest.mark.rule("12.7")
async def test_metadata_crosses_as_headers_do(both: Both, server: JsonServer) -> None:
    async with grpc.aio.insecure_channel(address_of(both[0])) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        call = stub.ModelInfer(
            in_message(np.ones(1, "f4"), "FP32", is_typed=False),
            metadata=(("x-tenant", "blue"), ("blob-bin", b"\0\1"), ("x-request-id", "given-17")),
        )
        initial = dict(await call.initial_metadata())
        await call
    sent = {name.lower(): value for name, value in server.headers}
    assert sent["x-tenant"] == "blue"
    assert "blob-bin" not in sent
    assert sent["x-request-id"] == initial["x-request-id"] == "given-17"


async def test_two_hundred_at_once_each_get_their_own(grpc_client: triton.InferenceServerClient) -> None:
    async def one(number: int) -> None:
        array = np.full(100, number, "f4")
        result = await grpc_client.infer("identity", [given("x", array)], request_id=str(number))
        assert result.get_response().id == str(number)
        assert result.as_numpy("x").tobytes() == array.tobytes()

    await asyncio.gather(*(one(number) for number in range(200)))


async def test_a_dialect_before_grpc(server: JsonServer) -> None:
    async def predict(request: web.Request) -> web.Response:
        body = await request.json()
        return web.json_response({"outputs": [[2 * x for x in row] for row in body["inputs"]["x"]]})

    models = "models: {m: {inputs: {x: {datatype: FP32}}, outputs: {y: {datatype: FP32}}}}"
    async with serving_app(predict) as url, serving(url, backend=f"dialect: tensorflow\n{models}") as (_, client):
        result = await client.infer("m", [given("x", np.arange(4, dtype="f4").reshape(2, 2))])
    assert result.as_numpy("y").tolist() == [[0, 2], [4, 6]]
