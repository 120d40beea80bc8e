"""The posteriors of a window as a lattice: what the likeliest spelling is, and how likely any other would be.

Rows are the frames that the head heard, in order, and one certain blank for each gap between them, so that a byte may
come twice. Columns are the units that some row may hold, a fifth of all; one more stands for the others. The likeliest
spelling takes the best unit of every row, drops repetitions and blanks (greedy decoding). A given string of bytes is
scored by its best alignment (Viterbi), for many strings at once: along a byte's run the best start is a running maximum
of what came before it less the cumulated log-probabilities, so that a byte costs a few NumPy calls over [strings,
rows], whatever their number. All is told against a path of nothing but blanks, which then costs nothing to go along.

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
_SPACE = 0x20 + 1  # the unit
_NEARLY = -4.0  # nats by which a space may be less likely than what was heard in its place
_N_BEHIND = 64

Float = NDArray[np.float32]


class Unit(NamedTuple):
    """A byte of the likeliest spelling: its value, its first row, and the row behind its last."""

    byte: int
    start: int
    stop: int


@dataclass(frozen=True, eq=False)
class Lattice:
    """log_probs float32 [n_rows, n_columns], blank in column 0, in the last one what no row may hold; frames int64
    [n_rows], the encoder frame of each row (of a gap: its first); units int64 [n_columns - 1], rising, the unit of each
    column but the last."""

    log_probs: Float
    frames: NDArray[np.int64]
    units: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.log_probs)

    @cached_property
    def columns(self) -> NDArray[np.int64]:
        """The column of each unit, int64 [257]."""
        found = np.full(N_UNITS, len(self.units))
        found[self.units] = np.arange(len(self.units))
        return found

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
        """Log-odds of each column against the blank, cumulated over the rows, float32 [n_columns, n_rows + 1 + 64]:
        behind the last row all stays as it is."""
        n_rows, n_columns = self.log_probs.shape
        found = np.zeros((n_columns, n_rows + 1 + _N_BEHIND), np.float32)
        np.cumsum((self.log_probs - self.log_probs[:, BLANK, None]).T, axis=1, out=found[:, 1 : n_rows + 1])
        found[:, n_rows + 1 :] = found[:, n_rows, None]
        return found

    @cached_property
    def lead(self) -> Float:
        """As `odds`, of each row's likeliest unit, float32 [n_rows + 1 + 64]."""
        gained = np.cumsum(self.peaks - self.log_probs[:, BLANK])
        return np.concatenate((np.zeros(1, np.float32), gained, np.repeat(gained[-1:], _N_BEHIND)))

    @cached_property
    def spaces(self) -> list[int]:
        """The first rows of where a space was heard or nearly heard."""
        near = self.log_probs[:, self.columns[_SPACE]] - self.peaks > _NEARLY
        found: list[int] = (near & np.concatenate(([True], ~near[:-1]))).nonzero()[0].tolist()
        return found

    def near(self, units: NDArray[np.int64], rows: Sequence[int]) -> tuple[Float, Float]:
        """How near units come to a row's likeliest in the 10 rows from each of some on, and in the next 20, float32
        [n_rows, n_units] each, 0.0 for the likeliest itself."""
        at = np.minimum(np.array(rows, np.int64)[:, None] + np.arange(20), len(self) - 1)
        found = self.log_probs[at[:, :, None], self.columns[units]] - self.peaks[at][:, :, None]
        soon: Float = found[:, :10].max(1)
        return soon, np.maximum(soon, found[:, 10:].max(1))

    def spelling(self) -> list[Unit]:
        """The likeliest spelling, byte by byte."""
        columns = self.log_probs.argmax(1)
        starts = [0, *((columns[1:] != columns[:-1]).nonzero()[0] + 1).tolist()]
        stops = [*starts[1:], len(columns)]
        return [
            Unit(unit - 1, start, stop)
            for unit, start, stop in zip(self.units[columns[starts]].tolist(), starts, stops, strict=True)
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
        lengths = [len(string) for string in strings]
        order = sorted(range(len(strings)), key=lengths.__getitem__, reverse=True)  # those that go on stay in front
        lengths = [lengths[i] for i in order]
        longest = lengths[0]
        padded = np.frombuffer(b"".join([strings[i].ljust(longest, b"\0") for i in order]), np.uint8)
        units = padded.reshape(len(strings), longest).astype(np.int64) + 1
        before = np.empty_like(units)
        before[:, 0], before[:, 1:] = [last[i] + 1 for i in order], units[:, :-1]
        repeats = units == before
        repeated = repeats.any(0).tolist()
        odds, n_columns = self.odds, reached.shape[1]
        missing = int(starts.max()) + n_columns - odds.shape[1]
        if missing > 0:
            odds = np.pad(odds, ((0, 0), (0, missing)), "edge")
        n_starts = odds.shape[1] - n_columns + 1
        shape = (len(odds), n_starts, n_columns)
        windows = np.ndarray(shape, odds.dtype, odds, strides=(*odds.strides, odds.itemsize))
        runs = windows[self.columns[units.T], starts[order]]
        behind, within = runs[:, :, 1:], runs[:, :, :-1]
        either = np.empty_like(runs)  # by bytes
        either[:, :, 0] = _NEVER
        source = reached[order]
        n = len(order)
        for at in range(longest):
            while lengths[n - 1] <= at:
                n -= 1
            source = source[:n]
            if repeated[at]:  # between the same byte twice there is a blank
                source, shifted = source.copy(), source
                again = repeats[:n, at].nonzero()[0]
                source[again, 1:], source[again, 0] = shifted[again, :-1], _NEVER
            inside = either[at, :n, 1:]
            np.subtract(source[:, :-1], within[at, :n], out=inside)
            np.maximum.accumulate(inside, axis=1, out=inside)
            inside += behind[at, :n]
            np.maximum.accumulate(inside, axis=1, out=inside)
            source = either[at]
        found = np.empty_like(reached)
        found[order] = either[np.array(lengths) - 1, np.arange(len(order))]
        return found


def lattice_of(posteriors: Posteriors) -> Lattice | None:
    """The lattice of a window; None where the posteriors are no probabilities, or there is nothing in them."""
    frames, log_probs = posteriors.frames, posteriors.log_probs
    if log_probs.ndim != 2 or log_probs.shape[1] != N_UNITS or frames.shape != log_probs.shape[:1] or not len(frames):
        return None
    most, steps = log_probs.max(0), np.diff(frames)
    if not (most.max() <= 0.1) or (steps < 1).any():  # not-a-number too
        return None
    is_used = most > FLOOR
    is_used[BLANK] = True
    used = is_used.nonzero()[0]
    gaps = steps > 1
    place = np.arange(len(frames))
    place[1:] += np.cumsum(gaps)
    rows = np.full((int(place[-1]) + 1, len(used) + 1), FLOOR, np.float32)
    rows[:, BLANK] = 0.0
    rows[place, :-1] = np.maximum(log_probs[:, used], FLOOR)
    at = np.zeros(len(rows), np.int64)
    at[place] = frames
    at[place[:-1][gaps] + 1] = frames[:-1][gaps] + 1
    return Lattice(rows, at, used)
