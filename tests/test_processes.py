"""Metrics of the kernel about all processes of the gateway together."""

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import msgspec
import pytest

from gateway.demo import JsonServer
from gateway.telemetry import metrics as metrics_module
from gateway.telemetry.metrics import Metrics, usage_of, usage_of_all
from gateway.telemetry.reading import Reading
from tests.counted import reading
from tests.system.gateway_process import gateway_process

BUSY = "import sys, time\nwhile time.process_time() < 0.3: pass\nprint('done', flush=True)\nsys.stdin.read()\n"

CONFIGURATION = """
listen: 127.0.0.1:0
admin: 127.0.0.1:0
workers: {workers}
backends: {{a: {{endpoints: ["{url}"]}}}}
"""


@contextmanager
def busy_child() -> Iterator[subprocess.Popen[str]]:
    """A process that has used 0.3 s of a processor, and waits to be ended."""
    with subprocess.Popen(
        [sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "done\n"
        yield child
        child.kill()


def test_one_process_is_as_the_kernel_and_the_clock_say() -> None:
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(10)]
    measured = usage_of_all([])
    times = os.times()
    assert measured["process_cpu_seconds"] == pytest.approx(sum(times[:4]), abs=1)
    assert measured["process_max_fds"] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    n_open = len(os.listdir("/proc/self/fd")) - 1  # the listing's own
    assert measured["process_open_fds"] == pytest.approx(n_open, abs=1)
    for file in files:
        os.close(file)
    assert usage_of_all([])["process_open_fds"] == measured["process_open_fds"] - len(files)
    assert measured["process_resident_memory_bytes"] > 10 * 1024**2
    assert measured["process_resident_memory_bytes"] <= 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert 0 < time.time() - measured["process_start_time_seconds"] < 24 * 3600


def test_processor_time_of_a_worker_counts_while_it_runs_and_after_its_death() -> None:
    readings: list[Reading] = []
    metrics = Metrics()

    def cpu_s() -> float:
        (line,) = (
            line for line in "".join(metrics.exposition(readings)).splitlines() if line.startswith("process_cpu_")
        )
        return float(line.split()[1])

    before = cpu_s()
    with busy_child() as child:
        readings.append(msgspec.structs.replace(reading([]), pid=child.pid))
        running = cpu_s()
        assert running >= before + 0.25  # the kernel counts in hundredths
    assert cpu_s() >= running


def test_descriptors_of_all_processes_count_but_only_the_limits_of_those_that_serve() -> None:
    own_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    with busy_child() as child:
        resource.prlimit(child.pid, resource.RLIMIT_NOFILE, (100, own_limit))
        measured = usage_of_all([child.pid])
        alone = usage_of_all([])
    assert measured["process_max_fds"] == 100
    assert measured["process_open_fds"] >= alone["process_open_fds"] + 3
    assert measured["process_resident_memory_bytes"] > alone["process_resident_memory_bytes"]
    assert measured["process_start_time_seconds"] == alone["process_start_time_seconds"]


def test_a_process_without_a_limit_has_an_infinite_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_module, "PROC", tmp_path)
    (tmp_path / "7/fd").mkdir(parents=True)
    (tmp_path / "7/stat").write_text(f"7 (a name) {' '.join('1' * 30)}")
    (tmp_path / "7/limits").write_text("Limit  Soft  Hard  Units\nMax open files  unlimited  unlimited  files\n")
    assert usage_of(7)["process_max_fds"] == float("inf")


def test_where_the_kernel_does_not_tell_how_many_descriptors_there_are_they_are_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(10)]
    with monkeypatch.context() as patched:
        patched.setattr("gateway.telemetry.metrics.os.stat", lambda path: os.stat_result([0] * 10))
        listed = usage_of_all([])["process_open_fds"]
    assert listed == pytest.approx(len(os.listdir("/proc/self/fd")), abs=2)
    for file in files:
        os.close(file)


def test_a_process_that_has_ended_is_left_out() -> None:
    with busy_child() as child:
        pass
    assert usage_of(child.pid) == {}
    assert usage_of_all([child.pid])["process_max_fds"] > 0


def test_without_proc_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_module, "PROC", tmp_path)
    assert usage_of_all([]) == {}


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_a_scrape_has_them_for_all_processes(workers: int, server: JsonServer, tmp_path: Path) -> None:
    text = CONFIGURATION.format(workers=workers, url=server.url)
    async with gateway_process(text, tmp_path / "gateway.yaml") as gateway, aiohttp.ClientSession() as session:
        samples = await gateway.samples(session)
        pids = gateway.pids()
        assert len(pids) == (1 if workers == 1 else 3)
        assert samples["process_resident_memory_bytes"] == pytest.approx(gateway.resident_bytes(), rel=0.2)
        assert samples["process_open_fds"] == pytest.approx(gateway.descriptors(), abs=10)
        limit = int(Path(f"/proc/{pids[-1]}/limits").read_text().partition("Max open files")[2].split()[0])
        assert samples["process_max_fds"] == workers * limit
        assert 0 < samples["process_cpu_seconds_total"] <= cpu_seconds(pids)
        assert samples["tensor_gateway_workers_replaced_total"] == 0
        if workers > 1:
            os.kill(pids[-1], signal.SIGKILL)
            await gateway.saw("it is replaced")
            after = await gateway.samples(session)
            assert after["tensor_gateway_workers_replaced_total"] == 1
            assert after["process_cpu_seconds_total"] >= samples["process_cpu_seconds_total"]


def cpu_seconds(pids: Iterable[int]) -> float:
    """Of *pids*, by now, and of their children that have ended."""
    return sum(usage_of(pid).get("process_cpu_seconds", 0) for pid in pids)
