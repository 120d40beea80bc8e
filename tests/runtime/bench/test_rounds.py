"""Rounds by the clock of a test: who is whose turn, what counts, when it ends. No time is measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from specedge.runtime.bench import rounds
from specedge.runtime.bench.recordings import Recording
from specedge.runtime.bench.rounds import MOST_ROUNDS, WARM_UP, Heard, Rounds, Way, measure_rounds
from specedge.runtime.decoding.statistics import Speculation
from specedge.runtime.longform.segments import Segment
from specedge.runtime.options import DrafterOptions


def segment(text: str) -> Segment:
    return Segment(
        id=0, seek=0, start=0, end=1, text=text, tokens=[1], avg_logprob=0, compression_ratio=1, no_speech_prob=0
    )


@dataclass
class Machine:
    """Every drafter takes its seconds for a recording, and `slower` times as much in each round as before."""

    monkeypatch: pytest.MonkeyPatch
    decoder_s: dict[str, float]
    slower: float = 1.0
    order: list[tuple[int, str, str]] = field(default_factory=list)

    def hear(self, engine: Any, bundle: Any, one: Recording, options: Any, drafter: Any) -> Heard:
        round_ = WARM_UP + len(self.order) // (2 * len(self.decoder_s))
        self.order.append((round_, one.file, drafter.name))
        decoder_s = self.decoder_s[drafter.name] * self.slower**round_
        return Heard(
            segments=[segment("other" if drafter.name == "draft" else "same")],
            counted=Speculation(passes=2, tokens=3, decoder_s=decoder_s),
            encoder_s=4.0,
            total_s=decoder_s + 4.0,
            duration_s=7.0,
        )

    def measure(self, n_rounds: int | None) -> Rounds:
        self.monkeypatch.setattr(rounds, "hear", self.hear)
        made = lambda asked, target: SimpleNamespace(name=asked.name, close=lambda: None)  # noqa: E731
        self.monkeypatch.setattr(rounds, "make_drafter", made)
        ways = [Way(drafter=DrafterOptions(name)) for name in self.decoder_s]
        engine: Any = SimpleNamespace(threads=1)
        return measure_rounds(engine, engine, ways, [Recording(file="x"), Recording(file="y")], n_rounds)


def test_every_drafter_is_first_and_last_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, {"none": 1.0, "ngram": 0.5, "draft": 0.25}, slower=2.0)
    found = machine.measure(2)
    firsts = [name for _, _, name in machine.order[::3]]
    assert firsts == ["draft", "none", "none", "ngram", "ngram", "draft"]
    assert [one[:2] for one in machine.order[::3]] == [(i, name) for i in (WARM_UP, 0, 1) for name in "xy"]
    assert found.different == {"none": 0, "ngram": 0, "draft": 6}
    # Ratios are taken within a round: that all were slower in the second changes none.
    speed = found.speed_up("ngram", "decoder_s")
    assert (speed.least, speed.greatest) == (2.0, 2.0)
    assert max(found.seconds("ngram", "total_s")) == 2 * (0.5 * 2 + 4.0)


def test_rounds_end_after_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(Machine(monkeypatch, {"none": 1.0}).measure(None).timed) == 6  # of 10 s each
    assert len(Machine(monkeypatch, {"none": 100.0}).measure(None).timed) == 1
    assert len(Machine(monkeypatch, {"none": -4.0}).measure(None).timed) == MOST_ROUNDS
