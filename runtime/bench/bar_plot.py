"""A small plot of bars as SVG text: one bar for each name, of one part or several, with a spread where there is one.

Standard library alone. It does not know what the bars mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from specedge.runtime.bench.line_plot import COLOURS, label, round_ticks

__all__ = ["Bars", "bar_svg"]

WIDTH, LEFT, RIGHT, TOP, BAR, GAP, LEGEND = 640, 120, 64, 34, 18, 10, 17


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
        return LEFT + value / ticks[-1] * (WIDTH - LEFT - RIGHT)

    below = TOP + len(plot.bars) * (BAR + GAP)
    drawn = [label(WIDTH / 2, 16, plot.title, anchor="middle", weight="bold")]
    for tick in ticks:
        drawn.append(f'<path d="M{across(tick):.1f} {TOP - 6}V{below}" stroke="#ddd"/>')
        drawn.append(label(across(tick), below + 14, f"{tick:g}", anchor="middle"))
    drawn.append(label(WIDTH / 2, below + 31, plot.x, anchor="middle"))
    for row, (name, bar) in enumerate(plot.bars.items()):
        y = TOP + row * (BAR + GAP)
        drawn.append(label(LEFT - 8, y + 13, name, anchor="end"))
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
    height = below + 46 + (LEGEND * len(parts) if len(parts) > 1 else 0)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" '
        'font-size="11">\n<rect width="100%" height="100%" fill="white"/>\n' + "".join(drawn) + "\n</svg>\n"
    )


def _legend(parts: list[str], top: float) -> list[str]:
    if len(parts) < 2:
        return []
    drawn = []
    for i, part in enumerate(parts):
        y, colour = top + LEGEND * i, COLOURS[i % len(COLOURS)]
        drawn.append(f'<rect x="{LEFT}" y="{y - 7}" width="18" height="9" fill="{colour}"/>')
        drawn.append(label(LEFT + 24, y + 2, part, anchor="start"))
    return drawn
