"""The connections of one backend: who gets a slot, that no slot is lost, and which idle connections are closed."""

import asyncio
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.backend.asking import BackendRequest, Body
from gateway.backend.attempt import Answer
from gateway.backend.connections import Connections
from gateway.backend.endpoints import EndpointState
from gateway.backend.upstream import Upstream
from gateway.backend.wire import Wire
from gateway.errors import ErrorKind, GatewayError
from gateway.exchange import Attempt
from tests.backend.sockets import ANSWER, Backend, ask, busy_and_idle, read_whole, upstream_to, whole
from tests.backend.waiting import turns

QUESTION = "GET", b"GET / HTTP/1.1\r\n\r\n"


@asynccontextmanager
async def pool(settings: str) -> AsyncIterator[tuple[Backend, Upstream, Connections, EndpointState]]:
    """The connections to one backend; at the end no slot may be taken."""
    backend = Backend()
    upstream = upstream_to(backend.url, settings)
    connections, state = upstream.connections, upstream.endpoints.states[0]
    try:
        yield backend, upstream, connections, state
        assert connections._in_use == 0
        assert not connections._waiters
        assert busy_and_idle(state)[0] == 0
    finally:
        await upstream.close()
        assert not connections._open
        for each in (backend.listener, *backend.connections):
            each.close()


async def take(connections: Connections, state: EndpointState, *, fresh: bool = False) -> Wire:
    await connections.wait_for_slot()
    try:
        wire = None if fresh else connections.take_idle(state, asyncio.get_running_loop().time(), *QUESTION)
        return await connections.take_new(state, *QUESTION) if wire is None else wire
    except BaseException:
        connections.release_slot()
        raise


def close(connections: Connections, *taken: Wire) -> None:
    """Close connections that were taken, and release their slots."""
    for wire in taken:
        connections.drop(wire)
        connections.release_slot()


async def be_answered(backend: Backend, wire: Wire) -> None:
    """The answer to the request on a new connection."""
    answer = wire.answer
    assert answer is not None
    await backend.serve_once(await backend.accept())
    assert (await answer.read_body(), await answer.read_body()) == (b"ok", b"")


async def exchange(backend: Backend, upstream: Upstream) -> None:
    """One request and its answer over a new connection, which is kept then."""
    asked = asyncio.ensure_future(ask(upstream, "POST", whole(b"x")))
    await backend.serve_once(await backend.accept())
    assert await asked == (b"ok", ["200"])


async def test_who_waits_longest_gets_the_next_slot_and_nobody_overtakes() -> None:
    async with pool("max_connections: 1, queue: {length: 3}") as (_, _, connections, _):
        await connections.wait_for_slot()
        order: list[int] = []

        async def wait(number: int) -> None:
            await connections.wait_for_slot()
            order.append(number)

        waiting = [asyncio.ensure_future(wait(number)) for number in range(3)]
        await turns()
        assert order == []
        with pytest.raises(GatewayError, match=r"queue\.length") as caught:
            await connections.wait_for_slot()
        assert (caught.value.kind, caught.value.sent) == (ErrorKind.OVERLOADED, False)
        assert ("Retry-After", "1") in caught.value.headers
        for n_served in range(3):
            connections.release_slot()
            # a slot that was given to a waiter is not free, although the waiter has not run yet
            late = asyncio.ensure_future(connections.wait_for_slot())
            await turns()
            assert order == list(range(n_served + 1))
            late.cancel()
            await asyncio.gather(late, return_exceptions=True)
        await asyncio.gather(*waiting)
        connections.release_slot()


@pytest.mark.parametrize("n_turns", [0, 5])
async def test_a_waiter_that_leaves_is_passed_over(n_turns: int) -> None:
    async with pool("max_connections: 1, queue: {length: 2}") as (_, _, connections, _):
        await connections.wait_for_slot()
        leaving, staying = (asyncio.ensure_future(connections.wait_for_slot()) for _ in range(2))
        await turns()
        leaving.cancel()
        await turns(n_turns)
        connections.release_slot()
        await staying
        assert connections._in_use == 1
        connections.release_slot()


async def test_a_slot_that_is_given_to_a_waiter_just_as_it_leaves_goes_to_the_next() -> None:
    async with pool("max_connections: 1, queue: {length: 2}") as (_, _, connections, _):
        await connections.wait_for_slot()
        leaving, staying = (asyncio.ensure_future(connections.wait_for_slot()) for _ in range(2))
        await turns()
        connections.release_slot()
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        await staying
        connections.release_slot()


async def test_who_waits_in_turn_is_never_refused_and_gets_its_slot_in_the_queues_order() -> None:
    """It goes on with an inference that has begun."""
    async with pool("max_connections: 1, queue: {length: 1, timeout: 1ms}") as (_, _, connections, _):
        await connections.wait_in_turn()
        order: list[int] = []

        async def wait(number: int) -> None:
            await connections.wait_in_turn()
            order.append(number)
            connections.release_slot()

        waiting = [asyncio.ensure_future(wait(number)) for number in range(3)]
        await turns()
        with pytest.raises(GatewayError, match="3 requests are waiting"):
            await connections.wait_for_slot()
        await asyncio.sleep(0.01)  # longer than `queue.timeout`
        connections.release_slot()
        await asyncio.gather(*waiting)
        assert order == [0, 1, 2]


async def test_waiting_ends_with_503_that_names_the_limit() -> None:
    async with pool("max_connections: 1, queue: {length: 1, timeout: 1ms}") as (_, _, connections, _):
        await connections.wait_for_slot()
        with pytest.raises(GatewayError, match=r"queue\.timeout") as caught:
            await connections.wait_for_slot()
        assert caught.value.kind is ErrorKind.OVERLOADED
        connections.release_slot()


async def test_a_wait_that_ends_without_a_connection_is_time_in_the_queue_and_not_the_backends() -> None:
    async with pool("max_connections: 1, queue: {length: 1, timeout: 50ms}") as (_, upstream, connections, _):
        await connections.wait_for_slot()
        attempts: list[Attempt] = []
        with pytest.raises(GatewayError):
            await upstream.call(BackendRequest("GET", "/x", [], Body()), attempts, read_whole)
        (attempt,) = attempts
        assert attempt.code == "overloaded"
        assert attempt.queue_s is not None
        assert attempt.queue_s > 0.04
        assert attempt.seconds < attempt.queue_s
        connections.release_slot()


@pytest.mark.parametrize("n_turns", range(40))
async def test_a_call_that_is_cancelled_at_any_moment_releases_its_slot(n_turns: int) -> None:
    async with pool("max_connections: 1") as (backend, upstream, connections, state):

        async def serve() -> None:
            await backend.serve_once(await backend.accept())

        serving = asyncio.ensure_future(serve())
        asked = asyncio.ensure_future(ask(upstream, "POST", whole(b"x")))
        await turns(n_turns)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        assert connections._in_use == 0
        assert busy_and_idle(state)[0] == 0
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


@pytest.mark.parametrize("n_turns", range(40))
async def test_a_connection_that_is_cancelled_while_it_opens_releases_its_slot_and_no_socket(n_turns: int) -> None:
    # Python warns of a socket that nobody closes, which makes this fail
    async with pool("max_connections: 1") as (_, _, connections, state):
        taking = asyncio.ensure_future(take(connections, state))
        await turns(n_turns)
        taking.cancel()
        for taken in await asyncio.gather(taking, return_exceptions=True):
            if isinstance(taken, Wire):
                close(connections, taken)
        assert connections._in_use == 0


async def test_a_backend_that_refuses_releases_the_slot(unused_tcp_port: int) -> None:
    upstream = upstream_to(f"http://127.0.0.1:{unused_tcp_port}", "max_connections: 1")
    for _ in range(3):
        with pytest.raises(GatewayError, match=f"127.0.0.1:{unused_tcp_port}") as caught:
            await take(upstream.connections, upstream.endpoints.states[0])
        assert (caught.value.kind, caught.value.sent) == (ErrorKind.UNREACHABLE, False)
    assert upstream.connections._in_use == 0
    await upstream.close()


@pytest.mark.parametrize("is_read_whole", [False, True])
async def test_an_answer_that_gave_its_connection_back_cannot_reach_it_any_more(is_read_whole: bool) -> None:
    async with pool("max_connections: 2") as (backend, upstream, _, state):
        answers: list[Answer] = []

        async def read(answer: Answer) -> bytes:
            answers.append(answer)
            return await read_whole(answer)

        request = BackendRequest("POST", "/x", [], whole(b"x"), is_read_whole=is_read_whole)
        asked = asyncio.ensure_future(upstream.call(request, [], read))
        await backend.serve_once(await backend.accept())
        assert await asked == b"ok"
        asked = asyncio.ensure_future(upstream.call(request, [], read_whole))
        await backend.read_request(backend.connections[0])
        assert busy_and_idle(state) == (1, 0)
        assert not answers[0].end(is_right=True)
        assert (answers[0].read_arrived(), await answers[0].next()) == (b"", b"")
        assert busy_and_idle(state) == (1, 0)
        await asyncio.get_running_loop().sock_sendall(backend.connections[0], ANSWER)
        assert await asked == b"ok"


async def test_the_connection_used_last_is_used_next() -> None:
    async with pool("max_connections: 3") as (backend, _, connections, state):
        wires = [await take(connections, state), await take(connections, state)]
        for wire in wires:
            await be_answered(backend, wire)
            connections.give_back(wire)
        assert busy_and_idle(state) == (0, 2)
        used = await take(connections, state)
        assert used is wires[1]
        assert busy_and_idle(state) == (1, 1)
        fresh = await take(connections, state, fresh=True)
        assert fresh not in wires
        close(connections, used, fresh)


async def test_one_connection_more_than_are_allowed_closes_the_one_that_was_idle_longest() -> None:
    async with pool("max_connections: 2") as (backend, _, connections, state):
        kept = [await take(connections, state) for _ in range(2)]
        for wire in kept:
            await be_answered(backend, wire)
            connections.give_back(wire)
        assert busy_and_idle(state) == (0, 2)
        fresh = await take(connections, state, fresh=True)
        assert busy_and_idle(state) == (1, 1)
        await turns()
        assert connections._open == {fresh, kept[1]}
        close(connections, fresh)


async def test_idle_connections_are_closed_after_keep_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pool("keep_alive: 1m") as (backend, upstream, connections, state):
        loop = asyncio.get_running_loop()
        await exchange(backend, upstream)
        assert busy_and_idle(state) == (0, 1)
        sweeper: Any = connections._sweeper
        assert 59 < sweeper.when() - loop.time() <= 60
        sweeper.cancel()
        connections._sweep()  # too early: it comes again when the time is over
        assert busy_and_idle(state) == (0, 1)
        again: Any = connections._sweeper
        assert abs(again.when() - sweeper.when()) < 1
        again.cancel()
        now = loop.time()
        monkeypatch.setattr(loop, "time", lambda: now + 61)
        connections._sweep()
        assert busy_and_idle(state) == (0, 0)
        assert connections._sweeper is None
        monkeypatch.undo()
        # the backend sees the end
        assert await loop.sock_recv(backend.connections[0], 1) == b""


async def test_a_connection_that_was_idle_too_long_is_not_used_even_if_nobody_swept() -> None:
    async with pool("keep_alive: 1m") as (backend, upstream, connections, state):
        await exchange(backend, upstream)
        assert busy_and_idle(state) == (0, 1)
        assert connections.take_idle(state, asyncio.get_running_loop().time() + 61, *QUESTION) is None
        assert busy_and_idle(state) == (0, 0)


async def test_an_idle_connection_that_the_backend_ends_is_forgotten() -> None:
    async with pool("keep_alive: 1m") as (backend, upstream, connections, state):
        await exchange(backend, upstream)
        backend.connections[0].close()
        while connections._open:
            await asyncio.sleep(0)
        assert busy_and_idle(state) == (0, 0)


async def test_closing_ends_the_waiting() -> None:
    upstream = upstream_to("http://127.0.0.1:9", "max_connections: 1, queue: {length: 1}")
    await upstream.connections.wait_for_slot()
    waiting = asyncio.ensure_future(upstream.connections.wait_for_slot())
    await turns()
    await upstream.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_nothing_is_remembered_of_an_endpoint_that_left_while_a_request_was_on_its_way_to_it() -> None:
    async with pool("keep_alive: 1m") as (_, upstream, connections, state):
        upstream.endpoints.replace(())  # its name stands for another address now
        connections.give_back(await take(connections, state))
        assert not state.idle
        while connections._open:
            await asyncio.sleep(0)


class Held:
    """What a request's body is made of."""


@pytest.mark.parametrize("in_one_piece", [True, False])
async def test_an_idle_connection_holds_nothing_of_the_request_before(in_one_piece: bool) -> None:
    async with pool("keep_alive: 1m") as (backend, upstream, _, state):
        held = Held()
        seen = weakref.ref(held)

        async def pieces(held: Held = held) -> AsyncIterator[bytes]:
            yield b"body"

        request = BackendRequest("POST", "/x", [], Body(open=pieces), is_read_whole=True)
        asked = asyncio.ensure_future(upstream.call(request, [], read_whole))
        del held, pieces, request
        connection = await backend.accept()
        await backend.read_request(connection)
        for piece in [ANSWER] if in_one_piece else [ANSWER[:-1], ANSWER[-1:]]:
            await asyncio.get_running_loop().sock_sendall(connection, piece)
            await turns()
        assert await asked == b"ok"
        del asked
        await turns()
        assert busy_and_idle(state) == (0, 1)
        assert seen() is None
