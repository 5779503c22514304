"""Two endpoints, one of which fails: what clients of a real gateway feel of it.

`python -m tests.failures` measures more scenarios for longer, and prints a table.
"""

import asyncio
import itertools
from collections import Counter
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import aiohttp
import numpy as np
import pytest

from gateway.demo import JsonServer
from tests.conftest import Connection, lying, running, tensor
from tests.failures.endpoint import Fault
from tests.failures.load import Outcome
from tests.failures.scenarios import IN_CI, TABLE_HEAD, Result, Scenario, measure
from tests.system.gateway_process import gateway_process
from tests.system.scripted import Peer, Seen

AT_ONCE = 4
"""Scenarios are mostly waiting: so many run beside each other."""

BATCHES = [IN_CI[start : start + AT_ONCE] for start in range(0, len(IN_CI), AT_ONCE)]


@pytest.mark.alone
@pytest.mark.parametrize("batch", BATCHES, ids=lambda batch: "; ".join(scenario.name for scenario in batch))
async def test_clients_hardly_feel_an_endpoint_that_fails(batch: list[Scenario], tmp_path: Path) -> None:
    async def measured(scenario: Scenario, number: int) -> Result:
        folder = tmp_path / str(number)
        folder.mkdir()
        return await measure(scenario, folder, rate=60.0, known_s=4.0)

    results = await asyncio.gather(*map(measured, batch, itertools.count()))
    print("\n".join([TABLE_HEAD, *(result.row() for result in results)]))
    assert [f"{result.scenario.name}: {problem}" for result in results for problem in result.problems()] == []


async def test_a_get_whose_connections_die_is_not_executed_more_than_twice(tmp_path: Path) -> None:
    """Each endpoint drops a connection whose second request it has read, and refuses others from then on."""
    executed: Counter[str] = Counter()

    async def endpoint(stack: AsyncExitStack) -> str:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            peer = Peer(reader, writer)
            first = Seen(peer, await peer.read_head(), b"")
            executed[first.id] += 1
            await first.answer(b"{}")
            with suppress(asyncio.IncompleteReadError):  # no second request has come
                executed[Seen(peer, await peer.read_head(), b"").id] += 1
            server.close()
            writer.close()

        server = await stack.enter_async_context(await asyncio.start_server(serve, "127.0.0.1", 0))
        return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async with AsyncExitStack() as stack:
        urls = [await endpoint(stack) for _ in range(3)]
        configuration = (
            "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nlogging: {access: none}\n"
            f"backends: {{main: {{endpoints: {urls}, balance: round_robin, retry: {{attempts: 3}}}}}}\n"
        )
        gateway = await stack.enter_async_context(gateway_process(configuration, tmp_path / "gateway.yaml"))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        # the first so that there is a connection to each
        for path in ["/any"] * len(urls) + ["/any?id=7"]:
            async with session.get(f"{gateway.url}{path}") as reply:
                assert (reply.status, await reply.read()) == (200, b"{}")
    assert executed["7"] == 2  # over the connection that died, and at another endpoint over a new one


async def test_a_backend_whose_answer_comes_for_longer_than_total_is_blamed_for_it() -> None:
    """It is the gateway that is busy when the time is over, and no client keeps anybody waiting."""

    async def flood(connection: Connection) -> None:
        await connection.read_request()
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000000000\r\n\r\n"
        start = b'{"model_name":"m","outputs":[{"name":"x","datatype":"INT64","shape":[100000000],"data":['
        await connection.send(head + start)
        while True:
            await connection.send(b"12345," * 20_000)

    array = np.arange(4, dtype=np.int64)
    header = {"inputs": [tensor("x", array, "INT64")], "parameters": {"binary_data_output": True}}
    async with lying(flood) as liar, running(liar.url, backend="timeouts: {total: 300ms}") as client:
        replies = [await client.infer_binary(header, array.tobytes()) for _ in range(5)]
    assert [(reply.status, "timeouts.total" in reply.error) for reply in replies] == [(504, True)] * 5


async def test_making_json_to_learn_its_length_counts_in_the_time_of_the_request(server: JsonServer) -> None:
    array = np.full(3_000_000, 0.1, np.float32)  # a tenth of a second's work, and more
    header = {"inputs": [tensor("x", array, "FP32")], "parameters": {"binary_data_output": True}}
    backend = "framing: content-length\ntimeouts: {total: 30ms}"
    async with running(server.url, backend=backend) as client:
        reply = await client.infer_binary(header, array.tobytes())
    assert (reply.status, "timeouts.total" in reply.error, server.inferences) == (504, True, 0)


def outcome(what: str, seconds: float = 0.1) -> Outcome:
    return Outcome(1, 0.0, seconds, what)


def result_of(
    fault: Fault = Fault.KILLED,
    *,
    broken: list[Outcome] | None = None,
    known: list[Outcome] | None = None,
    back: list[Outcome] | None = None,
    found_s: float | None = 1.0,
    back_s: float | None = 1.0,
    wrong: list[Outcome] | None = None,
    twice: list[str] | None = None,
    longest_s: float = 3.5,
) -> Result:
    return Result(
        Scenario(fault),
        9,
        broken or [],
        known or [],
        back or [],
        found_s,
        back_s,
        wrong or [],
        twice or [],
        longest_s,
        0,
        "",
    )


MANY = [outcome("ok")] * 200


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (result_of(broken=[*MANY, outcome("503")], known=MANY, back=MANY), ""),
        (result_of(broken=[outcome("503"), *MANY[:50]]), "98.0% succeeded from the first request on"),
        (result_of(Fault.HANGS, broken=[outcome("504")]), ""),
        (result_of(Fault.HANGS, known=[outcome("504"), *MANY[:50]]), "succeeded after it was known"),
        (result_of(Fault.HANGS, back=[outcome("504"), *MANY[:50]]), "succeeded after the endpoint was back"),
        (result_of(found_s=None), "no line in the log"),
        (result_of(back_s=None), "is not back"),
        (result_of(wrong=[outcome("wrong")]), "wrong replies"),
        (result_of(twice=["7"]), "executed twice"),
        (result_of(longest_s=4.1), "a client waited 4.10 s"),
        (result_of(Fault.ERRS, broken=[outcome("500")], found_s=None, back_s=None), ""),
    ],
)
def test_the_judge_sees_what_was_not_promised(result: Result, words: str) -> None:
    problems = result.problems()
    assert len(problems) == (1 if words else 0)
    assert words in "".join(problems)
