"""The table of sums: what is counted, a row for each series.

Each process that serves clients adds its finished requests to such a table. With several workers the tables are sent to
the supervisor and added up there as they are.
"""

from collections.abc import Iterable
from math import inf
from operator import add
from typing import NamedTuple

Row = tuple[str | int, ...]
"""The metric's name, then the values of its labels."""

Cells = list[float]
"""A counter has one cell. A histogram has one for each bucket, then one for the sum of all amounts."""

MINUTE = "minute"
"""The name of rows that are no metric, but for the last minute: requests by route, backend, protocol, reason and blame
of the error (empty without one), and the step of their duration (`recent`)."""

_SIZES = tuple(256.0 * 4**power for power in range(12))  # 256 B to 1 GiB
# Neighbouring bounds differ by a factor of 2.5 at most, so a quantile is off by this factor at most.
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300)
_BATCH_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_LAG_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
_CODEC_SECONDS = (50e-6, 100e-6, 250e-6, 500e-6, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Family(NamedTuple):
    """One metric of the table; its name is without prefix, and without the `_total` of a counter."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    """The upper bounds of a histogram's buckets; the last bucket has none. Empty for a counter or a gauge."""


FAMILIES = (
    Family("requests", "Requests of clients that are finished", ("route", "model", "code", "protocol")),
    Family("client_requests", "Requests by the name of the client's token", ("client", "code")),
    Family("client_connections_refused", "Connections of clients that were closed at once, beyond limits.connections"),
    Family("client_connections_slow", "Connections of clients that were too slow, by what they exceeded", ("limit",)),
    Family("tensors", "Binary tensors transcoded", ("direction", "datatype")),
    Family("json_bytes_avoided", "JSON bytes that the client's wire saved", ("direction",)),
    Family("upstream_requests", "Attempts", ("backend", "endpoint", "code")),
    Family("retries", "Attempts that were followed by another of the same request", ("backend", "reason")),
    Family("errors", "Requests that failed, and who caused it", ("route", "reason", "blame")),
    Family("nonfinite_values", "NaN and infinities let through by policy", ("direction",)),
    Family("header_recovered", "Requests whose missing header length was found"),
    Family("process_cpu_seconds", "Processor time, user and system, of all processes"),
    Family("workers_replaced", "Worker processes that died and were replaced"),
    Family("request_seconds", "From a request's head to its reply's last byte", ("route", "model"), _SECONDS),
    Family("admission_wait_seconds", "Waiting until slow uploads made room, per request that did", (), _SECONDS),
    Family("batch_rows", "Rows of a request to a backend whose model is batched", ("backend", "model"), _BATCH_ROWS),
    Family("batch_wait_seconds", "Waiting for others of a batch", ("backend", "model"), _SECONDS),
    Family("event_loop_lag_seconds", "How late the event loop was, sampled", (), _LAG_SECONDS),
    Family("client_request_bytes", "Request bodies as clients sent them", ("route", "format"), _SIZES),
    Family("client_response_bytes", "Reply bodies as clients got them", ("route", "format"), _SIZES),
    Family("upstream_request_bytes", "Request bodies as backends got them", ("route", "format"), _SIZES),
    Family("upstream_response_bytes", "Answer bodies as backends sent them", ("route", "format"), _SIZES),
    Family("transcode_seconds", "Time in the codec alone", ("direction",), _CODEC_SECONDS),
    Family("upstream_seconds", "From sending to the answer's last byte, per attempt", ("backend",), _SECONDS),
    Family("upstream_first_byte_seconds", "From sending to the answer's head, per attempt", ("backend",), _SECONDS),
    Family("upstream_queue_seconds", "Waiting for a connection to the backend, per attempt", ("backend",), _SECONDS),
)
"""The metrics that are counted. Names and labels, also of `GAUGES`, are promised in docs/operations.md, "Metrics"."""

GAUGES = (
    Family("endpoint_up", "1; 0 while health probes find it down", ("backend", "endpoint")),
    Family("endpoint_ejected", "1 while it is ejected because requests to it failed", ("backend", "endpoint")),
    Family("upstream_connections", "Connections to backends that are open now", ("backend", "endpoint", "state")),
    Family("requests_in_flight", "Requests that are being served now"),
    Family("requests_in_flight_limit", "limits.concurrent_requests"),
    Family("client_connections", "Connections of clients that are open now"),
    Family("client_connections_limit", "limits.connections, or what descriptors allow"),
    Family("in_flight_bytes", "Request bodies and decoded answers that are held now"),
    Family("in_flight_bytes_limit", "limits.in_flight_bytes"),
    Family("config_last_reload_successful", "0 if the last reload failed, else 1"),
    Family("config_last_reload_timestamp_seconds", "When a reload was last tried, or the start"),
    Family("certificate_expiry_timestamp_seconds", "When the gateway's own certificate expires", ("use",)),
    Family("process_resident_memory_bytes", "Resident memory of all processes"),
    Family("process_start_time_seconds", "When the first process started"),
    Family("process_open_fds", "File descriptors that all processes have open"),
    Family("process_max_fds", "File descriptors that the processes that serve clients may open together"),
    Family("build_info", "1, labelled with the version", ("version",)),
)
"""The metrics whose values are those at the moment of a scrape."""

BOUNDS = {family.name: (*family.bounds, inf) for family in FAMILIES if family.bounds}
"""The upper bounds of the buckets of each histogram."""


class Table(dict[Row, Cells]):
    """Sums by row; a row begins with zeros when it is first asked for."""

    def __missing__(self, row: Row) -> Cells:
        cells = self[row] = [0.0] * (len(BOUNDS.get(str(row[0]), ())) + 1)
        return cells

    def begin(self, rows: Iterable[Row]) -> None:
        """Let *rows* have zeros, if they are not there yet."""
        self.update({row: self[row] for row in rows})

    def add(self, rows: Iterable[tuple[Row, Cells]]) -> None:
        """Add *rows* to the sums, cell by cell."""
        for row, cells in rows:
            self[row] = list(map(add, self[row], cells))
