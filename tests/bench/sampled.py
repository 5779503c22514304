"""Runs a module and counts where its processor time goes: `python .../sampled.py FILE MODULE ARGUMENTS...`.

The kernel sends a signal each time the process has used so much processor time, user or system; the stack of the main
thread is counted then. Waiting takes no processor time and so is not seen, however busy the machine is. FILE gets a
line for each stack: frames `function (package/module.py:line)`, outermost first, and how often it was seen. Run by its
path, so that it works for the gateway of another checkout too, which is where the working folder is.
"""

import os
import re
import runpy
import signal
import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

INTERVAL_S = 0.004
"""Of processor time. The kernel's tick is no finer on most machines."""

_FOLDERS = re.compile(r".*/(?:site-packages|python3\.\d+)/")


def _frame_text(code: CodeType) -> str:
    path = _FOLDERS.sub("", code.co_filename.removeprefix(f"{os.getcwd()}/"))
    return f"{code.co_qualname} ({path}:{code.co_firstlineno})"


def _run(file: Path, module: str) -> None:
    counts: Counter[tuple[CodeType, ...]] = Counter()

    def count(number: int, frame: FrameType | None) -> None:
        stack = []
        while frame is not None:
            stack.append(frame.f_code)
            frame = frame.f_back
        counts[tuple(stack)] += 1

    def end(number: int, frame: FrameType | None) -> None:
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)  # unless the module has a handler of its own
    signal.signal(signal.SIGPROF, count)
    signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        lines = (f"{';'.join(map(_frame_text, reversed(stack)))} {seen}\n" for stack, seen in counts.items())
        file.write_text("".join(lines))


if __name__ == "__main__":
    target, name = Path(sys.argv[1]), sys.argv[2]
    sys.argv[1:3] = []
    sys.path[0] = os.getcwd()
    _run(target, name)
