"""E16: beams of 1 to 5 by the clock (Chheda 2025, section 6.3, table 3), with word and character errors.

A beam of 1 is greedy decoding. Times are of whole sounds, as published: the encoder, once for all beams, and the
decoder without drafts; rounds go through all beams in turn, and the median round counts. They hold for a quiet machine.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.head_runs import HeadRuns, Said
from bench.map_texts import DOMAINS, Findings

from specedge.runtime.bench.plots import Panel

__all__ = ["run"]

SIZES = (1, 2, 3, 4, 5)
COLUMNS = ("times_greedy", "decoder_times_greedy", "wer", "cer", "passes")
HEAD = ["beam", "times greedy", "decoder alone", "WER %", "CER %", "passes"]


def run(runs: HeadRuns, *, folder: Path | None, n_utterances: int, n_rounds: int) -> Findings:
    """Both domains."""
    tables: dict[str, list[list[str]]] = {}
    figures: dict[str, Any] = {}
    series: dict[str, list[tuple[float, float]]] = {}
    for domain in DOMAINS:
        said, source = runs.hear(folder, domain, n_utterances)
        rows = _rows(runs, said, n_rounds)
        figures[domain] = {"source": source, "utterances": len(said), "beams": rows}
        table = [[str(n), *(f"{row[column]:.3g}" for column in COLUMNS)] for n, row in rows.items()]
        tables[f"{domain}, {len(said)} utterances from {source}, {n_rounds} rounds"] = [HEAD, *table]
        series[domain] = [(n, row["times_greedy"]) for n, row in rows.items()]
    panel = Panel(title="Beams", x="beam", y="time, greedy decoding is 1", series=series, level=1.0)
    return Findings(tables=tables, panels=[panel], figures=figures)


def _rows(runs: HeadRuns, said: Sequence[Said], n_rounds: int) -> dict[int, dict[str, float]]:
    taken: dict[int, list[float]] = {n: [] for n in SIZES}
    found = {}
    for _ in range(n_rounds + 1):  # the first is for warming up
        for n in SIZES:
            started = time.perf_counter()
            found[n] = runs.beams(None, said, beam_size=n)
            taken[n].append(time.perf_counter() - started)
    encoder_s = sum(one.encoder_s for one in said)
    decoder_s = {n: statistics.median(times[1:]) for n, times in taken.items()}
    return {
        n: {
            **runs.beam_figures(found[n], said, found[n]),
            "times_greedy": round((encoder_s + decoder_s[n]) / (encoder_s + decoder_s[1]), 3),
            "decoder_times_greedy": round(decoder_s[n] / decoder_s[1], 3),
        }
        for n in SIZES
    }
