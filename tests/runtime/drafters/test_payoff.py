"""Whether windows are heard at all, and how times of segments are learnt."""

from __future__ import annotations

from specedge.runtime.decoding.costs import CostTable
from specedge.runtime.drafters.payoff import Payoff
from specedge.runtime.drafters.prices import Prices
from specedge.runtime.drafters.segment_times import SegmentTimes

FREE = CostTable((1, 64), (1.0, 1.0))


def heard_of(payoff: Payoff, n_windows: int, *, n_accepted: int) -> int:
    """How many of so many windows were heard, where hearing takes five passes' time."""
    n = 0
    for _ in range(n_windows):
        if payoff.begin():
            n += 1
            payoff.heard(0.005)
            for _ in range(6):
                payoff.passed(0.001, draft_s=0.0, n_pending=1, n_drafted=3, n_accepted=n_accepted)
        payoff.end()
    return n


def test_windows_that_pay_are_all_heard() -> None:
    assert heard_of(Payoff(Prices(FREE, draft_cost=0.0, window_cost=1.0)), 50, n_accepted=2) == 50


def test_windows_that_do_not_are_let_pass_and_tried_again_now_and_then() -> None:
    payoff = Payoff(Prices(FREE, draft_cost=0.0, window_cost=1.0))
    for _ in range(60):
        is_due = payoff.is_due
        assert is_due == bool(heard_of(payoff, 1, n_accepted=0)), "known before the window begins"
    assert heard_of(payoff, 200, n_accepted=0) < 15
    assert heard_of(payoff, 200, n_accepted=3) > 100


def test_a_window_whose_drafts_only_lose_gets_no_more_of_them() -> None:
    payoff = Payoff(Prices(FREE, draft_cost=0.0, window_cost=1.0))
    assert payoff.begin()
    n_passes = 0
    while not payoff.is_lost and n_passes < 100:
        payoff.passed(0.001, draft_s=0.0005, n_pending=1, n_drafted=3, n_accepted=0)
        n_passes += 1
    assert 5 < n_passes < 30
    payoff.end()
    assert payoff.begin() and not payoff.is_lost


def test_the_place_with_the_steadiest_distance_is_believed() -> None:
    times = SegmentTimes()
    assert times.guess("end", [50, 60])[0] == 50
    for i in range(12):
        times.learn("end", [40 + 3 * i % 7, 90 + i], 93 + i)
    step, sure = times.guess("end", [10, 70])
    assert step == 73 and sure > 0.8
    assert times.guess("first", [4])[1] < 0.5


def test_times_that_scatter_are_guessed_at_their_middle() -> None:
    times = SegmentTimes()
    for step in (60, 60, 50, 51, 52, 51, 50, 52):
        times.learn("last", [0], step)
    step, sure = times.guess("last", [0])
    assert step == 51 and 0.2 < sure < 0.8
