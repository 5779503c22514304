"""Requests that are counted together are counted exactly as one by one, in one process and in several."""

import random
import re
from collections.abc import Callable

import msgspec
import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest

from gateway.errors import Blame, ErrorKind, blame_of
from gateway.exchange import Attempt, Exchange, Format
from gateway.telemetry.counting import MAX_WAITING, Batch, Counting
from gateway.telemetry.sums import FAMILIES
from tests.counted import Metrics
from tests.steps import run

N_EXCHANGES = 2000


def amount(rng: random.Random) -> float:
    """A multiple of 2**-20, on a bound of a bucket or anywhere: sums of them are exact in every order."""
    return rng.choice([0.0, 0.25, 0.5, 1.0, 10.0, rng.randrange(2**12) / 2**20, rng.randrange(2**29) / 2**20])


def random_exchange(rng: random.Random) -> Exchange:
    exchange = Exchange("127.0.0.1", "POST", "/v2/models/m/infer", "id", 0.0, seconds=amount(rng))
    exchange.model = rng.choice([None, *(f"m{number}" for number in range(6))])
    exchange.route = rng.choice(["a", "b", "none"])
    exchange.backend = rng.choice(["x", "y", "none"])
    exchange.is_inference = rng.random() < 0.7
    exchange.status = rng.choice([0, 200, 200, 200, 204, 404, 503])
    exchange.error = rng.choice([None, None, None, *ErrorKind])
    exchange.client_format, exchange.reply_format, exchange.upstream_format = rng.choices(list(Format), k=3)
    exchange.client_request_bytes, exchange.client_response_bytes = rng.choices([0, 256, 257, 1024, 2**31], k=2)
    exchange.is_transcoded = rng.random() < 0.7
    exchange.request_codec.seconds, exchange.response_codec.seconds = amount(rng), amount(rng)
    exchange.input_datatypes = rng.choices(["FP32", "BYTES"], k=rng.randrange(3))
    exchange.output_datatypes = rng.choices(["FP32", "BOOL"], k=rng.randrange(3))
    exchange.request_nonfinite, exchange.response_nonfinite = rng.choices([0, 0, 7], k=2)
    exchange.header_recovered = rng.random() < 0.1
    for _ in range(rng.randrange(1 if exchange.is_transcoded else 0, 4)):
        attempt = Attempt(rng.choice(["http://e", "http://f"]), 0.0)
        attempt.request_bytes, attempt.response_bytes = rng.choices([0, 255, 256, 5000], k=2)
        attempt.code = rng.choice(["200", "503", "unreachable"])
        attempt.queue_s, attempt.first_byte_s = rng.choice([None, amount(rng)]), rng.choice([None, amount(rng)])
        attempt.seconds = amount(rng)
        attempt.repeated_for = rng.choice(["", "", "timeout"])
        exchange.attempts.append(attempt)
    return exchange


class OneByOne:
    """Counts exchanges as operators are told that they are counted, with the library's public methods alone."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        for name, help_, labels, bounds in FAMILIES:
            if name.startswith("process_"):  # counted by the kernel
                continue
            full = f"tensor_gateway_{name}"
            if bounds:
                self._histograms[name] = Histogram(full, help_, labels, buckets=bounds, registry=self.registry)
            else:
                self._counters[name] = Counter(full, help_, labels, registry=self.registry)
        self._models: set[str] = set()
        counting = Counting(self.begin)
        counting.add_up()

    def begin(self, batch: Batch) -> bool:
        """Make the series that are there from the start."""
        for (name, *labels), _ in batch.rows:
            metrics = self._counters if name in self._counters else self._histograms
            if labels:
                metrics[str(name)].labels(*labels)
        return True

    def inc(self, name: str, *labels: str, by: float = 1) -> None:
        metric = self._counters[name]
        (metric.labels(*labels) if labels else metric).inc(by)

    def observe(self, name: str, value: float, *labels: str) -> None:
        self._histograms[name].labels(*labels).observe(value)

    def record(self, exchange: Exchange) -> None:
        route, backend, upstream_format = exchange.route, exchange.backend, exchange.upstream_format.value
        answered = exchange.is_inference and exchange.status in range(200, 300) and exchange.error is None
        if answered and exchange.attempts and exchange.model:
            self._models.add(exchange.model)
        model = exchange.model if exchange.model in self._models else "other"
        assert model is not None
        self.inc("requests", route, model, str(exchange.status), exchange.protocol)
        self.observe("request_seconds", exchange.seconds, route, model)
        self.observe("client_request_bytes", exchange.client_request_bytes, route, exchange.client_format.value)
        self.observe("client_response_bytes", exchange.client_response_bytes, route, exchange.reply_format.value)
        for attempt in exchange.attempts:
            self.observe("upstream_request_bytes", attempt.request_bytes, route, upstream_format)
            self.observe("upstream_response_bytes", attempt.response_bytes, route, upstream_format)
            self.inc("upstream_requests", backend, attempt.endpoint, attempt.code)
            self.observe("upstream_seconds", attempt.seconds, backend)
            if attempt.first_byte_s is not None:
                self.observe("upstream_first_byte_seconds", attempt.first_byte_s, backend)
            if attempt.queue_s is not None:
                self.observe("upstream_queue_seconds", attempt.queue_s, backend)
            if attempt.repeated_for:
                self.inc("retries", backend, attempt.repeated_for)
        self.inc("header_recovered", by=exchange.header_recovered)
        if exchange.error is not None:
            self.inc("errors", route, exchange.error.label, blame_of(exchange.error, exchange.status).value)
        if exchange.is_transcoded:
            self.record_request(exchange)
            if exchange.error is None:
                self.record_response(exchange)

    def record_request(self, exchange: Exchange) -> None:
        self.observe("transcode_seconds", exchange.request_codec.seconds, "request")
        for datatype in exchange.input_datatypes:
            self.inc("tensors", "request", datatype)
        self.inc("nonfinite_values", "request", by=exchange.request_nonfinite)
        if exchange.client_format is Format.BINARY and exchange.error is None:
            avoided = max(0, sent_once(exchange, "request_bytes") - exchange.client_request_bytes)
            self.inc("json_bytes_avoided", "request", by=avoided)

    def record_response(self, exchange: Exchange) -> None:
        self.observe("transcode_seconds", exchange.response_codec.seconds, "response")
        for datatype in exchange.output_datatypes:
            self.inc("tensors", "response", datatype)
        self.inc("nonfinite_values", "response", by=exchange.response_nonfinite)
        if exchange.reply_format is Format.BINARY:
            avoided = max(0, sent_once(exchange, "response_bytes") - exchange.client_response_bytes)
            self.inc("json_bytes_avoided", "response", by=avoided)


def sent_once(exchange: Exchange, name: str) -> int:
    attempts = [each for each in exchange.attempts if not each.repeated_for and not each.is_metadata]
    return sum(int(getattr(each, name)) for each in attempts)


def record_random(seed: int, record: Callable[[Exchange], None]) -> None:
    rng = random.Random(seed)
    for _ in range(N_EXCHANGES):
        record(random_exchange(rng))


def exposition(registry: CollectorRegistry) -> list[str]:
    """All lines of what is counted."""
    lines = generate_latest(registry).decode().splitlines()
    names = "|".join(family.name for family in FAMILIES)
    counted = re.compile(rf"(?:# (?:HELP|TYPE) )?tensor_gateway_(?:{names})(?:_total|_bucket|_count|_sum)?[ {{]")
    return sorted(line for line in lines if counted.match(line))


def record_one_by_one(seed: int) -> CollectorRegistry:
    counted = OneByOne()
    record_random(seed, counted.record)
    return counted.registry


def record_together(seed: int) -> CollectorRegistry:
    metrics = Metrics()
    record_random(seed, metrics.record)
    metrics.add_up()
    return metrics.registry


@pytest.mark.parametrize("seed", range(3))
def test_requests_counted_together_give_the_exposition_of_one_by_one(seed: int) -> None:
    expected = exposition(record_one_by_one(seed))
    assert len(expected) > 500
    assert exposition(record_together(seed)) == expected


def test_what_several_processes_deliver_adds_up_to_what_one_has_counted() -> None:
    """As messages on a pipe, some of which are refused and offered again with what came meanwhile."""
    together = Metrics()
    rng = random.Random(7)

    def deliver(batch: Batch) -> bool:
        if rng.random() < 0.3:
            return False
        return together.add(msgspec.json.decode(msgspec.json.encode(batch), type=Batch))

    for seed in (1, 2):
        counting = Counting(deliver)
        record_random(seed, counting.record)
        for _ in range(100):
            counting.add_up()
    alone = Metrics()
    for seed in (1, 2):
        counting = Counting(alone.add)
        record_random(seed, counting.record)
        counting.add_up()
    assert exposition(together.registry) == exposition(alone.registry)
    assert len(exposition(alone.registry)) > 500
    assert len(together.failures.latest()) == len(alone.failures.latest()) > 20
    assert run(together.recent.minute()).all == run(alone.recent.minute()).all


def test_a_histogram_takes_all_at_once_what_the_library_takes_one_by_one() -> None:
    (family,) = (each for each in FAMILIES if each.name == "event_loop_lag_seconds")
    amounts = [0.0, 0.0005, 0.00050001, 0.001, 0.75, 1.0, 1.5, float("inf")]
    for end in range(len(amounts) + 1):
        registry = CollectorRegistry()
        histogram = Histogram("tensor_gateway_event_loop_lag_seconds", "h", buckets=family.bounds, registry=registry)
        metrics = Metrics()
        counting = Counting(metrics.add)
        counting._add((family.name,), reversed(amounts[:end]))
        counting.add_up()
        for each in amounts[:end]:
            histogram.observe(each)
        (expected,), (found,) = (
            [each.samples for each in found.collect() if each.name == f"tensor_gateway_{family.name}"]
            for found in (registry, metrics.registry)
        )
        assert [tuple(each[:3]) for each in expected if not each.name.endswith("_created")] == [
            tuple(each[:3]) for each in found
        ]


def test_only_so_many_requests_wait_to_be_counted() -> None:
    metrics = Metrics()
    exchange = Exchange("c", "GET", "/", "id", 0.0, status=200)

    def counted() -> float | None:
        labels = {"route": "none", "model": "other", "code": "200", "protocol": "http"}
        return metrics.registry.get_sample_value("tensor_gateway_requests_total", labels)

    for _ in range(MAX_WAITING - 1):
        metrics.record(exchange)
    assert counted() is None
    metrics.record(exchange)
    assert counted() == MAX_WAITING
    metrics.record(exchange)
    metrics.finish()
    assert counted() == MAX_WAITING + 1
    metrics.record(exchange)  # after the end each is counted at once
    assert counted() == MAX_WAITING + 2


def test_what_cannot_be_counted_is_logged_and_the_rest_is_counted_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = Metrics()
    metrics.record(Exchange("c", "GET", "/", "id", 0.0, status=200))

    def fail(self: Counting, exchanges: object) -> None:
        raise OSError("no memory")

    with monkeypatch.context() as patched:
        patched.setattr(Counting, "_count", fail)
        metrics.add_up()
    assert caplog.messages == ["some requests could not be counted"]
    metrics.record(Exchange("c", "GET", "/", "id", 0.0, status=200))
    metrics.add_up()
    metrics.add_up()
    labels = {"route": "none", "model": "other", "code": "200", "protocol": "http"}
    assert metrics.registry.get_sample_value("tensor_gateway_requests_total", labels) == 1


def p99(values: list[float], bounds: list[float]) -> float:
    """What Prometheus makes of *values* in buckets: `histogram_quantile(0.99, ...)`."""
    rank = 0.99 * len(values)
    lower = below = 0.0
    for bound in bounds:
        n_up_to = sum(value <= bound for value in values)
        if n_up_to >= rank:
            return lower + (bound - lower) * (rank - below) / (n_up_to - below)
        lower, below = bound, float(n_up_to)
    return lower


@pytest.mark.parametrize("seconds", [0.0011, 0.003, 0.02, 0.07, 0.3, 0.9, 1.7, 4.0, 9.0, 11.0, 19.0, 25.0, 45.0, 290.0])
def test_buckets_answer_how_long_99_of_100_requests_take(seconds: float) -> None:
    rng = random.Random(seconds)
    (family,) = [each for each in Metrics().registry.collect() if each.name == "tensor_gateway_request_seconds"]
    bounds = sorted({float(sample.labels["le"]) for sample in family.samples if "le" in sample.labels})[:-1]
    assert (bounds[0], bounds[-1]) == (0.001, 300.0)
    values = sorted(min(300.0, rng.lognormvariate(0, 0.5) * seconds / 3) for _ in range(2000))
    actual = values[int(0.99 * len(values))]
    assert actual / 2.5 <= p99(values, bounds) <= actual * 2.5


@pytest.mark.parametrize(
    ("kind", "status", "blame"),
    [
        (ErrorKind.BACKEND_ERROR, 404, Blame.CLIENT),
        (ErrorKind.BACKEND_ERROR, 500, Blame.BACKEND),
        (ErrorKind.MALFORMED_RESPONSE, 502, Blame.BACKEND),
        (ErrorKind.NO_ROUTE, 508, Blame.CLIENT),
        (ErrorKind.OVERLOADED, 503, Blame.GATEWAY),
        (ErrorKind.INTERNAL, 500, Blame.GATEWAY),
        (ErrorKind.CLIENT_CLOSED, 499, Blame.CLIENT),
    ],
)
def test_an_error_is_counted_for_who_caused_it(kind: ErrorKind, status: int, blame: Blame) -> None:
    metrics = Metrics()
    metrics.record(Exchange("c", "GET", "/", "id", 0.0, route="r", status=status, error=kind))
    metrics.add_up()
    value = metrics.registry.get_sample_value
    labels = {"route": "r", "reason": kind.label}
    assert {each for each in Blame if value("tensor_gateway_errors_total", {**labels, "blame": each.value})} == {blame}
