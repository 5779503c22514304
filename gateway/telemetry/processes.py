"""Memory, processor time and descriptors of the gateway's processes, as the kernel counts them.

The metrics have the names and meanings that every exporter gives them, but stand for all processes together. They come
from `/proc`; on a system without it there are none. Not here: what the gateway counts itself (`metrics`).
"""

import os
from collections.abc import Iterable
from pathlib import Path

from gateway.telemetry.reading import STARTED_S

PROC = Path("/proc")

# Fields of /proc/PID/stat after the name, which may hold spaces and brackets (man 5 proc_pid_stat).
_TIMES = slice(11, 15)  # user and system, of the process and of its children that have ended
_RSS = 21


def usage_of(pid: int) -> dict[str, float]:
    """The metrics of the process *pid*, by name; empty if it has ended, or if there is no `/proc`.

    The processor time is that of the process and of its children that have ended; so the sum never decreases.
    """
    folder = PROC / str(pid)
    try:
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        limits = (folder / "limits").read_text()
        return {
            "process_cpu_seconds": sum(map(int, fields[_TIMES])) / os.sysconf("SC_CLK_TCK"),
            "process_resident_memory_bytes": int(fields[_RSS]) * os.sysconf("SC_PAGE_SIZE"),
            # in Linux 6.2 and later the folder's size is the number; to list 4,000 descriptors takes 15 ms
            "process_open_fds": os.stat(folder / "fd").st_size or len(os.listdir(folder / "fd")),
            "process_max_fds": float(limits.partition("Max open files")[2].split()[0].replace("unlimited", "inf")),
        }
    except (OSError, IndexError):  # of a process that is ending, files are empty
        return {}


def usage_of_all(workers: Iterable[int]) -> dict[str, float]:
    """The metrics of this process and of its *workers*, by name; without workers this process serves clients itself.

    Memory that processes share counts for each of them. The supervisor's descriptors are counted, but not its limit: it
    needs few, and with its limit in the sum the workers could run out below 70 %.
    """
    own, serving = usage_of(os.getpid()), [usage for pid in workers if (usage := usage_of(pid))]
    if not own:
        return {}
    sums = {name: sum(each[name] for each in (own, *serving)) for name in own}
    sums["process_max_fds"] = sum(each["process_max_fds"] for each in serving or [own])
    return sums | {"process_start_time_seconds": STARTED_S}
