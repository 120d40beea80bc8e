"""E9: how many tokens a draft model should draft: fixed K, 0.8/0.3, confidence, the learned head, K* (Chheda 2025).

One utterance after another with one drafter each, so that what learns has time to. It does not time anything.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.draft_runs import DraftRuns, figures
from bench.map_texts import DOMAINS, Findings

from specedge.runtime.bench.plots import Panel

__all__ = ["run"]

LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10)
RULES = ("rule", "confidence", "adaptive", "joint", "cost")


def run(runs: DraftRuns, *, folder: Path | None, n_utterances: int) -> Findings:
    """Both domains."""
    tables: dict[str, list[list[str]]] = {}
    found: dict[str, Any] = {}
    series: dict[str, list[tuple[float, float]]] = {}
    for domain in DOMAINS:
        heard, source = runs.hear(folder, domain, n_utterances)
        rows = {}
        for name in (*map(str, LENGTHS), *RULES):
            drafter = runs.drafter(lookahead=name)
            rows[name] = figures(runs, runs.run(drafter, heard))
            drafter.close()
        table = [["lookahead", "speed-up", "tokens per pass", "acceptance"]]
        table += [
            [name, f"{row['speed_up']:.3f}", f"{row['tokens_per_pass']:.2f}", f"{row['acceptance']:.2f}"]
            for name, row in rows.items()
        ]
        tables[f"{domain}, {len(heard)} utterances from {source}"] = table
        found[domain] = {"source": source, "utterances": len(heard), "rows": rows}
        series[f"{domain}, fixed"] = [(n, rows[str(n)]["speed_up"]) for n in LENGTHS]
        for name in RULES:
            series[f"{domain}, {name}"] = [(n, rows[name]["speed_up"]) for n in (LENGTHS[0], LENGTHS[-1])]
    panel = Panel(title="Tokens drafted", x="K", y="speed-up", series=series, level=1.0)
    return Findings(tables=tables, panels=[panel], figures=found)
