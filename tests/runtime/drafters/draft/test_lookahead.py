"""How many tokens a draft model drafts: each rule's numbers, and that drafts which do not pay are not made."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specedge.errors import UsageError
from specedge.runtime.decoding.payoff import Prices
from specedge.runtime.device import DEFAULT_COSTS, CostTable
from specedge.runtime.drafters.draft.lookahead import N_SIGNS, Confidence, CostOptimal, Fixed, Rule, make_lookahead

_SIGNS = np.zeros(N_SIGNS, np.float32)
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


@pytest.mark.parametrize("said", ["cost", "adaptive"])
@pytest.mark.parametrize("rate", [0.0, 0.3, 0.9])
def test_no_draft_costs_more_than_a_twentieth(said: str, rate: float) -> None:
    """A stream of windows at true prices, over a draft that boasts, is slow beside its target, or is good."""
    for draft_cost, window_cost in ((0.05, 2.0), (0.3, 3.0), (0.5, 16.0), (1.2, 1.0)):
        rule, rng = make_lookahead(said, prices(draft_cost, window_cost, DEFAULT_COSTS)), random.Random(4)
        cost, n_tokens, n_windows, length = 0.0, 0, 60, 40
        for _ in range(n_windows):
            begun, left, is_heard = rule.begin(), length, False
            while left > 0:
                sure, n = [], 0
                limit = rule.limit(1) if begun else 0
                while len(sure) < limit and (not sure or rule.goes_on(sure, [_SIGNS] * len(sure))):
                    sure.append(0.8)
                is_heard = is_heard or bool(sure)
                while n < len(sure) and rng.random() < rate:
                    n += 1
                rule.learn(sure, n, refused=n < len(sure), signs=[_SIGNS] * len(sure))
                n_rows = 1 + len(sure)
                cost += DEFAULT_COSTS.cost(n_rows + n_rows % 2) if sure else 1.0
                cost += draft_cost * len(sure)
                n_tokens, left = n_tokens + min(n + 1, left), left - n - 1
            cost += window_cost * is_heard
            rule.end(length)
        assert n_tokens / cost >= 0.95, (draft_cost, window_cost)


def test_a_try_waits_until_it_costs_a_small_share_of_the_passes_since() -> None:
    for window_cost, most in ((30.0, 0), (1.0, 5)):  # an encoder of its own; a shared one, and acceptance that fell
        rule = CostOptimal(prices(0.3, window_cost, rows=DEFAULT_COSTS))
        for _ in range(60):
            rule.learn([0.8], 0, refused=True)
        begun = []
        for _ in range(40):
            begun.append(rule.begin())
            rule.end(13)
        assert sum(begun) <= most, "the demo's windows: 13 tokens"
        assert (window_cost + 2.4) * sum(begun) <= 0.02 * 13 * len(begun)
        for _ in range(2000):
            begun.append(rule.begin())
            rule.end(13)
        assert sum(begun) > most, "prices and acceptance may have changed"


def test_passes_behind_a_draft_are_held_against_those_without() -> None:
    seen = prices(0.3, 5.0)
    for _ in range(8):
        for n_rows in (4, 4, 6, 4):
            seen.saw_draft(0.002)
            seen.saw_pass(0.015 * LINE.cost(n_rows), n_rows)
        assert seen.wants_plain or seen.held_up > 1
        seen.saw_plain(0.01)
        seen.saw_plain(0.5)  # behind a pass without a draft: says nothing of drafts
    assert seen.held_up == pytest.approx(1.5) and seen.pass_s == pytest.approx(0.01)
    assert seen.draft_cost == pytest.approx(0.2)
    assert seen.behind_drafts.cost(1) == 1 and seen.behind_drafts.cost(8) == pytest.approx(1.5 * LINE.cost(8))
    assert seen.behind_drafts.speed(3, 0.75, 0.2) == pytest.approx(2.734375 / (1.5 * LINE.cost(4) + 3 * 0.2))


def test_a_pass_without_a_draft_is_made_where_drafts_pay() -> None:
    seen = prices(0.02)
    rule = CostOptimal(seen)
    assert rule.begin()
    limits = []
    for _ in range(10):
        limits.append(rule.limit(1))
        if limits[-1]:
            seen.saw_pass(0.01, 1 + limits[-1])
        else:
            seen.saw_plain(0.01)
    assert [i for i, n in enumerate(limits) if not n] == [4, 9]


def test_what_is_seen_takes_the_place_of_the_guess() -> None:
    seen = prices(0.9, 90.0)
    for _ in range(5):
        seen.saw_draft(0.002)
    seen.saw_window(0.05)
    assert (seen.draft_cost, seen.window_cost) == (0.9, 90.0)
    for n_rows in (1, 2, 5, 6, 2):
        seen.saw_pass(0.01 * LINE.cost(n_rows + n_rows % 2), n_rows)
    assert seen.draft_cost == pytest.approx(0.2) and seen.window_cost == pytest.approx(5.0)


def test_fixed_prices_go_by_no_clock() -> None:
    """An experiment that composes its speed from prices fell silent with its adaptive head on a busy machine."""
    moving, fixed = prices(), Prices(LINE, draft_cost=0.05, window_cost=0.0, is_fixed=True)
    for each in (moving, fixed):
        for _ in range(40):
            each.saw_window(9.0)
            each.saw_draft(9.0)
            each.saw_pass(0.001, 4)
            if each.wants_plain:
                each.saw_plain(0.001)
    assert moving.draft_cost > 100 and not CostOptimal(moving).begin()
    assert (fixed.draft_cost, fixed.window_cost, fixed.behind_drafts) == (0.05, 0.0, LINE)
    assert not fixed.wants_plain and CostOptimal(fixed).limit(1) > 1
