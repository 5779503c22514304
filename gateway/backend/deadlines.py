"""The deadlines of a backend's attempts: which timeout runs in which phase, and the error when it is over.

Not here: the values of the timeouts (`config`), and the connection's fate (`attempt`).
"""

import asyncio
import math

from gateway.config.schema import Timeouts
from gateway.errors import ErrorKind, GatewayError

_WORDS = {"idle": "was silent in the middle for", "first_byte": "did not begin to answer within"}

LATE_S = 0.01
"""How late a deadline may be, so that many that are over soon after each other are looked at together."""


class Watch:
    """The timer that all attempts of one backend share: one for each would take 3 % of a small request.

    It goes off when one of their phases could be over at the earliest. A phase that begins later cannot end before, so
    entering a phase costs one assignment; only the `total` of a new attempt may ask for an earlier look.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, timeouts: Timeouts) -> None:
        self.loop = loop
        self.timeouts = timeouts
        self.running: set[Deadlines] = set()
        self.looks_at = math.inf
        """When the timer goes off."""
        self._timer: asyncio.TimerHandle | None = None

    def look_by(self, at_s: float) -> None:
        """Look at the running deadlines at *at_s*, by the event loop's clock, which is before `looks_at`."""
        if self._timer is not None:
            self._timer.cancel()
        earliest_s = self.loop.time() + min(self.timeouts.first_byte, self.timeouts.idle)
        self.looks_at = min(at_s, earliest_s)
        self._timer = self.loop.call_at(self.looks_at, self._look)

    def _look(self) -> None:
        self._timer = None
        self.looks_at = math.inf
        now_s = self.loop.time()
        for deadlines in [each for each in self.running if now_s >= each.ends_at]:
            deadlines.expire(now_s)
        if self.running:
            self.look_by(max(min([each.ends_at for each in self.running]), now_s + LATE_S))


class Deadlines:
    """The timeouts of one attempt, one for each of its phases; no phase lasts longer than `timeouts.total` allows.

    When a timeout is over, the task is cancelled. The task then calls `stop`, which tells whether the cancellation came
    from here, and raises the error that `expired` gives. `asyncio.timeout` works the same way.
    """

    _phase = "total"
    # set when a timeout is over:
    _ended_in: str | None = None  # the phase
    _is_own_limit = False  # whether the phase's own limit was over, and not `total`
    _silent_s = 0.0

    def __init__(self, watch: Watch, total_at: float, now_s: float) -> None:
        """Begin those of an attempt by the running task; `stop` must follow.

        *total_at*: when `total` is over, by the event loop's clock.
        """
        self.loop = watch.loop
        self.total_at = self.ends_at = total_at
        self._timeouts = watch.timeouts
        self._running = watch.running
        task = asyncio.current_task(watch.loop)
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        self._entered_s = now_s  # when the last phase began that is the endpoint's time
        watch.running.add(self)
        if total_at < watch.looks_at:
            watch.look_by(total_at)

    def enter(self, phase: str) -> None:
        """Enter *phase*: `first_byte` or `idle`, or one of four phases that only `total` ends.

        In `queue` and `client` the attempt waits for a connection or for the client; in `gateway` the gateway works on
        the answer; in `total` it connects.
        """
        self._phase = phase
        if phase not in _WORDS:
            self.ends_at = self.total_at
        else:
            self._entered_s = now_s = self.loop.time()
            ends_at = now_s + getattr(self._timeouts, phase)
            self.ends_at = ends_at if ends_at < self.total_at else self.total_at

    def expire(self, now_s: float) -> None:
        """Cancel the task, because the phase's time is over."""
        self._running.discard(self)
        self._ended_in = self._phase  # the attempt may enter another phase before it is cancelled
        self._is_own_limit = self._phase in _WORDS and now_s < self.total_at
        self._silent_s = now_s - self._entered_s
        self._task.cancel()

    def stop(self) -> bool:
        """End the deadlines with the attempt; True if these deadlines, and nobody else, have cancelled the task."""
        self._running.discard(self)
        return self._ended_in is not None and self._task.uncancel() <= self._cancelling

    def was_silent(self) -> bool:
        """Whether the endpoint was silent in the time that ran out.

        If `total` ran out, which may be shorter than the other timeouts, the endpoint counts as silent only if it took
        and sent nothing for more than half of `total`. Waiting for a free connection or for the client never counts.
        """
        if self._ended_in in ("queue", "client", "gateway"):
            return False
        return self._is_own_limit or self._silent_s > self._timeouts.total / 2

    def is_clients(self) -> bool:
        """Whether the attempt waits for the client at this moment."""
        return self._phase == "client"

    def expired(self, backend: str) -> GatewayError:
        """The error to raise after a timeout: TIMEOUT, or OVERLOADED in the queue, or SLOW_CLIENT."""
        if self._is_own_limit and self._ended_in is not None:
            limit = f"{getattr(self._timeouts, self._ended_in):g} s (timeouts.{self._ended_in})"
            return GatewayError(ErrorKind.TIMEOUT, f"backend {backend!r} {_WORDS[self._ended_in]} {limit}")
        total = f"{self._timeouts.total:g} s (timeouts.total)"
        if self._ended_in == "queue":
            words = f"backend {backend!r}: all connections (max_connections) were in use for {total}"
            return GatewayError(ErrorKind.OVERLOADED, words, headers=[("Retry-After", "1")], sent=False)
        if self._ended_in == "client":
            return GatewayError(ErrorKind.SLOW_CLIENT, f"the client kept the request open for more than {total}")
        return GatewayError(ErrorKind.TIMEOUT, f"backend {backend!r} took longer than {total}")
