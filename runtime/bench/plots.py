"""A small plot of lines as SVG text: series of points over one axis, ticks, a legend. Standard library alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

Point = tuple[float, float]
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, LEGEND = 420, 250, 52, 12, 30, 17


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One plot. `level`: a horizontal line, such as 1 for a speed-up; `ticks`: named places on the x axis."""

    title: str
    x: str
    y: str
    series: Mapping[str, Sequence[Point]]
    level: float | None = None
    ticks: Sequence[tuple[float, str]] = field(default=())


def svg(panels: Sequence[Panel]) -> str:
    """The panels beside one another, their legends below them."""
    most = max(len(panel.series) for panel in panels)
    height = TOP + HEIGHT + 44 + LEGEND * most + 6
    drawn = "\n".join(f'<g transform="translate({i * WIDTH},0)">{_panel(p)}</g>' for i, p in enumerate(panels))
    size = f'width="{WIDTH * len(panels)}" height="{height}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{drawn}\n</svg>\n'
    )


def _panel(panel: Panel) -> str:
    points = [point for series in panel.series.values() for point in series]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    if panel.level is not None:
        ys.append(panel.level)
    y_ticks = round_ticks(min(ys, default=0.0), max(ys, default=1.0))
    x_low, x_high = min(xs, default=0.0), max(xs, default=1.0)
    x_ticks = list(panel.ticks) or [(x, f"{x:g}") for x in round_ticks(x_low, x_high)]
    y_low, y_high = y_ticks[0], y_ticks[-1]

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_low) / ((x_high - x_low) or 1.0)
        up = (y - y_low) / ((y_high - y_low) or 1.0)
        return LEFT + across * (WIDTH - LEFT - RIGHT), TOP + (1 - up) * HEIGHT

    parts = [label(WIDTH / 2, 16, panel.title, anchor="middle", weight="bold")]
    for y in y_ticks:
        _, at = place(x_low, y)
        parts.append(f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(label(LEFT - 5, at + 4, f"{y:g}", anchor="end"))
    for x, name in x_ticks:
        if x_low <= x <= x_high:
            parts.append(label(place(x, y_low)[0], TOP + HEIGHT + 15, name, anchor="middle"))
    if panel.level is not None:
        at = place(x_low, panel.level)[1]
        parts.append(f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="#444" stroke-dasharray="4 3"/>')
    parts.append(label(WIDTH / 2, TOP + HEIGHT + 32, panel.x, anchor="middle"))
    parts.append(label(6, 16, panel.y, anchor="start"))
    for i, (name, series) in enumerate(panel.series.items()):
        colour = COLOURS[i % len(COLOURS)]
        placed = [place(*point) for point in series]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4" fill="{colour}"/>' for x, y in placed]
        at = TOP + HEIGHT + 44 + LEGEND * i
        parts.append(f'<path d="M{LEFT} {at}h18" stroke="{colour}" stroke-width="3"/>')
        parts.append(label(LEFT + 24, at + 4, name, anchor="start"))
    return "".join(parts)


def label(x: float, y: float, text: str, *, anchor: str, weight: str = "normal") -> str:
    """A text element; anchor: start, middle or end."""
    bold = ' font-weight="bold"' if weight == "bold" else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{bold}>{escape(text)}</text>'


def round_ticks(low: float, high: float) -> list[float]:
    """Round numbers that enclose the range, about five."""
    span = (high - low) or abs(high) or 1.0
    unit = 10.0 ** math.floor(math.log10(span / 4))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= span / 5)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 10) for i in range(first, max(last, first + 1) + 1)]
