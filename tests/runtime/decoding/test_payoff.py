"""Whether windows are heard at all, and how times of segments are learnt."""

from __future__ import annotations

from specedge.runtime.decoding.payoff import Balance, Payoff, Prices
from specedge.runtime.device import CostTable
from specedge.runtime.drafters.ctc.drafter import SegmentTimes

FREE = CostTable((1, 64), (1.0, 1.0))


def heard_of(payoff: Payoff, n_windows: int, *, n_accepted: int, n_tokens: int = 12) -> int:
    """How many of so many windows were heard, where hearing takes five passes' time."""
    n = 0
    for _ in range(n_windows):
        if payoff.begin():
            n += 1
            payoff.heard(0.005)
            for _ in range(6):
                payoff.passed(0.001, draft_s=0.0, n_pending=1, n_drafted=3, n_accepted=n_accepted)
        payoff.end(n_tokens)
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


def test_tries_cost_a_small_share_of_short_windows_too() -> None:
    for n_tokens in (5, 50):
        payoff = Payoff(Prices(FREE, draft_cost=0.0, window_cost=5.0))
        n_first = heard_of(payoff, 4, n_accepted=0, n_tokens=n_tokens)
        n_tries = heard_of(payoff, 400, n_accepted=0, n_tokens=n_tokens)
        assert n_first == 1 and 0 < 5 * n_tries < 0.035 * 400 * n_tokens, "five passes a try"


def test_one_good_window_ends_a_pause_and_a_little_won_only_halves_it() -> None:
    for won, n_silent in ((0.5, 4), (4.0, 0)):
        balance = Balance()
        for _ in range(3):
            while not balance.begin():
                balance.pass_by(1000)
            balance.end(9.0)
        while not balance.begin():
            balance.pass_by(1000)
        balance.saved = 9.0 + won
        balance.end(9.0)
        assert [balance.begin() for _ in range(n_silent + 1)] == [False] * n_silent + [True]


def test_a_draft_that_was_held_up_counts_little() -> None:
    payoff = Payoff(Prices(FREE, draft_cost=0.0, window_cost=1.0))
    assert payoff.begin()
    for draft_s in (0.0001,) * 8 + (0.05,):
        payoff.passed(0.001, draft_s=draft_s, n_pending=1, n_drafted=3, n_accepted=0)
    assert not payoff.is_lost


def test_drafts_that_are_dear_now_and_then_count_in_full() -> None:
    """Behind each correction drafting takes ten times as long: that is no accident."""
    payoff = Payoff(Prices(FREE, draft_cost=0.0, window_cost=0.0))
    n_windows = 0
    for _ in range(40):
        if payoff.begin():
            n_windows += 1
            payoff.heard(0.0)
            for draft_s in (0.0001, 0.0001, 0.0035):
                payoff.passed(0.001, draft_s=draft_s, n_pending=1, n_drafted=3, n_accepted=1)
        payoff.end(6)
    assert n_windows < 12, "three tokens saved, 3.7 passes spent"


def test_a_window_whose_drafts_only_lose_gets_no_more_of_them() -> None:
    payoff = Payoff(Prices(FREE, draft_cost=0.0, window_cost=1.0))
    assert payoff.begin()
    n_passes = 0
    while not payoff.is_lost and n_passes < 100:
        payoff.passed(0.001, draft_s=0.0005, n_pending=1, n_drafted=3, n_accepted=0)
        n_passes += 1
    assert 5 < n_passes < 30
    payoff.end(12)
    assert payoff.begin() and not payoff.is_lost


def test_a_window_on_trial_is_given_up_sooner() -> None:
    balance = Balance()
    balance.saved = -2.0
    assert not balance.is_lost
    balance.end(price=10.0)
    balance.saved = -2.0
    assert balance.is_silent and balance.is_lost


def asked_in(payoff: Payoff, speeds: list[float], *, draft_takes: float) -> list[int]:
    """Drafts in windows of ten passes on a machine that is so slow in each; every other draft saves a pass.

    A pass takes 1 ms, and `draft_takes` times that behind a draft.
    """
    asked = []
    for speed in speeds:
        n, is_heard = 0, payoff.begin()
        for at in range(10):
            if not is_heard or payoff.is_lost:
                continue
            if payoff.wants_plain:
                payoff.plain(0.001 * speed)
                continue
            if not n:
                payoff.heard(0.0)
            payoff.passed(0.001 * speed * draft_takes, draft_s=0.0001, n_pending=1, n_drafted=3, n_accepted=at % 2)
            n += 1
        payoff.end(12)
        asked.append(n)
    return asked


def test_a_machine_that_is_slow_for_a_while_is_no_fault_of_the_drafts() -> None:
    slow_now_and_then = [1.0, 1.0, 1.0, 3.0, 3.0, 1.0, 5.0, 5.0, 5.0, 1.0] * 3
    asked = asked_in(Payoff(Prices(FREE, draft_cost=0.0, window_cost=0.0)), slow_now_and_then, draft_takes=1.1)
    assert min(asked) >= 8


def test_drafts_whose_passes_take_longer_than_they_save_are_found_out() -> None:
    asked = asked_in(Payoff(Prices(FREE, draft_cost=0.0, window_cost=0.0)), [1.0] * 60, draft_takes=1.6)
    assert asked[0] >= 8 and sum(asked[30:]) < 50


def test_the_place_with_the_steadiest_distance_is_believed() -> None:
    times = SegmentTimes()
    assert times.guess("end", [50, 60])[0] == 50
    for i in range(12):
        times.learn("end", [40 + 3 * i % 7, 90 + i], 93 + i)
    step, sure = times.guess("end", [10, 70])
    assert step == 73 and sure > 0.8
    assert times.guess("next", [4])[1] < 0.5
    assert times.guess("first", [0, 7]) == (0, 0.5)


def test_times_that_scatter_are_guessed_at_their_middle() -> None:
    times = SegmentTimes()
    for step in (60, 60, 50, 51, 52, 51, 50, 52):
        times.learn("last", [0], step)
    step, sure = times.guess("last", [0])
    assert step == 51 and 0.2 < sure < 0.8
