"""How many tokens a draft model drafts: each policy's numbers, and that drafts which do not pay cost little."""

from __future__ import annotations

import pytest

from specedge.errors import UsageError
from specedge.runtime.device import CostTable
from specedge.runtime.drafters.draft.lookahead import CostOptimal, DraftCost, Lookahead, make_lookahead
from specedge.runtime.papers.lookahead import Rule

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


def test_a_draft_that_is_never_right_becomes_short_and_one_that_is_becomes_long_again() -> None:
    rule = CostOptimal(LINE, fixed(0.05))

    def length() -> int:
        return next((n for n in range(1, 16) if not rule.goes_on([0.8] * n)), 16)

    assert length() > 4
    for _ in range(100):
        rule.learn([0.8] * length(), 0, refused=True)
    assert length() == 1, "the clock says whether even that pays"
    for _ in range(300):
        n = length()
        rule.learn([0.8] * n, n, refused=False)
    assert length() > 8


def test_tokens_that_do_not_pay_for_their_rows_are_not_verified() -> None:
    dear = CostTable((1, 2, 64), (1.0, 1.0, 19.6))  # 0.3 a row behind the second
    rule = CostOptimal(dear, fixed(0.05))
    assert [rule.worth(said) for said in ([], [0.1], [0.9, 0.9], [0.9, 0.1], [0.9, 0.9, 0.9, 0.1])] == [0, 1, 2, 1, 3]
    assert Lookahead(4).worth([0.9, 0.1]) == 2


def test_another_token_is_drafted_while_it_saves_more_than_it_costs() -> None:
    """It is reached with the product of the confidences, comes true as often as 0.75 says at first, and costs a
    pass of the draft and what its row adds: 0.04 behind the second."""
    cost = fixed(0.3)
    rule = CostOptimal(LINE, cost)
    assert rule.goes_on([0.6, 0.8]) and not rule.goes_on([0.6, 0.7])  # 0.36 and 0.315 beside 0.34
    for seconds in (0.002, 0.002, 0.009, 0.002):
        cost.saw(seconds)
    cost.plain_s = 0.01
    assert cost.value == 0.3, "too few yet"
    cost.saw(0.002)
    assert cost.value == pytest.approx(0.2) and rule.goes_on([0.6, 0.7])
