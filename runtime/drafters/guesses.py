"""Guesses of a drafter as paths of tokens: which of them are worth verifying, the tree that they make, what came of it.

Shared by drafters that have several candidates for what comes next. Does not know: where guesses come from.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from specedge.runtime.drafters import DraftChain, DraftTree, Verdict
from specedge.runtime.drafters.gate import Gate

__all__ = ["TREE_DEPTH", "TREE_MARGIN", "Guess", "Guesses", "cut", "joined"]

TREE_MARGIN = 0.5  # tokens that a second path must add: the best of many trees looks better than it is
TREE_DEPTH = 8  # nodes of each path of a tree at most


class Guess(NamedTuple):
    """A path: ids, how sure the drafter is of each, and the class of each for the gate's experience."""

    tokens: list[int]
    confidences: list[float]
    classes: list[Hashable]


class Guesses:
    """The guesses of one drafter, judged by `gate`; keep it for as long as the drafter."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._proposed: Sequence[tuple[float, Hashable]] = ()
        self._parents: Sequence[int] = ()

    @property
    def classes(self) -> list[Hashable]:
        """The class of each node of the last draft."""
        return [class_ for _, class_ in self._proposed]

    def believed(self, guess: Guess) -> list[float]:
        """How sure experience is of each token, given those before it."""
        return self._gate.all_believed(guess.confidences, guess.classes)

    def worth_while(self, paths: list[Guess], n_pending: int, n_paths: int) -> list[Guess]:
        """The paths, and as much of them as is expected to pay; [] when nothing is."""
        if not paths:
            return []
        length, best_gain = self._gate.best_chain(self.believed(paths[0]), n_pending)
        best = [cut(paths[0], length)] if length else []
        if n_pending != 1 or len(paths) == 1:
            return best
        by_depth = [0.0] * TREE_DEPTH  # expected accepted nodes; beginnings that paths share count once
        seen: set[tuple[int, ...]] = set()
        for n, path in enumerate(paths[:n_paths], 1):
            sure = 1.0
            for depth, belief in enumerate(self.believed(path)[:TREE_DEPTH]):
                sure *= belief
                beginning = tuple(path.tokens[: depth + 1])
                if beginning not in seen:
                    seen.add(beginning)
                    by_depth[depth] += sure
            if n == 1:
                continue
            worth = 0.0
            for length in range(1, min(TREE_DEPTH, max(len(path.tokens) for path in paths[:n])) + 1):
                worth += by_depth[length - 1]
                gain = self._gate.gain(worth, n * (1 + length), n_pending, n)
                if gain > best_gain + TREE_MARGIN:
                    best, best_gain = [cut(path, length) for path in paths[:n]], gain - TREE_MARGIN
        return best

    def draft(self, paths: Sequence[Guess], limit: int) -> DraftTree:
        """The paths, at most `limit` nodes of them, as what a drafter gives; remembers how sure each node was."""
        return self._tree(paths, limit) if len(paths) > 1 else self._chain(paths, limit)

    def learn(self, verdict: Verdict) -> list[tuple[Hashable, bool]]:
        """Hold the guesses to what came of them: nodes behind an accepted one are known, with their siblings.

        Returns the class of each of those, and whether it came true.
        """
        right = set(verdict.nodes)
        decided = {-1, *verdict.nodes}
        if verdict.rejected is None:  # what would follow the last accepted node was not asked
            decided.discard(verdict.nodes[-1] if verdict.nodes else -1)
        known = [node for node in verdict.evaluated if self._parents[node] in decided]
        for node in known:
            self._gate.learn(*self._proposed[node], accepted=node in right)
        return [(self._proposed[node][1], node in right) for node in known]

    def _chain(self, paths: Sequence[Guess], limit: int) -> DraftChain:
        """The only path, if there is one; remembers how sure each node was."""
        tokens, confidences, classes = cut(paths[0], limit) if paths else ([], [], [])
        self._proposed = list(zip(confidences, classes, strict=True))
        self._parents = range(-1, len(tokens) - 1)
        return DraftChain(tokens, confidences)

    def _tree(self, paths: Sequence[Guess], limit: int) -> DraftTree:
        """The paths as a tree, beginnings shared; remembers how sure each node was."""
        proposed = list[tuple[float, Hashable]]()
        tokens, parents = list[int](), list[int]()
        below: dict[tuple[int, int], int] = {}  # the node of a token under a parent
        for path in paths:
            node = -1
            for token, confidence, class_ in zip(path.tokens, path.confidences, path.classes, strict=True):
                place = (node, token)
                if place not in below:
                    if len(tokens) == limit:
                        break
                    below[place] = len(tokens)
                    parents.append(node)
                    tokens.append(token)
                    proposed.append((confidence, class_))
                node = below[place]
        self._parents, self._proposed = parents, proposed
        return DraftTree(
            tokens=np.array(tokens, np.int32),
            parents=np.array(parents, np.int32),
            conf=np.array([confidence for confidence, _ in proposed], np.float32),
        )


def joined(a: Guess, b: Guess) -> Guess:
    """`b` behind `a`."""
    return Guess(a.tokens + b.tokens, a.confidences + b.confidences, a.classes + b.classes)


def cut(guess: Guess, n: int) -> Guess:
    """The first `n` tokens of a guess."""
    return Guess(guess.tokens[:n], guess.confidences[:n], guess.classes[:n])
