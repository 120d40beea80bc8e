"""What windows with drafts take beside windows without: an account of drafts and passes, held against the clock.

An account adds up what it is told of. What nobody tells it, such as caches that drafting leaves cold and passes that
change their size, made it believe in five passes a window that were never won on the bundled demo. So a window goes by
without drafts now and then, and its seconds a token say what those just before it should have taken: a machine that is
slow for a while is so for both.
Does not know: drafts, passes, which windows are worth drafting for.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from typing import NamedTuple

__all__ = ["Pace"]

_N_BEFORE, _N_ERRORS = 3, 15  # windows that one without drafts is held against, and what is remembered of that
_ENOUGH = 4  # errors, until which nothing is said
_EVERY, _EVERY_AT_FIRST = 10, 2  # windows with drafts behind which one goes by without
_FADE = 0.8
_CLEARLY = 0.35  # of a window's passes: so far accounts were not wrong, and who wins more need not look


class _Drafted(NamedTuple):
    """A window with drafts: what the account says was won, in passes; tokens, the end of the text among them."""

    account: float
    n_tokens: int
    seconds: float


class Pace:
    """See the module. Between `begin` and `plain` or `drafted` lies a window."""

    def __init__(self) -> None:
        self._before = deque[_Drafted](maxlen=_N_BEFORE)
        self._errors = deque[float](maxlen=_N_ERRORS)
        self._share = 0.0  # of their passes, that windows won lately by the account
        self._n_since = 0  # windows with drafts since the last without
        self._started = 0.0

    def begin(self) -> None:
        """A window starts."""
        self._started = time.perf_counter()

    @property
    def is_due(self) -> bool:
        """Whether the next window should go by without drafts."""
        every = _EVERY if len(self._errors) >= _ENOUGH else _EVERY_AT_FIRST
        return self._n_since >= every and self._share < _CLEARLY

    @property
    def error(self) -> float:
        """What to add to the account of a window, in passes; 0 until enough was seen."""
        return statistics.median(self._errors) if len(self._errors) >= _ENOUGH else 0.0

    def plain(self, n_tokens: int) -> None:
        """The window is over, and had no drafts; its text is thrown away where it has no tokens."""
        seconds = self._seconds(n_tokens)
        if not seconds:
            return
        pass_s = seconds / (n_tokens + 1)
        self._errors.extend(one.n_tokens - one.seconds / pass_s - one.account for one in self._before)
        self._before.clear()
        self._n_since = 0

    def drafted(self, n_tokens: int, account: float) -> None:
        """The window is over, and had drafts that won so much, by the account."""
        seconds = self._seconds(n_tokens)
        if not seconds:
            return
        won = account / (n_tokens + 1)
        self._share = self._share * _FADE + won * (1 - _FADE) if self._n_since or self._errors else won
        self._before.append(_Drafted(account, n_tokens + 1, seconds))
        self._n_since += 1

    def _seconds(self, n_tokens: int) -> float:
        """What the window took; 0 where that says nothing: another attempt at it, or one whose text is thrown away."""
        started, self._started = self._started, 0.0
        return time.perf_counter() - started if started and n_tokens else 0.0
