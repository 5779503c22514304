"""The rows of the table: what is sent, and how each figure is made of what was measured. Small requests: `small.py`."""

import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import numpy as np

from tests.bench import batching, chunks, dialects, grpc_rows, processes, sizes, small, trips
from tests.bench.cases import WIRE, Case, WrongBytesError, numbers, strings
from tests.bench.client import Connection
from tests.bench.measuring import MIB, Bench, Result, add_growth, against_yardsticks, processor_ns, us
from tests.bench.processes import Process


def image(bench: Bench) -> Iterator[Result]:
    """Row 2. The work on the numbers: gateway / (P + K)."""
    scale = bench.scale
    result = Result("2", f"FP32 {list(scale.image)} / (P + K)", "ratio", 1.1, 1.0)
    yield against_yardsticks(bench, result, bench.image_case(), scale.image_requests, scale.rounds, "FP32")


def nested(bench: Bench) -> Iterator[Result]:
    """Row 2n. Answers whose lists are nested as the shape says / flat ones."""
    scale = bench.scale
    for shape, requests in ((scale.image, scale.image_requests), ((1, 16), scale.small_requests)):
        result = Result("2n", f"FP32 {list(shape)}, nested answer / flat", "ratio", 1.1)
        name = "-".join(map(str, shape))
        cases = {
            "flat": bench.case(f"flat-{name}", partial(numbers, "FP32", shape)),
            "nested": bench.case(
                f"nested-{name}", partial(numbers, "FP32", shape), numbers("FP32", shape, nested=True)
            ),
        }
        spent: dict[str, list[float]] = {kind: [] for kind in cases}
        for index in range(scale.rounds):
            bench.tick(f"row 2n, {result.what}: round {index + 1} of {scale.rounds}")
            for kind, case in cases.items():
                spent[kind].append(processor_ns(bench.gateway, case, requests))
            result.samples.append(spent["nested"][-1] / spent["flat"][-1])
        result.absolute = f"nested {us(spent['nested'])}, flat {us(spent['flat'])}"
        yield result


def passed(bench: Bench) -> Iterator[Result]:
    """Row 2b. Binary bodies that pass through / a bare relay of the same bytes."""
    scale = bench.scale
    with ExitStack() as stack:
        backend = "health: {}, binary: always"
        gateway = stack.enter_context(processes.start_gateway(bench.endpoints, bench.folder, backend=backend))
        relay = stack.enter_context(processes.start_relay(bench.cases, bench.endpoints[0], bench.folder, "binary"))
        for case, shape, requests, target in (
            (bench.image_case(), list(scale.image), scale.image_requests, 1.3),
            (bench.small_case(), [1, 16], scale.small_requests, None),
        ):
            result = Result("2b", f"FP32 {shape}, passed through / bare relay of the same", "ratio", target)
            spent: dict[Process, list[float]] = {gateway: [], relay: []}
            for index in range(scale.rounds):
                bench.tick(f"row 2b, {result.what}: round {index + 1} of {scale.rounds}")
                for process, found in spent.items():
                    found.append(processor_ns(process, case, requests))
                result.samples.append(spent[gateway][-1] / spent[relay][-1])
            result.absolute = f"gateway {us(spent[gateway])}, relay {us(spent[relay])}"
            yield result


def image_without_simdjson(bench: Bench) -> Iterator[Result]:
    """Row 2p. As row 2, by a gateway that has no pysimdjson; K keeps it."""
    scale = bench.scale
    result = Result("2p", f"FP32 {list(scale.image)}, no pysimdjson / (P + K)", "ratio", 1.7)
    wrapper: list[str | Path] = [sys.executable, Path(__file__).with_name("without_simdjson.py")]
    with processes.start_gateway(bench.endpoints, bench.folder, wrapper=wrapper) as gateway:
        case = bench.image_case()
        yield against_yardsticks(bench, result, case, scale.image_requests, scale.rounds, "FP32", gateway)


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
    result = Result("4", f"BYTES [{scale.strings}] of 100 bytes / P", "ratio", 4.0)
    yield against_yardsticks(bench, result, case, scale.strings_requests, scale.rounds)
    case = bench.case("lines", lambda: strings(scale.strings, 100, escapes=True))
    result = Result("4", f"BYTES [{scale.strings}] of 100 bytes, with escapes / P", "ratio", 6.0)
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
    both = Result("5", f"FP32 echo of {size // MIB} MiB: peak growth / size", "ratio", 2.1)
    alone = Result("5", f"FP32 request of {size // MIB} MiB: peak growth / size", "ratio", 1.1)
    with processes.start_backends(bench.cases, bench.folder) as endpoints:
        for index in range(scale.memory_rounds):
            for result, case in ((both, echo), (alone, upload)):
                bench.tick(f"row 5, {result.what}: round {index + 1} of {scale.memory_rounds}")
                with (
                    processes.start_gateway(endpoints, bench.folder) as gateway,
                    Connection(gateway.url) as connection,
                ):
                    add_growth(bench, result, case, size, gateway, connection)
    bench.forget(echo, upload)
    yield both
    yield alone


def beside(bench: Bench) -> Iterator[Result]:
    """Row 6. The 99th percentile of a small request's latency, alone and while two large echoes run in loops.

    The small requests have backends of their own, so that it is the gateway that is waited for.
    """
    large = bench.echo_case(bench.scale.beside_elements)
    command = processes.python("tests.bench.client", "{url}", bench.cases, large.name)
    yield from _beside(bench, "6", f"two {bench.scale.beside_elements * 4 // MIB} MiB echoes", [command] * 2)
    bench.forget(large)


def hostile(bench: Bench) -> Iterator[Result]:
    """Row 6h. As row 6, while 24 clients send JSON headers of the largest size allowed and of the worst kinds."""
    clients = bench.scale.hostile_clients
    command = processes.python("tests.bench.hostile", "{url}", str(clients))
    yield from _beside(bench, "6h", f"{clients} clients with hostile headers", [command])


def _beside(bench: Bench, row: str, beside_what: str, load_commands: list[list[str | Path]]) -> Iterator[Result]:
    """Latencies without and with processes of load; `{url}` in a command stands for the gateway's URL."""
    scale = bench.scale
    quiet = Result(row, "p99 of FP32 [1, 16] alone", "ms", 15, 10)
    loaded = Result(row, f"p99 of FP32 [1, 16] beside {beside_what}", "ms", 15, 10)
    medians: dict[str, list[float]] = {"quiet": [], "loaded": []}
    with ExitStack() as stack:
        own = stack.enter_context(processes.start_backends(bench.cases, bench.folder))
        gateway = stack.enter_context(processes.start_gateway(bench.endpoints, bench.folder, small_endpoints=own))
        _latencies_ms(gateway, bench.small_case(), 50)
        for index in range(scale.beside_rounds):
            bench.tick(f"row {row}, {loaded.what}: round {index + 1} of {scale.beside_rounds}")
            times = _latencies_ms(gateway, bench.small_case(), scale.beside_requests)
            quiet.samples.append(float(np.percentile(times, 99)))
            medians["quiet"].append(float(np.median(times)))
            with ExitStack() as loads:
                for command in load_commands:
                    with_url = [gateway.url if part == "{url}" else part for part in command]
                    loads.enter_context(Process("load", with_url, bench.folder))
                times = _latencies_ms(gateway, bench.small_case(), scale.beside_requests)
            loaded.samples.append(float(np.percentile(times, 99)))
            medians["loaded"].append(float(np.median(times)))
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
        processes.start_backends(bench.cases, bench.folder) as endpoints,
        processes.start_gateway(endpoints, bench.folder) as gateway,
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
    if not processes.accepts(processes.configure(bench.endpoints, bench.folder, extra="workers: 2\n")):
        result.missing = "not available: the gateway does not know `workers: 2`"
        yield result
        return
    case = bench.image_case()
    per_second: dict[int, list[float]] = {1: [], 2: []}
    with ExitStack() as stack:
        gateways = {
            count: stack.enter_context(
                processes.start_gateway(bench.endpoints, bench.folder, extra=f"workers: {count}\n")
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


ROWS: dict[str, Callable[[Bench], Iterator[Result]]] = {
    "1": small.lifelike,
    "1x": small.traced,
    "1r": small.repeated,
    "1l": small.logged,
    "1t": small.types,
    "2": image,
    "2n": nested,
    "2b": passed,
    "2d": dialects.rows,
    "2r": dialects.in_requests,
    "2p": image_without_simdjson,
    "3": datatypes,
    "4": text,
    "5": memory,
    "6": beside,
    "6c": chunks.rows,
    "6h": hostile,
    "7": linear,
    "8": workers,
    "9": trips.image,
    "b": batching.rows,
    "g1": grpc_rows.small,
    "g2": grpc_rows.image,
    "g6": grpc_rows.memory,
    "sizes": sizes.costs,
    "trips": trips.sizes,
}
