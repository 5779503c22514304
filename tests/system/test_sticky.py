"""Requests that belong together stay on one endpoint, as long as that lives (docs/configuration.md, "Routes")."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import orjson
import pytest

from gateway.config import parse
from gateway.process.application import Application
from tests.conftest import Client
from tests.system.scripted import CountingBackend, Seen, counting
from tests.system.test_routes import triton_infer

N_SEQUENCES = 30
"""So many that each of three endpoints gets some: it depends on the random ports, and fails once in 60,000 runs."""


@asynccontextmanager
async def endpoints(count: int, sticky: str) -> AsyncIterator[tuple[Client, list[CountingBackend], AsyncExitStack]]:
    """A gateway before one backend with *count* endpoints; closing the stack ends the first of them."""
    async with AsyncExitStack() as stack, AsyncExitStack() as first:
        backends = [await first.enter_async_context(counting())]
        backends += [await stack.enter_async_context(counting()) for _ in range(count - 1)]
        urls = [backend.url for backend in backends]
        text = "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nlogging: {access: none}\n"
        text += f"backends:\n  main: {{endpoints: {urls}, sticky: '{sticky}'}}\n"
        application = await Application.start(parse(text))
        stack.push_async_callback(application.stop)
        session = await stack.enter_async_context(aiohttp.ClientSession(auto_decompress=False))
        yield Client(session, application, application.listen_url, application.admin_url), backends, first


def sequence_of(seen: Seen) -> str:
    """The sequence of an inference as its endpoint has got it."""
    return str(orjson.loads(seen.body)["parameters"]["sequence_id"])


async def send_sequences(client: Client, *kinds: Any) -> None:
    """One inference of each sequence in each of *kinds*: binary or not, the id's type."""
    for number in range(1, N_SEQUENCES + 1):
        for binary, type_ in kinds:
            await asyncio.to_thread(
                triton_infer, client, "m", binary=binary, sequence_id=type_(number), request_id=str(number)
            )


@pytest.mark.rule("8.4")
async def test_a_sequence_stays_on_its_endpoint_however_it_is_written() -> None:
    async with endpoints(2, "sequence_id") as (client, backends, _):
        await send_sequences(client, (True, int), (False, int), (True, str), (False, str))
        first, second = ({sequence_of(seen) for seen in backend.seen} for backend in backends)
        assert first
        assert second
        assert not first & second
        assert sum(len(backend.seen) for backend in backends) == 4 * N_SEQUENCES


@pytest.mark.rule("8.4")
@pytest.mark.parametrize("form", ["GET", "POST"])
async def test_a_header_stays_on_its_endpoint(form: str) -> None:
    async with endpoints(2, "header:X-Session") as (client, backends, _):
        for number in range(80):
            path = f"/v2/models/m/any?id={number % 40}"
            assert (await client.request(form, path, headers={"X-Session": str(number % 40)})).status == 200
        first, second = ({seen.id for seen in backend.seen} for backend in backends)
        assert first
        assert second
        assert not first & second


async def test_an_empty_header_is_no_key() -> None:
    async with endpoints(2, "header:X-Session") as (client, backends, _):
        for number in range(8):
            path = f"/v2/models/m/any?id={number}"
            assert (await client.request("GET", path, headers={"X-Session": ""})).status == 200
        assert all(backend.seen for backend in backends)


async def test_only_the_sequences_of_an_endpoint_that_died_move() -> None:
    async with endpoints(3, "sequence_id") as (client, backends, first):
        await send_sequences(client, (True, int))
        homes = [{sequence_of(seen) for seen in backend.seen} for backend in backends]
        assert all(homes)
        await first.aclose()
        await send_sequences(client, (True, int), (False, str))
        now = [{sequence_of(seen) for seen in backend.seen} for backend in backends]
        assert now[0] == homes[0]
        assert now[1] >= homes[1]
        assert now[2] >= homes[2]
        assert now[1] | now[2] == {str(number) for number in range(1, N_SEQUENCES + 1)}
        assert not now[1] & now[2]
