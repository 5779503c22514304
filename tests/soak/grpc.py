"""Clients of gRPC: calls and streams, some cancelled, some with short deadlines; and one that breaks HTTP/2.

The plan's id stands in the model's version, which is in the path that endpoints get.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import grpc
import tritonclient.grpc.aio as triton
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import InferenceServerException

from tests.grpc import frames
from tests.soak.client import REPLY_S, choose, plans
from tests.soak.journal import Journal, Plan

WAYS = {"call": 50, "stream": 10, "cancels": 10, "short deadline": 10}
"""What a client does, and how often beside the others."""

STREAMED = (2, 12)
"""How many messages a stream has."""

STREAMED_ELEMENTS = 5000
"""The most of one message of a stream: many large ones at once are a peak of memory that most runs see late."""

ATTACKS = ("resets", "pings", "cut message", "settings", "any bytes")

ATTACK_S = 20.0
"""When a connection that was attacked must have an end."""

STATUSES = {"UNAVAILABLE": 503, "INTERNAL": 500, "DEADLINE_EXCEEDED": 504, "RESOURCE_EXHAUSTED": 429}
"""HTTP's statuses by gRPC's; others are 400."""


class GrpcClient:
    """One client after the other, each with a channel."""

    def __init__(
        self, address: str, journal: Journal, seed: str, ids: Iterator[int], credentials: grpc.ChannelCredentials | None
    ) -> None:
        self._address = address
        self._credentials = credentials
        self._journal = journal
        self._dice = random.Random(seed)
        self._plans = plans(journal, self._dice, ids)

    async def run(self, goes_on: Callable[[], bool]) -> None:
        """Use channels one after the other while *goes_on*."""
        while goes_on():
            options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
            async with triton.InferenceServerClient(
                self._address, ssl=self._credentials is not None, creds=self._credentials, channel_args=options
            ) as client:
                for _ in range(self._dice.randrange(1, 8)):
                    way = choose(self._dice, WAYS)
                    self._journal.clients[f"gRPC: {way}"] += 1
                    try:
                        async with asyncio.timeout(REPLY_S):
                            await (self._stream(client) if way == "stream" else self._call(client, way))
                    except TimeoutError:
                        self._journal.violated(f"a client waited longer than {REPLY_S:g} s", f"gRPC: {way}")

    def _plan(self) -> Plan:
        plan = next(self._plans)
        plan.kind = "binary"
        return plan

    async def _call(self, client: triton.InferenceServerClient, way: str) -> None:
        plan = self._plan()
        timeout_s = self._dice.choice([0.01, 0.1, 1.0]) if way == "short deadline" else None
        call = asyncio.ensure_future(client.infer(**_asked(plan), client_timeout=timeout_s))
        if way == "cancels":
            await asyncio.wait((call,), timeout=self._dice.choice([0, 0.001, 0.01, 0.1]))
            call.cancel()
        try:
            answer = (await call).get_response()
        except asyncio.CancelledError:
            if way != "cancels":
                raise
        except InferenceServerException as error:
            self._failed(plan, error, is_late=timeout_s is not None)
        else:
            self._came(plan, answer)
        self._journal.forget(plan)

    async def _stream(self, client: triton.InferenceServerClient) -> None:
        sent = [self._plan() for _ in range(self._dice.randrange(*STREAMED))]
        for plan in sent:
            plan.elements = min(plan.elements, STREAMED_ELEMENTS)

        async def requests() -> AsyncIterator[dict[str, Any]]:
            for plan in sent:
                yield _asked(plan)
                await asyncio.sleep(self._dice.choice([0, 0, 0.001, 0.02]))

        answered = 0
        try:
            async for result, error in client.stream_infer(requests()):
                if error is not None:
                    self._failed(sent[answered], error, is_late=False)
                else:
                    self._came(sent[answered], result.get_response())
                answered += 1
        except InferenceServerException as error:
            self._journal.violated("a stream of gRPC was cut off", f"after {answered} of {len(sent)}: {error}")
        else:
            if answered != len(sent):
                self._journal.violated("a stream of gRPC was cut off", f"after {answered} of {len(sent)}")
        for plan in sent:
            self._journal.forget(plan)

    def _came(self, plan: Plan, answer: pb.ModelInferResponse) -> None:
        text = answer.id.encode()
        self._journal.judge(plan, 200, text + b"".join(answer.raw_output_contents), len(text))

    def _failed(self, plan: Plan, error: InferenceServerException, *, is_late: bool) -> None:
        status = STATUSES.get(str(error.status()).removeprefix("StatusCode."), 400)
        if not is_late:
            self._journal.judge(plan, status, str(error.message()).encode(), None)


def _asked(plan: Plan) -> dict[str, Any]:
    tensor = triton.InferInput("x", [plan.elements], "INT64")
    tensor.set_data_from_numpy(plan.array())
    return {"model_name": "m", "model_version": str(plan.id), "request_id": plan.mark, "inputs": [tensor]}


class HostileGrpcClient:
    """One attack after the other; each connection has an end, or is answered."""

    def __init__(self, address: str, journal: Journal, seed: str) -> None:
        self._address = address
        self._journal = journal
        self._dice = random.Random(seed)

    async def run(self, goes_on: Callable[[], bool]) -> None:
        """Attack in one way after the other while *goes_on*."""
        while goes_on():
            way = self._dice.choice(ATTACKS)
            try:
                async with asyncio.timeout(ATTACK_S), frames.connected(self._address) as raw:
                    await raw.send(self._attack(way))
                    ending = str(await raw.status(1)) if way == "cut message" else f"GOAWAY {await raw.goaway()}"
            except (ConnectionError, AssertionError) as error:
                ending = type(error).__name__
            except TimeoutError:
                ending = "kept"
                self._journal.violated("a connection that broke HTTP/2 was kept", way)
            self._journal.attacks[f"gRPC, {way}: {ending[:60]}"] += 1
            await asyncio.sleep(self._dice.random())

    def _attack(self, way: str) -> bytes:
        match way:
            case "resets":
                reset = (8).to_bytes(4)
                pairs = (
                    frames.fields(number) + frames.frame(frames.RST_STREAM, number, reset)
                    for number in range(1, 1001, 2)
                )
                return b"".join(pairs)
            case "pings":
                return frames.frame(frames.PING, 0, bytes(8)) * 1000
            case "settings":
                return frames.frame(frames.SETTINGS) * 1000
            case "cut message":
                cut = frames.message(bytes(100))[: self._dice.randrange(1, 100)]
                return frames.fields(1) + frames.frame(frames.DATA, 1, cut, frames.END_STREAM)
            case _:
                return self._dice.randbytes(self._dice.randrange(9, 2000)) + b"\xff" * 100
