"""E1: how long a key should be, how many candidates, and what "merge" should mean (arXiv 2507.21522, N and C sweeps).

A replay of the dev lists with maps of the training lists. "alone" is the paper's drafter: keys of N tokens, whatever
they say; "gated" is ours: back-off from N to 1, and no more than is expected to pay. It does not run a model.
"""

from __future__ import annotations

from typing import Any

from bench.map_texts import DOMAINS, Bench, Findings
from bench.merged_paths import MODES, MergedPaths
from bench.replay import Counts, path_rows, replay, trie_rows

from specedge.maps.build import BuildOptions
from specedge.maps.token_map import TokenMap
from specedge.runtime.bench.plots import Panel
from specedge.runtime.drafters.tokenmap import PAPER, TokenMapOptions

__all__ = ["run"]

ORDERS = (1, 2, 3, 4, 5)
CANDIDATES = (1, 2, 3, 4)
BUILDS = ((3, 1), (3, 2), (4, 1), (4, 2), (5, 1), (5, 2), (5, 3))


def run(bench: Bench) -> Findings:
    """Both sweeps on both domains."""
    tables: dict[str, list[list[str]]] = {}
    figures: dict[str, Any] = {}
    by_n, by_c = dict[str, list[tuple[float, float]]](), dict[str, list[tuple[float, float]]]()
    for domain in DOMAINS:
        train, texts = bench.train(domain), bench.ended(bench.dev(domain))
        map_ = bench.make_map(domain, train, BuildOptions(n_orders=5, n_candidates=4))
        sweep = _Sweep(bench, map_, texts)
        n_rows, c_rows = sweep.by_order(), sweep.by_candidates()
        figures[domain] = {"orders": n_rows, "candidates": c_rows, "builds": _builds(bench, domain, train, texts)}
        tables[f"{domain}: length of the key"] = _table("N", n_rows)
        tables[f"{domain}: candidates, keys of {PAPER.orders[0]}"] = _table("C", c_rows)
        tables[f"{domain}: what the map keeps, gated drafts"] = _table("orders, min count", figures[domain]["builds"])
        for name in ("alone", "gated"):
            by_n[f"{domain}, {name}"] = [(int(n), row[name]["speed_up"]) for n, row in n_rows.items()]
        for name in ("none, batch", "lcp 9/16, batch", "gated"):
            by_c[f"{domain}, {name}"] = [(int(c), row[name]["speed_up"]) for c, row in c_rows.items()]
    panels = [
        Panel(title="Length of the key", x="N", y="speed-up", series=by_n, level=1.0, ticks=_ticks(ORDERS)),
        Panel(title="Candidates", x="C", y="speed-up", series=by_c, level=1.0, ticks=_ticks(CANDIDATES)),
    ]
    return Findings(tables=tables, panels=panels, figures=figures)


class _Sweep:
    """The two sweeps of one domain."""

    def __init__(self, bench: Bench, map_: TokenMap, texts: list[list[int]]) -> None:
        self._bench, self._map, self._texts = bench, map_, texts

    def by_order(self) -> dict[str, dict[str, dict[str, float]]]:
        found = {}
        for n in ORDERS:
            found[str(n)] = {
                "alone": self._gated(TokenMapOptions(orders=(n,), candidates=1, gated=False), 1),
                "back-off": self._gated(TokenMapOptions(orders=_down_from(n), candidates=1, gated=False), 1),
                "gated": self._gated(TokenMapOptions(orders=_down_from(n), candidates=3), 3),
            }
        return found

    def by_candidates(self) -> dict[str, dict[str, dict[str, float]]]:
        found = {}
        for c in CANDIDATES:
            row = {f"{mode} 9/16, batch" if mode != "none" else "none, batch": self._mode(mode, c) for mode in MODES}
            row["none, trie"] = self._mode("none", c, trie=True)
            row["gated"] = self._gated(TokenMapOptions(candidates=c), c)
            found[str(c)] = row
        return found

    def _gated(self, options: TokenMapOptions, n_paths: int) -> dict[str, float]:
        drafter = self._bench.drafter(self._map, options)
        price = path_rows(self._bench.costs)
        return replay(drafter, self._texts, price, self._bench.setting(n_paths)).figures()

    def _mode(self, mode: str, n_candidates: int, *, trie: bool = False) -> dict[str, float]:
        options = TokenMapOptions(orders=PAPER.orders, candidates=n_candidates, gated=False)
        drafter = MergedPaths(self._bench.drafter(self._map, options), mode, PAPER.min_lengths)
        price = (trie_rows if trie else path_rows)(self._bench.costs)
        return replay(drafter, self._texts, price, self._bench.setting(n_candidates)).figures()


def _builds(
    bench: Bench, domain: str, train: list[list[int]], texts: list[list[int]]
) -> dict[str, dict[str, dict[str, float]]]:
    found = {}
    for n_orders, min_count in BUILDS:
        map_ = bench.make_map(
            f"{domain}-{n_orders}-{min_count}", train, BuildOptions(n_orders=n_orders, min_count=min_count)
        )
        counts: dict[str, Counts] = {}
        for n_paths in (1, 3):
            drafter = bench.drafter(map_)
            name = "one path" if n_paths == 1 else f"{n_paths} paths"
            counts[name] = replay(drafter, texts, path_rows(bench.costs), bench.setting(n_paths))
        found[f"{n_orders}, {min_count}"] = {name: count.figures() for name, count in counts.items()}
    return found


def _down_from(n: int) -> tuple[int, ...]:
    return tuple(range(n, 0, -1))


def _ticks(values: tuple[int, ...]) -> list[tuple[float, str]]:
    return [(value, str(value)) for value in values]


def _table(first: str, rows: dict[str, dict[str, dict[str, float]]]) -> list[list[str]]:
    """Speed-up, then tokens per pass and acceptance in brackets."""
    names = list(next(iter(rows.values())))
    table = [[first, *names]]
    for key, row in rows.items():
        cells = [
            f"{row[name]['speed_up']:.3f} ({row[name]['tokens_per_pass']:.2f}, {row[name]['acceptance']:.2f})"
            for name in names
        ]
        table.append([key, *cells])
    return table
