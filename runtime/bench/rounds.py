"""Rounds of transcriptions by several drafters, one after another in an order that turns, so that they can be compared.

Every sound is transcribed by all drafters in a row, each time beginning with the next of them, and all sounds again in
each round: a slow moment of the machine touches all alike. The first round warms up and is not timed. Drafters begin
anew in each round and live through it, as over several files. What is compared are ratios within a round.
Does not know: which drafters there are, what the figures are for, how they are shown.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

from specedge.runtime.bundles.bundle import Bundle
from specedge.runtime.decoding.statistics import Speculation
from specedge.runtime.drafters import Drafter
from specedge.runtime.longform.options import TranscribeOptions
from specedge.runtime.longform.segments import Segment
from specedge.runtime.longform.transcribe import SpeechEngine, transcribe
from specedge.runtime.sound.audio import AudioSource, open_audio

__all__ = ["WARM_UP", "Heard", "Rounds", "Spread", "Sums", "hear", "measure_rounds", "turned"]

PLAIN = "none"
WARM_UP = -1
S = TypeVar("S")


@dataclass(frozen=True, kw_only=True)
class Heard:
    """One transcription: what was said, what speculation did, seconds, and why the drafter was dropped, if it was."""

    segments: Sequence[Segment]
    counted: Speculation
    encoder_s: float
    total_s: float
    duration_s: float
    drafter_error: str | None = None


@dataclass(kw_only=True)
class Sums:
    """Of one drafter in one round: counters, and seconds."""

    counted: Speculation = field(default_factory=Speculation)
    encoder_s: float = 0.0
    total_s: float = 0.0

    @property
    def decoder_s(self) -> float:
        """In the decoder and the drafter."""
        return self.counted.decoder_s + self.counted.draft_s

    def add(self, counted: Speculation, encoder_s: float, total_s: float) -> None:
        """One transcription more."""
        self.counted = self.counted.plus(counted)
        self.encoder_s += encoder_s
        self.total_s += total_s


@dataclass(frozen=True)
class Spread:
    """The median of some values, with the least and the greatest."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Of one value or more."""
        return cls(statistics.median(values), min(values), max(values))


@dataclass(kw_only=True)
class Rounds(Generic[S]):
    """What was measured. sums: for each timed round by drafter; warm: for each drafter what the warm-up said, sound by
    sound; different: sounds in which a drafter's segments were not plain decoding's, in any round; dropped: why a
    drafter was dropped; sources: the sounds; duration_s: of all of them."""

    sources: Sequence[S]
    sums: list[dict[str, Sums]] = field(default_factory=list)
    warm: dict[str, list[Heard]] = field(default_factory=dict)
    different: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)

    @property
    def duration_s(self) -> float:
        return sum(heard.duration_s for heard in self.warm[PLAIN])

    def spread(self, drafter: str, seconds: Callable[[Sums], float]) -> Spread:
        """A drafter's seconds in a round."""
        return Spread.of([seconds(sums[drafter]) for sums in self.sums])

    def speed_up(self, drafter: str, seconds: Callable[[Sums], float]) -> Spread:
        """How many times the drafter's seconds plain decoding took, in the same round."""
        return Spread.of([seconds(sums[PLAIN]) / (seconds(sums[drafter]) or 1e-9) for sums in self.sums])


def turned(names: Sequence[str], turn: int) -> tuple[str, ...]:
    """All names in a row, begun at the one that it is the turn of."""
    at = turn % len(names)
    return (*names[at:], *names[:at])


def measure_rounds(
    names: Sequence[str],
    sources: Sequence[S],
    n_rounds: int,
    *,
    begin: Callable[[int], Mapping[str, Drafter]],
    listen: Callable[[Drafter, S, int], Heard],
    on_heard: Callable[[int], None] | None = None,
    budget_s: float = float("inf"),
    clock: Callable[[], float] = time.monotonic,
) -> Rounds[S]:
    """Warm up, then measure `n_rounds` rounds, or as many as begin within `budget_s`: one at least.

    names: of the drafters, plain decoding ("none") among them; begin: makes them anew for the round with this number,
    `WARM_UP` or from 0 on; listen: transcribes a sound with one of them, in that round; on_heard: told after each
    transcription in which round it was.
    """
    found = Rounds(sources=sources, warm={name: [] for name in names}, different=dict.fromkeys(names, 0))
    started = clock()
    for round_ in range(WARM_UP, n_rounds):
        if round_ > 0 and clock() - started >= budget_s:
            break
        drafters = begin(round_)
        sums = {name: Sums() for name in names}
        for at, source in enumerate(sources):
            heard = {}
            for name in turned(names, at + round_):
                heard[name] = one = listen(drafters[name], source, round_)
                sums[name].add(one.counted, one.encoder_s, one.total_s)
                if one.drafter_error is not None:
                    found.dropped.setdefault(name, one.drafter_error)
                if on_heard is not None:
                    on_heard(round_)
            for name in names:
                found.different[name] += list(heard[name].segments) != list(heard[PLAIN].segments)
                if round_ == WARM_UP:
                    found.warm[name].append(heard[name])
        if round_ != WARM_UP:
            found.sums.append(sums)
    return found


def hear(
    engine: SpeechEngine, bundle: Bundle, source: AudioSource, options: TranscribeOptions, drafter: Drafter
) -> Heard:
    """Transcribe a sound from its opening to its end. Raises what `transcribe` does."""
    started = time.perf_counter()
    with open_audio(source) as stream:
        done: Any = transcribe(engine, bundle, stream, options, drafter=drafter)
        segments = list(done)
    return Heard(
        segments=segments,
        counted=done.speculation,
        encoder_s=done.encoder_s,
        total_s=time.perf_counter() - started,
        duration_s=done.duration_s,
        drafter_error=done.drafter_error,
    )
