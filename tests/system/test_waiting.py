"""Waiting and holding: what one client, or one backend, can take from the others.

See docs/configuration.md, "Connections and waiting".

Connections to backends and their queue, uploads that send nothing, answers that announce more than they send.
"""

import asyncio
import json
from typing import Any

import numpy as np
import pytest

from tests.conftest import HEADER_LENGTH, Client, running
from tests.system.scripted import (
    FORMS,
    Asked,
    Seen,
    Wire,
    ask,
    counting,
    echo,
    head_of,
    infer_header,
    many_connections,
    total,
    until,
    wire,
)

# Connections to a backend and their queue


class Gate:
    """A behaviour that answers nobody before it is opened."""

    def __init__(self) -> None:
        self.arrived = 0
        self.open = asyncio.Event()
        self.changed = asyncio.Event()

    async def __call__(self, seen: Seen) -> bool:
        self.arrived += 1
        self.changed.set()
        await self.open.wait()
        return await echo(seen)

    async def holds(self, count: int) -> None:
        """Wait until *count* requests have come."""
        while self.arrived < count:
            self.changed.clear()
            await self.changed.wait()


@pytest.mark.parametrize("form", FORMS)
async def test_without_a_queue_a_request_beyond_the_connections_is_refused_at_once(form: str) -> None:
    gate = Gate()
    queue = "max_connections: 2\nqueue: {length: 0, timeout: 5s}"
    async with counting(gate) as backend, running(backend.url, backend=queue) as client:
        held = [asyncio.create_task(ask(client, form, number)) for number in (1, 2)]
        await gate.holds(2)
        method = "GET" if form == "get" else "POST"
        refused = await client.request(method, "/v2/models/m/any?id=3", data=None if form == "get" else b"{}")
        assert refused.status == 503
        assert "max_connections" in refused.error
        assert int(refused.headers["Retry-After"]) > 0
        samples = await client.metrics()
        assert total(samples, "errors_total", reason="overloaded") == 1
        gate.open.set()
        assert all(asked.is_own for asked in await asyncio.gather(*held))
        assert "3" not in backend.executed
        assert (await ask(client, form, 4)).is_own


@pytest.mark.parametrize("form", FORMS)
async def test_with_a_queue_a_request_waits_for_a_connection_and_is_served(form: str) -> None:
    gate = Gate()
    queue = "max_connections: 2\nqueue: {length: 4, timeout: 30s}"
    async with counting(gate) as backend, running(backend.url, backend=queue) as client:
        asked = [asyncio.create_task(ask(client, form, number)) for number in range(1, 7)]
        await until(client, "requests_in_flight", 6)
        await gate.holds(2)
        await client.metrics()  # the others have had their chance to come too
        assert gate.arrived == 2
        gate.open.set()
        assert all(one.is_own for one in await asyncio.gather(*asked))
        assert backend.executed == {str(number): 1 for number in range(1, 7)}
        assert len(backend.peers) == 2
        samples = await client.metrics()
        assert total(samples, "upstream_queue_seconds_count", backend="main") >= 4
        assert total(samples, "upstream_queue_seconds_sum", backend="main") > 0


async def test_a_full_queue_refuses_the_next() -> None:
    gate = Gate()
    queue = "max_connections: 1\nqueue: {length: 2, timeout: 30s}"
    async with counting(gate) as backend, running(backend.url, backend=queue) as client:
        asked = [asyncio.create_task(ask(client, "binary", number)) for number in (1, 2, 3)]
        await until(client, "requests_in_flight", 3)
        await gate.holds(1)
        refused = await ask(client, "binary", 4)
        assert refused.status == 503
        gate.open.set()
        assert all(one.is_own for one in await asyncio.gather(*asked))


async def test_a_wait_beyond_the_queues_timeout_is_an_overload_not_the_backends_timeout() -> None:
    gate = Gate()
    queue = "max_connections: 1\nqueue: {length: 5, timeout: 100ms}"
    async with counting(gate) as backend, running(backend.url, backend=queue) as client:
        held = asyncio.create_task(ask(client, "binary", 1))
        await gate.holds(1)
        waited = await client.request("POST", "/v2/models/m/any?id=2", data=b"{}")
        assert waited.status == 503
        assert "queue.timeout" in waited.error
        assert "Retry-After" in waited.headers
        samples = await client.metrics()
        assert total(samples, "errors_total", reason="overloaded") == 1
        assert total(samples, "errors_total", reason="timeout") == 0
        gate.open.set()
        assert (await held).is_own
        assert backend.executed == {"1": 1}


async def test_a_client_that_leaves_the_queue_leaves_its_place() -> None:
    gate = Gate()
    queue = "max_connections: 1\nqueue: {length: 1, timeout: 30s}"
    async with counting(gate) as backend, running(backend.url, backend=queue) as client:
        held = asyncio.create_task(ask(client, "binary", 1))
        await gate.holds(1)
        async with wire(client.url) as leaving:
            await leaving.send(head_of("GET", "/any?id=2"))
            await until(client, "requests_in_flight", 2)
            leaving.reset()
            await until(client, "requests_in_flight", 1)
        waiting = asyncio.create_task(ask(client, "binary", 3))
        await until(client, "requests_in_flight", 2)
        gate.open.set()
        assert (await held).is_own
        assert (await waiting).is_own
        assert backend.executed == {"1": 1, "3": 1}


async def test_250_requests_are_with_the_backend_at_once_by_default() -> None:
    gate = Gate()
    async with counting(gate) as backend, running(backend.url) as client:
        async with many_connections(client) as many:
            asked = [asyncio.create_task(ask(many, FORMS[number % 4], number)) for number in range(1, 251)]
            answered: asyncio.Future[list[Asked]] = asyncio.gather(*asked)
            all_there = asyncio.create_task(gate.holds(250))
            waited: set[asyncio.Future[Any]] = {answered, all_there}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            assert all_there.done(), f"only {gate.arrived} requests came"
            gate.open.set()
            assert all(one.is_own for one in await answered)


async def test_connections_to_a_backend_are_shown() -> None:
    gate = Gate()
    async with counting(gate) as backend, running(backend.url) as client:
        labels = {"backend": "main", "endpoint": backend.url}
        samples = await client.metrics()
        for state in ("busy", "idle"):
            name = f'tensor_gateway_upstream_connections{{backend="main",endpoint="{backend.url}",state="{state}"}}'
            assert samples[name] == 0
        asked = [asyncio.create_task(ask(client, "binary", number)) for number in (1, 2, 3)]
        await gate.holds(3)
        samples = await client.metrics()
        assert total(samples, "upstream_connections", state="busy", **labels) == 3
        assert total(samples, "upstream_connections", state="idle", **labels) == 0
        gate.open.set()
        await asyncio.gather(*asked)
        samples = await until(client, "upstream_connections", 0, state="busy", **labels)
        assert total(samples, "upstream_connections", state="idle", **labels) == 3


# Uploads that send nothing

UPLOADS = 100


async def half_sent(client: Client, wires: list[Wire], head: bytes, start: bytes) -> None:
    """Begin as many uploads as `UPLOADS`, each on a connection of its own, and wait until the gateway has them."""
    for sender in wires:
        await sender.send(head + start)
    await until(client, "requests_in_flight", UPLOADS)


@pytest.mark.parametrize("kind", ["relay", "relay of a model's path", "inference", "JSON inference", "chunked relay"])
async def test_uploads_that_stop_after_a_byte_hold_no_connection_to_the_backend(kind: str) -> None:
    text = json.dumps(infer_header(np.zeros(250_000, np.float32), "FP32")).encode()
    length = 1_000_000 + len(text)
    head, start = {
        "relay": (head_of("POST", "/v2/repository/index", 1_000_000), b"{"),
        "relay of a model's path": (head_of("PUT", "/v2/models/m/config", 1_000_000), b"{"),
        "inference": (head_of("POST", "/v2/models/m/infer", length, {HEADER_LENGTH: len(text)}), text),
        "JSON inference": (head_of("POST", "/v2/models/m/infer", 1_000_000), b"{"),
        "chunked relay": (head_of("POST", "/any", None, {"Transfer-Encoding": "chunked"}), b"1\r\n{\r\n"),
    }[kind]
    async with counting() as backend, running(backend.url, backend="max_connections: 4") as client:
        async with many_wires(client.url, UPLOADS) as wires:
            await half_sent(client, wires, head, start)
            for number, form in enumerate(FORMS):
                assert (await ask(client, form, number)).is_own
            assert len(backend.peers) == 1
            assert len(backend.seen) == len(FORMS)
        await until(client, "requests_in_flight", 0)


class many_wires:  # noqa: N801  reads as a verb: async with many_wires(...)
    """So many connections to a URL at once."""

    def __init__(self, url: str, count: int) -> None:
        self._contexts = [wire(url) for _ in range(count)]

    async def __aenter__(self) -> list[Wire]:
        return [await context.__aenter__() for context in self._contexts]

    async def __aexit__(self, *error: object) -> None:
        for context in self._contexts:
            await context.__aexit__(None, None, None)


async def test_an_upload_of_more_than_64_kib_reaches_the_backend_while_it_is_sent() -> None:
    """Nothing waits for the end of a large upload: a backend that reads slowly is felt by its client."""
    begun = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(64 * 1024)
        begun.set()
        await reader.readexactly(1_000_000 - 64 * 1024)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, running(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as client:
        async with wire(client.url) as sender:
            await sender.send(head_of("POST", "/any", 1_000_000) + bytes(200_000))
            await begun.wait()
            await sender.send(bytes(800_000))
            assert (await sender.reply()).body == b"ok"


# Answers that announce more than they send

LARGE_LIMITS = "limits: {request_body: 1MiB, response_body: 64GiB, in_flight_bytes: 512MiB}\n"


@pytest.mark.parametrize("elements", [2**28, 2**30])
@pytest.mark.parametrize("datatype", ["FP32", "INT8", "BYTES"])
async def test_an_announced_shape_takes_nothing_from_others(elements: int, datatype: str) -> None:
    stalled = asyncio.Event()

    async def behave(seen: Seen) -> bool:
        if seen.id != "1":
            return await echo(seen)
        element = '"a",' if datatype == "BYTES" else "1,"
        text = f'{{"outputs":[{{"name":"x","datatype":"{datatype}","shape":[{elements}],"data":[' + element * 50_000
        await seen.peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await seen.peer.send(b"%x\r\n%b\r\n" % (len(text), text.encode()))
        stalled.set()
        await seen.peer.reader.read()
        return False

    async with counting(behave) as backend, running(backend.url, LARGE_LIMITS) as client:
        victim = asyncio.create_task(ask(client, "binary", 1))
        try:
            await stalled.wait()
            for number in range(2, 12):
                asked = await ask(client, FORMS[number % 4], number)
                assert asked.is_own, asked
            assert not victim.done()
            assert total(await client.metrics(), "in_flight_bytes") < 8 * 2**20
        finally:
            victim.cancel()
            await asyncio.wait({victim})
        await until(client, "requests_in_flight", 0)
        await until(client, "upstream_connections", 0, state="busy")
        assert total(await client.metrics(), "in_flight_bytes") == 0
