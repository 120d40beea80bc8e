"""How long a draft is worth verifying: expected tokens against what rows cost on this device (algorithms 2.3, 2.4).

A draft of n nodes costs T(p + n) - T(p), p being the rows that the pass runs anyway; it is worth the nodes that will be
accepted, each a pass of one row saved. A drafter says how sure it is of each node, and is held to it: predictions and
outcomes are summed for each class of guess, old ones fading, and later predictions are scaled by what came true. So a
drafter that boasts is believed less and less until it proposes nothing, and where rows are free it may always try.

Does not know: tokens, maps, where a confidence comes from.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import accumulate
from operator import mul
from typing import Protocol

__all__ = ["Gate", "RowCosts"]

_FADE = 0.985  # half of what is known is from the last 46 labelled nodes
_PRIOR = 4.0  # nodes' worth of trust in a drafter's own word
_MAX_SCALE = 1.25
_SURE = 0.98


class RowCosts(Protocol):
    """The part of `costs.CostTable` that is needed: `cost(k)` of a pass of k rows, in passes of one row."""

    def cost(self, n_rows: int, /) -> float: ...


class Gate:
    """The judgement of one drafter's guesses; keep it for as long as the drafter.

    margin: tokens that a draft must be worth beyond its rows; a shield against prices measured on a quieter day.
    """

    def __init__(self, costs: RowCosts, *, margin: float = 0.02) -> None:
        self._costs, self._margin = costs, margin
        self._hoped: dict[Hashable, float] = {}
        self._came: dict[Hashable, float] = {}

    def believed(self, confidence: float, class_: Hashable) -> float:
        """`confidence` as experience with this class of guesses has it, below 1."""
        scale = (self._came.get(class_, 0.0) + _PRIOR) / (self._hoped.get(class_, 0.0) + _PRIOR)
        return min(_SURE, confidence * min(scale, _MAX_SCALE))

    def best_chain(self, believed: Sequence[float], n_pending: int) -> tuple[int, float]:
        """How many nodes of a chain to verify, and the expected gain in passes of one row; (0, 0.0) for none.

        believed: each node's probability given the one before; n_pending: rows of the pass without drafts.
        """
        base = self._costs.cost(n_pending)
        best = (0, 0.0)
        worth = 0.0
        for n, reached in enumerate(accumulate(believed, mul), start=1):
            worth += reached
            gain = worth - (self._costs.cost(n_pending + n) - base) - self._margin
            if gain > best[1]:
                best = (n, gain)
        return best

    def gain(self, worth: float, n_rows: int, n_pending: int) -> float:
        """The expected gain of a pass of `n_rows` in all whose drafts are expected to give `worth` tokens."""
        return worth - (self._costs.cost(n_rows) - self._costs.cost(n_pending)) - self._margin

    def learn(self, confidence: float, class_: Hashable, *, accepted: bool) -> None:
        """What came of a node whose predecessors were all accepted; `confidence` as the drafter gave it."""
        self._hoped[class_] = self._hoped.get(class_, 0.0) * _FADE + confidence
        self._came[class_] = self._came.get(class_, 0.0) * _FADE + accepted
