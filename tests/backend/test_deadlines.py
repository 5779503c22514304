"""The deadlines of attempts: which one has run out, and what the error says."""

import asyncio
import weakref
from collections.abc import Callable, Mapping

import pytest

from gateway.backend.deadlines import Deadlines, DeadlineTimer
from gateway.config.schema import Timeouts
from gateway.config.values import Duration
from gateway.errors import ErrorKind

MINUTES_S = {"first_byte": 60.0, "idle": 60.0, "total": 60.0}


def timeouts(limits_s: Mapping[str, float]) -> Timeouts:
    return Timeouts(**{key: Duration(limit_s) for key, limit_s in limits_s.items()})


def begun(limits_s: Mapping[str, float], total_s: float = 60.0) -> Deadlines:
    """The deadlines of an attempt by this task that begins now."""
    loop = asyncio.get_running_loop()
    return Deadlines(DeadlineTimer(loop, timeouts(limits_s)), loop.time() + total_s, loop.time())


async def expire(limits_s: Mapping[str, float], total_s: float, phase: str) -> Deadlines:
    """Deadlines that end this task in *phase*, and were stopped then."""
    deadlines = begun(limits_s, total_s)
    with pytest.raises(asyncio.CancelledError):
        deadlines.enter(phase)
        await asyncio.Event().wait()
    assert deadlines.stop()
    return deadlines


async def test_the_error_names_the_deadline_that_ran_out_even_if_the_call_moved_on() -> None:
    loop = asyncio.get_running_loop()
    deadlines = begun({**MINUTES_S, "idle": 1e-9})
    deadlines.enter("idle")
    with pytest.raises(asyncio.CancelledError):
        loop.call_soon(deadlines.expire, loop.time() + 1)
        loop.call_soon(deadlines.enter, "client")
        await asyncio.sleep(10)
    assert deadlines.stop()
    error = deadlines.expired("b")
    assert (error.kind, "timeouts.idle" in error.message) == (ErrorKind.TIMEOUT, True)


@pytest.mark.parametrize(
    ("phase", "limits_s", "kind", "words"),
    [
        ("first_byte", {**MINUTES_S, "first_byte": 0.0}, ErrorKind.TIMEOUT, "did not begin to answer"),
        ("idle", {**MINUTES_S, "idle": 0.0}, ErrorKind.TIMEOUT, "was silent in the middle"),
        ("total", {**MINUTES_S, "total": 0.0}, ErrorKind.TIMEOUT, "timeouts.total"),
        ("idle", {**MINUTES_S, "total": 0.0}, ErrorKind.TIMEOUT, "timeouts.total"),
        ("client", {**MINUTES_S, "total": 0.0}, ErrorKind.SLOW_CLIENT, "the client kept the request open"),
        ("queue", {**MINUTES_S, "total": 0.0}, ErrorKind.OVERLOADED, "max_connections"),
    ],
)
async def test_each_phase_has_its_error(phase: str, limits_s: dict[str, float], kind: ErrorKind, words: str) -> None:
    deadlines = await expire(limits_s, limits_s["total"], phase)
    error = deadlines.expired("b")
    assert error.kind is kind
    assert words in error.message
    assert "'b'" in error.message or kind is ErrorKind.SLOW_CLIENT


LONG_S = {"first_byte": 100.0, "idle": 100.0, "total": 10.0}


@pytest.mark.parametrize(
    ("phase", "limits_s", "n_seconds_ago", "was_silent"),
    [
        ("first_byte", {**MINUTES_S, "first_byte": 0.0}, 0, True),
        ("idle", {**MINUTES_S, "idle": 0.0}, 0, True),
        # where total ends it, the endpoint must have been silent for more than half of that time
        ("first_byte", LONG_S, 6, True),
        ("first_byte", LONG_S, 4, False),
        ("idle", LONG_S, 6, True),
        ("idle", LONG_S, 4, False),
        ("total", LONG_S, 6, True),
        ("total", LONG_S, 4, False),
        ("client", LONG_S, 10, False),
        ("queue", LONG_S, 10, False),
    ],
)
async def test_only_the_endpoints_own_silence_counts_against_it(
    phase: str, limits_s: dict[str, float], n_seconds_ago: float, was_silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """See docs/configuration.md, "When an endpoint fails". *n_seconds_ago* is when the phase began."""
    loop = asyncio.get_running_loop()
    ends_by_total = limits_s.get(phase, 100.0) >= limits_s["total"]
    now_s = loop.time()
    with monkeypatch.context() as earlier:
        earlier.setattr(loop, "time", lambda: now_s - n_seconds_ago)
        total_at = now_s if ends_by_total else now_s + 60
        deadlines = Deadlines(DeadlineTimer(loop, timeouts(limits_s)), total_at, now_s - n_seconds_ago)
        deadlines.enter(phase)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.Event().wait()
    assert deadlines.stop()
    assert deadlines.was_silent() == was_silent


class Attempts:
    """Tasks with attempts of the same limits, and in which order their deadlines ended them."""

    def __init__(self, limits_s: Mapping[str, float]) -> None:
        self.timer = DeadlineTimer(asyncio.get_running_loop(), timeouts(limits_s))
        self.ended: list[str] = []

    async def run(self, name: str, phases: list[str], total_s: float = 60.0, pause_s: float = 0.0) -> None:
        """An attempt that goes through *phases*, with a pause between them, and then ends by a deadline or never."""
        loop = asyncio.get_running_loop()
        deadlines = Deadlines(self.timer, loop.time() + total_s, loop.time())
        try:
            for phase in phases:
                deadlines.enter(phase)
                await asyncio.sleep(pause_s)
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if not deadlines.stop():
                raise
            self.ended.append(name)


async def test_each_attempt_ends_at_its_own_deadline() -> None:
    attempts = Attempts({"first_byte": 0.15, "idle": 0.3, "total": 60.0})
    await asyncio.gather(
        attempts.run("idle", ["first_byte", "idle"]),
        attempts.run("first byte", ["first_byte"]),
        attempts.run("idle at last", ["first_byte", "idle", "idle", "idle"], pause_s=0.1),
        attempts.run("total", ["client"], total_s=0.05),
    )
    assert attempts.ended == ["total", "first byte", "idle", "idle at last"]


async def test_attempts_share_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    set_at = []
    call_at = loop.call_at

    def count(when: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        set_at.append(when)
        return call_at(when, callback)

    timer = DeadlineTimer(loop, timeouts(MINUTES_S))
    with monkeypatch.context() as counting:
        counting.setattr(loop, "call_at", count)
        under_way = [Deadlines(timer, loop.time() + 60, loop.time()) for _ in range(100)]
        assert not any(each.stop() for each in under_way)
    assert len(set_at) == 1
    assert not timer.running


async def test_attempts_that_are_over_leave_no_timer_of_their_own_and_no_cycle() -> None:
    deadlines = begun({"first_byte": 0.02, "idle": 0.02, "total": 60.0})
    await asyncio.sleep(0.05)  # the first look has come, found nothing, and is repeated
    assert not deadlines.stop()
    known = weakref.ref(deadlines)
    del deadlines
    assert known() is None
    await asyncio.sleep(0.05)


async def test_a_cancellation_of_the_task_is_not_taken_for_the_deadlines() -> None:
    async def attempt() -> None:
        deadlines = begun(MINUTES_S)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            deadlines.expire(deadlines.total_at)  # in the same turn
            assert not deadlines.stop()
            raise

    task = asyncio.ensure_future(attempt())
    await asyncio.sleep(0)
    task.cancel()
    assert isinstance((await asyncio.gather(task, return_exceptions=True))[0], asyncio.CancelledError)


async def test_an_expired_attempt_leaves_no_cancellation_behind() -> None:
    deadlines = await expire({**MINUTES_S, "idle": 0.0}, 60.0, "idle")
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)
    assert deadlines.phase == "idle"
