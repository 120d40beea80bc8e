"""The arithmetic of drafts: costs between the measured rows, and lengths that pay."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specedge.errors import UsageError
from specedge.runtime.device import DEFAULT_COSTS, CostTable

LINEAR = CostTable((1, 3), (1.0, 2.0))


def test_costs_between_and_beyond_the_rows() -> None:
    assert [LINEAR.cost(k) for k in (1, 2, 3, 5)] == [1, 1.5, 2, 3]
    assert DEFAULT_COSTS.cost(1) == DEFAULT_COSTS.cost(2) == 1
    assert DEFAULT_COSTS.cost(6) == pytest.approx((1.2 + 1.55) / 2)


def test_gain_is_tokens_saved_less_rows_paid() -> None:
    assert LINEAR.expected_gain([1.0, 0.5]) == pytest.approx(1 + 0.5 - 1)
    assert LINEAR.expected_gain([]) == 0
    assert LINEAR.best_prefix([0.9, 0.1, 0.1]) == (1, pytest.approx(0.4))
    assert LINEAR.best_prefix([0.4, 1.0]) == (0, 0.0)  # the second cannot make up for the first
    assert LINEAR.best_prefix([0.4, 1.0, 1.0, 1.0]) == (0, 0.0)
    assert CostTable((1, 2, 9), (1.0, 2.0, 2.0)).best_prefix([0.9, 0.9]) == (2, pytest.approx(0.71))


@given(confidences=st.lists(st.floats(0, 1), max_size=12))
def test_the_best_prefix_is_the_best(confidences: list[float]) -> None:
    gains = [DEFAULT_COSTS.expected_gain(confidences[:n]) for n in range(len(confidences) + 1)]
    n, gain = DEFAULT_COSTS.best_prefix(confidences)
    assert gain == pytest.approx(max(gains)) and gain == pytest.approx(gains[n])


def test_the_best_length_grows_with_acceptance() -> None:
    lengths = [DEFAULT_COSTS.best_length(alpha / 20) for alpha in range(21)]
    assert lengths == sorted(lengths) and lengths[-1] > 8
    assert CostTable((1, 2, 4), (1.0, 1.8, 3.0)).best_length(0.3) == 0


@pytest.mark.parametrize(
    ("rows", "relative"),
    [
        ((1,), (1.0,)),
        ((2, 4), (1.0, 2.0)),
        ((1, 1), (1.0, 2.0)),
        ((1, 2), (1.0,)),
        ((1, 2), (2.0, 3.0)),
        ((1, 2), (1.0, float("nan"))),
    ],
)
def test_tables_that_cannot_be(rows: tuple[int, ...], relative: tuple[float, ...]) -> None:
    with pytest.raises(UsageError, match="cost table"):
        CostTable(rows, relative)


@pytest.mark.parametrize("beyond", [-0.1, float("nan"), float("inf")])
def test_several_paths_cannot_cost_less_than_their_rows(beyond: float) -> None:
    with pytest.raises(UsageError, match="several_paths"):
        CostTable((1, 2), (1.0, 1.0), several_paths=beyond)
