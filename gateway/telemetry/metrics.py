"""Metrics for Prometheus: the counts of all processes, and their current state.

The rows of the table of sums become series here, as text that prometheus_client writes. Gauges are made anew for each
scrape, because endpoints come and go with reloads and look-ups of names, and so do workers.

Histograms have classic buckets, and no exemplars: the usual text format cannot carry them, and the access log already
leads from a number to its requests, with ids, route, reason and seconds. The metrics of processes have the names and
meanings that every exporter gives them, but stand for all processes together; they come from `/proc`, and are absent
without it.
"""

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, islice
from math import inf
from pathlib import Path

import msgspec
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from gateway import __version__
from gateway.telemetry.counting import Batch
from gateway.telemetry.reading import STARTED_S, Reading
from gateway.telemetry.recent import Failures, Recent
from gateway.telemetry.sums import BOUNDS, FAMILIES, GAUGES, MINUTE, Cells, Family, Row, Table

PIECE_SAMPLES = 100
"""How many samples are written in one go, which takes 0.8 ms. 200 models on ten routes have 43,000 samples, which would
hold the loop for 0.3 s."""

PROC = Path("/proc")

# Fields of /proc/PID/stat after the name, which may hold spaces and brackets (man 5 proc_pid_stat).
_TIMES = slice(11, 15)  # user and system, of the process and of its children that have ended
_RSS = 21

_UPPER_BOUNDS = {name: [str(floatToGoString(bound)) for bound in bounds] for name, bounds in BOUNDS.items()}  # type: ignore[no-untyped-call]
"""The upper bounds of buckets, as the label `le` has them."""


class Reload(msgspec.Struct, frozen=True):
    """The result of a reload."""

    at_s: float
    """In seconds since 1970."""
    is_successful: bool
    words: str
    """Why it failed, or what of it waits for a restart; may be empty."""
    since_s: float
    """When a reload went like this first, with none between that went otherwise: `serve --watch` tries again."""


class Metrics:
    """The counts of all of the gateway's processes together, since the start and in the last minute."""

    def __init__(self) -> None:
        self.recent = Recent()
        self.failures = Failures()
        self.last_reload: Reload | None = None
        self._table = Table()

    def add(self, batch: Batch) -> bool:
        """Add the counts of a process; always True, which tells `Counting` that they were taken."""
        self._table.add(each for each in batch.rows if each[0][0] != MINUTE)
        self.recent.add(batch.rows)
        self.failures.add(reversed(batch.failures))
        return True

    def count_replaced(self) -> None:
        """A worker process has died and is replaced."""
        self._table["workers_replaced",][0] += 1

    def reloaded(self, *, is_successful: bool, words: str = "") -> None:
        """A reload has been tried now; *words*: why it failed, or what of it waits for a restart."""
        before, now_s = self.last_reload, time.time()
        is_same = before is not None and (before.is_successful, before.words) == (is_successful, words)
        self.last_reload = Reload(now_s, is_successful, words, before.since_s if before and is_same else now_s)

    def exposition(self, readings: Sequence[Reading]) -> Iterator[str]:
        """The text of all metrics in pieces, between which requests may be counted; *readings* of all processes."""
        usage = usage_of_all([reading.pid for reading in readings if reading.pid != os.getpid()])
        gauges = self._moment(readings) | {(name,): value for name, value in usage.items()}
        cells = self._table["process_cpu_seconds",]
        # the time of a worker that has just ended may be missing; Prometheus takes a lower count for a restart
        cells[0] = max(cells[0], usage.get("process_cpu_seconds", 0.0))
        yield from _exposition(GAUGES, {row: [value] for row, value in gauges.items()}, "gauge")
        yield from _exposition(FAMILIES, self._table, "counter")

    def _moment(self, readings: Sequence[Reading]) -> dict[Row, float]:
        """The gauges. An endpoint is up if all processes find it up, and ejected if one has ejected it."""
        last = self.last_reload or Reload(STARTED_S, True, "", STARTED_S)
        rows: defaultdict[Row, float] = defaultdict(float)
        rows["build_info", __version__] = 1
        rows["config_last_reload_successful",] = last.is_successful
        rows["config_last_reload_timestamp_seconds",] = last.at_s
        rows["requests_in_flight",] = sum(each.in_flight for each in readings)
        rows["requests_in_flight_limit",] = sum(each.requests.limit for each in readings)
        rows["client_connections",] = sum(each.connections.used for each in readings)
        rows["client_connections_limit",] = sum(each.connections.limit for each in readings)
        rows["in_flight_bytes",] = sum(each.body_bytes.used for each in readings)
        rows["in_flight_bytes_limit",] = sum(each.body_bytes.limit for each in readings)
        for certificate in chain.from_iterable(reading.certificates for reading in readings):
            row = "certificate_expiry_timestamp_seconds", "listener" if certificate.where == "tls" else "backend"
            rows[row] = min(rows.get(row, inf), certificate.expires_s)
        for each in chain.from_iterable(reading.endpoints for reading in readings):
            up, ejected = ((name, each.backend, each.endpoint) for name in ("endpoint_up", "endpoint_ejected"))
            rows[up] = min(rows.get(up, 1), each.is_up)
            rows[ejected] = max(rows[ejected], each.is_ejected)
            rows["upstream_connections", each.backend, each.endpoint, "busy"] += each.busy
            rows["upstream_connections", each.backend, each.endpoint, "idle"] += each.idle
        return rows


class _One(CollectorRegistry):
    """Holds one metric that is already made."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


def _exposition(families: Iterable[Family], rows: Mapping[Row, Cells], kind: str) -> Iterator[str]:
    """The text of *families*, a series for each of their *rows*; *kind* is the type of those without buckets."""
    by_name: defaultdict[str, list[tuple[Row, Cells]]] = defaultdict(list)
    for row, cells in rows.items():
        by_name[str(row[0])].append((row[1:], cells))
    for family in families:
        name = family.name if family.name.startswith("process_") else f"tensor_gateway_{family.name}"
        metric = Metric(name, family.help, "histogram" if family.bounds else kind)
        samples = chain.from_iterable(_samples(family, metric, *each) for each in by_name[family.name])
        is_first = True
        while (piece := list(islice(samples, PIECE_SAMPLES))) or is_first:
            metric.samples = piece
            text = generate_latest(_One(metric)).decode()
            yield text if is_first else text.split("\n", 2)[2]  # without help and type again
            is_first = False


def _samples(family: Family, metric: Metric, values: Row, cells: Cells) -> Iterator[Sample]:
    """The samples of one series of *metric*, whose labels have these *values*."""
    labels = {label: str(value) for label, value in zip(family.labels, values, strict=True)}
    if not family.bounds:
        yield Sample(f"{metric.name}_total" if metric.type == "counter" else metric.name, labels, cells[0])
        return
    *buckets, total = cells
    counts = list(accumulate(buckets))
    for bound, count in zip(_UPPER_BOUNDS[family.name], counts, strict=True):
        yield Sample(f"{metric.name}_bucket", {**labels, "le": bound}, count)
    yield Sample(f"{metric.name}_count", labels, counts[-1])
    yield Sample(f"{metric.name}_sum", labels, total)


def usage_of(pid: int) -> dict[str, float]:
    """The metrics of the process *pid*, by name; empty if it has ended, or if there is no `/proc`.

    The processor time is that of the process and of its children that have ended; so the sum never decreases.
    """
    folder = PROC / str(pid)
    try:
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        limits = (folder / "limits").read_text()
        return {
            "process_cpu_seconds": sum(map(int, fields[_TIMES])) / os.sysconf("SC_CLK_TCK"),
            "process_resident_memory_bytes": int(fields[_RSS]) * os.sysconf("SC_PAGE_SIZE"),
            # in Linux 6.2 and later the folder's size is the number; to list 4,000 descriptors takes 15 ms
            "process_open_fds": os.stat(folder / "fd").st_size or len(os.listdir(folder / "fd")),
            "process_max_fds": float(limits.partition("Max open files")[2].split()[0].replace("unlimited", "inf")),
        }
    except (OSError, IndexError):  # of a process that is ending, files are empty
        return {}


def usage_of_all(workers: Iterable[int]) -> dict[str, float]:
    """The metrics of this process and of its *workers*, by name; without workers this process serves clients itself.

    Memory that processes share counts for each of them. The supervisor's descriptors are counted, but not its limit: it
    needs few, and with its limit in the sum the workers could run out below 70 %.
    """
    own, serving = usage_of(os.getpid()), [usage for pid in workers if (usage := usage_of(pid))]
    if not own:
        return {}
    sums = {name: sum(each[name] for each in (own, *serving)) for name in own}
    sums["process_max_fds"] = sum(each["process_max_fds"] for each in serving or [own])
    return sums | {"process_start_time_seconds": STARTED_S}
