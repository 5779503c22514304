"""Cuts the codec's work into short slices, between which other requests run, and measures its time."""

import asyncio
import time
from collections.abc import Generator, Iterator
from typing import TypeVar
from weakref import WeakKeyDictionary

import msgspec

T = TypeVar("T")

SLICE_S = 0.0005
"""How long the codec may keep the event loop before other requests run. A turn of the loop costs 15 us.

A small request needs a few turns of the loop. In each turn it waits for one slice at most, of one large request.
"""

RESTED_S = 0.0002
"""After so long without codec work a request's slice begins anew: it has waited, and other requests have run."""


_turns: "WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]" = WeakKeyDictionary()


async def next_turn() -> None:
    """Wait at least until the next turn of the event loop, and until all that have called before have gone on.

    So of the requests that have used up their slice one goes on in each turn. If all of them did, a small request would
    wait in each of its own turns for a slice of every large request. The large requests lose nothing, since they share
    one processor in any case.
    """
    loop = asyncio.get_running_loop()
    turns = _turns.get(loop)
    if turns is None:
        turns = _turns[loop] = asyncio.Lock()
    is_free = not turns.locked()
    async with turns:  # whoever waits for it is woken in the next turn
        if is_free:
            await asyncio.sleep(0)


class Pacer(msgspec.Struct, gc=False):
    """Runs codec work of one request, lets other requests run after each slice, and counts the work's time."""

    seconds: float = 0.0
    """The time of the work; waits between its slices are not in it."""
    began_s: float = 0.0
    """When the first steps began, by `time.perf_counter`; 0 if there were none."""
    ended_s: float = 0.0
    """When the last work ended."""
    _resumed_s: float = msgspec.field(default_factory=time.perf_counter)

    async def run(self, steps: Generator[None, None, T]) -> T:
        """Drive *steps* to the end and return its value."""
        started_s = time.perf_counter()
        self.began_s = self.began_s or started_s
        if started_s - self.ended_s > RESTED_S:
            self._resumed_s = started_s
        try:
            while True:
                next(steps)
                now_s = time.perf_counter()
                if now_s - self._resumed_s > SLICE_S:
                    try:
                        await next_turn()
                    finally:  # the wait is not the codec's time, also if it is cancelled
                        self._resumed_s = time.perf_counter()
                        self.seconds -= self._resumed_s - now_s
        except StopIteration as stop:
            value: T = stop.value
            return value
        finally:
            self.ended_s = time.perf_counter()
            self.seconds += self.ended_s - started_s

    async def next(self, pieces: Iterator[T]) -> T | None:
        """The next of *pieces*, None at the end."""
        started_s = time.perf_counter()
        piece = next(pieces, None)
        self.ended_s = time.perf_counter()
        self.seconds += self.ended_s - started_s
        await self.breathe()
        return piece

    async def breathe(self) -> None:
        """Let other requests run, if the slice is used up."""
        if time.perf_counter() - self._resumed_s > SLICE_S:
            await next_turn()
            self._resumed_s = time.perf_counter()
