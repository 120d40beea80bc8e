"""E11: heads with rules that are not exact: word errors against calls and time (Faster Speech-LLaMA, table I).

All kinds of heads in the bundle, all heads, a chain: exact acceptance, a draft among the M likeliest, typical
acceptance (0.09, 0.3), and a draft whose head is sure by tau or more. Calls per word are eta (eq. 13). The decoder's
real-time factor is measured, so it is of this machine and whatever else it does; a speed-up is plain decoding's factor
over it, the median of rounds in which all rules take turns.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from bench.head_runs import HeadRuns, Said
from bench.map_texts import DOMAINS, Findings

from specedge.runtime.bench.plots import Panel
from specedge.runtime.decoding.accept import AcceptanceRule, Exact
from specedge.runtime.papers.accept import Threshold, TopM, Typical

__all__ = ["RULES", "run"]

RULES: dict[str, AcceptanceRule] = {
    "exact": Exact(),
    "typical": Typical(),
    **{f"top-{m}": TopM(m=m) for m in (2, 3, 5)},
    **{f"tau {tau:g}": Threshold(tau=tau) for tau in (0.95, 0.9, 0.8, 0.7, 0.6, 0.5)},
}
COLUMNS = ("wer", "calls_per_word", "tokens_per_pass", "decoder_rtf", "speed_up", "different")


def run(runs: HeadRuns, *, folder: Path | None, n_utterances: int, n_rounds: int) -> Findings:
    """Both domains, all kinds, all rules."""
    tables: dict[str, list[list[str]]] = {}
    figures: dict[str, Any] = {}
    panels = []
    for domain in DOMAINS:
        said, source = runs.hear(folder, domain, n_utterances)
        found = _domain(runs, said, n_rounds)
        title = f"{domain}, {len(said)} utterances from {source}"
        head = ["", "WER %", "calls per word", "tokens per pass", "decoder RTF", "speed-up", "texts that differ"]
        tables[title] = [head, *([name, *(f"{row[c]:.4g}" for c in COLUMNS)] for name, row in found.items())]
        figures[domain] = {"source": source, "utterances": len(said), "rows": found}
        panels.append(
            Panel(
                title=domain,
                x="calls per word",
                y="WER %",
                series={kind: sorted(_point(found[f"{kind}, {rule}"]) for rule in RULES) for kind in runs.kinds},
                level=found["plain"]["wer"],
            )
        )
    return Findings(tables=tables, panels=panels, figures=figures)


def _point(row: dict[str, float]) -> tuple[float, float]:
    return row["calls_per_word"], row["wer"]


def _domain(runs: HeadRuns, said: list[Said], n_rounds: int) -> dict[str, dict[str, float]]:
    ways: list[tuple[str, str | None, AcceptanceRule]] = [("plain", None, Exact())]
    ways += [(f"{kind}, {name}", kind, rule) for kind in runs.kinds for name, rule in RULES.items()]
    rounds = []
    for round_ in range(n_rounds):
        turn = round_ % len(ways)
        rounds.append(
            {
                name: runs.run(kind, said, rule, gated=False, n_choices=1)
                for name, kind, rule in ways[turn:] + ways[:turn]
            }
        )
    found = {name: dict(rounds[0][name]) for name, _, _ in ways}
    for name, row in found.items():
        row["decoder_rtf"] = round(statistics.median(one[name]["decoder_rtf"] for one in rounds), 5)
        ratios = [one["plain"]["decoder_rtf"] / one[name]["decoder_rtf"] for one in rounds]
        row["speed_up"] = round(statistics.median(ratios), 4)
    return found
