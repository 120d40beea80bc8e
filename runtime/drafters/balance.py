"""Whether a drafter still pays: what it won and lost in its windows, and doubling pauses where that is too little.

While the last windows lost more than they won, windows are let pass, twice as many after each try that failed, and as
many as make its price a small share of their passes, so that a drafter that knows nothing of this audio costs next to
nothing, also where windows are short and hearing them is dear. A window that has lost too much already gets no more of
it: a text that goes round in a circle is long. All is in passes of one row.
Does not know: what is won, clocks.
"""

from __future__ import annotations

__all__ = ["Balance"]

_FADE = 0.75
_FIRST = 4.0
_LONGEST_SILENCE = 64  # windows
_MOST_LOST = 4.0  # that a window may lose before it gets no more
_MOST_LOST_ON_TRIAL = 1.5  # behind a pause
_TRIES = 0.02  # of the passes that go by, what tries may lose


class Balance:
    """The balance of one drafter. saved: what this window has won so far; trust: before anything was seen; fade: what
    is left of the balance when the next window is over."""

    def __init__(self, trust: float = _FIRST, fade: float = _FADE) -> None:
        self._fade = fade
        self.saved = 0.0
        self._balance = trust
        self._silence, self._n_silent = 1, 0
        self._owed = 0.0  # of what the last window lost, what no passes stand against yet

    def begin(self) -> bool:
        """A window starts; whether to draft in it."""
        self.saved = 0.0
        if self._balance > 0:
            self._silence = 1
            return True
        self._n_silent += 1
        if self._n_silent <= self._silence or self._owed > 0:
            return False
        self._silence, self._n_silent = min(2 * self._silence, _LONGEST_SILENCE), 0
        return True

    @property
    def is_due(self) -> bool:
        """Whether `begin` will be for drafting."""
        return self._balance > 0 or (self._n_silent >= self._silence and self._owed <= 0)

    @property
    def is_silent(self) -> bool:
        """Whether windows are let pass now."""
        return self._balance <= 0

    @property
    def is_lost(self) -> bool:
        """Whether this window has lost so much that it should get no more."""
        return self.saved < -(_MOST_LOST_ON_TRIAL if self.is_silent else _MOST_LOST)

    def after(self, price: float = 0.0) -> float:
        """The balance with this window, were it over."""
        return self._balance * self._fade + self.saved - price

    def revive(self, trust: float) -> None:
        """Things have changed: as if nothing had been seen."""
        self._balance, self._silence, self._n_silent, self._owed = trust, 1, 0, 0.0

    def pass_by(self, n_passes: int) -> None:
        """A window of so many passes was let pass."""
        self._owed -= _TRIES * n_passes

    def end(self, price: float = 0.0) -> None:
        """A window in which something was tried is over; `price` is what it cost besides."""
        won = self.saved - price
        self._owed = max(0.0, -won)
        self._balance = max(self.after(price), -_FIRST)  # so that one good window makes up for it
        if won > 0:
            self._silence = max(1, self._silence // 2)
