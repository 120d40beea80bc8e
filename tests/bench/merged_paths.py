"""The ways to make candidates long enough for their number that the paper's "merge" can mean (arXiv 2507.21522).

    none   all candidates, however short
    lcp    while one is too short: the two that share the longest beginning become that beginning
    drop   while one is too short: the last is left out

Wraps an ungated drafter, which has no use for verdicts. It does not know maps or prices.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence

import numpy as np

from specedge.runtime.decoding.drafter import DraftContext, Drafter, DraftTree, Verdict, WindowContext
from support.drafting import parents_of

__all__ = ["MODES", "MergedPaths", "merged"]

MODES = ("none", "lcp", "drop")
Path = tuple[int, ...]


class MergedPaths(Drafter):
    """See the module. `min_lengths`: of two candidates, and of three or more."""

    name = "tokenmap"

    def __init__(self, drafter: Drafter, mode: str, min_lengths: tuple[int, int]) -> None:
        self._drafter, self._mode, self._min_lengths = drafter, mode, min_lengths

    def begin(self, window: WindowContext) -> None:
        self._drafter.begin(window)

    def propose(self, context: DraftContext, budget: int) -> DraftTree:
        tree = self._drafter.propose(context, budget)
        tokens, parents = list(tree.tokens), parents_of(tree)
        paths: list[Path] = []
        for leaf in sorted(set(range(len(tokens))) - set(parents)):
            path, node = list[int](), leaf
            while node >= 0:
                path.append(tokens[node])
                node = parents[node]
            paths.append(tuple(reversed(path)))
        return _tree(merged(paths, self._mode, self._min_lengths))

    def observe(self, verdict: Verdict) -> None:
        """Nothing: what is not gated does not learn."""

    def end(self, tokens: tuple[int, ...]) -> None:
        self._drafter.end(tokens)


def merged(paths: Sequence[Path], mode: str, min_lengths: tuple[int, int]) -> list[Path]:
    """The paths that are left, best first; one path is never too short."""
    kept = list(paths)
    while mode != "none" and len(kept) > 1 and min(map(len, kept)) < min_lengths[min(len(kept), 3) - 2]:
        if mode == "drop":
            kept.pop()
            continue
        pairs = itertools.combinations(range(len(kept)), 2)
        i, j = max(pairs, key=lambda pair: len(os.path.commonprefix([kept[pair[0]], kept[pair[1]]])))
        shared: Path = tuple(os.path.commonprefix([kept[i], kept[j]]))
        kept[i] = shared or kept[i]  # nothing in common: the more frequent one stays
        del kept[j]
    return kept


def _tree(paths: Sequence[Path]) -> DraftTree:
    nodes: dict[Path, int] = {(): -1}
    tokens, parents = list[int](), list[int]()
    for path in paths:
        for depth, token in enumerate(path):
            if path[: depth + 1] not in nodes:
                nodes[path[: depth + 1]] = len(tokens)
                tokens.append(token)
                parents.append(nodes[path[:depth]])
    return DraftTree(tokens=np.array(tokens, np.int32), parents=np.array(parents, np.int32))
