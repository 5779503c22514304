"""Cuts the codec's work into short slices, between which other requests run, and measures its time."""

import asyncio
import time
from collections import deque
from collections.abc import Generator, Iterator
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


class Load:
    """The load of this process, over all its event loops and gateways."""

    __slots__ = ("requests",)

    def __init__(self) -> None:
        self.requests = 0
        """How many requests are in flight, small ones included; the code that serves them counts them here."""


LOAD = Load()


class Turns:
    """Lets requests that have used up their slice go on, one in each turn of the event loop.

    If all of them went on in the next turn, a small request would wait in each of its own turns for a slice of every
    large request. The large requests lose nothing, since they share one processor in any case.
    """

    __slots__ = ("_is_taken", "_waiting")

    def __init__(self) -> None:
        self._is_taken = False  # whether a request goes on in the next turn of the loop
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Wait at least until the next turn of the loop, and until all earlier calls of `wait` have gone on."""
        if not self._is_taken:
            self._is_taken = True
            try:
                await asyncio.sleep(0)
            finally:
                self._pass_on()
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        finally:
            if turn.done() and not turn.cancelled():
                self._pass_on()

    def _pass_on(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # a future that is done belonged to a request that was cancelled
                turn.set_result(None)
                return
        self._is_taken = False


_turns: "WeakKeyDictionary[asyncio.AbstractEventLoop, Turns]" = WeakKeyDictionary()


def _turns_of_this_loop() -> Turns:
    loop = asyncio.get_running_loop()
    turns = _turns.get(loop)
    if turns is None:
        turns = _turns[loop] = Turns()
    return turns


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
                        await _turns_of_this_loop().wait()
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
            await _turns_of_this_loop().wait()
            self._resumed = time.perf_counter()
