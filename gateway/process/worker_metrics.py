"""The files in which workers count: added up for a scrape, and those of workers that have ended kept as one.

All work on them is done in threads, because it takes 20 ms and more, and probes of the supervisor wait meanwhile. Not
here: what is counted (`telemetry.metrics`), and who starts and ends workers (`supervisor`).
"""

import asyncio
import logging
import struct
from pathlib import Path
from threading import Lock

from prometheus_client import Metric
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector

_ENDED = "ended"
"""Stands in the name of a file where others have the id of their worker."""

log = logging.getLogger("gateway")


class WorkerMetrics:
    """The metrics of all workers that there are and were."""

    def __init__(self, folder: Path) -> None:
        """*folder* holds the files of the workers, and no others."""
        self.folder = folder
        self._lock = Lock()
        """Held while files are read or removed: what a worker has counted is never missing, and never twice there."""

    async def collect(self) -> list[Metric]:
        """The sums of now."""
        return await asyncio.to_thread(self._collect)

    async def end(self, pid: int) -> None:
        """The worker *pid* is dead: what it has counted stays, in a file for all of them; what it had open goes.

        Without this each death would cost a megabyte, and every scrape another 5 ms.
        """
        await asyncio.to_thread(self._end, pid)

    def _collect(self) -> list[Metric]:
        with self._lock:
            return list(MultiProcessCollector(None, path=str(self.folder)).collect())  # type: ignore[no-untyped-call]

    def _end(self, pid: int) -> None:
        with self._lock:
            for file in list(self.folder.glob(f"*_{pid}.db")):
                kind = file.name.partition("_")[0]
                if kind != "gauge" and file.stat().st_size:  # empty: it died while it made the file
                    try:
                        _add(file, self.folder / f"{kind}_{_ENDED}.db")
                    except (OSError, RuntimeError, struct.error) as error:
                        log.error("what worker %d has counted is lost: %s", pid, error)
                file.unlink(missing_ok=True)


def _add(file: Path, ended: Path) -> None:
    """Add the values in *file* to those in *ended*. Raises `OSError`, and others for a file that is damaged."""
    values = list(MmapedDict.read_all_values_from_file(str(file)))  # type: ignore[no-untyped-call]
    if not ended.exists():
        file.rename(ended)  # which takes no space, and there may be none
        return
    sums = MmapedDict(str(ended))  # type: ignore[no-untyped-call]
    try:
        for key, value, timestamp, _ in values:
            sums.write_value(key, sums.read_value(key)[0] + value, timestamp)  # type: ignore[no-untyped-call]
    finally:
        sums.close()  # type: ignore[no-untyped-call]
