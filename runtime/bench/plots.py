"""A small plot of lines as SVG text: series of points over one axis, ticks, a legend. Standard library alone.

It does not know what the points mean.

A small plot of bars as SVG text: one bar for each name, of one part or several, with a spread where there is one.

Standard library alone. It does not know what the bars mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

__all__ = ["Bars", "COLOURS", "Panel", "bar_svg", "label", "round_ticks", "svg"]

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
        if not x_low <= x <= x_high:
            continue
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


BAR_WIDTH, BAR_LEFT, BAR_RIGHT, BAR_TOP, BAR, GAP, BAR_LEGEND = 640, 120, 64, 34, 18, 10, 17


@dataclass(frozen=True, kw_only=True)
class Bars:
    """One plot. bars: by name the length of each part, laid end to end; spreads: by name from where to where the whole
    bar's length lay; level: a line across all bars, such as 1 for a speed-up."""

    title: str
    x: str
    bars: Mapping[str, Mapping[str, float]]
    spreads: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    level: float | None = None


def bar_svg(plot: Bars) -> str:
    """The plot, with a legend of its parts below if there are several."""
    parts = list(dict.fromkeys(part for bar in plot.bars.values() for part in bar))
    lengths = [sum(bar.values()) for bar in plot.bars.values()]
    ends = [*lengths, *(high for _, high in plot.spreads.values()), plot.level or 0.0]
    ticks = round_ticks(0.0, max(ends, default=1.0) or 1.0)

    def across(value: float) -> float:
        return BAR_LEFT + value / ticks[-1] * (BAR_WIDTH - BAR_LEFT - BAR_RIGHT)

    below = BAR_TOP + len(plot.bars) * (BAR + GAP)
    drawn = [label(BAR_WIDTH / 2, 16, plot.title, anchor="middle", weight="bold")]
    for tick in ticks:
        drawn.append(f'<path d="M{across(tick):.1f} {TOP - 6}V{below}" stroke="#ddd"/>')
        drawn.append(label(across(tick), below + 14, f"{tick:g}", anchor="middle"))
    drawn.append(label(BAR_WIDTH / 2, below + 31, plot.x, anchor="middle"))
    for row, (name, bar) in enumerate(plot.bars.items()):
        y = BAR_TOP + row * (BAR + GAP)
        drawn.append(label(BAR_LEFT - 8, y + 13, name, anchor="end"))
        begin = 0.0
        for part, length in bar.items():
            colour = COLOURS[parts.index(part) % len(COLOURS)]
            width = across(begin + length) - across(begin)
            drawn.append(f'<rect x="{across(begin):.1f}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{colour}"/>')
            begin += length
        last = begin
        if name in plot.spreads:
            low, last = plot.spreads[name]
            line = f"M{across(low):.1f} {y + BAR / 2}H{across(last):.1f}"
            drawn.append(f'<path d="{line}" stroke="#222" stroke-width="1.5"/>')
        drawn.append(label(across(max(begin, last)) + 5, y + 13, f"{begin:.3g}", anchor="start"))
    if plot.level is not None:
        line = f"M{across(plot.level):.1f} {TOP - 6}V{below}"
        drawn.append(f'<path d="{line}" stroke="#444" stroke-dasharray="4 3"/>')
    drawn += _legend(parts, below + 46)
    height = below + 46 + (BAR_LEGEND * len(parts) if len(parts) > 1 else 0)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" '
        'font-size="11">\n<rect width="100%" height="100%" fill="white"/>\n' + "".join(drawn) + "\n</svg>\n"
    )


def _legend(parts: list[str], top: float) -> list[str]:
    if len(parts) < 2:
        return []
    drawn = []
    for i, part in enumerate(parts):
        y, colour = top + BAR_LEGEND * i, COLOURS[i % len(COLOURS)]
        drawn.append(f'<rect x="{LEFT}" y="{y - 7}" width="18" height="9" fill="{colour}"/>')
        drawn.append(label(BAR_LEFT + 24, y + 2, part, anchor="start"))
    return drawn
