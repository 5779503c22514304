"""Which series a gateway has before the first request, and how many there are."""

import asyncio
import subprocess
from collections import Counter as Tally
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.config import parse
from gateway.demo import JsonServer
from gateway.errors import Blame, ErrorKind
from gateway.policy.ejection import FAILURES
from gateway.process.application import Application
from tests.certificates import Authority, Pair
from tests.conftest import require_tool, running
from tests.counted import Metrics
from tests.system.gateway_process import gateway_process

ROUTES = ("one", "two")
SAMPLES_OF_ROUTE = 240
"""No more than a route adds, without models of its own."""
SAMPLES_OF_BACKEND = 80
SAMPLES_OF_ENDPOINT = 10

CONFIGURATION = """
listen: 127.0.0.1:0
admin: 127.0.0.1:0
workers: {workers}
backends:
  a: {{endpoints: ["http://127.0.0.1:1", "http://127.0.0.2:1"]}}
  b: {{endpoints: ["http://127.0.0.3:1"]}}
routes:
{routes}
"""

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def series_of(text: str) -> Series:
    """Every series of an exposition with its value, by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def values(series: Series, name: str, **labels: str) -> list[float]:
    """Of all series of metric *name* that have these labels, and maybe others."""
    wanted = labels.items()
    return [value for (name_, have), value in series.items() if name_ == f"tensor_gateway_{name}" and wanted <= {*have}]


def configuration(routes: Iterable[str], workers: int = 1) -> str:
    rows = "".join(f"  - {{name: {route}, path_prefix: /{route}, backend: a}}\n" for route in routes)
    return CONFIGURATION.format(routes=rows + "  - {name: last, backend: b}", workers=workers)


async def scrape(session: aiohttp.ClientSession, admin: str) -> Series:
    async with session.get(f"{admin}/metrics") as response:
        return series_of(await response.text())


def assert_zeros(series: Series, routes: Iterable[str]) -> None:
    """Whatever can be known of *routes*, backends and endpoints is there, and nothing has happened."""
    for route in routes:
        for kind in ErrorKind:
            expected = [] if kind is ErrorKind.NO_ROUTE else [0]
            own = values(series, "errors_total", route=route, reason=kind.label, blame=kind.blame.value)
            assert own == expected, (route, kind)
        assert values(series, "errors_total", route=route, reason="backend_error", blame="client") == [0]
        for side, format_ in product(("request", "response"), ("binary", "json", "other")):
            assert values(series, f"client_{side}_bytes_count", route=route, format=format_) == [0]
        for side, format_ in product(("request", "response"), ("json", "other")):
            assert values(series, f"upstream_{side}_bytes_count", route=route, format=format_) == [0]
        assert values(series, "request_seconds_count", route=route, model="other") == [0]
        for protocol in ("http", "grpc"):
            assert values(series, "requests_total", route=route, model="other", code="200", protocol=protocol) == [0]
    assert values(series, "errors_total", route="none", reason="no_route", blame="client") == [0]
    for direction in ("request", "response"):
        assert values(series, "tensors_total", direction=direction) == [0] * 14
        assert values(series, "transcode_seconds_count", direction=direction) == [0]
        assert values(series, "json_bytes_avoided_total", direction=direction) == [0]
        assert values(series, "nonfinite_values_total", direction=direction) == [0]
    for backend, n_endpoints in (("a", 2), ("b", 1)):
        for name in ("upstream_seconds", "upstream_first_byte_seconds", "upstream_queue_seconds"):
            assert values(series, f"{name}_count", backend=backend) == [0]
        for reason in FAILURES:
            assert values(series, "retries_total", backend=backend, reason=reason.label) == [0]
        for code in ("200", *(reason.label for reason in FAILURES)):
            assert values(series, "upstream_requests_total", backend=backend, code=code) == [0] * n_endpoints
        assert values(series, "endpoint_up", backend=backend) == [1] * n_endpoints
    for name in ("header_recovered_total", "client_connections_refused_total"):
        assert values(series, name) == [0]
    slow = ("header_timeout", "body_timeout", "client_idle")
    assert [values(series, "client_connections_slow_total", limit=limit) for limit in slow] == [[0]] * len(slow)


async def test_what_can_be_known_at_the_start_and_after_a_reload_is_there_with_0() -> None:
    application = await Application.start(parse(configuration(["one"])))
    try:
        async with aiohttp.ClientSession() as session:
            series = await scrape(session, application.admin_url)
            assert_zeros(series, ("one", "last"))
            assert values(series, "errors_total", route="two") == []
            await application.replace(parse(configuration(ROUTES)))
            assert_zeros(await scrape(session, application.admin_url), (*ROUTES, "last"))
    finally:
        await application.stop()


@pytest.mark.slow
async def test_with_several_workers_too(tmp_path: Path) -> None:
    async with (
        gateway_process(configuration(["one"], workers=2), tmp_path / "gateway.yaml") as gateway,
        aiohttp.ClientSession() as session,
    ):
        assert_zeros(await scrape(session, gateway.admin), ("one", "last"))
        gateway.reload(configuration(ROUTES, workers=2) + "limits: {concurrent_requests: 100, connections: 200}\n")
        await gateway.saw("reloaded")
        series = await scrape(session, gateway.admin)
        assert_zeros(series, (*ROUTES, "last"))
        assert values(series, "requests_in_flight_limit") == [100]  # the sum of the workers' shares
        assert values(series, "client_connections_limit") == [200]
        async with session.get(f"{gateway.admin}/metrics") as response:
            text = await response.read()
    promtool = require_tool("promtool", "install Debian's package `prometheus`")
    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


async def test_the_first_requests_make_only_series_of_models_and_statuses(server: JsonServer) -> None:
    """Whatever else appeared late, `increase` would miss its first."""
    async with running(server.url) as client:
        before = set(await client.metrics())
        await client.infer(b'{"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}')
        await client.infer(b"")
        await client.request("GET", "/nothing")
        await client.request("GET", "/../")
        new = {name.partition("{")[0] for name in set(await client.metrics()) - before}
    assert new == {
        "tensor_gateway_requests_total",
        "tensor_gateway_upstream_requests_total",  # with the status 404
        *(f"tensor_gateway_request_seconds_{part}" for part in ("bucket", "count", "sum")),  # of the model
    }


def count(metrics: Metrics) -> Tally[str]:
    """How many samples each metric has."""
    return Tally({family.name: len(family.samples) for family in metrics.registry.collect()})


def test_how_many_series_a_route_a_backend_and_an_endpoint_have() -> None:
    metrics = Metrics()
    start = count(metrics).total()
    assert all(metrics.expect("route", f"r{number}") for number in range(10))
    routes = count(metrics).total()
    assert all(metrics.expect("backend", f"b{number}") for number in range(10))
    backends = count(metrics).total()
    assert all(metrics.expect("endpoint", f"http://e{number}", "b0") for number in range(10))
    endpoints = count(metrics).total()
    assert start < 350
    assert 0 < routes - start <= 10 * SAMPLES_OF_ROUTE
    assert 0 < backends - routes <= 10 * SAMPLES_OF_BACKEND
    assert 0 < endpoints - backends <= 10 * SAMPLES_OF_ENDPOINT
    assert not metrics.expect("route", "r0")
    assert not metrics.expect("backend", "b0")
    assert count(metrics).total() == endpoints


def test_blame_is_one_of_three() -> None:
    labels = {
        sample.labels["blame"]
        for family in Metrics().registry.collect()
        if family.name == "tensor_gateway_errors"
        for sample in family.samples
    }
    assert labels == {blame.value for blame in Blame}


def with_certificates(listener: Pair, backends: Iterable[Pair | None], workers: int) -> str:
    """A gateway with a certificate of its own, and one for each backend that asks for one."""
    text = f"listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nworkers: {workers}\n"
    text += f"tls: {{certificate: {listener.certificate}, key: {listener.key}}}\nbackends:\n"
    for number, pair in enumerate(backends):
        tls = f", tls: {{certificate: {pair.certificate}, key: {pair.key}}}" if pair is not None else ""
        text += f"  b{number}: {{endpoints: ['https://127.0.0.1:1']{tls}}}\n"
    return text + "routes: [{name: r, backend: b0}, {name: s, path_prefix: /s, backend: b1}]\n"


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_the_earliest_expiry_of_the_gateways_own_certificates_is_a_metric(
    workers: int, authority: Authority, tmp_path: Path
) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    days = {number: now + timedelta(days=number) for number in (10, 20, 30, 40)}
    listener, early, late, renewed = (authority.issue(not_after=days[number]) for number in (10, 20, 30, 40))

    def expected(**uses: int) -> dict[str, float]:
        return {use: days[number].timestamp() for use, number in uses.items()}

    async def until_expiries(expiries: dict[str, float]) -> None:
        async with asyncio.timeout(20):  # a worker reports ten times a second
            while True:
                series = await scrape(session, gateway.admin)
                name = "tensor_gateway_certificate_expiry_timestamp_seconds"
                if {dict(labels)["use"]: value for (each, labels), value in series.items() if each == name} == expiries:
                    return
                await asyncio.sleep(0.05)

    text = with_certificates(listener, (late, early), workers)
    async with gateway_process(text, tmp_path / "gateway.yaml") as gateway, aiohttp.ClientSession() as session:
        await until_expiries(expected(listener=10, backend=20))
        listener.replace(renewed)
        gateway.reload(with_certificates(listener, (None, None), workers))
        await until_expiries(expected(listener=40))
