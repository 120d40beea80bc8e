"""How far a run over several inputs is: which one is at work, what is left, and a closing line."""

from __future__ import annotations

import time
from collections.abc import Mapping

from ..console import clock


def summary(counts: Mapping[str, int], audio_s: float, elapsed_s: float) -> str:
    """`19 done, 1 failed: 9:36 of audio in 0:20 (28.8x)`; counts of nothing are left out, but for "done"."""
    line = ", ".join(f"{count} {what}" for what, count in counts.items() if count or what == "done")
    if not audio_s or elapsed_s <= 0:
        return line
    return f"{line}: {clock(audio_s)} of audio in {clock(elapsed_s)} ({audio_s / elapsed_s:.1f}x)"


class Tally:
    """Counts of one run. n_inputs: to be transcribed; n_skipped: beside them; n_failed: before any was opened."""

    def __init__(self, n_inputs: int, *, n_skipped: int, n_failed: int) -> None:
        self._n_inputs, self._n_skipped, self.n_failed = n_inputs, n_skipped, n_failed
        self._n_begun = self._n_done = 0
        self._audio_s = 0.0
        self._started = time.monotonic()

    @property
    def is_of_several(self) -> bool:
        return self._n_inputs + self._n_skipped + self.n_failed > 1

    @property
    def is_first(self) -> bool:
        """Whether no input before the one at work is done or has failed while it was."""
        return not self._n_done

    @property
    def mark(self) -> str:
        """`3/20 ` for the third of twenty; nothing for a lone input."""
        return f"{self._n_begun}/{self._n_inputs} " if self._n_inputs > 1 else ""

    def next(self) -> None:
        """Another input begins: all before it are done or have failed."""
        self._n_begun = self._n_done + self.n_failed + 1

    def done(self, audio_s: float) -> None:
        self._n_done += 1
        self._audio_s += audio_s

    def left(self) -> str:
        """What the inputs from this one on will take, if they are like those before."""
        if self._n_begun <= 1:
            return ""
        elapsed_s = time.monotonic() - self._started
        n_before = self._n_begun - 1
        return f"all {clock(elapsed_s / n_before * (self._n_inputs - n_before))} left"

    def closing(self) -> str:
        """`19 done, 1 failed, 10 left out: 9:36 of audio in 0:20 (28.8x)`."""
        counts = {"done": self._n_done, "failed": self.n_failed, "left out": self._n_skipped}
        return summary(counts, self._audio_s, time.monotonic() - self._started)
