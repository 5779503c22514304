"""The threads in which the functions of an adapter run, and how many of them may run at once.

Not here: what runs in them (`adapter_modules`).
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

MAX_THREADS = 64
"""How many calls of one adapter run at once, if they wait more than they work; others wait, within `timeouts.total`."""

FEW_THREADS = 2
"""How many run at once in any case. Python does one thing at a time, so more that work make nobody faster: the event
loop has to wait for a turn of each. With 64 that worked, other requests took 400 ms; with 2 they take 17."""

WORK_LOOK_S = 0.005
"""How often is looked how much the threads work, while more than `FEW_THREADS` run or calls wait."""

LAZY, BUSY = 0.2, 0.6
"""Below the first share of one processor's time twice as many threads may run, above the second half as many."""


_Job = tuple[Callable[[], Any], Callable[[Any, BaseException | None], object]]
"""What a thread calls, and what it tells the result or the error."""


class _Thread:
    """One thread, which waits for jobs."""

    def __init__(self) -> None:
        self.jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self.clock: int | None = None
        """The clock of its time at work."""

    def work(self) -> None:
        """Do the jobs until None comes. Between two of them nothing of a request is held."""
        if hasattr(time, "pthread_getcpuclockid"):  # not on macOS, where all threads count as waiting
            self.clock = time.pthread_getcpuclockid(threading.get_ident())
        while (job := self.jobs.get()) is not None:
            function, tell = job
            result = None
            error: Exception | None = None
            try:
                result = function()
            except StopIteration:  # no future takes it
                error = RuntimeError("StopIteration in a thread")
            except Exception as raised:
                error = raised
            except BaseException as raised:  # the event loop, which raises it again, would end by SystemExit
                error = RuntimeError(f"{type(raised).__name__} in a thread")
            try:
                tell(result, error)
            except RuntimeError:  # the event loop has ended meanwhile
                return
            del job, function, tell, result, error

    @property
    def worked_s(self) -> float:
        """How long it has worked since its beginning."""
        with suppress(OSError):
            return time.clock_gettime(self.clock) if self.clock is not None else 0.0
        return 0.0


class _Caller:
    """Who waits for a thread."""

    is_answered = False
    at_end: Callable[[], object] | None = None
    """What is left to do when the thread has ended, because the caller has left before."""


class AdapterThreads:
    """The threads of one adapter. None of its functions holds the event loop, unless it holds Python itself.

    They are begun as they are needed, and end with this object. As daemons they keep no process from ending, whatever
    an adapter waits for.
    """

    def __init__(self) -> None:
        self._threads: list[_Thread] = []
        self._idle: list[_Thread] = []
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._n_running = 0
        self._allowed = FEW_THREADS
        self._looked_at_s: float | None = None
        self._worked_s = 0.0
        self._share = 1.0

    def __del__(self) -> None:
        for thread in self._idle:
            thread.jobs.put(None)

    @property
    def are_all_in_use(self) -> bool:
        """Whether calls wait for a thread, and no more threads may be begun."""
        return self._n_running >= MAX_THREADS

    async def run(self, function: Callable[[], T], leave: Callable[[], Callable[[], object]] | None = None) -> T:
        """What *function* returns or raises, but `RuntimeError` for what is no `Exception`.

        If the caller is cancelled, the thread goes on, keeps its place among `MAX_THREADS`, and nobody gets its result.
        *leave* is called then; what it returns is called when the thread has ended.
        """
        await self._turn()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        try:
            thread = self._idle.pop() if self._idle else self._begin_thread()
        except BaseException:
            self._give_back()
            raise

        caller = _Caller()
        tell: Callable[..., object] = partial(loop.call_soon_threadsafe, partial(self._end, thread, caller, done))
        thread.jobs.put((function, tell))
        del tell
        try:
            return await done
        except asyncio.CancelledError:
            if leave is not None and not caller.is_answered:
                caller.at_end = leave()
            raise
        finally:
            del done  # its error refers to this frame, and would wait for the garbage collector

    def _begin_thread(self) -> _Thread:
        thread = _Thread()
        threading.Thread(target=thread.work, name="adapter", daemon=True).start()
        self._threads.append(thread)
        return thread

    def _end(
        self, thread: _Thread, caller: _Caller, done: "asyncio.Future[T]", result: T, error: BaseException | None
    ) -> None:
        """*thread* has nothing to do any more."""
        self._idle.append(thread)
        caller.is_answered = True
        if caller.at_end is not None:
            caller.at_end()
        self._give_back()
        if done.done():
            return
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)

    # How many run at once

    async def _turn(self) -> None:
        """Wait until one more may run, and count it."""
        if self._n_running < self._allowed and not self._waiting:
            self._n_running += 1
            self._look_on()
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._look_on()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._waiting.remove(turn)
            else:
                self._give_back()
            raise

    def _give_back(self) -> None:
        self._n_running -= 1
        self._begin_waiting()

    def _begin_waiting(self) -> None:
        while self._waiting and self._n_running < self._allowed:
            turn = self._waiting.popleft()
            if turn.cancelled():  # its caller will not find it
                self._waiting.appendleft(turn)
                return
            self._n_running += 1
            turn.set_result(None)

    def _look_on(self) -> None:
        """Look every `WORK_LOOK_S`, unless that goes on already, or few run and none waits."""
        if self._looked_at_s is None and (self._waiting or self._n_running > FEW_THREADS):
            self._looked_at_s = time.monotonic()
            self._worked_s = self._all_worked_s()
            asyncio.get_running_loop().call_later(WORK_LOOK_S, self._look)

    def _look(self) -> None:
        """Allow more threads if those that run mostly wait, and fewer if they work."""
        assert self._looked_at_s is not None
        worked_s = self._all_worked_s()
        share = (worked_s - self._worked_s) / max(time.monotonic() - self._looked_at_s, WORK_LOOK_S / 2)
        self._share += (share - self._share) / 2  # one look may come when the threads had no turn
        self._looked_at_s = None
        if not self._waiting and self._n_running <= FEW_THREADS:
            self._allowed, self._share = FEW_THREADS, 1.0
            return
        if self._share < LAZY and self._waiting:
            self._allowed = min(MAX_THREADS, 2 * self._allowed)
        elif self._share > BUSY:
            self._allowed = max(FEW_THREADS, self._allowed // 2)
        self._begin_waiting()
        self._look_on()

    def _all_worked_s(self) -> float:
        return sum(thread.worked_s for thread in self._threads)
