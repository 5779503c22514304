"""What the status page shows of finished requests: the sums of the last minute, and the last failures.

The sums are kept as slices of some seconds.
"""

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Generator, Iterable
from itertools import chain
from math import log2
from typing import Any, NamedTuple

from gateway.errors import Blame
from gateway.exchange import Exchange
from gateway.telemetry.access_log import DETAIL_CHARACTERS, Line, line_of, with_short_texts
from gateway.telemetry.sums import MINUTE, Cells, Row, Table

SLICE_S = 3
"""The length of one slice."""

N_SLICES = 20
"""How many slices are kept, the one that is being filled included: the last minute."""

STEPS = 8
"""How many steps of durations there are in each doubling, so that the middle of a step is within 4.5 % of them."""

STEP_ROWS = 250
"""How many rows are added in one step, which takes 0.2 ms. Twenty busy routes have 20,000, which take 27 ms."""

KEPT = 20
"""How many failures are kept for each `Blame`."""


def step_of(seconds: float) -> int:
    """The step of a duration in seconds; 0 for a duration of 0."""
    return round(STEPS * log2(1 + seconds * 1e9))


Requests = Counter[Row]
"""Counts of requests by protocol, reason, blame and step, as in rows called `MINUTE`."""


def stats(requests: Requests, seconds: float) -> dict[str, Any]:
    """The figures of *requests* that were counted in *seconds*."""
    protocols, reasons, blames, steps = counters = [Counter[str | int]() for _ in range(4)]
    for kind, count in requests.items():
        for counter, label in zip(counters, kind, strict=True):
            counter[label] += count
    n_requests, per_s = requests.total(), 1 / max(seconds, 1.0)
    n_errors = n_requests - reasons.pop("", 0)
    del blames[""]
    return {
        "requests": n_requests,
        "errors": n_errors,
        "requests_per_s": n_requests * per_s,
        "errors_per_s": n_errors * per_s,
        "protocols": protocols,
        "blames": blames,
        "reasons": reasons,
        "p50_s": percentile(steps, 0.5),
        "p99_s": percentile(steps, 0.99),
    }


def percentile(steps: Counter[str | int], share: float) -> float | None:
    """The duration that *share* of the requests have not exceeded, in seconds, to 4.5 %; None without requests."""
    n_done, n_wanted = 0, share * steps.total()
    for step in sorted(map(int, steps)):
        n_done += steps[step]
        if n_done >= n_wanted:
            return (2 ** (step / STEPS) - 1) / 1e9
    return None


class Minute(NamedTuple):
    """The last minute."""

    seconds: float
    """How many seconds are covered: fewer than a minute after the start."""
    all: Requests
    by_route: defaultdict[str, Requests]
    by_backend: defaultdict[str, Requests]
    sums: Table
    """The sums of the metrics, by name and first label alone."""

    def amount(self, name: str) -> float:
        """The sum of all amounts that were added to the metric called *name*."""
        return sum(cells[-1] for row, cells in self.sums.items() if row[0] == name)


class Recent:
    """Keeps the last minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """*clock* counts seconds."""
        self._clock = clock
        self._began_s = clock()
        self._slices: deque[tuple[int, Table]] = deque(maxlen=N_SLICES)
        """Those with requests, and their numbers; the oldest first."""

    def add(self, rows: Iterable[tuple[Row, Cells]]) -> None:
        """Add *rows* of requests that have just finished."""
        number = int(self._clock() // SLICE_S)
        if not self._slices or self._slices[-1][0] != number:
            self._slices.append((number, Table()))
        self._slices[-1][1].add((row if row[0] == MINUTE else row[:2], cells) for row, cells in rows)

    def minute(self) -> Generator[None, None, Minute]:
        """The last minute, up to now; yields after each step of work."""
        now_s = self._clock()
        now = int(now_s // SLICE_S)
        seconds = min(now_s - self._began_s, now_s - (now - N_SLICES + 1) * SLICE_S)
        minute = Minute(seconds, Counter(), defaultdict(Counter), defaultdict(Counter), Table())
        for table in [table for number, table in self._slices if now - number < N_SLICES]:
            rows = tuple(table.items())
            for start in range(0, len(rows), STEP_ROWS):
                minute.sums.add(rows[start : start + STEP_ROWS])
                yield
        for index, row in enumerate([row for row in minute.sums if row[0] == MINUTE]):
            _, route, backend, *kind = row
            (count,) = minute.sums.pop(row)
            for requests in (minute.all, minute.by_route[str(route)], minute.by_backend[str(backend)]):
                requests[tuple(kind)] += int(count)
            if index % STEP_ROWS == 0:
                yield
        return minute


def failure_of(exchange: Exchange) -> Line:
    """The line of the access log of a failed exchange, with `at_s`, its time in seconds since 1970."""
    line = {"at_s": time.time(), **line_of(exchange), "client": exchange.client_name or exchange.client}
    return with_short_texts(line, DETAIL_CHARACTERS)


class Failures:
    """The last failures (`failure_of`).

    They are kept apart by who caused them, so that many errors of clients do not push out the few of a backend.
    """

    def __init__(self) -> None:
        self._kept: dict[str, deque[Line]] = {blame.value: deque(maxlen=KEPT) for blame in Blame}

    def add(self, failures: Iterable[Line]) -> None:
        """Keep *failures*, the last of which are the latest."""
        for failure in failures:
            self._kept[failure["blame"]].append(failure)

    def latest(self) -> list[Line]:
        """All kept failures, the latest first."""
        return sorted(chain.from_iterable(self._kept.values()), key=lambda each: each["at_s"], reverse=True)
