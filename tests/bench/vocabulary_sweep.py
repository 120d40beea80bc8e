"""E6: a draft of another vocabulary: tokens that both have, the paper's runs of tokens, whole words (arXiv 2507.02659).

The same utterances twice in a row with one drafter, four tokens a draft, so that caches can be seen to fill; for words,
budgets from 64 KB on. It does not time anything.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.draft_runs import DraftRuns, figures
from bench.map_texts import DOMAINS, Findings
from bench.rounds import BenchError

from specedge.maps.word_cache import WordCache
from specedge.runtime.bench.plots import Panel
from specedge.runtime.drafters.draft.drafter import DraftModelDrafter
from specedge.runtime.papers.across_words import AcrossWords

__all__ = ["run"]

BUDGETS_KB = (64, 256, 1024, 4096)
BLOCK = 10


def run(runs: DraftRuns, *, folder: Path | None, n_utterances: int) -> Findings:
    """Both domains. Raises BenchError for a draft of the target's vocabulary."""
    tables: dict[str, list[list[str]]] = {}
    found: dict[str, Any] = {}
    rises: dict[str, list[tuple[float, float]]] = {}
    by_bytes: dict[str, list[tuple[float, float]]] = {}
    for domain in DOMAINS:
        heard, source = runs.hear(folder, domain, n_utterances)
        table = [["way", "speed-up", "tokens per pass", "acceptance", "hit rate", "KB used"]]
        rows = {}
        settings = [("direct", 4096), ("tokens", 4096), *(("words", budget) for budget in BUDGETS_KB)]
        for mode, budget in settings:
            name = mode if budget == BUDGETS_KB[-1] else f"{mode}, {budget} KB"
            drafter, across = _drafter(runs, mode, budget)
            hits: list[tuple[int, int]] = []
            cache = across.cache

            def after(i: int, counted: Any, cache: WordCache = cache, hits: list[tuple[int, int]] = hits) -> None:
                hits.append((cache.n_hits, cache.n_hits + cache.n_misses))

            row = figures(runs, runs.run(drafter, [*heard, *heard], after))
            asked = cache.n_hits + cache.n_misses
            row |= {"hit_rate": round(cache.n_hits / asked, 4) if asked else 0.0, "cache_bytes": cache.size_bytes}
            drafter.close()
            rows[name] = row
            cells = [f"{row[key]:.3f}" for key in ("speed_up", "tokens_per_pass", "acceptance", "hit_rate")]
            table.append([name, *cells, f"{row['cache_bytes'] / 1024:.0f}"])
            if mode == "words":
                by_bytes.setdefault(domain, []).append((budget, row["hit_rate"]))
            if mode == "words" and budget == BUDGETS_KB[-1]:
                rises[domain] = [
                    (i + 1, (hits[i][0] - before[0]) / max(hits[i][1] - before[1], 1))
                    for i in range(BLOCK - 1, len(hits), BLOCK)
                    for before in [hits[i - BLOCK] if i >= BLOCK else (0, 0)]
                ]
        tables[f"{domain}, {len(heard)} utterances from {source}, twice"] = table
        found[domain] = {"source": source, "utterances": len(heard), "rows": rows}
    panels = [
        Panel(title="Words known", x="utterances", y="hit rate", series=rises),
        Panel(title="Words known", x="KB", y="hit rate", series=by_bytes),
    ]
    return Findings(tables=tables, panels=panels, figures=found)


def _drafter(runs: DraftRuns, mode: str, budget_kb: int) -> tuple[DraftModelDrafter, AcrossWords]:
    """A drafter with a cache of its own."""
    made = AcrossWords(runs.draft.tokenizer, runs.bench.bundle.tokenizer, mode=mode, cache=WordCache(budget_kb << 10))
    drafter = runs.drafter(translation=mode, lookahead="4")
    if not isinstance(drafter.translation, AcrossWords):
        raise BenchError("e6 needs a draft of another vocabulary, such as demo-draft-en")
    drafter.translation = made
    return drafter, made
