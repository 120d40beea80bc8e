"""E12: beams with drafts, and beams in which sure heads are believed (Faster Speech-LLaMA, prefix-grouped beam, MWER).

Beams of four. Exact: every kind of heads drafts for each beam, and whatever differs from the beam without drafts is
counted (nothing may). Threshold: the grouped beam, at several thresholds; a call is one group of hypotheses of one
length, which is a pass for each of them here. What fine-tuning did is seen by running this for a bundle with the heads
as they were and for one with the heads of `specedge train heads --mwer`. Nothing is timed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.head_runs import HeadRuns, Said
from bench.map_texts import DOMAINS, Findings

from specedge.runtime.bench.plots import Panel

__all__ = ["run"]

BEAM_SIZE = 4
THRESHOLDS = (0.95, 0.9, 0.8, 0.7, 0.5)
EXACT = ("wer", "passes", "calls_per_word", "different")
BELIEVED = ("wer", "passes", "calls_per_word", "oracle_wer", "believed")


def run(runs: HeadRuns, *, folder: Path | None, n_utterances: int) -> Findings:
    """Both domains, all kinds."""
    tables: dict[str, list[list[str]]] = {}
    figures: dict[str, Any] = {}
    panels = []
    for domain in DOMAINS:
        said, source = runs.hear(folder, domain, n_utterances)
        exact, believed = _exact(runs, said), _believed(runs, said)
        title = f"{domain}, {len(said)} utterances from {source}"
        head = ["exact", "WER %", "passes", "calls per word", "beams that differ"]
        tables[f"{title}: beam of {BEAM_SIZE}"] = _table(head, EXACT, exact)
        head = ["threshold", "WER %", "passes", "calls per word", "WER of the best of the list %", "believed tokens"]
        tables[f"{title}: grouped beam of {BEAM_SIZE}"] = _table(head, BELIEVED, believed)
        figures[domain] = {"source": source, "utterances": len(said), "exact": exact, "believed": believed}
        series = {
            kind: [(tau, believed[f"{kind}, {tau:g}"]["calls_per_word"]) for tau in sorted(THRESHOLDS)]
            for kind in runs.kinds
        }
        panels.append(Panel(title=domain, x="threshold", y="calls per word", series=series))
    return Findings(tables=tables, panels=panels, figures=figures)


def _exact(runs: HeadRuns, said: Sequence[Said]) -> dict[str, dict[str, float]]:
    plain = runs.beams(None, said, beam_size=BEAM_SIZE)
    found = {"no drafts": runs.beam_figures(plain, said, plain)}
    for kind in runs.kinds:
        made = runs.beams(kind, said, beam_size=BEAM_SIZE)
        found[kind] = runs.beam_figures(made, said, plain)
    return found


def _believed(runs: HeadRuns, said: Sequence[Said]) -> dict[str, dict[str, float]]:
    return {
        f"{kind}, {tau:g}": runs.believed(kind, said, beam_size=BEAM_SIZE, tau=tau)
        for kind in runs.kinds
        for tau in THRESHOLDS
    }


def _table(head: list[str], columns: Sequence[str], rows: dict[str, dict[str, float]]) -> list[list[str]]:
    return [head, *([name, *(f"{row[column]:.4g}" for column in columns)] for name, row in rows.items())]
