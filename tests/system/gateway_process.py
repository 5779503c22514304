"""A gateway in a process of its own, as an operator starts it: its URLs, its log with times, its gauges.

Not here: what a test expects of it.
"""

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from tests.system.scripted import total

START_S = 30.0
STOP_S = 40.0
"""The longest grace that a test configures, and some time to exit."""

BAD_LOG = re.compile(r"Traceback|Exception|never retrieved|was destroyed|internal error|Unclosed")
"""What a log must never say."""

_LISTENS = re.compile(r"(?:serves clients|metrics and health) on (https?://127\.0\.0\.1:\d+)")
"""A listener that is announced; a probe's line, which names an endpoint, may come before."""


class GatewayProcess:
    """A running gateway. `gateway_process` makes and ends it."""

    def __init__(self, process: asyncio.subprocess.Process, file: Path) -> None:
        self.url = ""
        self.admin = ""
        self.file = file
        """Its configuration; a reload reads it again."""
        self.lines: list[tuple[float, str]] = []
        """Standard error: when a line came, by the monotonic clock, and its text."""
        self._process = process
        self._came = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    @property
    def pid(self) -> int:
        """The process, which with several workers is their supervisor."""
        return self._process.pid

    @property
    def log(self) -> str:
        """Standard error so far."""
        return "\n".join(text for _, text in self.lines)

    def pids(self) -> list[int]:
        """The process and its workers."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [self.pid, *(int(child) for child in children)]

    def descriptors(self) -> int:
        """How many descriptors it and its workers have open."""
        return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in self.pids())

    def resident_bytes(self) -> int:
        """The resident memory of it and its workers."""
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self.pids())
        return pages * os.sysconf("SC_PAGE_SIZE")

    async def samples(self, session: aiohttp.ClientSession) -> dict[str, float]:
        """Its metrics."""
        async with session.get(f"{self.admin}/metrics") as response:
            text = await response.text()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}

    async def held(self, session: aiohttp.ClientSession) -> dict[str, float]:
        """What requests and clients hold at this moment, from its gauges."""
        samples = await self.samples(session)
        gauges = {
            name: total(samples, name) for name in ("requests_in_flight", "in_flight_bytes", "client_connections")
        }
        return {**gauges, "upstream_connections busy": total(samples, "upstream_connections", state="busy")}

    async def saw(self, pattern: str, *, count: int = 1, after_s: float = 0.0, within_s: float = START_S) -> float:
        """When the line number *count* that matches *pattern* came after *after_s*; waits for it."""
        async with asyncio.timeout(within_s):
            while True:
                times = [at_s for at_s, text in self.lines if at_s >= after_s and re.search(pattern, text)]
                if len(times) >= count:
                    return times[count - 1]
                assert not self._reading.done(), f"the gateway has ended:\n{self.log}"
                self._came.clear()
                await self._came.wait()

    def reload(self, configuration: str) -> None:
        """Replace its file, and have it read again."""
        self.file.write_text(configuration)
        self._process.send_signal(signal.SIGHUP)

    def terminate(self) -> None:
        """Begin to drain."""
        self._process.terminate()

    async def ended(self) -> int:
        """Its exit code, when it has ended."""
        code = await asyncio.wait_for(self._process.wait(), STOP_S)
        await self._reading
        return code

    async def stop(self) -> int:
        """End it as an operator does; its exit code."""
        if self._process.returncode is None:
            self._process.terminate()
        try:
            return await self.ended()
        finally:
            if self._process.returncode is None:
                self._process.kill()
                await self._process.wait()
            await self._reading

    async def announce(self) -> None:
        """Wait until both listeners are announced."""
        try:
            await self.saw(_LISTENS.pattern, count=2)
        except TimeoutError:
            raise AssertionError(f"the gateway did not start:\n{self.log}") from None
        self.url, self.admin = [found[1] for _, text in self.lines if (found := _LISTENS.search(text))][:2]

    async def _read(self) -> None:
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            self.lines.append((time.monotonic(), line.decode(errors="replace").rstrip()))
            self._came.set()
        self._came.set()


@asynccontextmanager
async def gateway_process(configuration: str, file: Path, wrapper: Sequence[str] = ()) -> AsyncIterator[GatewayProcess]:
    """A gateway with *configuration*, which is written to *file*; *wrapper* is put before its command.

    At the end it must exit with 0, and its log must be without exceptions.
    """
    file.write_text(configuration)
    command = [*wrapper, sys.executable, "-m", "gateway", "serve", "--config", str(file), "--no-first-look"]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    gateway = GatewayProcess(process, file)
    try:
        await gateway.announce()
        yield gateway
    finally:
        code = await gateway.stop()
    assert code == 0, f"exit code {code}:\n{gateway.log}"
    assert not BAD_LOG.search(gateway.log), gateway.log
