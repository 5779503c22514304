"""Where the gateway's time and memory go while it does the work of a row.

Sampling (`sampled.py`) counts processor time and slows hardly anything down, but sees no C functions; `cProfile` sees
them, and makes Python look slower than it is. Read the shares of the first, and the second for what is inside them.
"""

import functools
import pstats
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from tests.bench import processes, steps, traffic
from tests.bench.cases import WIRE, Case, strings
from tests.bench.client import Connection
from tests.bench.measuring import MIB, Bench, Life
from tests.bench.processes import Process

TOP = 30


Load = Callable[[Connection], None]
"""Sends a request or several on a connection."""


@dataclass(frozen=True)
class Profile:
    """What was found: to be read, and as JSON for the plots (empty where the tool gives no steps)."""

    text: str
    report: dict[str, Any]


def profile(bench: Bench, row: str, tool: str) -> Profile:
    """Profile the gateway under the load of *row*; *tool* is `sampling` or `cprofile`."""
    if row == "5":
        return Profile(_profile_memory(bench, bench.echo_case(bench.scale.memory_elements)), {})
    load = _load_of(bench, row)
    if tool == "cprofile":
        return Profile(_profile_inside(bench, load), {})
    return _profile_by_samples(bench, row, load)


def _load_of(bench: Bench, row: str) -> list[Load]:
    if row in ("1", "1l"):
        return [_life("fp32")]
    if row == "1t":
        return [_life(kind) for kind in traffic.KINDS if kind != "fp32"]
    return [functools.partial(Connection.infer, case=case) for case in _cases(bench, row)]


def _life(kind: str) -> Load:
    return functools.partial(Life(traffic.names(kind)).run, requests=1)


def _cases(bench: Bench, row: str) -> list[Case]:
    scale = bench.scale
    if row == "3":
        return [bench.image_case(name) for name in WIRE if name != "FP32"]
    if row == "4":
        return [
            bench.case("strings", lambda: strings(scale.strings, 100)),
            bench.case("string", lambda: strings(1, scale.long_string)),
        ]
    if row == "7":
        return [bench.echo_case(scale.memory_elements)]
    if row == "6":
        return [bench.small_case(), bench.echo_case(scale.beside_elements)]
    return [bench.image_case()]


def _run(connection: Connection, load: list[Load], is_over: "Until") -> int:
    requests = 0
    while not is_over():
        for send in load:
            send(connection)
            requests += 1
    return requests


class Until:
    """Over when a time has passed."""

    def __init__(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds

    def __call__(self) -> bool:
        return time.monotonic() > self._deadline


def _profile_by_samples(bench: Bench, row: str, load: list[Load]) -> Profile:
    """Shares of steps of the gateway and of P, and processor time per request of both while no samples are taken."""
    file = bench.folder / "samples"
    wrapper: list[str | Path] = [sys.executable, Path(__file__).with_name("sampled.py"), file]
    access_log = "json" if row == "1l" else "none"
    with processes.start_gateway(bench.endpoints, bench.folder, access_log=access_log, wrapper=wrapper) as gateway:
        _run_for(gateway, load, bench.scale.profile_s)
    of_gateway = file.read_text()
    with processes.start_relay(bench.cases, bench.endpoints[0], bench.folder, wrapper=wrapper) as relay:
        _run_for(relay, load, bench.scale.profile_s)
    of_relay = file.read_text()

    parties = {"gateway": bench.logging_gateway if row == "1l" else bench.gateway, "p": bench.relay}
    spent_us: dict[str, list[float]] = {party: [] for party in parties}
    for _ in range(bench.scale.rounds):
        for party, process in parties.items():
            before = process.processor_ns()
            requests = _run_for(process, load, bench.scale.profile_s / 10)
            spent_us[party].append((process.processor_ns() - before) / requests / 1000)
    gateway_us, p_us = (statistics.median(figures) for figures in spent_us.values())
    gateway_steps = steps.shares(of_gateway, steps.step_of_gateway)
    p_steps = steps.shares(of_relay, steps.step_of_relay)

    lines = [f"processor time per request: {gateway_us:.0f} us, P {p_us:.0f} us", "", f"{'':44} gateway         P"]
    lines += [
        f"  {step:42} {gateway_steps[step] * gateway_us:5.0f} us {p_steps[step] * p_us:6.0f} us" for step in steps.STEPS
    ]
    text = "\n".join(lines) + "\n" + _table_of_samples(of_gateway)
    report = {
        "row": row,
        "gateway_us": gateway_us,
        "p_us": p_us,
        "gateway_steps": gateway_steps,
        "p_steps": p_steps,
    }
    return Profile(text, report)


def _table_of_samples(text: str) -> str:
    """Shares of rooms and functions in collapsed stacks."""
    rooms: Counter[str] = Counter()
    own: Counter[str] = Counter()
    whole: Counter[str] = Counter()
    innermost: Counter[str] = Counter()
    for frames, count in steps.stacks(text):
        own[frames[-1]] += count
        rooms[_room(frames[-1])] += count
        whole.update(dict.fromkeys(frames, count))
        mine = [frame for frame in frames if "gateway/" in frame and "__main__" not in frame]
        name = mine[-1] if mine and "cli.py" not in mine[-1] else "(nobody: server, client, loop)"
        innermost[name] += count
    total = own.total() or 1
    tables = [
        ("by room, without callees", rooms, whole),
        ("by function, without callees; with callees", own, whole),
        ("by the innermost function of the gateway, with the libraries it calls; with all callees", innermost, whole),
    ]
    lines = []
    for title, counts, with_callees in tables:
        lines.append(f"\n{title}")
        for name, samples in counts.most_common(TOP):
            both = f"{with_callees[name] / total:8.1%}" if name in with_callees else " " * 8
            lines.append(f"{samples / total:8.1%}  {both}  {name}")
    return "\n".join(lines) + "\n"


def _room(frame: str) -> str:
    """The package of a frame such as `name (package/module.py:1)`; the gateway's own by module or room."""
    if frame.startswith("_SelectorSocketTransport.write "):
        return "asyncio, sending"
    parts = frame.rpartition("(")[2].split("/")
    if parts[0] == "gateway":
        return f"gateway/{parts[1].partition(':')[0]}"
    return parts[0].partition(":")[0]


def _profile_inside(bench: Bench, load: list[Load]) -> str:
    file = bench.folder / "profile"
    wrapper = processes.python("cProfile", "-o", file, "-m")
    with processes.start_gateway(bench.endpoints, bench.folder, wrapper=wrapper) as gateway:
        requests = _run_for(gateway, load, bench.scale.profile_s)
    output = StringIO()
    statistics = pstats.Stats(str(file), stream=output)
    statistics.sort_stats("tottime").print_stats(TOP)
    statistics.sort_stats("cumulative").print_stats(r"/gateway/", TOP)
    return f"cProfile, {requests} requests\n{output.getvalue()}"


def _run_for(gateway: Process, load: list[Load], seconds: float) -> int:
    with Connection(gateway.url) as connection:
        return _run(connection, load, Until(seconds))


def _profile_memory(bench: Bench, case: Case) -> str:
    file = bench.folder / "memory"
    wrapper = processes.python("tests.bench.traced", file)
    with (
        processes.start_gateway(bench.endpoints, bench.folder, wrapper=wrapper) as gateway,
        Connection(gateway.url) as connection,
    ):
        connection.infer(bench.small_case())
        before = gateway.peak_bytes()
        connection.infer(case)
        growth = gateway.peak_bytes() - before
    size = bench.scale.memory_elements * 4
    title = (
        f"one echo of {size // MIB} MiB: VmHWM grew by {growth / MIB:.0f} MiB, {growth / size:.2f} x (tracing included)"
    )
    return f"{title}\n{file.read_text()}"
