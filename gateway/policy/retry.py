"""Whether a failed attempt is followed by another, and when."""

from collections import deque

import msgspec

BUDGET_S = 10
"""The time over which the budget counts requests and retries, in seconds."""

RETRIES_PER_S = 3
"""The retries a second that are always allowed for the whole gateway, however few the requests are."""

FIRST_DELAY_S = 0.1
"""The shortest wait before an endpoint that has just failed is asked again: a server that restarts takes a moment.

It doubles with every attempt. A random part is added, so that requests that failed together are not sent together.
"""

MAX_DELAY_S = 1.0
"""The longest wait, without the random part."""


class RecentCalls:
    """How many calls and retries one backend has had in the last `BUDGET_S` seconds, by whole seconds."""

    def __init__(self) -> None:
        self._seconds = deque[list[int]](maxlen=BUDGET_S)  # each with its calls and its retries

    def count(self, now_s: float, n_calls: int, n_retries: int) -> None:
        """Count calls, whatever becomes of them, and retries of calls that are counted already."""
        second = int(now_s)
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append([second, 0, 0])
        counts = self._seconds[-1]
        counts[1] += n_calls
        counts[2] += n_retries

    def totals(self, now_s: float) -> tuple[int, int]:
        """The calls and the retries of the last `BUDGET_S` seconds."""
        recent = [each for each in self._seconds if each[0] > int(now_s) - BUDGET_S]
        return sum(calls for _, calls, _ in recent), sum(retries for _, _, retries in recent)


class RetryRules(msgspec.Struct, frozen=True, kw_only=True):
    """When a failed attempt is followed by another."""

    attempts: int = 2
    """How many attempts one request has, the first included."""
    budget: float = 0.2
    """The share of the last ten seconds' requests that may be retries; three a second are always allowed, unless 0."""
    resend_after_sent: bool = False
    """Whether a request that a backend may have read is sent again."""

    def is_within_budget(self, n_calls: int, n_retries: int, workers: int) -> bool:
        """Whether one more retry is allowed after *n_calls* and *n_retries* in the last `BUDGET_S` seconds.

        *workers*: how many processes share `RETRIES_PER_S`.
        """
        allowed = max(self.budget * n_calls, RETRIES_PER_S * BUDGET_S / workers)
        return self.budget > 0 and n_retries < allowed

    def delay_before_next(
        self, attempt: int, *, sent: bool, has_other: bool, remaining_s: float, jitter: float
    ) -> float | None:
        """Seconds to wait before attempt number *attempt* + 1, after an endpoint has failed; None to give up.

        *sent*: whether the backend may have read the request. *has_other*: whether an endpoint is left that was not
        tried; the attempt then goes there without a wait. *jitter*: a random number from 0 to 1.
        """
        if attempt >= self.attempts or (sent and not self.resend_after_sent):
            return None
        doublings = min(attempt - 1, 10)  # 2 ** 10 first delays are above MAX_DELAY_S; no huge powers
        delay_s = 0.0 if has_other else min(MAX_DELAY_S, FIRST_DELAY_S * 2**doublings) * (1 + jitter)
        return delay_s if delay_s < remaining_s else None
