"""More than the gateway may hold: refused before the body is read, counted, and given back."""

import asyncio
import json
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gateway.demo import JsonServer
from tests.conftest import HEADER_LENGTH, Connection, answering, lying, running, tensor
from tests.system.scripted import head_of, infer_header, wire

LIMITS = "limits: {request_body: 8MiB, in_flight_bytes: 8MiB, concurrent_requests: 20}\n"


def bodies(n_bytes: int) -> tuple[bytes, dict[str, str]]:
    array = np.zeros(n_bytes, np.uint8)
    text = json.dumps({"inputs": [tensor("x", array, "UINT8")]}).encode()
    return text + array.tobytes(), {HEADER_LENGTH: str(len(text))}


class Slow:
    """A backend that answers when it is told to."""

    def __init__(self) -> None:
        self.release = asyncio.Event()

    async def __call__(self, connection: Connection) -> None:
        while True:
            await connection.read_request()
            await self.release.wait()
            await connection.answer(b'{"outputs":[]}')


async def test_beyond_the_budget_large_requests_are_refused_and_small_ones_served() -> None:
    slow = Slow()
    async with lying(slow) as liar, running(liar.url, LIMITS) as client:
        body, headers = bodies(6 * 1024 * 1024)
        held = asyncio.create_task(client.infer(body, headers=headers))
        while client.gateway.gateway.admission.held_bytes <= len(body):
            await asyncio.sleep(0.005)
        refused = await client.infer(body, headers=headers)
        assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
        assert "too busy" in refused.error
        chunked = await client.request("POST", "/v2/models/m/infer", data=_stream(body), headers=headers)
        assert chunked.status == 503
        metrics = await client.metrics()
        # the body, and what its parsed header takes
        assert len(body) < metrics["tensor_gateway_in_flight_bytes"] < len(body) + 16 * 1024
        assert metrics["tensor_gateway_in_flight_bytes_limit"] == 8 * 1024 * 1024
        assert metrics['tensor_gateway_errors_total{blame="gateway",reason="overloaded",route="main"}'] == 2
        small_body, small_headers = bodies(1000)
        small = asyncio.create_task(client.infer(small_body, headers=small_headers))
        slow.release.set()
        assert (await held).status == (await small).status == 200
        assert (await client.metrics())["tensor_gateway_in_flight_bytes"] == 0
        assert (await client.infer(body, headers=headers)).status == 200


async def _stream(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), 100_000):
        yield body[start : start + 100_000]


async def test_a_refused_client_that_waits_for_100_continue_never_sends_its_body() -> None:
    slow = Slow()
    async with lying(slow) as liar, running(liar.url, LIMITS) as client:
        body, headers = bodies(6 * 1024 * 1024)
        held = asyncio.create_task(client.infer(body, headers=headers))
        while client.gateway.gateway.admission.held_bytes < len(body):
            await asyncio.sleep(0.005)
        host, port = client.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
            b"Content-Length: 6000000\r\nInference-Header-Content-Length: 10\r\n\r\n"
        )
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 503 ")
        writer.close()
        slow.release.set()
        assert (await held).status == 200


async def test_beyond_the_number_of_requests_new_ones_are_refused_and_health_is_not() -> None:
    slow = Slow()
    async with lying(slow) as liar, running(liar.url, LIMITS) as client:
        body, headers = bodies(10)
        held = [asyncio.create_task(client.infer(body, headers=headers)) for _ in range(20)]
        while client.gateway.gateway.admission.requests < 20:
            await asyncio.sleep(0.005)
        assert (await client.infer(body, headers=headers)).status == 503
        assert (await client.request("POST", "/v2/repository/index", data=b"{}")).status == 503
        health = asyncio.create_task(client.request("GET", "/v2/health/ready"))
        slow.release.set()
        assert (await health).status == 200
        assert {(await task).status for task in held} == {200}


REQUEST_FREED = {
    "V2": "",
    "another dialect": "dialect: mlflow\nmodels: {'*': {outputs: {y: {datatype: FP32}}}}",
}


@pytest.mark.parametrize("form", ["binary", "JSON"])
@pytest.mark.parametrize("way", REQUEST_FREED)
async def test_a_request_is_freed_when_its_answer_begins(way: str, form: str) -> None:
    """However slowly that comes. What was reserved for it stays reserved for the answer."""
    array = np.ones(4_000_000, np.uint8)
    head, body = _request(array, form)
    has_begun, may_go = asyncio.Event(), asyncio.Event()

    async def slow(connection: Connection) -> None:
        await connection.read_request()
        connection.body = b""
        await connection.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9000000\r\n\r\n")
        await connection.send(b" " * 100_000)  # more than is waited for
        has_begun.set()
        await may_go.wait()

    async with lying(slow) as liar, running(liar.url, backend=REQUEST_FREED[way]) as client, wire(client.url) as peer:
        admission = client.gateway.gateway.admission
        tracemalloc.start()
        try:
            await peer.send(head + body)
            async with asyncio.timeout(20):
                await has_begun.wait()
                while tracemalloc.get_traced_memory()[0] >= len(body):
                    await asyncio.sleep(0.01)
        finally:
            tracemalloc.stop()
        assert admission.requests == 1
        assert admission.held_bytes >= len(body)
        may_go.set()
        await client.wait_until_idle(5)
        assert (admission.held_bytes, admission.requests) == (0, 0)


async def test_a_request_that_may_be_sent_again_is_kept() -> None:
    """With `resend_after_sent`, although its answer had begun."""
    array = np.arange(1_000_000, dtype="f4")
    text = json.dumps(infer_header(array, "FP32")).encode()
    asked: list[bytes] = []

    async def cuts(connection: Connection) -> None:
        await connection.read_request()
        asked.append(connection.body)
        if len(asked) == 1:
            await connection.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{")
        else:
            await connection.answer(b'{"outputs":[]}')

    again = "retry: {attempts: 3, resend_after_sent: true}"
    async with lying(cuts) as liar, running(liar.url, backend=again) as client:
        reply = await client.infer(text + array.tobytes(), headers={HEADER_LENGTH: str(len(text))})
    assert reply.status == 200
    assert len(asked) == 2
    assert asked[0] == asked[1]


async def test_a_request_that_is_still_being_sent_is_kept() -> None:
    """Although its answer has begun before the server has read all of it."""
    array = np.arange(2_000_000, dtype="f4")
    text = json.dumps(infer_header(array, "FP32")).encode()
    answer = b" " * 100_000 + b'{"outputs":[]}'
    read: list[bytes] = []

    async def early(connection: Connection) -> None:
        head = await connection.reader.readuntil(b"\r\n\r\n")
        connection.pause_reading()
        fields = b"Content-Type: application/json\r\nContent-Length: %d" % len(answer)
        await connection.send(b"HTTP/1.1 200 OK\r\n%b\r\n\r\n%b" % (fields, answer[:90_000]))
        await asyncio.sleep(0.2)
        connection.resume_reading()
        connection.head = head
        await connection.read_body()
        read.append(connection.body)
        await connection.send(answer[90_000:])

    async with lying(early) as liar, running(liar.url) as client:
        for _ in range(2):
            reply = await client.infer(text + array.tobytes(), headers={HEADER_LENGTH: str(len(text))})
            assert reply.status == 200, reply.body
    assert json.loads(read[0])["inputs"][0]["data"][-1] == 1_999_999
    assert read[0] == read[1]


def _request(array: npt.NDArray[np.uint8], form: str) -> tuple[bytes, bytes]:
    """Head and body of an inference."""
    header: dict[str, Any] = {"inputs": [tensor("x", array, "UINT8")]}
    fields: dict[str, object] = {}
    if form == "JSON":
        header["inputs"][0] |= {"parameters": {}, "data": array.tolist()}
        body = json.dumps(header).encode()
    else:
        text = json.dumps(header).encode()
        fields[HEADER_LENGTH] = len(text)
        body = text + array.tobytes()
    return head_of("POST", "/v2/models/m/infer", len(body), fields), body


async def test_answers_are_counted_while_they_are_held_and_given_back(server: JsonServer) -> None:
    array = np.zeros(4_000_000, np.float32)  # more than the kernel holds of a reply
    text = json.dumps(infer_header(array, "FP32")).encode()
    body = text + array.tobytes()
    head = head_of("POST", "/v2/models/identity/infer", len(body), {HEADER_LENGTH: len(text)})
    async with running(server.url) as client, wire(client.url, receive_bytes=65536) as sender:
        admission = client.gateway.gateway.admission
        await sender.send(head + body)
        most = 0
        reading = asyncio.create_task(sender.reply())
        while not reading.done():
            most = max(most, admission.held_bytes)
            await asyncio.sleep(0.001)
        assert reading.result().body.endswith(array.tobytes())
        assert array.nbytes <= most < 1.5 * array.nbytes  # the answer takes the room that its request had
        await client.wait_until_idle(5)
        assert (admission.held_bytes, admission.requests) == (0, 0)


async def test_every_end_of_a_request_gives_back_what_it_held() -> None:
    async with lying(answering(b'{"outputs":[')) as liar, running(liar.url) as client:
        body, headers = bodies(100_000)
        for _ in range(3):
            assert (await client.infer(body, headers=headers)).status == 502
            assert (await client.infer(body[:-1], headers=headers)).status == 400
            assert (await client.infer(b"")).status == 400
        admission = client.gateway.gateway.admission
        assert (admission.held_bytes, admission.requests) == (0, 0)


async def test_the_lag_of_the_event_loop_is_sampled(server: JsonServer) -> None:
    async with running(server.url) as client:
        while (await client.metrics())["tensor_gateway_event_loop_lag_seconds_count"] < 2:
            await asyncio.sleep(0.05)
