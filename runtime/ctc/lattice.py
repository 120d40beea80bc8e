"""The posteriors of a window as a lattice: what the likeliest spelling is, and how likely any other would be.

Rows are the frames that the head heard, in order, and one certain blank for each gap between them, so that a byte may
come twice. The likeliest spelling takes the best unit of every row, drops repetitions and blanks (greedy decoding). A
given string of bytes is scored by its best alignment (Viterbi), for many strings at once: along a byte's run the best
start is a running maximum of what came before it less the cumulated log-probabilities, so that a byte costs a few NumPy
calls over [strings, rows], whatever their number.

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

__all__ = ["Lattice", "Reached", "Unit", "lattice_of"]

FLOOR = -12.0  # no unit is less likely than this, so that sums of a window keep their digits
_NEVER = np.float32(-1e9)

Float = NDArray[np.float32]


class Unit(NamedTuple):
    """A byte of the likeliest spelling: its value, its first row, and the row behind its last."""

    byte: int
    start: int
    stop: int


class Reached(NamedTuple):
    """How far strings have come in a span of n rows, each float32 [n_strings, n + 1], by rows used up.

    either: the best alignment, whatever its last row holds; blank: the best that ends with a blank.
    """

    either: Float
    blank: Float

    def rows(self, which: NDArray[np.int64]) -> Reached:
        """Some of the strings."""
        return Reached(self.either[which], self.blank[which])


@dataclass(frozen=True, eq=False)
class Lattice:
    """log_probs float32 [n_rows, 257]; frames int64 [n_rows], the encoder frame of each row (of a gap: its first)."""

    log_probs: Float
    frames: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.log_probs)

    @cached_property
    def best(self) -> NDArray[np.float32]:
        """The log-probability of the likeliest path up to each row, float32 [n_rows + 1]."""
        return np.concatenate((np.zeros(1, np.float32), np.cumsum(self.log_probs.max(1))))

    @cached_property
    def sums(self) -> Float:
        """Log-probabilities of each unit cumulated over the rows, float32 [257, n_rows + 1]."""
        found = np.zeros((N_UNITS, len(self) + 1), np.float32)
        np.cumsum(self.log_probs.T, axis=1, out=found[:, 1:])
        return found

    @cached_property
    def near(self) -> tuple[Float, Float]:
        """How near each unit comes to a row's likeliest in the next 10 rows and in the next 20, float32 [n_rows, 257]
        each, 0.0 for the likeliest itself."""
        most, found = self.log_probs - self.log_probs.max(1, keepdims=True), list[Float]()
        for more in (1, 2, 4, 2, 10):  # 2, 4, 8, 10, 20 rows
            wider = most.copy()
            if more < len(self):
                np.maximum(most[:-more], most[more:], out=wider[:-more])
            most = wider
            found.append(most)
        return found[3], found[4]

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

    def begin(self, start: int, stop: int) -> Reached:
        """The empty string in the rows [start, stop)."""
        blanks = self.sums[BLANK, start : stop + 1]
        either = (blanks - blanks[0])[None]
        return Reached(either, either)

    def extend(self, start: int, stop: int, reached: Reached, last: Sequence[int], strings: Sequence[bytes]) -> Reached:
        """Each string of `reached` longer by the bytes in `strings`, none empty; `last` is its last byte so far or -1.

        `reached` is over the rows [start, stop).
        """
        order = sorted(range(len(strings)), key=lambda i: -len(strings[i]))  # those that go on stay in front
        longest = len(strings[order[0]])
        padded = np.frombuffer(b"".join([strings[i].ljust(longest, b"\0") for i in order]), np.uint8)
        units = padded.reshape(len(strings), longest).astype(np.int64) + 1
        lengths = [len(strings[i]) for i in order]
        before = np.concatenate((np.array([last[i] for i in order], np.int64)[:, None] + 1, units[:, :-1]), axis=1)
        repeats = units == before
        repeated = repeats.any(0).tolist()
        sums = self.sums[:, start : stop + 1]
        blanks = sums[BLANK]
        steps = blanks[1:] - blanks[:-1]
        either, blank = reached.rows(np.array(order))
        found_either, found_blank = np.empty_like(either), np.empty_like(blank)
        n = len(order)
        for at in range(longest):
            source = either[:n]
            if repeated[at]:
                source = np.where(repeats[:n, at, None], blank[:n], source)
            run = sums[units[:n, at]]
            inside = np.empty_like(run)
            inside[:, 0] = _NEVER
            later = inside[:, 1:]
            np.subtract(source[:, :-1], run[:, :-1], out=later)
            np.maximum.accumulate(later, axis=1, out=later)
            later += run[:, 1:]
            inside -= blanks
            either = np.maximum.accumulate(inside, axis=1, out=inside)
            either += blanks
            n_more = n
            while n_more and lengths[n_more - 1] == at + 1:
                n_more -= 1
            if n_more < n or repeated[at + 1]:
                blank = np.empty_like(either)
                blank[:, 0] = _NEVER
                np.add(either[:, :-1], steps, out=blank[:, 1:])
                for i in range(n_more, n):
                    found_either[order[i]], found_blank[order[i]] = either[i], blank[i]
            n = n_more
        return Reached(found_either, found_blank)


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
