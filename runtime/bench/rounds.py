"""Rounds of transcriptions in several ways that take turns, so that they can be compared.

All ways transcribe each recording in a row, each time beginning with the next of them, and all recordings again in each
round: a slow moment of the machine touches all alike. Drafters begin anew in each round and live through it, as over
several files. Ratios are taken within a round. The first round is the warm-up: it counts texts, tokens and passes, and
its times do not count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..decoding.statistics import Speculation
from ..longform.segments import Segment
from .recommendation import Spread

WARM_UP = -1
MOST_ROUNDS, ENOUGH_S = 25, 60.0


@dataclass(frozen=True, kw_only=True)
class Heard:
    """One transcription. duration_s: of the audio; drafter_error: why the drafter was dropped; language: given or
    detected; n_again: windows that were encoded again in full; joules: NaN where the system does not tell."""

    segments: Sequence[Segment]
    counted: Speculation
    encoder_s: float
    total_s: float
    duration_s: float
    drafter_error: str | None = None
    language: str | None = None
    n_again: int = 0
    joules: float = math.nan

    @property
    def text(self) -> str:
        return "".join(segment.text for segment in self.segments)

    @property
    def decoder_s(self) -> float:
        """Decoder and drafter."""
        return self.counted.decoder_s + self.counted.draft_s


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """What was heard of each recording by the way's name, in the warm-up and in each timed round (without segments).

    different: recordings, of all rounds, in which a way's segments were not those of the way it has to agree with.
    """

    warm: Mapping[str, Sequence[Heard]]
    timed: Sequence[Mapping[str, Sequence[Heard]]]
    different: Mapping[str, int]

    def spread(self, name: str, seconds: Callable[[Heard], float]) -> Spread:
        """Of a round's seconds."""
        return Spread.of([_sum(round_[name], seconds) for round_ in self.timed])

    def speed_up(self, name: str, seconds: Callable[[Heard], float]) -> Spread:
        """The first way's seconds divided by this one's, in the same round."""
        first = next(iter(self.warm))
        return Spread.of(
            [_sum(round_[first], seconds) / (_sum(round_[name], seconds) or 1e-9) for round_ in self.timed]
        )


def _sum(heard: Sequence[Heard], seconds: Callable[[Heard], float]) -> float:
    return sum(map(seconds, heard))


def turned(names: Sequence[str], turn: int) -> tuple[str, ...]:
    """`names` rotated, so that the order changes with each turn."""
    at = turn % len(names)
    return (*names[at:], *names[:at])


def measure_rounds(
    agrees_with: Mapping[str, str],
    recordings: Sequence[Any],
    n_rounds: int | None,
    *,
    begin: Callable[[int], Mapping[str, Any]],
    listen: Callable[[Any, Any], Heard],
    on_heard: Callable[[], None] = lambda: None,
) -> Rounds:
    """Warm up, then measure `n_rounds` rounds; None: as many as take ENOUGH_S, one at least and MOST_ROUNDS at most.

    agrees_with: for each way, in order, the one whose segments its own have to be; begin: makes the drafters of all
    ways anew for a round (`WARM_UP`, or from 0 on); listen: transcribes a recording with one of them; on_heard: told of
    each transcription.
    """
    names = tuple(agrees_with)
    different = dict.fromkeys(names, 0)
    warm: Mapping[str, Sequence[Heard]] = {}
    timed: list[Mapping[str, Sequence[Heard]]] = []
    spent_s = last_s = 0.0
    for round_ in range(WARM_UP, n_rounds or MOST_ROUNDS):
        if n_rounds is None and round_ > 0 and spent_s + last_s > ENOUGH_S:
            break
        drafters = begin(round_)
        heard: dict[str, list[Heard]] = {name: [] for name in names}
        for at, recording in enumerate(recordings):
            for name in turned(names, at + round_):
                heard[name].append(listen(drafters[name], recording))
                on_heard()
            for name, other in agrees_with.items():
                different[name] += list(heard[name][-1].segments) != list(heard[other][-1].segments)
        if round_ == WARM_UP:
            warm = heard
            continue
        last_s = sum(one.total_s for each in heard.values() for one in each)
        spent_s += last_s
        timed.append({name: [replace(one, segments=()) for one in each] for name, each in heard.items()})
    return Rounds(warm=warm, timed=timed, different=different)
