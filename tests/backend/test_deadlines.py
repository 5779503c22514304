"""The deadlines of a call: which one has run out, and what the error says."""

import asyncio

import pytest

from gateway.backend.deadlines import Deadlines
from gateway.errors import ErrorKind

MINUTES_S = {"first_byte": 60.0, "idle": 60.0, "total": 60.0}


async def test_the_error_names_the_deadline_that_ran_out_even_if_the_call_moved_on() -> None:
    async with asyncio.timeout(None) as timeout:
        loop = asyncio.get_running_loop()
        deadlines = Deadlines(timeout, {**MINUTES_S, "idle": 1e-9}, loop.time() + 60)
        deadlines.enter("idle")
        while loop.time() <= deadlines._deadline:
            pass
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(None) as inner:
                deadlines._timeout = inner
                deadlines._look()
                deadlines.enter("client")
                await asyncio.sleep(10)
        deadlines.stop()
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
    loop = asyncio.get_running_loop()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as timeout:
            deadlines = Deadlines(timeout, limits_s, loop.time() + limits_s["total"])
            deadlines.enter(phase)
            await asyncio.Event().wait()
    deadlines.stop()
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
    """Design: ejection. *n_seconds_ago* is when the phase began; the call may have begun long before."""
    loop = asyncio.get_running_loop()
    ends_by_total = limits_s.get(phase, 100.0) >= limits_s["total"]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as timeout:
            now = loop.time()
            with monkeypatch.context() as earlier:
                earlier.setattr(loop, "time", lambda: now - n_seconds_ago)
                deadlines = Deadlines(timeout, limits_s, now if ends_by_total else now + 60)
                deadlines.enter(phase)
            await asyncio.Event().wait()
    deadlines.stop()
    assert deadlines.was_silent() == was_silent
