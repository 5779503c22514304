"""Large requests take turns: in each turn of the event loop one of them works for a slice."""

import asyncio
import time
from collections import Counter
from collections.abc import Generator

import pytest

from gateway.pacing import SLICE_S, Pacer

SLICES = 5


def spin() -> None:
    """Work for longer than a slice."""
    until = time.perf_counter() + 1.2 * SLICE_S
    while time.perf_counter() < until:
        pass


class Loop:
    """Counts the turns of the event loop, and who worked in which."""

    def __init__(self) -> None:
        self.turn = 0
        self.worked: list[tuple[int, str]] = []
        self._is_counting = True

    async def count(self) -> None:
        while self._is_counting:
            self.turn += 1
            await asyncio.sleep(0)

    async def work(self, name: str, slices: int = SLICES) -> None:
        pacer = Pacer()
        for _ in range(slices):
            spin()
            self.worked.append((self.turn, name))
            await pacer.breathe()

    def stop(self) -> None:
        self._is_counting = False


async def run(*names: str) -> Loop:
    loop = Loop()
    counting = asyncio.create_task(loop.count())
    await asyncio.gather(*(loop.work(name) for name in names))
    loop.stop()
    await counting
    return loop


async def test_in_each_turn_of_the_loop_one_of_many_works_after_their_first_slices() -> None:
    loop = await run(*"abcdefgh")
    first = 8
    slices_per_turn = Counter(turn for turn, _ in loop.worked[first:])
    assert set(slices_per_turn.values()) == {1}
    assert len(loop.worked) == 8 * SLICES


async def test_they_take_turns_in_order() -> None:
    loop = await run(*"abc")
    names = "".join(name for _, name in loop.worked)
    assert names == "abc" * SLICES


async def test_one_that_is_alone_works_in_every_turn() -> None:
    loop = await run("a")
    turns = [turn for turn, _ in loop.worked]
    assert turns == list(range(turns[0], turns[0] + SLICES))


@pytest.mark.parametrize("cancelled", ["a", "b", "c"])
@pytest.mark.parametrize("after_turns", [1, 2, 3, 4])
async def test_one_that_is_cancelled_leaves_its_turn_to_the_others(cancelled: str, after_turns: int) -> None:
    loop = Loop()
    counting = asyncio.create_task(loop.count())
    tasks = {name: asyncio.create_task(loop.work(name)) for name in "abc"}
    for _ in range(after_turns):
        await asyncio.sleep(0)
    tasks[cancelled].cancel()
    async with asyncio.timeout(5):
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        loop.stop()
        await counting
        await loop.work("d")
    assert tasks[cancelled].cancelled()
    done = Counter(name for _, name in loop.worked)
    assert {name: done[name] for name in done if name != cancelled} == dict.fromkeys(
        sorted({"a", "b", "c", "d"} - {cancelled}), SLICES
    )


async def test_another_loop_has_turns_of_its_own() -> None:
    loop = Loop()
    stuck = [asyncio.create_task(loop.work(name)) for name in "ab"]
    await asyncio.sleep(0)

    def elsewhere() -> Loop:
        return asyncio.run(run("c", "d"))

    other = await asyncio.to_thread(elsewhere)
    assert len(other.worked) == 2 * SLICES
    await asyncio.gather(*stuck)


async def test_the_wait_of_one_that_is_cancelled_is_not_the_codecs_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1.0

    def steps() -> Generator[None, None, None]:
        nonlocal now_s
        while True:
            now_s += 2.0  # of work
            yield

    monkeypatch.setattr(time, "perf_counter", lambda: now_s)
    pacer = Pacer()
    running = asyncio.create_task(pacer.run(steps()))
    await asyncio.sleep(0)
    now_s += 100.0  # of waiting
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert pacer.seconds == 2.0
