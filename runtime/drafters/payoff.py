"""Whether windows are worth hearing: what drafts save against what it takes to make them, window by window.

A window costs the time of hearing and searching, seen as it runs; its drafts save a pass for each accepted token, less
what drafting and the longer pass took. `Balance` says which windows are let pass, and when a window has lost too much.
A pass without a draft, now and then, says what a pass takes where nobody has been at the caches before it (`prices`):
a machine that is slow for a second is no fault of a draft. Where passes alone do not tell what a window takes, some
windows go by without drafts (`pace`).
Does not know: tokens, heads.
"""

from __future__ import annotations

import math
from collections import deque

from specedge.runtime.drafters.balance import Balance
from specedge.runtime.drafters.pace import Pace
from specedge.runtime.drafters.prices import Prices

__all__ = ["Payoff"]

_N_KEPT = 15
_FADE_BY_PACE = 0.9  # windows scatter by more than they win
_MOST_DRAFT = 1.6  # times what the longest of the others took: a draft that took longer was held up by something


class Payoff:
    """The balance of one drafter; times in seconds, all else in passes of one row. pace: holds it against the clock."""

    def __init__(self, prices: Prices, pace: Pace | None = None) -> None:
        self._prices, self._pace = prices, pace
        self._balance = Balance() if pace is None else Balance(fade=_FADE_BY_PACE)
        self._is_heard = False
        self._drafts = deque[float](maxlen=_N_KEPT)  # seconds that drafting took

    def begin(self) -> bool:
        """Whether to hear the next window."""
        self._is_heard = False
        looks = not self._balance.is_silent and self._pace is not None and self._pace.is_due
        if self._pace is not None:
            self._pace.begin()
        return self._balance.begin() and not looks

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
        return self._prices.pass_s or math.inf

    def heard(self, seconds: float) -> None:
        """The window was heard, and its hypothesis made, in this time."""
        self._prices.saw_window(seconds)
        self._is_heard = True

    @property
    def wants_plain(self) -> bool:
        """Whether a pass without a draft is due, by which the others are judged."""
        return self._prices.wants_plain

    def plain(self, seconds: float, n_rows: int = 1) -> None:
        """A pass of so many rows without a draft of this drafter, behind another one, took this time."""
        self._prices.saw_plain(seconds, n_rows)

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
        self._drafts.append(draft_s)
        draft_s = min(draft_s, _MOST_DRAFT * sorted(self._drafts)[-2:][0])
        more = self._prices.held_up * expected - rows.cost(n_pending + n_pending % 2)
        self._balance.saved += n_accepted - max(0.0, more) - draft_s / self.pass_s

    def end(self, n_tokens: int) -> None:
        """The window is over, of so many tokens: as many passes, where it was let pass."""
        if self._is_heard:
            price = self._prices.window_cost
            if self._pace is not None:
                self._pace.drafted(n_tokens, self._balance.saved - price)
                price -= self._pace.error
            self._balance.end(price)
        else:
            if self._pace is not None:
                self._pace.plain(n_tokens)
            self._balance.pass_by(n_tokens)
        self._is_heard = False
