"""What an answer gives to its reader."""

import asyncio
import time

import pytest

from gateway.backend.asking import BackendRequest, Body
from gateway.backend.attempt import Answer
from gateway.errors import ErrorKind, GatewayError
from gateway.pacing import SLICE_S, Pacer
from tests.backend.endpoints import well
from tests.backend.sockets import upstream_to
from tests.system.scripted import Seen, counting

N_CHUNKS = 20


def work() -> None:
    """Use up a slice."""
    until = time.perf_counter() + 1.1 * SLICE_S
    while time.perf_counter() < until:
        pass


class Arrived:
    """An answer whose body is all there from the second look on: reading it takes long and never waits."""

    has_arrived = False
    unread_bytes = 0

    def __init__(self) -> None:
        self.left = N_CHUNKS

    def read_arrived(self) -> bytes:
        if not self.unread_bytes:
            self.unread_bytes = N_CHUNKS
            return b""
        work()
        self.left -= 1
        if self.left >= 0:
            return b"x"
        self.has_arrived, self.unread_bytes = True, 0
        return b""


async def test_others_run_while_an_answer_is_read_that_is_all_there(monkeypatch: pytest.MonkeyPatch) -> None:
    n_turns = 0

    async def others() -> None:
        nonlocal n_turns
        while True:
            n_turns += 1
            await asyncio.sleep(0)

    async def read(answer: Answer) -> bytes:
        monkeypatch.setattr(answer, "_arriving", Arrived())
        beside = asyncio.create_task(others())
        try:
            return b"".join([chunk async for chunk in answer.chunks_for_client()])
        finally:
            beside.cancel()

    async with counting(well) as backend:
        upstream = upstream_to(backend.url)
        assert await upstream.call(BackendRequest("GET", "/x", [], Body()), [], read) == b"x" * N_CHUNKS
        await upstream.close()
    assert n_turns >= N_CHUNKS


async def crowd() -> None:
    """One of many that have codec work to do without end."""
    pacer = Pacer()
    while True:
        work()
        await pacer.breathe()


async def test_a_client_that_takes_all_at_once_is_not_to_blame_where_the_gateway_was_busy() -> None:
    async def behave(seen: Seen) -> bool:
        await seen.peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nx")
        await asyncio.Event().wait()
        return False

    async def read(answer: Answer) -> None:
        async for chunk in answer.chunks_for_client():
            assert chunk == b"x"
            busy.extend(asyncio.create_task(crowd()) for _ in range(1000))
            await asyncio.sleep(0)
            work()

    busy: list[asyncio.Task[None]] = []
    async with counting(behave) as backend:
        upstream = upstream_to(backend.url, "timeouts: {total: 100ms}")
        try:
            with pytest.raises(GatewayError) as caught:
                await upstream.call(BackendRequest("GET", "/x", [], Body()), [], read)
        finally:
            for task in busy:
                task.cancel()
            await asyncio.gather(*busy, return_exceptions=True)
            await upstream.close()
    assert caught.value.kind is ErrorKind.TIMEOUT
