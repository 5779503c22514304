"""The rows of small requests: as in life, repeated, with an access log, and other types. Ratios to P."""

from collections.abc import Iterator

from tests.bench import traffic
from tests.bench.measuring import Bench, Life, Result, check_and_warm_up, life_ns, us
from tests.bench.processes import Process

TITLES = {
    "int64": "INT64 [1, 16]",
    "bool": "BOOL [1, 16]",
    "bytes": f"BYTES, {traffic.STRINGS} strings",
    "fp16": "FP16 [1, 16]",
    "two": "two inputs and outputs, FP32 and INT64 [1, 16]",
    "json": "FP32 [1, 16], a client of JSON only, relayed",
}


def life(bench: Bench) -> Iterator[Result]:
    """Row 1. Four models, 64 tensors each, ids, answers of MLServer: gateway / P."""
    result = Result("1", "FP32 [1, 16] as in life / P", "ratio", 1.0, 0.9)
    yield _against_p(bench, result, Life(traffic.names("fp32")), bench.gateway)


def repeated(bench: Bench) -> Iterator[Result]:
    """Row 1r. One request again and again: gateway / P; and row 1 / this, which shows what only a bench likes."""
    scale = bench.scale
    result = Result("1r", "FP32 [1, 16], one request repeated / P", "ratio", 1.0, 0.9)
    advantage = Result("1r", "row 1 / row 1r", "ratio", 1.1)
    loads = {"life": Life(traffic.names("fp32")), "repeated": Life(["repeated-fp32-0"])}
    spent: dict[tuple[str, str], list[float]] = {}
    for requests in loads.values():
        check_and_warm_up((bench.relay, bench.gateway), requests, scale.small_requests // 4)
    for index in range(scale.rounds):
        bench.tick(f"row 1r, {result.what}: round {index + 1} of {scale.rounds}")
        for name, requests in loads.items():
            for process in (bench.relay, bench.gateway):
                spent.setdefault((name, process.name), []).append(life_ns(process, requests, scale.small_requests))
        ratios = {name: spent[name, "gateway"][-1] / spent[name, "relay"][-1] for name in loads}
        result.samples.append(ratios["repeated"])
        advantage.samples.append(ratios["life"] / ratios["repeated"])
    result.absolute = f"gateway {us(spent['repeated', 'gateway'])}, P {us(spent['repeated', 'relay'])}"
    advantage.absolute = f"gateway {us(spent['life', 'gateway'])}, P {us(spent['life', 'relay'])} as in life"
    yield result
    yield advantage


def logged(bench: Bench) -> Iterator[Result]:
    """Row 1l. As row 1, with the JSON access log, to a file: gateway / P."""
    result = Result("1l", "FP32 [1, 16] as in life, access log / P", "ratio", 1.25)
    yield _against_p(bench, result, Life(traffic.names("fp32")), bench.logging_gateway)


def types(bench: Bench) -> Iterator[Result]:
    """Row 1t. As row 1, for other datatypes, two tensors, and JSON that is relayed: gateway / P."""
    for kind, title in TITLES.items():
        result = Result("1t", f"{title} / P", "ratio", 1.3)
        yield _against_p(bench, result, Life(traffic.names(kind)), bench.gateway)


def _against_p(bench: Bench, result: Result, requests: Life, gateway: Process) -> Result:
    """Fill *result* with gateway / P."""
    scale = bench.scale
    p, ours = [], []
    check_and_warm_up((bench.relay, gateway), requests, scale.small_requests // 4)
    for index in range(scale.rounds):
        bench.tick(f"row {result.row}, {result.what}: round {index + 1} of {scale.rounds}")
        p.append(life_ns(bench.relay, requests, scale.small_requests))
        ours.append(life_ns(gateway, requests, scale.small_requests))
        result.samples.append(ours[-1] / p[-1])
    result.absolute = f"gateway {us(ours)}, P {us(p)}"
    return result
