"""How long a draft is worth verifying: expected tokens against what rows cost on this device (algorithms 2.3, 2.4).

A draft of n nodes costs T(p + n) - T(p), p being the rows that the pass runs anyway; it is worth the nodes that will be
accepted, each a pass of one row saved. A drafter says how sure it is of each node, and is held to it: predictions and
outcomes are summed for each class of guess, old ones fading, and later predictions are scaled by what came true. So a
drafter that boasts is believed less and less until it proposes nothing, and where rows are free it may always try.

Does not know: tokens, maps, where a confidence comes from.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from typing import Protocol

__all__ = ["Gate", "RowCosts"]

_FADE = 0.985  # half of what is known is from the last 46 labelled nodes
_PRIOR = 4.0  # nodes' worth of trust in a drafter's own word
_MAX_SCALE = 1.25
_SURE = 0.98
_MAX_ROWS = 512  # a prompt and its drafts; longer passes are priced as this
_HOPELESS = 0.03  # a node reached less often than this ends a chain


class RowCosts(Protocol):
    """The part of `costs.CostTable` that is needed: `cost(k)` of a pass of k rows, in passes of one row; what a pass
    over several paths costs beyond that."""

    @property
    def several_paths(self) -> float: ...

    def cost(self, n_rows: int, /) -> float: ...


class Gate:
    """The judgement of one drafter's guesses; keep it for as long as the drafter.

    margin: tokens that a draft must be worth beyond its rows, for the time that drafting takes itself; max_scale: of a
    drafter's own word, however often it was too modest.
    """

    def __init__(self, costs: RowCosts, *, margin: float = 0.02, max_scale: float = _MAX_SCALE) -> None:
        self._margin, self._max_scale = margin, max_scale
        # Priced once: the loops below run before every pass.
        self._cost = [0.0, *(costs.cost(n_rows + n_rows % 2) for n_rows in range(1, _MAX_ROWS + 1))]
        self._several_paths = costs.several_paths
        self._cost[1] = costs.cost(1)  # a lone row is run as two, but its partner is not decided on
        self._hoped: dict[Hashable, float] = {}
        self._came: dict[Hashable, float] = {}
        self._scale: dict[Hashable, float] = {}

    def price(self, n_rows: int, n_paths: int = 1) -> float:
        """What a pass of `n_rows` rows in all costs, over so many paths, in passes of one row."""
        cost = self._cost[min(n_rows, _MAX_ROWS)]
        return cost if n_paths == 1 else cost + self._several_paths

    def believed(self, confidence: float, class_: Hashable) -> float:
        """`confidence` as experience with this class of guesses has it, below 1."""
        return min(_SURE, confidence * self._scale.get(class_, 1.0))

    def all_believed(self, confidences: Iterable[float], classes: Iterable[Hashable]) -> list[float]:
        """`believed` of each node of a chain."""
        scale = self._scale.get
        believed = [sure * scale(class_, 1.0) for sure, class_ in zip(confidences, classes, strict=True)]
        return [belief if belief < _SURE else _SURE for belief in believed]

    def best_chain(self, believed: Iterable[float], n_pending: int) -> tuple[int, float]:
        """How many nodes of a chain to verify, and the expected gain in passes of one row; (0, 0.0) for none.

        believed: each node's probability given the one before; n_pending: rows of the pass without drafts.
        """
        cost, last = self._cost, _MAX_ROWS
        free = cost[min(n_pending, last)] - self._margin
        best, best_gain = 0, 0.0
        reached, worth, n = 1.0, 0.0, 0
        for belief in believed:
            n += 1
            reached *= belief
            if reached < _HOPELESS:
                break
            worth += reached
            gain = worth - cost[min(n_pending + n, last)] + free
            if gain > best_gain:
                best, best_gain = n, gain
        return best, best_gain

    def gain(self, worth: float, n_rows: int, n_pending: int, n_paths: int = 1) -> float:
        """The expected gain of a pass of `n_rows` in all, over so many paths, whose drafts give `worth` tokens."""
        return worth - self.price(n_rows, n_paths) + self.price(n_pending) - self._margin

    def tree_price(self, depth: int, most_paths: int) -> float:
        """What a tree of two paths or more, cut to `depth` nodes, costs at least beyond a chain of the first."""
        chain = self._cost[min(1 + depth, _MAX_ROWS)]
        trees = [self._cost[min(n * (1 + depth), _MAX_ROWS)] for n in range(2, most_paths + 1)]
        return min(trees, default=math.inf) + self._several_paths - chain

    def learn(self, confidence: float, class_: Hashable, *, accepted: bool) -> None:
        """What came of a node whose predecessors were all accepted; `confidence` as the drafter gave it."""
        self._hoped[class_] = hoped = self._hoped.get(class_, 0.0) * _FADE + confidence
        self._came[class_] = came = self._came.get(class_, 0.0) * _FADE + accepted
        self._scale[class_] = min(self._max_scale, (came + _PRIOR) / (hoped + _PRIOR))
