"""From numpy to numpy with tritonclient, a real MLServer behind: what a user waits for, on the wall."""

import os
import statistics
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np

from tests.bench import processes
from tests.bench.measuring import Bench, Result
from tests.bench.sizes import GATEWAY, JSON, SLOW_S, TRANSFORMER
from tests.bench.triton import Client, is_installed


def image(bench: Bench) -> Iterator[Result]:
    """Row 9. numpy to numpy with tritonclient: JSON straight to an MLServer / binary through the gateway to it."""
    scale = bench.scale
    title = f"MLServer, FP32 {list(scale.image)}: JSON straight / gateway"
    result = Result("9", title, "ratio", 7.0, at_least=True)
    result.missing = _what_is_missing()
    if not result.missing:
        with ExitStack() as stack:
            bench.tick("row 9: starting MLServer")
            _measure(bench, _urls(bench, stack, with_transformer=False), scale.image, scale.rounds, scale.trips, result)
    yield result


def sizes(bench: Bench) -> Iterator[Result]:
    """Row trips. As row 9, over sizes of tensors, and through a KServe transformer."""
    scale = bench.scale
    missing = _what_is_missing()
    if missing:
        yield Result("trips", "MLServer: JSON straight / gateway", "ratio", missing=missing)
        return
    with ExitStack() as stack:
        bench.tick("row trips: starting MLServer")
        urls = _urls(bench, stack, with_transformer=True)
        for elements in scale.sizes:
            result = Result("trips", f"MLServer, FP32 [1, {elements}]: JSON straight / gateway", "ratio")
            result.elements = elements
            trips = max(1, min(scale.trips, scale.size_elements // elements))
            _measure(bench, urls, (1, elements), scale.size_rounds, trips, result)
            if TRANSFORMER not in result.points and elements == scale.sizes[0]:
                result.absolute += "; without KServe: set KSERVE_PYTHON to a Python that has kserve"
            yield result
            for party, ms in result.points.items():
                if ms > SLOW_S * 1000:
                    del urls[party]
            if GATEWAY not in urls:
                return


def _what_is_missing() -> str:
    if not is_installed():
        return "skipped: tritonclient is not installed"
    return "" if os.environ.get("MLSERVER") else "skipped: set MLSERVER to the command of an MLServer"


def _urls(bench: Bench, stack: ExitStack, *, with_transformer: bool) -> dict[str, str]:
    """Where each party is reached. MLServer is the gateway's only endpoint."""
    url = stack.enter_context(processes.start_mlserver(os.environ["MLSERVER"], bench.folder)).url
    gateway = stack.enter_context(processes.start_gateway([url], bench.folder))
    urls = {GATEWAY: gateway.url, JSON: url}
    python = os.environ.get("KSERVE_PYTHON")
    if with_transformer and python is not None:
        transformer = processes.start_transformer(python, url, ["identity"], bench.folder)
        urls[TRANSFORMER] = stack.enter_context(transformer).url
    return urls


def _measure(
    bench: Bench, urls: dict[str, str], shape: tuple[int, ...], rounds: int, trips: int, result: Result
) -> None:
    """Fill *result* with JSON straight / gateway, and its points; each client's first request is not counted."""
    array = np.random.default_rng(0).random(shape, np.float32)
    clients = {party: Client(url, "identity", "x", array, is_binary=party != JSON) for party, url in urls.items()}
    spent_ms: dict[str, list[float]] = {party: [] for party in urls}
    for index in range(rounds):
        bench.tick(f"row {result.row}, {result.what}: round {index + 1} of {rounds}")
        for party, client in clients.items():
            spent_ms[party].append(client.spent_s(trips)[0] * 1000)
        if JSON in clients:
            result.samples.append(spent_ms[JSON][-1] / spent_ms[GATEWAY][-1])
    result.points = {party: statistics.median(samples) for party, samples in spent_ms.items()}
    result.absolute = ", ".join(f"{party} {ms:.3g} ms" for party, ms in result.points.items())
    result.missing = "" if result.samples else f"JSON straight was too slow before; {result.absolute}"
