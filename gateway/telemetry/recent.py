"""The last minute, for the status page: rates, times and sizes.

The sums of a minute are kept as slices of some seconds, and a slice that is too old is subtracted. All these sums are
whole numbers, so that subtracting leaves no rounding errors. Not here: what is counted (`counting`), counts since the
start (`metrics`), single errors (`failures`).
"""

import time
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate, chain
from math import log2
from typing import NamedTuple

import msgspec

from gateway.telemetry.sums import Row

Group = tuple[str, str]
"""A route and a backend."""

Moments = dict[Group, Counter[Row]]
"""Sums of finished requests, all whole numbers. A row has a name, a reason and a blame; the last two are empty for
requests that did not fail. Rows called `STEP` have a step of the duration, and count the requests that took so long.

Names are `requests`, each of `PROTOCOLS` for those of its clients, `microseconds`, `codec_microseconds`,
`upstream_microseconds`, which overlaps with the codec's because large bodies are encoded and decoded while they cross,
and four names in `bytes`: of inferences that were transcoded and succeeded. Where models are batched, `batches`,
`batch_rows`, `batched_requests` and `batch_wait_microseconds`.
"""

STEP = "step"

SLICE_S = 3
"""The length of one slice; what is older than a minute is subtracted one slice at a time."""

N_SLICES = 20
"""How many slices are kept, the one that is being filled included: the last minute."""

MAX_GROUPS = 200
"""The most pairs of route and backend with sums of their own; the others share those of `OTHER`."""

OTHER = "other"
"""The route and backend of all requests without sums of their own."""

STEPS = 16
"""How many steps of durations there are in each doubling, so that the middle of a step is within 2.2 % of them."""


def step_of(seconds: float) -> int:
    """The step of a duration in seconds; 0 for a duration of 0."""
    return round(STEPS * log2(1 + seconds * 1e9))


def _middle_of(step: int) -> float:
    return float((2 ** (step / STEPS) - 1) / 1e9)


class Stats(msgspec.Struct, frozen=True):
    """Figures of the requests in the last minute, for the status page."""

    requests: int
    errors: int
    requests_per_s: float
    errors_per_s: float
    blames: dict[str, int]
    """How many have failed, by who caused it."""
    reasons: dict[str, int]
    """How many have failed, by the error's label."""
    p50_s: float | None
    p99_s: float | None

    @classmethod
    def of(cls, counts: Mapping[Row, int], seconds: float) -> "Stats":
        """The figures by *counts*, rows of `Moments` that were counted in *seconds*."""
        blames: Counter[str] = Counter()
        reasons: Counter[str] = Counter()
        for (name, reason, *blame), count in counts.items():
            if name == "requests" and reason:
                reasons[str(reason)] += count
                blames[str(blame[0])] += count
        n_requests, n_errors, per_s = total(counts, "requests"), blames.total(), 1 / max(seconds, 1.0)
        p50_s, p99_s = percentiles(counts, 0.5, 0.99)
        return cls(n_requests, n_errors, n_requests * per_s, n_errors * per_s, blames, reasons, p50_s, p99_s)


def total(counts: Mapping[Row, int], name: str) -> int:
    """The sum that `Moments` calls *name*, over failed and successful requests."""
    return sum(count for row, count in counts.items() if row[0] == name)


def percentiles(counts: Mapping[Row, int], *shares: float) -> list[float | None]:
    """The percentiles of the duration for *shares* of the requests, in seconds, to 2.2 %; None without requests."""
    steps = sorted((int(row[1]), count) for row, count in counts.items() if row[0] == STEP)
    if not steps:
        return [None] * len(shares)
    done = list(accumulate(count for _, count in steps))
    return [_middle_of(steps[bisect_left(done, share * done[-1])][0]) for share in shares]


class Minute(NamedTuple):
    """The last minute."""

    seconds: float
    """How many seconds are covered: fewer than a minute after the start."""
    slices: list[tuple[int, int]]
    """Requests and errors in each slice of the minute, the last first; the first is still being filled."""
    all: Counter[Row]
    by_route: dict[str, Counter[Row]]
    by_backend: dict[str, Counter[Row]]


class Recent:
    """Keeps the last minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """*clock* counts seconds."""
        self._clock = clock
        self._began_s = clock()
        self._slices: deque[tuple[int, Moments]] = deque()
        """With their numbers, the oldest first. The last is still being filled."""
        self._total: Moments = {}
        """Of all slices but the last."""

    def add(self, moments: Iterable[tuple[Group, Iterable[tuple[Row, int]]]]) -> None:
        """Add sums of requests that have just finished."""
        _, current = self._current()
        for group, counts in moments:
            is_known = group in self._total or len(self._total) < MAX_GROUPS
            own = group if is_known else (OTHER, OTHER)
            self._total.setdefault(own, Counter())  # it is one of the groups from now on
            current.setdefault(own, Counter()).update(dict(counts))

    def minute(self) -> Minute:
        """The last minute, up to now."""
        now, current = self._current()
        now_s = self._clock()
        everything: Counter[Row] = Counter()
        by_route: defaultdict[str, Counter[Row]] = defaultdict(Counter)
        by_backend: defaultdict[str, Counter[Row]] = defaultdict(Counter)
        for (route, backend), counts in chain(self._total.items(), current.items()):
            for sums in (everything, by_route[route], by_backend[backend]):
                sums.update(counts)
        slices = [(0, 0)] * N_SLICES
        for number, moments in self._slices:
            rows = [each for counts in moments.values() for each in counts.items() if each[0][0] == "requests"]
            slices[now - number] = sum(n for _, n in rows), sum(n for row, n in rows if row[1])
        seconds = max(0.0, min(now_s - self._began_s, now_s - (now - N_SLICES + 1) * SLICE_S))
        return Minute(seconds, slices, everything, by_route, by_backend)

    def _current(self) -> tuple[int, Moments]:
        """The slice of this moment; slices that have become too old are subtracted and dropped."""
        number = int(self._clock() // SLICE_S)
        slices, total = self._slices, self._total
        if not slices or slices[-1][0] < number:
            for group, counts in slices[-1][1].items() if slices else ():
                total[group].update(counts)
            slices.append((number, {}))
        while slices[0][0] <= number - N_SLICES:
            for group, counts in slices.popleft()[1].items():
                total[group].subtract(counts)
                total[group] += Counter()  # leaves zeros out
                if not total[group]:
                    del total[group]
        return slices[-1]
