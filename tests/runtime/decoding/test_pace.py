"""Windows with drafts are held against windows without: an account that believes too much is found out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from specedge.runtime.decoding import payoff as pace_module
from specedge.runtime.decoding.payoff import Pace, Payoff, Prices
from specedge.runtime.device import CostTable

FREE = CostTable((1, 64), (1.0, 1.0))
N_TOKENS = 9  # and the end of the text: ten passes without drafts


class Clock:
    def __init__(self) -> None:
        self.now = 1.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(pace_module.time, "perf_counter", found)
    return found


def drafted(pace: Pace, clock: Clock, seconds: float, account: float, n_tokens: int = N_TOKENS) -> None:
    pace.begin()
    clock.now += seconds
    pace.drafted(n_tokens, account)


def plain(pace: Pace, clock: Clock, seconds: float, n_tokens: int = N_TOKENS) -> None:
    pace.begin()
    clock.now += seconds
    pace.plain(n_tokens)


def test_the_error_is_what_the_clock_says_less_what_the_account_says(clock: Clock) -> None:
    pace = Pace()
    for _ in range(2):
        drafted(pace, clock, seconds=12.0, account=3.0)
        drafted(pace, clock, seconds=12.0, account=3.0)
        assert pace.is_due and pace.error == 0.0
        plain(pace, clock, seconds=10.0)
        assert not pace.is_due
    assert pace.error == pytest.approx(-5.0), "two passes lost, three believed to be won"


def test_a_machine_that_is_slow_for_a_while_is_no_error(clock: Clock) -> None:
    pace = Pace()
    for slow in (1.0, 4.0, 1.0, 2.0):
        for _ in range(3):
            drafted(pace, clock, seconds=8.0 * slow, account=2.0)
        plain(pace, clock, seconds=10.0 * slow)
    assert pace.error == pytest.approx(0.0)


@pytest.mark.parametrize(
    "spoil", [lambda pace, clock: plain(pace, clock, 50.0, n_tokens=0), lambda pace, _: pace.plain(9)]
)
def test_texts_thrown_away_and_further_attempts_say_nothing(clock: Clock, spoil: Callable[[Pace, Clock], None]) -> None:
    pace = Pace()
    for _ in range(2):
        drafted(pace, clock, seconds=10.0, account=0.0)
        drafted(pace, clock, seconds=10.0, account=0.0)
        spoil(pace, clock)
        drafted(pace, clock, seconds=99.0, account=0.0, n_tokens=0)
        plain(pace, clock, seconds=10.0)
    assert pace.error == pytest.approx(0.0)


def test_who_wins_clearly_need_not_look(clock: Clock) -> None:
    pace = Pace()
    for _ in range(40):
        drafted(pace, clock, seconds=5.0, account=5.0)
        assert not pace.is_due


def windows_heard(clock: Clock, n_windows: int, *, drafted_s: float) -> int:
    """How many windows are heard whose account says two passes of ten are won; without drafts they take 10 ms."""
    payoff = Payoff(Prices(FREE, draft_cost=0.0, window_cost=0.0), Pace())
    n_heard = 0
    for _ in range(n_windows):
        if payoff.begin():
            n_heard += 1
            payoff.heard(0.0)
            payoff.passed(0.001, draft_s=0.0, n_pending=1, n_drafted=3, n_accepted=2)
            clock.now += drafted_s
        else:
            clock.now += 0.010
        payoff.end(N_TOKENS)
    return n_heard


def test_windows_that_lose_by_the_clock_are_let_pass_whatever_the_account_says(clock: Clock) -> None:
    assert windows_heard(clock, 200, drafted_s=0.0125) < 30


def test_windows_that_win_by_the_clock_are_heard_but_for_those_that_show_it(clock: Clock) -> None:
    assert 175 < windows_heard(clock, 200, drafted_s=0.008) < 190
