"""The deadlines of one attempt: which timeout runs in which phase, and what to say when one is over.

Not here: the timeouts' values (`config`), and what happens to the connection (`attempt`).
"""

import asyncio
from collections.abc import Mapping

from gateway.errors import ErrorKind, GatewayError

_WORDS = {"idle": "was silent in the middle for", "first_byte": "did not begin to answer within"}


class Deadlines:
    """The timeouts of one attempt, moved along as it goes through its phases; none goes beyond `timeouts.total`.

    Changing the phase is one assignment. The event loop is asked to look again after the shortest of the timeouts,
    and each time it looks, the deadline of that moment counts. Rescheduling asyncio's own timeout in every phase
    would cost more than the codec takes for a small tensor.
    """

    __slots__ = (
        "_deadline",
        "_ended_in",
        "_entered_s",
        "_handle",
        "_limits_s",
        "_loop",
        "_phase",
        "_shortest_s",
        "_silent_s",
        "_timeout",
        "total_at",
    )

    def __init__(self, timeout: asyncio.Timeout, limits_s: Mapping[str, float], total_at: float) -> None:
        """*limits_s*: `first_byte`, `idle` and `total` in seconds; *total_at*: the end by the event loop's clock."""
        self.total_at = self._deadline = total_at
        self._loop = asyncio.get_running_loop()
        self._timeout = timeout
        self._limits_s = limits_s
        self._shortest_s = min(limits_s.values())
        self._phase = self._ended_in = "total"
        self._entered_s = self._loop.time()  # the phase, if it is the endpoint's
        self._silent_s = 0.0
        self._handle = self._loop.call_at(min(total_at, self._entered_s + self._shortest_s), self._look)

    def enter(self, phase: str) -> None:
        """From now on *phase* runs: `first_byte` or `idle`; or one that only `total` ends.

        These are `queue` and `client`, the time of waiting for them, `gateway`, that of its own work on an answer, and
        `total`, that of connecting.
        """
        self._phase = phase
        limit_s = self._limits_s.get(phase)
        if limit_s is None:
            self._deadline = self.total_at
        else:
            self._entered_s = self._loop.time()
            self._deadline = min(self.total_at, self._entered_s + limit_s)

    def _look(self) -> None:
        now = self._loop.time()
        if now >= self._deadline:
            self._ended_in = self._phase  # the call may enter another phase before it is cancelled
            self._silent_s = now - self._entered_s
            self._timeout.reschedule(now)
        else:
            self._handle = self._loop.call_at(min(self._deadline, now + self._shortest_s), self._look)

    def stop(self) -> None:
        """The attempt is over."""
        self._handle.cancel()

    def was_silent(self) -> bool:
        """Whether the time that ran out was the endpoint's to answer in.

        Where `total` ended it, which may be shorter than the other timeouts, only if that was more than half of it: the
        endpoint has not accepted the connection, or sent nothing and taken nothing, for so long. Waiting for a free
        connection or for the client is not the endpoint's silence.
        """
        if self._ended_in not in self._limits_s:
            return False
        is_own_limit = self._ended_in in _WORDS and self._loop.time() < self.total_at
        return is_own_limit or self._silent_s > self._limits_s["total"] / 2

    def is_clients(self) -> bool:
        """Whether it is the client that the attempt waits for at this moment."""
        return self._phase == "client"

    def expired(self, backend: str) -> GatewayError:
        """The error to raise when time has run out."""
        total = f"{self._limits_s['total']:g} s (timeouts.total)"
        if self._ended_in == "queue":
            words = f"backend {backend!r}: all connections (max_connections) were in use for {total}"
            return GatewayError(ErrorKind.OVERLOADED, words, headers=[("Retry-After", "1")], sent=False)
        if self._ended_in not in _WORDS or self._loop.time() >= self.total_at:
            if self._ended_in == "client":
                return GatewayError(ErrorKind.SLOW_CLIENT, f"the client kept the request open for more than {total}")
            return GatewayError(ErrorKind.TIMEOUT, f"backend {backend!r} took longer than {total}")
        limit = f"{self._limits_s[self._ended_in]:g} s (timeouts.{self._ended_in})"
        return GatewayError(ErrorKind.TIMEOUT, f"backend {backend!r} {_WORDS[self._ended_in]} {limit}")
