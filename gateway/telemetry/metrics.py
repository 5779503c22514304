"""Metrics: read from a finished exchange, never written in the middle of one.

Finished exchanges wait to be counted together. Those with the same labels are sorted out, and each number is taken of
all of them in one step; then each metric of the library is updated once for all. Either alone would cost about as much
as the whole does now. The names and labels are promised to operators, in the table of the documentation.

Histograms have classic buckets: the library writes no native ones, and its files of several processes could not hold
them. There are no exemplars: those files drop them, the usual text format cannot carry them, and the access log already
leads from a number to its requests: it has their ids, with route, reason and seconds. Not here: any decision.
"""

import logging
import time
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from operator import attrgetter
from typing import Any, Generic, Literal, TypeVar

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Metric, disable_created_metrics
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from gateway import __version__
from gateway.codec import DATATYPES
from gateway.config import Limits
from gateway.errors import ErrorKind, blame_of
from gateway.exchange import Attempt, Exchange, Format
from gateway.policy.ejection import FAILURES
from gateway.telemetry.exposition import PART_SAMPLES
from gateway.telemetry.failures import Failures
from gateway.telemetry.histogram import BatchHistogram
from gateway.telemetry.processes import ProcessCollector
from gateway.telemetry.recent import Recent

MAX_WAITING = 192
"""The most exchanges that wait to be added up: with 200 models that holds the loop for half a millisecond."""

MAX_MODELS = 200
"""The most models with a label of their own; the others share the label `other`."""

_SIZES = tuple(256.0 * 4**power for power in range(12))  # 256 B to 1 GiB
# Neighbours differ by a factor of 2.5 at most, and no quantile is further off than that.
_REQUEST_SECONDS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    20.0,
    30.0,
    60.0,
    120.0,
    300.0,
)
_LAG_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
_CODEC_SECONDS = (50e-6, 100e-6, 250e-6, 500e-6, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


log = logging.getLogger("gateway")

Labels = tuple[str | int, ...]
"""The values of a metric's labels, in the order of their names."""

Counts = defaultdict[Labels, float]
"""What waits to be added to a counter."""

Amounts = defaultdict[Labels, list[float]]
"""What waits to be observed by a histogram."""


_REQUEST = ("request",)
_RESPONSE = ("response",)

_NO_ROUTE = "none"
"""The route of requests that matched none."""

# Every error that a request can end with, by its labels `reason` and `blame`.
_ERRORS = {(kind.label, blame_of(kind, status).value): kind for kind in ErrorKind for status in (400, 500)}

_FAILURES = sorted(kind.label for kind in FAILURES)
_CODES = ("200", *_FAILURES)
"""The ends of attempts that have a series from the start; other statuses have one once they occur."""

ZEROS_AT_ONCE = 5
"""How many series of `Metrics.expect` are made in one go: 0.7 ms where they are histograms of a worker."""

MAX_NEW_ENDPOINTS = 8
"""How many new endpoints get their series in one go, which takes a worker 0.6 ms."""

# What exchanges are sorted by, and what is taken of those that are alike; both without Python's bytecode.
_kind_of = attrgetter("route", "backend", "client_format", "reply_format", "upstream_format", "error", "is_transcoded")
_outcome_of = attrgetter("endpoint", "code")


class EndpointReading(msgspec.Struct, frozen=True, array_like=True):
    """What is known of one endpoint at this moment, by one process."""

    backend: str
    endpoint: str
    is_up: bool
    is_ejected: bool
    busy: int
    """Connections that are open, with a request on them."""
    idle: int
    """Connections that are open and kept for the next."""
    reason: str = ""
    """Why it is in this state, in words; empty if its state has never changed."""
    since_s: float = 0.0
    """Since when, in seconds since 1970."""
    speaks: str = ""
    """What its backend speaks, in words; empty if the servers were not asked yet."""


class Reload(msgspec.Struct, frozen=True):
    """How a reload went."""

    at_s: float
    """In seconds since 1970."""
    is_successful: bool
    words: str
    """Why it failed, or what of it waits for a restart; may be empty."""


class StateCollector(Collector):
    """What is made at the moment of the scrape: of the last reload, and of the endpoints that there are now.

    They are no `Gauge`s, because endpoints come and go with reloads and names, and several processes know of them:
    the library's files of several processes cannot forget a label.
    """

    def __init__(
        self,
        endpoints: Callable[[], Iterable[EndpointReading]],
        expiries: Callable[[], Iterable[tuple[str, float]]] = tuple,
    ) -> None:
        """*endpoints* gives the readings of all processes that serve: several of one endpoint are joined.

        *expiries* gives uses of the gateway's own certificates, and when they expire, in seconds since 1970.
        """
        self._endpoints = endpoints
        self._expiries = expiries
        self._started_s = time.time()
        self.last_reload: Reload | None = None
        self.workers_replaced = 0
        """How many worker processes have died and were replaced."""

    def reloaded(self, *, is_successful: bool, words: str = "") -> None:
        """A reload has been tried now; *words*: why it failed, or what of it waits for a restart."""
        self.last_reload = Reload(time.time(), is_successful, words)

    def collect(self) -> Iterator[Metric]:
        """The values of now.

        An endpoint is up if every process finds so, and ejected if one does. Of certificates the earliest counts.
        """
        labels = "backend", "endpoint"
        up = _family("endpoint_up", "1; 0 while health probes find it down", *labels)
        ejected = _family("endpoint_ejected", "1 while it is ejected because requests to it failed", *labels)
        open_ = _family("upstream_connections", "Connections to backends that are open now", *labels, "state")
        for (backend, endpoint), readings in self._by_endpoint().items():
            up.add_metric((backend, endpoint), min(reading.is_up for reading in readings))
            ejected.add_metric((backend, endpoint), max(reading.is_ejected for reading in readings))
            open_.add_metric((backend, endpoint, "busy"), sum(reading.busy for reading in readings))
            open_.add_metric((backend, endpoint, "idle"), sum(reading.idle for reading in readings))
        successful = _family("config_last_reload_successful", "0 if the last reload failed, else 1")
        last = self.last_reload or Reload(self._started_s, is_successful=True, words="")
        successful.add_metric((), last.is_successful)
        timestamp = _family("config_last_reload_timestamp_seconds", "When a reload was last tried, or the start")
        timestamp.add_metric((), last.at_s)
        expiry = _family("certificate_expiry_timestamp_seconds", "When the gateway's own certificate expires", "use")
        earliest = dict(sorted(self._expiries(), reverse=True))  # the last of a use stays
        for use, expires_s in earliest.items():
            expiry.add_metric((use,), expires_s)
        replaced = CounterMetricFamily(
            "tensor_gateway_workers_replaced", "Worker processes that died and were replaced"
        )
        replaced.add_metric((), self.workers_replaced)
        yield from (up, ejected, open_, successful, timestamp, expiry, replaced)

    def _by_endpoint(self) -> dict[tuple[str, str], list[EndpointReading]]:
        found: dict[tuple[str, str], list[EndpointReading]] = {}
        for reading in self._endpoints():
            found.setdefault((reading.backend, reading.endpoint), []).append(reading)
        return found


def _family(name: str, help_: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"tensor_gateway_{name}", help_, labels=labels)


class Metrics:
    """The gateway's metrics, in a registry of their own."""

    def __init__(
        self,
        endpoints: Callable[[], Iterable[EndpointReading]] = tuple,
        expiries: Callable[[], Iterable[tuple[str, float]]] = tuple,
    ) -> None:
        """*endpoints*, *expiries*: see `StateCollector`."""
        # they would nearly double the series, and say nothing that `rate` needs
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.state = StateCollector(endpoints, expiries)
        self.registry.register(self.state)
        self._processes = ProcessCollector()
        self.registry.register(self._processes)
        self._expected: set[tuple[str, ...]] = set()
        self.recent = Recent()
        self.failures = Failures()
        self._models: set[str] = set()
        self._refused_connections_seen = 0
        self._slow_connections_seen: dict[str, int] = {}
        self._gauges: list[Gauge] = []
        self._counts: list[tuple[_Children[Counter], Counts]] = []
        self._amounts: list[tuple[_Children[BatchHistogram], Amounts]] = []
        self._waiting: list[Exchange] = []
        self._max_waiting = MAX_WAITING
        counter, gauge, histogram = self._counter, self._gauge, self._histogram
        self._requests = counter("requests", "Requests of clients that are finished", "route", "model", "code")
        self._seconds = histogram(
            "request_seconds", "From a request's head to its reply's last byte", _REQUEST_SECONDS, "route", "model"
        )
        self._in_flight = gauge("requests_in_flight", "Requests that are being served now")
        self._in_flight_limit = gauge("requests_in_flight_limit", "limits.concurrent_requests")
        self._connections = gauge("client_connections", "Connections of clients that are open now")
        self._connections_limit = gauge("client_connections_limit", "limits.connections, or what descriptors allow")
        self._refused_connections = counter(
            "client_connections_refused", "Connections of clients that were closed at once, beyond limits.connections"
        )
        self._slow_connections = counter(
            "client_connections_slow", "Connections of clients that were too slow, by what they exceeded", "limit"
        )
        self._held = gauge("in_flight_bytes", "Request bodies and decoded answers that are held now")
        self._held_limit = gauge("in_flight_bytes_limit", "limits.in_flight_bytes")
        self._admission_wait = histogram(
            "admission_wait_seconds", "Waiting until slow uploads made room, per request that did", _REQUEST_SECONDS
        )
        self._lag = histogram("event_loop_lag_seconds", "How late the event loop was, sampled", _LAG_SECONDS)
        sizes = "route", "format"
        self._client_request = histogram("client_request_bytes", "Request bodies as clients sent them", _SIZES, *sizes)
        self._client_response = histogram("client_response_bytes", "Reply bodies as clients got them", _SIZES, *sizes)
        self._upstream_request = histogram(
            "upstream_request_bytes", "Request bodies as backends got them", _SIZES, *sizes
        )
        self._upstream_response = histogram(
            "upstream_response_bytes", "Answer bodies as backends sent them", _SIZES, *sizes
        )
        self._transcode = histogram("transcode_seconds", "Time in the codec alone", _CODEC_SECONDS, "direction")
        self._tensors = counter("tensors", "Binary tensors transcoded", "direction", "datatype")
        self._avoided = counter("json_bytes_avoided", "JSON bytes that the client's wire saved", "direction")
        self._upstream_seconds = histogram(
            "upstream_seconds", "From sending to the answer's last byte, per attempt", _REQUEST_SECONDS, "backend"
        )
        self._first_byte_seconds = histogram(
            "upstream_first_byte_seconds", "From sending to the answer's head, per attempt", _REQUEST_SECONDS, "backend"
        )
        self._queue_seconds = histogram(
            "upstream_queue_seconds",
            "Waiting for a connection to the backend, per attempt",
            _REQUEST_SECONDS,
            "backend",
        )
        self._upstream_requests = counter("upstream_requests", "Attempts", "backend", "endpoint", "code")
        self._retries = counter(
            "retries", "Attempts that were followed by another of the same request", "backend", "reason"
        )
        self._errors = counter("errors", "Requests that failed, and who caused it", "route", "reason", "blame")
        self._nonfinite = counter("nonfinite_values", "NaN and infinities let through by policy", "direction")
        self._recovered = counter("header_recovered", "Requests whose missing header length was found")
        for direction in (*_REQUEST, *_RESPONSE):
            for waiting in (self._transcode, self._avoided, self._nonfinite):
                _let_be_zero(waiting, direction)
            for datatype in DATATYPES:
                _let_be_zero(self._tensors, direction, datatype)
        for _ in self.expect([_NO_ROUTE], []):
            pass
        gauge("build_info", "1, labelled with the version", "version", mode="livemax").labels(__version__).set(1)

    def expect(self, routes: Iterable[str], backends: Iterable[str]) -> Iterator[None]:
        """Make the series of *routes* and *backends*, with 0: of one that begins with 1, `increase` misses the first.

        Yields after every few series that are new, because each takes a worker 0.1 ms.
        """
        zeros = chain(
            chain.from_iterable(self._zeros_of_route(route) for route in routes if self._is_new("route", route)),
            chain.from_iterable(self._zeros_of_backend(name) for name in backends if self._is_new("backend", name)),
        )
        while some := list(islice(zeros, ZEROS_AT_ONCE)):
            for waiting, labels in some:
                _let_be_zero(waiting, *labels)
            self.add_up()
            yield

    def expect_endpoints(self, endpoints: Iterable[tuple[str, str]]) -> None:
        """Let there be zeros for *endpoints*, each a backend and a URL; at most for `MAX_NEW_ENDPOINTS` that are new.

        Names of hosts may bring many at a time, while requests are served.
        """
        new = ((backend, url) for backend, url in endpoints if self._is_new("endpoint", backend, url))
        for backend, url in islice(new, MAX_NEW_ENDPOINTS):
            for code in _CODES:
                _let_be_zero(self._upstream_requests, backend, url, code)

    def _is_new(self, *labels: str) -> bool:
        """Whether zeros for these *labels* were not asked for before."""
        is_new = labels not in self._expected
        self._expected.add(labels)
        return is_new

    def _zeros_of_route(self, route: str) -> Iterator[tuple[Counts | Amounts, Labels]]:
        is_matched = route != _NO_ROUTE
        yield self._requests, (route, "other", 200 if is_matched else ErrorKind.NO_ROUTE.status)
        yield self._seconds, (route, "other")
        for format_ in Format if is_matched else (Format.OTHER,):
            yield self._client_request, (route, format_)
            yield self._client_response, (route, format_)
        for format_ in Format if is_matched else ():
            yield self._upstream_request, (route, format_)
            yield self._upstream_response, (route, format_)
        for (reason, blame), kind in _ERRORS.items():
            if not (is_matched and kind is ErrorKind.NO_ROUTE):
                yield self._errors, (route, reason, blame)

    def _zeros_of_backend(self, backend: str) -> Iterator[tuple[Counts | Amounts, Labels]]:
        for waiting in (self._upstream_seconds, self._first_byte_seconds, self._queue_seconds):
            yield waiting, (backend,)
        for reason in _FAILURES:
            yield self._retries, (backend, reason)

    def observe_load(self, requests: int, held_bytes: int, max_bytes: int) -> None:
        """Set the gauges of what is in flight."""
        self._in_flight.set(requests)
        self._held.set(held_bytes)
        self._held_limit.set(max_bytes)

    def observe_limits(self, limits: Limits) -> None:
        """Set the gauges of what is allowed to this process."""
        self._in_flight_limit.set(limits.concurrent_requests)
        self._connections_limit.set(limits.connections)

    def observe_connections(self, open_: int, refused_total: int, slow_totals: Mapping[str, int]) -> None:
        """Set how many client connections are open.

        *refused_total* and *slow_totals* count since the start those refused, and, by the limit's name, the slow ones.
        """
        self._connections.set(open_)
        self._refused_connections[()] += refused_total - self._refused_connections_seen
        self._refused_connections_seen = refused_total
        for limit, total in slow_totals.items():
            self._slow_connections[(limit,)] += total - self._slow_connections_seen.get(limit, 0)
            self._slow_connections_seen[limit] = total

    def observe_lag(self, seconds: float) -> None:
        """Count one sample of the event loop's lag."""
        self._lag[()].append(seconds)

    def record(self, exchange: Exchange) -> None:
        """Count a finished exchange, which nothing changes any more: `add_up` makes it visible."""
        self._waiting.append(exchange)
        if len(self._waiting) >= self._max_waiting:
            self.add_up()

    def add_up(self) -> None:
        """Add what waits to the metrics; to be called before each scrape, and several times a second."""
        waiting, self._waiting = self._waiting, []
        try:
            self._note(waiting)
            for counter, counts in self._counts:
                for labels, count in _taken(counts):
                    counter.child(labels).inc(count)
            for histogram, amounts in self._amounts:
                for labels, values in _taken(amounts):
                    histogram.child(labels).observe_all(values)
        except Exception:  # requests go on, and so does who calls this
            log.exception("some requests could not be counted")

    def collect(self) -> Iterator[Metric]:
        """All metrics, those with many samples in several parts of `PART_SAMPLES`, for `exposition`.

        Requests may be counted between two parts.
        """
        yield from self.state.collect()
        yield from self._processes.collect()
        for gauge in self._gauges:
            yield from gauge.collect()
        for counter, _ in self._counts:
            yield from counter.collect()
        for histogram, _ in self._amounts:
            yield from histogram.collect()

    def _note(self, exchanges: list[Exchange]) -> None:
        requests, seconds, models = self._requests, self._seconds, self._models
        alike = defaultdict(list)
        for exchange in exchanges:
            route, model = exchange.route, exchange.model
            if model not in models:
                model = self._model_label(exchange)
            requests[route, model, exchange.status] += 1
            seconds[route, model].append(exchange.seconds)
            alike[_kind_of(exchange)].append(exchange)
        for group in alike.values():
            self.recent.add(group)
            if group[0].error is not None:
                self.failures.add(group)
            self._note_alike(group)
            if group[0].is_transcoded:
                self._note_codec(group)

    def _note_alike(self, group: list[Exchange]) -> None:
        """Note all but the codec of exchanges of one kind."""
        one = group[0]
        route, backend = one.route, one.backend
        upstream, by_backend = (route, one.upstream_format), (backend,)
        self._client_request[route, one.client_format].extend(_each("client_request_bytes", group))
        self._client_response[route, one.reply_format].extend(_each("client_response_bytes", group))
        n_recovered = sum(_each("header_recovered", group))
        if n_recovered:
            self._recovered[()] += n_recovered
        admission_wait_s = [s for s in _each("queue_s", group) if s]
        if admission_wait_s:
            self._admission_wait[()].extend(admission_wait_s)
        if one.error is not None:
            for status, count in Tally(_each("status", group)).items():
                self._errors[route, one.error.label, blame_of(one.error, status).value] += count
        attempts = list(chain.from_iterable(_each("attempts", group)))
        if not attempts:
            return
        self._upstream_request[upstream].extend(_each("request_bytes", attempts))
        self._upstream_response[upstream].extend(_each("response_bytes", attempts))
        self._upstream_seconds[by_backend].extend(_each("seconds", attempts))
        for (endpoint, code), count in Tally(map(_outcome_of, attempts)).items():
            self._upstream_requests[backend, endpoint, code] += count
        first_byte_s = [s for s in _each("first_byte_s", attempts) if s is not None]
        if first_byte_s:
            self._first_byte_seconds[by_backend].extend(first_byte_s)
        queue_s = [s for s in _each("queue_s", attempts) if s is not None]
        if queue_s:
            self._queue_seconds[by_backend].extend(queue_s)
        for reason in filter(None, _each("repeated_for", attempts)):
            self._retries[backend, reason] += 1

    def _note_codec(self, group: list[Exchange]) -> None:
        """Note what the codec did of exchanges of one kind."""
        one = group[0]
        self._transcode[_REQUEST].extend(_each("request_codec_s", group))
        for datatype, count in Tally(chain.from_iterable(_each("input_datatypes", group))).items():
            self._tensors["request", datatype] += count
        self._nonfinite[_REQUEST] += sum(_each("request_nonfinite", group))
        if one.error is not None:
            return
        if one.client_format is Format.BINARY:
            saved = [exchange.attempts[-1].request_bytes - exchange.client_request_bytes for exchange in group]
            self._avoided[_REQUEST] += sum(n_bytes for n_bytes in saved if n_bytes > 0)
        self._transcode[_RESPONSE].extend(_each("response_codec_s", group))
        for datatype, count in Tally(chain.from_iterable(_each("output_datatypes", group))).items():
            self._tensors["response", datatype] += count
        self._nonfinite[_RESPONSE] += sum(_each("response_nonfinite", group))
        if one.reply_format is Format.BINARY:
            saved = [exchange.attempts[-1].response_bytes - exchange.client_response_bytes for exchange in group]
            self._avoided[_RESPONSE] += sum(n_bytes for n_bytes in saved if n_bytes > 0)

    def finish(self) -> None:
        """Add up what waits, and from now on each exchange at once: nobody will call `add_up` any more."""
        self._max_waiting = 1
        self.add_up()

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

    def _counter(self, name: str, help_: str, *labels: str) -> Counts:
        counter = Counter(f"tensor_gateway_{name}", help_, labels, registry=self.registry)
        counts: Counts = defaultdict(float)
        self._counts.append((_Children(counter, labels), counts))
        return counts

    def _gauge(self, name: str, help_: str, *labels: str, mode: Literal["livesum", "livemax"] = "livesum") -> Gauge:
        # where there are workers, those that live are summed
        gauge = Gauge(f"tensor_gateway_{name}", help_, labels, registry=self.registry, multiprocess_mode=mode)
        self._gauges.append(gauge)
        return gauge

    def _histogram(self, name: str, help_: str, buckets: tuple[float, ...], *labels: str) -> Amounts:
        histogram = BatchHistogram(f"tensor_gateway_{name}", help_, labels, buckets=buckets, registry=self.registry)
        amounts: Amounts = defaultdict(list)
        self._amounts.append((_Children(histogram, labels), amounts))
        return amounts


def _each(name: str, records: Iterable[Exchange | Attempt]) -> Iterator[Any]:
    """The field *name* of each of *records*."""
    return map(attrgetter(name), records)


def _let_be_zero(waiting: Counts | Amounts, *labels: str | int) -> None:
    """Let the next `add_up` make the series with these *labels*."""
    _ = waiting[labels]


V = TypeVar("V")


def _taken(waiting: defaultdict[Labels, V]) -> list[tuple[Labels, V]]:
    """What waits, which does not wait any more: nothing is counted twice if some of it cannot be."""
    taken = list(waiting.items())
    waiting.clear()
    return taken


M = TypeVar("M", Counter, BatchHistogram)


class _Children(Generic[M]):
    """A metric's children by the values of their labels, looked up without the library's locks and checks."""

    def __init__(self, metric: M, names: tuple[str, ...]) -> None:
        """*names* are those of its labels."""
        self._metric: M = metric
        self._names = names
        self._known: dict[Labels, M] = {}

    def child(self, labels: Labels) -> M:
        """The child with these values; the metric itself if it has no labels."""
        found = self._known.get(labels)
        if found is None:
            found = self._known[labels] = self._metric.labels(*labels) if labels else self._metric
        return found

    def collect(self) -> Iterator[Metric]:
        """What the metric collects, in parts of whole children with `PART_SAMPLES` or a few more; at least one part."""
        if not self._names or not self._known:
            yield from self._metric.collect()
            return
        part: Metric | None = None
        for values, child in tuple(self._known.items()):
            labels = {name: str(value) for name, value in zip(self._names, values, strict=True)}
            for family in child.collect():
                if part is None:
                    part = Metric(family.name, family.documentation, family.type, family.unit)
                part.samples += [each._replace(labels={**labels, **each.labels}) for each in family.samples]
            if part is not None and len(part.samples) >= PART_SAMPLES:
                yield part
                part = None
        if part is not None:
            yield part
