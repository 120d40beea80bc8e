"""E7: a draft that learns, over a stream whose domain changes in the middle (arXiv 2507.02659).

Rank and n-gram weight of what is learned, and the head that predicts acceptance, joint and interleaved. Acceptance is
counted in blocks of utterances along the stream; learning keeps to its share of the windows' time on this machine,
that of their encoder with it, so the number of updates depends on the machine, but for "any time" and the weights of
the n-grams beside its 0.2, which take what they like. Nothing learned is kept.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from bench.draft_runs import DraftRuns, figures
from bench.map_texts import DOMAINS, Findings
from bench.rounds import BenchError

from specedge.runtime.bench.plots import Panel
from specedge.runtime.decoding.decode import Speculation
from specedge.runtime.drafters.draft.drafter import DraftModelDrafter
from specedge.runtime.papers.adapter import AdapterOptions
from specedge.runtime.papers.distill import Course, CourseOptions

__all__ = ["run"]

SETTINGS: dict[str, tuple[str, CourseOptions | None]] = {
    "no learning": ("4", None),
    "learning": ("4", CourseOptions()),
    "any time": ("4", CourseOptions(share=1e6)),
    "r 8": ("4", CourseOptions(adapter=AdapterOptions(rank=8))),
    "r 2": ("4", CourseOptions(adapter=AdapterOptions(rank=2))),
    "n-grams 0": ("4", CourseOptions(share=1e6, adapter=AdapterOptions(ngram_weight=0.0))),
    "n-grams 1": ("4", CourseOptions(share=1e6, adapter=AdapterOptions(ngram_weight=1.0))),
    "n-grams dynamic": ("4", CourseOptions(share=1e6, adapter=AdapterOptions(ngram_weight="dynamic"))),
    "head alone": ("adaptive", None),
    "interleaved": ("adaptive", CourseOptions()),
    "joint": ("joint", CourseOptions()),
}
"""The lookahead, and how the draft learns."""


def run(runs: DraftRuns, *, folder: Path | None, n_utterances: int, settings: Sequence[str] | None = None) -> Findings:
    """Half of the stream is of each domain. Raises BenchError for unknown settings."""
    unknown = set(settings or ()) - SETTINGS.keys()
    if unknown:
        raise BenchError(f"settings: got {', '.join(sorted(unknown))}, expected some of {', '.join(SETTINGS)}")
    heard, sources = [], []
    for domain in DOMAINS:
        part, source = runs.hear(folder, domain, n_utterances)
        heard += part
        sources.append(f"{len(part)} {domain} utterances from {source}")
    block = max(1, len(heard) // 20)
    rows: dict[str, Any] = {}
    series: dict[str, list[tuple[float, float]]] = {}
    for name in settings or SETTINGS:
        with tempfile.TemporaryDirectory() as home, mock.patch.dict(os.environ, {"SPECEDGE_HOME": home}):
            drafter = _drafter(runs, *SETTINGS[name])
            counts: list[Speculation] = []
            total = runs.run(drafter, heard, lambda i, counted, counts=counts: counts.append(counted), encodes=True)
            learning = drafter.learning
            drafter.close()
        blocks = [counts[i : i + block] for i in range(0, len(counts), block)]
        series[name] = [((i + 1) * block, _acceptance(part)) for i, part in enumerate(blocks)]
        half = len(counts) // 2
        rows[name] = figures(runs, total) | {
            "first_begin": round(_acceptance(counts[: max(1, half // 5)]), 4),
            "first_end": round(_acceptance(counts[half - max(1, half // 5) : half]), 4),
            "second_begin": round(_acceptance(counts[half : half + max(1, half // 5)]), 4),
            "second_end": round(_acceptance(counts[-max(1, half // 5) :]), 4),
            "updates": learning.updates if learning else 0,
            "rollbacks": learning.rollbacks if learning else 0,
            "learning_s": round(learning.seconds, 3) if learning else 0.0,
        }
    columns = ("speed_up", "acceptance", "first_begin", "first_end", "second_begin", "second_end")
    table = [["", *(name.replace("_", " ") for name in columns), "updates", "rolled back"]]
    for name, row in rows.items():
        cells = [f"{row[column]:.3f}" for column in columns]
        table.append([name, *cells, str(row["updates"]), str(row["rollbacks"])])
    panel = Panel(title="Along the stream", x="utterances", y="acceptance", series=series)
    return Findings(tables={", then ".join(sources): table}, panels=[panel], figures={"stream": sources, "rows": rows})


def _drafter(runs: DraftRuns, lookahead: str, course: CourseOptions | None) -> DraftModelDrafter:
    drafter = runs.drafter(lookahead=lookahead, learn=course is not None)
    model = drafter.model
    if course is not None and drafter.student is not None and model is not None and model.vectors is not None:
        vectors = model.vectors
        drafter.student.course = Course(vectors.n_state, vectors.of, course)
    return drafter


def _acceptance(counts: list[Speculation]) -> float:
    evaluated = sum(one.evaluated for one in counts)
    return sum(one.accepted for one in counts) / evaluated if evaluated else 0.0
