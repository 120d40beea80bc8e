"""Calibrated confidences: a drafter is held to what came of its guesses."""

from __future__ import annotations

from specedge.runtime.decoding.payoff import Guesses
from specedge.runtime.device import CostTable

FREE = CostTable((1, 64), (1.0, 1.0))


def test_a_boaster_is_believed_less_and_a_modest_drafter_more() -> None:
    guesses = Guesses(FREE)
    for _ in range(60):
        guesses.count(0.9, "boast", accepted=False)
        guesses.count(0.5, "modest", accepted=True)
    assert guesses.believed(0.9, "boast") < 0.15
    assert 0.5 < guesses.believed(0.5, "modest") <= 0.98
    assert guesses.believed(0.4, "unknown") == 0.4
