"""A reload in the middle: what stays, what ends, and from when the new settings hold."""

import asyncio
from typing import Any

import pytest

from gateway.backend.endpoints import Endpoint, EndpointSet
from gateway.backend.upstream import Upstream
from gateway.certificates import TlsContext
from gateway.config import BackendTls
from gateway.errors import ErrorKind, GatewayError
from gateway.exchange import Attempt
from tests.backend.endpoints import Gate, assert_nothing_is_left, call, closing, codes, own_answer, well
from tests.backend.sockets import busy_and_idle, upstream_of
from tests.system.scripted import counting


async def reloaded(upstream: Upstream, urls: list[str], settings: str = "") -> Upstream:
    after = upstream_of(urls, settings, upstream)
    await after.start()
    return after


async def test_endpoints_that_stay_keep_their_connections_and_their_state() -> None:
    async with counting(well) as one, counting(well) as other, counting(well) as third:
        upstream = upstream_of([one.url, other.url], "balance: round_robin")
        for number in range(2):
            await call(upstream, number)
        upstream.note_failure(upstream.endpoints.states[1], None, "it died")
        before = upstream.endpoints.states
        before[0].is_up = False
        upstream = await reloaded(upstream, [third.url, one.url, other.url], "balance: round_robin, keep_alive: 10s")
        assert upstream.endpoints.states[1:] == before
        assert not before[0].is_up
        before[0].is_up = True
        for number in range(6):
            await call(upstream, number)
        # no connection was made anew
        assert [len(backend.peers) for backend in (one, other, third)] == [1, 1, 1]
        await upstream.close()


async def test_a_request_that_began_before_finishes_on_the_connection_it_has() -> None:
    gate = Gate()
    async with counting(gate) as one, counting(well) as other:
        old = upstream_of([one.url], "timeouts: {total: 1m}")
        busy = asyncio.ensure_future(call(old, "busy"))
        await gate.until_waiting(1)
        (gone,) = old.endpoints.states
        new = await reloaded(old, [other.url])
        assert [state.url for state in new.endpoints.states] == [other.url]
        assert await call(new, "new") == own_answer("new", b"body")
        gate.open.set()
        assert await busy == own_answer("busy", b"body")
        # the endpoint is gone, so its connection ends as soon as it is idle
        assert len(new.connections._open) == 1
        assert busy_and_idle(gone) == (0, 0)
        assert (one.executed, other.executed) == ({"busy": 1}, {"new": 1})
        assert_nothing_is_left(new)
        await new.close()


async def test_idle_connections_of_endpoints_that_are_gone_are_closed() -> None:
    async with counting(well) as one, counting(well) as other:
        upstream = upstream_of([one.url, other.url], "balance: round_robin")
        for number in range(2):
            await call(upstream, number)
        assert len(upstream.connections._open) == 2
        upstream = await reloaded(upstream, [other.url])
        while len(upstream.connections._open) > 1:
            await asyncio.sleep(0)
        await call(upstream)
        assert len(other.peers) == 1
        await upstream.close()


async def test_nothing_changes_until_the_new_one_is_started() -> None:
    """A reload that fails for another backend leaves everything as it was."""
    async with counting(well) as one, counting(well) as other:
        upstream = upstream_of([one.url], "max_connections: 3")
        await call(upstream)
        never_started = upstream_of([other.url], "max_connections: 1", upstream)
        assert [state.url for state in upstream.endpoints.states] == [one.url]
        assert upstream.connections._limits.max_connections == 3
        await call(upstream)
        assert len(one.peers) == 1
        assert never_started.connections is upstream.connections
        await upstream.close()


async def test_new_settings_hold_for_new_requests_and_the_old_ones_for_old() -> None:
    gate = Gate(closing)
    async with counting(gate) as one, counting(well) as other:
        old = upstream_of([one.url, other.url], "balance: round_robin, retry: {resend_after_sent: true}")
        attempts: list[Attempt] = []
        asyncio_task = asyncio.ensure_future(call(old, "to the other"))
        busy = asyncio.ensure_future(call(old, "busy", attempts=attempts))
        await gate.until_waiting(1)
        await asyncio_task
        new = await reloaded(old, [one.url, other.url], "balance: round_robin")
        gate.open.set()
        assert await busy == own_answer("busy", b"body")  # sent again, as it was allowed when it began
        assert codes(attempts) == ["upstream_closed", "200"]
        await call(new)
        with pytest.raises(GatewayError) as caught:
            await call(new)
        assert caught.value.kind is ErrorKind.UPSTREAM_CLOSED
        await new.close()


async def test_who_waits_gets_a_place_when_there_are_more_of_them() -> None:
    gate = Gate()
    async with counting(gate) as backend:
        upstream = upstream_of([backend.url], "max_connections: 1, queue: {length: 3, timeout: 1m}")
        asked = [asyncio.ensure_future(call(upstream, number)) for number in range(4)]
        await gate.until_waiting(1)
        assert len(upstream.connections._waiters) == 3
        upstream = await reloaded(upstream, [backend.url], "max_connections: 3")
        await gate.until_waiting(3)
        assert len(upstream.connections._waiters) == 1
        gate.open.set()
        await asyncio.gather(*asked)
        assert_nothing_is_left(upstream)
        await upstream.close()


async def test_when_there_are_fewer_places_nobody_gets_one_until_enough_have_left() -> None:
    gate = Gate()
    async with counting(gate) as backend:
        upstream = upstream_of([backend.url], "max_connections: 3, queue: {length: 3, timeout: 1m}")
        asked = [asyncio.ensure_future(call(upstream, number)) for number in range(4)]
        await gate.until_waiting(3)
        upstream = await reloaded(upstream, [backend.url], "max_connections: 1, queue: {length: 3, timeout: 1m}")
        for cancelled, n_waiting in ((0, 1), (1, 1), (2, 0)):
            asked[cancelled].cancel()
            await asyncio.gather(asked[cancelled], return_exceptions=True)
            assert len(upstream.connections._waiters) == n_waiting
        gate.open.set()
        assert await asked[3] == own_answer("3", b"body")
        assert_nothing_is_left(upstream)
        await upstream.close()


async def test_idle_connections_beyond_a_lower_limit_are_closed() -> None:
    gate = Gate()
    async with counting(gate) as backend:
        upstream = upstream_of([backend.url], "max_connections: 3")
        asked = [asyncio.ensure_future(call(upstream, number)) for number in range(3)]
        await gate.until_waiting(3)
        gate.open.set()
        await asyncio.gather(*asked)
        (state,) = upstream.endpoints.states
        assert busy_and_idle(state) == (0, 3)
        upstream = await reloaded(upstream, [backend.url], "max_connections: 2")
        assert busy_and_idle(state) == (0, 2)
        await upstream.close()


async def test_a_shorter_keep_alive_ends_what_was_kept_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    async with counting(well) as backend:
        upstream = upstream_of([backend.url], "keep_alive: 10m")
        await call(upstream)
        now = loop.time()
        monkeypatch.setattr(loop, "time", lambda: now + 60)
        upstream = await reloaded(upstream, [backend.url], "keep_alive: 30s")
        assert busy_and_idle(upstream.endpoints.states[0]) == (0, 0)
        monkeypatch.undo()
        await upstream.close()


async def test_a_backend_that_is_gone_finishes_what_it_has_and_keeps_nothing() -> None:
    gate = Gate()
    async with counting(gate) as backend:
        upstream = upstream_of([backend.url])
        asked = [asyncio.ensure_future(call(upstream, number)) for number in range(2)]
        await gate.until_waiting(2)
        asked[0].cancel()
        gate.open.set()
        await asyncio.gather(*asked, return_exceptions=True)
        assert len(upstream.connections._open) == 1
        gate.open.clear()
        busy = asyncio.ensure_future(call(upstream, "busy"))
        await gate.until_waiting(1)
        upstream.retire()
        gate.open.set()
        assert await busy == own_answer("busy", b"body")
        assert await call(upstream, "late") == own_answer("late", b"body")  # one that had found its route before
        while upstream.connections._open:
            await asyncio.sleep(0)
        assert not upstream.endpoints.states[0].idle


async def test_ejecting_that_is_switched_off_brings_everybody_back() -> None:
    async with counting(well) as one, counting(well) as other:
        upstream = upstream_of([one.url, other.url], "eject: {failures: 1}")
        upstream.note_failure(upstream.endpoints.states[0], None, "it died")
        assert upstream.endpoints.states[0].ejection.is_ejected
        upstream = await reloaded(upstream, [one.url, other.url], "eject: {failures: 0}")
        assert not upstream.endpoints.states[0].ejection.is_ejected
        await upstream.close()


async def test_the_budget_remembers_what_was_used_before_the_reload() -> None:
    async with counting(well) as backend:
        upstream = upstream_of([backend.url])
        await call(upstream)
        after = await reloaded(upstream, [backend.url], "retry: {attempts: 5}")
        assert after.recent_calls.totals(asyncio.get_running_loop().time())[0] == 1
        await after.close()


class Kept:
    """Stands for a connection that is kept."""

    def __init__(self) -> None:
        self.is_open = True

    def abort(self) -> None:
        self.is_open = False


def test_an_endpoint_with_other_certificates_keeps_its_state_and_not_its_connections() -> None:
    endpoints = EndpointSet()
    old, new = (TlsContext("backends.a.tls", BackendTls()) for _ in range(2))
    kept: Any = Kept()
    endpoints.replace([Endpoint.parse("https://models.example", old)])
    (state,) = endpoints.states
    state.idle.append(kept)
    endpoints.replace([Endpoint.parse("https://models.example", old)])
    assert kept.is_open
    endpoints.replace([Endpoint.parse("https://models.example", new)])
    assert endpoints.states == (state,)
    assert state.endpoint.tls is new
    assert not kept.is_open
