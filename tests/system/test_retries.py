"""Endpoints that fail behind a running gateway: what its clients get, what was executed, and what is counted."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import orjson
import pytest

from tests.backend.endpoints import closing, cutting, nobody
from tests.conftest import Client, Reply, running, tensor
from tests.system.scripted import (
    FORMS,
    Behaviour,
    CountingBackend,
    Seen,
    ask,
    counting,
    echo,
    total,
    until,
)

RESEND = "retry: {resend_after_sent: true}"


@asynccontextmanager
async def gateway_between(
    bad: Behaviour, settings: str = "", good: Behaviour = echo
) -> AsyncIterator[tuple[Client, CountingBackend, CountingBackend]]:
    """A gateway whose first attempt goes to the endpoint that behaves as *bad*, and whose next to one that is well."""
    async with counting(bad) as failing, counting(good) as well:
        # turns are counted from 1, and what follows replaces the only endpoint that `running` has written
        more = f"balance: round_robin\n{settings}"
        async with running(f"{well.url}', '{failing.url}", backend=more) as client:
            yield client, failing, well


async def cutting_json(seen: Seen) -> bool:
    """Send the head and the first half of the right answer, and close."""
    body = seen.echo()
    await seen.peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body[: len(body) // 2])
    return False


async def lying(seen: Seen) -> bool:
    """Send a whole answer whose JSON is not what was asked for."""
    await seen.answer(
        b'{"model_name": "m", "outputs": [{"name": "x", "datatype": "INT64", "shape": [2], "data": [1, }]}'
    )
    return True


@pytest.mark.parametrize("bad", [closing, cutting_json, lying])
async def test_an_inference_whose_answer_breaks_is_made_again_by_another_endpoint_where_that_is_allowed(
    bad: Behaviour,
) -> None:
    async with gateway_between(bad, RESEND) as (client, failing, well):
        asked = await ask(client, "binary", 7)
        assert (asked.status, asked.is_own) == (200, True)
        assert (failing.executed, well.executed) == ({"7": 1}, {"7": 1})
        samples = await client.metrics()
        reason = "malformed_response" if bad is lying else "upstream_closed"
        assert total(samples, "retries_total") == total(samples, "retries_total", reason=reason) == 1
        assert total(samples, "errors_total") == 0
        assert total(samples, "in_flight_bytes") == 0


@pytest.mark.parametrize("bad", [closing, cutting_json, lying])
async def test_without_leave_nothing_is_executed_twice(bad: Behaviour) -> None:
    async with gateway_between(bad) as (client, failing, well):
        asked = await ask(client, "binary", 7)
        assert (asked.status, asked.is_own) == (502, False)
        assert (failing.executed, well.executed) == ({"7": 1}, {})
        assert total(await client.metrics(), "retries_total") == 0


@pytest.mark.parametrize("form", [form for form in FORMS if form != "binary"])
async def test_a_reply_that_has_begun_is_not_begun_again(form: str) -> None:
    """What is passed on as it streams has reached the client when it breaks: it is cut off, and nothing is repeated."""
    async with gateway_between(cutting, RESEND) as (client, failing, well):
        with pytest.raises(Exception, match=r"payload|closed|reset|Connection"):
            await ask(client, form, 7)
        assert (failing.executed, well.executed) == ({"7": 1}, {})
        await until(client, "errors_total", 1, reason="upstream_closed")


@pytest.mark.parametrize("form", FORMS)
async def test_a_dead_endpoint_costs_no_client_an_error_from_the_first_request(form: str) -> None:
    with nobody() as dead:
        async with counting(echo) as well, running(f"{dead}', '{well.url}") as client:
            for number in range(30):
                asked = await ask(client, form, number)
                assert (asked.status, asked.is_own) == (200, True)
            assert well.executed == {str(number): 1 for number in range(30)}
            samples = await client.metrics()
            assert total(samples, "upstream_requests_total", endpoint=dead) == 5
            assert total(samples, "retries_total", reason="unreachable") == 5
            assert total(samples, "upstream_request_bytes_sum") == sum(len(seen.body) for seen in well.seen)
            assert total(samples, "errors_total") == 0


async def test_a_large_tensor_is_encoded_again_exactly() -> None:
    array = np.random.default_rng(7).standard_normal(2 * 1024 * 1024).astype(np.float32)

    async def echo_numbers(seen: Seen) -> bool:
        given = orjson.loads(seen.body)["inputs"][0]
        await seen.answer(orjson.dumps({"model_name": "m", "outputs": [given]}))
        return True

    async with gateway_between(closing, RESEND, echo_numbers) as (client, failing, well):
        header = {"inputs": [tensor("x", array, "FP32")], "parameters": {"binary_data_output": True}}
        reply: Reply = await client.infer_binary(header, array.tobytes())
        assert reply.status == 200
        assert reply.binary == array.tobytes()
        assert failing.seen[0].body == well.seen[0].body
        samples = await client.metrics()
        # each attempt counts what it has sent
        assert total(samples, "upstream_request_bytes_sum") == 2 * len(well.seen[0].body)
        assert total(samples, "upstream_request_bytes_count") == 2


async def test_a_relayed_upload_goes_to_another_endpoint_as_long_as_nothing_of_it_was_taken() -> None:
    body = np.random.default_rng(8).bytes(1_000_000)

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 50_000):
            yield body[start : start + 50_000]
            await asyncio.sleep(0)

    with nobody() as dead:
        async with counting(echo) as well:
            async with running(f"{well.url}', '{dead}", backend="balance: round_robin") as client:
                reply = await client.request("POST", "/upload?id=1", data=pieces())
                assert reply.status == 200
                assert well.seen[0].body == body
                assert total(await client.metrics(), "retries_total", reason="unreachable") == 1


async def test_metadata_is_asked_of_another_endpoint_too() -> None:
    async def describe(seen: Seen) -> bool:
        if seen.method == "GET":
            await seen.answer(
                b'{"name": "m", "inputs": [{"name": "x", "datatype": "INT64", "shape": [-1]}], "outputs": []}'
            )
            return True
        return await echo(seen)

    with nobody() as dead:
        async with counting(describe) as well:
            async with running(f"{well.url}', '{dead}", backend="balance: round_robin\neject: {failures: 0}") as client:
                array = np.array([1, 2, 3], np.int64)
                reply = await client.infer(array.tobytes(), 0, model="m")
                assert reply.status == 200
                assert well.executed == {"": 2}
