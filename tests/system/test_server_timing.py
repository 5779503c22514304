"""Replies say where their time went, where that is configured."""

import asyncio
import re

import numpy as np
import pytest

from tests.conftest import Client, Connection, answering, lying, running, tensor
from tests.system.scripted import wire

X = np.arange(16, dtype=np.float32)
HEADER = {"inputs": [tensor("x", X, "FP32")], "parameters": {"binary_data_output": True}}
ON = "logging: {access: none, server_timing: true}\n"


def metrics_of(value: str) -> dict[str, float]:
    """The metrics in a `Server-Timing`, in milliseconds."""
    found = [re.fullmatch(r"([a-z_]+);dur=([0-9]+\.[0-9]{3})", item) for item in value.split(", ")]
    return {item[1]: float(item[2]) for item in found if item is not None}


async def test_replies_say_nothing_of_their_time_unless_configured(client: Client) -> None:
    reply = await client.infer_binary(HEADER, X.tobytes())
    assert reply.status == 200
    assert "Server-Timing" not in reply.headers


@pytest.mark.parametrize("n_elements", [16, 300_000])
async def test_an_inference_says_how_long_codec_and_backend_took(n_elements: int) -> None:
    answer = b'{"model_name":"m","outputs":[{"name":"x","datatype":"FP32","shape":[2],"data":[1,2]}]}'

    async def slow(connection: Connection) -> None:
        while True:
            await connection.read_request()
            await asyncio.sleep(0.05)
            await connection.answer(answer)

    array = np.arange(n_elements, dtype=np.float32)
    header = {"inputs": [tensor("x", array, "FP32")]}
    async with lying(slow) as liar, running(liar.url, ON) as client:
        reply = await client.infer_binary(header, array.tobytes(), model="m")
    assert reply.status == 200
    (value,) = reply.headers.getall("Server-Timing")
    times = metrics_of(value)
    assert list(times) == ["total", "upstream", "queue", "first_byte", "codec"]
    assert 50 <= times["first_byte"] <= times["upstream"] <= times["total"]
    assert 0 < times["codec"] < times["total"]
    assert times["queue"] == 0


async def test_a_relayed_answer_says_what_is_known_when_its_head_is_written() -> None:
    async def slow(connection: Connection) -> None:
        await connection.read_request()
        await asyncio.sleep(0.05)
        await connection.send(b"HTTP/1.1 200 OK\r\nServer-Timing: model;dur=7\r\n\r\n")
        await connection.send(b"x" * 100)

    async with lying(slow) as liar, running(liar.url, ON) as client:
        reply = await client.request("GET", "/v2/anything")
    theirs, ours = reply.headers.getall("Server-Timing")
    assert theirs == "model;dur=7"
    times = metrics_of(ours)
    assert list(times) == ["total", "upstream", "queue", "first_byte"]
    assert 50 <= times["first_byte"] <= times["upstream"] <= times["total"]


async def test_refusals_say_it_too_also_those_of_bad_http() -> None:
    async with lying(answering(b"{}")) as liar, running(liar.url, ON) as client:
        reply = await client.infer(b"")
        assert reply.status == 400
        assert list(metrics_of(reply.headers["Server-Timing"])) == ["total", "codec"]
        async with wire(client.url) as sender:
            await sender.send(b"nonsense\r\n\r\n")
            bad = await sender.reply()
        assert (bad.status, len(bad.values("Server-Timing"))) == (400, 1)
