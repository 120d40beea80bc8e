"""Calibrated confidences: a drafter is held to what came of its guesses."""

from __future__ import annotations

from specedge.runtime.decoding.payoff import Gate
from specedge.runtime.device import CostTable

FREE = CostTable((1, 64), (1.0, 1.0))


def test_several_paths_cost_more_than_their_rows() -> None:
    gate = Gate(CostTable((1, 64), (1.0, 1.0), several_paths=0.75), margin=0.0)
    assert gate.gain(2.0, 8, 1, 2) == gate.gain(2.0, 8, 1) - 0.75


def test_a_boaster_is_believed_less_and_a_modest_drafter_more() -> None:
    gate = Gate(FREE)
    for _ in range(60):
        gate.learn(0.9, "boast", accepted=False)
        gate.learn(0.5, "modest", accepted=True)
    assert gate.believed(0.9, "boast") < 0.15
    assert 0.5 < gate.believed(0.5, "modest") <= 0.98
    assert gate.believed(0.4, "unknown") == 0.4


def test_trust_comes_back() -> None:
    gate = Gate(FREE)
    for _ in range(100):
        gate.learn(0.9, "x", accepted=False)
    low = gate.believed(0.9, "x")
    for _ in range(150):
        gate.learn(0.9, "x", accepted=True)
    assert gate.believed(0.9, "x") > 4 * low
