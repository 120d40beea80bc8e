"""The curve of a training: a row of a CSV file for each judgement, and a plot of them beside it."""

from __future__ import annotations

import math
from pathlib import Path

from specedge.files import write_atomic
from specedge.runtime.bench.plots import Panel, Point, svg

__all__ = ["EVERY_S", "Curve"]

EVERY_S = 8.0  # between two progress lines in a log

_COLUMNS = ("step", "loss", "held_out_loss", "best_held_out_loss")


class Curve:
    """The losses of a training in `path`, a .csv file, drawn in the .svg file beside it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.plot = path.with_suffix(".svg")

    def clear(self) -> None:
        """Begin anew. Raises OSError."""
        self.path.unlink(missing_ok=True)
        self.plot.unlink(missing_ok=True)

    def add(self, step: int, loss: float, held_out: float, best: float) -> None:
        """Write a row down, and draw all of them. loss: mean since the row before. Raises OSError."""
        with open(self.path, "a", encoding="utf-8") as file:
            if not file.tell():
                file.write(",".join(_COLUMNS) + "\n")
            file.write(f"{step},{loss:.6g},{held_out:.6g},{best:.6g}\n")
        write_atomic(self.plot, self._drawn())

    def _drawn(self) -> str:
        rows = [row for line in self.path.read_text(encoding="utf-8").splitlines() if (row := _numbers(line))]
        trained: list[Point] = [(row[0], row[1]) for row in rows]
        held: list[Point] = [(row[0], row[2]) for row in rows]
        best = rows[-1][3] if rows else None
        steps = [f"of step {step:g}" for step, loss in held if loss == best]
        series = {
            "on what it is trained on, mean since the point before": trained,
            f"on held-out windows; the weights {(steps or ['that it began with'])[0]} are kept": held,
        }
        return svg([Panel(title=f"{self.path.stem}: loss by step", x="step", y="loss", series=series, level=best)])


def _numbers(line: str) -> list[float]:
    """The cells of a row; none for the header, and for a line that was cut off."""
    try:
        cells = [float(cell) for cell in line.split(",")]
    except ValueError:
        return []
    return cells if len(cells) == len(_COLUMNS) and all(map(math.isfinite, cells)) else []
