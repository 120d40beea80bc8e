"""A time budget that holds inside a transcription: a clock with an end, and an engine that heeds it before each pass.

A pass that runs is let run; the next one is not begun. Does not know: what is measured, what to do when the time is up.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["OutOfTime", "TimedEngine", "Timer"]

_PASSES = ("encode", "encode_all", "forward", "forward_paths")


class OutOfTime(Exception):
    """The limit that was set is reached. For whoever set it, never for the user."""


class Timer:
    """`budget_s` seconds from now on; `clock`: seconds that only grow."""

    def __init__(self, budget_s: float = math.inf, clock: Callable[[], float] = time.perf_counter) -> None:
        self.budget_s = budget_s
        self.now = clock
        self._end = self._limit = clock() + budget_s

    @property
    def left_s(self) -> float:
        """Of the budget; below 0 once it is spent."""
        return self._end - self.now()

    @contextlib.contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """While inside, `check` also fails after so many seconds."""
        self._limit = min(self._end, self.now() + seconds)
        try:
            yield
        finally:
            self._limit = self._end

    def check(self) -> None:
        """Raises OutOfTime when the budget is spent, or the limit inside which this is called."""
        if self.now() >= self._limit:
            raise OutOfTime


class TimedEngine:
    """An engine as it is, but that `encode` and each pass of the decoder first ask `timer` whether there is time."""

    def __init__(self, engine: Any, timer: Timer) -> None:
        self._engine, self._timer = engine, timer

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._engine, name)
        if name not in _PASSES:
            return found

        def timed(*args: Any, **kwargs: Any) -> Any:
            self._timer.check()
            return found(*args, **kwargs)

        # From now on an attribute of its own: what is asked for once a token has to be found at once.
        setattr(self, name, timed)
        return timed
