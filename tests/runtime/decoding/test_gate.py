"""The gate: what it lets through pays by its own prices, and it stops believing who is wrong."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specedge.runtime.decoding.payoff import Gate
from specedge.runtime.device import DEFAULT_COSTS, CostTable

FREE = CostTable((1, 64), (1.0, 1.0))
DEAR = CostTable((1, 2, 64), (1.0, 2.5, 96.0))
BELIEFS = st.lists(st.floats(0.0, 1.0), max_size=24)


@given(BELIEFS, st.integers(1, 8))
def test_the_chosen_length_is_the_best_of_all(beliefs: list[float], n_pending: int) -> None:
    gate = Gate(DEFAULT_COSTS, margin=0.0)
    n, gain = gate.best_chain(beliefs, n_pending)
    reached = list(itertools.accumulate(beliefs, lambda a, b: a * b))
    gains = [gate.gain(sum(reached[:k]), n_pending + k, n_pending) for k in range(len(beliefs) + 1)]
    hopeful = 1 + sum(1 for r in reached if r >= 0.03)
    assert gain == pytest.approx(max(gains[:hopeful]), abs=1e-9)
    assert gains[n] == pytest.approx(gain, abs=1e-9)


def test_free_rows_are_taken_and_dear_ones_are_not() -> None:
    assert Gate(FREE).best_chain([0.3, 0.9, 0.9], 1)[0] == 3
    assert Gate(DEAR).best_chain([0.99, 0.99], 4)[0] == 0


def test_the_row_that_the_even_row_rule_runs_anyway_costs_what_was_measured() -> None:
    assert Gate(CostTable((1, 2, 64), (1.0, 1.0, 64.0))).best_chain([0.2], 1)[0] == 1
    deciding_on_it = Gate(CostTable((1, 2, 64), (1.0, 1.1, 64.0)))
    assert deciding_on_it.best_chain([0.05], 1)[0] == 0
    assert deciding_on_it.best_chain([0.2], 1)[0] == 1


def test_several_paths_cost_more_than_their_rows() -> None:
    gate = Gate(CostTable((1, 64), (1.0, 1.0), several_paths=0.75), margin=0.0)
    assert gate.price(8, 2) - gate.price(8) == 0.75
    assert gate.gain(2.0, 8, 1, 2) == gate.gain(2.0, 8, 1) - 0.75
    assert gate.tree_price(3, 3) == 0.75


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
