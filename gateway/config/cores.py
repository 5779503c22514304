"""How many cores this process may use: the meaning of `workers: auto`. Not here: what the workers share."""

import os
from collections.abc import Iterator
from contextlib import suppress
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
    for names in (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):
        with suppress(OSError, ValueError, ZeroDivisionError):
            limit, period = " ".join((folder / name).read_text() for name in names).split()
            if int(limit) > 0:  # -1 is no limit, and "max" is no number
                return int(limit) / int(period)
    return None
