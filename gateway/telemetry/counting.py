"""Counts finished exchanges.

Finished exchanges wait to be counted together. They are grouped by kind, so that the rows of a kind are looked up once.
The counts are delivered several times a second: to the metrics of this process, or by a worker to its supervisor. Not
here: how the sums are used (`metrics`, `recent`).
"""

import logging
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import chain, product
from operator import attrgetter, sub
from typing import Any

import msgspec

from gateway.codec.tensors.datatypes import DATATYPES
from gateway.errors import ErrorKind, blame_of
from gateway.exchange import PROTOCOLS, Attempt, Exchange, Format
from gateway.policy.ejection import FAILURES
from gateway.telemetry.access_log import Line
from gateway.telemetry.recent import KEPT, Failures, failure_of, step_of
from gateway.telemetry.sums import BOUNDS, FAMILIES, MINUTE, Cells, Row, Table

MAX_WAITING = 192
"""How many exchanges wait to be counted at most: with 200 models counting so many holds the loop for 0.7 ms."""

MAX_NAMES = 200
"""The most models, and the most names of tokens, with a label of their own; the others share the label `other`."""

_NO_ROUTE = "none"
"""The label `route` of requests that matched no route."""

# Every error that a request can end with, by its labels `reason` and `blame`.
_ERRORS = {(kind.label, blame_of(kind, status).value): kind for kind in ErrorKind for status in (400, 500)}

_FAILURES = sorted(kind.label for kind in FAILURES)

# The other labels' values with which each label has series from the start; other statuses have one once they occur.
_KNOWN: dict[str, dict[str, Iterable[str | int]]] = {
    "direction": {"datatype": DATATYPES},
    "client": {"code": [200]},
    "backend": {"reason": _FAILURES},
    "endpoint": {"code": ("200", *_FAILURES)},
    "route": {"model": ["other"], "protocol": PROTOCOLS, "code": [200], "format": Format},
}

# What exchanges are sorted by; without Python's bytecode.
_kind_of = attrgetter(
    *("route", "backend", "protocol", "status", "error"),
    *("client_format", "reply_format", "upstream_format", "is_transcoded"),
)

_getter = cache(attrgetter)

log = logging.getLogger("gateway")


class Batch(msgspec.Struct, frozen=True):
    """The counts of a process since its last batch."""

    rows: list[tuple[Row, Cells]]
    """The rows of metrics, and those for the last minute."""
    failures: list[Line]
    """The last first."""


class Counting:
    """Adds up the exchanges of this process."""

    def __init__(self, deliver: Callable[[Batch], bool]) -> None:
        """*deliver* takes a batch; if it returns False, it gets the same counts again in the next batch."""
        self._deliver = deliver
        self._rows = Table()
        self._failures = Failures()
        self._waiting: list[Exchange] = []
        self._max_waiting = MAX_WAITING
        self._models: set[str] = set()
        self._clients: set[str] = set()
        self._expected: set[tuple[str, str, str]] = set()
        self._connections_seen: dict[Row, int] = {}
        self._rows.begin((family.name,) for family in FAMILIES if not family.labels)
        for known in (("direction", "request"), ("direction", "response"), ("route", _NO_ROUTE)):
            self.expect(*known)

    def expect(self, label: str, value: str, backend: str = "") -> bool:
        """Make rows of 0 for a *label* and its *value*; False if they were made before.

        Without them `increase` would miss the first request of a series. *label* is `route`, `backend`, `client` (the
        name of a token), or `endpoint` with its URL and its *backend*.
        """
        known = label, value, backend
        if known in self._expected:
            return False
        self._expected.add(known)
        self._rows.begin(_zeros_of(label, self._client_label(value) if label == "client" else value, backend))
        return True

    def _client_label(self, name: str) -> str:
        """The label for the token called *name*: the name, or `other` after `MAX_NAMES` names."""
        if name in self._clients or len(self._clients) < MAX_NAMES:
            self._clients.add(name)
            return name
        return "other"

    def note_connections(self, refused_total: int, slow_totals: Mapping[str, int]) -> None:
        """Take the totals since the start: refused connections, and slow ones by the name of the limit."""
        totals: dict[Row, int] = {("client_connections_refused",): refused_total}
        totals |= {("client_connections_slow", limit): total for limit, total in slow_totals.items()}
        for row, total in totals.items():
            self._rows[row][0] += total - self._connections_seen.get(row, 0)
        self._connections_seen = totals

    def note_lag(self, seconds: float) -> None:
        """Count one sample of the event loop's lag."""
        self._add(("event_loop_lag_seconds",), [seconds])

    def record(self, exchange: Exchange) -> None:
        """Count a finished exchange, which must not change any more; `add_up` makes it visible."""
        self._waiting.append(exchange)
        if len(self._waiting) >= self._max_waiting:
            self.add_up()

    def add_up(self) -> None:
        """Count the exchanges that wait, and deliver; to be called before each scrape, and several times a second."""
        waiting, self._waiting = self._waiting, []
        try:
            self._count(waiting)
        except Exception:  # neither requests nor the caller's task may end because of it
            log.exception("some requests could not be counted")
        if self._deliver(Batch(list(self._rows.items()), self._failures.latest())):
            self._rows.clear()
            self._failures = Failures()

    def finish(self) -> None:
        """Count the exchanges that wait, and from now on each at once, since nobody calls `add_up` any more."""
        self._max_waiting = 1
        self.add_up()

    def _count(self, exchanges: list[Exchange]) -> None:
        rows, models, bounds = self._rows, self._models, BOUNDS["request_seconds"]
        alike: defaultdict[Any, list[Exchange]] = defaultdict(list)
        for exchange in exchanges:
            route, model, seconds = exchange.route, exchange.model, exchange.seconds
            if model not in models:
                model = self._model_label(exchange)
            rows["requests", route, model, exchange.status, exchange.protocol][0] += 1
            cells = rows["request_seconds", route, model]
            cells[bisect_left(bounds, seconds)] += 1
            cells[-1] += seconds
            if exchange.client_name:
                rows["client_requests", self._client_label(exchange.client_name), exchange.status][0] += 1
            alike[_kind_of(exchange), model if exchange.batch_rows else None].append(exchange)
        for (_, batched), group in alike.items():
            if group[0].error is not None:
                self._failures.add(map(failure_of, group[-KEPT:]))
            for row, amounts in _sums_of(group, batched):
                self._add(row, amounts)

    def _add(self, row: Row, amounts: Iterable[float]) -> None:
        """Add *amounts*, none of them NaN, to a counter, or to a histogram whose buckets include their upper bound.

        The amounts are sorted first: for a hundred this takes a third of the time of finding the bucket of each.
        """
        ordered = sorted(amounts)
        if not ordered:
            return
        cells, bounds = self._rows[row], BOUNDS.get(str(row[0]), ())
        cells[-1] += sum(ordered)
        start = 0
        while bounds and start < len(ordered):
            bucket = bisect_left(bounds, ordered[start])
            end = bisect_right(ordered, bounds[bucket], start)
            cells[bucket] += end - start
            start = end

    def _model_label(self, exchange: Exchange) -> str:
        """The label of a model without one: its name if this inference was a success, else `other`.

        Clients cannot make labels.
        """
        model = exchange.model
        is_success = exchange.is_inference and 200 <= exchange.status < 300 and exchange.error is None
        if model is not None and is_success and exchange.attempts and len(self._models) < MAX_NAMES:
            self._models.add(model)
            return model
        return "other"


def _zeros_of(label: str, value: str, backend: str) -> Iterator[Row]:
    """The rows that are known once *label* may have *value*; those of an endpoint have its *backend*, too."""
    values = {"backend": [backend], **_KNOWN[label], label: [value]}
    is_no_route = (label, value) == ("route", _NO_ROUTE)
    if is_no_route:
        values |= {"code": [ErrorKind.NO_ROUTE.status], "format": [Format.OTHER]}
    for family in FAMILIES:
        is_of_backend = is_no_route and family.name.startswith("upstream_")
        if label in family.labels and values.keys() >= {*family.labels} and not is_of_backend:
            yield from product([family.name], *(values[each] for each in family.labels))
    if label == "route":
        kinds = _ERRORS.items()
        yield from (("errors", value, *end) for end, kind in kinds if is_no_route or kind is not ErrorKind.NO_ROUTE)


Sums = Iterator[tuple[Row, Iterable[float]]]
"""Rows, and the amounts that are added to each."""


def _sums_of(group: list[Exchange], batched: str | None) -> Sums:
    """What exchanges of one kind add to rows without their model; *batched* is its label if it is batched."""
    one, route, error = group[0], group[0].route, ("", "")
    if one.error is not None:
        error = one.error.label, blame_of(one.error, one.status).value
        yield ("errors", route, *error), [len(group)]
    for step, n_times in Counter(map(step_of, _each("seconds", group))).items():
        yield (MINUTE, route, one.backend, one.protocol, *error, step), [n_times]
    yield ("client_request_bytes", route, one.client_format), _each("client_request_bytes", group)
    yield ("client_response_bytes", route, one.reply_format), _each("client_response_bytes", group)
    yield ("header_recovered",), _each("header_recovered", group)
    yield ("admission_wait_seconds",), filter(None, _each("queue_s", group))
    yield from _attempt_sums_of(one, list(chain.from_iterable(_each("attempts", group))))
    if batched is not None:  # each batch counts with one of its requests
        n_rows = [each.batch_rows for each in group if not (each.attempts and each.attempts[-1].is_joined)]
        yield ("batch_rows", one.backend, batched), n_rows
        yield ("batch_wait_seconds", one.backend, batched), _each("batch_wait_s", group)
    if one.is_transcoded:
        yield from _codec_sums_of("request", one.client_format, "input_datatypes", group)
        if one.error is None:
            yield from _codec_sums_of("response", one.reply_format, "output_datatypes", group)


def _attempt_sums_of(one: Exchange, attempts: list[Attempt]) -> Sums:
    """Of the *attempts* of exchanges of the same kind as *one*.

    An attempt that several requests of a batch share is counted by one of them; only its bytes are divided.
    """
    backend = one.backend
    yield ("upstream_request_bytes", one.route, one.upstream_format), _each("request_bytes", attempts)
    yield ("upstream_response_bytes", one.route, one.upstream_format), _each("response_bytes", attempts)
    attempts = [attempt for attempt in attempts if not attempt.is_joined]
    yield ("upstream_seconds", backend), _each("seconds", attempts)
    for name, field in (("upstream_first_byte_seconds", "first_byte_s"), ("upstream_queue_seconds", "queue_s")):
        yield (name, backend), [seconds for seconds in _each(field, attempts) if seconds is not None]
    for end, n_times in Counter(map(_getter("endpoint", "code"), attempts)).items():
        yield ("upstream_requests", backend, *end), [n_times]
    for reason, n_times in Counter(filter(None, _each("repeated_for", attempts))).items():
        yield ("retries", backend, reason), [n_times]


def _codec_sums_of(direction: str, format_: Format, datatypes: str, group: list[Exchange]) -> Sums:
    """Of the codec's work in one *direction*; if the exchanges have failed, of that on requests."""
    yield ("transcode_seconds", direction), _each(f"{direction}_codec.seconds", group)
    yield ("nonfinite_values", direction), _each(f"{direction}_nonfinite", group)
    for datatype, n_tensors in Counter(chain.from_iterable(_each(datatypes, group))).items():
        yield ("tensors", direction, datatype), [n_tensors]
    if group[0].error is None and format_ is Format.BINARY:
        upstream_bytes = [_sent_once(exchange, f"{direction}_bytes") for exchange in group]
        client_bytes = _each(f"client_{direction}_bytes", group)
        yield ("json_bytes_avoided", direction), [max(0, each) for each in map(sub, upstream_bytes, client_bytes)]


def _sent_once(exchange: Exchange, name: str) -> int:
    """The bytes *name* of the attempts that made the reply: the last one, and of several requests that of each."""
    attempts = exchange.attempts
    return sum([getattr(each, name) for each in attempts if not (each.repeated_for or each.is_metadata)])


def _each(name: str, records: Iterable[Exchange | Attempt]) -> Iterator[Any]:
    """The field *name* of each of *records*."""
    return map(_getter(name), records)
