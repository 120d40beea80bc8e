"""What a draft model costs beside its target, as it runs: a draft has the cores that the target's workers leave it.

All is in units of T(1), the target's pass of one row. Until enough was seen a first guess holds, from what `specedge
calibrate` measured or from the share of the weights.
A pass behind a draft is slower than its rows say, by caches and sleeping workers. A pass without a draft, now and then,
says what one takes where nobody has been at the caches before it: it is held against the passes with drafts just before
it, and medians of that decide.
Does not know: tokens, how long drafts are.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import replace

from specedge.runtime.decoding.costs import CostTable

__all__ = ["Prices"]

_N_KEPT = 15
_N_ENOUGH = 5
_SELDOM = 4  # passes, between looks at what they took
_PLAIN_EVERY = 24  # passes with drafts
_PLAIN_EVERY_AT_FIRST = 4  # until it is known what a pass without takes
_N_BEFORE = 5  # passes with drafts that one without is held against
_HELD_UP = (0.8, 2.0)  # at least and at most
_NOTED = 0.02  # a smaller change of it is none


class Prices:
    """The prices of one drafter.

    rows: T(k) of the target; draft_cost: of drafting one token, window_cost: of hearing a window and reading its
    prompt, both a first guess; pass_s: seconds of a pass of one row without a draft, 0 until enough was seen; held_up:
    how many times as long as its rows say a pass behind a draft takes. is_fixed: the first guess holds for good.
    """

    def __init__(self, rows: CostTable, *, draft_cost: float, window_cost: float, is_fixed: bool = False) -> None:
        self.rows, self.draft_cost, self.window_cost = rows, draft_cost, window_cost
        self._is_fixed = is_fixed
        self.pass_s = 0.0
        self.held_up = 1.0
        self._behind_drafts = rows
        self._n_seen = self._n_drafted = 0  # passes with drafts, of them since the last without
        self._drafts, self._windows, self._passes, self._ratios = (deque[float](maxlen=_N_KEPT) for _ in range(4))

    @property
    def behind_drafts(self) -> CostTable:
        """T(k) of passes behind a draft, in passes of one row without any."""
        return self._behind_drafts

    @property
    def wants_plain(self) -> bool:
        """Whether a pass without a draft is due, by which the others are judged."""
        every = _PLAIN_EVERY if len(self._ratios) >= _N_ENOUGH else _PLAIN_EVERY_AT_FIRST
        return not self._is_fixed and self._n_drafted >= every

    def saw_draft(self, seconds: float) -> None:
        """One token was drafted in this time."""
        self._drafts.append(seconds)

    def saw_window(self, seconds: float) -> None:
        """A window was heard and its prompt read in this time."""
        self._windows.append(seconds)
        self._update()

    def saw_pass(self, seconds: float, n_rows: int) -> None:
        """The target took this time for a pass of `n_rows` rows behind a draft."""
        self._passes.append(seconds / self.rows.cost(n_rows + n_rows % 2))
        self._n_seen += 1
        self._n_drafted += 1
        if self._n_seen < _N_KEPT or self._n_seen % _SELDOM == 0:
            self._update()

    def saw_plain(self, seconds: float, n_rows: int = 1) -> None:
        """A pass of so many rows without a draft took this time."""
        is_behind, self._n_drafted = self._n_drafted > 0, 0
        if not is_behind or len(self._passes) < _PLAIN_EVERY_AT_FIRST or seconds <= 0:
            return
        plain_s = seconds / self.rows.cost(n_rows + n_rows % 2)
        self._ratios.append(statistics.median(list(self._passes)[-_N_BEFORE:]) / plain_s)
        if self._is_fixed or len(self._ratios) < _N_ENOUGH:
            return
        held_up = min(max(statistics.median(self._ratios), _HELD_UP[0]), _HELD_UP[1])
        if abs(held_up - self.held_up) > _NOTED:
            self.held_up = held_up
            relative = (1.0, *(held_up * cost for cost in self.rows.relative[1:]))
            self._behind_drafts = replace(self.rows, relative=relative)
        self._update()

    def _update(self) -> None:
        if self._is_fixed or len(self._passes) < _N_ENOUGH:
            return
        self.pass_s = one_s = max(statistics.median(self._passes), 1e-9) / self.held_up
        if len(self._drafts) >= _N_ENOUGH:
            self.draft_cost = statistics.median(self._drafts) / one_s
        if self._windows:
            self.window_cost = statistics.median(self._windows) / one_s
