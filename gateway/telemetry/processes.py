"""Memory, processor time and descriptors of the gateway's processes, as the kernel counts them.

The metrics have the names and meanings that every exporter gives them, but stand for all processes together. They come
from `/proc`; on a system without it there are none. Not here: what the gateway counts itself (`metrics`).
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from gateway.telemetry.reading import STARTED_S

PROC = Path("/proc")

# Fields of /proc/PID/stat after the name, which may hold spaces and brackets (man 5 proc_pid_stat).
_TIMES = slice(11, 15)  # user and system, of the process and of its children that have ended
_RSS = 21


class Usage(NamedTuple):
    """The kernel's figures of one process, in the order of `usage_of_all`."""

    cpu_s: float
    """The processor time of the process and of its children that have ended; this sum never decreases."""
    resident_bytes: int
    open_fds: int
    max_fds: float

    @classmethod
    def of(cls, pid: int) -> "Usage | None":
        """The usage of the process *pid*; None if it has ended, or if there is no `/proc`."""
        folder = PROC / str(pid)
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            limits = (folder / "limits").read_text()
            return cls(
                sum(map(int, fields[_TIMES])) / os.sysconf("SC_CLK_TCK"),
                int(fields[_RSS]) * os.sysconf("SC_PAGE_SIZE"),
                # in Linux 6.2 and later the folder's size is the number; to list 4,000 descriptors takes 15 ms
                os.stat(folder / "fd").st_size or len(os.listdir(folder / "fd")),
                float(limits.partition("Max open files")[2].split()[0].replace("unlimited", "inf")),
            )
        except (OSError, IndexError):  # of a process that is ending, files are empty
            return None


def usage_of_all(workers: Iterable[int]) -> dict[str, float]:
    """The metrics of this process and of its *workers*, by name; without workers this process serves clients itself.

    Memory that processes share counts for each of them. The supervisor's descriptors are counted, but not its limit: it
    needs few, and with its limit in the sum the workers could run out below 70 %.
    """
    own = Usage.of(os.getpid())
    if own is None:
        return {}
    serving = [usage for pid in workers if (usage := Usage.of(pid)) is not None]
    everyone = [own, *serving]
    return {
        "process_cpu_seconds": sum(each.cpu_s for each in everyone),
        "process_resident_memory_bytes": sum(each.resident_bytes for each in everyone),
        "process_open_fds": sum(each.open_fds for each in everyone),
        "process_max_fds": sum(each.max_fds for each in serving or [own]),
        "process_start_time_seconds": STARTED_S,
    }
