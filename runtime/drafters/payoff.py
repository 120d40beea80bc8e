"""Whether windows are worth hearing: what drafts save against what it takes to make them, window by window.

A window costs the time of hearing and searching, seen as it runs; its drafts save a pass for each accepted token, less
what drafting and the longer pass took. While the last windows lost more than they won, windows are let pass without
drafts, twice as many after each try that failed, so that a head or a map that knows nothing of this audio costs next to
nothing. A window whose drafts have lost too much already gets no more of them: a text that goes round in a circle is
long. Passes without drafts, now and then, say what a pass takes where nobody has been at the caches before it.
Does not know: tokens, heads.
"""

from __future__ import annotations

import math

from specedge.runtime.drafters.prices import Prices

__all__ = ["Payoff"]

_FADE = 0.75
_FIRST_WINDOWS = 4.0  # windows' worth of trust before anything was seen
_LONGEST_SILENCE = 64
_PLAIN_EVERY = 48  # passes with drafts
_MOST_HELD_UP = 1.6  # times what a pass of its rows takes
_MOST_LOST = 4.0  # passes of one row that the drafts of a window may lose, hearing aside


class Payoff:
    """The balance of one drafter; times in seconds, all else in passes of one row."""

    def __init__(self, prices: Prices) -> None:
        self._prices = prices
        self._balance = _FIRST_WINDOWS
        self._saved = 0.0
        self._is_heard = False
        self._silence, self._n_silent = 1, 0
        self._n_drafted = 0

    def begin(self) -> bool:
        """Whether to hear the next window."""
        self._saved, self._is_heard = 0.0, False
        if self._balance > 0:
            self._silence = 1
            return True
        self._n_silent += 1
        if self._n_silent <= self._silence:
            return False
        self._silence, self._n_silent = min(2 * self._silence, _LONGEST_SILENCE), 0
        return True

    @property
    def is_lost(self) -> bool:
        """Whether this window's drafts have lost so much that it should get no more."""
        return self._saved < -_MOST_LOST

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
        return not self._prices.knows_plain or self._n_drafted >= _PLAIN_EVERY

    def plain(self, seconds: float) -> None:
        """A pass of one row without a draft, behind another one, took this time."""
        self._prices.saw_plain(seconds)
        self._n_drafted = 0

    def passed(self, seconds: float, *, draft_s: float, n_pending: int, n_drafted: int, n_accepted: int) -> None:
        """A pass over so many rows took this time, its drafts `draft_s`, and so many of them came true."""
        rows = self._prices.rows
        n_rows = n_pending + n_drafted
        self._prices.saw_pass(seconds, n_rows)
        expected = rows.cost(n_rows + n_rows % 2)
        if self._prices.knows_plain:  # a pass that was held up by something else is no fault of its draft
            expected = min(max(seconds / self.pass_s, expected), _MOST_HELD_UP * expected)
        self._n_drafted += 1
        more = expected - rows.cost(n_pending + n_pending % 2)
        self._saved += n_accepted - max(0.0, more) - draft_s / self.pass_s

    def end(self) -> None:
        """The window is over."""
        if self._is_heard:
            won = self._saved - self._prices.window_cost
            self._balance = self._balance * _FADE + won
            if won > 0:
                self._silence = 1
        self._is_heard = False
