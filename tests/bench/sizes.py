"""What binary tensors before a server of JSON cost, over all sizes: the gateway, P, KServe's transformer, no proxy.

Processor time, of whoever turns numbers into JSON and back. Without a proxy that is the client: its figure is what
tritonclient takes with JSON more than with binary.
"""

import os
import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np

from tests.bench import processes
from tests.bench.cases import Case
from tests.bench.measuring import Bench, Result, processor_ns, us
from tests.bench.processes import Process
from tests.bench.triton import Client, is_installed

GATEWAY, P, TRANSFORMER, JSON = "gateway", "P", "KServe transformer", "JSON straight"
"""The parties."""

SLOW_S = 4.0
"""A party whose request took longer is left out of the next sizes."""


def costs(bench: Bench) -> Iterator[Result]:
    """Row sizes. Processor time over sizes of tensors: gateway / P, a KServe transformer, a client's JSON."""
    scale = bench.scale
    parties = {GATEWAY, P} | ({JSON} if is_installed() else set())
    reasons = [] if is_installed() else ["without JSON straight: tritonclient is not installed"]
    with ExitStack() as stack:
        backend = stack.enter_context(processes.start_backend(bench.cases, bench.folder))
        other = stack.enter_context(processes.start_backend(bench.cases, bench.folder))
        gateway = stack.enter_context(processes.start_gateway([backend.url, other.url], bench.folder))
        relay = stack.enter_context(processes.start_relay(bench.cases, backend.url, bench.folder))
        measure: dict[str, Callable[[Case, int], float]] = {
            GATEWAY: lambda case, requests: processor_ns(gateway, case, requests),
            P: lambda case, requests: processor_ns(relay, case, requests),
            JSON: lambda case, requests: _json_ns(backend, relay, case, requests),
        }
        python = os.environ.get("KSERVE_PYTHON")
        if python is None or not is_installed():
            reasons.append("without KServe: set KSERVE_PYTHON to a Python that has kserve")
        else:
            names = [bench.echo_case_name(elements) for elements in scale.sizes]
            transformer = stack.enter_context(processes.start_transformer(python, backend.url, names, bench.folder))
            parties.add(TRANSFORMER)
            measure[TRANSFORMER] = lambda case, requests: _transformer_ns(transformer, case, requests)
        for elements in scale.sizes:
            result = _at_size(
                bench, elements, {party: measure[party] for party in measure if party in parties}, parties
            )
            result.absolute += "".join(f"; {reason}" for reason in reasons)
            yield result


def _at_size(
    bench: Bench, elements: int, measure: dict[str, Callable[[Case, int], float]], parties: set[str]
) -> Result:
    """The figures of one size; takes out of *parties* who has become too slow for the next."""
    scale = bench.scale
    case = bench.echo_case(elements)
    result = Result("sizes", f"FP32 [1, {elements}] / P", "ratio", elements=elements)
    requests = max(1, min(scale.size_requests, scale.size_elements // elements))
    spent: dict[str, list[float]] = {party: [] for party in measure}
    for index in range(scale.size_rounds):
        for party, measured in measure.items():
            bench.tick(f"row sizes, {elements} elements: round {index + 1} of {scale.size_rounds}, {party}")
            if party in parties:
                spent[party].append(measured(case, requests))
                if spent[party][-1] > SLOW_S * 1e9 and party not in (GATEWAY, P):
                    parties.discard(party)
        result.samples.append(spent[GATEWAY][-1] / spent[P][-1])
    bench.forget(case)
    medians = {party: statistics.median(samples) / 1e6 for party, samples in spent.items() if samples}
    result.points = {party: ms for party, ms in medians.items() if ms}
    result.absolute = ", ".join(f"{party} {us(samples)}" for party, samples in spent.items() if samples)
    return result


def _array(case: Case) -> "np.ndarray[tuple[int, ...], np.dtype[np.float32]]":
    return np.frombuffer(case.client_request[case.header_bytes[0] :], np.float32)[np.newaxis]


def _json_ns(backend: Process, relay: Process, case: Case, requests: int) -> float:
    """What tritonclient takes with JSON more than with binary tensors; 0 if that is lost in what it takes anyway."""
    _, with_json = Client(backend.url, case.name, "y", _array(case), is_binary=False).spent_s(requests)
    _, with_binary = Client(relay.url, case.name, "y", _array(case), is_binary=True).spent_s(requests)
    return (with_json - with_binary) * 1e9 if with_json > with_binary * 1.1 else 0.0


def _transformer_ns(transformer: Process, case: Case, requests: int) -> float:
    before = transformer.processor_ns()
    Client(transformer.url, case.name, "y", _array(case), is_binary=True).spent_s(requests)
    return (transformer.processor_ns() - before) / (requests + 1)
