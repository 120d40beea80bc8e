"""The posteriors of a window as a lattice: what the likeliest spelling is, and how likely any other would be.

Rows are the frames that the head heard, in order, and one certain blank for each gap between them, so that a byte may
come twice. The likeliest spelling takes the best unit of every row, drops repetitions and blanks (greedy decoding). A
given string of bytes is scored by its best alignment (Viterbi), for many strings at once: along a byte's run the best
start is a running maximum of what came before it less the cumulated log-probabilities, so that a byte costs a few NumPy
calls over [strings, rows], whatever their number. All is told against a path of nothing but blanks, which then costs
nothing to go along.

Does not know: tokens, n-grams, encoders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.ctc.head import BLANK, N_UNITS, Posteriors

__all__ = ["Lattice", "Unit", "lattice_of"]

FLOOR = -12.0  # no unit is less likely than this, so that sums of a window keep their digits
_NEVER = np.float32(-1e9)
_N_BEHIND = 64

Float = NDArray[np.float32]


class Unit(NamedTuple):
    """A byte of the likeliest spelling: its value, its first row, and the row behind its last."""

    byte: int
    start: int
    stop: int


@dataclass(frozen=True, eq=False)
class Lattice:
    """log_probs float32 [n_rows, 257]; frames int64 [n_rows], the encoder frame of each row (of a gap: its first)."""

    log_probs: Float
    frames: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.log_probs)

    @cached_property
    def peaks(self) -> NDArray[np.float32]:
        """The log-probability of each row's likeliest unit, float32 [n_rows]."""
        found: NDArray[np.float32] = self.log_probs.max(1)
        return found

    @cached_property
    def best(self) -> NDArray[np.float32]:
        """The log-probability of the likeliest path up to each row, float32 [n_rows + 1]."""
        return np.concatenate((np.zeros(1, np.float32), np.cumsum(self.peaks)))

    @cached_property
    def odds(self) -> Float:
        """Log-odds of each unit against the blank, cumulated over the rows, float32 [257, n_rows + 1 + 64]: behind the
        last row all stays as it is."""
        n_rows = len(self)
        found = np.zeros((N_UNITS, n_rows + 1 + _N_BEHIND), np.float32)
        np.cumsum((self.log_probs - self.log_probs[:, BLANK, None]).T, axis=1, out=found[:, 1 : n_rows + 1])
        found[:, n_rows + 1 :] = found[:, n_rows, None]
        return found

    @cached_property
    def lead(self) -> Float:
        """As `odds`, of each row's likeliest unit, float32 [n_rows + 1]."""
        return np.concatenate((np.zeros(1, np.float32), np.cumsum(self.peaks - self.log_probs[:, BLANK])))

    def near(self, units: NDArray[np.int64], rows: Sequence[int]) -> tuple[Float, Float]:
        """How near units come to a row's likeliest in the 10 rows from each of some on, and in the next 20, float32
        [n_rows, n_units] each, 0.0 for the likeliest itself."""
        at = np.minimum(np.array(rows, np.int64)[:, None] + np.arange(20), len(self) - 1)
        found = self.log_probs[at[:, :, None], units] - self.peaks[at][:, :, None]
        soon: Float = found[:, :10].max(1)
        return soon, np.maximum(soon, found[:, 10:].max(1))

    def spelling(self) -> list[Unit]:
        """The likeliest spelling, byte by byte."""
        units = self.log_probs.argmax(1)
        if not len(units):
            return []
        changes = np.flatnonzero(units[1:] != units[:-1]) + 1
        starts = [0, *changes.tolist()]
        stops = [*starts[1:], len(units)]
        return [
            Unit(unit - 1, start, stop)
            for unit, start, stop in zip(units[starts].tolist(), starts, stops, strict=True)
            if unit != BLANK
        ]

    def sure(self, start: int, stop: int) -> float:
        """The probability of the likeliest path through the rows [start, stop)."""
        return float(np.exp(self.best[stop] - self.best[start]))

    def extend(self, starts: NDArray[np.int64], reached: Float, last: Sequence[int], strings: Sequence[bytes]) -> Float:
        """How far strings come from the rows `starts` int64 [n_strings] when each is longer by the bytes in `strings`.

        None of them is empty. reached: float32 [n_strings, n + 1], by rows used up, n at most, the log-odds of each
        string's best alignment so far against nothing but blanks: zeros for the empty string; last: its last byte, or
        -1. The result is as `reached`; what is behind the last row says nothing.
        """
        order = sorted(range(len(strings)), key=lambda i: -len(strings[i]))  # those that go on stay in front
        longest = len(strings[order[0]])
        padded = np.frombuffer(b"".join([strings[i].ljust(longest, b"\0") for i in order]), np.uint8)
        units = padded.reshape(len(strings), longest).astype(np.int64) + 1
        lengths = [len(strings[i]) for i in order]
        before = np.empty_like(units)
        before[:, 0], before[:, 1:] = [last[i] + 1 for i in order], units[:, :-1]
        repeats = units == before
        repeated = repeats.any(0).tolist()
        odds, n_columns = self.odds, reached.shape[1]
        missing = int(starts.max()) + n_columns - odds.shape[1]
        if missing > 0:
            odds = np.pad(odds, ((0, 0), (0, missing)), "edge")
        n_starts = odds.shape[1] - n_columns + 1
        windows = np.ndarray((N_UNITS, n_starts, n_columns), odds.dtype, odds, strides=(*odds.strides, odds.itemsize))
        starts = starts[order]
        found = np.empty_like(reached)
        either = reached[order]
        n = len(order)
        for at in range(longest):
            source = either[:n]
            if repeated[at]:  # between the same byte twice there is a blank
                source = source.copy()
                again = np.flatnonzero(repeats[:n, at])
                source[again, 1:], source[again, 0] = either[again, :-1], _NEVER
            run = windows[units[:n, at], starts[:n]]
            either = np.empty_like(run)
            either[:, 0] = _NEVER
            inside = either[:, 1:]
            np.subtract(source[:, :-1], run[:, :-1], out=inside)
            np.maximum.accumulate(inside, axis=1, out=inside)
            inside += run[:, 1:]
            np.maximum.accumulate(inside, axis=1, out=inside)
            n_more = n
            while n_more and lengths[n_more - 1] == at + 1:
                n_more -= 1
            if n_more < n:
                found[order[n_more:n]] = either[n_more:]
            n = n_more
        return found


def lattice_of(posteriors: Posteriors) -> Lattice | None:
    """The lattice of a window; None where the posteriors are no probabilities, or there is nothing in them."""
    frames, log_probs = posteriors.frames, posteriors.log_probs
    if log_probs.ndim != 2 or log_probs.shape[1] != N_UNITS or frames.shape != log_probs.shape[:1] or not len(frames):
        return None
    if not (log_probs.max() <= 0.1):  # not-a-number too
        return None
    gaps = np.diff(frames) > 1
    if (np.diff(frames) < 1).any():
        return None
    place = np.arange(len(frames)) + np.concatenate(([0], np.cumsum(gaps)))
    rows = np.full((int(place[-1]) + 1, N_UNITS), FLOOR, np.float32)
    rows[:, BLANK] = 0.0
    rows[place] = np.maximum(log_probs, FLOOR)
    at = np.zeros(len(rows), np.int64)
    at[place] = frames
    at[place[:-1][gaps] + 1] = frames[:-1][gaps] + 1
    return Lattice(rows, at)
