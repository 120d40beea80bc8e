"""How much of the audio is measured, so that plain decoding and every drafter get through it several times in the time.

Plain decoding goes first and says what the audio costs here. It is stopped behind the window in which its share of the
time is used up; what it got through is what is measured. Where not even one window is done in all the time there could
be for it, which is so for a model that never ends a text and falls back through all temperatures, the audio is heard
at the first temperature alone.
Does not know: drafters, what a transcription is, what the time is a share of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from specedge.runtime.bench.rounds import Heard
from specedge.runtime.bench.timer import OutOfTime, Timer

__all__ = ["Part", "as_much_as_fits"]

S = TypeVar("S")


@dataclass(frozen=True)
class Part(Generic[S]):
    """A sound, and of it the first `n_windows`; None: all of it."""

    source: S
    n_windows: int | None = None

    def goes_on(self, n_windows: int) -> bool:
        """Whether there is more of it behind so many windows."""
        return self.n_windows is None or n_windows < self.n_windows


def as_much_as_fits(
    sources: Sequence[S],
    listen: Callable[[S, Callable[[int], bool]], Heard],
    timer: Timer,
    *,
    enough_s: float,
    limit_s: float,
) -> tuple[list[Part[S]], list[Heard]]:
    """The parts to measure and what was heard in each: no more is begun after `enough_s`, and none is waited for longer
    than `limit_s`. Empty where that is too short for one window.

    listen: transcribes a sound, window by window, as long as the function it is given says so of the windows done.
    """
    started = timer.now()
    parts: list[Part[S]] = []
    heard: list[Heard] = []
    n_done = 0

    def goes_on(n_windows: int) -> bool:
        nonlocal n_done
        n_done = n_windows
        return timer.now() - started < enough_s

    for source in sources:
        n_done = 0
        try:
            with timer.within(limit_s - (timer.now() - started)):
                one = listen(source, goes_on)
        except OutOfTime:
            break
        parts.append(Part(source, None if one.is_whole else n_done))
        heard.append(one)
        n_done = 0
        if timer.now() - started >= enough_s:
            return parts, heard
    if n_done and not parts:  # the window behind these took too long
        parts = [Part(sources[0], n_done)]
        heard = [listen(sources[0], parts[0].goes_on)]
    return parts, heard
