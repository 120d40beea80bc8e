"""Calibrated confidences: a drafter is held to what came of its guesses."""

from __future__ import annotations

from specedge.runtime.decoding.payoff import Guesses
from specedge.runtime.device import CostTable

FREE = CostTable((1, 64), (1.0, 1.0))


def test_several_paths_cost_more_than_their_rows() -> None:
    guesses = Guesses(CostTable((1, 64), (1.0, 1.0), several_paths=0.75))
    assert guesses.gain(2.0, 8, 1, 2) == guesses.gain(2.0, 8, 1) - 0.75


def test_a_boaster_is_believed_less_and_a_modest_drafter_more() -> None:
    guesses = Guesses(FREE)
    for _ in range(60):
        guesses.count(0.9, "boast", accepted=False)
        guesses.count(0.5, "modest", accepted=True)
    assert guesses.believed(0.9, "boast") < 0.15
    assert 0.5 < guesses.believed(0.5, "modest") <= 0.98
    assert guesses.believed(0.4, "unknown") == 0.4


def test_trust_comes_back() -> None:
    guesses = Guesses(FREE)
    for _ in range(100):
        guesses.count(0.9, "x", accepted=False)
    low = guesses.believed(0.9, "x")
    for _ in range(150):
        guesses.count(0.9, "x", accepted=True)
    assert guesses.believed(0.9, "x") > 4 * low
