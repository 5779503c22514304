"""Charts as SVG, written by hand: lines over two logarithmic axes, and groups of bars. No files are touched here.

A chart has its own background and colours for light and for dark screens. Lines differ in dashes and bars in their
order as well as in colour, and each line has its name at its end.
"""

import math
from collections.abc import Callable, Iterator
from html import escape

WIDTH = 900
LINE_HEIGHT = 520
LEFT, RIGHT, TOP, BOTTOM = 90, 190, 60, 60
"""Margins of a chart of lines: axes' labels, names at the ends of lines, title."""

BARS_LEFT, BARS_RIGHT, BARS_TOP, BARS_BOTTOM = 310, 70, 90, 56
BAR, GROUP_GAP = 13, 14
"""Height of a bar, and space between groups."""

NAME_GAP = 18
"""The least distance of two names at the ends of lines."""

DASHES = ("", "8 4", "2 3", "10 3 2 3")

LIGHT = {"text": "#1f2328", "muted": "#59636e", "background": "#ffffff", "grid": "#d8dee4"}
DARK = {"text": "#e6edf3", "muted": "#9198a1", "background": "#0d1117", "grid": "#2b3138"}
LIGHT_COLORS = ("#0969da", "#bc4c00", "#1a7f37", "#8250df")
DARK_COLORS = ("#58a6ff", "#ff9b5e", "#56d364", "#c297ff")


def _colors(plain: dict[str, str], colors: tuple[str, ...]) -> str:
    """Rules of colour, without variables, which not every program that draws SVG knows."""
    rules = [f"text {{ fill: {plain['text']} }}", f".background {{ fill: {plain['background']} }}"]
    rules += [f"text.muted {{ fill: {plain['muted']} }}", f".grid {{ stroke: {plain['grid']} }}"]
    rules.append(f".axis {{ stroke: {plain['muted']} }}")
    for number, color in enumerate(colors):
        rules.append(f".line{number} {{ stroke: {color} }} .fill{number}, text.fill{number} {{ fill: {color} }}")
    return "\n".join(rules)


_STYLE = f"""<style>
text {{ font-family: system-ui, sans-serif; font-size: 13px }}
.title {{ font-size: 16px; font-weight: 600 }}
.line {{ fill: none; stroke-width: 2.5 }}
{_colors(LIGHT, LIGHT_COLORS)}
@media (prefers-color-scheme: dark) {{
{_colors(DARK, DARK_COLORS)}
}}
</style>"""

Points = list[tuple[float, float]]


def lines(
    title: str,
    x_label: str,
    y_label: str,
    series: dict[str, Points],
    x_text: Callable[[float], str],
    y_text: Callable[[float], str],
) -> str:
    """Lines by name over logarithmic axes, marked at powers of 4 (x) and of 10 (y). All values are above zero."""
    xs = [x for points in series.values() for x, _ in points]
    ys = [y for points in series.values() for _, y in points]
    x_ticks = _powers(4, min(xs), max(xs))
    y_ticks = _powers(10, min(ys), max(ys))
    place_x = _scale(x_ticks[0], x_ticks[-1], LEFT, WIDTH - RIGHT)
    place_y = _scale(y_ticks[0], y_ticks[-1], LINE_HEIGHT - BOTTOM, TOP)
    parts = [_text(LEFT, 30, title, "title")]
    for tick in y_ticks:
        y = place_y(tick)
        parts.append(_rule(LEFT, y, WIDTH - RIGHT, y, "grid"))
        parts.append(_text(LEFT - 8, y + 4, y_text(tick), "muted", "end"))
    for tick in x_ticks:
        x = place_x(tick)
        parts.append(_rule(x, TOP, x, LINE_HEIGHT - BOTTOM, "grid"))
        parts.append(_text(x, LINE_HEIGHT - BOTTOM + 20, x_text(tick), "muted", "middle"))
    parts.append(_rule(LEFT, LINE_HEIGHT - BOTTOM, WIDTH - RIGHT, LINE_HEIGHT - BOTTOM, "axis"))
    parts.append(_rule(LEFT, TOP, LEFT, LINE_HEIGHT - BOTTOM, "axis"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, LINE_HEIGHT - 14, x_label, "", "middle"))
    middle = (TOP + LINE_HEIGHT - BOTTOM) / 2
    parts.append(_text(22, middle, y_label, "", "middle", f' transform="rotate(-90 22 {middle:.0f})"'))
    for number, points in enumerate(series.values()):
        path = " ".join(f"{place_x(x):.1f},{place_y(y):.1f}" for x, y in points)
        dashes = f' stroke-dasharray="{DASHES[number]}"' if DASHES[number] else ""
        parts.append(f'<polyline class="line line{number}" points="{path}"{dashes}/>')
        for x, y in points:
            parts.append(f'<circle class="fill{number}" cx="{place_x(x):.1f}" cy="{place_y(y):.1f}" r="3"/>')
    ends = {name: (place_x(points[-1][0]), place_y(points[-1][1])) for name, points in series.items()}
    parts.extend(_names(ends))
    return _document(LINE_HEIGHT, title, parts)


def bars(title: str, x_label: str, groups: list[str], series: dict[str, list[float]]) -> str:
    """Bars by name in groups, one under another; *series* has a value for each group."""
    most = max(value for values in series.values() for value in values) or 1.0
    step = _round_step(most)
    last = math.ceil(most / step) * step
    group_height = len(series) * BAR + GROUP_GAP
    height = BARS_TOP + len(groups) * group_height + BARS_BOTTOM
    width = (WIDTH - BARS_LEFT - BARS_RIGHT) / last
    parts = [_text(20, 30, title, "title")]
    x = 20.0
    for number, name in enumerate(series):
        parts.append(f'<rect class="fill{number}" x="{x:.0f}" y="48" width="12" height="12"/>')
        parts.append(_text(x + 18, 59, name))
        x += 40 + 7 * len(name)
    bottom = BARS_TOP + len(groups) * group_height
    for index in range(round(last / step) + 1):
        tick = BARS_LEFT + index * step * width
        parts.append(_rule(tick, BARS_TOP - 8, tick, bottom, "grid" if index else "axis"))
        parts.append(_text(tick, bottom + 18, f"{index * step:g}", "muted", "middle"))
    parts.append(_text((BARS_LEFT + WIDTH - BARS_RIGHT) / 2, height - 12, x_label, "", "middle"))
    for place, group in enumerate(groups):
        top = BARS_TOP + place * group_height
        parts.append(_text(BARS_LEFT - 10, top + len(series) * BAR / 2 + 4, group, "", "end"))
        for number, values in enumerate(series.values()):
            y = top + number * BAR
            length = max(values[place] * width, 0.5)
            parts.append(
                f'<rect class="fill{number}" x="{BARS_LEFT}" y="{y}" width="{length:.1f}" height="{BAR - 2}"/>'
            )
            parts.append(_text(BARS_LEFT + length + 5, y + BAR - 2.5, f"{values[place]:.0f}", "muted"))
    return _document(height, title, parts)


def _document(height: float, title: str, parts: list[str]) -> str:
    start = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img">'
    background = f'<rect class="background" width="{WIDTH}" height="{height:.0f}"/>'
    return "\n".join([start, f"<title>{escape(title)}</title>", _STYLE, background, *parts, "</svg>"]) + "\n"


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start", extra: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}"{extra}>{escape(text)}</text>'


def _rule(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _names(ends: dict[str, tuple[float, float]]) -> Iterator[str]:
    """Names to the right of the ends of lines, moved down where they would overlap."""
    numbers = {name: number for number, name in enumerate(ends)}
    lowest = -math.inf
    for name, (x, y) in sorted(ends.items(), key=lambda item: item[1][1]):
        y = max(y, lowest + NAME_GAP)  # noqa: PLW2901  the place it gets
        lowest = y
        yield _text(x + 10, y + 4, name, f"name fill{numbers[name]}")


def _powers(base: int, low: float, high: float) -> list[float]:
    """The powers of *base* from the one at or below *low* to the one at or above *high*; at least two."""
    first = math.floor(math.log(low, base) + 1e-9)
    last = max(math.ceil(math.log(high, base) - 1e-9), first + 1)
    return [float(base) ** power for power in range(first, last + 1)]


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """Maps values between *low* and *high* to pixels, by their logarithms."""
    return lambda value: start + (end - start) * math.log(value / low) / math.log(high / low)


def _round_step(most: float) -> float:
    """A round distance of ticks, of which *most* holds four to ten."""
    magnitude = 10 ** math.floor(math.log10(most))
    return next(float(step * magnitude) for step in (0.1, 0.2, 0.5, 1) if most / (step * magnitude) <= 10)
