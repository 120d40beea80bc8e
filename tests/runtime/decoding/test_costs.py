"""T(k): costs between the measured rows, and the chain that pays."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specedge.runtime.device import DEFAULT_COSTS, CostTable

LINEAR = CostTable((1, 3), (1.0, 2.0))
BELIEFS = st.lists(st.floats(0.0, 1.0), max_size=24)


def test_costs_between_and_beyond_the_rows() -> None:
    assert [LINEAR.cost(k) for k in (1, 2, 3, 5)] == [1, 1.5, 2, 3]
    assert DEFAULT_COSTS.cost(1) == DEFAULT_COSTS.cost(2) == 1
    assert DEFAULT_COSTS.cost(6) == pytest.approx((1.2 + 1.55) / 2)


def test_a_pass_is_priced_with_the_rows_that_it_runs() -> None:
    assert [LINEAR.price(k) for k in (1, 2, 3, 4)] == [1, 1.5, 2.5, 2.5]
    several = CostTable((1, 64), (1.0, 1.0), several_paths=0.75)
    assert several.price(8, 2) - several.price(8) == 0.75


@given(BELIEFS, st.integers(1, 8), st.sampled_from([0.0, 0.1]))
def test_the_chosen_chain_is_the_best_of_all(beliefs: list[float], n_pending: int, margin: float) -> None:
    n, gain = DEFAULT_COSTS.best_chain(beliefs, n_pending, margin)
    reached = list(itertools.accumulate(beliefs, lambda a, b: a * b))
    free = DEFAULT_COSTS.price(n_pending) - margin
    gains = [sum(reached[:k]) - DEFAULT_COSTS.price(n_pending + k) + free for k in range(len(beliefs) + 1)]
    hopeful = 1 + sum(1 for r in reached if r >= 0.03)
    assert gain == pytest.approx(max(0.0, *gains[:hopeful]), abs=1e-9)
    assert gain == pytest.approx(gains[n] if n else 0.0, abs=1e-9)
