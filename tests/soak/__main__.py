"""The command: start a gateway, let clients and backends loose on it, and look at what is left when they have gone."""

import argparse
import asyncio
import itertools
import os
import re
import sys
import tempfile
import time
from pathlib import Path

import aiohttp

from tests.soak.backend import faulty_backend
from tests.soak.client import SoakClient
from tests.soak.journal import Journal
from tests.system.scripted import total

CLIENTS = 24
"""How many clients there are at a time."""

SETTLE_S = 20.0
"""How long the gateway has to let everything go when the last client has left."""

SPARE_DESCRIPTORS = 8
"""Descriptors that a gateway may have opened for itself since its start."""

_BAD_LOG = re.compile(r"Traceback|Exception|never retrieved|was destroyed|internal error|Unclosed")

CONFIGURATION = """
listen: 127.0.0.1:0
admin: 127.0.0.1:0
workers: {workers}
logging: {{access: none}}
limits: {{request_body: 16MiB, in_flight_bytes: 512MiB}}
backends:
  main:
    endpoints: ['{url}']
    timeouts: {{connect: 2s, first_byte: 3s, idle: 3s, total: 8s}}
"""


def processes_of(pid: int) -> list[int]:
    """The process and its children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(int(child) for child in children)]


def descriptors_of(pid: int) -> int:
    """How many descriptors the process and its children have open."""
    return sum(len(os.listdir(f"/proc/{process}/fd")) for process in processes_of(pid))


async def samples_of(session: aiohttp.ClientSession, admin: str) -> dict[str, float]:
    """The gateway's metrics."""
    async with session.get(f"{admin}/metrics") as response:
        text = await response.text()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[:1] != "#"}


async def let_go(session: aiohttp.ClientSession, admin: str, pid: int, descriptors: int, journal: Journal) -> None:
    """Wait until the gateway holds nothing any more, and say what it still holds after `SETTLE_S`."""
    until_s = time.monotonic() + SETTLE_S
    held: dict[str, float] = {}
    while time.monotonic() < until_s:
        samples = await samples_of(session, admin)
        held = {
            "requests_in_flight": total(samples, "requests_in_flight"),
            "in_flight_bytes": total(samples, "in_flight_bytes"),
            "upstream_connections busy": total(samples, "upstream_connections", state="busy"),
            "descriptors": max(0, descriptors_of(pid) - descriptors - SPARE_DESCRIPTORS),
        }
        if not any(held.values()):
            break
        await asyncio.sleep(0.2)
    for name, value in held.items():
        if value:
            journal.violated("something is still held when all have gone", f"{name}: {value:g}")
    if not any(name.startswith("tensor_gateway_upstream_connections{") for name in samples):
        journal.violated("a metric is missing", "tensor_gateway_upstream_connections")


async def soak(seed: int, seconds: float, workers: int) -> tuple[Journal, str]:
    """Run for *seconds*; what happened, and the gateway's standard error."""
    journal = Journal()
    ids = itertools.count(1)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "stderr")
        async with faulty_backend(journal, f"{seed}-backend") as backend, aiohttp.ClientSession() as session:
            configuration = Path(folder, "gateway.yaml")
            configuration.write_text(CONFIGURATION.format(url=backend.url, workers=workers))
            command = [sys.executable, "-m", "gateway", "serve", "--config", str(configuration)]
            gateway = await started(command, Path(folder))
            try:
                url, admin = await announced(Path(folder), gateway)
                await samples_of(session, admin)
                descriptors = descriptors_of(gateway.pid)
                end_s = time.monotonic() + seconds
                clients = [SoakClient(url, journal, f"{seed}-{number}", ids) for number in range(CLIENTS)]
                await asyncio.gather(*(client.run(lambda: time.monotonic() < end_s) for client in clients))
                journal.close()
                await let_go(session, admin, gateway.pid, descriptors, journal)
            finally:
                if gateway.returncode is None:
                    gateway.terminate()
                code = await gateway.wait()
            if code != 0:
                journal.violated("the gateway did not end well", f"exit code {code}")
        text = log.read_text(errors="replace")
    for line in text.splitlines():
        if _BAD_LOG.search(line):
            journal.violated("an exception stands in the gateway's log", line[:200])
    return journal, text


async def started(command: list[str], folder: Path) -> asyncio.subprocess.Process:
    """The gateway's process, whose output goes to the files `stdout` and `stderr`."""
    with (folder / "stdout").open("wb") as output, (folder / "stderr").open("wb") as errors:
        return await asyncio.create_subprocess_exec(*command, stdout=output, stderr=errors)


async def announced(folder: Path, gateway: asyncio.subprocess.Process) -> tuple[str, str]:
    """The URLs of the two listeners, from what the gateway prints when it is ready."""
    while gateway.returncode is None:
        printed = (folder / "stdout").read_text() + (folder / "stderr").read_text()
        urls = re.findall(r"http://127\.0\.0\.1:\d+(?=\s)", printed)
        if len(urls) >= 2:
            return urls[0], urls[1]
        await asyncio.sleep(0.05)
    raise SystemExit(f"the gateway did not start: {(folder / 'stderr').read_text()}")


def main() -> int:
    """Run and tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--workers", type=int, default=1, help="processes of the gateway")
    options = parser.parse_args()
    journal, log = asyncio.run(soak(options.seed, options.seconds, options.workers))
    print(f"seed {options.seed}: {len(journal.plans)} exchanges, {sum(journal.executed.values())} executed")
    for name, counts in (("backend", journal.faults), ("client", journal.clients), ("reply", journal.replies)):
        print(f"{name}: " + ", ".join(f"{what} {count}" for what, count in sorted(counts.items())))
    if not journal.violations:
        print("no rule was broken")
        return 0
    print("\nbroken: " + "; ".join(f"{rule}: {count}" for rule, count in journal.violations.most_common()))
    for example in journal.examples:
        print(f"- {example}")
    if any("log" in rule for rule in journal.violations):
        print("\nThe gateway's standard error, its end:\n" + log[-6000:])
    return 1


if __name__ == "__main__":
    sys.exit(main())
