"""Endpoints that are ejected and come back, sticky requests, and what the log says of it."""

import asyncio
import contextlib
import logging
import re
import socket
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from gateway.backend.attempt import Answer
from gateway.backend.upstream import Upstream
from gateway.errors import ErrorKind, GatewayError
from gateway.exchange import Attempt
from tests.backend.endpoints import (
    IN_TURN,
    Gate,
    answering,
    babbling,
    call,
    closing,
    codes,
    cutting,
    falling_silent,
    hanging,
    make_due,
    nobody,
    own_answer,
    read_as_malformed,
    resetting,
    upstream_with,
    well,
)
from tests.backend.sockets import upstream_of
from tests.system.scripted import Behaviour, Seen, counting

FOR_A_MINUTE = "for: 1m"


async def failing_call(upstream: Upstream, id_: object = 1) -> ErrorKind:
    with pytest.raises(GatewayError) as caught:
        await call(upstream, id_)
    return caught.value.kind


async def fail_twice(upstream: Upstream) -> None:
    """The second endpoint gets every other request, beginning with the first."""
    await failing_call(upstream)
    await call(upstream)
    await failing_call(upstream)
    await call(upstream)


@pytest.mark.parametrize("behave", [closing, resetting, cutting, babbling, hanging, falling_silent])
async def test_an_endpoint_that_fails_so_often_gets_no_more(
    behave: Behaviour, caplog: pytest.LogCaptureFixture
) -> None:
    settings = f"{IN_TURN}, eject: {{failures: 2, {FOR_A_MINUTE}}}"
    with caplog.at_level(logging.INFO, "gateway"):
        async with upstream_with(well, behave, settings=settings) as (upstream, (good, bad)):
            await fail_twice(upstream)
            well_state, bad_state = upstream.endpoints.states
            assert (well_state.ejection.is_ejected, bad_state.ejection.is_ejected) == (False, True)
            for number in range(10):
                await call(upstream, number)
            assert len(bad.seen) == 2
            assert len(good.seen) == 12
    (line,) = caplog.messages
    assert re.fullmatch(
        rf"backend 'main': {bad.url} is ejected for 60 s: 2 failures within 30 s, the last: backend 'main' .+", line
    )


@pytest.mark.parametrize("behave", [hanging, falling_silent])
async def test_a_silent_endpoint_is_found_out_also_where_total_is_the_shorter_time(
    behave: Callable[[Seen], Awaitable[bool]],
) -> None:
    settings = "balance: round_robin, timeouts: {total: 100ms}, eject: {failures: 1}"
    async with upstream_with(well, behave, settings=settings) as (upstream, _):
        assert await failing_call(upstream) is ErrorKind.TIMEOUT
        assert upstream.endpoints.states[1].ejection.is_ejected


async def test_an_endpoint_that_accepts_nothing_is_found_out_also_where_total_is_the_shorter_time() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, contextlib.ExitStack() as stack:
        for _ in range(4):  # the kernel drops what comes when the queue is full
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        async with counting(well) as backend:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            settings = "balance: round_robin, timeouts: {connect: 10s, total: 100ms}, eject: {failures: 1}"
            upstream = upstream_of([backend.url, url], settings)
            assert await failing_call(upstream) is ErrorKind.TIMEOUT
            assert upstream.endpoints.states[1].ejection.is_ejected
            await upstream.close()


async def test_running_out_of_connections_is_not_the_endpoints_failure() -> None:
    gate = Gate()
    settings = f"{IN_TURN}, max_connections: 1, queue: {{length: 1, timeout: 10ms}}, eject: {{failures: 1}}"
    async with upstream_with(gate, gate, settings=settings.replace("100ms", "10s")) as (upstream, _):
        busy = asyncio.ensure_future(call(upstream))
        await gate.until_waiting(1)
        assert await failing_call(upstream) is ErrorKind.OVERLOADED
        gate.open.set()
        await busy
        assert not any(state.ejection.is_ejected for state in upstream.endpoints.states)


@pytest.mark.parametrize("then_fails", [False, True])
async def test_of_many_requests_one_finds_out_whether_the_endpoint_is_back(
    then_fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    settings = f"balance: round_robin, eject: {{failures: 2, {FOR_A_MINUTE}}}"
    async with upstream_with(well, closing, settings=settings) as (upstream, (good, bad)):
        await fail_twice(upstream)
        state = upstream.endpoints.states[1]
        gate = Gate(closing if then_fails else well)
        bad.behave = gate
        make_due(state)
        asked = [asyncio.ensure_future(call(upstream, f"of many {number}")) for number in range(50)]
        await gate.until_waiting(1)
        done: set[asyncio.Task[bytes]] = set()
        trials = set(asked)
        while len(trials) > 1:  # all but one come to an end while that one is held
            more, trials = await asyncio.wait(trials, timeout=10, return_when=asyncio.FIRST_COMPLETED)
            assert more
            done |= more
        assert (gate.waiting, len(bad.seen)) == (1, 3)
        assert state.ejection.is_ejected
        caplog.clear()
        with caplog.at_level(logging.INFO, "gateway"):
            gate.open.set()
            results = await asyncio.gather(*trials, return_exceptions=True)
        assert isinstance(results[0], GatewayError) == then_fails
        assert state.ejection.is_ejected == then_fails
        assert not any(isinstance(task.exception(), GatewayError) for task in done)
        assert len(good.seen) == 2 + 49
        assert caplog.messages == [f"backend 'main': {bad.url} is back: a request to it has succeeded"] * (
            not then_fails
        )
        # now it gets its turns again, or none for as long as before
        for number in range(4):
            await call(upstream, f"after {number}")
        assert len(bad.seen) == (3 if then_fails else 5)


async def test_a_trial_whose_client_leaves_is_followed_by_another() -> None:
    settings = f"balance: round_robin, eject: {{failures: 2, {FOR_A_MINUTE}}}"
    async with upstream_with(well, closing, settings=settings) as (upstream, (_, bad)):
        await fail_twice(upstream)
        state = upstream.endpoints.states[1]
        gate = Gate()
        bad.behave = gate
        make_due(state)
        for n_trials in (1, 2):
            trial = asyncio.ensure_future(call(upstream, "trial"))
            await gate.until_waiting(n_trials)
            trial.cancel()
            await asyncio.gather(trial, return_exceptions=True)
            assert state.ejection.is_ejected
            assert state.in_flight == 0
        gate.open.set()
        await call(upstream, "trial")
        assert not state.ejection.is_ejected


async def test_a_trial_that_is_answered_by_a_redirect_shows_that_the_endpoint_works() -> None:
    settings = f"balance: round_robin, eject: {{failures: 2, {FOR_A_MINUTE}}}"
    async with upstream_with(well, closing, settings=settings) as (upstream, (_, bad)):
        await fail_twice(upstream)
        bad.behave = answering("302 Found")
        state = upstream.endpoints.states[1]
        make_due(state)
        with pytest.raises(GatewayError):
            await call(upstream, read=read_as_malformed)
        assert not state.ejection.is_ejected


async def test_the_trial_of_an_endpoint_that_is_still_dead_costs_its_client_nothing() -> None:
    with nobody() as dead:
        async with counting(well) as backend:
            upstream = upstream_of([backend.url, dead], f"balance: round_robin, eject: {{failures: 1, {FOR_A_MINUTE}}}")
            assert await call(upstream) == own_answer("1", b"body")
            state = upstream.endpoints.states[1]
            for _ in range(3):
                make_due(state)
                attempts: list[Attempt] = []
                assert await call(upstream, attempts=attempts) == own_answer("1", b"body")
                assert codes(attempts) == ["unreachable", "200"]
                assert state.ejection.is_ejected
                assert await call(upstream, attempts=attempts) == own_answer("1", b"body")
                assert codes(attempts)[2:] == ["200"]
            await upstream.close()


async def test_an_answer_with_an_error_status_ends_the_ejection_too() -> None:
    async def unavailable(seen: Seen) -> bool:
        await seen.answer(b"busy", "503 Service Unavailable")
        return True

    settings = f"balance: round_robin, eject: {{failures: 2, {FOR_A_MINUTE}}}"
    async with upstream_with(well, closing, settings=settings) as (upstream, (_, bad)):
        await fail_twice(upstream)
        bad.behave = unavailable
        state = upstream.endpoints.states[1]
        make_due(state)
        assert await call(upstream) == b"busy"
        assert not state.ejection.is_ejected

        async def refuse(answer: Answer) -> bytes:
            raise GatewayError(ErrorKind.BACKEND_ERROR, "busy", status=answer.status)

        upstream.note_failure(state, None, "it died")
        upstream.note_failure(state, None, "it died")
        make_due(state)
        with pytest.raises(GatewayError):
            await call(upstream, read=refuse)
        assert not state.ejection.is_ejected


@pytest.mark.parametrize(
    ("panic_below", "n_endpoints", "n_ejected"),
    [(0, 2, 2), (0.5, 2, 1), (0.5, 3, 1), (1, 2, 0), (0, 1, 0), (0.25, 4, 3)],
)
async def test_so_many_endpoints_stay_whatever_they_do(panic_below: float, n_endpoints: int, n_ejected: int) -> None:
    settings = f"balance: round_robin, retry: {{attempts: 1}}, eject: {{failures: 1, panic_below: {panic_below}}}"
    async with upstream_with(*[closing] * n_endpoints, settings=settings) as (upstream, backends):
        for number in range(4 * n_endpoints):
            await failing_call(upstream, number)
        assert sum(state.ejection.is_ejected for state in upstream.endpoints.states) == n_ejected
        n_before = [len(backend.seen) for backend in backends]
        for number in range(n_endpoints):
            await failing_call(upstream, number)
        asked = [len(backend.seen) > before for backend, before in zip(backends, n_before, strict=True)]
        # when none would be left, all are tried
        expected = [not state.ejection.is_ejected for state in upstream.endpoints.states]
        assert asked == (expected if any(expected) else [True] * n_endpoints)


async def test_an_endpoint_that_is_down_gets_nothing_unless_all_are() -> None:
    async with upstream_with(well, well, settings="balance: round_robin") as (upstream, (one, other)):
        states = upstream.endpoints.states
        states[0].is_up = False
        for number in range(4):
            await call(upstream, number)
        assert (len(one.seen), len(other.seen)) == (0, 4)
        assert upstream.is_usable
        states[1].is_up = False
        assert not upstream.is_usable
        for number in range(4):
            await call(upstream, number)
        assert (len(one.seen), len(other.seen)) == (2, 6)


async def test_who_has_waited_for_a_connection_goes_to_an_endpoint_that_is_well_by_then() -> None:
    gate = Gate()
    settings = "balance: round_robin, max_connections: 1, queue: {length: 1}"
    async with upstream_with(gate, gate, settings=settings) as (upstream, (one, other)):
        first = asyncio.ensure_future(call(upstream))
        await gate.until_waiting(1)
        attempts: list[Attempt] = []
        second = asyncio.ensure_future(call(upstream, attempts=attempts))
        while not attempts:
            await asyncio.sleep(0)
        assert attempts[0].endpoint == one.url
        upstream.endpoints.states[0].is_up = False
        gate.open.set()
        await asyncio.gather(first, second)
        assert attempts[0].endpoint == other.url
        assert (len(one.seen), len(other.seen)) == (0, 2)


async def test_requests_go_where_the_fewest_are() -> None:
    gate = Gate()
    async with upstream_with(gate, well, settings="timeouts: {first_byte: 1m}") as (upstream, (slow, fast)):
        held = [asyncio.ensure_future(call(upstream)) for _ in range(2)]  # one to each
        await gate.until_waiting(1)
        await asyncio.wait(held, return_when=asyncio.FIRST_COMPLETED)
        assert [state.in_flight for state in upstream.endpoints.states] == [1, 0]
        for number in range(10):
            await call(upstream, number)
        assert (len(slow.seen), len(fast.seen)) == (1, 11)
        gate.open.set()
        await asyncio.gather(*held)


async def test_requests_with_a_key_stay_on_their_endpoint_as_long_as_it_lives() -> None:
    settings = f"eject: {{failures: 1, {FOR_A_MINUTE}}}"
    async with upstream_with(well, well, well, settings=settings) as (upstream, backends):
        keys = [f"sequence {number}" for number in range(30)]

        async def owners() -> dict[str, str]:
            found = {}
            for key in keys:
                attempts: list[Attempt] = []
                await call(upstream, key.replace(" ", ""), sticky_key=key, attempts=attempts)
                found[key] = attempts[-1].endpoint
            return found

        before = await owners()
        assert set(Counter(before.values())) == {backend.url for backend in backends}
        assert await owners() == before
        # one is known to be down: only its keys move
        down = upstream.endpoints.states[1]
        down.is_up = False
        meanwhile = await owners()
        assert {key for key in keys if meanwhile[key] != before[key]} == {
            key for key in keys if before[key] == down.url
        }
        down.is_up = True
        assert await owners() == before


async def test_a_key_goes_to_the_next_endpoint_when_its_own_cannot_be_reached() -> None:
    with nobody() as dead:
        async with counting(well) as one, counting(well) as other:
            upstream = upstream_of([one.url, dead, other.url], "eject: {failures: 3}")
            for key in map(str, range(20)):
                seen = set()
                for _ in range(3):
                    attempts: list[Attempt] = []
                    await call(upstream, sticky_key=key, attempts=attempts)
                    seen.add(attempts[-1].endpoint)
                assert len(seen) == 1
            assert [state.ejection.is_ejected for state in upstream.endpoints.states] == [False, True, False]
            await upstream.close()


async def test_a_request_with_a_key_is_no_trial_of_an_endpoint_that_is_not_its_own() -> None:
    settings = f"eject: {{failures: 1, {FOR_A_MINUTE}}}"
    async with upstream_with(well, well, settings=settings) as (upstream, (_, other)):
        keys = [str(number) for number in range(20)]
        own = {}
        for key in keys:
            attempts: list[Attempt] = []
            await call(upstream, sticky_key=key, attempts=attempts)
            own[key] = attempts[0].endpoint
        state = upstream.endpoints.states[1]
        upstream.note_failure(state, None, "it died")
        make_due(state)
        n_before = len(other.seen)
        for key in keys:
            if own[key] != other.url:
                await call(upstream, sticky_key=key)
        assert len(other.seen) == n_before
        assert state.ejection.is_ejected
        await call(upstream, sticky_key=next(key for key in keys if own[key] == other.url))
        assert len(other.seen) == n_before + 1
        assert not state.ejection.is_ejected


async def test_a_probe_that_succeeds_brings_the_endpoint_back_when_the_ejection_is_over() -> None:
    """No request is needed: else an alert would last until one happens to come."""

    async def failing_but_alive(seen: Seen) -> bool:
        return await well(seen) if seen.target == "/alive" else await closing(seen)

    settings = f"{IN_TURN}, health: {{path: /alive, interval: 50ms}}, eject: {{failures: 2, {FOR_A_MINUTE}}}"
    async with upstream_with(well, failing_but_alive, settings=settings) as (upstream, _):
        await upstream.start()
        await fail_twice(upstream)
        _, state = upstream.endpoints.states
        await asyncio.sleep(0.2)
        assert state.ejection.is_ejected  # probes before its end say nothing
        make_due(state)
        async with asyncio.timeout(5):
            while state.ejection.is_ejected:
                await asyncio.sleep(0.01)
        assert state.reason == "a probe of it has succeeded"


async def test_an_endpoint_on_trial_is_not_counted_among_those_that_are_left_until_it_is_back() -> None:
    """`panic_below`: while one of two has yet to show that it works, the other stays whatever it does."""
    settings = f"{IN_TURN}, eject: {{failures: 1, {FOR_A_MINUTE}, panic_below: 0.5}}"
    async with upstream_with(well, well, settings=settings) as (upstream, _):
        one, other = upstream.endpoints.states
        upstream.note_failure(other, None, "it died")
        make_due(other)
        upstream.note_failure(one, None, "it died too")
        assert (one.ejection.is_ejected, other.ejection.is_ejected) == (False, True)
        await call(upstream)  # the trial
        assert not other.ejection.is_ejected
        upstream.note_failure(one, None, "it died again")
        assert one.ejection.is_ejected
