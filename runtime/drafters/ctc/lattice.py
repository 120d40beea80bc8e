"""The posteriors of a window as a lattice: the likeliest spelling, and how likely any other would be.

Rows are the frames that the head heard, in order, and one certain blank for each gap between them, so that a byte may
come twice. Columns are the units that some row may hold, a fifth of all; one more stands for the others. The likeliest
spelling takes the best unit of every row and drops repetitions and blanks (greedy CTC decoding). A given string of
bytes is scored by its best alignment (Viterbi), for many strings at once, row by row: their bytes lie behind each other
in one array, so that a row costs three NumPy calls. All is told against a path of nothing but blanks, which then costs
nothing to go along.

`spelled` gives the likeliest spelling in the target's tokens, by its own byte-pair encoding, so the units of the head
need not know the vocabulary. The text begins with one space and has no space twice; bytes that are no UTF-8 are left
out. `bare` takes that space away for models whose texts begin without one.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache
from math import exp
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...text.beginnings import Beginnings
from ...text.tokenizer import Tokenizer
from .head import BLANK, N_UNITS, Posteriors

FLOOR = -12.0  # no unit is less likely than this, so that sums of a window keep their digits
_NEVER = np.float32(-1e9)
_SPACE = 0x20 + 1  # the unit
_NEARLY = -4.0  # nats by which a space may be less likely than what was heard in its place
_NO_UNIT = N_UNITS  # in front of a string
_MAX_KEPT = 1 << 14  # strings whose units are remembered
Float = NDArray[np.float32]


class Unit(NamedTuple):
    """A byte of the likeliest spelling: its value, its first row, and the row behind its last."""

    byte: int
    start: int
    stop: int


class Lattice:
    """log_probs float32 [n_rows, n_columns], blank in column 0, in the last one what no row may hold; frames int64
    [n_rows], the encoder frame of each row (of a gap: its first); units int64 [n_columns - 1], rising, the unit of each
    column but the last.

    columns: the column of each unit, int64 [257], then that of `gains` which nothing goes along; peaks: the
    log-probability of each row's likeliest unit, float32 [n_rows]; best: that of the likeliest path up to each row,
    float32 [n_rows + 1]; gains: log-odds of each column against the blank, float32 [n_rows, n_columns + 1], never in
    the last one; lead: log-odds of each row's likeliest unit against the blank, cumulated, float32 [n_rows + 1];
    spaces: the first rows of where a space was heard or nearly heard.
    """

    def __init__(self, log_probs: Float, frames: NDArray[np.int64], units: NDArray[np.int64]) -> None:
        self.log_probs, self.frames, self.units = log_probs, frames, units
        self.columns = np.full(N_UNITS + 1, len(units))
        self.columns[units] = np.arange(len(units))
        self.columns[_NO_UNIT] = len(units) + 1
        blank = log_probs[:, BLANK, None]
        self.peaks: Float = log_probs.max(1)
        self.best = _cumulated(self.peaks)
        self.gains = np.full((len(log_probs), len(units) + 2), _NEVER, np.float32)
        np.subtract(log_probs, blank, out=self.gains[:, :-1])
        self.lead = _cumulated(self.peaks - blank[:, 0])
        near = log_probs[:, self.columns[_SPACE]] - self.peaks > _NEARLY
        begins = near & np.concatenate(([True], ~near[:-1]))
        self.spaces: list[int] = begins.nonzero()[0].tolist()

    def __len__(self) -> int:
        return len(self.log_probs)

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

    def odds(self, starts: Sequence[int], strings: Sequence[bytes], n: int) -> Float:
        """The log-odds of each string's best alignment against what was heard, by rows used up, `n` at most, float32
        [n_strings, n + 1]; `starts` are the rows that they begin at. None of them is empty, nor one of what was heard.

        Nothing comes to its end behind the last row.
        """
        spelt = [_units(string) for string in strings]
        lengths = np.array([len(units) for units in spelt]) // 2
        columns = self.columns[np.frombuffer(b"".join(spelt), np.uint16)]
        gains = self.gains
        width = gains.shape[1]
        at = np.repeat(np.array(starts), lengths) * width + columns
        # Clipped to the last column of the last row.
        gained = gains.ravel().take(at[1:] + np.arange(0, n * width, width)[:, None], mode="clip")
        reached = np.full((n + 1, len(columns)), _NEVER, np.float32)
        reached[0, columns == width - 1] = 0.0
        reached[:, 0] = 0.0
        inside = np.full(len(columns) - 1, _NEVER, np.float32)  # the unit is heard just now
        add, maximum = np.add, np.maximum
        for before, here, after, gain in zip(reached[:-1, :-1], reached[:-1, 1:], reached[1:, 1:], gained, strict=True):
            maximum(inside, before, out=inside)
            add(inside, gain, out=inside)
            maximum(here, inside, out=after)
        rows = np.array(starts)[:, None] + np.arange(n + 1)
        lead = self.lead.take(rows, mode="clip")
        found: Float = reached[:, lengths.cumsum() - 1].T - lead + lead[:, :1]
        return found


def _cumulated(values: Float) -> Float:
    return np.concatenate((np.zeros(1, np.float32), np.cumsum(values)))


@lru_cache(_MAX_KEPT)
def _units(string: bytes) -> bytes:
    """The units of a string as uint16: none, then its bytes, between the same byte twice a blank."""
    units = array("H", [_NO_UNIT])
    for byte in string:
        if byte + 1 == units[-1]:
            units.append(BLANK)
        units.append(byte + 1)
    return units.tobytes()


def lattice_of(posteriors: Posteriors) -> Lattice | None:
    """The lattice of a window; None where the posteriors are no probabilities, or there is nothing in them."""
    frames, log_probs = posteriors.frames, posteriors.log_probs
    if log_probs.ndim != 2 or log_probs.shape[1] != N_UNITS or frames.shape != log_probs.shape[:1] or not len(frames):
        return None
    most, steps = log_probs.max(0), frames[1:] - frames[:-1]
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


_SPACE_BYTE = 0x20


class HeardToken(NamedTuple):
    """A token of a hypothesis.

    start, stop: rows of the lattice, from its first byte's to behind its last's; sure: the probability of what was
    heard from there to the next token, 0 to 1; order: ids of the longest n-gram known to end with it, 0 for none, -1
    where nothing is known of n-grams; opens: whether a word begins with it.
    """

    token: int
    start: int
    stop: int
    sure: float
    order: int = -1
    opens: bool = False


def spelled(lattice: Lattice, tokenizer: Tokenizer) -> list[HeardToken]:
    """The likeliest spelling of a window in tokens; [] where nothing was said."""
    return heard_tokens(lattice.spelling(), lattice, len(lattice), tokenizer, opens=True)


def bare(heard: Sequence[HeardToken], beginnings: Beginnings) -> list[HeardToken]:
    """A window's hypothesis with the tokens that its first word has at the beginning of a text (`Beginnings`)."""
    ids = [one.token for one in heard]
    found = beginnings.bare(ids)
    if found is ids:
        return list(heard)
    n = beginnings.first_word(ids)
    word = heard[:n]
    sure, order = min(one.sure for one in word), min(one.order for one in word)
    tokens = found[: len(found) - len(ids) + n]
    # Each of them lies where the word was heard.
    first = [HeardToken(token, word[0].start, word[-1].stop, sure, order, not i) for i, token in enumerate(tokens)]
    return [*first, *heard[n:]]


def heard_tokens(
    units: Sequence[Unit], lattice: Lattice, stop: int, tokenizer: Tokenizer, *, opens: bool
) -> list[HeardToken]:
    """Some units in tokens; `stop` is the row behind what they were heard in, `opens` puts a space before the first."""
    kept: list[Unit] = []
    last = -1
    for unit in _readable(units):
        if unit.byte != _SPACE_BYTE or last != _SPACE_BYTE:
            kept.append(unit)
        last = unit.byte
    while kept and kept[-1].byte == _SPACE_BYTE:
        kept.pop()
    if not kept:
        return []
    if opens and kept[0].byte != _SPACE_BYTE:
        kept.insert(0, Unit(_SPACE_BYTE, kept[0].start, kept[0].start))
    text = bytes([unit.byte for unit in kept]).decode()
    found: list[HeardToken] = []
    at = 0
    ranks = tokenizer.ranks
    best: list[float] = lattice.best.tolist()
    for token in tokenizer.encode(text):
        n_bytes = len(ranks[token])
        if at >= len(kept):
            break
        first = kept[at]
        at += n_bytes
        next_row = kept[at].start if at < len(kept) else stop
        found.append(
            HeardToken(
                token,
                first.start,
                kept[min(at, len(kept)) - 1].stop,
                sure=min(1.0, exp(best[next_row] - best[first.start])),
                opens=first.byte == _SPACE_BYTE or not found,
            )
        )
    return found


def _readable(units: Sequence[Unit]) -> Sequence[Unit]:
    """The units without those that are no part of a character."""
    text = bytes([unit.byte for unit in units]).decode("utf-8", "ignore").encode()
    if len(text) == len(units):
        return units
    left = iter(units)
    return [next(unit for unit in left if unit.byte == byte) for byte in text]
