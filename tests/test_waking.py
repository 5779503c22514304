"""A bell wakes one task: at once where no task runs, else in the next turn; and lets it be cancelled."""

import asyncio

import pytest

from gateway.waking import Bell


class Waiting:
    """A task that counts how often the bell has let it go on."""

    def __init__(self) -> None:
        self.bell = Bell(asyncio.get_running_loop())
        self.n_rings = 0
        self.task = asyncio.create_task(self._wait())

    async def _wait(self) -> None:
        while True:
            await self.bell
            self.n_rings += 1


async def called_by_the_loop(waiting: Waiting) -> list[int]:
    """How often the task has gone on before and after the bell is rung where no task runs, as in a protocol."""
    seen: list[int] = []
    done = asyncio.get_running_loop().create_future()

    def ring() -> None:
        seen.append(waiting.n_rings)
        waiting.bell.ring_now()
        seen.append(waiting.n_rings)
        done.set_result(None)

    asyncio.get_running_loop().call_soon(ring)
    await done
    return seen


async def test_a_task_goes_on_at_once_where_no_other_runs() -> None:
    waiting = Waiting()
    await asyncio.sleep(0)
    assert await called_by_the_loop(waiting) == [0, 1]
    assert await called_by_the_loop(waiting) == [1, 2]
    waiting.task.cancel()


async def test_a_task_goes_on_in_the_next_turn_where_another_one_rings() -> None:
    waiting = Waiting()
    await asyncio.sleep(0)
    for ring in (waiting.bell.ring_now, waiting.bell.ring):
        before = waiting.n_rings
        ring()
        ring()  # while it goes on already
        assert waiting.n_rings == before
        await asyncio.sleep(0)
        assert waiting.n_rings == before + 1
        await asyncio.sleep(0)
        assert waiting.n_rings == before + 1
    waiting.task.cancel()


async def test_nobody_is_woken_by_a_bell_that_rang_before() -> None:
    waiting = Waiting()
    waiting.bell.ring_now()
    waiting.bell.ring()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert waiting.n_rings == 0
    waiting.task.cancel()


@pytest.mark.parametrize("is_rung", [False, True])
async def test_a_task_that_waits_or_is_about_to_go_on_can_be_cancelled(is_rung: bool) -> None:
    waiting = Waiting()
    await asyncio.sleep(0)
    if is_rung:
        waiting.bell.ring()
    waiting.task.cancel()
    waiting.bell.ring_now()
    with pytest.raises(asyncio.CancelledError):
        await waiting.task
    assert waiting.n_rings == 0


async def test_waiting_may_time_out_and_begin_again() -> None:
    bell = Bell(asyncio.get_running_loop())
    for _ in range(2):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await bell
    asyncio.get_running_loop().call_soon(bell.ring_now)
    async with asyncio.timeout(10):
        await bell
