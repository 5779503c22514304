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


def lifelike(bench: Bench) -> Iterator[Result]:
    """Row 1. Four models, 64 tensors each, ids, answers of MLServer: gateway / P."""
    result = Result("1", "FP32 [1, 16] as in life / P", "ratio", 0.85)
    yield _against_p(bench, result, Life(traffic.names("fp32")), bench.gateway)


def traced(bench: Bench) -> Iterator[Result]:
    """Row 1x. As row 1, each request with a trace and an id in its head: gateway / P."""
    result = Result("1x", "FP32 [1, 16] as in life, traced / P", "ratio", 0.85)
    yield _against_p(bench, result, Life(traffic.names("fp32"), traced=True), bench.gateway)


def repeated(bench: Bench) -> Iterator[Result]:
    """Row 1r. One request again and again: gateway / P; and row 1 / this, which shows what only a bench likes."""
    scale = bench.scale
    result = Result("1r", "FP32 [1, 16], one request repeated / P", "ratio", 1.0, 0.9)
    advantage = Result("1r", "row 1 / row 1r", "ratio", 1.1)
    loads = {"life": Life(traffic.names("fp32")), "repeated": Life(["repeated-fp32-0"])}
    p: dict[str, list[float]] = {name: [] for name in loads}
    ours: dict[str, list[float]] = {name: [] for name in loads}
    for requests in loads.values():
        check_and_warm_up((bench.relay, bench.gateway), requests, scale.small_requests // 4)
    for index in range(scale.rounds):
        bench.tick(f"row 1r, {result.what}: round {index + 1} of {scale.rounds}")
        for name, requests in loads.items():
            p_ns, our_ns = life_ns((bench.relay, bench.gateway), requests, scale.small_requests)
            p[name].append(p_ns)
            ours[name].append(our_ns)
        result.samples.append(ours["repeated"][-1] / p["repeated"][-1])
        advantage.samples.append(ours["life"][-1] / p["life"][-1] / result.samples[-1])
    result.absolute = f"gateway {us(ours['repeated'])}, P {us(p['repeated'])}"
    advantage.absolute = f"gateway {us(ours['life'])}, P {us(p['life'])} as in life"
    yield result
    yield advantage


def logged(bench: Bench) -> Iterator[Result]:
    """Row 1l. As row 1, with the JSON access log, to a file: gateway / P."""
    result = Result("1l", "FP32 [1, 16] as in life, access log / P", "ratio", 1.0)
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
        p_ns, our_ns = life_ns((bench.relay, gateway), requests, scale.small_requests)
        p.append(p_ns)
        ours.append(our_ns)
        result.samples.append(ours[-1] / p[-1])
    result.absolute = f"gateway {us(ours)}, P {us(p)}"
    return result
