"""The lattice of what was heard: the likeliest spelling, and the score of any other, against the slow way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specedge.runtime.drafters.ctc.head import BLANK, Posteriors
from specedge.runtime.drafters.ctc.lattice import Lattice, lattice_of
from support.posteriors import random_posteriors, spoken, unheard


def lattice(posteriors: Posteriors) -> Lattice:
    found = lattice_of(posteriors)
    assert found is not None
    return found


def slow_score(found: Lattice, start: int, stop: int, said: bytes) -> float:
    """The best alignment of a string with the rows [start, stop), by the textbook's recursion over states."""
    states = [BLANK]
    for byte in said:
        states += [byte + 1, BLANK]
    scores = np.full(len(states), -1e9)
    scores[0] = 0.0
    first = True
    for row in found.log_probs[start:stop, found.columns[:-1]].astype(np.float64):
        after = np.full(len(states), -1e9)
        for i, unit in enumerate(states):
            ways = [scores[i]] if not first or i == 0 else []
            if i and (not first or i == 1):
                ways.append(scores[i - 1] if not first else scores[0])
            if i > 1 and unit not in (BLANK, states[i - 2]) and not first:
                ways.append(scores[i - 2])
            after[i] = max(ways, default=-1e9) + row[unit]
        scores, first = after, False
    return float(scores[-2:].max() if len(states) > 1 else scores[0])


def test_a_text_is_spelt_as_it_was_said() -> None:
    found = lattice(spoken(" Call the crew."))
    assert bytes(unit.byte for unit in found.spelling()) == b" Call the crew."


def test_a_gap_between_frames_lets_a_byte_come_twice() -> None:
    said = spoken("b")
    twice = Posteriors(frames=np.array([5, 6, 9, 10]), log_probs=np.concatenate([said.log_probs[:2]] * 2), n_ctx=500)
    assert bytes(unit.byte for unit in lattice(twice).spelling()) == b"bb"
    assert lattice(twice).frames.tolist() == [5, 6, 7, 9, 10]
    once = Posteriors(frames=np.array([5, 6, 7, 8]), log_probs=twice.log_probs, n_ctx=500)
    assert bytes(unit.byte for unit in lattice(once).spelling()) == b"b"


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.binary(min_size=1, max_size=5), st.binary(min_size=1, max_size=5))
def test_scores_are_those_of_the_recursion(seed: int, first: bytes, second: bytes) -> None:
    rng = np.random.default_rng(seed)
    found = lattice(random_posteriors(rng, int(rng.integers(8, 30)), 2.0))
    start, stop = 2, len(found)
    strings = [first, second, first + first[-1:], b"ee", first + second[::-1]]
    odds = found.odds([start] * len(strings), strings, stop - start)
    for scores, string in zip(odds, strings, strict=True):
        heard = float(found.peaks[start:stop].sum())
        expected = slow_score(found, start, stop, string) - heard
        if expected > -1e6:  # there were rows enough
            assert scores[-1] == pytest.approx(expected, abs=1e-2)
        else:
            assert scores[-1] < -1e6


def test_units_that_no_row_may_hold_are_still_told_apart() -> None:
    said = spoken("pump")
    few = said.log_probs.copy()
    few[:, 128:] = -30.0
    found = lattice(Posteriors(frames=said.frames, log_probs=few, n_ctx=500))
    assert found.log_probs.shape[1] < 140
    strings = [b"pu\xf0\xf1", b"pu\xf0\xf0", b"pump"]
    heard = float(found.peaks.sum())
    for scores, string in zip(found.odds([0] * 3, strings, len(found)), strings, strict=True):
        assert scores[-1] == pytest.approx(slow_score(found, 0, len(found), string) - heard, abs=1e-2)


def test_strings_may_begin_at_rows_of_their_own() -> None:
    found = lattice(random_posteriors(np.random.default_rng(3), 30, 2.0))
    starts = [0, 11, len(found) - 2]
    strings = [b"some", b"son", b"m"]
    together = found.odds(starts, strings, 90)
    for i, (start, string) in enumerate(zip(starts, strings, strict=True)):
        alone = found.odds([start], [string], 14)
        n_rows = min(15, len(found) - start + 1)
        assert together[i, :n_rows].tolist() == alone[0, :n_rows].tolist()


def test_nothing_comes_to_its_end_behind_the_last_row() -> None:
    found = lattice(spoken("pump"))
    start = len(found) - 3
    odds = found.odds([0, start], [b"pump", b"pump"], len(found) + 9)
    assert odds[0, len(found)] == pytest.approx(0, abs=1e-3) and (odds[1] < -1e6).all()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31))
def test_what_is_near_is_what_some_row_holds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    found = lattice(random_posteriors(rng, int(rng.integers(1, 60)), 2.0))
    rows = sorted(rng.integers(0, len(found), 3).tolist())
    units = np.array([BLANK, *(np.frombuffer(b"eta ", np.uint8) + 1)])
    below = found.log_probs[:, found.columns[units]] - found.peaks[:, None]
    for some, n_rows in zip(found.near(units, rows), (10, 20), strict=True):
        assert some.tolist() == [below[row : row + n_rows].max(0).tolist() for row in rows]


def test_no_probabilities_make_no_lattice() -> None:
    assert lattice_of(unheard()) is None
    assert lattice_of(unheard(7)) is None
    assert lattice_of(unheard(7, np.inf)) is None
    one = spoken("one")
    broken = one.log_probs.copy()
    broken[4, 7] = np.nan
    assert lattice_of(Posteriors(frames=one.frames, log_probs=broken, n_ctx=500)) is None
    assert lattice_of(Posteriors(frames=one.frames[::-1], log_probs=one.log_probs, n_ctx=500)) is None
    assert lattice_of(Posteriors(frames=one.frames[1:], log_probs=one.log_probs, n_ctx=500)) is None
    assert lattice_of(Posteriors(frames=one.frames, log_probs=one.log_probs[:, :9], n_ctx=500)) is None
    assert lattice(unheard(7, -np.inf)).spelling() == []
