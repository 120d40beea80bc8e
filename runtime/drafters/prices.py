"""What a draft model costs beside its target, as it runs: a draft has the cores that the target's workers leave it.

All is in units of T(1), the target's pass of one row. Until enough was seen a first guess holds, from what `specedge
calibrate` measured or from the share of the weights.
Does not know: tokens, how long drafts are, that passes behind a draft are slower than others (`payoff` does).
"""

from __future__ import annotations

import statistics
from collections import deque

from specedge.runtime.decoding.costs import CostTable

__all__ = ["Prices"]

_N_KEPT = 15
_N_ENOUGH = 5
_SELDOM = 4  # passes, between looks at what they took


class Prices:
    """The prices of one drafter.

    rows: T(k) of the target; draft_cost: of drafting one token, window_cost: of hearing a window and reading its
    prompt, both a first guess; pass_s: seconds of a pass of one row, 0 until enough was seen.
    """

    def __init__(self, rows: CostTable, *, draft_cost: float, window_cost: float) -> None:
        self.rows, self.draft_cost, self.window_cost = rows, draft_cost, window_cost
        self.pass_s = 0.0
        self._n_seen = 0  # passes with drafts
        self._drafts, self._windows, self._passes = (deque[float](maxlen=_N_KEPT) for _ in range(3))

    def saw_draft(self, seconds: float) -> None:
        """One token was drafted in this time."""
        self._drafts.append(seconds)

    def saw_window(self, seconds: float) -> None:
        """A window was heard and its prompt read in this time."""
        self._windows.append(seconds)
        self._update()

    def saw_pass(self, seconds: float, n_rows: int) -> None:
        """The target took this time for a pass of `n_rows` rows."""
        self._passes.append(seconds / self.rows.cost(n_rows + n_rows % 2))
        self._n_seen += 1
        if self._n_seen < _N_KEPT or self._n_seen % _SELDOM == 0:
            self._update()

    def _update(self) -> None:
        if len(self._passes) < _N_ENOUGH:
            return
        self.pass_s = one_s = max(statistics.median(self._passes), 1e-9)
        if len(self._drafts) >= _N_ENOUGH:
            self.draft_cost = statistics.median(self._drafts) / one_s
        if self._windows:
            self.window_cost = statistics.median(self._windows) / one_s
