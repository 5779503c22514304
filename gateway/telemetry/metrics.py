"""Metrics: what all processes have counted and what they say of themselves, as Prometheus gets it.

The rows of the table of sums become series here, and the moment of the scrape gives the gauges: endpoints come and go
with reloads and names, and so do workers.

Histograms have classic buckets, and there are no exemplars: the usual text format cannot carry them, and the access log
already leads from a number to its requests: it has their ids, with route, reason and seconds. Not here: what is counted
(`counting`), and any decision.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from operator import attrgetter

import msgspec
from prometheus_client import Metric
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from gateway import __version__
from gateway.telemetry.counting import Batch
from gateway.telemetry.exposition import PART_SAMPLES
from gateway.telemetry.failures import Failures
from gateway.telemetry.processes import ProcessCollector
from gateway.telemetry.reading import EndpointReading, Reading
from gateway.telemetry.recent import Recent
from gateway.telemetry.sums import BOUNDS, FAMILIES, Cells, Family, Row, Table

_UPPER_BOUNDS = {name: [str(floatToGoString(bound)) for bound in bounds] for name, bounds in BOUNDS.items()}  # type: ignore[no-untyped-call]
"""As the label `le` has them."""

SHOWN_CLIENTS = 10
"""How many names of tokens the status page shows."""

_LEVELS = (
    ("requests_in_flight", "Requests that are being served now", attrgetter("in_flight")),
    ("requests_in_flight_limit", "limits.concurrent_requests", attrgetter("requests.limit")),
    ("client_connections", "Connections of clients that are open now", attrgetter("connections.used")),
    ("client_connections_limit", "limits.connections, or what descriptors allow", attrgetter("connections.limit")),
    ("in_flight_bytes", "Request bodies and decoded answers that are held now", attrgetter("body_bytes.used")),
    ("in_flight_bytes_limit", "limits.in_flight_bytes", attrgetter("body_bytes.limit")),
)
"""The gauges that are sums of the readings."""


class Reload(msgspec.Struct, frozen=True):
    """How a reload went."""

    at_s: float
    """In seconds since 1970."""
    is_successful: bool
    words: str
    """Why it failed, or what of it waits for a restart; may be empty."""
    since_s: float
    """When a reload went like this first, with none between that went otherwise: `serve --watch` tries again."""


class Metrics:
    """What the gateway's processes have counted together since the start, and in the last minute."""

    def __init__(
        self,
        readings: Callable[[], Iterable[Reading]] = tuple,
        workers: Callable[[], Iterable[int]] = tuple,
    ) -> None:
        """*readings* are those of all processes that serve clients. *workers*: see `ProcessCollector`."""
        self.recent = Recent()
        self.failures = Failures()
        self.last_reload: Reload | None = None
        self.workers_replaced = 0
        """How many worker processes have died and were replaced."""
        self._readings = readings
        self._processes = ProcessCollector(workers)
        self._table = Table()
        self._started_s = time.time()

    def add(self, batch: Batch) -> bool:
        """Add what a process has counted. True: it was taken."""
        self._table.add(batch.rows)
        self.recent.add(batch.moments)
        for failure in batch.failures:
            self.failures.keep(failure)
        return True

    def busiest_clients(self) -> list[tuple[str, int]]:
        """The names of tokens with the most requests since the start, at most `SHOWN_CLIENTS`, and how many."""
        counts: Counter[str] = Counter()
        for row, cells in self._table.items():
            if row[0] == "client_requests" and cells[0]:
                counts[str(row[1])] += int(cells[0])
        return counts.most_common(SHOWN_CLIENTS)

    def reloaded(self, *, is_successful: bool, words: str = "") -> None:
        """A reload has been tried now; *words*: why it failed, or what of it waits for a restart."""
        before, now_s = self.last_reload, time.time()
        is_same = before is not None and (before.is_successful, before.words) == (is_successful, words)
        self.last_reload = Reload(now_s, is_successful, words, before.since_s if before and is_same else now_s)

    def collect(self) -> Iterator[Metric]:
        """All metrics, those with many samples in several parts of `PART_SAMPLES`, for `exposition`.

        Requests may be counted between two parts.
        """
        readings = list(self._readings())
        yield from _of_endpoints(each for reading in readings for each in reading.endpoints)
        yield from self._of_the_gateway(readings)
        yield from self._processes.collect()
        rows: defaultdict[str, list[tuple[Row, Cells]]] = defaultdict(list)
        for row, cells in self._table.items():
            rows[str(row[0])].append((row[1:], cells))
        for family in FAMILIES:
            yield from _parts(family, rows[family.name])

    def _of_the_gateway(self, readings: list[Reading]) -> Iterator[Metric]:
        last = self.last_reload or Reload(self._started_s, True, "", self._started_s)
        for name, help_, value_of in _LEVELS:
            yield _gauge_of(name, help_, sum(map(value_of, readings)))
        yield _gauge_of("config_last_reload_successful", "0 if the last reload failed, else 1", last.is_successful)
        name = "config_last_reload_timestamp_seconds"
        yield _gauge_of(name, "When a reload was last tried, or the start", last.at_s)
        build = _gauge("build_info", "1, labelled with the version", "version")
        build.add_metric((__version__,), 1)
        expiry = _gauge("certificate_expiry_timestamp_seconds", "When the gateway's own certificate expires", "use")
        earliest: dict[str, float] = {}
        for certificate in (each for reading in readings for each in reading.certificates):
            use = "listener" if certificate.where == "tls" else "backend"
            earliest[use] = min(certificate.expires_s, earliest.get(use, certificate.expires_s))
        for use, expires_s in earliest.items():
            expiry.add_metric((use,), expires_s)
        replaced = CounterMetricFamily(
            "tensor_gateway_workers_replaced", "Worker processes that died and were replaced"
        )
        replaced.add_metric((), self.workers_replaced)
        yield from (build, expiry, replaced)


def _of_endpoints(readings: Iterable[EndpointReading]) -> Iterator[Metric]:
    """An endpoint is up if every process finds so, and ejected if one does."""
    labels = "backend", "endpoint"
    up = _gauge("endpoint_up", "1; 0 while health probes find it down", *labels)
    ejected = _gauge("endpoint_ejected", "1 while it is ejected because requests to it failed", *labels)
    open_ = _gauge("upstream_connections", "Connections to backends that are open now", *labels, "state")
    by_endpoint: defaultdict[tuple[str, str], list[EndpointReading]] = defaultdict(list)
    for reading in readings:
        by_endpoint[reading.backend, reading.endpoint].append(reading)
    for (backend, endpoint), found in by_endpoint.items():
        up.add_metric((backend, endpoint), min(reading.is_up for reading in found))
        ejected.add_metric((backend, endpoint), max(reading.is_ejected for reading in found))
        open_.add_metric((backend, endpoint, "busy"), sum(reading.busy for reading in found))
        open_.add_metric((backend, endpoint, "idle"), sum(reading.idle for reading in found))
    yield from (up, ejected, open_)


def _gauge(name: str, help_: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"tensor_gateway_{name}", help_, labels=labels)


def _gauge_of(name: str, help_: str, value: float) -> GaugeMetricFamily:
    gauge = _gauge(name, help_)
    gauge.add_metric((), value)
    return gauge


def _parts(family: Family, rows: Iterable[tuple[Row, Cells]]) -> Iterator[Metric]:
    """The metric with a series for each of *rows*, in parts of `PART_SAMPLES` or a few more; at least one part."""
    type_ = "histogram" if family.bounds else "counter"
    part = Metric(f"tensor_gateway_{family.name}", family.help, type_)
    is_first = True
    for values, cells in rows:
        labels = {name: str(value) for name, value in zip(family.labels, values, strict=True)}
        part.samples += _samples(family, part.name, labels, cells)
        if len(part.samples) >= PART_SAMPLES:
            yield part
            part, is_first = Metric(part.name, family.help, type_), False
    if part.samples or is_first:
        yield part


def _samples(family: Family, name: str, labels: dict[str, str], cells: Cells) -> Iterator[Sample]:
    if not family.bounds:
        yield Sample(f"{name}_total", labels, cells[0])
        return
    *buckets, total = cells
    counts = list(accumulate(buckets))
    for bound, count in zip(_UPPER_BOUNDS[family.name], counts, strict=True):
        yield Sample(f"{name}_bucket", {**labels, "le": bound}, count)
    yield Sample(f"{name}_count", labels, counts[-1])
    yield Sample(f"{name}_sum", labels, total)
