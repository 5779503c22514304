"""What the status page shows of finished requests: the sums of the last minute, and the last failures.

The sums are kept as slices of some seconds. Not here: what is counted (`counting`), and counts since the start
(`metrics`).
"""

import time
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, chain
from math import log2
from typing import Any, NamedTuple

from gateway.errors import Blame
from gateway.exchange import Exchange
from gateway.telemetry.access_log import Line, line_of, shortened
from gateway.telemetry.sums import Cells, Row, Table

SLICE_S = 3
"""The length of one slice."""

N_SLICES = 20
"""How many slices are kept, the one that is being filled included: the last minute."""

STEPS = 16
"""How many steps of durations there are in each doubling, so that the middle of a step is within 2.2 % of them."""

KEPT = 20
"""How many failures are kept for each `Blame`."""

TEXT_CHARACTERS = 400
"""How many characters of a failure's texts are kept: the beginning and the end. Clients may send long ones."""

Sums = defaultdict[Row, float]
"""Sums of a minute by what was counted: what follows the route and the backend in the rows called `MINUTE`.

`requests`; `http` and `grpc`, those of such clients; `error`, reason and blame; `step` and the number of a step of the
duration; `seconds`; `codec_seconds`; `upstream_seconds`, which overlaps with the codec's because large bodies are
encoded and decoded while they cross; and four names in `bytes`, of inferences that were transcoded and succeeded. Where
models are batched, `batches`, `batch_rows`, `batched_requests` and `batch_wait_seconds`.
"""


def step_of(seconds: float) -> int:
    """The step of a duration in seconds; 0 for a duration of 0."""
    return round(STEPS * log2(1 + seconds * 1e9))


def stats(sums: Sums, seconds: float) -> dict[str, Any]:
    """The figures of requests with *sums* that were counted in *seconds*; the percentiles of their time to 2.2 %."""
    blames: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for (what, *labels), count in sums.items():
        if what == "error":
            reasons[str(labels[0])] += int(count)
            blames[str(labels[1])] += int(count)
    n_requests, n_errors, per_s = int(sums["requests",]), blames.total(), 1 / max(seconds, 1.0)
    p50_s, p99_s = percentiles(sums, 0.5, 0.99)
    return {
        "requests": n_requests,
        "errors": n_errors,
        "requests_per_s": n_requests * per_s,
        "errors_per_s": n_errors * per_s,
        "blames": blames,
        "reasons": reasons,
        "p50_s": p50_s,
        "p99_s": p99_s,
    }


def percentiles(sums: Sums, *shares: float) -> list[float | None]:
    """The percentiles of the duration for *shares* of the requests, in seconds; None without requests."""
    steps = sorted((int(what[1]), count) for what, count in sums.items() if what[0] == "step")
    if not steps:
        return [None] * len(shares)
    done = list(accumulate(count for _, count in steps))
    reached = [steps[bisect_left(done, share * done[-1])][0] for share in shares]
    return [(2 ** (step / STEPS) - 1) / 1e9 for step in reached]


class Minute(NamedTuple):
    """The last minute."""

    seconds: float
    """How many seconds are covered: fewer than a minute after the start."""
    slices: list[tuple[int, int]]
    """Requests and errors in each slice of the minute, the last first; the first is still being filled."""
    all: Sums
    by_route: defaultdict[str, Sums]
    by_backend: defaultdict[str, Sums]


class Recent:
    """Keeps the last minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """*clock* counts seconds."""
        self._clock = clock
        self._began_s = clock()
        self._slices: deque[tuple[int, Table]] = deque(maxlen=N_SLICES)
        """Those with requests, and their numbers; the oldest first."""

    def add(self, rows: Iterable[tuple[Row, Cells]]) -> None:
        """Add *rows* called `MINUTE` of requests that have just finished."""
        number = int(self._clock() // SLICE_S)
        if not self._slices or self._slices[-1][0] != number:
            self._slices.append((number, Table()))
        self._slices[-1][1].add(rows)

    def minute(self) -> Minute:
        """The last minute, up to now."""
        now_s = self._clock()
        now = int(now_s // SLICE_S)
        all_: Sums = defaultdict(float)
        by_route: defaultdict[str, Sums] = defaultdict(lambda: defaultdict(float))
        by_backend: defaultdict[str, Sums] = defaultdict(lambda: defaultdict(float))
        counts = [Counter[str]() for _ in range(N_SLICES)]
        for number, table in self._slices:
            if (age := now - number) < N_SLICES:
                for (_, route, backend, *what), (count,) in table.items():
                    counts[age][str(what[0])] += int(count)
                    for sums in (all_, by_route[str(route)], by_backend[str(backend)]):
                        sums[tuple(what)] += count
        seconds = min(now_s - self._began_s, now_s - (now - N_SLICES + 1) * SLICE_S)
        slices = [(each["requests"], each["error"]) for each in counts]
        return Minute(seconds, slices, all_, by_route, by_backend)


class Failures:
    """The last failures, as lines of the access log with `at_s`, their time in seconds since 1970.

    They are kept apart by who caused them, so that many errors of clients do not push out the few of a backend; nor do
    the errors of one backend push out those of another.
    """

    def __init__(self) -> None:
        self._kept: dict[str, list[Line]] = {blame.value: [] for blame in Blame}

    def add(self, group: Sequence[Exchange]) -> None:
        """Keep the last failed exchanges of *group*; their times are of the event loop's (monotonic) clock."""
        offset_s = time.time() - time.monotonic()
        for exchange in group[-KEPT:]:
            line = line_of(exchange) | {"at_s": offset_s + exchange.started_s + exchange.seconds}
            line |= {"client": exchange.client_name or exchange.client, "detail": exchange.detail}
            texts = {key: shortened(value, TEXT_CHARACTERS) for key, value in line.items() if isinstance(value, str)}
            self.keep(line | texts)

    def keep(self, failure: Line) -> None:
        """Keep *failure*. Above `KEPT` for its blame, the backend with the most failures loses its oldest."""
        kept = self._kept[failure["blame"]]
        kept.append(failure)
        if len(kept) > KEPT:
            backends = [each["backend"] for each in kept]
            ((most, _),) = Counter(backends).most_common(1)
            del kept[backends.index(most)]

    def latest(self) -> list[Line]:
        """All kept failures, the latest first."""
        return sorted(chain.from_iterable(self._kept.values()), key=lambda each: each["at_s"], reverse=True)
