"""Connections of clients: how many, and what happens beyond."""

import asyncio
import json
import resource
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.client.listeners import ACCEPT_PAUSE_S, ClientListener
from gateway.client.request import ClientRequest
from gateway.client.server import Server
from gateway.config import Address
from gateway.exchange import Exchange
from tests.client.raw import RawConnection, connect, echo, replying, serving

GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
SILENT = 310


async def test_beyond_the_limit_a_new_connection_is_closed_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(echo, max_connections=2) as running:
        async with connect(running.url) as first, connect(running.url) as second:
            assert (await first.exchange(GET)).status == (await second.exchange(GET)).status == 200
            for _ in range(3):
                async with connect(running.url) as refused:
                    assert await refused.is_closed()
            assert (running.server.open_connections, running.server.refused_connections) == (2, 3)
            assert (await first.exchange(GET)).status == 200
        while running.server.open_connections:
            await asyncio.sleep(0)
        async with connect(running.url) as third:
            assert (await third.exchange(GET)).status == 200
    assert running.server.open_connections == 0
    assert [record.getMessage() for record in caplog.records] == [
        "limits.connections (2) is reached: new connections are closed, 1 so far"
    ]


async def test_a_connection_that_waits_in_the_kernel_is_still_served_when_accepting_stops() -> None:
    replied: list[str] = []

    async def handle(request: ClientRequest) -> None:
        exchange = Exchange(request.peer, request.method, request.path, "1", 0.0)
        replied.append(request.path)
        await replying(request, exchange).whole(200, [], (b"",))

    server = Server(handle)
    listener = ClientListener(server)
    host, port = (await listener.open(Address("127.0.0.1:0"))).removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as client:  # blocks the event loop: nothing is accepted meanwhile
        client.sendall(GET)
        assert server.open_connections == 0
        listener.stop_accepting()
        assert server.open_connections == 1
        while not replied:
            await asyncio.sleep(0)
    listener.stop_accepting()
    await server.close()


@pytest.mark.parametrize("is_stopped", [False, True])
async def test_without_descriptors_accepting_pauses_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_stopped: bool
) -> None:
    async def handle(request: ClientRequest) -> None:
        exchange = Exchange(request.peer, request.method, request.path, "1", 0.0)
        await replying(request, exchange).whole(200, [], (b"",))

    monkeypatch.setattr("gateway.client.listeners.ACCEPT_PAUSE_S", 0.001)
    server = Server(handle)
    listener = ClientListener(server)
    host, port = (await listener.open(Address("127.0.0.1:0"))).removeprefix("http://").split(":")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    loop = asyncio.get_running_loop()
    with socket.create_connection((host, int(port))) as client:  # blocks the event loop: nothing is accepted meanwhile
        client.sendall(GET)
        client.setblocking(False)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            while not caplog.records:
                await asyncio.sleep(0)
            if is_stopped:
                listener.stop_accepting()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if is_stopped:
            with pytest.raises(ConnectionResetError):
                await loop.sock_recv(client, 1000)
        else:
            assert (await loop.sock_recv(client, 1000)).startswith(b"HTTP/1.1 200 OK")
    listener.stop_accepting()
    await server.close()
    assert len(caplog.records) == 1
    assert "no connection can be accepted" in caplog.text


async def test_an_address_in_use_is_an_error_that_names_it() -> None:
    async with serving(echo) as running:
        address = Address(running.url.removeprefix("http://"))
        with pytest.raises(OSError, match=f"cannot listen on {address}"):
            await ClientListener(running.server).open(address)


@dataclass
class Crowded:
    """The program with few descriptors."""

    url: str
    admin: str
    process: asyncio.subprocess.Process

    async def end(self) -> tuple[dict[str, Any], list[str]]:
        """What it has counted, and the lines of its log."""
        output, log = await self.process.communicate(b"")
        return json.loads(output), log.decode().splitlines()


@asynccontextmanager
async def crowded(max_connections: int) -> AsyncIterator[tuple[Crowded, list[RawConnection]]]:
    """The program, and connections to it that say nothing, more than it has descriptors."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.client.crowded", str(max_connections)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert process.stdout is not None
        url, admin = json.loads(await process.stdout.readline())
        program = Crowded(url, admin, process)
        async with AsyncExitStack() as stack:
            yield program, [await stack.enter_async_context(connect(program.url)) for _ in range(SILENT)]
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_with_fewer_descriptors_than_silent_clients_the_admin_listener_and_earlier_clients_are_served() -> None:
    async with crowded(200) as (program, silent):
        for late in silent[200:]:
            assert await late.is_closed()
        async with connect(program.admin) as operator:
            assert (await operator.exchange(GET.replace(b"/a", b"/-/live"))).status == 200
        assert (await silent[0].exchange(GET)).body == b"served"  # and closed, which makes room
        assert await silent[0].is_closed()
        async with connect(program.url) as client:
            assert (await client.exchange(GET)).body == b"served"
        counted, log = await program.end()
    assert counted["refused"] == SILENT - 200
    assert counted["pauses"] == 0
    assert log == ["limits.connections (200) is reached: new connections are closed, 1 so far"]


@pytest.mark.alone
async def test_out_of_descriptors_is_one_line_and_no_busy_loop_and_ends_when_clients_leave() -> None:
    async with crowded(10_000) as (program, silent):
        async with connect(program.url) as late:
            late.writer.write(GET)
            for early in silent[:50]:
                assert (await early.exchange(GET)).body == b"served"
            assert (await late.read_reply()).body == b"served"
        counted, log = await program.end()
    assert counted["refused"] == 0
    assert 1 <= counted["pauses"] <= counted["seconds"] / ACCEPT_PAUSE_S + 1
    assert log == [
        "no connection can be accepted: Too many open files; raise the limit of open files (ulimit -n) or lower "
        "limits.connections"
    ]


async def test_a_listener_that_was_never_opened_can_be_closed() -> None:
    async def handle(request: object) -> None:
        raise AssertionError

    ClientListener(Server(handle)).stop_accepting()
