"""E4: how far from its domain a token map still pays (arXiv 2507.21522, the question of perplexity).

A map of one domain; dev texts of which a share rho is replaced by sentences of the other domain; the perplexity of the
mixture under a trigram model of the map's own text. The crossing point is the perplexity at which a drafter's speed-up
falls through 1. A replay: what a drafter itself takes is not priced, and no model runs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any, TypeVar

from bench.map_texts import DOMAINS, Bench, Findings
from bench.ngram_perplexity import NgramModel
from bench.replay import path_rows, replay

from specedge.maps.build import BuildOptions
from specedge.runtime.bench.plots import Panel
from specedge.runtime.drafters.tokenmap import PAPER, TokenMapOptions

__all__ = ["FLOOR", "crossing", "mix", "run"]

T = TypeVar("T")

SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
FLOOR = 0.95
_SEED = 11
_TICKS = [(float(power), f"{10**power:g}") for power in range(1, 7)]  # the axis is logarithmic
DRAFTERS = {
    "ungated, N=3": (TokenMapOptions(orders=(3,), candidates=1, gated=False), 1),
    "ungated, back-off": (TokenMapOptions(candidates=1, gated=False), 1),
    "paper": (PAPER, 3),
    "gated, one path": (TokenMapOptions(), 1),
    "gated, 3 paths": (TokenMapOptions(), 3),
}


def mix(own: Sequence[T], other: Sequence[T], share: float) -> list[T]:
    """`own` with that share of it replaced, the same ones and more at a larger share."""
    n = min(len(own), len(other))
    places = list(range(n))
    random.Random(_SEED).shuffle(places)
    replaced = set(places[: round(share * n)])
    return [other[i] if i in replaced else own[i] for i in range(n)]


def crossing(points: Sequence[tuple[float, float]]) -> float | None:
    """Where a falling curve of (x, speed-up) goes through 1, linear between points; None when it does not."""
    for (x0, y0), (x1, y1) in zip(points, points[1:], strict=False):
        if y0 >= 1.0 > y1:
            return x0 + (x1 - x0) * (y0 - 1.0) / (y0 - y1)
    return None


def run(bench: Bench) -> Findings:
    """Both directions."""
    tables: dict[str, list[list[str]]] = {}
    figures: dict[str, Any] = {}
    panels = []
    lowest = float("inf")
    for own, other in (DOMAINS, DOMAINS[::-1]):
        train, mine, theirs = bench.train(own), bench.dev(own), bench.dev(other)
        map_ = bench.make_map(f"{own}-transfer", train, BuildOptions(n_orders=5))
        model = NgramModel(train, end=bench.eot, n_ids=bench.eot + 1)
        table = [["rho", "perplexity", *DRAFTERS]]
        series: dict[str, list[tuple[float, float]]] = {name: [] for name in DRAFTERS}
        rows = []
        for share in SHARES:
            texts = mix(mine, theirs, share)
            perplexity = model.perplexity(texts)
            row: dict[str, Any] = {"rho": share, "perplexity": round(perplexity, 2)}
            cells = []
            for name, (options, n_paths) in DRAFTERS.items():
                counts = replay(
                    bench.drafter(map_, options), bench.ended(texts), path_rows(bench.costs), bench.setting(n_paths)
                )
                row[name] = counts.figures()
                series[name].append((math.log10(perplexity), counts.speed_up))
                cells.append(f"{counts.speed_up:.3f} ({counts.tokens_per_pass:.2f}, {counts.acceptance:.2f})")
                if name.startswith("gated"):
                    lowest = min(lowest, counts.speed_up)
            rows.append(row)
            table.append([f"{share:g}", f"{perplexity:.1f}", *cells])
        places = {name: crossing(points) for name, points in series.items()}
        crossings = {name: None if at is None else round(10**at, 1) for name, at in places.items()}
        table.append(["", "crosses 1 at", *("never" if at is None else f"{at:.1f}" for at in crossings.values())])
        tables[f"map of {own}, mixed with {other}"] = table
        figures[own] = {"rows": rows, "crossings": crossings}
        panels.append(
            Panel(title=f"map of {own}", x="perplexity", y="speed-up", series=series, level=1.0, ticks=_TICKS)
        )
    figures["lowest_gated"] = round(lowest, 4)
    figures["floor_met"] = lowest >= FLOOR
    return Findings(tables=tables, panels=panels, figures=figures)
