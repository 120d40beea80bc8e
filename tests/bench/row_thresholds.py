"""E2: how long candidates must be before several of them pay, by how a pass verifies them (arXiv 2507.21522, figure 3).

Lmin(C) is the least length at which a pass of C candidates, of which one is right with probability `alpha` a token, is
expected to be worth its price. Three ways to verify: batch rows that share keys and values (the runtime's), one
sequence under a mask without shared beginnings, and a batch that copies keys and values for each row. The last is
priced as the paper's two thresholds imply: 5.5 passes, and 0.23 for each row (algorithms 1.1). Then the threshold
curve: drafts of a replay with candidates held to a least length, at the first and the last of these prices. It times
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.map_texts import DOMAINS, Bench, Findings
from bench.merged_paths import MergedPaths
from bench.replay import Price, copied_rows, path_rows, replay, trie_rows

from specedge.maps.build import BuildOptions
from specedge.runtime.bench.plots import Panel
from specedge.runtime.drafters.tokenmap import PAPER, TokenMapOptions

__all__ = ["COPY_FIXED", "COPY_ROW", "least_length", "run"]

COPY_FIXED, COPY_ROW = 5.5, 0.23
CANDIDATES = (1, 2, 3, 4)
ALPHAS = (1.0, 0.95, 0.9, 0.8)
LENGTHS = (1, 2, 3, 4, 6, 9, 12, 16)
_LONGEST = 64


def least_length(price: Price, n_candidates: int, alpha: float) -> int | None:
    """Lmin: the first length whose expected tokens are worth more than the pass; None when none up to 64 is."""
    expected = 1.0
    for length in range(1, _LONGEST + 1):
        expected += alpha**length
        # A pass of different first ids: nothing is shared.
        paths = [tuple(range(i * _LONGEST, i * _LONGEST + length)) for i in range(n_candidates)]
        if expected > price(1, paths) * (1 + 1e-9):
            return length
    return None


def run(bench: Bench) -> Findings:
    """Thresholds, and the curve on both domains."""
    prices: dict[str, Price] = {
        "shared K/V, batch rows": path_rows(bench.costs),
        "shared K/V, one sequence": trie_rows(bench.costs),
        "copied K/V": copied_rows(bench.costs, COPY_FIXED, COPY_ROW),
    }
    thresholds = {
        name: {str(alpha): [least_length(price, c, alpha) for c in CANDIDATES] for alpha in ALPHAS}
        for name, price in prices.items()
    }
    table = [["verified as", "alpha", *(f"C={c}" for c in CANDIDATES)]]
    for name, by_alpha in thresholds.items():
        for alpha, lengths in by_alpha.items():
            table.append([name, alpha, *("never" if length is None else str(length) for length in lengths)])
    curves = {domain: _curve(bench, domain, prices) for domain in DOMAINS}
    rows = [["domain", "C", "price", *(f">={length}" for length in LENGTHS)]]
    series: dict[str, list[tuple[float, float]]] = {}
    for domain, curve in curves.items():
        for (c, name), values in curve.items():
            rows.append([domain, str(c), name, *(f"{value:.3f}" for value in values)])
            series[f"{domain}, C={c}, {name}"] = list(zip(LENGTHS, values, strict=True))
    panel = Panel(title="Least length of candidates", x="tokens", y="speed-up", series=series, level=1.0)
    figures: dict[str, Any] = {
        "thresholds": thresholds,
        "lengths": LENGTHS,
        "curves": {
            domain: {f"C={c}, {name}": values for (c, name), values in curve.items()}
            for domain, curve in curves.items()
        },
    }
    return Findings(tables={"Lmin(C)": table, "speed-up by least length": rows}, panels=[panel], figures=figures)


def _curve(bench: Bench, domain: str, prices: dict[str, Price]) -> dict[tuple[int, str], list[float]]:
    """Speed-ups at `LENGTHS`: keys of three tokens, candidates below the length merged into their beginning."""
    texts = bench.ended(bench.dev(domain))
    map_ = bench.make_map(f"{domain}-curve", bench.train(domain), BuildOptions(n_orders=3))
    curve: dict[tuple[int, str], list[float]] = {}
    for c in (2, 3):
        options = TokenMapOptions(orders=PAPER.orders, candidates=c, gated=False)

        def speed(length: int, price: Price, c: int = c, options: TokenMapOptions = options) -> float:
            drafter = MergedPaths(bench.drafter(map_, options), "lcp", (length, length))
            return round(replay(drafter, texts, price, bench.setting(c)).speed_up, 4)

        compared: tuple[tuple[str, Callable[[int], float]], ...] = tuple(
            (name, lambda length, price=price: speed(length, price))  # type: ignore[misc]
            for name, price in prices.items()
            if name != "shared K/V, one sequence"
        )
        for name, at in compared:
            curve[c, name] = [at(length) for length in LENGTHS]
    return curve
