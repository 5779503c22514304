"""The rows of the table: what is sent, and how each figure is made of what was measured.

A row is a generator of results. It gets a `Bench`, which has the processes and the sizes, and measures in rounds:
in each round every party has its turn, so that a machine that is slow for a while is slow for all of them, and a
figure is made of the numbers of one round. What is reported are minimum, median and maximum over the rounds.
"""

import json
import os
import shutil
import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.bench import kernel, processes
from tests.bench.cases import WIRE, Case, Tensor, create, numbers, strings
from tests.bench.client import Connection, WrongBytesError
from tests.bench.processes import Process

MIB = 1024 * 1024


@dataclass(frozen=True)
class Scale:
    """How much is measured. Everything that is repeated is counted here."""

    image: tuple[int, ...] = (1, 3, 224, 224)
    small_requests: int = 2000
    image_requests: int = 40
    datatype_requests: int = 15
    strings: int = 10_000
    long_string: int = 10 * MIB
    strings_requests: int = 20
    long_requests: int = 4
    rounds: int = 7
    datatype_rounds: int = 3
    memory_elements: int = 64 * MIB
    memory_rounds: int = 3
    beside_elements: int = 16 * MIB
    beside_requests: int = 1000
    beside_rounds: int = 3
    few_elements: int = 128 * 1024
    few_requests: int = 128
    linear_rounds: int = 3
    connections: int = 16
    throughput_requests: int = 600
    trips: int = 15
    profile_s: float = 10.0


QUICK = Scale(
    image=(1, 3, 32, 32),
    small_requests=20,
    image_requests=3,
    datatype_requests=2,
    strings=100,
    long_string=256 * 1024,
    strings_requests=2,
    long_requests=2,
    rounds=1,
    datatype_rounds=1,
    memory_elements=MIB,
    memory_rounds=1,
    beside_elements=MIB,
    beside_requests=50,
    beside_rounds=1,
    few_requests=4,
    linear_rounds=1,
    connections=4,
    throughput_requests=40,
    trips=2,
    profile_s=1.0,
)
"""Only enough to see that every row runs and every byte is right."""


@dataclass
class Result:
    """One line of the table."""

    row: str
    what: str
    unit: str
    target: float
    stretch: float | None = None
    at_least: bool = False
    samples: list[float] = field(default_factory=list)
    absolute: str = ""
    """The numbers that the samples are made of, as medians."""
    missing: str = ""
    """Why there are no samples."""

    @property
    def is_held(self) -> bool | None:
        """Whether the median is within the target; None without samples."""
        if not self.samples:
            return None
        median = statistics.median(self.samples)
        return median >= self.target if self.at_least else median <= self.target


class Bench:
    """The processes of a run, each started when the first row needs it, and the cases."""

    def __init__(self, scale: Scale, stack: ExitStack, tick: Callable[[str], None]) -> None:
        """*stack* ends all processes; *tick* is told of progress."""
        self.scale = scale
        self.tick = tick
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        self.cases = self.folder / "cases"
        self.cases.mkdir()
        self._stack = stack
        self._shared: dict[str, Process] = {}

    def case(self, name: str, request: Callable[[], Tensor], answer: Tensor | None = None) -> Case:
        existing = self.cases / name
        return Case(existing) if existing.exists() else create(self.cases, name, request(), answer)

    def forget(self, *cases: Case) -> None:
        """Remove the files of large cases; who has mapped them keeps them until he ends."""
        for case in cases:
            shutil.rmtree(case.folder, ignore_errors=True)

    @property
    def backend(self) -> Process:
        return self._share("backend", lambda: processes.start_backend(self.cases, self.folder))

    @property
    def relay(self) -> Process:
        return self._share("relay", lambda: processes.start_relay(self.cases, self.backend, self.folder))

    @property
    def gateway(self) -> Process:
        return self._share("gateway", lambda: processes.start_gateway(self.backend.url, self.folder))

    def _share(self, name: str, start: Callable[[], Process]) -> Process:
        if name not in self._shared:
            self._shared[name] = self._stack.enter_context(start())
        return self._shared[name]

    def small_case(self) -> Case:
        return self.case("small", lambda: numbers("FP32", (1, 16)))

    def image_case(self, datatype: str = "FP32") -> Case:
        return self.case(f"image-{datatype}", lambda: numbers(datatype, self.scale.image))

    def echo_case(self, elements: int) -> Case:
        return self.case(f"echo-{elements}", lambda: numbers("FP32", (1, elements)))


def processor_ns(process: Process, case: Case, requests: int) -> float:
    """Processor time of *process* per request, in nanoseconds, as the mean of *requests* one after another."""
    with Connection(process.url) as connection:
        connection.infer_and_check(case)
        before = process.processor_ns()
        for _ in range(requests):
            connection.infer(case)
        return (process.processor_ns() - before) / requests


def against_yardsticks(
    bench: Bench, result: Result, case: Case, requests: int, rounds: int, datatype: str | None = None
) -> Result:
    """Fill *result* with gateway / P, or with gateway / (P + K) if *datatype* is given."""
    p, gateway, k = [], [], []
    for process in (bench.relay, bench.gateway):
        processor_ns(process, case, max(1, requests // 4))
    for index in range(rounds):
        bench.tick(f"row {result.row}, {result.what}: round {index + 1} of {rounds}")
        p.append(processor_ns(bench.relay, case, requests))
        gateway.append(processor_ns(bench.gateway, case, requests))
        k.append(kernel.processor_ns(case, datatype, requests) if datatype else 0.0)
        result.samples.append(gateway[-1] / (p[-1] + k[-1]))
    result.absolute = f"gateway {_us(gateway)}, P {_us(p)}" + (f", K {_us(k)}" if datatype else "")
    return result


def _us(samples: list[float]) -> str:
    value = statistics.median(samples) / 1000
    return f"{value:.0f} us" if value < 10_000 else f"{value / 1000:.1f} ms"


def small(bench: Bench) -> Iterator[Result]:
    """Row 1. All that the gateway does around a tensor: gateway / P."""
    scale = bench.scale
    result = Result("1", "FP32 [1, 16] / P", "ratio", 1.6, 1.3)
    yield against_yardsticks(bench, result, bench.small_case(), scale.small_requests, scale.rounds)


def image(bench: Bench) -> Iterator[Result]:
    """Row 2. The work on the numbers: gateway / (P + K)."""
    scale = bench.scale
    result = Result("2", f"FP32 {list(scale.image)} / (P + K)", "ratio", 1.15, 1.0)
    yield against_yardsticks(bench, result, bench.image_case(), scale.image_requests, scale.rounds, "FP32")


def datatypes(bench: Bench) -> Iterator[Result]:
    """Row 3. As row 2, for every other datatype."""
    scale = bench.scale
    for name in WIRE:
        if name != "FP32":
            result = Result("3", f"{name} / (P + K)", "ratio", 1.3)
            case = bench.image_case(name)
            yield against_yardsticks(bench, result, case, scale.datatype_requests, scale.datatype_rounds, name)


def text(bench: Bench) -> Iterator[Result]:
    """Row 4. Many strings, without and with characters that JSON escapes, and one long one: gateway / P."""
    scale = bench.scale
    case = bench.case("strings", lambda: strings(scale.strings, 100))
    result = Result("4", f"BYTES [{scale.strings}] of 100 bytes / P", "ratio", 3.0)
    yield against_yardsticks(bench, result, case, scale.strings_requests, scale.rounds)
    case = bench.case("lines", lambda: strings(scale.strings, 100, escapes=True))
    result = Result("4", f"BYTES [{scale.strings}] of 100 bytes, with escapes / P", "ratio", 3.0)
    yield against_yardsticks(bench, result, case, scale.strings_requests, scale.rounds)
    case = bench.case("string", lambda: strings(1, scale.long_string))
    result = Result("4", f"BYTES [1] of {scale.long_string} bytes / P", "ratio", 3.0)
    yield against_yardsticks(bench, result, case, scale.long_requests, scale.rounds)


def memory(bench: Bench) -> Iterator[Result]:
    """Row 5. Growth of the gateway's peak resident memory in one large request / the tensor's size.

    Every round has a gateway of its own, which has served small requests before.
    """
    scale = bench.scale
    size = scale.memory_elements * 4
    echo = bench.echo_case(scale.memory_elements)
    upload = bench.case(
        f"upload-{scale.memory_elements}",
        lambda: numbers("FP32", (1, scale.memory_elements)),
        numbers("FP32", (1, 16)),
    )
    both = Result("5", f"FP32 echo of {size // MIB} MiB: peak growth / size", "ratio", 2.2)
    alone = Result("5", f"FP32 request of {size // MIB} MiB: peak growth / size", "ratio", 1.1)
    with processes.start_backend(bench.cases, bench.folder) as backend:
        for index in range(scale.memory_rounds):
            for result, case in ((both, echo), (alone, upload)):
                bench.tick(f"row 5, {result.what}: round {index + 1} of {scale.memory_rounds}")
                with (
                    processes.start_gateway(backend.url, bench.folder) as gateway,
                    Connection(gateway.url) as connection,
                ):
                    for _ in range(20):
                        connection.infer(bench.small_case())
                    before = gateway.peak_bytes()
                    connection.infer_and_check(case)
                    after = gateway.peak_bytes()
                result.samples.append((after - before) / size)
                result.absolute = f"{before / MIB:.0f} MiB before, {after / MIB:.0f} MiB after"
    bench.forget(echo, upload)
    yield both
    yield alone


def beside(bench: Bench) -> Iterator[Result]:
    """Row 6. The 99th percentile of a small request's latency, alone and while two large echoes run in loops.

    The small requests have a backend of their own, so that it is the gateway that is waited for.
    """
    scale = bench.scale
    large = bench.echo_case(scale.beside_elements)
    size = f"{scale.beside_elements * 4 // MIB} MiB"
    quiet = Result("6", "p99 of FP32 [1, 16] alone", "ms", 25, 10)
    loaded = Result("6", f"p99 of FP32 [1, 16] beside two {size} echoes", "ms", 25, 10)
    medians: dict[str, list[float]] = {"quiet": [], "loaded": []}
    with ExitStack() as stack:
        own = stack.enter_context(processes.start_backend(bench.cases, bench.folder))
        gateway = stack.enter_context(processes.start_gateway(bench.backend.url, bench.folder, small_url=own.url))
        with Connection(gateway.url) as connection:
            connection.infer_and_check(large)
        _latencies_ms(gateway, bench.small_case(), 50)
        for index in range(scale.beside_rounds):
            bench.tick(f"row 6, {loaded.what}: round {index + 1} of {scale.beside_rounds}")
            times = _latencies_ms(gateway, bench.small_case(), scale.beside_requests)
            quiet.samples.append(float(np.percentile(times, 99)))
            medians["quiet"].append(float(np.median(times)))
            with ExitStack() as loads:
                command = processes.python("tests.bench.client", gateway.url, bench.cases, large.name)
                for _ in range(2):
                    loads.enter_context(Process("load", command, bench.folder))
                times = _latencies_ms(gateway, bench.small_case(), scale.beside_requests)
            loaded.samples.append(float(np.percentile(times, 99)))
            medians["loaded"].append(float(np.median(times)))
    bench.forget(large)
    quiet.absolute = f"median {statistics.median(medians['quiet']):.2f} ms"
    loaded.absolute = f"median {statistics.median(medians['loaded']):.2f} ms"
    yield quiet
    yield loaded


def _latencies_ms(process: Process, case: Case, requests: int) -> list[float]:
    times = []
    with Connection(process.url) as connection:
        connection.infer_and_check(case)
        for _ in range(requests):
            started = time.perf_counter()
            connection.infer(case)
            times.append((time.perf_counter() - started) * 1000)
            time.sleep(0.002)  # or they would all fall into the same few pieces of work
    return times


def linear(bench: Bench) -> Iterator[Result]:
    """Row 7. Processor time per element of a very large echo / of many of moderate size."""
    scale = bench.scale
    many, few = bench.echo_case(scale.memory_elements), bench.echo_case(scale.few_elements)
    title = f"ns per element, {scale.memory_elements // 1024} Ki / {scale.few_elements // 1024} Ki elements"
    user = Result("7", f"{title}: user", "ratio", 1.1)
    total = Result("7", f"{title}: user and system", "ratio", 1.35)
    spent: dict[str, list[tuple[float, float]]] = {"many": [], "few": []}
    with (
        processes.start_backend(bench.cases, bench.folder) as backend,
        processes.start_gateway(backend.url, bench.folder) as gateway,
        Connection(gateway.url) as connection,
    ):
        connection.infer_and_check(many)
        connection.infer_and_check(few)
        for index in range(scale.linear_rounds):
            bench.tick(f"row 7, {title}: round {index + 1} of {scale.linear_rounds}")
            for key, case, requests in (("few", few, scale.few_requests), ("many", many, 1)):
                elements = requests * (scale.few_elements if key == "few" else scale.memory_elements)
                before = gateway.user_and_system_s()
                for _ in range(requests):
                    connection.infer(case)
                after = gateway.user_and_system_s()
                user_ns, system_ns = ((b - a) / elements * 1e9 for a, b in zip(before, after, strict=True))
                spent[key].append((user_ns, user_ns + system_ns))
            with suppress(ZeroDivisionError):  # quick runs are shorter than a tick of the kernel's books
                user.samples.append(spent["many"][-1][0] / spent["few"][-1][0])
                total.samples.append(spent["many"][-1][1] / spent["few"][-1][1])
    bench.forget(many)
    for column, result in enumerate((user, total)):
        medians = [statistics.median(pair[column] for pair in spent[key]) for key in ("many", "few")]
        result.absolute = f"{medians[0]:.1f} ns, {medians[1]:.1f} ns"
        result.missing = "" if result.samples else "too short to be measured"
        yield result


def workers(bench: Bench) -> Iterator[Result]:
    """Row 8. Requests per second of two workers / of one, on two processors."""
    scale = bench.scale
    result = Result("8", f"two workers / one, FP32 {list(scale.image)}", "ratio", 1.7, at_least=True)
    if not processes.accepts(processes.configure(bench.backend.url, bench.folder, extra="workers: 2\n")):
        result.missing = "not available: the gateway does not know `workers: 2`"
        yield result
        return
    case = bench.image_case()
    per_second: dict[int, list[float]] = {1: [], 2: []}
    with ExitStack() as stack:
        gateways = {
            count: stack.enter_context(
                processes.start_gateway(bench.backend.url, bench.folder, extra=f"workers: {count}\n")
            )
            for count in (1, 2)
        }
        for gateway in gateways.values():
            _requests_per_second(gateway, case, scale.connections, scale.throughput_requests // 10)
        for index in range(scale.rounds):
            bench.tick(f"row 8, {result.what}: round {index + 1} of {scale.rounds}")
            for count, gateway in gateways.items():
                per_second[count].append(
                    _requests_per_second(gateway, case, scale.connections, scale.throughput_requests)
                )
            result.samples.append(per_second[2][-1] / per_second[1][-1])
    result.absolute = ", ".join(f"{count}: {statistics.median(per_second[count]):.0f}/s" for count in (2, 1))
    if (os.cpu_count() or 1) < 4:
        result.absolute += f" (backend and client share the {os.cpu_count()} processors)"
    yield result


def _requests_per_second(process: Process, case: Case, connections: int, requests: int) -> float:
    failures: list[BaseException] = []
    barrier = threading.Barrier(connections + 1)

    def run() -> None:
        try:
            with Connection(process.url) as connection:
                connection.infer_and_check(case)
                barrier.wait()
                for _ in range(max(1, requests // connections)):
                    connection.infer(case)
        except Exception as error:  # raised again below
            failures.append(error)
            barrier.abort()

    threads = [threading.Thread(target=run, daemon=True) for _ in range(connections)]
    for thread in threads:
        thread.start()
    with suppress(threading.BrokenBarrierError):
        barrier.wait()
    started = time.perf_counter()
    for thread in threads:
        thread.join()
    if failures:
        raise next((error for error in failures if isinstance(error, WrongBytesError)), failures[0])
    return connections * max(1, requests // connections) / (time.perf_counter() - started)


def trip(bench: Bench) -> Iterator[Result]:
    """Row 9. numpy to numpy with tritonclient: JSON straight to an MLServer / binary through the gateway to it."""
    scale = bench.scale
    title = f"MLServer, FP32 {list(scale.image)}: JSON straight / gateway"
    result = Result("9", title, "ratio", 7.0, at_least=True)
    command = os.environ.get("MLSERVER")
    try:
        import tritonclient.http as triton  # noqa: PLC0415  only this row needs it
    except ImportError:
        result.missing = "skipped: tritonclient is not installed"
        yield result
        return
    if not command:
        result.missing = "skipped: set MLSERVER to the command of an MLServer"
        yield result
        return
    array = np.random.default_rng(0).random(scale.image, np.float32)
    spent: dict[str, list[float]] = {"json": [], "binary": []}
    with ExitStack() as stack:
        bench.tick("row 9: starting MLServer")
        url = stack.enter_context(_mlserver(bench, command)).url
        gateway = stack.enter_context(processes.start_gateway(url, bench.folder))
        for index in range(scale.rounds + 1):
            bench.tick(f"row 9, {title}: round {index + 1} of {scale.rounds + 1}")
            for kind, target in (("binary", gateway.url), ("json", url)):
                with triton.InferenceServerClient(target.removeprefix("http://"), network_timeout=60.0) as client:
                    spent[kind].append(_trip_ms(triton, client, array, scale.trips, is_binary=kind == "binary"))
    del spent["json"][0], spent["binary"][0]  # the first round warms up
    result.samples = [json_ms / ms for json_ms, ms in zip(spent["json"], spent["binary"], strict=True)]
    result.absolute = (
        f"JSON {statistics.median(spent['json']):.1f} ms, gateway {statistics.median(spent['binary']):.1f} ms"
    )
    yield result


def _trip_ms(triton: Any, client: Any, array: npt.NDArray[Any], trips: int, *, is_binary: bool) -> float:
    times = []
    for _ in range(trips):
        started = time.perf_counter()
        sent = triton.InferInput("x", list(array.shape), "FP32")
        sent.set_data_from_numpy(array, binary_data=is_binary)
        wanted = [triton.InferRequestedOutput("x", binary_data=is_binary)]
        got = client.infer("identity", [sent], outputs=wanted).as_numpy("x")
        times.append((time.perf_counter() - started) * 1000)
        if got.tobytes() != array.tobytes():
            raise WrongBytesError("MLServer's answer is not what was sent")
    return statistics.median(times)


def _mlserver(bench: Bench, command: str) -> Process:
    """A real MLServer with the identity model of `deploy/mlserver`."""
    folder = bench.folder / "mlserver"
    shutil.copytree(processes.ROOT / "deploy" / "mlserver", folder)
    settings = folder / "settings.json"
    ports = dict(zip(("http_port", "grpc_port", "metrics_port"), processes.free_ports(3), strict=True))
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "host": "127.0.0.1", **ports}))
    process = Process("mlserver", [command, "start", folder], bench.folder)
    try:
        process.url = f"http://127.0.0.1:{ports['http_port']}"
        deadline = time.monotonic() + 120
        while not _is_ready(f"{process.url}/v2/models/identity/ready"):
            if time.monotonic() > deadline:
                raise RuntimeError(f"MLServer is not ready:\n{process.output()}")
            time.sleep(0.1)
    except BaseException:
        process.close()
        raise
    return process


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as response:
            return bool(response.status == 200)
    except OSError:
        return False


ROWS: dict[str, Callable[[Bench], Iterator[Result]]] = {
    "1": small,
    "2": image,
    "3": datatypes,
    "4": text,
    "5": memory,
    "6": beside,
    "7": linear,
    "8": workers,
    "9": trip,
}
