"""Rounds by the clock of a test: who is whose turn, what counts, when it ends. No time is measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from specedge.runtime.bench.rounds import WARM_UP, Heard, Rounds, Spread, measure_rounds, turned
from specedge.runtime.decoding.statistics import Speculation
from specedge.runtime.longform.segments import Segment

NAMES = ("none", "a", "b")


def segment(text: str) -> Segment:
    return Segment(
        id=0, seek=0, start=0, end=1, text=text, tokens=[1], avg_logprob=0, compression_ratio=1, no_speech_prob=0
    )


@dataclass
class Machine:
    """Every drafter takes its seconds; the clock stands still but for those."""

    decoder_s: dict[str, float]
    now_s: float = 0.0
    order: list[tuple[int, str, str]] = field(default_factory=list)
    begun: list[int] = field(default_factory=list)
    says: dict[str, str] = field(default_factory=dict)
    drops: str | None = None

    def begin(self, round_: int) -> Any:
        self.begun.append(round_)
        return {name: name for name in self.decoder_s}  # a name stands for the drafter

    def listen(self, drafter: Any, source: str, round_: int) -> Heard:
        self.order.append((round_, source, drafter))
        slow = 10.0 if round_ == WARM_UP else 1.0 + round_
        decoder_s = self.decoder_s[drafter] * slow
        self.now_s += decoder_s + 4.0
        return Heard(
            segments=[segment(self.says.get(drafter, "same"))],
            counted=Speculation(passes=2, tokens=3, decoder_s=decoder_s),
            encoder_s=4.0,
            total_s=decoder_s + 4.0,
            duration_s=7.0,
            drafter_error="broken" if drafter == self.drops else None,
        )

    def measure(self, n_rounds: int, **more: Any) -> Rounds[str]:
        return measure_rounds(
            NAMES, ["x", "y"], n_rounds, begin=self.begin, listen=self.listen, clock=lambda: self.now_s, **more
        )


def test_turned_begins_elsewhere_and_loses_nobody() -> None:
    assert [turned(NAMES, turn)[0] for turn in range(-1, 4)] == ["b", "none", "a", "b", "none"]
    assert all(sorted(turned(NAMES, turn)) == sorted(NAMES) for turn in range(4))


def test_every_drafter_is_first_and_last_in_turn() -> None:
    machine = Machine({"none": 1.0, "a": 0.5, "b": 0.25})
    machine.measure(2)
    firsts = [name for i, (_, _, name) in enumerate(machine.order) if i % 3 == 0]
    assert firsts == ["b", "none", "none", "a", "a", "b"]
    assert [source for _, source, _ in machine.order] == (["x"] * 3 + ["y"] * 3) * 3
    assert machine.begun == [WARM_UP, 0, 1]


def test_the_warm_up_is_no_round_and_ratios_are_within_a_round() -> None:
    found = Machine({"none": 1.0, "a": 0.5, "b": 2.0}).measure(3)
    assert len(found.sums) == 3 and found.duration_s == 14.0
    # Rounds get slower and slower; what a drafter is worth does not.
    assert found.spread("none", lambda sums: sums.decoder_s) == Spread(4.0, 2.0, 6.0)
    assert found.speed_up("a", lambda sums: sums.decoder_s) == Spread(2.0, 2.0, 2.0)
    assert found.speed_up("b", lambda sums: sums.decoder_s) == Spread(0.5, 0.5, 0.5)
    assert found.speed_up("none", lambda sums: sums.total_s) == Spread(1.0, 1.0, 1.0)
    assert found.sums[0]["a"].counted.tokens == 6


def test_no_round_begins_when_the_time_is_up_but_one_is_always_there() -> None:
    machine = Machine({"none": 1.0, "a": 1.0, "b": 1.0})
    told: list[int] = []
    assert len(machine.measure(9, budget_s=1.0, on_heard=told.append).sums) == 1
    assert told == [WARM_UP] * 6 + [0] * 6
    # The warm-up is done at 84 s, the rounds at 114, 150, 192.
    assert len(Machine(dict.fromkeys(NAMES, 1.0)).measure(9, budget_s=151.0).sums) == 3


def test_another_text_and_a_dropped_drafter_are_told() -> None:
    found = Machine(dict.fromkeys(NAMES, 1.0), says={"b": "other"}, drops="a").measure(1)
    assert found.different == {"none": 0, "a": 0, "b": 4}
    assert found.dropped == {"a": "broken"}


def test_a_spread_is_median_least_and_greatest() -> None:
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
    assert Spread.of([1.0, 2.0]).median == pytest.approx(1.5)
