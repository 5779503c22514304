"""The threads of an adapter: how many run at once, what they give back, and what they keep."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest

from gateway.serving import adapter_threads
from gateway.serving.adapter_threads import FEW_THREADS, MAX_THREADS, AdapterThreads


class Work:
    """Calls that wait for a gate, and the number of those that do."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.running = 0
        self._lock = threading.Lock()

    def __call__(self) -> int:
        with self._lock:
            self.running += 1
        assert self.gate.wait(30)
        with self._lock:
            self.running -= 1
        return 7

    async def until_running(self, number: int) -> None:
        async with asyncio.timeout(10):
            while self.running != number:
                await asyncio.sleep(0.001)


async def test_many_that_wait_run_at_once() -> None:
    threads, work = AdapterThreads(), Work()
    calls = [asyncio.create_task(threads.run(work)) for _ in range(MAX_THREADS + 5)]
    await work.until_running(MAX_THREADS)
    assert threads.are_all_in_use
    work.gate.set()
    assert set(await asyncio.gather(*calls)) == {7}
    assert not threads.are_all_in_use


async def test_few_that_work_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python does one thing at a time, so the event loop would wait for all of them."""
    looks = 0

    def works(_: object) -> float:
        nonlocal looks
        looks += 1
        return float(looks)

    monkeypatch.setattr(adapter_threads._Thread, "worked_s", property(works))
    threads, work = AdapterThreads(), Work()
    calls = [asyncio.create_task(threads.run(work)) for _ in range(10)]
    while looks < 20 * FEW_THREADS:
        await asyncio.sleep(0.001)
    assert work.running == FEW_THREADS
    work.gate.set()
    assert set(await asyncio.gather(*calls)) == {7}


async def test_who_leaves_while_waiting_takes_no_place() -> None:
    threads, work = AdapterThreads(), Work()
    calls = [asyncio.create_task(threads.run(work)) for _ in range(2 * MAX_THREADS)]
    await work.until_running(MAX_THREADS)
    for call in calls[MAX_THREADS:]:
        call.cancel()
    last = asyncio.create_task(threads.run(work))
    work.gate.set()
    assert await last == 7
    assert set(await asyncio.gather(*calls[:MAX_THREADS])) == {7}
    assert await threads.run(lambda: 5) == 5


async def test_what_a_caller_leaves_is_kept_until_the_thread_ends() -> None:
    threads, work = AdapterThreads(), Work()
    said: list[str] = []

    def leave() -> Callable[[], object]:
        said.append("left")
        return lambda: said.append("ended")

    call = asyncio.create_task(threads.run(work, leave))
    await work.until_running(1)
    call.cancel()
    await asyncio.wait([call])
    assert said == ["left"]
    work.gate.set()
    await threads.run(lambda: 0, leave)
    async with asyncio.timeout(10):
        while len(said) < 2:
            await asyncio.sleep(0.001)
    assert said == ["left", "ended"]


@pytest.mark.parametrize("raised", [SystemExit(1), KeyboardInterrupt(), GeneratorExit(), StopIteration()])
async def test_what_would_end_the_loop_is_an_error(raised: BaseException) -> None:
    def fail() -> None:
        raise raised

    with pytest.raises(RuntimeError):
        await AdapterThreads().run(fail)


async def test_an_error_does_not_wait_for_the_garbage_collector() -> None:
    class Large:
        pass

    def fail(large: Large) -> None:
        raise ValueError

    large = Large()
    seen = weakref.ref(large)
    gc.disable()
    try:
        with suppress(ValueError):
            await AdapterThreads().run(partial(fail, large))
        del large
        async with asyncio.timeout(10):
            while seen() is not None:
                await asyncio.sleep(0.001)
    finally:
        gc.enable()
