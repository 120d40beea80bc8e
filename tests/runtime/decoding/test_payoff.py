"""The account of a drafter: what pays goes on, what does not costs next to nothing, and the clock decides."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from specedge.runtime.decoding import payoff as payoff_module
from specedge.runtime.decoding.payoff import Payoff
from specedge.runtime.device import DEFAULT_COSTS, CostTable
from specedge.runtime.drafters.ctc.drafter import SegmentTimes

FREE = CostTable((1, 64), (1.0, 1.0))


class Clock:
    def __init__(self) -> None:
        self.now = 1.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(payoff_module.time, "perf_counter", found)
    return found


class Decoding:
    """Windows over a drafter that drafts 3 tokens at a time, each of which is right with probability `rate`.

    Times are in plain passes. draft_s: of a draft, window_s: more of the first one in a window; drafted_s: of a pass
    over a draft, whatever T(k) says; speed: of the machine, by the window.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        rate: float,
        draft_s: float = 0.05,
        window_s: float = 1.0,
        drafted_s: float = 1.2,
        costs: CostTable = DEFAULT_COSTS,
        speed: Callable[[int], float] = lambda at: 1.0,
    ) -> None:
        self.clock, self.rate, self.draft_s, self.window_s, self.drafted_s = clock, rate, draft_s, window_s, drafted_s
        self.payoff, self.speed, self.rng = Payoff(costs), speed, random.Random(3)
        self.n_windows = 0

    def window(self, n_tokens: int, n_prompt: int = 4) -> tuple[float, int]:
        """The time of a window, as a share of a plain one, and the number of drafts in it."""
        payoff, clock = self.payoff, self.clock
        slow = self.speed(self.n_windows)
        self.n_windows += 1
        started, n_drafts, left, n_pending = clock.now, 0, n_tokens + 1, n_prompt
        due = payoff.is_due
        assert payoff.begin() == due, "known before the window begins"
        while left > 0:
            n_right, pass_s = 0, 1.0
            if not payoff.is_lost and payoff.ask(n_pending):
                clock.now += slow * (self.draft_s + self.window_s * (not n_drafts))
                n_drafts += 1
                payoff.proposed((n_pending + 3, 1))
                pass_s = self.drafted_s
                while n_right < 3 and self.rng.random() < self.rate:
                    n_right += 1
            clock.now += slow * pass_s
            if not payoff.is_lost:
                payoff.observed(min(n_right, left))
            left, n_pending = left - n_right - 1, 1
        payoff.end(n_tokens)
        return (clock.now - started) / slow / (n_tokens + 1), n_drafts

    def windows(self, n: int, n_tokens: int = 20) -> tuple[float, list[int]]:
        """The mean share of plain decoding's time over `n` windows, and the drafts in each."""
        found = [self.window(n_tokens) for _ in range(n)]
        return sum(share for share, _ in found) / n, [n_drafts for _, n_drafts in found]


def test_what_pays_drafts_in_every_window(clock: Clock) -> None:
    share, drafts = Decoding(clock, rate=0.8).windows(50)
    assert min(drafts) >= 4 and share < 0.6


def test_a_single_window_that_pays_is_drafted_from_its_prompt_on(clock: Clock) -> None:
    share, n_drafts = Decoding(clock, rate=1.0).window(12)
    assert n_drafts >= 3 and share < 0.6


@pytest.mark.parametrize("n_tokens", [2, 8, 20, 100])
@pytest.mark.parametrize(("draft_s", "window_s"), [(0.05, 1.0), (0.3, 3.0), (0.3, 16.0), (1.2, 1.0)])
def test_what_never_comes_true_costs_next_to_nothing(
    clock: Clock, n_tokens: int, draft_s: float, window_s: float
) -> None:
    decoding = Decoding(clock, rate=0.0, draft_s=draft_s, window_s=window_s)
    first, _ = decoding.windows(60, n_tokens)
    later, _ = decoding.windows(300, n_tokens)
    assert first < 1.05 + (window_s + 1) / (n_tokens + 1) / 20 and later < 1.02


def test_what_never_comes_true_costs_a_short_stream_little(clock: Clock) -> None:
    share, drafts = Decoding(clock, rate=0.0).windows(20, 30)
    assert share < 1.03 and drafts[0] > 1


def test_a_window_whose_drafts_only_lose_gets_no_more_of_them(clock: Clock) -> None:
    share, n_drafts = Decoding(clock, rate=0.0, window_s=0.0).window(100)
    assert 2 < n_drafts < 20 and share < 1.05


def test_windows_without_speech_are_heard_once(clock: Clock) -> None:
    """They end with the prompt's pass, for which a drafter on trial does not draft."""
    _, drafts = Decoding(clock, rate=0.0, window_s=2.0).windows(100, n_tokens=0)
    assert sum(drafts) == 1


def test_hearing_is_charged_where_the_drafter_is_told_no_outcome(clock: Clock) -> None:
    """A drafter that rests once it has heard nothing is not asked or told of any pass."""
    payoff = Payoff(DEFAULT_COSTS)
    payoff.plain.saw(1.0, price=1.0, is_drafted=False)
    for _ in range(2):
        assert payoff.begin() and payoff.ask(4)
        clock.now += 3.0
        payoff.proposed((4, 1))
        payoff.end(0)
        if not payoff.is_due:
            return
    pytest.fail("three passes a window were spent on nothing, and nobody noticed")


def test_a_cheap_draft_of_silence_is_not_charged_with_a_pass(clock: Clock) -> None:
    """Where every window ends with the prompt's pass, that one says what a plain pass takes."""
    payoff = Payoff(DEFAULT_COSTS)
    for _ in range(8):
        assert payoff.begin() and payoff.ask(4)
        clock.now += 0.01
        payoff.proposed((4, 1))
        clock.now += 1.0
        payoff.observed(0)
        payoff.end(0)


def test_one_refused_draft_does_not_end_a_new_drafters_window(clock: Clock) -> None:
    payoff = Payoff(DEFAULT_COSTS)
    payoff.begin()
    assert payoff.ask(4)
    payoff.proposed((4 + 13, 1))
    payoff.observed(0)
    assert not payoff.is_lost


def test_drafts_that_become_good_are_used_again(clock: Clock) -> None:
    decoding = Decoding(clock, rate=0.0)
    decoding.windows(60)
    decoding.rate = 0.9
    decoding.windows(200)
    share, _ = decoding.windows(50)
    assert share < 0.6


def test_the_clock_counts_and_not_the_table(clock: Clock) -> None:
    """Rows are free by the table, and a pass over a draft takes twice as long as a plain one."""
    share, drafts = Decoding(clock, rate=0.4, drafted_s=2.0, costs=FREE).windows(200)
    assert share < 1.03 and sum(drafts[50:]) < 60
    share, drafts = Decoding(clock, rate=0.8, drafted_s=1.2, costs=CostTable((1, 2, 64), (1.0, 1.9, 60.0))).windows(50)
    assert share < 0.75, "nor where it says that rows are dear, for a drafter that asks nobody"


def test_a_machine_that_is_slow_for_a_while_is_no_fault_of_the_drafts(clock: Clock) -> None:
    speeds = [1.0, 1.0, 1.0, 3.0, 3.0, 1.0, 5.0, 5.0, 5.0, 1.0]
    share, _ = Decoding(clock, rate=0.8, speed=lambda at: speeds[at % 10]).windows(200, 40)
    assert share < 0.62


def test_a_pass_that_was_held_up_counts_little(clock: Clock) -> None:
    decoding = Decoding(clock, rate=0.8)
    decoding.windows(10)
    clock_s = iter([50.0])
    decoding.speed = lambda at: next(clock_s, 1.0)
    _, drafts = decoding.windows(10)
    assert sum(n > 0 for n in drafts) >= 9


def test_the_first_draft_that_loads_something_is_forgiven(clock: Clock) -> None:
    decoding = Decoding(clock, rate=0.8, window_s=80.0)
    _, first = decoding.window(20)
    decoding.window_s = 0.5
    _, drafts = decoding.windows(10)
    assert first >= 4 and sum(n > 0 for n in drafts) >= 9


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
