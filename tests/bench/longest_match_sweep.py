"""E14: does a longest match in the map's own corpus add to keys of up to five tokens (suffix decoding)?

A replay of texts with maps that keep their corpus, with it and without it asked. The domains are lists of single
sentences in no order; "letters" are made of them: paragraphs of several sentences that come again and again with other
words in their slots; in "clauses" every other sentence is one of a few that all kinds share. It does not run a model.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from bench.map_texts import DOMAINS, Bench, Findings
from bench.replay import path_rows, replay

from specedge.maps.build import BuildOptions
from specedge.maps.token_map import TokenMap
from specedge.runtime.bench.plots import Panel
from specedge.runtime.drafters.tokenmap import TokenMapOptions

__all__ = ["letters", "run"]

N_CLAUSES = 6
SLOTS = (0.0, 0.05, 0.1, 0.2, 0.4)
CORPUS_BYTES = 4_000_000
N_ORDERS = (4, 5)
N_KINDS = 40
N_SENTENCES = 8
N_LETTERS = 400
N_ASKED = 80
_SEED = 14


def run(bench: Bench) -> Findings:
    """Both domains, each with its own texts and the other's, and letters with more and more slots."""
    rows: dict[str, dict[str, dict[str, float]]] = {}
    for own, other in (DOMAINS, DOMAINS[::-1]):
        for n in N_ORDERS:
            map_ = _map(bench, f"{own}-{n}", bench.train(own), n)
            rows[f"{own}, N={n}"] = _figures(bench, map_, bench.dev(own))
            if n == max(N_ORDERS):
                rows[f"{own}, N={n}, texts of {other}"] = _figures(bench, map_, bench.dev(other))
    by_slots: dict[str, list[tuple[float, float]]] = {}
    for what, n_clauses in (("letters", 0), ("clauses", N_CLAUSES)):
        for share in SLOTS:
            train, asked = letters(bench.train_lines("notes"), share, n_clauses)
            map_ = _map(bench, f"{what}-{share:g}", bench.ids(train[: bench.n_train]), max(N_ORDERS))
            row = _figures(bench, map_, bench.ids(asked[: bench.n_dev]))
            rows[f"{what}, {share:g} of the words differ"] = row
            for name, figures in row.items():
                by_slots.setdefault(f"{what}, {name}", []).append((share, figures["speed_up"]))
    names = list(next(iter(rows.values())))
    table = [["texts", *names], *([name, *map(_cell, row.values())] for name, row in rows.items())]
    ticks = [(share, f"{share:g}") for share in SLOTS]
    panel = Panel(title="Letters", x="words that differ", y="speed-up", series=by_slots, level=1.0, ticks=ticks)
    return Findings(tables={"keys and the longest match": table}, panels=[panel], figures=rows)


def letters(sentences: Sequence[str], share: float, n_clauses: int = 0) -> tuple[list[str], list[str]]:
    """Letters to make a map of and letters to decode: of some kinds, each the same sentences with slots filled in.

    share: of the words of a kind that differ from letter to letter, in the same places of all letters of that kind;
    n_clauses: if any, every other sentence is one of so many that all kinds share.
    """
    rng = random.Random(_SEED)
    fillings = sorted({word for line in sentences for word in line.split() if word.isalpha() and word.islower()})
    clauses = rng.sample(sentences, n_clauses)
    kinds = []
    for _ in range(N_KINDS):
        said = rng.sample(sentences, N_SENTENCES)
        if clauses:
            said[1::2] = [rng.choice(clauses) for _ in said[1::2]]
        words = " ".join(said).split()
        kinds.append((words, [rng.random() < share and word.isalpha() for word in words]))
    made = []
    for _ in range(N_LETTERS + N_ASKED):
        words, is_slot = rng.choice(kinds)
        filled = (rng.choice(fillings) if is_open else word for word, is_open in zip(words, is_slot, strict=True))
        made.append(" ".join(filled))
    return made[:N_LETTERS], made[N_LETTERS:]


def _map(bench: Bench, name: str, sentences: list[list[int]], n_orders: int) -> TokenMap:
    return bench.make_map(f"{name}-corpus", sentences, BuildOptions(n_orders=n_orders, corpus_bytes=CORPUS_BYTES))


def _figures(bench: Bench, map_: TokenMap, texts: list[list[int]]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for name, options in (("keys", TokenMapOptions(matches=False)), ("keys and matches", TokenMapOptions())):
        drafter = bench.drafter(map_, options)
        found[name] = replay(drafter, bench.ended(texts), path_rows(bench.costs), bench.setting()).figures()
    return found


def _cell(figures: dict[str, float]) -> str:
    return f"{figures['speed_up']:.3f} ({figures['tokens_per_pass']:.2f}, {figures['acceptance']:.2f})"
