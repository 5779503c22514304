"""Batches before a server that fails in every way: each client its own rows or an error, and each row executed once."""

import asyncio
import json
import random
from collections import Counter
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc.aio as triton
from tritonclient.utils import InferenceServerException

from tests.batching.test_batching import ask, doubled, values
from tests.conftest import HEADER_LENGTH, Connection, lying, running

FAULTS = {"none": 12, "slow": 6, "drop unread": 1, "drop": 1, "cut": 1, "busy": 2, "refused": 2, "foreign": 1}
"""What the server does with a request, and how often beside the others."""

CLIENTS = 24
TURNS = 12


class Failing:
    """A server that computes what it has read, and then answers, or fails to."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self.executed: Counter[float] = Counter()
        """How often it has computed the row whose numbers these are."""
        self.rows: list[int] = []

    async def __call__(self, connection: Connection) -> None:
        while True:
            fault = self._dice.choices(list(FAULTS), list(FAULTS.values()))[0]
            if fault == "drop unread":
                await connection.reader.read(1)
                return
            try:
                await connection.read_request()
            except asyncio.IncompleteReadError:
                return
            if fault == "slow":
                await asyncio.sleep(self._dice.choice([0.002, 0.01, 0.03]))
            status, body = self._answer(fault, json.loads(connection.body))
            if fault == "drop":
                return
            if fault == "cut":
                await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body[:-10]))
                return
            await connection.answer(body, status)

    def _answer(self, fault: str, request: dict[str, Any]) -> tuple[str, bytes]:
        if fault in ("busy", "refused"):
            words = {"error": "not now"}
            return ("503 Busy" if fault == "busy" else "400 Bad Request"), json.dumps(words).encode()
        self.rows.append(request["inputs"][0]["shape"][0])
        self.executed.update(request["inputs"][0]["data"][::4])
        answer = doubled(request)
        if fault == "foreign" and "id" in answer:
            answer["id"] = "of another"
        return "200 OK", json.dumps(answer).encode()


@pytest.mark.parametrize("seed", range(3))
async def test_each_client_gets_its_own_rows_or_an_error(seed: int) -> None:
    dice = random.Random(seed)
    failing = Failing(seed)
    got: Counter[int] = Counter()
    numbers = iter(range(1, 1_000_000))

    async def one_client() -> None:
        for _ in range(TURNS):
            value, rows = float(next(numbers)), dice.randrange(1, 5)
            id_ = f"id-{value}" if dice.random() < 0.8 else None
            asked = ask(client, value, rows, **({} if id_ is None else {"id": id_}))
            if dice.random() < 0.1:
                with suppress(TimeoutError):
                    await asyncio.wait_for(asked, dice.choice([0, 0.001, 0.01]))
                continue
            reply = await asked
            got[reply.status] += 1
            if reply.status == 200:
                assert len(reply.headers.getall(HEADER_LENGTH)) == 1
                assert values(reply) == [2 * value] * 4 * rows
                assert reply.json.get("id") == id_
            assert failing.executed[value] <= rows
            assert reply.status != 200 or failing.executed[value] == rows

    async def one_of_grpc(channel: triton.InferenceServerClient) -> None:
        for _ in range(TURNS):
            value, rows = float(next(numbers)), dice.randrange(1, 5)
            given = triton.InferInput("x", [rows, 4], "FP32")
            given.set_data_from_numpy(np.full((rows, 4), value, "f4"))
            asked = channel.infer("m", [given], request_id=f"id-{value}")
            if dice.random() < 0.1:
                with suppress(TimeoutError, InferenceServerException):
                    await asyncio.wait_for(asked, dice.choice([0.001, 0.01]))
                continue
            try:
                result = await asked
            except InferenceServerException as error:
                assert "internal error" not in str(error)
                assert failing.executed[value] <= rows
                continue
            assert result.as_numpy("x").tolist() == [[2 * value] * 4] * rows
            assert result.get_response().id == f"id-{value}"
            assert failing.executed[value] == rows

    limits = "batch: {max_size: 12, max_delay: 10ms}\neject: {failures: 0}"
    async with lying(failing) as liar, running(liar.url, "grpc: 127.0.0.1:0\n", limits) as client:
        async with triton.InferenceServerClient(client.gateway.grpc_urls[0].partition("://")[2]) as channel:
            of_grpc = [one_of_grpc(channel) for _ in range(CLIENTS // 4)]
            await asyncio.gather(*(one_client() for _ in range(CLIENTS)), *of_grpc)
        gateway = client.gateway.gateway
        async with asyncio.timeout(20):
            while gateway.in_flight or gateway.serving.lanes:
                await asyncio.sleep(0.005)
        assert gateway.admission.reserved_bytes == 0
    assert max(failing.executed.values()) <= 4
    assert max(failing.rows) > 4, "nothing was batched"
    assert got[200] > CLIENTS
    assert set(got) <= {200, 400, 502, 503, 504}
