"""Counts finished exchanges.

Finished exchanges wait to be counted together. They are grouped by kind, so that the rows of a kind are looked up once.
The counts are delivered several times a second: to the metrics of this process, or by a worker to its supervisor. Not
here: how the sums are used (`metrics`, `recent`).
"""

import logging
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice, product
from operator import attrgetter
from typing import Any

import msgspec

from gateway.codec import DATATYPES
from gateway.errors import ErrorKind, blame_of
from gateway.exchange import PROTOCOLS, Attempt, Exchange, Format
from gateway.policy.ejection import FAILURES
from gateway.telemetry.failures import Failure, Failures
from gateway.telemetry.recent import STEP, Group, step_of
from gateway.telemetry.sums import BOUNDS, FAMILIES, Cells, Row, Table

MAX_WAITING = 192
"""How many exchanges wait to be counted at most: with 200 models counting so many holds the loop for 0.6 ms."""

MAX_MODELS = 200
"""The most models with a label of their own; the others share the label `other`."""

MAX_CLIENTS = 200
"""The most names of tokens with a label of their own; the others share the label `other`."""

ZEROS_AT_ONCE = 50
"""How many rows of `Counting.expect` are made in one go."""

MAX_NEW_ENDPOINTS = 8
"""How many new endpoints get their rows in one go."""

_DIRECTIONS = "request", "response"

_NO_ROUTE = "none"
"""The label `route` of requests that matched no route."""

# Every error that a request can end with, by its labels `reason` and `blame`.
_ERRORS = {(kind.label, blame_of(kind, status).value): kind for kind in ErrorKind for status in (400, 500)}

_FAILURES = sorted(kind.label for kind in FAILURES)
_CODES = ("200", *_FAILURES)
"""The ends of attempts that have a series from the start; other statuses have one once they occur."""

_REQUEST_BOUNDS = BOUNDS["request_seconds"]

# What exchanges are sorted by; without Python's bytecode.
_kind_of = attrgetter(
    *("route", "backend", "protocol", "status", "error"),
    *("client_format", "reply_format", "upstream_format", "is_transcoded"),
)

_end_of = attrgetter("endpoint", "code")

_FIELDS = {name: attrgetter(name) for name in (*Exchange.__struct_fields__, *Attempt.__struct_fields__)}

log = logging.getLogger("gateway")


class Batch(msgspec.Struct, frozen=True):
    """The counts of a process since its last batch."""

    rows: list[tuple[Row, Cells]]
    """The rows of metrics."""
    moments: list[tuple[Group, list[tuple[Row, int]]]]
    """See `recent.Moments`."""
    failures: list[Failure]


class Counting:
    """Adds up the exchanges of this process."""

    def __init__(self, deliver: Callable[[Batch], bool]) -> None:
        """*deliver* takes a batch; if it returns False, it gets the same counts again in the next batch."""
        self._deliver = deliver
        self._rows = Table()
        self._moments: defaultdict[Group, Counter[Row]] = defaultdict(Counter)
        self._failures = Failures()
        self._waiting: list[Exchange] = []
        self._max_waiting = MAX_WAITING
        self._models: set[str] = set()
        self._clients: set[str] = set()
        self._expected: set[Row] = set()
        self._connections_seen: dict[Row, int] = {}
        self._let_be_zero((family.name,) for family in FAMILIES if not family.labels)
        for direction in _DIRECTIONS:
            self._let_be_zero(_zeros_of("direction", direction, datatype=DATATYPES))
        self._let_be_zero(_zeros_of_route(_NO_ROUTE))

    def expect(self, routes: Iterable[str], backends: Iterable[str]) -> Iterator[None]:
        """Make rows of 0 for *routes* and *backends*: of a series that begins with 1, `increase` misses the first.

        Yields after every few new rows, when they are delivered.
        """
        zeros = chain(
            chain.from_iterable(_zeros_of_route(route) for route in routes if self._is_new("route", route)),
            chain.from_iterable(
                _zeros_of("backend", name, reason=_FAILURES) for name in backends if self._is_new("backend", name)
            ),
        )
        while some := list(islice(zeros, ZEROS_AT_ONCE)):
            self._let_be_zero(some)
            self.add_up()
            yield

    def expect_clients(self, names: Iterable[str]) -> None:
        """Make rows of 0 for the *names* of tokens."""
        for name in names:
            self._let_be_zero(_zeros_of("client", self._client_label(name), code=[200]))

    def _client_label(self, name: str) -> str:
        """The label for the token called *name*: the name, or `other` after `MAX_CLIENTS` names."""
        if name in self._clients or len(self._clients) < MAX_CLIENTS:
            self._clients.add(name)
            return name
        return "other"

    def expect_endpoints(self, endpoints: Iterable[tuple[str, str]]) -> None:
        """Make rows of 0 for *endpoints* (backend and URL), for `MAX_NEW_ENDPOINTS` new ones at most.

        A look-up of a host name may bring many new endpoints at once, while requests are served.
        """
        new = ((backend, url) for backend, url in endpoints if self._is_new("endpoint", backend, url))
        for backend, url in islice(new, MAX_NEW_ENDPOINTS):
            self._let_be_zero(_zeros_of("endpoint", url, backend=[backend], code=_CODES))

    def _is_new(self, *labels: str) -> bool:
        """Whether no rows of 0 were made for these *labels* yet."""
        is_new = labels not in self._expected
        self._expected.add(labels)
        return is_new

    def _let_be_zero(self, rows: Iterable[Row]) -> None:
        for row in rows:
            _ = self._rows[row]

    def note_connections(self, refused_total: int, slow_totals: Mapping[str, int]) -> None:
        """Take the totals since the start: refused connections, and slow ones by the name of the limit."""
        totals: dict[Row, int] = {("client_connections_refused",): refused_total}
        totals |= {("client_connections_slow", limit): total for limit, total in slow_totals.items()}
        for row, total in totals.items():
            self._rows[row][0] += total - self._connections_seen.get(row, 0)
        self._connections_seen = totals

    def note_lag(self, seconds: float) -> None:
        """Count one sample of the event loop's lag."""
        self._observe(("event_loop_lag_seconds",), [seconds])

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
        moments = [(group, list(counts.items())) for group, counts in self._moments.items()]
        if self._deliver(Batch(list(self._rows.items()), moments, self._failures.latest()[::-1])):
            self._rows.clear()
            self._moments.clear()
            self._failures = Failures()

    def finish(self) -> None:
        """Count the exchanges that wait, and from now on each at once, since nobody calls `add_up` any more."""
        self._max_waiting = 1
        self.add_up()

    def _count(self, exchanges: list[Exchange]) -> None:
        rows, models = self._rows, self._models
        alike, batched = defaultdict(list), defaultdict(list)
        for exchange in exchanges:
            route, model, seconds = exchange.route, exchange.model, exchange.seconds
            if model not in models:
                model = self._model_label(exchange)
            rows["requests", route, model, exchange.status, exchange.protocol][0] += 1
            cells = rows["request_seconds", route, model]
            cells[bisect_left(_REQUEST_BOUNDS, seconds)] += 1
            cells[-1] += seconds
            if exchange.client_name:
                rows["client_requests", self._client_label(exchange.client_name), exchange.status][0] += 1
            if exchange.batch_rows:
                batched[route, exchange.backend, model or "other"].append(exchange)
            alike[_kind_of(exchange)].append(exchange)
        for group in alike.values():
            self._count_alike(group)
        for (route, backend, model), group in batched.items():
            self._count_batched(route, backend, model, group)

    def _count_alike(self, group: list[Exchange]) -> None:
        """Count exchanges of one kind, except for the rows that depend on the model."""
        one, rows = group[0], self._rows
        reason = blame = ""
        if one.error is not None:
            reason, blame = one.error.label, blame_of(one.error, one.status).value
            rows["errors", one.route, reason, blame][0] += len(group)
            self._failures.add(group)
        moments = self._moments[one.route, one.backend]
        request_bytes = self._observe(
            ("client_request_bytes", one.route, one.client_format), _each("client_request_bytes", group)
        )
        response_bytes = self._observe(
            ("client_response_bytes", one.route, one.reply_format), _each("client_response_bytes", group)
        )
        attempts = list(chain.from_iterable(_each("attempts", group)))
        if attempts:
            moments["upstream_microseconds", reason, blame] += round(self._count_attempts(one, attempts) * 1e6)
        if one.is_transcoded:
            self._count_codec("request", "input_datatypes", one.client_format, group)
            codec_s = sum(_each("request_codec_s", group)) + sum(_each("response_codec_s", group))
            moments["codec_microseconds", reason, blame] += round(codec_s * 1e6)
            if one.error is None:
                self._count_codec("response", "output_datatypes", one.reply_format, group)
                last = [exchange.attempts[-1] for exchange in group]
                moments["client_request_bytes", reason, blame] += int(request_bytes)
                moments["upstream_request_bytes", reason, blame] += int(sum(_each("request_bytes", last)))
                moments["upstream_response_bytes", reason, blame] += int(sum(_each("response_bytes", last)))
                moments["client_response_bytes", reason, blame] += int(response_bytes)
        seconds = list(_each("seconds", group))
        moments["requests", reason, blame] += len(group)
        moments[one.protocol, reason, blame] += len(group)
        moments["microseconds", reason, blame] += round(sum(seconds) * 1e6)
        for step, count in Counter(map(step_of, seconds)).items():
            moments[STEP, step] += count
        rows["header_recovered",][0] += sum(_each("header_recovered", group))
        self._observe(("admission_wait_seconds",), filter(None, _each("queue_s", group)))

    def _count_batched(self, route: str, backend: str, model: str, group: list[Exchange]) -> None:
        """Count how long the requests of *group* have waited for their batches, and each batch with one of them."""
        moments = self._moments[route, backend]
        n_rows = [each.batch_rows for each in group if not (each.attempts and each.attempts[-1].is_joined)]
        wait_s = self._observe(("batch_wait_seconds", backend, model), _each("batch_wait_s", group))
        moments["batched_requests", "", ""] += len(group)
        moments["batch_wait_microseconds", "", ""] += round(wait_s * 1e6)
        moments["batches", "", ""] += len(n_rows)
        moments["batch_rows", "", ""] += int(self._observe(("batch_rows", backend, model), n_rows))

    def _count_attempts(self, one: Exchange, attempts: list[Attempt]) -> float:
        """Count the *attempts* of exchanges of the same kind as *one*, and return their sum of seconds."""
        rows, backend = self._rows, one.backend
        self._observe(("upstream_request_bytes", one.route, one.upstream_format), _each("request_bytes", attempts))
        self._observe(("upstream_response_bytes", one.route, one.upstream_format), _each("response_bytes", attempts))
        attempts = [attempt for attempt in attempts if not attempt.is_joined]
        first_byte_s = [attempt.first_byte_s for attempt in attempts if attempt.first_byte_s is not None]
        self._observe(("upstream_first_byte_seconds", backend), first_byte_s)
        queue_s = [attempt.queue_s for attempt in attempts if attempt.queue_s is not None]
        self._observe(("upstream_queue_seconds", backend), queue_s)
        for end, n_attempts in Counter(map(_end_of, attempts)).items():
            rows["upstream_requests", backend, *end][0] += n_attempts
        for reason, n_attempts in Counter(filter(None, _each("repeated_for", attempts))).items():
            rows["retries", backend, reason][0] += n_attempts
        return self._observe(("upstream_seconds", backend), _each("seconds", attempts))

    def _count_codec(self, direction: str, datatypes: str, format_: Format, group: list[Exchange]) -> None:
        """Count the codec's work in one *direction* for exchanges of one kind; if they failed, that on requests."""
        self._observe(("transcode_seconds", direction), _each(f"{direction}_codec_s", group))
        for datatype, n_tensors in Counter(chain.from_iterable(_each(datatypes, group))).items():
            self._rows["tensors", direction, datatype][0] += n_tensors
        self._rows["nonfinite_values", direction][0] += sum(_each(f"{direction}_nonfinite", group))
        if format_ is Format.BINARY and group[0].error is None:
            upstream, client = _FIELDS[f"{direction}_bytes"], _FIELDS[f"client_{direction}_bytes"]
            saved = [upstream(exchange.attempts[-1]) - client(exchange) for exchange in group]
            self._rows["json_bytes_avoided", direction][0] += sum(n_bytes for n_bytes in saved if n_bytes > 0)

    def _observe(self, row: Row, amounts: Iterable[float]) -> float:
        """Add *amounts*, none of them NaN, to a histogram whose buckets include their upper bound; returns their sum.

        The amounts are sorted first: for a hundred this takes a third of the time of finding the bucket of each.
        """
        cells, bounds = self._rows[row], BOUNDS[str(row[0])]
        ordered = sorted(amounts)
        total = sum(ordered)
        cells[-1] += total
        start = 0
        while start < len(ordered):
            bucket = bisect_left(bounds, ordered[start])
            end = bisect_right(ordered, bounds[bucket], start)
            cells[bucket] += end - start
            start = end
        return total

    def _model_label(self, exchange: Exchange) -> str:
        """The model's name once it has answered an inference with success, else `other`: clients cannot make labels."""
        model = exchange.model
        if model is None or model in self._models:
            return model or "other"
        is_success = exchange.is_inference and 200 <= exchange.status < 300 and exchange.error is None
        if is_success and exchange.attempts and len(self._models) < MAX_MODELS:
            self._models.add(model)
            return model
        return "other"


def _zeros_of(label: str, value: str, **known: Iterable[str | int]) -> Iterator[Row]:
    """Rows of all metrics that have *label* and else only labels in *known*: with *value*, and all known values."""
    values = {label: [value], **known}
    for family in FAMILIES:
        if label in family.labels and values.keys() >= {*family.labels}:
            yield from product([family.name], *(values[each] for each in family.labels))


def _zeros_of_route(route: str) -> Iterator[Row]:
    others: dict[str, Iterable[str | int]] = {"model": ["other"], "protocol": PROTOCOLS}
    if route != _NO_ROUTE:
        yield from _zeros_of("route", route, code=[200], format=Format, **others)
    else:  # nothing goes to a backend
        yield from _zeros_of("route", route, code=[ErrorKind.NO_ROUTE.status], **others)
        yield "client_request_bytes", route, Format.OTHER
        yield "client_response_bytes", route, Format.OTHER
    for (reason, blame), kind in _ERRORS.items():
        if route == _NO_ROUTE or kind is not ErrorKind.NO_ROUTE:
            yield "errors", route, reason, blame


def _each(name: str, records: Iterable[Exchange | Attempt]) -> Iterator[Any]:
    """The field *name* of each of *records*."""
    return map(_FIELDS[name], records)
