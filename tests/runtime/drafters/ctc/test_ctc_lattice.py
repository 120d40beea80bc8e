"""The lattice of what was heard: the likeliest spelling, and the score of any other, against the slow way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specedge.runtime.drafters.ctc.head import BLANK, Posteriors
from specedge.runtime.drafters.ctc.lattice import Lattice, lattice_of
from support.posteriors import random_posteriors, spoken


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
