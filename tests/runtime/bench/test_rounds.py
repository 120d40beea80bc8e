"""Rounds by the clock of a test: who is whose turn, what counts, when it ends. No time is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from specedge.runtime.bench.rounds import MOST_ROUNDS, WARM_UP, Heard, Rounds, measure_rounds
from specedge.runtime.decoding.statistics import Speculation
from specedge.runtime.longform.segments import Segment


def segment(text: str) -> Segment:
    return Segment(
        id=0, seek=0, start=0, end=1, text=text, tokens=[1], avg_logprob=0, compression_ratio=1, no_speech_prob=0
    )


@dataclass
class Machine:
    """Every drafter takes its seconds for a recording, and `slower` times as much in each round as before."""

    decoder_s: dict[str, float]
    slower: float = 1.0
    order: list[tuple[int, str, str]] = field(default_factory=list)
    round: int = WARM_UP

    def begin(self, round_: int) -> Mapping[str, str]:
        self.round = round_
        return {name: name for name in self.decoder_s}  # a name stands for the drafter

    def listen(self, name: str, recording: str) -> Heard:
        self.order.append((self.round, recording, name))
        decoder_s = self.decoder_s[name] * self.slower**self.round
        return Heard(
            segments=[segment("other" if name == "wrong" else "same")],
            counted=Speculation(passes=2, tokens=3, decoder_s=decoder_s),
            encoder_s=4.0,
            total_s=decoder_s + 4.0,
            duration_s=7.0,
        )

    def measure(self, n_rounds: int | None) -> Rounds:
        agrees_with = dict.fromkeys(self.decoder_s, "none")
        return measure_rounds(agrees_with, ["x", "y"], n_rounds, begin=self.begin, listen=self.listen)


def test_every_drafter_is_first_and_last_in_turn() -> None:
    machine = Machine({"none": 1.0, "a": 0.5, "wrong": 0.25}, slower=2.0)
    found = machine.measure(2)
    assert [name for i, (_, _, name) in enumerate(machine.order) if i % 3 == 0] == [
        "wrong",
        "none",
        "none",
        "a",
        "a",
    ] + ["wrong"]
    assert [one[:2] for one in machine.order[::3]] == [(i, name) for i in (WARM_UP, 0, 1) for name in "xy"]
    assert found.different == {"none": 0, "a": 0, "wrong": 6}
    # Ratios are taken within a round: that all were slower in the second changes none.
    speed = found.speed_up("a", lambda heard: heard.decoder_s)
    assert (speed.least, speed.greatest) == (2.0, 2.0)
    assert found.spread("a", lambda heard: heard.total_s).greatest == 2 * (0.5 * 2 + 4.0)


def test_rounds_end_after_a_minute() -> None:
    assert len(Machine({"none": 1.0}).measure(None).timed) == 6  # of 10 s each
    assert len(Machine({"none": 100.0}).measure(None).timed) == 1
    assert len(Machine({"none": -4.0}).measure(None).timed) == MOST_ROUNDS
