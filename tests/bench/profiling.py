"""Where the gateway's time and memory go while it does the work of a row.

py-spy looks from outside and disturbs nothing, but sees no C functions; `cProfile` sees them, and makes Python
look slower than it is. Read the shares of the first, and the second for what is inside them.
"""

import functools
import pstats
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from io import StringIO
from pathlib import Path

from tests.bench import processes, traffic
from tests.bench.cases import WIRE, Case, strings
from tests.bench.client import Connection
from tests.bench.measuring import MIB, Bench, Life
from tests.bench.processes import Process

TOP = 30
SAMPLES_PER_S = 500


Load = Callable[[Connection], None]
"""Sends a request or several on a connection."""


def profile(bench: Bench, row: str, tool: str | None) -> str:
    """Profile the gateway under the load of *row*; *tool* is `py-spy`, `cprofile` or None for the best there is."""
    if row == "5":
        return _profile_memory(bench, bench.echo_case(bench.scale.memory_elements))
    load = _load_of(bench, row)
    py_spy = _py_spy()
    if tool == "py-spy" and py_spy is None:
        raise RuntimeError("py-spy is not installed: pip install py-spy, or --profiler cprofile")
    if py_spy is not None and tool != "cprofile":
        return _profile_from_outside(bench, load, py_spy)
    return _profile_inside(bench, load)


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


def _profile_from_outside(bench: Bench, load: list[Load], py_spy: str) -> str:
    raw = bench.folder / "samples"
    seconds = bench.scale.profile_s
    with Connection(bench.gateway.url) as connection:
        _run(connection, load, Until(1))
        command = [py_spy, "record", "--pid", str(bench.gateway.pid), "--format", "raw", "--output", str(raw)]
        command += ["--duration", str(round(seconds)), "--rate", str(SAMPLES_PER_S), "--function"]
        recorder = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            before = bench.gateway.processor_ns()
            requests = _run(connection, load, Until(seconds * 3 + 10, recorder))
            spent = bench.gateway.processor_ns() - before
        finally:
            recorder.terminate()
            _, complaint = recorder.communicate(timeout=10)
    if not raw.exists():
        raise RuntimeError(f"py-spy failed: {complaint.decode(errors='replace')}")
    title = f"py-spy, {requests} requests, {spent / requests / 1000:.0f} us of processor time each\n"
    return title + _table_of_samples(raw.read_text())


def _table_of_samples(text: str) -> str:
    """Shares in collapsed stacks of the event loop's thread, but its `select`: that and other threads only wait."""
    rooms: Counter[str] = Counter()
    own: Counter[str] = Counter()
    whole: Counter[str] = Counter()
    innermost: Counter[str] = Counter()
    for line in text.splitlines():
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        in_loop = any(frame.startswith("BaseEventLoop._run_once ") for frame in frames)
        if not in_loop or frames[-1].startswith("EpollSelector.select "):
            continue
        own[frames[-1]] += int(count)
        rooms[_room(frames[-1])] += int(count)
        whole.update(dict.fromkeys(frames, int(count)))
        mine = [frame for frame in frames if "gateway/" in frame and "__main__" not in frame]
        innermost[mine[-1] if mine[-1:] and "cli.py" not in mine[-1] else "(nobody: server, client, loop)"] += int(
            count
        )
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
