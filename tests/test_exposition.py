"""A scrape gets all metrics in one text, and lets other work run while that is made."""

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace

import aiohttp
from prometheus_client import generate_latest

from gateway.config import parse
from gateway.exchange import Attempt, Exchange
from gateway.process.admin import AdminListener
from gateway.telemetry.counting import MAX_NAMES
from gateway.telemetry.metrics import PIECE_SAMPLES
from gateway.telemetry.reading import EndpointReading
from tests.counted import Metrics, reading

N_ROUTES = 10
CHILD_SAMPLES = 21
"""More than any child of a metric has: a histogram has two beside its buckets, which are nineteen at most."""


def many_models(n_models: int) -> Metrics:
    """The series of a gateway with ten routes."""
    metrics = Metrics()
    for route in range(N_ROUTES):
        for model in range(n_models):
            exchange = Exchange("127.0.0.1", "POST", "/v2/models/m/infer", "id", 0.0, seconds=0.25)
            exchange.model, exchange.route, exchange.backend = f'm\\ "{model}"\n# ü', f"r{route}", "b"
            exchange.is_inference, exchange.status = True, 200
            exchange.attempts.append(Attempt("http://e", 0.0))
            metrics.record(exchange)
    metrics.add_up()
    return metrics


def test_a_scrape_is_the_text_that_the_library_makes_of_what_it_reads_in_it() -> None:
    metrics = many_models(10)
    text = "".join(metrics.exposition([])).encode()
    assert blocks(text) == blocks(generate_latest(metrics.registry))


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
    sizes = [piece.count("\n") for piece in many_models(MAX_NAMES).exposition([])]
    assert sum(sizes) > N_ROUTES * MAX_NAMES * CHILD_SAMPLES
    assert max(sizes) < PIECE_SAMPLES + CHILD_SAMPLES


async def test_other_work_runs_between_the_pieces_of_a_scrape() -> None:
    turns = 0
    turns_at_pieces: list[int] = []

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    def pieces() -> Iterator[str]:
        for number in range(20):
            turns_at_pieces.append(turns)
            yield f"busy {number}\n"

    config = parse("admin: 127.0.0.1:0\nbackends: {a: {endpoints: ['http://127.0.0.1:1']}}")

    admin = AdminListener(SimpleNamespace(config=config, exposition=pieces, stalled=lambda: None))  # type: ignore[arg-type]
    url = await admin.start()
    beside = asyncio.create_task(take_turns())
    try:
        async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as response:
            assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            assert await response.text() == "".join(f"busy {number}\n" for number in range(20))
    finally:
        beside.cancel()
        await admin.stop()
    assert len(set(turns_at_pieces)) == 20


def test_the_gauges_of_many_endpoints_are_written_in_pieces_too() -> None:
    n_endpoints = 20 * PIECE_SAMPLES
    readings = [EndpointReading("b", f"http://e{each}", True, False, busy=0, idle=0) for each in range(n_endpoints)]
    pieces = list(Metrics().exposition([reading(readings)]))
    assert max(piece.count("\n") for piece in pieces) < PIECE_SAMPLES + CHILD_SAMPLES
    text = "".join(pieces)
    assert text.count("\ntensor_gateway_endpoint_up{") == n_endpoints
    assert text.count("# TYPE tensor_gateway_endpoint_up gauge\n") == 1
