"""Heads are bounded, counted, and not parsed before their time (docs/architecture.md, "Connections of clients").

A head has at most `limits.head` bytes and 128 fields. While a request of a connection is served, nothing behind it is
parsed, little of it is read, and what is held is counted.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import numpy as np
import pytest

from tests.conftest import running
from tests.system.gateway_process import GatewayProcess, gateway_process
from tests.system.scripted import Seen, Wire, counting, echo, head_of, infer_message, until, wire

KIB = 1024
MIB = 1024 * 1024

HEAD_BYTES = 64 * KIB
"""The default of `limits.head`."""

MAX_FIELDS = 128

REPLY_S = 20.0

CONFIGURATION = """
listen: 127.0.0.1:0
admin: 127.0.0.1:0
logging: {{access: none}}
backends: {{main: {{endpoints: ['{url}']}}}}
"""


def get(id_: str, fields: dict[str, str]) -> bytes:
    return head_of("GET", f"/v2/any?id={id_}", None, fields)


def sized(id_: str, count: int, head_bytes: int) -> bytes:
    """A request whose head has *count* fields and *head_bytes* in all."""
    names = [f"x-{number:03}" for number in range(count - 1)]  # beside Host
    empty = get(id_, dict.fromkeys(names, ""))
    each, rest = divmod(head_bytes - len(empty), len(names))
    head = get(id_, {name: "a" * (each + (rest if name == names[-1] else 0)) for name in names})
    assert len(head) == head_bytes
    assert head.count(b"\r\n") == count + 2
    return head


LARGE = sized("large", 124, 124 * 8000)
"""124 fields of nearly 8 KiB, which is what a line may have in aiohttp's parsers by default."""

TOO_LARGE = {
    "124 fields of 8000 bytes": LARGE,
    "124 fields, 70 KiB": sized("1", 124, 70 * KIB),
    "one field of 70 KiB": sized("1", 2, 70 * KIB),
    "a target of 70 KiB": head_of("GET", "/v2/any?id=1&x=" + "a" * 70 * KIB),
    "one byte too many": sized("1", 100, HEAD_BYTES + 1),
    "one field too many": sized("1", MAX_FIELDS + 1, 8 * KIB),
    "many short fields": sized("1", 6000, 60 * KIB),
}

ALLOWED = {
    "all fields": sized("1", MAX_FIELDS, 8 * KIB),
    "all bytes": sized("1", 100, HEAD_BYTES),
    "all bytes and all fields": sized("1", MAX_FIELDS, HEAD_BYTES),
    "one field of 40 KiB": sized("1", 2, 40 * KIB),
}


@pytest.mark.parametrize("kind", ALLOWED)
async def test_a_head_within_the_limits_is_served(kind: str) -> None:
    async with (
        counting(head_bytes=128 * KIB) as backend,
        running(backend.url) as client,
        wire(client.url) as connection,
    ):
        async with asyncio.timeout(REPLY_S):
            await connection.send(ALLOWED[kind])
            assert (await connection.reply()).status == 200
        assert backend.executed["1"] == 1


@pytest.mark.parametrize("kind", TOO_LARGE)
async def test_a_head_beyond_the_limits_gets_431_and_the_connection_closes(kind: str) -> None:
    """Also where it comes in small pieces, and the client sees 431 although it has sent up to 256 KiB first."""
    head = TOO_LARGE[kind][: 256 * KIB]
    async with counting(head_bytes=128 * KIB) as backend, running(backend.url) as client:
        for piece_bytes in (len(head), 1000):
            async with wire(client.url) as connection, asyncio.timeout(REPLY_S):
                for start in range(0, len(head), piece_bytes):
                    connection.writer.write(head[start : start + piece_bytes])
                    await asyncio.sleep(0)
                await assert_431_and_closed(connection)
        assert not backend.executed
        await until(client, "in_flight_bytes", 0)
        await until(client, "client_connections", 0)


async def assert_431_and_closed(connection: Wire) -> None:
    reply = await connection.reply()
    assert reply.status == 431
    assert reply.values("connection") == ["close"]
    assert "error" in json.loads(reply.body)
    assert await connection.reader.read() == b""


async def test_a_client_that_sends_all_of_256_kib_before_it_reads_sees_431() -> None:
    async with counting(head_bytes=128 * KIB) as backend, running(backend.url) as client:
        for _ in range(5):
            async with wire(client.url) as connection, asyncio.timeout(REPLY_S):
                connection.writer.write(LARGE[: 256 * KIB])
                while connection.writer.transport.get_write_buffer_size():
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.1)  # a reset would have come by now, and taken the reply with it
                await assert_431_and_closed(connection)


async def test_the_limit_of_a_head_can_be_set() -> None:
    async with counting(head_bytes=128 * KIB) as backend, running(backend.url, "limits: {head: 8KiB}\n") as client:
        for n_bytes, status in ((8 * KIB, 200), (8 * KIB + 1, 431)):
            async with wire(client.url) as connection, asyncio.timeout(REPLY_S):
                await connection.send(sized("1", 20, n_bytes))
                assert (await connection.reply()).status == status


# Behind a request under way

SLOW = {
    "get": get("slow", {}),
    "post": head_of("POST", "/v2/any?id=slow", 4) + b"1234",
    "inference": infer_message("slow", np.arange(4, dtype=np.float32), "FP32"),
}


class Gate:
    """A backend's behaviour: requests with id `slow` wait until it is opened."""

    def __init__(self) -> None:
        self.waiting = 0
        self.open = asyncio.Event()

    async def behave(self, seen: Seen) -> bool:
        if seen.id == "slow":
            self.waiting += 1
            await self.open.wait()
        return await echo(seen)

    async def wait_for(self, count: int) -> None:
        async with asyncio.timeout(REPLY_S):
            while self.waiting < count:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def behind_slow_ones(
    connections: int, pipelined: bytes, file: Path
) -> AsyncIterator[tuple[GatewayProcess, aiohttp.ClientSession, Gate, list[Wire], int]]:
    """A gateway that waits for the backend with a request of each of many connections, and *pipelined* behind each.

    With its resident memory when they waited, before *pipelined* was sent.
    """
    gate = Gate()
    async with AsyncExitStack() as stack:
        backend = await stack.enter_async_context(counting(gate.behave, head_bytes=128 * KIB))
        gateway = await stack.enter_async_context(gateway_process(CONFIGURATION.format(url=backend.url), file))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        async with wire(gateway.url) as first:  # so that all code is loaded
            await first.send(get("1", {}))
            assert (await first.reply()).status == 200
        wires = [await stack.enter_async_context(wire(gateway.url)) for _ in range(connections)]
        for connection in wires:
            await connection.send(SLOW["get"])
        await gate.wait_for(connections)
        await gateway.held(session)
        before = gateway.resident_bytes()
        for connection in wires:
            connection.writer.write(pipelined)
        await asyncio.sleep(1.0)  # what a gateway does not read now stays in the kernels' buffers
        try:
            yield gateway, session, gate, wires, before
        finally:
            gate.open.set()  # or the gateway would wait for the requests when it ends


@pytest.mark.parametrize("kind", ["too large", "within the limits"])
async def test_heads_behind_a_slow_request_take_little_memory_and_are_counted(kind: str, tmp_path: Path) -> None:
    connections = 20
    pipelined = LARGE * 4 if kind == "too large" else sized("2", 120, 60 * KIB) * 64
    async with behind_slow_ones(connections, pipelined, tmp_path / "gateway.yaml") as (
        gateway,
        session,
        gate,
        wires,
        before,
    ):
        held = await gateway.held(session)
        grown = gateway.resident_bytes() - before
        assert grown <= connections * MIB, f"{grown / connections / MIB:.1f} MiB a connection"
        # the heads of the requests that wait at least
        assert 0 < held["in_flight_bytes"] <= connections * MIB
        # what is not counted: what a connection's own objects take
        assert grown - held["in_flight_bytes"] <= connections * 256 * KIB

        # begun now: what asyncio has read is lost to those who begin to read after writing has failed
        replies = [asyncio.ensure_future(connection.reply()) for connection in wires]
        await asyncio.sleep(0)
        gate.open.set()
        for connection, reply in zip(wires, replies, strict=True):
            async with asyncio.timeout(REPLY_S):
                assert (await reply).status == 200
                if kind == "too large":
                    await assert_431_or_cut(connection)
                else:
                    assert (await connection.reply()).status == 200
            connection.reset()
        async with asyncio.timeout(REPLY_S):
            while any((held := await gateway.held(session)).values()):
                await asyncio.sleep(0.05)
        assert held["in_flight_bytes"] == 0


async def assert_431_or_cut(connection: Wire) -> None:
    """A client that sends more than 256 KiB of a head may lose the 431 to a reset, and gets nothing else."""
    try:
        await assert_431_and_closed(connection)
    except ConnectionError:
        pass
    except asyncio.IncompleteReadError as error:
        assert not error.partial


@pytest.mark.parametrize("slow", SLOW)
async def test_a_large_head_behind_a_slow_request_gets_its_own_431_after_its_reply(slow: str) -> None:
    gate = Gate()
    async with counting(gate.behave, head_bytes=128 * KIB) as backend, running(backend.url) as client:
        async with wire(client.url) as connection, asyncio.timeout(REPLY_S):
            connection.writer.write(SLOW[slow] + LARGE[: 256 * KIB])
            await gate.wait_for(1)
            gate.open.set()
            assert (await connection.reply()).status == 200
            await assert_431_and_closed(connection)
        assert backend.executed == {"slow": 1}


GARBAGE = {
    "no HTTP": b"\x00\x01garbage\r\n\r\n",
    "two lengths": b"POST /v2/any?id=2 HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n12",
    "a broken chunk": b"POST /v2/any?id=2 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "TLS": bytes.fromhex("16030100c8010000c40303") + b"\r\n\r\n",
}


@pytest.mark.parametrize("slow", SLOW)
@pytest.mark.parametrize("kind", GARBAGE)
@pytest.mark.parametrize("together", [True, False], ids=["in one write", "later"])
async def test_garbage_behind_a_slow_request_does_not_disturb_its_reply(kind: str, slow: str, together: bool) -> None:
    gate = Gate()
    async with counting(gate.behave, head_bytes=128 * KIB) as backend, running(backend.url) as client:
        async with wire(client.url) as connection, asyncio.timeout(REPLY_S):
            await connection.send(SLOW[slow] + (GARBAGE[kind] if together else b""))
            await gate.wait_for(1)
            if not together:
                await connection.send(GARBAGE[kind])
            await asyncio.sleep(0.05)  # a gateway that looked at it would have done so by now
            assert is_waiting(connection)
            samples = await client.metrics()
            assert not any(value for name, value in samples.items() if name.startswith("tensor_gateway_errors_total"))
            gate.open.set()
            first = await connection.reply()
            assert first.status == 200
            assert first.values("connection") != ["close"]
            second = await connection.reply()
            assert second.status == 400
            assert second.values("connection") == ["close"]
            assert await connection.reader.read() == b""
        assert backend.executed["slow"] == 1


def is_waiting(connection: Wire) -> bool:
    """Whether nothing has come and the connection is open."""
    return not connection.reader.at_eof() and not connection.reader._buffer  # type: ignore[attr-defined]
