"""How many cores this process may use: the meaning of `workers: auto`. Not here: what the workers share."""

import os
from contextlib import suppress
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


def usable_cores(cgroups: Path = CGROUPS, own: Path = Path("/proc/self/cgroup")) -> int:
    """The cores that the scheduler gives this process, and not more than its control groups pay for; at least 1.

    Half a core of a quota is rounded down: a worker that nobody pays for is stopped in the middle of requests. Control
    groups are those of version 2; each around the process's own may set a quota, or say nothing, or `max`.
    """
    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, UnicodeDecodeError):
        group = Path(own.read_text().partition("0::/")[2].partition("\n")[0])
        for folder in (group, *group.parents):
            with suppress(OSError, ValueError, ZeroDivisionError):
                quota, period = (cgroups / folder / "cpu.max").read_text().split()
                n_cores = min(n_cores, int(quota) // int(period))
    return max(1, n_cores)
