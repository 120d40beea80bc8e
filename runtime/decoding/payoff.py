"""How long a draft is: as long as its rows are expected to pay, by T(k) and by what came true before.

Every node of a draft has a confidence. It is scaled by how often nodes of its class came true, and the chain with the
largest expected gain over its rows is taken (`CostTable.best_chain`; Leviathan et al. 2023); several paths go as a tree
where that gains more (Cai et al. 2024, Medusa). Whether drafting pays at all is `drafters.auto`'s to decide.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Sequence
from typing import NamedTuple, Self

import numpy as np

from ..device import CostTable
from .drafter import Drafter, DraftTree, Verdict, WindowContext

_FADE = 0.985  # half of what is known of a class is from its last 46 nodes
_PRIOR = 4.0  # nodes' worth of trust in a drafter's own word
_MAX_SCALE = 1.25
_SURE = 0.98
_MARGIN = 0.02
_TREE_MARGIN = 0.5  # tokens that a second path must add: the best of many trees looks better than it is
_TREE_DEPTH = 8  # nodes of each path of a tree at most


class Guess(NamedTuple):
    """A path: ids, the drafter's confidence in each, and the class of each, whose nodes are calibrated together."""

    tokens: list[int]
    confidences: list[float]
    classes: list[Hashable]

    def add(self, token: int, confidence: float, class_: Hashable) -> None:
        """One more token."""
        self.tokens.append(token)
        self.confidences.append(confidence)
        self.classes.append(class_)


class Guesses:
    """The candidate paths of one drafter, and what its confidences are worth; keep it for as long as the drafter.

    costs: the target's T(k); max_scale: by which confidences are raised at most, however often they were too modest.
    """

    def __init__(self, costs: CostTable, *, max_scale: float = _MAX_SCALE) -> None:
        self.costs = self._alone = costs
        self._max_scale = max_scale
        self._hoped: dict[Hashable, float] = {}
        self._came: dict[Hashable, float] = {}
        self._scale: dict[Hashable, float] = {}
        self._proposed: Sequence[tuple[float, Hashable]] = ()
        self._parents: Sequence[int] = ()

    def share(self, n_texts: int, n_rows: int) -> None:
        self.costs = self._alone.beside(n_texts, n_rows)

    def believed(self, confidence: float, class_: Hashable) -> float:
        """`confidence`, scaled by what came of this class of nodes; below 1."""
        return min(_SURE, confidence * self._scale.get(class_, 1.0))

    def all_believed(self, guess: Guess) -> list[float]:
        """The calibrated probability of each token of a path, given those before it."""
        scale = self._scale.get
        believed = [sure * scale(class_, 1.0) for sure, class_ in zip(guess.confidences, guess.classes, strict=True)]
        return [belief if belief < _SURE else _SURE for belief in believed]

    def best_length(self, guess: Guess, n_pending: int) -> tuple[int, float]:
        """How many nodes of a path to verify behind `n_pending` rows, and the gain expected of that, in plain passes.

        (0, 0.0) where none pays.
        """
        return self.costs.best_chain(self.all_believed(guess), n_pending, margin=_MARGIN)

    def gain(self, worth: float, n_rows: int, n_pending: int, n_paths: int = 1) -> float:
        """The expected gain, in plain passes, of a pass of `n_rows` in all whose drafts give `worth` tokens."""
        return worth - self.costs.price(n_rows, n_paths) + self.costs.price(n_pending) - _MARGIN

    def count(self, confidence: float, class_: Hashable, *, accepted: bool) -> None:
        """What came of a node whose predecessors were all accepted; `confidence` as the drafter gave it."""
        self._hoped[class_] = hoped = self._hoped.get(class_, 0.0) * _FADE + confidence
        self._came[class_] = came = self._came.get(class_, 0.0) * _FADE + accepted
        self._scale[class_] = min(self._max_scale, (came + _PRIOR) / (hoped + _PRIOR))

    def worth_while(self, paths: list[Guess], n_pending: int, n_paths: int) -> list[Guess]:
        """The paths, and as much of them as is expected to pay; [] when nothing is.

        One path, or several cut to one length, since a pass runs them as batch rows; up to `n_paths` of them.
        """
        if not paths:
            return []
        length, best_gain = self.best_length(paths[0], n_pending)
        best = [cut(paths[0], length)] if length else []
        if n_pending != 1 or len(paths) == 1:
            return best
        by_depth = [0.0] * _TREE_DEPTH  # expected accepted nodes; beginnings that paths share count once
        seen: set[tuple[int, ...]] = set()
        for n, path in enumerate(paths[:n_paths], 1):
            reached = 1.0
            for depth, belief in enumerate(self.all_believed(path)[:_TREE_DEPTH]):
                reached *= belief
                beginning = tuple(path.tokens[: depth + 1])
                if beginning not in seen:
                    seen.add(beginning)
                    by_depth[depth] += reached
            if n == 1:
                continue
            worth = 0.0
            for length in range(1, min(_TREE_DEPTH, max(len(path.tokens) for path in paths[:n])) + 1):
                worth += by_depth[length - 1]
                gain = self.gain(worth, n * (1 + length), n_pending, n)
                if gain > best_gain + _TREE_MARGIN:
                    best, best_gain = [cut(path, length) for path in paths[:n]], gain - _TREE_MARGIN
        return best

    def draft(self, paths: Sequence[Guess], limit: int) -> DraftTree:
        """The paths as a tree of at most `limit` nodes, beginnings shared. `learn` then refers to it."""
        if len(paths) <= 1:
            tokens, confidences, classes = cut(paths[0], limit) if paths else ([], [], [])
            self._proposed = list(zip(confidences, classes, strict=True))
            self._parents = range(-1, len(tokens) - 1)
            return DraftTree(tokens, conf=confidences)
        proposed = list[tuple[float, Hashable]]()
        ids, parents = list[int](), list[int]()
        below: dict[tuple[int, int], int] = {}  # the node of a token under a parent
        for path in paths:
            node = -1
            for token, confidence, class_ in zip(path.tokens, path.confidences, path.classes, strict=True):
                place = (node, token)
                if place not in below:
                    if len(ids) == limit:
                        break
                    below[place] = len(ids)
                    parents.append(node)
                    ids.append(token)
                    proposed.append((confidence, class_))
                node = below[place]
        self._parents, self._proposed = parents, proposed
        confidences = [confidence for confidence, _ in proposed]
        return DraftTree(np.array(ids, np.int32), np.array(parents, np.int32), np.array(confidences, np.float32))

    def learn(self, verdict: Verdict) -> list[tuple[Hashable, bool]]:
        """Calibrate by a verdict on the last `draft`: nodes behind an accepted one are known, with their siblings.

        Returns the class of each of those, and whether it came true.
        """
        right = set(verdict.nodes)
        decided = {-1, *verdict.nodes}
        if verdict.rejected is None:  # the pass did not say what follows the last accepted node
            decided.discard(verdict.nodes[-1] if verdict.nodes else -1)
        known = [node for node in verdict.evaluated if self._parents[node] in decided]
        for node in known:
            self.count(*self._proposed[node], accepted=node in right)
        return [(self._proposed[node][1], node in right) for node in known]


class GuessDrafter(Drafter):
    """A drafter whose drafts are as long as they are expected to pay, by `Guesses`; it remembers the window."""

    def __init__(self, costs: CostTable, *, max_scale: float = _MAX_SCALE) -> None:
        self._guesses = Guesses(costs, max_scale=max_scale)
        self._window: WindowContext | None = None
        self._owns = True  # what is shared, and so closes it

    def another(self) -> Self:
        """One that shares what is heavy, and what is learned."""
        twin = copy.copy(self)
        twin._owns = False
        twin._guesses = copy.copy(self._guesses)
        return twin

    def share(self, n_texts: int, n_rows: int) -> None:
        self._guesses.share(n_texts, n_rows)

    def begin(self, window: WindowContext) -> None:
        """Remember the window, in which nothing is proposed yet."""
        self._window = window
        self._guesses.draft((), 0)

    def observe(self, verdict: Verdict) -> None:
        self._guesses.learn(verdict)


def joined(a: Guess, b: Guess) -> Guess:
    """`b` behind `a`."""
    return Guess(a.tokens + b.tokens, a.confidences + b.confidences, a.classes + b.classes)


def cut(guess: Guess, n: int) -> Guess:
    """The first `n` tokens of a guess."""
    return Guess(guess.tokens[:n], guess.confidences[:n], guess.classes[:n])
