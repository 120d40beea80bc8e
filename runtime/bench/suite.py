"""`specedge bench suite`: recordings with texts, from file to text: errors, times, tokens a pass, memory and energy.

The first round counts: texts, errors, tokens and passes come from drafters that take no account of time, so that they
are the same each time. The rounds behind it are timed, with drafters as `transcribe` has them, in turn (rounds.py).
Decoding falls back to higher temperatures as `transcribe` does.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from specedge.errors import UsageError

from ..audio.audio import SAMPLE_RATE, decode_audio
from ..bundle.bundle import Bundle
from ..decoding.drafter import Drafter
from ..decoding.statistics import Speculation
from ..longform.live import LiveTranscriber
from ..options import TranscribeOptions
from .errors import Errors, word_errors
from .measure import medians, split
from .peers import Peer
from .recommendation import PLAIN
from .recordings import Recording
from .rounds import WARM_UP, Heard, Rounds, hear, measure_rounds

Make = Callable[[str, bool], Drafter]
"""Makes a drafter by its name, which takes account of time or does not."""

SHORT_S = 8.0  # an utterance, whose latency counts
N_LIVE = 10  # utterances that are played live
BLOCK_S = 0.1
_RAPL = Path("/sys/class/powercap")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A drafter's figures, or a peer's, of which only errors and times are known.

    errors: by language; total_s: of all recordings, the median of the rounds; stages_s: its parts; latencies_s: of each
    short recording; different: recordings, of all rounds, that were not plain decoding's; joules: of a round, the whole
    processor's, None where the system does not tell.
    """

    errors: Mapping[str, Errors]
    total_s: float
    latencies_s: Sequence[float]
    stages_s: Mapping[str, float] = field(default_factory=dict)
    counted: Speculation | None = None
    different: int = 0
    joules: float | None = None

    @property
    def wer(self) -> float | None:
        """Errors per word of all languages together; None without texts."""
        n_words = sum(each.n_words for each in self.errors.values())
        return sum(each.n_errors for each in self.errors.values()) / n_words if n_words else None


@dataclass(frozen=True, kw_only=True)
class Suite:
    """What was found. main: the drafter that `transcribe` takes where nobody names one, if that was measured, else the
    last; heard: plain decoding's, of each recording; live_s: from the end of an utterance to its last text; peak_mb:
    most memory of the process before peers were loaded, None where the system does not tell."""

    bundle: Bundle
    threads: int
    rounds: int
    main: str
    recordings: Sequence[Recording]
    heard: Sequence[Heard]
    drafters: Mapping[str, Row]
    peers: Mapping[str, Row]
    live_s: Sequence[float]
    peak_mb: float | None

    @property
    def audio_s(self) -> float:
        """Of all recordings."""
        return sum(one.duration_s for one in self.heard)


class _Stand:
    """The drafters of a round at work, and what each took for a file in each timed round."""

    def __init__(self, engine: Any, bundle: Bundle, make: Make, audio_context: str | float | None) -> None:
        self._engine, self._bundle, self._make, self._context = engine, bundle, make, audio_context
        self._made: list[Drafter] = []
        self.took_s: dict[tuple[str, str], list[float]] = defaultdict(list)
        self.used_j: dict[str, list[float]] = defaultdict(list)

    def begin(self, round_: int, names: Sequence[str]) -> dict[str, tuple[str, Drafter]]:
        while self._made:
            self._made.pop().close()
        self._made = [self._make(name, round_ != WARM_UP) for name in names]
        return {name: (name, drafter) for name, drafter in zip(names, self._made, strict=True)}

    def listen(self, named: tuple[str, Drafter], one: Recording, round_: int) -> Heard:
        name, drafter = named
        options = TranscribeOptions(language=one.language, audio_context=self._context)
        before = _joules()
        heard = hear(self._engine, self._bundle, one.file, options, drafter)
        if round_ != WARM_UP:
            self.took_s[name, one.file].append(heard.total_s)
            self.used_j[name].append(_joules() - before)
        return heard

    def live_s(self, one: Recording, name: str) -> float:
        """Seconds from the end of an utterance to its last text, where the looks before it kept up."""
        _, drafter = self.begin(0, [name])[name]
        live = LiveTranscriber(self._engine, self._bundle, TranscribeOptions(language=one.language), drafter)
        sound = decode_audio(one.file)
        for block in np.array_split(sound, max(1, round(len(sound) / SAMPLE_RATE / BLOCK_S))):
            live.feed(block)
        started = time.perf_counter()
        live.finish()
        return time.perf_counter() - started


def run_suite(
    engine: Any,
    bundle: Bundle,
    found: Sequence[Recording],
    names: Sequence[str],
    make: Make,
    *,
    audio_context: str | float | None = None,
    n_rounds: int = 1,
    peers: Callable[[], Sequence[Peer]] = list,
    on_heard: Callable[[], None] = lambda: None,
) -> Suite:
    """All of it. names: of drafters, "none" first; peers: opens them, when ours are done. Raises what a transcription
    does, and UsageError for a drafter that is not there, or no sound."""
    stand = _Stand(engine, bundle, make, audio_context)
    rounds = measure_rounds(
        names, found, n_rounds, begin=stand.begin, listen=stand.listen, on_heard=lambda round_: on_heard()
    )
    plain = rounds.warm[PLAIN]
    if not any(heard.duration_s for heard in plain):
        raise UsageError("no recording has any sound")
    spoken = [
        replace(one, language=one.language or heard.language or "en") for one, heard in zip(found, plain, strict=True)
    ]
    short = [one for one, heard in zip(spoken, plain, strict=True) if heard.duration_s < SHORT_S]
    main = "auto" if "auto" in names else names[-1]
    live_s = [stand.live_s(one, main) for one in short[:N_LIVE]]
    stand.begin(WARM_UP, ())
    peak_mb = _peak_mb()
    return Suite(
        bundle=bundle,
        threads=engine.threads,
        rounds=n_rounds,
        main=main,
        recordings=spoken,
        heard=plain,
        drafters={name: _row(name, rounds, stand, spoken, short) for name in names},
        peers={peer.name: _of_peer(peer, spoken, short, n_rounds) for peer in peers()},
        live_s=live_s,
        peak_mb=peak_mb,
    )


def _row(
    name: str, rounds: Rounds[Recording], stand: _Stand, spoken: Sequence[Recording], short: Sequence[Recording]
) -> Row:
    heard, used_j = rounds.warm[name], sum(stand.used_j[name])
    return Row(
        errors=_errors(spoken, [one.text for one in heard]),
        total_s=rounds.spread(name, lambda sums: sums.total_s).median,
        latencies_s=[statistics.median(stand.took_s[name, one.file]) for one in short],
        stages_s=medians([split(sums[name]) for sums in rounds.with_drafter(name)]),
        counted=functools.reduce(Speculation.plus, (one.counted for one in heard)),
        different=rounds.different[name],
        joules=used_j / len(rounds.sums) if used_j >= 0 else None,
    )


def _of_peer(peer: Peer, spoken: Sequence[Recording], short: Sequence[Recording], n_rounds: int) -> Row:
    """Its figures; the first recording warms it up."""
    said: list[str] = []
    took_s: dict[str, list[float]] = defaultdict(list)
    totals_s = [0.0] * n_rounds
    peer.transcribe(spoken[0].file, spoken[0].language)
    for round_, one in itertools.product(range(n_rounds), spoken):
        started = time.perf_counter()
        text = peer.transcribe(one.file, one.language)
        took_s[one.file].append(time.perf_counter() - started)
        totals_s[round_] += took_s[one.file][-1]
        said += [text] * (round_ == 0)
    return Row(
        errors=_errors(spoken, said),
        total_s=statistics.median(totals_s),
        latencies_s=[statistics.median(took_s[one.file]) for one in short],
    )


def _errors(spoken: Sequence[Recording], said: Sequence[str]) -> dict[str, Errors]:
    pairs: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for one, text in zip(spoken, said, strict=True):
        if one.text:
            pairs[str(one.language)].append((one.text, text))
    return {language: word_errors(of_it, language) for language, of_it in sorted(pairs.items())}


def _joules() -> float:
    """What the processors' packages have used since some moment, NaN where the system does not tell (Linux, RAPL)."""
    try:
        return sum(int(file.read_text()) / 1e6 for file in _RAPL.glob("intel-rapl:?/energy_uj")) or math.nan
    except OSError:
        return math.nan


def _peak_mb() -> float | None:
    """Most resident memory of this process so far, in MB (10^6 bytes)."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    return (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) // 100_000 / 10
    )
