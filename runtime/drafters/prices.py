"""What a draft model costs beside its target, as it runs: a draft has the cores that the target's workers leave it.

All is in units of T(1), the target's pass of one row. Until enough was seen a first guess holds, from what `specedge
calibrate` measured or from the share of the weights. Passes behind a draft model's or a head's own work are slower than
those of the target alone, by caches and cores: so T(1) is told from passes without drafts where some were seen.
Does not know: tokens, how long drafts are.
"""

from __future__ import annotations

import statistics
from collections import deque

from specedge.runtime.decoding.costs import CostTable

__all__ = ["Prices"]

_N_KEPT = 15
_N_ENOUGH = 5
_HELD_UP = (0.8, 1.6)  # at least and at most


class Prices:
    """The prices of one drafter.

    rows: T(k) of the target; draft_cost: of drafting one token, window_cost: of hearing a window and reading its
    prompt, both a first guess; pass_s: seconds of a pass of one row, 0 until enough was seen.
    """

    def __init__(self, rows: CostTable, *, draft_cost: float, window_cost: float) -> None:
        self.rows, self.draft_cost, self.window_cost = rows, draft_cost, window_cost
        self.pass_s = 0.0
        self._drafts, self._windows, self._passes, self._plain = (deque[float](maxlen=_N_KEPT) for _ in range(4))

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
        if not self.knows_plain:
            self._update()

    def saw_plain(self, seconds: float) -> None:
        """The target took this time for a pass of one row, behind nothing but its own passes."""
        self._plain.append(seconds)
        self._update()

    @property
    def knows_plain(self) -> bool:
        """Whether enough passes without drafts were seen."""
        return len(self._plain) >= _N_ENOUGH

    @property
    def held_up(self) -> float:
        """How many times what its rows cost a pass with drafts takes, beside one without; 1 until enough were seen."""
        if not self.knows_plain or len(self._passes) < _N_ENOUGH:
            return 1.0
        least, most = _HELD_UP
        return min(max(statistics.median(self._passes) / self.pass_s, least), most)

    def _update(self) -> None:
        passes = self._plain if self.knows_plain else self._passes
        if len(passes) < _N_ENOUGH:
            return
        self.pass_s = one_s = max(statistics.median(passes), 1e-9)
        if len(self._drafts) >= _N_ENOUGH:
            self.draft_cost = statistics.median(self._drafts) / one_s
        if self._windows:
            self.window_cost = statistics.median(self._windows) / one_s
