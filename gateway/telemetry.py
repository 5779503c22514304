"""Metrics and access log: read from a finished exchange, never written in the middle of one.

The names are part of the contract (README, Metrics). Not here: any decision.
"""

import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Literal, TypeVar

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gateway import __version__
from gateway.exchange import Exchange, Format

MAX_MODELS = 200
"""The most models with a label of their own; the rest is `other`."""

LOG_QUEUE_LINES = 10_000
"""The most log lines that wait for a slow reader of standard output; more are dropped and counted."""

STOP_S = 2.0
"""How long lines that wait may take to be written at the end."""

STANDARD_OUTPUT = ("gateway.access", "gateway.announce")
"""The loggers whose bare messages go to standard output."""

_SIZES = tuple(256.0 * 4**power for power in range(12))  # 256 B to 1 GiB
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
    30.0,
    60.0,
    120.0,
    300.0,
)
_LAG_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
_CODEC_SECONDS = (50e-6, 100e-6, 250e-6, 500e-6, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Metrics:
    """The gateway's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._models: set[str] = set()
        counter, gauge, histogram = self._counter, self._gauge, self._histogram
        self._requests = counter("requests", "Requests of clients that are finished", "route", "model", "code")
        self._seconds = histogram(
            "request_seconds", "From a request's head to its reply's last byte", _REQUEST_SECONDS, "route", "model"
        )
        self._in_flight = gauge("requests_in_flight", "Requests that are being served now")
        self._held = gauge("in_flight_bytes", "Request bodies and decoded answers that are held now")
        self._held_limit = gauge("in_flight_bytes_limit", "limits.in_flight_bytes")
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
        self._upstream_requests = counter("upstream_requests", "Attempts", "backend", "endpoint", "code")
        self._retries = counter("retries", "Requests that were sent once more", "backend", "reason")
        self._errors = counter("errors", "Requests that failed, by reason", "route", "reason")
        self._nonfinite = counter("nonfinite_values", "NaN and infinities let through by policy", "direction")
        self._recovered = counter("header_recovered", "Requests whose missing header length was found")
        for direction in ("request", "response"):
            self._avoided(direction)
            self._nonfinite(direction)
        gauge("build_info", "1, labelled with the version", "version", mode="livemax")(__version__).set(1)

    def observe_load(self, requests: int, held_bytes: int, max_bytes: int) -> None:
        """Set the gauges of what is in flight."""
        self._in_flight().set(requests)
        self._held().set(held_bytes)
        self._held_limit().set(max_bytes)

    def observe_lag(self, seconds: float) -> None:
        """Count one sample of the event loop's lag."""
        self._lag().observe(seconds)

    def record(self, exchange: Exchange) -> None:
        """Count a finished exchange."""
        route = exchange.route
        model = self._model_label(exchange)
        self._requests(route, model, str(exchange.status)).inc()
        self._seconds(route, model).observe(exchange.seconds)
        self._client_request(route, exchange.client_format.value).observe(exchange.client_request_bytes)
        self._client_response(route, exchange.reply_format.value).observe(exchange.client_response_bytes)
        for index, attempt in enumerate(exchange.attempts):
            self._upstream_request(route, exchange.upstream_format.value).observe(attempt.request_bytes)
            self._upstream_response(route, exchange.upstream_format.value).observe(attempt.response_bytes)
            self._upstream_requests(exchange.backend, attempt.endpoint, attempt.code).inc()
            self._upstream_seconds(exchange.backend).observe(attempt.seconds)
            if attempt.first_byte_s is not None:
                self._first_byte_seconds(exchange.backend).observe(attempt.first_byte_s)
            if index + 1 < len(exchange.attempts):
                self._retries(exchange.backend, attempt.code).inc()
        if exchange.error is not None:
            self._errors(route, exchange.error.label).inc()
        if exchange.is_transcoded:
            self._record_codec(exchange)

    def _record_codec(self, exchange: Exchange) -> None:
        self._transcode("request").observe(exchange.request_codec_s)
        for datatype in exchange.input_datatypes:
            self._tensors("request", datatype).inc()
        if exchange.request_nonfinite:
            self._nonfinite("request").inc(exchange.request_nonfinite)
        if exchange.header_recovered:
            self._recovered().inc()
        if exchange.error is not None:
            return
        if exchange.client_format is Format.BINARY:
            self._avoided("request").inc(max(0, exchange.attempts[-1].request_bytes - exchange.client_request_bytes))
        self._transcode("response").observe(exchange.response_codec_s)
        for datatype in exchange.output_datatypes:
            self._tensors("response", datatype).inc()
        if exchange.response_nonfinite:
            self._nonfinite("response").inc(exchange.response_nonfinite)
        if exchange.reply_format is Format.BINARY:
            self._avoided("response").inc(max(0, exchange.attempts[-1].response_bytes - exchange.client_response_bytes))

    def _model_label(self, exchange: Exchange) -> str:
        """The model's name once a backend has answered for it with success; clients cannot make labels."""
        model = exchange.model
        if model is None or model in self._models:
            return model or "other"
        if exchange.status == 200 and exchange.attempts and len(self._models) < MAX_MODELS:
            self._models.add(model)
            return model
        return "other"

    def _counter(self, name: str, help_: str, *labels: str) -> Callable[..., Counter]:
        return _children(Counter(f"tensor_gateway_{name}", help_, labels, registry=self.registry))

    def _gauge(
        self, name: str, help_: str, *labels: str, mode: Literal["livesum", "livemax"] = "livesum"
    ) -> Callable[..., Gauge]:
        # where there are workers, those that live are summed
        gauge = Gauge(f"tensor_gateway_{name}", help_, labels, registry=self.registry, multiprocess_mode=mode)
        return _children(gauge)

    def _histogram(self, name: str, help_: str, buckets: tuple[float, ...], *labels: str) -> Callable[..., Histogram]:
        return _children(Histogram(f"tensor_gateway_{name}", help_, labels, buckets=buckets, registry=self.registry))


M = TypeVar("M", Counter, Gauge, Histogram)


def _children(metric: M) -> Callable[..., M]:
    """The metric's children by the values of its labels, looked up without the library's locks and checks."""
    known: dict[tuple[str, ...], M] = {}

    def child(*values: str) -> M:
        found = known.get(values)
        if found is None:
            found = known[values] = metric.labels(*values) if values else metric
        return found

    return child


class AccessLine(msgspec.Struct, omit_defaults=False):
    """One line of the access log."""

    time: str
    client: str
    method: str
    path: str
    model: str | None
    route: str
    backend: str
    status: int
    reason: str | None
    detail: str | None
    client_request_bytes: int
    upstream_request_bytes: int
    upstream_response_bytes: int
    client_response_bytes: int
    seconds: float
    upstream_seconds: float
    codec_seconds: float
    request_id: str


class AccessLog:
    """Writes one line per exchange to standard output, as JSON or as text."""

    def __init__(self, style: Literal["json", "text"]) -> None:
        self._encode = _json_line if style == "json" else _text_line
        self._log = logging.getLogger("gateway.access")

    def record(self, exchange: Exchange) -> None:
        """Write the line of a finished exchange."""
        self._log.info(self._encode(_access_line(exchange)))


def _access_line(exchange: Exchange) -> AccessLine:
    now = time.time()
    return AccessLine(
        time=f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1000):03d}Z",
        client=exchange.client,
        method=exchange.method,
        path=exchange.path,
        model=exchange.model,
        route=exchange.route,
        backend=exchange.backend,
        status=exchange.status,
        reason=exchange.error.label if exchange.error is not None else None,
        detail=exchange.detail[:512] or None,
        client_request_bytes=exchange.client_request_bytes,
        upstream_request_bytes=exchange.upstream_request_bytes,
        upstream_response_bytes=exchange.upstream_response_bytes,
        client_response_bytes=exchange.client_response_bytes,
        seconds=round(exchange.seconds, 6),
        upstream_seconds=round(exchange.upstream_s, 6),
        codec_seconds=round(exchange.request_codec_s + exchange.response_codec_s, 6),
        request_id=exchange.request_id,
    )


def _json_line(line: AccessLine) -> str:
    return msgspec.json.encode(line).decode(errors="replace")


def _text_line(line: AccessLine) -> str:
    """`key=value` pairs; values that could break a line or a pair are quoted as JSON strings."""
    pairs = []
    for key, value in msgspec.structs.asdict(line).items():
        text = "-" if value is None else str(value)
        if not text.isprintable() or any(mark in text for mark in ' "=') or not text:
            text = msgspec.json.encode(text).decode(errors="replace")
        pairs.append(f"{key}={text}")
    return " ".join(pairs)


class LogWriter(logging.Handler):
    """Writes access lines and announcements to standard output, all else to standard error, from a thread of its own.

    A reader that stalls or is gone must stall nothing: lines wait in a queue of `LOG_QUEUE_LINES`, and what does not
    fit or cannot be written is counted.
    """

    def __init__(self, level: str) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        self.dropped = 0
        self._level = level.upper()
        self._waiting: queue.Queue[tuple[int, bytes] | None] = queue.Queue(LOG_QUEUE_LINES)
        # a daemon: a pipe that nobody reads cannot keep the process from ending
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)

    def start(self) -> None:
        """Take over the root logger."""
        root = logging.getLogger()
        root.handlers = [self]
        root.setLevel(self._level)
        for name in STANDARD_OUTPUT:
            logging.getLogger(name).setLevel(logging.INFO)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the line of *record*."""
        if record.name in STANDARD_OUTPUT:
            descriptor, line = 1, record.getMessage()
        else:
            descriptor, line = 2, self.format(record)
        try:
            self._waiting.put_nowait((descriptor, line.encode(errors="replace") + b"\n"))
        except queue.Full:
            self.dropped += 1

    def _write(self) -> None:
        while (waiting := self._waiting.get()) is not None:
            descriptor, line = waiting
            try:
                # past Python's buffers, whose locks a blocked thread would hold until the very end
                while line:
                    line = line[os.write(descriptor, line) :]
            except OSError:
                self.dropped += 1

    def stop(self) -> None:
        """Write what waits, as far as that is possible within `STOP_S`, and say how much was dropped."""
        logging.getLogger().handlers = []
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=STOP_S)
        self._thread.join(STOP_S)
        if self.dropped:
            with contextlib.suppress(OSError):
                os.write(2, b"%d log lines were dropped: nobody read them in time\n" % self.dropped)
