"""Runs a module and writes down which lines held the memory when it held the most.

`python -m tests.bench.traced FILE MODULE ARGUMENTS...`; what numpy allocates is seen too, what native parsers
allocate is not.
"""

import runpy
import sys
import threading
import tracemalloc
from pathlib import Path

INTERVAL_S = 0.02
LINES = 12
MIB = 1024 * 1024


class PeakWatch(threading.Thread):
    """Takes a snapshot whenever noticeably more is held than at the last."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.snapshot = tracemalloc.take_snapshot()
        self.held_bytes = 0
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(INTERVAL_S):
            held, _ = tracemalloc.get_traced_memory()
            if held > self.held_bytes * 1.02 + 4 * MIB:
                self.snapshot, self.held_bytes = tracemalloc.take_snapshot(), held

    def report(self) -> str:
        lines = [f"{self.held_bytes / MIB:.0f} MiB were held, {tracemalloc.get_traced_memory()[1] / MIB:.0f} at most"]
        for entry in self.snapshot.statistics("lineno")[:LINES]:
            frame = entry.traceback[0]
            lines.append(f"{entry.size / MIB:9.1f} MiB in {entry.count:5} blocks  {frame.filename}:{frame.lineno}")
        return "\n".join(lines) + "\n"


def _run(file: Path, module: str) -> None:
    tracemalloc.start()
    watch = PeakWatch()
    watch.start()
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        watch.ended.set()
        watch.join()
        file.write_text(watch.report())


if __name__ == "__main__":
    target, name = Path(sys.argv[1]), sys.argv[2]
    sys.argv[1:3] = []
    _run(target, name)
