"""Judging health probes: whether an endpoint is up, and when its next probe is. They are sent by `backend.health`."""

from dataclasses import dataclass, replace
from enum import Enum

FIRST_WITHIN_S = 1.0
"""The first probes come within this time after the start, or within `interval` if that is shorter."""

JITTER = 0.1
"""The share of `interval` by which probes may come earlier or later, so that workers do not ask at the same moment."""


class Finding(Enum):
    """The result of one probe."""

    HEALTHY = "healthy"
    """A status from 200 to 299."""
    FAILED = "failed"
    """Another status, no connection, no answer in time, or an answer that is not HTTP."""
    NOT_FOUND = "that path"
    """404: a failure where the path is known to exist. The value is what the probe lacks, as below."""
    DENIED = "credentials that it accepts (headers.set), or a path that needs none,"
    """Other credentials are wanted, such as the clients': a failure where those of the probes were accepted before."""

    @classmethod
    def of(cls, status: int, *, is_denied: bool) -> "Finding":
        """The result of a probe whose answer has *status*; *is_denied*: it wants other credentials."""
        if is_denied or status == 404:
            return cls.DENIED if is_denied else cls.NOT_FOUND
        return cls.HEALTHY if 200 <= status <= 299 else cls.FAILED


@dataclass(frozen=True, slots=True)
class Condition:
    """The state of one endpoint after all probes so far; without any, it is up."""

    is_up: bool = True
    n_against: int = 0
    """How many of the latest probes in a row contradict `is_up`."""
    has_succeeded: bool = False
    """Whether any probe of this path has succeeded."""
    is_unjudged: bool = False
    """Whether the endpoint has answered `NOT_FOUND` or `DENIED`, and never with success: its health is not known."""

    def after(self, finding: Finding, unhealthy_after: int, healthy_after: int) -> "Condition":
        """The condition after one more probe.

        After *unhealthy_after* failures in a row the endpoint is down, after *healthy_after* successes it is up again.
        `NOT_FOUND` or `DENIED` before the first success counts as one: the server runs, but could never tell by this.
        """
        is_unjudged = finding in (Finding.NOT_FOUND, Finding.DENIED) and not self.has_succeeded
        is_good = finding is Finding.HEALTHY or is_unjudged
        n_against = 0 if is_good == self.is_up else self.n_against + 1
        is_change = n_against >= (unhealthy_after if self.is_up else healthy_after)
        return Condition(
            is_up=self.is_up != is_change,
            n_against=0 if is_change else n_against,
            has_succeeded=self.has_succeeded or finding is Finding.HEALTHY,
            is_unjudged=is_unjudged or (self.is_unjudged and finding is not Finding.HEALTHY),
        )

    def for_another_path(self) -> "Condition":
        """The condition when the path of the probes changes: earlier results no longer count."""
        return replace(Condition(), is_up=self.is_up)


def first_round_s(interval_s: float, share: float) -> float:
    """Seconds for the first round of probes to all endpoints; *share* is a random number from 0 to 1."""
    return share * min(interval_s, FIRST_WITHIN_S)


def next_round_s(interval_s: float, share: float) -> float:
    """Seconds for another round of probes; *share* is a random number from 0 to 1."""
    return interval_s * (1 + JITTER * (2 * share - 1))
