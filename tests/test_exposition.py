"""A scrape gets all metrics in one text, and lets other work run while that is made."""

import asyncio
from collections.abc import Callable, Iterator

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

from gateway.config import parse
from gateway.exchange import Attempt, Exchange
from gateway.process.admin import AdminListener
from gateway.process.status import Status
from gateway.telemetry.counting import MAX_MODELS
from gateway.telemetry.exposition import PART_SAMPLES, Exposition
from gateway.telemetry.reading import EndpointReading
from tests.counted import Metrics

N_ROUTES = 10
CHILD_SAMPLES = 21
"""More than any child of a metric has: a histogram has two beside its buckets, which are nineteen at most."""


def many_models() -> Metrics:
    """As many series as a gateway with ten routes may have."""
    metrics = Metrics()
    for route in range(N_ROUTES):
        for model in range(MAX_MODELS):
            exchange = Exchange("127.0.0.1", "POST", "/v2/models/m/infer", "id", 0.0, seconds=0.25)
            exchange.model, exchange.route, exchange.backend = f'm\\ "{model}"\n# ü', f"r{route}", "b"
            exchange.is_inference, exchange.status = True, 200
            exchange.attempts.append(Attempt("http://e", 0.0))
            metrics.record(exchange)
    metrics.add_up()
    return metrics


@pytest.mark.parametrize(
    ("accept", "encode"),
    [("text/plain", generate_latest), ("application/openmetrics-text", openmetrics.generate_latest)],
)
def test_the_pieces_of_a_scrape_are_the_text_that_the_library_makes_at_once(
    accept: str, encode: Callable[[CollectorRegistry], bytes]
) -> None:
    metrics = many_models()
    text = b"".join(Exposition(accept).pieces(metrics.collect()))
    whole = encode(metrics.registry)
    assert blocks(text) == blocks(whole)
    assert text.endswith(b"# EOF\n") == whole.endswith(b"# EOF\n")


def blocks(text: bytes) -> dict[bytes, list[bytes]]:
    """The lines of each metric in their order, by the line that begins it; without what changes by itself."""
    found: dict[bytes, list[bytes]] = {}
    for line in text.split(b"\n"):
        if line.startswith(b"# HELP"):
            assert line not in found
            lines = found[line] = []
        elif line != b"# EOF" and not line.startswith(b"process_"):
            lines.append(line)
    return {name: [line for line in lines if line] for name, lines in found.items()}


def test_no_piece_of_a_scrape_is_large() -> None:
    sizes = [piece.count(b"\n") for piece in Exposition("").pieces(many_models().collect())]
    assert sum(sizes) > N_ROUTES * MAX_MODELS * CHILD_SAMPLES
    assert max(sizes) < PART_SAMPLES + CHILD_SAMPLES


async def test_other_work_runs_between_the_pieces_of_a_scrape() -> None:
    turns = 0
    turns_at_parts: list[int] = []

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    def parts() -> Iterator[Metric]:
        for _ in range(20):
            turns_at_parts.append(turns)
            yield Metric("busy", "Words", "gauge")

    async def collect() -> Iterator[Metric]:
        return parts()

    config = parse("admin: 127.0.0.1:0\nbackends: {a: {endpoints: ['http://127.0.0.1:1']}}")

    async def no_status() -> Status:
        raise NotImplementedError

    admin = AdminListener(config.admin, lambda: config, collect, lambda: None, no_status)
    url = await admin.start()
    beside = asyncio.create_task(take_turns())
    try:
        async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as response:
            assert await response.text() == "# HELP busy Words\n# TYPE busy gauge\n"
    finally:
        beside.cancel()
        await admin.stop()
    assert len(set(turns_at_parts)) == 20


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text"])
def test_the_gauges_of_many_endpoints_are_written_in_pieces_too(accept: str) -> None:
    n_endpoints = 20 * PART_SAMPLES
    readings = [EndpointReading("b", f"http://e{each}", True, False, busy=0, idle=0) for each in range(n_endpoints)]
    metrics = Metrics(lambda: readings)
    exposition = Exposition(accept)
    pieces = list(exposition.pieces(metrics.collect()))
    assert max(piece.count(b"\n") for piece in pieces) < 2 * PART_SAMPLES + CHILD_SAMPLES
    text = b"".join(pieces)
    assert text.count(b"\ntensor_gateway_endpoint_up{") == n_endpoints
    assert text.count(b"# TYPE tensor_gateway_endpoint_up gauge\n") == 1
    assert text.count(b"# EOF") == bool(accept)
