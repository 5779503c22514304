"""When a failing endpoint gets no requests for a while, and how it comes back.

An endpoint is *ejected* by too many failures within a time. After some time it is *due*: one attempt, the trial, may
go to it. Its success, or that of a health probe, ends the ejection, its failure begins it again; without a result the
next attempt may be the trial. Not here: which endpoint gets a request (`balancing`).
"""

from collections import deque
from dataclasses import dataclass, field

from gateway.errors import ErrorKind

FAILURES = frozenset(
    {ErrorKind.UNREACHABLE, ErrorKind.TIMEOUT, ErrorKind.UPSTREAM_CLOSED, ErrorKind.MALFORMED_RESPONSE}
)
"""The errors that count as an endpoint's failure; all others are answers, or caused by the client or the gateway."""


@dataclass(frozen=True, slots=True)
class EjectionRules:
    """The backend's `eject`."""

    failures: int
    """How many failures within `window_s` eject the endpoint; 0: endpoints are never ejected."""
    window_s: float
    for_s: float
    """How long an ejection lasts before a trial."""
    panic_below: float
    """The share of the endpoints that is never ejected."""

    def allow(self, n_others: int, n_endpoints: int) -> bool:
        """Whether one of *n_endpoints* may be ejected while *n_others* others get requests.

        The only endpoint is never ejected: it would still get every request.
        """
        return n_endpoints > 1 and n_others >= self.panic_below * n_endpoints


class Trial:
    """The one attempt to an ejected endpoint that finds out whether it works again."""


@dataclass(slots=True, eq=False)
class Ejection:
    """The failures of one endpoint, and its ejection. Both outlive a change of the rules."""

    is_ejected: bool = False
    _failed_at: deque[float] = field(default_factory=deque)
    _until_s: float = 0.0
    _trial: Trial | None = None

    def is_on_trial(self, now_s: float) -> bool:
        """Whether the ejection has lasted long enough, and no trial has ended it yet."""
        return self.is_ejected and now_s >= self._until_s

    def is_due(self, now_s: float) -> bool:
        """Whether a trial may begin."""
        return self._trial is None and self.is_on_trial(now_s)

    def begin_trial(self, now_s: float) -> Trial | None:
        """The trial, if the attempt that begins now is one; `end_trial` must follow, whatever its result. Else None."""
        if not self.is_due(now_s):
            return None
        self._trial = Trial()
        return self._trial

    def end_trial(self, trial: Trial) -> None:
        """Let another trial begin, unless *trial* is not the current one any more."""
        if self._trial is trial:
            self._trial = None

    def succeed(self, trial: Trial) -> bool:
        """End the ejection by the *trial*'s success; False if *trial* is not the current one."""
        if self._trial is not trial:
            return False
        self.clear()
        return True

    def recover(self, now_s: float) -> bool:
        """End the ejection by a health probe's success; False if it has not lasted long enough, or there is none."""
        if not self.is_on_trial(now_s):
            return False
        self.clear()
        return True

    def fail(self, now_s: float, rules: EjectionRules, trial: Trial | None, n_others: int, n: int) -> bool:
        """Count a failure; True if it ejects the endpoint. Of *n* endpoints *n_others* others get requests.

        During an ejection only the failure of the current *trial* counts: the ejection begins again.
        """
        if self.is_ejected:
            if trial is not None and self._trial is trial:
                self._until_s = now_s + rules.for_s
            return False
        if not rules.failures:
            return False
        failed_at = self._failed_at
        failed_at.append(now_s)
        while len(failed_at) > rules.failures or failed_at[0] <= now_s - rules.window_s:
            failed_at.popleft()
        if len(failed_at) < rules.failures or not rules.allow(n_others, n):
            return False
        self.clear()
        self.is_ejected = True
        self._until_s = now_s + rules.for_s
        return True

    def clear(self) -> None:
        """Forget the failures, and end the ejection."""
        self.is_ejected = False
        self._trial = None
        self._failed_at.clear()
