"""What a decoder pass costs by its number of rows, and what that makes of a draft: how long, and whether at all.

T(k) is the time of a pass that decides on k rows, the pending token and k - 1 drafted ones, in units of T(1). A draft
is worth it when the tokens it can be expected to save cost more than its rows (algorithms 2.3 to 2.5, 3.2).
Does not know: how costs are measured, who drafts.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from specedge.runtime.errors import UsageError

__all__ = ["DEFAULT_COSTS", "CostTable"]

_LONGEST = 64


@dataclass(frozen=True)
class CostTable:
    """T(k) at the numbers of `rows` (rising, the first is 1), `relative` to T(1); linear between and beyond them.

    several_paths: what a pass over several paths costs beyond one of as many rows of one path, in passes of one row.

    Raises UsageError for a table that cannot be.
    """

    rows: tuple[int, ...]
    relative: tuple[float, ...]
    several_paths: float = 0.0

    def __post_init__(self) -> None:
        rises = all(a < b for a, b in zip(self.rows, self.rows[1:], strict=False))
        if len(self.rows) < 2 or len(self.rows) != len(self.relative) or self.rows[0] != 1 or not rises:
            raise UsageError(f"cost table: rows {self.rows}, expected 1 and larger numbers, each with its cost")
        if not all(math.isfinite(cost) and cost > 0 for cost in self.relative) or self.relative[0] != 1:
            raise UsageError(f"cost table: costs {self.relative}, expected 1 and positive numbers")
        if not (math.isfinite(self.several_paths) and self.several_paths >= 0):
            raise UsageError(f"cost table: several_paths {self.several_paths}, expected a number, 0 or more")

    def cost(self, k: int) -> float:
        """T(k) / T(1) for a pass of `k` rows, 1 or more."""
        at = min(max(bisect_right(self.rows, k) - 1, 0), len(self.rows) - 2)
        (a, b), (low, high) = self.rows[at : at + 2], self.relative[at : at + 2]
        return low + (high - low) * (k - a) / (b - a)

    def expected_gain(self, confidences: Sequence[float]) -> float:
        """What drafting a chain of tokens with these acceptance probabilities saves in all, in units of T(1)."""
        product, expected = 1.0, 0.0
        for confidence in confidences:
            product *= confidence
            expected += product
        return expected - (self.cost(1 + len(confidences)) - self.cost(1))

    def best_prefix(self, confidences: Sequence[float]) -> tuple[int, float]:
        """How many of these tokens to draft, and the gain from it; (0, 0.0) where no draft pays."""
        best, gain = 0, 0.0
        product, expected = 1.0, 0.0
        for n, confidence in enumerate(confidences, 1):
            product *= confidence
            expected += product
            here = expected - (self.cost(1 + n) - self.cost(1))
            if here > gain:
                best, gain = n, here
        return best, gain

    def best_length(self, alpha: float, draft_cost: float = 0.0) -> int:
        """How many tokens to draft where each is accepted with probability `alpha`: K*, 0 where no draft pays.

        draft_cost: of drafting one token, in units of T(1).
        """
        return max(range(_LONGEST + 1), key=lambda n_draft: self.speed(n_draft, alpha, draft_cost))

    def speed(self, n_draft: int, alpha: float, draft_cost: float = 0.0) -> float:
        """How many times as fast as plain decoding drafts of `n_draft` tokens are (Leviathan et al., theorem 3.8)."""
        tokens = n_draft + 1 if alpha == 1 else (1 - alpha ** (n_draft + 1)) / (1 - alpha)
        return tokens / (self.cost(n_draft + 1) + n_draft * draft_cost)


# Whisper base, 8-bit weights, 2 threads of an x86 server, rounded up (docs/experiments.md, 2026-11-22: what a pass of k
# rows costs). A lone row is run as two (the even-row rule), so the second is free. What a pass
# over several paths takes beyond its rows is of base and small (same file and date, the entry of that name).
DEFAULT_COSTS = CostTable(rows=(1, 2, 4, 8, 16), relative=(1.0, 1.0, 1.2, 1.55, 2.2), several_paths=0.8)
