"""The deadlines of a backend's attempts: which timeout runs in which phase, and the error when it is over."""

import asyncio
import math

from gateway.config.schema import Timeouts
from gateway.errors import ErrorKind, GatewayError

_WORDS = {"idle": "was silent in the middle for", "first_byte": "did not begin to answer within"}

LATE_S = 0.01
"""How late a deadline may be at most, so that timeouts of less do not keep the processor busy."""


class DeadlineTimer:
    """Ends the attempts of a backend when their time is over, by one timer of the event loop for all of them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, timeouts: Timeouts) -> None:
        self.loop = loop
        self.timeouts = timeouts
        self.running: set[Deadlines] = set()
        # a phase that begins meanwhile cannot end before the next look, so entering it only notes the time
        self.pause_s = max(LATE_S, min(timeouts.first_byte, timeouts.idle))
        self._timer: asyncio.TimerHandle | None = None

    def look_by(self, at_s: float) -> None:
        """Call `_look` at *at_s*, or earlier if that is planned already."""
        if self._timer is None or at_s < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self.loop.call_at(at_s, self._look)

    def _look(self) -> None:
        """End the phases whose time is over, and look again when the time of another could be over at the earliest."""
        now_s, self._timer = self.loop.time(), None
        for each in tuple(self.running):
            if now_s < each.ends_at:
                self.look_by(max(now_s + LATE_S, min(each.ends_at, now_s + self.pause_s)))
            else:
                each.expire(now_s)


class Deadlines:
    """The timeouts of one attempt, one for each of its phases; no phase lasts longer than `timeouts.total` allows.

    When a timeout is over, the task is cancelled. The task then calls `stop`, which tells whether the cancellation came
    from here, and raises the error that `expired` gives. `asyncio.timeout` works the same way.
    """

    phase = "total"
    """See `enter`."""
    # set when a timeout is over:
    _ended_in: str | None = None  # the phase
    _is_own_limit = False  # whether the phase's own limit was over, and not `total`
    _silent_s = 0.0

    def __init__(self, timer: DeadlineTimer, total_at: float, now_s: float) -> None:
        """Begin those of an attempt by the running task; `total` is over at *total_at*, and `stop` must follow."""
        self.loop = timer.loop
        self.total_at = total_at
        self._timer = timer
        task = asyncio.current_task(timer.loop)
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        self._entered_s = now_s  # when the last phase began that is the endpoint's time
        timer.running.add(self)
        timer.look_by(min(total_at, now_s + timer.pause_s))

    @property
    def ends_at(self) -> float:
        """When the phase's time is over, by the event loop's clock."""
        limit_s: float = getattr(self._timer.timeouts, self.phase) if self.phase in _WORDS else math.inf
        return min(self.total_at, self._entered_s + limit_s)

    def enter(self, phase: str) -> None:
        """Enter *phase*: `first_byte` or `idle`, or one of four phases that only `total` ends.

        In `queue` and `client` the attempt waits for a connection or for the client; in `gateway` the gateway works on
        the answer; in `total` it connects.
        """
        self.phase = phase
        if phase in _WORDS:
            self._entered_s = self.loop.time()

    def expire(self, now_s: float) -> None:
        """Cancel the task, because the phase's time is over."""
        self._ended_in = self.phase  # the attempt may enter another phase before it is cancelled
        self._is_own_limit = self.phase in _WORDS and now_s < self.total_at
        self._silent_s = now_s - self._entered_s
        self._timer.running.discard(self)
        self._task.cancel()

    def stop(self) -> bool:
        """End the deadlines with the attempt; True if these deadlines, and nobody else, have cancelled the task."""
        self._timer.running.discard(self)
        return self._ended_in is not None and self._task.uncancel() <= self._cancelling

    def was_silent(self) -> bool:
        """Whether the endpoint was silent in the time that ran out.

        If `total` ran out, which may be shorter than the other timeouts, the endpoint counts as silent only if it took
        and sent nothing for more than half of `total`. Waiting for a free connection or for the client never counts.
        """
        if self._ended_in in ("queue", "client", "gateway"):
            return False
        return self._is_own_limit or self._silent_s > self._timer.timeouts.total / 2

    def expired(self, backend: str) -> GatewayError:
        """The error to raise after a timeout: TIMEOUT, or OVERLOADED in the queue, or SLOW_CLIENT."""
        if self._is_own_limit and self._ended_in is not None:
            limit = f"{getattr(self._timer.timeouts, self._ended_in):g} s (timeouts.{self._ended_in})"
            return GatewayError(ErrorKind.TIMEOUT, f"backend {backend!r} {_WORDS[self._ended_in]} {limit}")
        total = f"{self._timer.timeouts.total:g} s (timeouts.total)"
        if self._ended_in == "queue":
            words = f"backend {backend!r}: all connections (max_connections) were in use for {total}"
            return GatewayError(ErrorKind.OVERLOADED, words, headers=[("Retry-After", "1")], sent=False)
        if self._ended_in == "client":
            return GatewayError(ErrorKind.SLOW_CLIENT, f"the client kept the request open for more than {total}")
        if self._ended_in == "gateway":
            words = f"the answer of backend {backend!r} was there, and to read it took longer than {total}"
            return GatewayError(ErrorKind.TIMEOUT, words)
        return GatewayError(ErrorKind.TIMEOUT, f"backend {backend!r} took longer than {total}")
