"""What one client of gRPC may cost: memory, time of the event loop, and the patience of its connection."""

import asyncio
import gc
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import AsyncExitStack, suppress
from typing import Any

import grpc
import numpy as np
import pytest
from aiohttp import web
from hpack import Decoder, Encoder
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import InferenceServerException

from gateway.client.grpc.connection import GrpcConnection
from gateway.client.grpc.inference import read_request
from gateway.client.grpc.messages import varint
from gateway.client.grpc.stream import Stream
from gateway.codec.inference import HeaderLimits
from gateway.demo import JsonServer
from gateway.errors import CodecError
from tests.conftest import Connection, answering, lying
from tests.grpc.conftest import address_of, serving
from tests.grpc.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    FIELDS,
    GOAWAY,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Raw,
    connected,
    fields,
    frame,
    message,
)
from tests.grpc.test_clients import Both, ask, in_message, serving_app
from tests.grpc.test_hostile import BODY, still_serves
from tests.steps import run

pytestmark = pytest.mark.rule("12.6")

STREAMING = [*FIELDS[:2], (":path", "/inference.GRPCInferenceService/ModelStreamInfer"), *FIELDS[3:]]


def calling(name: str) -> list[tuple[str, str]]:
    """The fields of the call *name*."""
    return [*FIELDS[:2], (":path", f"/inference.GRPCInferenceService/{name}"), *FIELDS[3:]]


async def test_a_window_that_shrinks_below_zero(both: Both) -> None:
    """RFC 9113 section 6.9.2: what was sent counts against the new size."""
    values = np.arange(30_000, dtype="f4")
    big = message(in_message(values, "FP32", is_typed=False).SerializeToString())
    async with connected(address_of(both[0])) as raw:
        await raw.until(WINDOW_UPDATE)
        await raw.send(fields(1))
        for start in range(0, len(big), 16_000):
            await raw.send(frame(DATA, 1, big[start : start + 16_000]))
            await asyncio.sleep(0.01)
        await raw.send(frame(DATA, 1, b"", END_STREAM))
        got = b""
        while len(got) < 65_535:
            got += (await raw.until(DATA))[3]
        await raw.send(frame(SETTINGS, 0, b"\0\x04" + (10).to_bytes(4)))  # the window is now 10 - 65535
        await raw.send(frame(WINDOW_UPDATE, 0, (200_000).to_bytes(4)))
        await raw.send(frame(WINDOW_UPDATE, 1, (1000).to_bytes(4)))  # and still below zero
        await raw.send(frame(PING, 0, bytes(8)))
        kind, _, _, payload = await raw.until(PING, DATA, RST_STREAM)
        assert kind == PING
        await raw.send(frame(WINDOW_UPDATE, 1, (200_000).to_bytes(4)))
        kind = 0
        while kind != HEADERS:
            kind, _, _, payload = await raw.until(DATA, HEADERS, RST_STREAM)
            assert kind != RST_STREAM
            if kind == DATA:
                got += payload
    answer = pb.ModelInferResponse.FromString(got[5:])
    assert answer.raw_output_contents[0] == values.tobytes()
    await still_serves(both)


async def test_long_replies_of_several_calls_to_a_client_that_reads_late() -> None:
    """Each of them waits for the connection, and all go on when it has room again."""
    count = 1_000_000
    data = b",".join([b"0.5"] * count)
    answer = b'{"outputs": [{"name": "y", "datatype": "FP32", "shape": [%d], "data": [%b]}]}' % (count, data)
    numbers = range(1, 9, 2)
    async with lying(answering(answer)) as liar, serving(liar.url) as both, connected(address_of(both[0])) as raw:
        await raw.send(frame(SETTINGS, 0, b"\0\x04\x7f\xff\xff\xff") + frame(WINDOW_UPDATE, 0, (2**30).to_bytes(4)))
        await raw.send(b"".join(fields(number) + frame(DATA, number, message(BODY), END_STREAM) for number in numbers))
        await asyncio.sleep(1)
        got = Counter[int]()
        left = set(numbers)
        while left:
            kind, flags, number, payload = await raw.until(DATA, HEADERS, RST_STREAM)
            assert kind != RST_STREAM
            if kind == DATA:
                got[number] += len(payload)
            if flags & END_STREAM:
                left.remove(number)
    assert [got[number] > 4 * count for number in numbers] == [True] * len(numbers)


async def test_a_client_that_offers_a_table_for_fields_without_end(both: Both) -> None:
    """The gateway keeps no more than 4 KiB of the fields that it has sent, however much it may."""
    async with connected(address_of(both[0])) as raw:
        await raw.send(frame(SETTINGS, 0, b"\0\x01\x7f\xff\xff\xff"))
        raw.decoder = Decoder()
        raw.decoder.max_allowed_table_size = 2**31
        for n in range(200):
            number = 2 * n + 1
            await raw.send(fields(number) + frame(DATA, number, message(b""), END_STREAM))
            assert (await raw.status(number))["grpc-status"] == "3"
        assert raw.decoder.header_table_size <= 4096
    await still_serves(both)


async def test_errors_that_end_streams_leave_nothing() -> None:
    """A client whose stream was ended by an error does not end its own half."""
    body = b'{"error": "no such model"}'
    script = answering(body, "404 Not Found")
    large = [*STREAMING, ("triton_grpc_error", "true"), *((f"x-{n}", "y" * 1000) for n in range(14))]
    async with lying(script) as liar, serving(liar.url) as both, connected(address_of(both[0])) as raw:
        for n in range(90):
            number = 2 * n + 1
            await raw.send(fields(number, large) + frame(DATA, number, message(BODY)))
            assert (await raw.status(number)).get("grpc-status") == "5"


async def test_of_all_connections_that_have_more_to_do_one_goes_on_in_each_turn(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else others would wait in each turn for a slice of every connection."""
    turn, went_on = 0, Counter[int]()
    work = GrpcConnection._work

    def noted(connection: GrpcConnection) -> None:
        if asyncio.current_task() is not None:
            went_on[turn] += 1
        work(connection)

    monkeypatch.setattr(GrpcConnection, "_work", noted)
    many = fields(1) + frame(WINDOW_UPDATE, 1, b"\0\0\0\1") * 10_000 + frame(PING, payload=bytes(8))
    async with AsyncExitStack() as stack:
        raws = [await stack.enter_async_context(connected(address_of(both[0]))) for _ in range(10)]
        for raw in raws:
            raw.writer.write(many)
        replies = asyncio.gather(*[raw.until(PING) for raw in raws])
        while not replies.done():
            await asyncio.sleep(0)
            turn += 1
    assert sum(went_on.values()) > 20
    assert max(went_on.values()) == 1


@pytest.mark.alone
async def test_a_window_that_grows_costs_the_same_however_many_streams_there_are(both: Both) -> None:
    """None of them waits for it: else each update of 13 bytes woke all of them.

    More updates than here, with nothing else, would end the connection.
    """
    seconds: dict[int, float] = {}
    for n_streams in (1, 100, 1, 100):
        async with connected(address_of(both[0])) as raw:
            begun = b"".join(fields(2 * number + 1) for number in range(n_streams))
            await raw.send(begun + frame(PING, payload=bytes(8)))
            await raw.until(PING)
            started_s = time.process_time()
            await raw.send(frame(WINDOW_UPDATE, 0, b"\0\0\0\1") * 4_000 + frame(PING, payload=bytes(8)))
            await raw.until(PING)
            seconds[n_streams] = min(seconds.get(n_streams, 9.0), time.process_time() - started_s)
    assert seconds[100] < 2 * seconds[1], seconds


async def test_pings_between_the_answers_of_a_stream(both: Both) -> None:
    """Clients of Go send one for each answer, to learn how much the way holds."""
    async with connected(address_of(both[0])) as raw:
        await raw.send(fields(1, STREAMING))
        for _ in range(300):
            await raw.send(frame(DATA, 1, message(BODY)) + frame(PING, 0, bytes(8)))
            kind = (await raw.until(DATA, GOAWAY))[0]
            assert kind == DATA
            await raw.send(frame(WINDOW_UPDATE, 0, (1000).to_bytes(4)) + frame(WINDOW_UPDATE, 1, (1000).to_bytes(4)))
        await raw.send(frame(DATA, 1, b"", END_STREAM))
        assert (await raw.status(1))["grpc-status"] == "0"
    await still_serves(both)


async def test_calls_that_are_cancelled_after_a_while_are_no_flood() -> None:
    """So clients end calls whose deadline is over, a hundred at once where a server hangs."""

    async def silent(connection: Connection) -> None:
        await connection.read_request()
        await asyncio.sleep(30)

    async with lying(silent) as liar, serving(liar.url) as both, connected(address_of(both[0])) as raw:
        for round_ in range(4):
            numbers = [2 * n + 1 + 200 * round_ for n in range(100)]
            for number in numbers:
                await raw.send(fields(number) + frame(DATA, number, message(BODY), END_STREAM))
            await asyncio.sleep(0.3)
            for number in numbers:
                await raw.send(frame(RST_STREAM, number, (8).to_bytes(4)))
        await raw.send(frame(PING, 0, bytes(8)))
        assert (await raw.until(PING, GOAWAY))[0] == PING


@pytest.mark.parametrize("end", ["refused", "answered", "cancelled", "unread"])
async def test_what_a_message_takes_is_free_when_its_call_has_ended(end: str) -> None:
    """Not when Python's collector looks for cycles, which is rare where few objects are made."""
    asked = asyncio.Event()

    async def script(connection: Connection) -> None:
        if end == "unread":
            connection.pause_reading()
            asked.set()
            await connection.ended.wait()
        await connection.read_request()
        connection.body = b""
        asked.set()
        if end == "answered":
            await connection.answer(b'{"outputs": []}')
        elif end == "refused":
            await connection.answer(b'{"error": "no"}', "500 Internal Server Error")
        else:
            await connection.reader.read()

    body = in_message(np.full(2_000_000, 0.1, "f4"), "FP32", is_typed=False).SerializeToString()
    async with lying(script) as liar, serving(liar.url, backend="timeouts: {total: 700ms}") as both:
        async with grpc.aio.insecure_channel(address_of(both[0])) as channel:
            infer: Any = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            gc.disable()
            tracemalloc.start()
            try:
                for _ in range(2):
                    asked.clear()
                    call = infer(body)
                    await asked.wait()
                    if end == "cancelled":
                        call.cancel()
                    with suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
                        await call
                async with asyncio.timeout(5):
                    while both[0].gateway.gateway.in_flight:
                        await asyncio.sleep(0.01)
                traces = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/gateway/*")])
            finally:
                tracemalloc.stop()
                gc.enable()
    assert sum(each.size for each in traces.statistics("filename")) < len(body)


async def test_nothing_is_kept_of_a_message_that_came_too_slowly(server: JsonServer) -> None:
    async with serving(server.url, "limits: {body_timeout: 1s}") as both, connected(address_of(both[0])) as raw:
        gc.collect()
        gc.disable()
        try:
            await raw.send(fields(1) + frame(DATA, 1, message(BODY)[:20]))
            assert (await raw.status(1))["grpc-status"] == "4"
            async with asyncio.timeout(5):
                while any(isinstance(each, Stream) for each in gc.get_objects()):
                    await asyncio.sleep(0.01)
        finally:
            gc.enable()


def longest_step(steps: Generator[None, None, Any]) -> tuple[float, BaseException | None]:
    """The most processor time between two yields of *steps*, and with what they end."""
    longest_s = 0.0
    while True:
        since_s = time.thread_time()
        try:
            next(steps)
        except StopIteration:
            return max(longest_s, time.thread_time() - since_s), None
        except CodecError as error:
            return max(longest_s, time.thread_time() - since_s), error
        longest_s = max(longest_s, time.thread_time() - since_s)


async def test_the_memory_of_fields_of_one_letter_is_counted(both: Both) -> None:
    """It is the strings and pairs that take it, and not what they hold: 3 MB in the 128 calls that there may be."""
    many = [*STREAMING, *((f"x{n:03}", "v") for n in range(120))]
    admission = both[0].gateway.gateway.admission
    async with connected(address_of(both[0])) as raw:
        gc.collect()
        tracemalloc.start()
        try:
            for n in range(45):
                await raw.send(fields(2 * n + 1, many))
                await raw.send(frame(PING, 0, bytes(8)))
                await raw.until(PING)
            gc.collect()
            taken = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert admission.held_bytes > 500_000
        assert taken < 2 * admission.held_bytes
    await still_serves(both)


SLOW_HEADS = [
    fields(3)[:-1],  # a frame without its end
    fields(3, flags=0),  # without its continuation
    fields(3, flags=0) + b"\0\0\x10",  # with half a frame of it
]


@pytest.mark.parametrize("is_serving", [False, True])
async def test_a_head_that_does_not_end(server: JsonServer, is_serving: bool) -> None:
    """It has `limits.header_timeout`, also beside a stream of messages that may take its time."""

    async def last_stream(raw: Raw, beginning: bytes) -> int:
        if is_serving:
            await raw.send(fields(1, STREAMING) + frame(DATA, 1, message(BODY)))
            await raw.until(DATA)
        await raw.send(beginning)
        return await raw.goaway()

    async with serving(server.url, "limits: {header_timeout: 1s}") as both, AsyncExitStack() as connections:
        raws = [await connections.enter_async_context(connected(address_of(both[0]))) for _ in SLOW_HEADS]
        assert await asyncio.gather(*map(last_stream, raws, SLOW_HEADS)) == [-1] * len(raws)
        assert both[0].gateway.data_plane.server.slow_connections["header_timeout"] == len(raws)
        await still_serves(both)


@pytest.mark.slow
async def test_heads_that_come_slowly_one_after_the_other(server: JsonServer) -> None:
    """Each has its own time, and there is one at any moment."""
    async with serving(server.url, "limits: {header_timeout: 2s}") as both, connected(address_of(both[0])) as raw:
        heads = [fields(2 * n + 1, flags=END_HEADERS | END_STREAM) for n in range(6)]
        await raw.until(WINDOW_UPDATE)  # nothing is to be acknowledged in the middle of a head
        await raw.send(heads[0][:20])
        for n in range(5):
            await asyncio.sleep(0.7)
            await raw.send(heads[n][20:] + heads[n + 1][:20])
            assert (await raw.status(2 * n + 1))["grpc-status"] == "3"


async def test_fields_of_one_byte_hold_nobody_up(both: Both) -> None:
    """A hundred calls with a thousand fields each, of one byte: 100 KB, for which the library takes half a second."""
    block = Encoder().encode(FIELDS) + b"\x90" * 1000
    calls = b"".join(frame(HEADERS, 2 * n + 1, block, END_HEADERS | END_STREAM) for n in range(100))
    async with connected(address_of(both[0])) as raw:
        await raw.send(calls)
        assert (await raw.status(199))["grpc-status"] == "3"  # more than 128 fields
    await still_serves(both)


async def test_others_run_between_frames_when_a_turn_is_over(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection has a millisecond for its frames, then its turn is over: here each is too long."""
    monkeypatch.setattr("gateway.client.grpc.connection.TURN_S", -1.0)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with connected(address_of(both[0])) as raw:
        await raw.until(SETTINGS)
        counting = asyncio.create_task(count())
        await raw.send(b"".join(frame(PING, 0, bytes(8)) for _ in range(100)))
        for _ in range(100):
            await raw.until(PING)
        counting.cancel()
    assert turns >= 100
    await still_serves(both)


MODEL = b"\x0a\x08identity"


def _one_input(contents: bytes, shape: bytes = b"\x1a\x01\x01") -> bytes:
    entry = b"\x0a\x01x\x12\x04FP32" + shape + b"\x2a" + varint(len(contents)) + contents
    return MODEL + b"\x2a" + varint(len(entry)) + entry


MANY: dict[str, Callable[[int], bytes]] = {
    "empty raw contents": lambda n: MODEL + b"\x3a\x00" * (n // 2),
    "ids": lambda n: MODEL + b"\x1a\x00" * (n // 2),
    "unknown numbers": lambda n: MODEL + b"\x78\x01" * (n // 2),
    "empty packed values": lambda n: _one_input(b"\x32\x00" * (n // 2)),
    "empty packed values of another field": lambda n: _one_input(b"\x3a\x00" * (n // 2)),
    "inputs without elements": lambda n: MODEL + b"\x2a\x03\x1a\x01\x00" * (n // 5),
    "outputs": lambda n: MODEL + b"\x32\x00" * (n // 2),
    "parameters": lambda n: MODEL + b"".join(b"\x22\x0b\x0a\x05%05x\x12\x02\x08\x01" % i for i in range(n // 13)),
    "inputs in shared memory": lambda n: (
        MODEL + b"\x2a\x1d\x22\x1b\x0a\x14shared_memory_region\x12\x03\x1a\x01a" * (n // 31)
    ),
    "dimensions": lambda n: _one_input(
        b"\x32\x04abcd", b"\x1a" + varint(n // 10 * 10) + (b"\xff" * 8 + b"\x7f\x01") * (n // 10)
    ),
    "small dimensions": lambda n: _one_input(b"\x32\x04abcd", b"\x1a" + varint(n) + b"\x01" * n),
    "a packed number without end": lambda n: _one_input(b"\x12" + varint(n) + b"\xff" * n),
    "numbers that are not packed": lambda n: _one_input(b"\x3d" * (n // 1)),
}


@pytest.mark.parametrize("kind", MANY)
@pytest.mark.parametrize("n_bytes", [120_000, pytest.param(4_000_000, marks=pytest.mark.slow)])
def test_messages_of_many_tiny_fields_take_little_memory_and_short_steps(kind: str, n_bytes: int) -> None:
    data = memoryview(MANY[kind](n_bytes))
    tracemalloc.start()
    try:
        longest_step(read_request(data, HeaderLimits(), lambda n_bytes: None))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    longest_s, _ = longest_step(read_request(data, HeaderLimits(), lambda n_bytes: None))
    assert peak_bytes < 2.5 * len(data) + 2_000_000
    assert longest_s < 0.1


async def test_many_tiny_fields_over_a_socket(both: Both) -> None:
    async with grpc.aio.insecure_channel(address_of(both[0])) as channel:
        call: Any = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        for kind, words in (("empty raw contents", "limits.tensors"), ("ids", "limits.header")):
            with pytest.raises(grpc.aio.AioRpcError, match=words) as refused:
                await call(MANY[kind](2_000_000))
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    await still_serves(both)


LONG_NAMES: dict[str, Any] = {
    "ModelReady": pb.ModelReadyRequest(name="%" * 30_000),
    "ModelMetadata": pb.ModelMetadataRequest(name="\u00e9" * 20_000),  # 40,000 bytes, and 120,000 in a path
    "ModelConfig": pb.ModelConfigRequest(name="m", version="\u4f60" * 8_000),
    "ModelStatistics": pb.ModelStatisticsRequest(name="a" * 33_000, version="/" * 11_000),
    "RepositoryIndex": pb.RepositoryIndexRequest(repository_name="/" * 22_000),
    "RepositoryModelLoad": pb.RepositoryModelLoadRequest(repository_name="a" * 33_000, model_name="/" * 11_000),
    "ModelInfer": pb.ModelInferRequest(model_name="a" * 66_000),
}


@pytest.mark.parametrize("name", LONG_NAMES)
async def test_names_that_are_too_long_for_a_head_of_http(both: Both, name: str) -> None:
    """A server that refuses such a line by closing the connection would be taken for one that fails."""
    async with grpc.aio.insecure_channel(address_of(both[0])) as channel:
        call: Any = channel.unary_unary(f"/inference.GRPCInferenceService/{name}")
        with pytest.raises(grpc.aio.AioRpcError, match=r"bytes of a path, limits\.head is 65536") as refused:
            await call(LONG_NAMES[name].SerializeToString())
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    metrics = await both[0].metrics()
    assert metrics['tensor_gateway_requests_total{code="431",model="other",protocol="grpc",route="none"}'] == 1
    assert metrics['tensor_gateway_errors_total{blame="client",reason="malformed_request",route="none"}'] == 1


async def test_the_longest_names_cross() -> None:
    """Quoted, they take no more than `limits.head`."""
    asked: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        asked.append(request.raw_path)
        return web.json_response({"ready": True})

    async with serving_app(handle, "GET") as url, serving(url, "limits: {head: 1KiB}") as (_, triton):
        assert await triton.is_model_ready("\u00e9" * 150 + "a" * 120, "~" * 4)
        with pytest.raises(InferenceServerException, match="take 1025 bytes of a path, limits.head is 1024"):
            await triton.is_model_ready("\u00e9" * 150 + "a" * 120, "~" * 5)
    assert asked == [f"/v2/models/{'%C3%A9' * 150}{'a' * 120}/versions/~~~~/ready"]


async def test_many_inputs_of_middle_size_are_no_header(both: Both) -> None:
    """Their values count as values, though protobuf sees those of small inputs."""
    request = pb.ModelInferRequest(model_name="identity")
    for n in range(60):
        entry = request.inputs.add(name=f"x{n}", datatype="FP32", shape=[1000])
        entry.contents.fp32_contents.extend([float(n)] * 1000)
        small = request.inputs.add(name=f"y{n}", datatype="FP32", shape=[240])
        small.contents.fp32_contents.extend([float(n)] * 240)
    request.inputs[0].parameters["note"].string_param = "z" * 20_000
    answer = await ask(both[0], request)
    assert len(answer.outputs) == 120
    assert answer.outputs[118].contents.fp32_contents[999] == 59


async def test_a_shape_that_no_tensor_has(both: Both) -> None:
    request = pb.ModelInferRequest(model_name="identity")
    entry = request.inputs.add(name="x", datatype="FP32", shape=[2**62] * 300)
    entry.contents.fp32_contents.append(1)
    with pytest.raises(grpc.aio.AioRpcError, match="at most 64 integers") as refused:
        await ask(both[0], request)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_fields_of_another_type_are_unknown_ones() -> None:
    """As protobuf has it: only a field of its own type is an input, or raw contents."""
    first = message_of([1.0, 2.0])
    steps = read_request(memoryview(b"\x28\x01\x38\x01" + first), HeaderLimits(), lambda n_bytes: None)
    assert run(steps).blobs[0].tobytes() == np.array([1, 2], "f4").tobytes()


def message_of(values: list[float]) -> bytes:
    """A request with one typed input, long enough to be taken apart."""
    entry = pb.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[len(values)])
    entry.contents.fp32_contents.extend(values)
    entry.parameters["note"].string_param = "z" * 2000
    return bytes(pb.ModelInferRequest(model_name="m", inputs=[entry]).SerializeToString())
