"""Whether windows are worth hearing: what drafts save against what it takes to make them, window by window.

A window costs the time of hearing and searching, seen as it runs; its drafts save a pass for each accepted token, less
what drafting and the longer pass took. `Balance` says which windows are let pass, and when a window has lost too much.
A pass without a draft, now and then, says what a pass takes where nobody has been at the caches before it. It is held
against the passes with drafts just before it, and medians of that decide: a machine that is slow for a second is no
fault of a draft.
Does not know: tokens, heads.
"""

from __future__ import annotations

import math
import statistics
from collections import deque

from specedge.runtime.drafters.balance import Balance
from specedge.runtime.drafters.prices import Prices

__all__ = ["Payoff"]

_PLAIN_EVERY = 24  # passes with drafts
_PLAIN_EVERY_AT_FIRST = 4  # until it is known what a pass without takes
_N_BEFORE = 5  # passes with drafts that one without is held against
_N_ENOUGH = 5  # such comparisons
_N_KEPT = 15
_HELD_UP = (0.8, 2.0)  # at least and at most
_MOST_DRAFT = 1.6  # times what drafting mostly takes: a draft that took longer was held up by something else


class Payoff:
    """The balance of one drafter; times in seconds, all else in passes of one row."""

    def __init__(self, prices: Prices) -> None:
        self._prices, self._balance = prices, Balance()
        self._is_heard = False
        self._n_drafted = 0
        self._before = deque[float](maxlen=_N_BEFORE)  # seconds of passes with drafts, as if of one row
        self._ratios = deque[float](maxlen=_N_KEPT)
        self._held_up = 1.0
        self._drafts = deque[float](maxlen=_N_KEPT)  # seconds that drafting took

    def begin(self) -> bool:
        """Whether to hear the next window."""
        self._is_heard = False
        return self._balance.begin()

    @property
    def is_due(self) -> bool:
        """Whether the next window will be heard."""
        return self._balance.is_due

    @property
    def is_lost(self) -> bool:
        """Whether this window's drafts have lost so much that it should get no more."""
        return self._balance.is_lost

    @property
    def pass_s(self) -> float:
        """What a pass of one row takes, in seconds; infinite until enough passes were seen."""
        return self._prices.pass_s / self._held_up or math.inf

    def heard(self, seconds: float) -> None:
        """The window was heard, and its hypothesis made, in this time."""
        self._prices.saw_window(seconds)
        self._is_heard = True

    @property
    def wants_plain(self) -> bool:
        """Whether a pass without a draft is due, by which the others are judged."""
        return self._n_drafted >= (_PLAIN_EVERY if len(self._ratios) >= _N_ENOUGH else _PLAIN_EVERY_AT_FIRST)

    def plain(self, seconds: float, n_rows: int = 1) -> None:
        """A pass of so many rows without a draft of this drafter, behind another one, took this time."""
        self._n_drafted = 0
        if len(self._before) < _PLAIN_EVERY_AT_FIRST or seconds <= 0:
            return
        plain_s = seconds / self._prices.rows.cost(n_rows + n_rows % 2)
        self._ratios.append(statistics.median(self._before) / plain_s)
        if len(self._ratios) >= _N_ENOUGH:
            self._held_up = min(max(statistics.median(self._ratios), _HELD_UP[0]), _HELD_UP[1])

    def passed(
        self, seconds: float, *, draft_s: float, n_pending: int, n_drafted: int, n_accepted: int, n_run: int = 0
    ) -> None:
        """A pass over so many rows took this time, its drafts `draft_s`, and so many of them came true.

        n_run: the rows that it had in truth, where not this drafter's were run; its own are then charged in proportion.
        """
        rows = self._prices.rows
        n_rows = n_pending + n_drafted
        expected = rows.cost(n_rows + n_rows % 2)
        if n_run:
            seconds *= expected / rows.cost(n_run + n_run % 2)
        self._prices.saw_pass(seconds, n_rows)
        self._before.append(seconds / expected)
        self._n_drafted += 1
        self._drafts.append(draft_s)
        draft_s = min(draft_s, _MOST_DRAFT * statistics.median(self._drafts))
        more = self._held_up * expected - rows.cost(n_pending + n_pending % 2)
        self._balance.saved += n_accepted - max(0.0, more) - draft_s / self.pass_s

    def end(self) -> None:
        """The window is over."""
        if self._is_heard:
            self._balance.end(self._prices.window_cost * self._held_up)
        self._is_heard = False
