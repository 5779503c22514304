"""When a failing endpoint gets no requests for a while, and how it comes back.

An endpoint is *ejected* by too many failures within a time. After some time it is *due*: one attempt, the trial, may go
to it. Its success, or that of a health probe, ends the ejection, its failure begins it again; without a result the next
attempt may be the trial.
"""

from collections import deque
from dataclasses import dataclass, field

from gateway.errors import ErrorKind

FAILURES = frozenset(
    {ErrorKind.UNREACHABLE, ErrorKind.TIMEOUT, ErrorKind.UPSTREAM_CLOSED, ErrorKind.MALFORMED_RESPONSE}
)
"""The errors that count as an endpoint's failure; all others are answers, or caused by the client or the gateway."""


def leaves_enough(n_others: int, n_endpoints: int, panic_below: float) -> bool:
    """Whether one of *n_endpoints* may be ejected while *n_others* others get requests.

    *panic_below* is the share of the endpoints that is never ejected. The only endpoint is never ejected: it would
    still get every request.
    """
    return n_endpoints > 1 and n_others >= panic_below * n_endpoints


Trial = object
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

    def fail(
        self, now_s: float, trial: Trial | None, *, failures: int, window_s: float, for_s: float, may_eject: bool
    ) -> bool:
        """Count a failure; True if it ejects the endpoint: *failures* within *window_s* do so (0: none do).

        The ejection lasts *for_s* before a trial. During an ejection only the failure of the current *trial* counts:
        the ejection begins again.
        """
        if self.is_ejected:
            if trial is not None and self._trial is trial:
                self._until_s = now_s + for_s
            return False
        if not failures:
            return False
        failed_at = self._failed_at
        failed_at.append(now_s)
        while len(failed_at) > failures or failed_at[0] <= now_s - window_s:
            failed_at.popleft()
        if len(failed_at) < failures or not may_eject:
            return False
        self.clear()
        self.is_ejected = True
        self._until_s = now_s + for_s
        return True

    def clear(self) -> None:
        """Forget the failures, and end the ejection."""
        self.is_ejected = False
        self._trial = None
        self._failed_at.clear()
