"""Cuts the codec's work into short slices, between which other requests run, and measures its time.

Not here: what the work is.
"""

import asyncio
import time
from collections.abc import Generator, Iterator
from typing import TypeVar

T = TypeVar("T")

SLICE_S = 0.00025
"""How long the codec may keep the event loop before other requests run.

A small request needs six turns of the loop, and in each it waits for one slice of every large request beside it.
"""

RESTED_S = 0.0002
"""A request that did no codec work for so long has waited for something meanwhile, and other requests have run."""


class Pacer:
    """Runs the codec's work for one request, lets other requests run every `SLICE_S`, and counts the codec's time."""

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
                if now - self._resumed > SLICE_S:
                    self._seconds += now - started
                    await asyncio.sleep(0)
                    started = self._resumed = time.perf_counter()
        except StopIteration as stop:
            value: T = stop.value
            return value
        finally:
            self._worked_until = time.perf_counter()
            self._seconds += self._worked_until - started

    def take_seconds(self) -> float:
        """The codec's time since it was last asked."""
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
        """Let other requests run, if the last time was more than `SLICE_S` ago."""
        if time.perf_counter() - self._resumed > SLICE_S:
            await asyncio.sleep(0)
            self._resumed = time.perf_counter()
