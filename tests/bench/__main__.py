"""The command `python -m tests.bench`: rows, table, JSON, profile, plots."""

import argparse
import json
import os
import platform
import signal
import statistics
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from tests.bench import plots
from tests.bench.cases import WrongBytesError
from tests.bench.measuring import QUICK, Bench, Result, Scale
from tests.bench.processes import ROOT
from tests.bench.profiling import profile
from tests.bench.rows import ROWS

ROW_S = 1200
"""No row takes longer; one that hangs is given up."""


class RowTimeoutError(Exception):
    """A row took longer than `ROW_S`."""


class Progress:
    """One line on a terminal, nothing elsewhere."""

    def __init__(self, rows: int) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._rows = rows
        self._done = 0
        self._started = time.monotonic()

    def tick(self, what: str) -> None:
        if self._is_terminal:
            bar = "#" * self._done + "." * (self._rows - self._done)
            print(
                f"\r\x1b[K[{bar}] {time.monotonic() - self._started:4.0f} s  {what}",
                end="",
                file=sys.stderr,
                flush=True,
            )

    def row_done(self) -> None:
        self._done += 1

    def clear(self) -> None:
        if self._is_terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; 0, or 1 if a byte was wrong or a row failed."""
    options = _parser().parse_args(arguments)
    if options.plot is not None:
        for file in plots.write(plots.read(options.plot), ROOT):
            print(file.relative_to(ROOT))
        return 0
    if sys.platform != "linux":
        print("tests.bench: it reads /proc and the clocks of other processes, and so needs Linux", file=sys.stderr)
        return 2
    for number in (signal.SIGINT, signal.SIGTERM):  # SIGINT too: shells start background jobs without it
        signal.signal(number, _exit)
    signal.signal(signal.SIGALRM, _give_up)
    scale = QUICK if options.quick else Scale()
    try:
        with ExitStack() as stack:
            if options.profile is not None:
                bench = Bench(scale, stack, lambda what: None)
                found = profile(bench, options.profile, options.profiler)
                print(found.text, end="")
                if options.json is not None:
                    _write(options.json, {"profile": found.report}, quick=options.quick)
                return 0
            progress = Progress(len(options.rows))
            bench = Bench(scale, stack, progress.tick)
            results, failures = _run(bench, options.rows, progress)
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    if options.json is not None:
        _write(options.json, {"results": _rows_of(results), "failures": failures}, quick=options.quick)
    for failure in failures:
        print(f"tests.bench: {failure}", file=sys.stderr)
    return 1 if failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description="What the gateway costs, against a bare relay (P) and a bare conversion (K) in the same run.",
        epilog="rows: "
        + "; ".join(
            f"{row} {(run.__doc__ or '').partition('.')[2].split('.')[0].strip()}" for row, run in ROWS.items()
        ),
    )
    parser.add_argument("--rows", type=_rows, default=list(ROWS), metavar="1,2,...", help="only these rows")
    parser.add_argument(
        "--quick", action="store_true", help="few and small: only that every row runs, every byte right"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to FILE too")
    parser.add_argument(
        "--profile", choices=ROWS, metavar="ROW", help="profile the gateway at the work of a row instead"
    )
    parser.add_argument(
        "--plot",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="measure nothing: make docs/plots and the tables from what --json wrote, profiles from old to new",
    )
    parser.add_argument(
        "--profiler", choices=["sampling", "cprofile"], default="sampling", help="with --profile; default: sampling"
    )
    return parser


def _rows(text: str) -> list[str]:
    rows = text.split(",")
    for row in rows:
        if row not in ROWS:
            raise argparse.ArgumentTypeError(f"no row {row!r}; there are {', '.join(ROWS)}")
    return rows


def _run(bench: Bench, rows: list[str], progress: Progress) -> tuple[list[Result], list[str]]:
    """Measure and print; the results, and what went wrong."""
    results: list[Result] = []
    failures: list[str] = []
    print(_line(("row", "what", "target", "min", "median", "max", "", "medians of what it is made of")))
    for row in rows:
        signal.alarm(ROW_S)
        try:
            for result in ROWS[row](bench):
                results.append(result)
                progress.clear()
                print(_line(_columns(result, quick=bench.scale is QUICK)), flush=True)
        except WrongBytesError as error:
            failures.append(f"row {row}: wrong bytes: {error}")
        except (RowTimeoutError, RuntimeError, OSError) as error:
            failures.append(f"row {row}: {type(error).__name__}: {error}")
        finally:
            signal.alarm(0)
        progress.row_done()
    progress.clear()
    return results, failures


def _columns(result: Result, *, quick: bool) -> tuple[str, ...]:
    sign = ">=" if result.at_least else "<="
    unit = " ms" if result.unit == "ms" else ""
    target = "" if result.target is None else f"{sign} {result.target:g}{unit}"
    target += f" ({result.stretch:g})" if result.stretch is not None else ""
    if not result.samples:
        return (result.row, result.what, target, "-", "-", "-", "", result.missing)
    figures = (min(result.samples), statistics.median(result.samples), max(result.samples))
    mark = "" if quick or result.target is None else "held" if result.is_held else "missed"
    return (result.row, result.what, target, *(f"{figure:.2f}" for figure in figures), mark, result.absolute)


def _line(columns: tuple[str, ...]) -> str:
    row, what, target, low, median, high, mark, absolute = columns
    return f"{row:5} {what:60} {target:15} {low:>7} {median:>7} {high:>7}  {mark:6}  {absolute}".rstrip()


def _rows_of(results: list[Result]) -> list[dict[str, Any]]:
    rows = []
    for result in results:
        rows.append({**asdict(result), "is_held": result.is_held})
        if result.samples:
            rows[-1] |= {
                "min": min(result.samples),
                "median": statistics.median(result.samples),
                "max": max(result.samples),
            }
    return rows


def _write(file: Path, content: dict[str, Any], *, quick: bool) -> None:
    machine = {"processors": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
    file.write_text(json.dumps({"quick": quick, "machine": machine, **content}, indent=2) + "\n")


def _exit(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _give_up(number: int, frame: FrameType | None) -> None:
    raise RowTimeoutError(f"not done after {ROW_S} s")


if __name__ == "__main__":
    sys.exit(main())
