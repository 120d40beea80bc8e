"""Rounds of transcriptions in several ways that take turns, so that they can be compared.

All ways transcribe each recording in a row, each time beginning with the next of them, and all recordings again in each
round: a slow moment of the machine touches all alike. Drafters begin anew in each round and live through it, as over
several files. Ratios are taken within a round. The first round is the warm-up: it counts texts, tokens and passes, with
drafters that take no account of time, and its times do not count.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..audio.audio import open_audio
from ..bundle.bundle import Bundle
from ..console import silently
from ..decoding.drafter import Drafter, TargetModel
from ..decoding.statistics import Speculation
from ..drafters.registry import make_drafter
from ..longform.segments import Segment
from ..longform.transcribe import Transcription
from ..options import DrafterOptions, TranscribeOptions
from .recommendation import PLAIN, Spread
from .recordings import Recording

WARM_UP = -1
MOST_ROUNDS, ENOUGH_S = 25, 60.0
_RAPL = Path("/sys/class/powercap")


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way of transcribing: a drafter with what it is given, the options, and what tells it from others like it."""

    drafter: DrafterOptions
    options: TranscribeOptions = TranscribeOptions()
    note: str = ""

    @property
    def name(self) -> str:
        return f"{self.drafter.name}, {self.note}" if self.note else self.drafter.name


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

    different: recordings, of all rounds, in which a way's segments were not those of plain decoding.
    """

    warm: Mapping[str, Sequence[Heard]]
    timed: Sequence[Mapping[str, Sequence[Heard]]]
    different: Mapping[str, int]

    def seconds(self, name: str, part: str) -> list[float]:
        """A way's `total_s` or `decoder_s` of each round."""
        return [sum(getattr(one, part) for one in round_[name]) for round_ in self.timed]

    def speed_up(self, name: str, part: str) -> Spread:
        """The first way's seconds divided by this one's, in the same round."""
        first = self.seconds(next(iter(self.warm)), part)
        pairs = zip(first, self.seconds(name, part), strict=True)
        return Spread.of([plain_s / (mine_s or 1e-9) for plain_s, mine_s in pairs])


@contextlib.contextmanager
def drafters(engine: Any, bundle: Bundle, ways: Sequence[Way], *, weighs: bool = True) -> Iterator[dict[str, Drafter]]:
    """New drafters of all ways, by name. weighs: whether they take account of time."""
    made = {}
    with contextlib.ExitStack() as stack:
        for way in ways:
            canceller = getattr(engine, "canceller", None)
            target = TargetModel(bundle, threads=engine.threads, canceller=canceller, weighs=weighs)
            made[way.name] = make_drafter(way.drafter, target)
            stack.callback(made[way.name].close)
        yield made


def hear(engine: Any, bundle: Bundle, one: Recording, options: TranscribeOptions, drafter: Drafter) -> Heard:
    """Transcribe a recording. Raises as `Transcription`."""
    used_j, started = _joules(), time.perf_counter()
    with open_audio(one.file) as stream:
        done = Transcription(engine, bundle, stream, replace(options, language=one.language), drafter=drafter)
        segments = list(done)
    return Heard(
        segments=segments,
        counted=done.speculation,
        encoder_s=done.encoder_s,
        total_s=time.perf_counter() - started,
        duration_s=done.duration_s,
        drafter_error=done.drafter_error,
        language=done.language,
        n_again=done.audio_context.n_again,
        joules=_joules() - used_j,
    )


def _joules() -> float:
    """What the processors' packages have used since some moment, NaN where the system does not tell (Linux, RAPL)."""
    try:
        return sum(int(file.read_text()) / 1e6 for file in _RAPL.glob("intel-rapl:?/energy_uj")) or math.nan
    except OSError:
        return math.nan


def measure_rounds(
    engine: Any,
    bundle: Bundle,
    ways: Sequence[Way],
    recordings: Sequence[Recording],
    n_rounds: int | None,
    on_heard: Callable[[], None] = lambda: None,
) -> Rounds:
    """Warm up, then measure `n_rounds` rounds; None: as many as take ENOUGH_S, one at least and MOST_ROUNDS at most.

    The segments of a way have to be those of plain decoding with the same audio context. on_heard: told of each
    transcription. Raises as `make_drafter` and `Transcription`.
    """
    plain = {way.options.audio_context: way.name for way in reversed(ways) if way.drafter.name == PLAIN}
    different = dict.fromkeys((way.name for way in ways), 0)
    warm: Mapping[str, Sequence[Heard]] = {}
    timed: list[Mapping[str, Sequence[Heard]]] = []
    spent_s = last_s = 0.0
    for round_ in range(WARM_UP, n_rounds or MOST_ROUNDS):
        if n_rounds is None and round_ > 0 and spent_s + last_s > ENOUGH_S:
            break
        is_warm_up = round_ == WARM_UP
        heard: dict[str, list[Heard]] = {way.name: [] for way in ways}
        with (
            contextlib.nullcontext() if is_warm_up else silently(),  # what the first round warns of is true of all
            drafters(engine, bundle, ways, weighs=not is_warm_up) as made,
        ):
            for at, recording in enumerate(recordings):
                turn = (at + round_) % len(ways)
                for way in (*ways[turn:], *ways[:turn]):
                    heard[way.name].append(hear(engine, bundle, recording, way.options, made[way.name]))
                    on_heard()
                for way in ways:
                    wanted = heard[plain[way.options.audio_context]][-1].segments
                    different[way.name] += list(heard[way.name][-1].segments) != list(wanted)
        if is_warm_up:
            warm = heard
            continue
        last_s = sum(one.total_s for each in heard.values() for one in each)
        spent_s += last_s
        timed.append({name: [replace(one, segments=()) for one in each] for name, each in heard.items()})
    return Rounds(warm=warm, timed=timed, different=different)
