"""Plots and tables of `docs/performance.md`, and the README's first figure, made from the benchmark's own JSON.

Nothing is measured here. A table stands in a Markdown file between `<!-- bench: NAME -->` and `<!-- end of NAME -->`,
and is replaced where the JSON has figures for it.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench import svg
from tests.bench.sizes import GATEWAY, JSON, TRANSFORMER, P
from tests.bench.steps import STEPS

BEFORE, AFTER = "before", "now"
KI = 1024
MI = 1024 * 1024

SIZE_ROWS = ("sizes", "trips")


@dataclass(frozen=True)
class Reports:
    """What the files say: rows, and profiles in the order of the files."""

    results: list[dict[str, Any]]
    profiles: list[dict[str, Any]]
    machine: str

    def row(self, name: str) -> list[dict[str, Any]]:
        """The results of a row that have figures."""
        return [result for result in self.results if result["row"] == name and result["points"]]


def read(files: list[Path]) -> Reports:
    """Read the JSON of several runs. Of a row that several files have, the last one counts."""
    by_row: dict[str, list[dict[str, Any]]] = {}
    profiles, machine, is_quick = [], "", False
    for file in files:
        report = json.loads(file.read_text())
        found: dict[str, list[dict[str, Any]]] = {}
        for result in report.get("results", ()):
            found.setdefault(result["row"], []).append(result)
        by_row |= found
        if report.get("profile"):
            profiles.append(report["profile"])
        place = report["machine"]
        machine = f"{place['machine']}, {place['processors']} processors, Python {place['python']}"
        is_quick = is_quick or report["quick"]
    machine += ", some of it by a `--quick` run, which is too short to mean anything" if is_quick else ""
    return Reports([result for results in by_row.values() for result in results], profiles, machine)


def write(reports: Reports, root: Path) -> list[Path]:
    """Write the plots to `docs/plots` below *root*, and the tables into the Markdown; returns what was written."""
    written = []
    folder = root / "docs" / "plots"
    folder.mkdir(exist_ok=True)
    for name, plot in (("steps", _steps_plot), ("sizes", _sizes_plot), ("trips", _trips_plot)):
        if (text := plot(reports)) is not None:
            (folder / f"{name}.svg").write_text(text)
            written.append(folder / f"{name}.svg")
    for file in (root / "docs" / "performance.md", root / "README.md"):
        before = file.read_text()
        after = before
        for name, table in TABLES.items():
            if (text := table(reports)) is not None:
                after = fill(after, name, text)
        if after != before:
            file.write_text(after)
            written.append(file)
    return written


def fill(text: str, name: str, content: str) -> str:
    """*text* with *content* between the marks called *name*; without such marks as it is."""
    start, end = f"<!-- bench: {name} -->", f"<!-- end of {name} -->"
    pattern = re.compile(re.escape(start) + ".*?" + re.escape(end), re.DOTALL)
    return pattern.sub(lambda _: f"{start}\n{content}\n{end}", text)


def _steps_of(reports: Reports) -> dict[str, list[float]] | None:
    """Each step of a small request by party, as a percentage of P's processor time in the same run."""
    if not reports.profiles:
        return None
    columns = {}
    first, last = reports.profiles[0], reports.profiles[-1]
    parties = {BEFORE: first, AFTER: last} if first is not last else {AFTER: last}
    for name, profile in parties.items():
        whole = 100 * profile["gateway_us"] / profile["p_us"]
        columns[name] = [whole * profile["gateway_steps"][step] for step in STEPS]
    columns["P"] = [100 * last["p_steps"][step] for step in STEPS]
    return columns


def _steps_plot(reports: Reports) -> str | None:
    columns = _steps_of(reports)
    if columns is None:
        return None
    wholes = {f"{name}, {sum(values):.0f} in all": values for name, values in columns.items()}
    return svg.bars("Steps of a small request", "processor time, all of P in the same run = 100", list(STEPS), wholes)


def _steps_table(reports: Reports) -> str | None:
    columns = _steps_of(reports)
    if columns is None:
        return None
    lines = [f"| step | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}"]
    for index, step in enumerate(STEPS):
        lines.append(f"| {step} | {' | '.join(f'{values[index]:.0f}' for values in columns.values())} |")
    lines.append(f"| all | {' | '.join(f'{sum(values):.0f}' for values in columns.values())} |")
    return "\n".join(lines)


def _over_sizes(reports: Reports, row: str) -> dict[str, svg.Points]:
    series: dict[str, svg.Points] = {}
    for result in reports.row(row):
        for party, ms in result["points"].items():
            series.setdefault(party, []).append((result["elements"], ms))
    return {party: series[party] for party in (GATEWAY, JSON, TRANSFORMER, P) if party in series}


def _sizes_plot(reports: Reports) -> str | None:
    title = "What the conversion costs"
    return _size_plot(reports, "sizes", title, "processor time of a request")


def _trips_plot(reports: Reports) -> str | None:
    title = "What a client waits for: tritonclient, numpy to numpy, MLServer behind"
    return _size_plot(reports, "trips", title, "time of a request")


def _size_plot(reports: Reports, row: str, title: str, y_label: str) -> str | None:
    series = _over_sizes(reports, row)
    if not series:
        return None
    return svg.lines(title, "elements of an FP32 tensor, both ways", y_label, series, count_text, time_text)


def _size_table(row: str) -> Callable[[Reports], str | None]:
    def table(reports: Reports) -> str | None:
        series = {party: dict(points) for party, points in _over_sizes(reports, row).items()}
        if not series:
            return None
        lines = [f"| elements | {' | '.join(series)} |", f"|---:|{'---:|' * len(series)}"]
        for result in reports.row(row):
            elements = result["elements"]
            times = (time_text(points[elements]) if elements in points else "" for points in series.values())
            lines.append(f"| {count_text(elements)} | {' | '.join(times)} |")
        return "\n".join(lines)

    return table


def _rows_table(reports: Reports) -> str | None:
    lines = ["| row | work | median (min to max) | target | made of |", "|---|---|---:|---:|---|"]
    for result in reports.results:
        if result["row"] in SIZE_ROWS:
            continue
        unit = " ms" if result["unit"] == "ms" else ""
        sign = "at least" if result["at_least"] else "at most"
        if result["samples"]:
            measured = f"{result['median']:.2f}{unit} ({result['min']:.2f} to {result['max']:.2f})"
            target = ""
            if result["target"] is not None:
                target = f"{sign} {result['target']:g}{unit}{'' if result['is_held'] else ', missed'}"
            lines.append(f"| {result['row']} | {result['what']} | {measured} | {target} | {result['absolute']} |")
        else:
            lines.append(f"| {result['row']} | {result['what']} | {result['missing']} | | |")
    return "\n".join(lines) if len(lines) > 2 else None


def _trip_text(reports: Reports) -> str | None:
    """The figure that the README begins its section with."""
    rows = reports.row("9")
    if not rows:
        return None
    straight, gateway = (rows[0]["points"][party] for party in (JSON, GATEWAY))
    return (
        f"An image, FP32 [1, 3, 224, 224], through tritonclient to MLServer and back as a numpy array:\n"
        f"**{straight:.0f} ms** as JSON, **{gateway:.0f} ms** in binary through the gateway, "
        f"**{rows[0]['median']:.1f} times faster**."
    )


def _machine_text(reports: Reports) -> str | None:
    return f"Measured on {reports.machine}." if reports.machine else None


TABLES: dict[str, Callable[[Reports], str | None]] = {
    "machine": _machine_text,
    "trip": _trip_text,
    "rows": _rows_table,
    "steps": _steps_table,
    "sizes": _size_table("sizes"),
    "trips": _size_table("trips"),
}
"""By the name in the marks."""


def count_text(count: float) -> str:
    """A count in Ki and Mi, as tensors have it: 65,536 is 64 Ki."""
    if count >= MI:
        return f"{count / MI:g} Mi"
    return f"{count / KI:g} Ki" if count >= KI else f"{count:g}"


def time_text(ms: float) -> str:
    """Milliseconds with a fitting unit and two or three digits."""
    if ms >= 1000:
        return f"{ms / 1000:.3g} s"
    return f"{ms:.3g} ms" if ms >= 1 else f"{ms * 1000:.3g} us"
