"""How many cores this process may use: the meaning of `workers: auto`. Not here: what the workers share."""

import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


def usable_cores(cgroups: Path = CGROUPS, own: Path = Path("/proc/self/cgroup")) -> int:
    """The cores that the scheduler gives this process, and not more than its control groups pay for; at least 1.

    Half a core of a quota is rounded down: a worker that nobody pays for is stopped in the middle of requests.
    """
    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [quota for folder in _own_groups(cgroups, own) if (quota := _quota(folder)) is not None]
    return max(1, int(min([n_cores, *quotas])))


def _own_groups(cgroups: Path, own: Path) -> Iterator[Path]:
    """The control group of this process and all around it, version 2 and then version 1; each may set a quota."""
    try:
        lines = own.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers == "" or "cpu" in controllers.split(","):
            root = cgroups if controllers == "" else cgroups / "cpu"
            group = Path(path.lstrip("/"))
            yield from (root / part for part in (group, *group.parents))


def _quota(folder: Path) -> float | None:
    """The cores that one control group may use; None if it says nothing or does not limit them."""
    try:
        limit, period = (folder / "cpu.max").read_text().split()  # "max 100000" or "150000 100000"
    except (OSError, ValueError):
        try:
            limit, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        except OSError:
            return None
    try:
        cores = int(limit) / int(period)
    except (ValueError, ZeroDivisionError):
        return None
    return cores if cores > 0 else None
