"""E10: how many heads, chain or tree, one pass or two (Whisper-Medusa, arXiv 2409.15869, tables II and IV).

For each kind of heads in the bundle and each number of its first heads: a chain of them all, a tree of all the paths
that a pass can verify, and what the gate makes of them. Cut is the share of the decoder's passes that is saved. Two
passes: as published code decodes, one pass for the heads and one to verify, whose bonus token is computed again.
Typical acceptance against exact is decoded in earnest. Speed-ups are composed (`head_runs`).

Heads of a frozen decoder do not see each other, so the first K of many are nearly what a training of K alone gives;
those behind one block share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from bench.head_runs import F32, HeadRuns, Said
from bench.map_texts import Findings
from numpy.typing import NDArray

from specedge.runtime.bench.plots import Panel
from specedge.runtime.decoding.accept import Exact
from specedge.runtime.decoding.statistics import calls_per_word
from specedge.runtime.papers.accept import Typical
from specedge.runtime.text.words import normalise

__all__ = ["run", "two_pass_calls"]

NUMBERS = (1, 2, 3, 5, 8, 10, 15, 20)
WAYS: dict[str, dict[str, Any]] = {
    "chain": {"gated": False, "n_choices": 1},
    "tree": {"gated": False},
    "gated": {},
}
Table = Sequence[tuple[F32, NDArray[np.int64], F32]]


def run(runs: HeadRuns, *, folder: Path | None, n_utterances: int) -> Findings:
    """All domains of the language, all kinds."""
    tables: dict[str, list[list[str]]] = {}
    figures: dict[str, Any] = {}
    panels = []
    for domain in runs.bench.domains:
        said, source = runs.hear(folder, domain, n_utterances)
        figures[domain] = {"source": source, "utterances": len(said), "kinds": {}}
        series: dict[str, list[tuple[float, float]]] = {}
        for kind in runs.kinds:
            figures[domain]["kinds"][kind] = found = _kind(runs, kind, said)
            for way in ("chain", "gated"):
                series[f"{kind}, {way}"] = [(n, row[way]["speed_up"]) for n, row in found["heads"].items()]
            tables[f"{domain}, {kind}, {len(said)} utterances from {source}"] = _lines(found["heads"])
            tables[f"{domain}, {kind}: right within the first choices"] = _hit_table(found["hits"])
            tables[f"{domain}, {kind}: exact and typical"] = _rule_table(found["rules"])
            tables[f"{domain}, {kind}: typical acceptance by heads"] = _rule_table(
                {f"{n} heads": row["typical"] for n, row in found["heads"].items()}
            )
            tables[f"{domain}, {kind}: thirds of the texts by length"] = _length_table(found["lengths"])
        panels.append(Panel(title=domain, x="heads", y="speed-up, composed", series=series, level=1.0))
    return Findings(tables=tables, panels=panels, figures=figures)


def _kind(runs: HeadRuns, kind: str, said: Sequence[Said]) -> dict[str, Any]:
    """All figures of one kind of heads."""
    guesses, n_all = runs.tables(kind, said), runs.n_heads(kind)
    rows: dict[int, Any] = {}
    for n in sorted({*(n for n in NUMBERS if n < n_all), n_all}):
        rows[n] = {way: runs.replayed(kind, said, guesses, n_heads=n, **how) for way, how in WAYS.items()}
        rows[n]["two passes"] = _two_passes(runs, said, guesses, n)
        rows[n]["typical"] = runs.run(kind, said, Typical(), n_heads=n, **WAYS["chain"])
    return {
        "price": round(runs.price(kind, n_all), 4),
        "hits": hit_rates(runs, said, guesses),
        "heads": rows,
        "lengths": by_length(runs, kind, said, guesses),
        "rules": {rule.name: runs.run(kind, said, rule, gated=False, n_choices=1) for rule in (Exact(), Typical())},
    }


def by_length(runs: HeadRuns, kind: str, said: Sequence[Said], guesses: Table) -> list[dict[str, float]]:
    """The chain of all heads on each third of the texts, the shortest ones first; `tokens`: of a text, their mean."""
    ordered = sorted(said, key=lambda one: len(one.ids))
    thirds = [ordered[len(said) * n // 3 : len(said) * (n + 1) // 3] for n in range(3)]
    found = []
    for third in thirds:
        row = runs.replayed(kind, third, guesses, **WAYS["chain"])
        found.append({**row, "tokens": round(float(np.mean([len(one.ids) for one in third])), 1)})
    return found


def hit_rates(runs: HeadRuns, said: Sequence[Said], guesses: Table) -> list[list[float]]:
    """For each head how often the truth is among its first 1, 2, ... choices; then of chains that are right so far."""
    n_prompt = len(runs.bench.setting().prompt)
    n_heads, n_choices = guesses[0][1].shape[1:]
    found, counts = np.zeros((n_heads, n_choices)), np.zeros(n_heads)
    right, asked = np.zeros(n_heads), np.zeros(n_heads)
    for one, (_, ids, _) in zip(said, guesses, strict=True):
        for at in range(n_prompt - 1, len(one.hidden)):
            is_right = True
            for head, token in enumerate(one.ids[at - n_prompt + 2 :][:n_heads]):
                hits = np.cumsum(ids[at, head] == token)
                found[head] += hits
                counts[head] += 1
                asked[head] += is_right
                is_right = is_right and bool(hits[0])
                right[head] += is_right
    rates = found / np.maximum(counts, 1)[:, None]
    given = right / np.maximum(asked, 1)
    return [[*(round(float(rate), 4) for rate in rates[head]), round(float(given[head]), 4)] for head in range(n_heads)]


def two_pass_calls(ids: Sequence[int], guesses: NDArray[np.int64], n_prompt: int, n_heads: int) -> int:
    """Passes for a text, `ids` with its end, by the published loop: heads, then verification, of a chain.

    guesses: best ones, int64 [n_rows, heads], row 0 the first of the prompt. A pair of passes decides the model's own
    next token and what is accepted behind it; where nothing is, one token more.
    """
    at, passes = 0, 0
    while at < len(ids):
        passes += 1
        row = n_prompt - 1 + at
        if at + 1 >= len(ids) or row >= len(guesses):
            at += 1
            continue
        passes += 1
        accepted = 0
        for head in range(n_heads):
            if at + 1 + accepted >= len(ids) - 1 or guesses[row, head] != ids[at + 1 + accepted]:
                break
            accepted += 1
        at += 1 + max(accepted, 1)
    return passes


def _two_passes(runs: HeadRuns, said: Sequence[Said], guesses: Table, n: int) -> dict[str, float]:
    n_prompt = len(runs.bench.setting().prompt)
    passes = sum(
        two_pass_calls(one.ids, ids[:, :, 0], n_prompt, n) for one, (_, ids, _) in zip(said, guesses, strict=True)
    )
    tokens = sum(len(one.ids) for one in said)
    n_words = sum(len(normalise(runs.text(one.ids))) for one in said)
    return {
        "passes": passes,
        "calls_per_word": round(calls_per_word(passes, n_words) or 0.0, 4),
        "calls_cut": round(1 - passes / tokens if tokens else 0.0, 4),
    }


def _lines(rows: dict[int, Any]) -> list[list[str]]:
    lines = [["heads", *(f"{way}: {what}" for way in WAYS for what in ("cut", "speed-up")), "two passes: cut"]]
    for n, row in rows.items():
        cells = [f"{row[way][what]:.2f}" for way in WAYS for what in ("calls_cut", "speed_up")]
        lines.append([str(n), *cells, f"{row['two passes']['calls_cut']:.2f}"])
    return lines


def _hit_table(rates: list[list[float]]) -> list[list[str]]:
    head = ["head", *(f"first {n}" for n in range(1, len(rates[0]))), "behind right ones"]
    return [head, *([str(at), *(f"{rate:.2f}" for rate in row)] for at, row in enumerate(rates, 1))]


def _rule_table(rules: dict[str, dict[str, float]]) -> list[list[str]]:
    columns = ("wer", "cer", "calls_per_word", "tokens_per_pass")
    head = ["rule", "WER %", "CER %", "calls per word", "tokens per pass"]
    return [head, *([name, *(f"{figures[c]:.3f}" for c in columns)] for name, figures in rules.items())]


def _length_table(thirds: Sequence[dict[str, float]]) -> list[list[str]]:
    columns = ("tokens", "tokens_per_pass", "calls_cut", "speed_up")
    head = ["tokens of a text", "tokens per pass", "cut", "speed-up"]
    return [head, *([f"{row[column]:.2f}" for column in columns] for row in thirds)]
