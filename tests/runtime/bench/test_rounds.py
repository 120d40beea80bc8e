"""Rounds by the clock of a test: who is whose turn, what counts, when it ends. No time is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from specedge.errors import UsageError
from specedge.runtime.bench.rounds import WARM_UP, Heard, Rounds, Timer, measure_rounds
from specedge.runtime.decoding.statistics import Speculation
from specedge.runtime.longform.segments import Segment

NAMES = ("none", "a", "b")


def segment(text: str) -> Segment:
    return Segment(
        id=0, seek=0, start=0, end=1, text=text, tokens=[1], avg_logprob=0, compression_ratio=1, no_speech_prob=0
    )


@dataclass
class Machine:
    """Every drafter takes its seconds, more of them in the warm-up; the clock stands still but for those.

    decoder_s: for a sound in the first round, `slower` times as much in each later one than in the one before; before
    every second it looks whether there is time.
    """

    decoder_s: dict[str, float]
    budget_s: float = float("inf")
    slower: float = 1.0
    now_s: float = 0.0
    order: list[tuple[int, str, str]] = field(default_factory=list)
    begun: list[int] = field(default_factory=list)
    says: dict[str, str] = field(default_factory=dict)
    drops: str | None = None

    def __post_init__(self) -> None:
        self.timer = Timer(self.budget_s, clock=lambda: self.now_s)

    def begin(self, round_: int, names: Sequence[str]) -> Any:
        self.begun.append(round_)
        return {name: name for name in names}  # a name stands for the drafter

    def listen(self, drafter: Any, source: str, round_: int) -> Heard:
        self.order.append((round_, source, drafter))
        decoder_s = self.decoder_s[drafter] * (2.0 if round_ == WARM_UP else self.slower**round_)
        until_s = self.now_s + decoder_s + 4.0
        while self.now_s < until_s:
            self.timer.check()
            self.now_s = min(self.now_s + 1.0, until_s)
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
            NAMES, ["x", "y"], n_rounds, begin=self.begin, listen=self.listen, timer=self.timer, **more
        )


def test_every_drafter_is_first_and_last_in_turn() -> None:
    machine = Machine({"none": 1.0, "a": 0.5, "b": 0.25})
    machine.measure(2)
    firsts = [name for i, (_, _, name) in enumerate(machine.order) if i % 3 == 0]
    assert firsts[2:] == ["none", "a", "a", "b"]
    assert [source for _, source, _ in machine.order[6:]] == (["x"] * 3 + ["y"] * 3) * 2
    # The warm-up has no order to be fair to: what plain decoding takes has to be known first.
    assert [one[1:] for one in machine.order[:6]] == [(source, name) for name in NAMES for source in "xy"]
    assert machine.begun == [WARM_UP, 0, 1]


def test_without_time_for_one_round_it_is_said() -> None:
    machine = Machine(dict.fromkeys(NAMES, 1.0), 50.0)
    with pytest.raises(UsageError, match=r"one round of none, a, b within 50 s: give a larger --budget"):
        machine.measure(9)
    assert machine.now_s < 51.0


def test_who_would_eat_the_budget_is_left_out_and_the_others_have_their_round() -> None:
    machine = Machine({"none": 1.0, "a": 1000.0, "b": 0.5}, 120.0)
    found = machine.measure(9)
    assert [set(sums) for sums in found.sums] == [{"none", "b"}] * len(found.sums) and len(found.sums) >= 1
    assert list(found.fewer) == ["a"] and "plain decoding took 6.0 s" in found.fewer["a"]
    assert machine.now_s < 120.0 and found.with_drafter("a") == []
