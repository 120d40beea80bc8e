"""How many tokens a draft model drafts: each rule's numbers, and that drafts which do not pay are not made."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specedge.runtime.decoding.costs import DEFAULT_COSTS, CostTable
from specedge.runtime.drafters.lookahead import Confidence, CostOptimal, Fixed, Rule, make_lookahead
from specedge.runtime.drafters.prices import Prices
from specedge.runtime.errors import UsageError

LINE = CostTable((1, 2, 64), (1.0, 1.0, 3.48))  # 0.04 a row behind the second


def prices(draft_cost: float = 0.05, window_cost: float = 1.0, rows: CostTable = LINE) -> Prices:
    return Prices(rows, draft_cost=draft_cost, window_cost=window_cost)


def test_names() -> None:
    kinds = {"cost": CostOptimal, "rule": Rule, "confidence": Confidence, "7": Fixed}
    for said, kind in kinds.items():
        assert type(make_lookahead(said, prices())) is kind
    assert make_lookahead("7", prices()).limit(1) == 7
    for wrong in ("", "-1", "0", "65", "١", "fixed"):
        with pytest.raises(UsageError, match="lookahead"):
            make_lookahead(wrong, prices())


def test_the_published_rule() -> None:
    rule = Rule(longest=5)
    steps = []
    for n_accepted in (3, 4, 5, 5, 2, 1, 1, 1, 0, 0, 0):
        drafted = rule.limit(1)
        rule.learn([0.5] * drafted, min(n_accepted, drafted), refused=n_accepted < drafted)
        steps.append(rule.limit(1))
    # 3/3, 4/4, 5/5 rise to the top and stay; 2/5 stays, 1/5 falls, 1/4 falls, 1/3 stays, none falls to 1 at last.
    assert steps == [4, 5, 5, 5, 5, 4, 3, 3, 2, 1, 1]
    rule.learn([], 0, refused=False)
    assert rule.limit(1) == 1


def test_the_confidence_stop() -> None:
    rule = Confidence(threshold=0.4)
    assert rule.goes_on([0.9, 0.41]) and not rule.goes_on([0.9, 0.39])
    assert rule.begin() and rule.limit(3) == 16


@given(
    alpha=st.floats(0.05, 0.98),
    cost=st.floats(0.0, 1.5),
    slope=st.floats(0.0, 0.4),
)
def test_k_star_is_the_best_of_all_lengths(alpha: float, cost: float, slope: float) -> None:
    rows = CostTable((1, 2, 66), (1.0, 1.0 + slope, 1.0 + 65 * slope))
    best = rows.best_length(alpha, cost)
    speeds = [(1 - alpha ** (n + 1)) / (1 - alpha) / (rows.cost(n + 1) + n * cost) for n in range(65)]  # algorithms 2.4
    assert speeds[best] == pytest.approx(max(speeds))


def test_figures_of_the_paper() -> None:
    free = CostTable((1, 64), (1.0, 1.0))
    assert free.speed(5, 0.6) == pytest.approx(2.38, abs=0.005)
    assert free.speed(3, 0.4) == pytest.approx(1.62, abs=0.005)


def test_longer_drafts_for_cheap_models_that_are_right() -> None:
    cheap, dear = CostOptimal(prices(0.02)), CostOptimal(prices(0.3))
    assert cheap.limit(1) > dear.limit(1) > 0
    for _ in range(200):
        cheap.learn([0.9] * 4, 4, refused=False)
    assert cheap.rate > 0.98 and cheap.limit(1) > 8


def test_a_token_is_drafted_only_where_it_is_worth_its_pass() -> None:
    rule = CostOptimal(prices(0.2))
    assert rule.goes_on([0.9]) and not rule.goes_on([0.2])
    free = CostOptimal(prices(0.0, rows=CostTable((1, 64), (1.0, 1.0))))
    assert free.goes_on([0.01])


def test_drafts_that_are_never_right_end_and_are_tried_again_ever_less() -> None:
    rule = CostOptimal(prices())
    drafts = []
    for _ in range(300):
        n_drafts = 0
        if rule.begin():
            for _ in range(20):
                n = rule.limit(1)
                n_drafts += n > 0
                rule.learn([0.8] * n, 0, refused=n > 0)
        rule.end(20)
        drafts.append(n_drafts)
    assert drafts[0] > 3
    assert sum(drafts[50:]) <= 4 * 8 and max(drafts[50:]) <= 4
    assert sum(drafts[50:]) > 0


def test_a_draft_that_becomes_good_is_used_again() -> None:
    rule = CostOptimal(prices())
    while rule.begin():
        for _ in range(20):
            rule.learn([0.8] * rule.limit(1), 0, refused=True)
        rule.end(20)
    for _ in range(400):
        if rule.begin():
            for _ in range(20):
                n = rule.limit(1)
                rule.learn([0.8] * n, n, refused=False)
        rule.end(20)
    assert rule.limit(1) > 4


@pytest.mark.parametrize(
    ("draft_cost", "window_cost"),
    [(1.2, 1.0), (0.05, 60.0), (0.5, 16.0)],
    ids=["dearer than the target", "an encoder of its own beside a small decoder", "the demo's like"],
)
def test_a_draft_that_cannot_pay_is_not_asked(draft_cost: float, window_cost: float) -> None:
    rule = CostOptimal(prices(draft_cost, window_cost, rows=DEFAULT_COSTS))
    begun = []
    for _ in range(64):
        begun.append(rule.begin())
        rule.end(25)
    assert not any(begun[:15]) and sum(begun) <= 3


def test_what_is_seen_takes_the_place_of_the_guess() -> None:
    seen = prices(0.9, 90.0)
    for _ in range(5):
        seen.saw_draft(0.002)
    seen.saw_window(0.05)
    assert (seen.draft_cost, seen.window_cost) == (0.9, 90.0)
    for n_rows in (1, 2, 5, 6, 2):
        seen.saw_pass(0.01 * LINE.cost(n_rows + n_rows % 2), n_rows)
    assert seen.draft_cost == pytest.approx(0.2) and seen.window_cost == pytest.approx(5.0)
