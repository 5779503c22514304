"""Memory, processor time and descriptors of the gateway's processes, as the kernel counts them.

The metrics have the names and meanings that every exporter gives them, but stand for all processes together. They come
from `/proc`; on a system without it there are none. Not here: what the gateway counts itself (`metrics`).
"""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec
from prometheus_client import Metric
from prometheus_client.registry import Collector

from gateway.telemetry.exposition import metrics_of
from gateway.telemetry.reading import STARTED_S
from gateway.telemetry.sums import Family

PROC = Path("/proc")

_CPU = Family("process_cpu_seconds", "Processor time, user and system, of all processes")
_GAUGES = (
    Family("process_resident_memory_bytes", "Resident memory of all processes"),
    Family("process_start_time_seconds", "When the first process started"),
    Family("process_open_fds", "File descriptors that all processes have open"),
    Family("process_max_fds", "File descriptors that the processes that serve clients may open together"),
)

# Fields of /proc/PID/stat after the name, which may hold spaces and brackets (man 5 proc_pid_stat).
_UTIME, _STIME, _CUTIME, _CSTIME, _RSS = 11, 12, 13, 14, 21


class Usage(msgspec.Struct, frozen=True):
    """The kernel's figures of one process."""

    resident_bytes: int
    cpu_s: float
    """The processor time of the process and of its children that have ended; this sum never decreases."""
    open_fds: int
    max_fds: float

    @classmethod
    def of(cls, pid: int) -> "Usage | None":
        """The usage of the process *pid*; None if it has ended, or if there is no `/proc`."""
        folder = PROC / str(pid)
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            ticks = sum(int(fields[index]) for index in (_UTIME, _STIME, _CUTIME, _CSTIME))
            return cls(
                int(fields[_RSS]) * os.sysconf("SC_PAGE_SIZE"),
                ticks / os.sysconf("SC_CLK_TCK"),
                _open_fds(folder / "fd"),
                _max_fds((folder / "limits").read_text()),
            )
        except (OSError, IndexError, StopIteration):  # of a process that is ending, files are empty
            return None


class ProcessCollector(Collector):
    """Metrics of this process and of its workers."""

    def __init__(self, workers: Callable[[], Iterable[int]] = tuple) -> None:
        """*workers* returns the ids of the processes that serve clients; empty if this process serves them itself."""
        self._workers = workers
        self._cpu_s = 0.0

    def collect(self) -> Iterator[Metric]:
        """The current metrics.

        Memory that processes share counts for each of them. The supervisor's descriptors are counted, but not its
        limit: it needs few, and with its limit in the sum the workers could run out below 70 %.
        """
        own = Usage.of(os.getpid())
        if own is None:
            return
        workers = [reading for pid in self._workers() if (reading := Usage.of(pid)) is not None]
        readings = [own, *workers]
        # the time of a worker that has just ended may be missing; Prometheus takes a lower count for a restart
        self._cpu_s = max(self._cpu_s, sum(reading.cpu_s for reading in readings))
        yield from metrics_of([_CPU], {(_CPU.name,): [self._cpu_s]})
        values = (
            sum(reading.resident_bytes for reading in readings),
            STARTED_S,
            sum(reading.open_fds for reading in readings),
            sum(reading.max_fds for reading in workers or [own]),
        )
        rows = zip(_GAUGES, values, strict=True)
        yield from metrics_of(_GAUGES, {(family.name,): [float(value)] for family, value in rows}, "gauge")


def _open_fds(folder: Path) -> int:
    # in Linux 6.2 and later the folder's size is the number; to list 4,000 descriptors takes 15 ms
    return os.stat(folder).st_size or len(os.listdir(folder))


def _max_fds(limits: str) -> float:
    """The soft limit in the text of `/proc/PID/limits`."""
    line = next(line for line in limits.splitlines() if line.startswith("Max open files"))
    return float(line.split()[3].replace("unlimited", "inf"))
