"""The rows of gRPC: beside HTTP's, and beside a bare relay on grpc.aio, which converts nothing."""

import threading
import time
from collections import Counter
from collections.abc import Iterator

from tests.bench import processes, traffic
from tests.bench.cases import Case, WrongBytesError
from tests.bench.grpc_client import OK, UNAVAILABLE, GrpcConnection
from tests.bench.grpc_messages import check_reply_to_case, request_of_case
from tests.bench.measuring import MIB, Bench, Life, Result, add_growth, check_and_warm_up, life_ns, processor_ns, us
from tests.bench.processes import Process

CLIENTS = 16
"""How many send a large message at once."""

ADMITTED = 3
"""How many of these messages `in_flight_bytes` has room for."""


def small(bench: Bench) -> Iterator[Result]:
    """Row g1. Row 1 by gRPC: gateway / P, / the gateway by HTTP; and a relay on grpc.aio / P."""
    scale = bench.scale
    results = {
        "ours": Result("g1", "FP32 [1, 16] as in life, by gRPC / P", "ratio", 1.8),
        "http": Result("g1", "FP32 [1, 16] as in life, by gRPC / by HTTP", "ratio"),
        "aio": Result("g1", "FP32 [1, 16] as in life, relay on grpc.aio / P", "ratio"),
    }
    requests = Life(traffic.names("fp32"))
    servers = (bench.relay, bench.gateway, bench.grpc_gateway, bench.grpc_relay)
    check_and_warm_up(servers, requests, scale.small_requests // 4)
    rounds = []
    for index in range(scale.rounds):
        bench.tick(f"row g1: round {index + 1} of {scale.rounds}")
        rounds.append(life_ns(servers, requests, scale.small_requests))
    for p, http, ours, aio in rounds:
        results["ours"].samples.append(ours / p)
        results["http"].samples.append(ours / http)
        results["aio"].samples.append(aio / p)
    p_text, http_text, ours_text, aio_text = (us(list(samples)) for samples in zip(*rounds, strict=True))
    results["ours"].absolute = f"gateway {ours_text}, P {p_text}"
    results["http"].absolute = f"gRPC {ours_text}, HTTP {http_text}"
    results["aio"].absolute = f"relay {aio_text}, P {p_text}"
    yield from results.values()


def image(bench: Bench) -> Iterator[Result]:
    """Row g2. The image of row 2 by gRPC / by HTTP; the relay on grpc.aio converts nothing."""
    scale = bench.scale
    result = Result("g2", f"FP32 {list(scale.image)}, by gRPC / by HTTP", "ratio", 1.05)
    case = bench.image_case()
    parties = {"gRPC": bench.grpc_gateway, "HTTP": bench.gateway, "relay on grpc.aio": bench.grpc_relay}
    spent: dict[str, list[float]] = {party: [] for party in parties}
    for process in parties.values():
        processor_ns(process, case, max(1, scale.image_requests // 4))
    for index in range(scale.rounds):
        bench.tick(f"row g2, {result.what}: round {index + 1} of {scale.rounds}")
        for party, process in parties.items():
            spent[party].append(processor_ns(process, case, scale.image_requests))
        result.samples.append(spent["gRPC"][-1] / spent["HTTP"][-1])
    result.absolute = ", ".join(f"{party} {us(samples)}" for party, samples in spent.items())
    yield result


def memory(bench: Bench) -> Iterator[Result]:
    """Row g6. As row 5, by gRPC; and the peak where sixteen clients send more than there is room for.

    Every round has a gateway of its own, which has served small requests before.
    """
    scale = bench.scale
    with processes.start_backends(bench.cases, bench.folder) as endpoints:
        for elements in (scale.memory_elements // 4, scale.memory_elements):
            case = bench.echo_case(elements)
            yield _growth(bench, endpoints, case, elements * 4)
            bench.forget(case)
        case = bench.echo_case(scale.memory_elements // 4)
        yield _crowd(bench, endpoints, case, scale.memory_elements)
        bench.forget(case)


def _growth(bench: Bench, endpoints: list[str], case: Case, size: int) -> Result:
    """Growth of the peak in one large echo / the tensor's size."""
    result = Result("g6", f"FP32 echo of {size // MIB} MiB by gRPC: peak growth / size", "ratio", 2.1)
    for index in range(bench.scale.memory_rounds):
        bench.tick(f"row g6, {result.what}: round {index + 1} of {bench.scale.memory_rounds}")
        with (
            processes.start_grpc_gateway(endpoints, bench.folder) as gateway,
            GrpcConnection(gateway.url) as connection,
        ):
            add_growth(bench, result, case, size, gateway, connection)
    return result


def _crowd(bench: Bench, endpoints: list[str], case: Case, size: int) -> Result:
    """The peak where many large messages come at once, of which few have room. Raises `WrongBytesError`."""
    room = ADMITTED * size
    limits = f"request_body: {room}B, in_flight_bytes: {room}B"
    what = f"{CLIENTS} clients send {size // MIB} MiB, room for {room // MIB} MiB: peak"
    result = Result("g6", what, "MiB", 300)
    for index in range(bench.scale.memory_rounds):
        bench.tick(f"row g6, {what}: round {index + 1} of {bench.scale.memory_rounds}")
        with processes.start_grpc_gateway(endpoints, bench.folder, limits=limits) as gateway:
            statuses, refused_s = _ask_at_once(gateway, case, bench.small_case())
            result.samples.append(gateway.peak_bytes() / MIB)
        others = set(statuses) - {OK, UNAVAILABLE}
        if others or not statuses[OK]:
            raise WrongBytesError(f"{what}: the statuses are {dict(statuses)}")
        result.absolute = (
            f"{statuses[OK]} served, {statuses[UNAVAILABLE]} UNAVAILABLE, the last of these after {refused_s:.2f} s"
        )
    return result


def _ask_at_once(gateway: Process, case: Case, first: Case) -> tuple[Counter[str], float]:
    """Ask for *case* on connections that have asked for *first*, and compare good replies.

    How often each status came, and after how long the last refusal did.
    """
    statuses: Counter[str] = Counter()
    refused_s = [0.0]
    failures: list[BaseException] = []
    barrier = threading.Barrier(CLIENTS)
    request = request_of_case(case)

    def run() -> None:
        try:
            with GrpcConnection(gateway.url) as connection:
                connection.infer(first)
                barrier.wait()
                started = time.perf_counter()
                answer = connection.ask(request)
                statuses[answer.status] += 1
                if answer.status == OK:
                    check_reply_to_case(case, answer.message)
                else:
                    refused_s.append(time.perf_counter() - started)
        except Exception as error:  # raised again below
            failures.append(error)
            barrier.abort()

    threads = [threading.Thread(target=run, daemon=True) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return statuses, max(refused_s)
