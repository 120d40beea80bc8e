"""A draft model's part in learning: it notes what a window has to teach, and has its course go on between windows.

Texts drawn above temperature 0 teach nothing, nor do texts that were thrown away. A window's time is that since the one
before it, so its encoder is in it, but no long wait for audio. The time that notes take counts as time of learning, and
where there is too little of it, windows go by without notes.
Does not know: models, how texts are drafted, where factors are kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.decoding.choices import ChoiceRow
from specedge.runtime.drafters import Verdict, WindowContext
from specedge.runtime.drafters.course import Course
from specedge.runtime.drafters.lessons import Notes, Speller

__all__ = ["Student"]

_LONGEST = 5.0  # times what a window's decoding took: more between two windows is a wait


class Student:
    """Of one drafter. eot: the target's end of text and the draft's; on_close: called once with the course."""

    def __init__(
        self, course: Course, speller: Speller, *, eot: tuple[int, int], on_close: Callable[[Course], Any] | None = None
    ) -> None:
        self.course = course
        self._speller, self._eot, self._on_close = speller, eot, on_close
        self._notes: Notes | None = None
        self._began_at: float | None = None
        self._ended_at = -math.inf
        self._noting_s = 0.0

    def begin(self, window: WindowContext) -> None:
        """A window starts."""
        self._notes = Notes() if window.temperature == 0 and self.course.has_time else None
        self._began_at = self.course.clock()

    def draft(self, before: Sequence[int], n_sampled: int) -> None:
        """See `Notes.draft`."""
        if self._notes is not None:
            self._notes.draft(before, n_sampled)

    def step(self, choice: int, row: ChoiceRow, hidden: NDArray[np.float32]) -> None:
        """See `Notes.step`."""
        if self._notes is not None:
            started = self.course.clock()
            self._notes.step(choice, row, hidden)
            self._noting_s += self.course.clock() - started

    def observe(self, verdict: Verdict, n_sampled: int) -> None:
        """What the target said behind `n_sampled` tokens."""
        if self._notes is not None:
            started = self.course.clock()
            ended = verdict.finished and verdict.token == self._eot[0]
            self._notes.verdict(n_sampled, verdict.rows, ended=ended)
            self._noting_s += self.course.clock() - started

    def end(self, tokens: Sequence[int], each: Callable[[], None] | None = None) -> None:
        """The window's text is `tokens`, or nothing that was kept. `each` is called after every update."""
        if self._began_at is None:
            return
        notes, self._notes = self._notes, None
        course = self.course
        started = course.clock()
        decoding_s = started - self._began_at
        window_s, self._began_at = min(started - self._ended_at, _LONGEST * decoding_s), None
        with course.lock:
            if notes is not None and tokens:
                course.take(notes.lessons(tokens, self._eot, self._speller))
            course.spent(self._noting_s + course.clock() - started)
            self._noting_s = 0.0
            course.train(window_s, each)
        self._ended_at = course.clock()

    def close(self) -> None:
        """Let what was learned be kept."""
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            with self.course.lock:
                on_close(self.course)
