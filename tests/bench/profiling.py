"""Where the gateway's time and memory go while it does the work of a row.

py-spy looks from outside and disturbs nothing, but sees no C functions; `cProfile` sees them, and makes Python
look slower than it is. Read the shares of the first, and the second for what is inside them.
"""

import functools
import pstats
import shutil
import statistics
import subprocess
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
SAMPLES_PER_S = 500


Load = Callable[[Connection], None]
"""Sends a request or several on a connection."""


@dataclass(frozen=True)
class Profile:
    """What was found: to be read, and as JSON for the plots (empty where the tool gives no steps)."""

    text: str
    report: dict[str, Any]


def profile(bench: Bench, row: str, tool: str | None) -> Profile:
    """Profile the gateway under the load of *row*; *tool* is `py-spy`, `cprofile` or None for the best there is."""
    if row == "5":
        return Profile(_profile_memory(bench, bench.echo_case(bench.scale.memory_elements)), {})
    load = _load_of(bench, row)
    py_spy = _py_spy()
    if tool == "py-spy" and py_spy is None:
        raise RuntimeError("py-spy is not installed: pip install py-spy, or --profiler cprofile")
    if py_spy is not None and tool != "cprofile":
        gateway = bench.logging_gateway if row == "1l" else bench.gateway
        return _profile_from_outside(bench, row, gateway, load, py_spy)
    return Profile(_profile_inside(bench, load), {})


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


def _py_spy() -> str | None:
    return shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")


def _run(connection: Connection, load: list[Load], is_over: "Until") -> int:
    requests = 0
    while not is_over():
        for send in load:
            send(connection)
            requests += 1
    return requests


class Until:
    """Over when a time has passed, or a process has ended."""

    def __init__(self, seconds: float, process: subprocess.Popen[bytes] | None = None) -> None:
        self._deadline = time.monotonic() + seconds
        self._process = process

    def __call__(self) -> bool:
        ended = self._process is not None and self._process.poll() is not None
        return ended or time.monotonic() > self._deadline


def _profile_from_outside(bench: Bench, row: str, gateway: Process, load: list[Load], py_spy: str) -> Profile:
    """Shares by py-spy of the gateway and of P; processor time per request of both, while nobody looks."""
    samples = {process.name: _sample(bench, process, load, py_spy) for process in (gateway, bench.relay)}
    spent_us: dict[str, list[float]] = {process.name: [] for process in (gateway, bench.relay)}
    for _ in range(bench.scale.rounds):
        for process in (gateway, bench.relay):
            with Connection(process.url) as connection:
                before = process.processor_ns()
                requests = _run(connection, load, Until(bench.scale.profile_s / 10))
                spent_us[process.name].append((process.processor_ns() - before) / requests / 1000)
    medians = {name: statistics.median(figures) for name, figures in spent_us.items()}
    counts: dict[str, Counter[str]] = {name: Counter() for name in samples}
    for name, step_of in ((gateway.name, steps.step_of_gateway), (bench.relay.name, steps.step_of_relay)):
        for frames, count in steps.stacks(samples[name]):
            counts[name][step_of(frames)] += count
    report: dict[str, Any] = {
        "row": row,
        "gateway_us": medians[gateway.name],
        "p_us": medians[bench.relay.name],
        "gateway_steps": steps.shares(counts[gateway.name]),
        "p_steps": steps.shares(counts[bench.relay.name]),
    }
    title = f"py-spy; processor time per request: {report['gateway_us']:.0f} us, P {report['p_us']:.0f} us\n"
    lines = ["\nby step                                        gateway         P"]
    for step in steps.STEPS:
        ours, theirs = (report[key][step] * report[us] for key, us in _COLUMNS)
        lines.append(f"  {step:42} {ours:6.0f} us {theirs:6.0f} us")
    return Profile(title + "\n".join(lines) + "\n" + _table_of_samples(samples[gateway.name]), report)


_COLUMNS = (("gateway_steps", "gateway_us"), ("p_steps", "p_us"))


def _sample(bench: Bench, process: Process, load: list[Load], py_spy: str) -> str:
    """Stacks of a process under load, in py-spy's raw format."""
    raw = bench.folder / f"samples-{process.name}"
    seconds = bench.scale.profile_s
    with Connection(process.url) as connection:
        _run(connection, load, Until(1))
        command = [py_spy, "record", "--pid", str(process.pid), "--format", "raw", "--output", str(raw)]
        command += ["--duration", str(round(seconds)), "--rate", str(SAMPLES_PER_S), "--function"]
        recorder = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            _run(connection, load, Until(seconds * 3 + 10, recorder))
        finally:
            recorder.terminate()
            _, complaint = recorder.communicate(timeout=10)
    if not raw.exists():
        raise RuntimeError(f"py-spy failed: {complaint.decode(errors='replace')}")
    return raw.read_text()


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
