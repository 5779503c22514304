"""The deadlines of a backend's attempts: which timeout runs in which phase, and the error when it is over.

Not here: the values of the timeouts (`config`), and the connection's fate (`attempt`).
"""

import asyncio

from gateway.config.schema import Timeouts
from gateway.errors import ErrorKind, GatewayError

_WORDS = {"idle": "was silent in the middle for", "first_byte": "did not begin to answer within"}

LATE_S = 0.01
"""How late a deadline may be at most, so that timeouts of less do not keep the processor busy."""


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

    def __init__(self, loop: asyncio.AbstractEventLoop, timeouts: Timeouts, total_at: float, now_s: float) -> None:
        """Begin those of an attempt by the running task; `stop` must follow.

        *total_at*: when `total` is over, by the event loop's clock.
        """
        self.loop = loop
        self.total_at = total_at
        self._timeouts = timeouts
        task = asyncio.current_task(loop)
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        self._entered_s = now_s  # when the last phase began that is the endpoint's time
        # a phase that begins meanwhile cannot end before the next look, so entering it only notes the time
        self._pause_s = max(LATE_S, min(timeouts.first_byte, timeouts.idle))
        self._timer = loop.call_at(min(total_at, now_s + self._pause_s), self._look)

    def _look(self) -> None:
        """End the phase if its time is over, else look again when it could be over at the earliest."""
        now_s, ends_at = self.loop.time(), self.total_at
        if self.phase in _WORDS:
            ends_at = min(ends_at, self._entered_s + getattr(self._timeouts, self.phase))
        if now_s < ends_at:
            self._timer = self.loop.call_at(min(ends_at, now_s + self._pause_s), self._look)
        else:
            self.expire(now_s)

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
        self._task.cancel()

    def stop(self) -> bool:
        """End the deadlines with the attempt; True if these deadlines, and nobody else, have cancelled the task."""
        self._timer.cancel()
        return self._ended_in is not None and self._task.uncancel() <= self._cancelling

    def was_silent(self) -> bool:
        """Whether the endpoint was silent in the time that ran out.

        If `total` ran out, which may be shorter than the other timeouts, the endpoint counts as silent only if it took
        and sent nothing for more than half of `total`. Waiting for a free connection or for the client never counts.
        """
        if self._ended_in in ("queue", "client", "gateway"):
            return False
        return self._is_own_limit or self._silent_s > self._timeouts.total / 2

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
