"""What servers of other dialects get and answer, for the backend; and the row that compares the dialects with V2."""

import functools
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import orjson

from tests.bench import processes
from tests.bench.cases import Case, WrongBytesError, numbers
from tests.bench.measuring import Bench, Result, processor_ns, us
from tests.bench.processes import Process

_DATA = b'"data":'
_END = b"}]}"


@dataclass(frozen=True)
class Dialect:
    """What the backend answers to a request whose path ends with this dialect's verb."""

    outputs: str
    """The member with the outputs."""
    answers: dict[str, bytes] = field(default_factory=dict)

    def answer(self, case: Case) -> memoryview:
        """The case's answer, nested as the case has it."""
        if case.name not in self.answers:
            text = bytes(case.backend_answer)
            data = text[text.index(_DATA) + len(_DATA) : -len(_END)]
            self.answers[case.name] = b'{"%b":%b}' % (self.outputs.encode(), data)
        return memoryview(self.answers[case.name])

    def check(self, case: Case, body: memoryview) -> None:
        """Compare the values that came, and their shape, with those that were sent. Raises `WrongBytesError`."""
        sent = np.array(orjson.loads(body)["inputs"]["x"], np.float32)
        header = orjson.loads(case.client_request[: case.header_bytes[0]])
        if list(sent.shape) != header["inputs"][0]["shape"] or sent.tobytes() != _blob(case):
            raise WrongBytesError(case.name)


@functools.lru_cache(maxsize=1)
def _blob(case: Case) -> bytes:
    return bytes(case.client_request[case.header_bytes[0] :])


DIALECTS = {"predict": Dialect("outputs"), "invocations": Dialect("predictions")}
"""By the last part of the path."""


def rows(bench: Bench) -> Iterator[Result]:
    """Row 2d. Other dialects, whose lists are nested / V2."""
    scale = bench.scale
    for shape, requests in ((scale.image, scale.image_requests), ((1, 16), scale.small_requests)):
        name = f"dialect-{'-'.join(map(str, shape))}"
        case = bench.case(name, partial(numbers, "FP32", shape), numbers("FP32", shape, nested=True))
        flat = bench.case(f"flat-{'-'.join(map(str, shape))}", partial(numbers, "FP32", shape))
        with ExitStack() as stack:
            gateways = {dialect: stack.enter_context(_gateway(bench, dialect, name)) for dialect in _BACKENDS}
            results = {
                dialect: Result("2d", f"FP32 {list(shape)}, {dialect} / V2", "ratio", TARGETS[len(shape) > 2])
                for dialect in gateways
            }
            spent: dict[str, list[float]] = {dialect: [] for dialect in ("V2", *gateways)}
            for index in range(scale.rounds):
                bench.tick(f"row 2d, FP32 {list(shape)}: round {index + 1} of {scale.rounds}")
                spent["V2"].append(processor_ns(bench.gateway, flat, requests))
                for dialect, gateway in gateways.items():
                    spent[dialect].append(processor_ns(gateway, case, requests))
                    results[dialect].samples.append(spent[dialect][-1] / spent["V2"][-1])
            for dialect, result in results.items():
                result.absolute = f"{dialect} {us(spent[dialect])}, V2 {us(spent['V2'])}"
                yield result


def in_requests(bench: Bench) -> Iterator[Result]:
    """Row 2r. A request of 16 rows, each of which is a request to the server / 16 requests of one row."""
    scale, one = bench.scale, numbers("FP32", (16,))
    single = bench.case(ONE_ROW, lambda: one)
    together = bench.case("rows-16", lambda: replace(one, shape=(N_ROWS, *one.shape), repeats=N_ROWS))
    result = Result("2r", f"FP32 [{N_ROWS}, 16] as {N_ROWS} requests / {N_ROWS} requests [16]", "ratio", 1.05)
    spent: dict[str, list[float]] = {"together": [], "single": []}
    with processes.start_gateway(bench.endpoints, bench.folder, backend=_IN_ROWS) as gateway:
        for case in (single, together):
            processor_ns(gateway, case, max(1, scale.small_requests // 8))
        for index in range(scale.rounds):
            bench.tick(f"row 2r: round {index + 1} of {scale.rounds}")
            spent["single"].append(N_ROWS * processor_ns(gateway, single, scale.small_requests))
            spent["together"].append(processor_ns(gateway, together, max(1, scale.small_requests // N_ROWS)))
            result.samples.append(spent["together"][-1] / spent["single"][-1])
    result.absolute = f"together {us(spent['together'])}, one by one {us(spent['single'])}"
    yield result


ONE_ROW = "one-row"
N_ROWS = 16

TARGETS = {True: 1.2, False: 1.3}
"""Of an image: a tenth for lists that are printed, a tenth for those that are read. And of a small request."""

_MODELS = "models: {'*': {outputs: {y: {datatype: FP32}}}}"
_TEMPLATE = (
    "dialect: template, models: {'*': {inputs: {x: {datatype: FP32}}, outputs: {y: {datatype: FP32}}, "
    "request: {path: '/v1/models/{model}:predict', body: {inputs: {x: $x}}}, answer: {y: $.outputs}}}"
)
_IN_ROWS = (
    "dialect: template, models: {'rows-*': {inputs: {x: {datatype: FP32}}, outputs: {y: {datatype: FP32}}, "
    f"request: {{path: '/v1/models/{ONE_ROW}:predict', body: {{inputs: {{x: $x}}}}, rows: 1}}, "
    f"answer: {{y: $.outputs}}}}, {_TEMPLATE.partition('models: {')[2]}"
)
_BACKENDS = {
    "tensorflow": f"dialect: tensorflow, {_MODELS}",
    "mlflow": f"dialect: mlflow, {_MODELS}",
    "template": _TEMPLATE,
}


def _gateway(bench: Bench, dialect: str, model: str) -> Process:
    # MLflow's path names no model, which the backend needs
    path = f"/models/{model}" if dialect == "mlflow" else ""
    endpoints = [url + path for url in bench.endpoints]
    return processes.start_gateway(endpoints, bench.folder, backend=_BACKENDS[dialect])
