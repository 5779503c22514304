"""Cuts the codec's work into short slices, between which other requests run, and measures its time."""

import asyncio
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

SLICE_S = 0.00025
"""How long the codec may keep the event loop before other requests run.

A small request needs a few turns of the loop. In each turn it waits for one slice at most, of one large request.
"""

LONE_SLICE_S = 0.00075
"""The slice of the only request in flight. It is longer since a turn of the loop costs 15 us; turns are 4 % of an
image's time with this slice."""

RESTED_S = 0.0002
"""After so long without codec work a request's slice begins anew: it has waited, and other requests have run."""


@dataclass(slots=True)
class Load:
    """The load of this process, over all its event loops and gateways."""

    requests: int = 0
    """How many requests are in flight, small ones included; the code that serves them counts them here."""


LOAD = Load()


_turns: "WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]" = WeakKeyDictionary()


async def _next_turn() -> None:
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


class Pacer:
    """Runs the codec's work for one request, lets other requests run after each slice, and counts the codec's time."""

    __slots__ = ("_resumed", "_seconds", "_worked_until")

    def __init__(self) -> None:
        self._resumed = self._worked_until = time.perf_counter()
        self._seconds = 0.0

    async def run(self, steps: Generator[None, None, T]) -> T:
        """Drive *steps* to the end and return its value."""
        started = time.perf_counter()
        if started - self._worked_until > RESTED_S:
            self._resumed = started
        try:
            while True:
                next(steps)
                now = time.perf_counter()
                if self._is_over(now):
                    try:
                        await _next_turn()
                    finally:  # the wait is not the codec's time, also if it is cancelled
                        self._resumed = time.perf_counter()
                        self._seconds -= self._resumed - now
        except StopIteration as stop:
            value: T = stop.value
            return value
        finally:
            self._worked_until = time.perf_counter()
            self._seconds += self._worked_until - started

    def _is_over(self, now: float) -> bool:
        """Whether the slice is used up."""
        worked = now - self._resumed
        return worked > SLICE_S and (worked > LONE_SLICE_S or LOAD.requests != 1)

    def take_seconds(self) -> float:
        """The codec's time in seconds since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    async def next(self, pieces: Iterator[T]) -> T | None:
        """The next of *pieces*, None at the end."""
        started = time.perf_counter()
        piece = next(pieces, None)
        self._seconds += time.perf_counter() - started
        await self.breathe()
        return piece

    async def breathe(self) -> None:
        """Let other requests run, if the slice is used up."""
        if self._is_over(time.perf_counter()):
            await _next_turn()
            self._resumed = time.perf_counter()
