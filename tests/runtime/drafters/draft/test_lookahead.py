"""How many tokens a draft model drafts: each policy's numbers, and that drafts which do not pay cost little."""

from __future__ import annotations

import numpy as np
import pytest

from specedge.errors import UsageError
from specedge.runtime.device import CostTable
from specedge.runtime.drafters.draft.lookahead import CostOptimal, DraftCost, Lookahead, make_lookahead
from specedge.runtime.papers.lookahead import N_SIGNS, Rule

_SIGNS = np.zeros(N_SIGNS, np.float32)
LINE = CostTable((1, 2, 64), (1.0, 1.0, 3.48))  # 0.04 a row behind the second


def fixed(cost: float) -> DraftCost:
    return DraftCost(cost)


def test_names() -> None:
    kinds = {"cost": CostOptimal, "rule": Rule, "7": Lookahead}
    for said, kind in kinds.items():
        assert type(make_lookahead(said, LINE, fixed(0.05))) is kind
    assert [make_lookahead(n, LINE, fixed(0.05)).limit() for n in ("1", "7", "64")] == [1, 7, 64]
    assert make_lookahead("7", LINE, fixed(0.05)).goes_on([0.01]), "whatever the draft thinks of it"
    for wrong in ("", "-1", "0", "65", "١", "fixed"):
        with pytest.raises(UsageError, match="lookahead"):
            make_lookahead(wrong, LINE, fixed(0.05))


def test_the_published_rule() -> None:
    rule = Rule(longest=5)
    assert rule.limit() == 3
    steps = []
    for n_accepted in (3, 4, 5, 5, 2, 1, 1, 1, 0, 0, 0):
        drafted = rule.limit()
        rule.learn([0.5] * drafted, min(n_accepted, drafted), refused=n_accepted < drafted)
        steps.append(rule.limit())
    # 3/3, 4/4, 5/5 rise to the top and stay; 2/5 stays, 1/5 falls, 1/4 falls, 1/3 stays, none falls to 1 at last.
    assert steps == [4, 5, 5, 5, 5, 4, 3, 3, 2, 1, 1]
    rule.learn([], 0, refused=False)
    assert rule.limit() == 1


def test_longer_drafts_for_cheap_models_that_are_right() -> None:
    cheap, dear = (CostOptimal(LINE, fixed(cost)) for cost in (0.02, 0.3))
    assert cheap.limit() > dear.limit() > 0
    for _ in range(200):
        cheap.learn([0.9] * 4, 4, refused=False)
    assert cheap.rate > 0.98 and cheap.limit() > 8


def test_a_token_is_drafted_only_where_it_is_worth_its_pass() -> None:
    rule = CostOptimal(LINE, fixed(0.2))
    assert rule.goes_on([0.9]) and not rule.goes_on([0.2])
    free = CostOptimal(CostTable((1, 64), (1.0, 1.0)), fixed(0.0))
    assert free.goes_on([0.01])


def test_a_token_must_be_worth_its_row_too() -> None:
    """Drafting it costs 0.3; the third row of a pass costs 0.5 and the fifth too, the fourth nothing."""
    steps = CostTable((1, 2, 3, 4, 5, 64), (1.0, 1.0, 1.5, 1.5, 2.0, 2.0))
    rule = CostOptimal(steps, fixed(0.3))
    assert not rule.goes_on([0.99]), "0.75 at most, for 0.8"
    assert rule.goes_on([0.99, 0.99])
    assert not rule.goes_on([0.99, 0.99, 0.99])


def test_a_draft_that_is_never_right_becomes_short_and_one_that_is_becomes_long_again() -> None:
    rule = CostOptimal(LINE, fixed(0.05))
    for _ in range(100):
        rule.learn([0.8] * rule.limit(), 0, refused=True)
    assert rule.limit() == 1, "the clock says whether even that pays"
    for _ in range(300):
        n = rule.limit()
        rule.learn([0.8] * n, n, refused=False)
    assert rule.limit() > 4


def test_the_cost_of_a_token_is_the_median_of_the_latest_times() -> None:
    cost = DraftCost(0.9)
    cost.plain_s = 0.01
    for n, expected in ((4, 0.9), (1, 0.2)):
        for _ in range(n):
            cost.saw(0.002)
        assert cost.value == pytest.approx(expected), "five times are enough, four are not"
    for _ in range(15):
        cost.saw(0.004)
    assert cost.value == pytest.approx(0.4)
    for n, expected in ((7, 0.4), (1, 0.8)):  # eight of the latest fifteen decide
        for _ in range(n):
            cost.saw(0.008)
        assert cost.value == pytest.approx(expected)


def test_the_cost_of_a_token_is_guessed_until_a_pass_of_the_target_was_measured() -> None:
    cost = DraftCost(0.9)
    for _ in range(8):
        cost.saw(0.002)
    assert cost.value == 0.9
    cost.plain_s = 0.01
    cost.saw(0.002)
    assert cost.value == pytest.approx(0.2)
