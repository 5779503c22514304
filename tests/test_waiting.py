"""A task that waits for a connection goes on as soon as it is woken, and is cancelled as behind a future."""

import asyncio
from contextvars import ContextVar

import pytest

from gateway.waiting import Waiter, wake_soon

SAID = ContextVar("SAID", default="")


async def began(waiter: Waiter, steps: list[str]) -> asyncio.Task[None]:
    """A task that waits, and then notes what its context says."""

    async def wait() -> None:
        SAID.set("its own")
        await waiter
        steps.append(SAID.get())

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    return task


def from_the_loop(call: object, *arguments: object) -> asyncio.Future[None]:
    """Make *call* as the event loop does when bytes have come: in no task. Done afterwards."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    loop.call_soon(lambda: done.set_result(call(*arguments)))  # type: ignore[operator]
    return done


async def test_a_task_goes_on_before_wake_returns_and_in_its_own_context() -> None:
    waiter, steps = Waiter(asyncio.get_running_loop()), list[str]()
    task = await began(waiter, steps)

    def come() -> None:
        waiter.wake()
        steps.append("behind wake")

    await from_the_loop(come)
    await task
    assert steps == ["its own", "behind wake"]


async def test_a_task_that_is_woken_soon_goes_on_in_the_next_turn() -> None:
    waiter, steps = Waiter(asyncio.get_running_loop()), list[str]()
    task = await began(waiter, steps)

    def come() -> None:
        wake_soon(waiter)
        steps.append("behind wake_soon")

    await from_the_loop(come)
    await task
    assert steps == ["behind wake_soon", "its own"]


async def test_another_task_wakes_it_in_the_next_turn() -> None:
    waiter, steps = Waiter(asyncio.get_running_loop()), list[str]()
    task = await began(waiter, steps)
    waiter.wake()
    assert steps == []
    await task
    assert steps == ["its own"]


@pytest.mark.parametrize("way", [Waiter.wake, wake_soon])
async def test_what_came_before_is_not_waited_for(way: object) -> None:
    waiter = Waiter(asyncio.get_running_loop())
    way(waiter)  # type: ignore[operator]
    way(waiter)  # type: ignore[operator]
    wake_soon(None)
    await waiter


async def test_a_task_that_is_cancelled_while_it_waits_ends() -> None:
    waiter, steps = Waiter(asyncio.get_running_loop()), list[str]()
    task = await began(waiter, steps)
    task.cancel()
    await from_the_loop(Waiter.wake, waiter)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert steps == []


async def test_a_task_that_is_cancelled_when_it_was_woken_ends_too() -> None:
    waiter, steps = Waiter(asyncio.get_running_loop()), list[str]()
    task = await began(waiter, steps)
    wake_soon(waiter)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert steps == []


async def test_a_time_out_ends_the_wait() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await Waiter(asyncio.get_running_loop())
