"""Kept connections that end just when they are used again: which requests are sent once more, and which are not.

The backend's sockets belong to the test, which does to them what a real backend does in the very moment between the
last look at a connection and the first byte of the next request. field-notes: what the kernel knows of a request.
"""

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from gateway.backend.asking import Body
from gateway.backend.upstream import Upstream
from gateway.backend.wire import Wire
from gateway.backend.witness import Witness
from gateway.errors import ErrorKind, GatewayError
from gateway.sockets import ESTABLISHED
from tests.backend.sockets import ANSWER, Backend, ask, busy_and_idle, streamed, upstream_to, whole
from tests.system.scripted import RESET

SMALL = b"x" * 100
LARGE = b"y" * 5_000_000


@asynccontextmanager
async def backend_with_kept_connection(more: str = "") -> AsyncIterator[tuple[Backend, Upstream, socket.socket]]:
    """A backend to which one connection is kept, on which one request was served; *more* is YAML of the backend."""
    backend = Backend()
    upstream = upstream_to(backend.url, more)
    try:
        first = asyncio.ensure_future(ask(upstream, "POST", whole(SMALL)))
        connection = await backend.accept()
        await backend.serve_once(connection)
        assert await first == (b"ok", ["200"])
        yield backend, upstream, connection
    finally:
        await upstream.close()
        for each in (backend.listener, *backend.connections):
            each.close()


def close(connection: socket.socket) -> None:
    connection.close()


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    connection.close()


def just_before_the_next_request(
    monkeypatch: pytest.MonkeyPatch, connection: socket.socket, end: Callable[[socket.socket], None]
) -> None:
    """Have *end* done to the backend's side when the connection has been chosen, and the kernel is not asked yet."""
    begin = Wire.begin

    def begin_after_the_end(wire: Wire, method: str, first_bytes: bytes) -> bool:
        if wire.is_reused:
            end(connection)
        return begin(wire, method, first_bytes)

    monkeypatch.setattr(Wire, "begin", begin_after_the_end)


def behind_the_last_look(
    monkeypatch: pytest.MonkeyPatch, connection: socket.socket, end: Callable[[socket.socket], None]
) -> None:
    """Have *end* done to the backend's side when the kernel has been asked, and nothing is sent yet."""
    is_quiet = Witness.is_quiet

    def is_quiet_until_then(witness: Witness) -> bool:
        was_quiet = is_quiet(witness)
        if witness.received_bytes and was_quiet:
            end(connection)
        return was_quiet

    monkeypatch.setattr(Witness, "is_quiet", is_quiet_until_then)


@pytest.mark.parametrize("body", [whole(SMALL), streamed(SMALL), whole(LARGE), streamed(LARGE)])
@pytest.mark.parametrize("end", [close, reset])
@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_a_connection_that_ended_before_the_request_came_costs_no_client_an_error(
    monkeypatch: pytest.MonkeyPatch, method: str, end: Callable[[socket.socket], None], body: Body
) -> None:
    async with backend_with_kept_connection() as (backend, upstream, connection):
        just_before_the_next_request(monkeypatch, connection, end)
        asked = asyncio.ensure_future(ask(upstream, method, body))
        served = await backend.serve_once(await backend.accept())
        assert await asked == (b"ok", ["200"])
        assert len(served) >= len(SMALL)
        assert len(backend.connections) == 2


@pytest.mark.parametrize("body", [whole(SMALL), streamed(SMALL), whole(LARGE)])
async def test_a_connection_that_was_reset_behind_the_last_look_costs_no_client_an_error(
    monkeypatch: pytest.MonkeyPatch, body: Body
) -> None:
    async with backend_with_kept_connection() as (backend, upstream, connection):
        behind_the_last_look(monkeypatch, connection, reset)
        asked = asyncio.ensure_future(ask(upstream, "POST", body))
        await backend.serve_once(await backend.accept())
        assert await asked == (b"ok", ["upstream_closed", "200"])


async def test_the_request_keeps_its_place_among_the_connections_when_it_is_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with backend_with_kept_connection("max_connections: 1") as (backend, upstream, connection):
        behind_the_last_look(monkeypatch, connection, reset)
        asked = asyncio.ensure_future(ask(upstream, "POST", whole(SMALL)))
        again = await backend.accept()
        with pytest.raises(GatewayError) as caught:  # the one place is taken all the time
            await ask(upstream, "POST", whole(SMALL))
        assert caught.value.kind is ErrorKind.OVERLOADED
        await backend.serve_once(again)
        assert await asked == (b"ok", ["upstream_closed", "200"])
        assert busy_and_idle(upstream.endpoints.states[0]) == (0, 1)


async def test_no_place_is_lost_where_the_new_connection_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = "max_connections: 1, retry: {attempts: 1}"
    async with backend_with_kept_connection(settings) as (backend, upstream, connection):
        behind_the_last_look(monkeypatch, connection, reset)
        backend.listener.close()
        with pytest.raises(GatewayError) as caught:
            await ask(upstream, "POST", whole(SMALL))
        assert caught.value.kind is ErrorKind.UNREACHABLE
        assert upstream.connections._in_use == 0


async def read_then_close(backend: Backend, connection: socket.socket) -> None:
    await backend.read_request(connection)
    connection.close()


async def read_then_reset(backend: Backend, connection: socket.socket) -> None:
    await backend.read_request(connection)
    reset(connection)


async def read_a_part_then_close(backend: Backend, connection: socket.socket) -> None:
    await asyncio.get_running_loop().sock_recv(connection, 10)
    connection.close()


async def end_the_stream_but_read_on(backend: Backend, connection: socket.socket) -> None:
    await asyncio.get_running_loop().sock_recv(connection, 10)
    connection.shutdown(socket.SHUT_WR)


Fate = Callable[[Backend, socket.socket], Awaitable[None]]


@pytest.mark.parametrize("body", [whole(SMALL), streamed(SMALL)])
@pytest.mark.parametrize("fate", [read_then_close, read_then_reset, read_a_part_then_close, end_the_stream_but_read_on])
async def test_a_post_that_may_have_been_read_is_not_sent_again(fate: Fate, body: Body) -> None:
    async with backend_with_kept_connection() as (backend, upstream, connection):
        asked = asyncio.ensure_future(ask(upstream, "POST", body))
        await fate(backend, connection)
        with pytest.raises(GatewayError) as caught:
            await asked
        assert caught.value.kind is ErrorKind.UPSTREAM_CLOSED
        assert caught.value.sent
        assert len(backend.connections) == 1


@pytest.mark.parametrize("body", [whole(SMALL), streamed(SMALL)])
async def test_a_post_is_not_sent_again_where_the_stream_ended_before_anything_was_acknowledged(
    monkeypatch: pytest.MonkeyPatch, body: Body
) -> None:
    """With latency the end of a server's side can arrive after the request left, and before its acknowledgement.

    The server goes on reading, and executes. Here the counters say what they say then.
    """
    async with backend_with_kept_connection() as (backend, upstream, connection):
        sent = itertools.count()
        monkeypatch.setattr(Witness, "counters", lambda witness: (ESTABLISHED, 0, 0, next(sent)))
        asked = asyncio.ensure_future(ask(upstream, "POST", body))
        await asyncio.get_running_loop().sock_recv(connection, 10)
        connection.shutdown(socket.SHUT_WR)
        with pytest.raises(GatewayError) as caught:
            await asked
        assert caught.value.kind is ErrorKind.UPSTREAM_CLOSED
        assert len(backend.connections) == 1


@pytest.mark.parametrize("fate", [read_then_close, read_then_reset])
async def test_a_get_that_may_have_been_read_is_sent_again_once(fate: Fate) -> None:
    async with backend_with_kept_connection() as (backend, upstream, connection):
        asked = asyncio.ensure_future(ask(upstream, "GET", Body()))
        await fate(backend, connection)
        await fate(backend, await backend.accept())
        with pytest.raises(GatewayError) as caught:
            await asked
        assert caught.value.kind is ErrorKind.UPSTREAM_CLOSED
        assert len(backend.connections) == 2


async def test_a_new_connection_that_dies_is_not_replaced() -> None:
    backend = Backend()
    upstream = upstream_to(backend.url, "retry: {attempts: 1}")
    asked = asyncio.ensure_future(ask(upstream, "GET", Body()))
    (await backend.accept()).close()
    with pytest.raises(GatewayError):
        await asked
    assert len(backend.connections) == 1
    await upstream.close()
    backend.listener.close()


async def test_bytes_that_came_before_the_request_are_not_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def send_408(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 4\r\n\r\nlate")

    async with backend_with_kept_connection() as (backend, upstream, connection):
        just_before_the_next_request(monkeypatch, connection, send_408)
        asked = asyncio.ensure_future(ask(upstream, "POST", whole(SMALL)))
        await backend.serve_once(await backend.accept())
        assert await asked == (b"ok", ["200"])


async def test_bytes_that_crossed_the_request_are_not_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with backend_with_kept_connection() as (_, upstream, connection):
        behind_the_last_look(monkeypatch, connection, lambda backend: backend.sendall(ANSWER))
        with pytest.raises(GatewayError) as caught:
            await ask(upstream, "POST", whole(SMALL))
        assert caught.value.kind is ErrorKind.UPSTREAM_CLOSED


@pytest.mark.parametrize("text", [b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 4\r\n\r\nlate", ANSWER, b"x"])
async def test_bytes_on_an_idle_connection_close_it(text: bytes) -> None:
    async with backend_with_kept_connection() as (backend, upstream, connection):
        connection.sendall(text)
        asked = asyncio.ensure_future(ask(upstream, "POST", whole(SMALL)))
        await backend.serve_once(await backend.accept())
        assert await asked == (b"ok", ["200"])
        assert busy_and_idle(upstream.endpoints.states[0]) == (0, 1)
