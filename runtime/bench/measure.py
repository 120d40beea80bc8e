"""`specedge bench`: drafters, short audio encoded alone, and other programs on the user's own recordings.

Errors, times, tokens a pass, memory and energy, from file to text. Texts, errors, tokens and passes are those of a
first round, whose drafters take no account of time, so that they are the same each time. The rounds behind it are
timed, with drafters as `transcribe` has them, in turn (rounds.py). Decoding falls back to higher temperatures as
`transcribe` does.
"""

from __future__ import annotations

import functools
import itertools
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from specedge.errors import UsageError

from ..audio.audio import SAMPLE_RATE, decode_audio
from ..bundle.bundle import Bundle
from ..decoding.statistics import Speculation
from ..device import BUSY
from ..longform.live import LiveTranscriber
from .errors import Errors, word_errors
from .peers import Peer, open_peers
from .recommendation import PLAIN, Recommendation, Spread, recommend
from .recordings import Recording
from .rounds import Heard, Rounds, Way, drafters, measure_rounds

SHORT_S = 8.0  # an utterance, whose latency counts
N_LIVE = 10  # utterances that are played live
BLOCK_S = 0.1
SPLIT = ("encoder", "draft", "verify", "rules", "other")


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What is known of a peer, and of a way. errors: by language; total_s: of all recordings, the median of the rounds;
    latencies_s: of each short recording."""

    errors: Mapping[str, Errors]
    total_s: float
    latencies_s: Sequence[float]

    @property
    def wer(self) -> float | None:
        """Errors per word of all languages together; None without texts."""
        n_words = sum(each.n_words for each in self.errors.values())
        return sum(each.n_errors for each in self.errors.values()) / n_words if n_words else None


@dataclass(frozen=True, kw_only=True)
class Row(Figures):
    """A way's figures.

    stages_s: the parts of total_s, by SPLIT; decoder_speed_up, end_to_end: times as fast as the first way in the same
    round, the drafter's time with the decoder's; different: recordings, of all rounds, whose text, times or
    log-probabilities were not those of plain decoding of the same windows; same: texts equal to the first way's; again:
    windows encoded again in full; dropped: why the drafter failed; joules: of a round, the whole processor's, None
    where the system does not tell.
    """

    stages_s: Mapping[str, float]
    counted: Speculation
    decoder_speed_up: Spread
    end_to_end: Spread
    different: int
    same: int
    again: int
    dropped: str | None
    joules: float | None


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Everything that was found. main: the way whose drafter `transcribe` takes where nobody names one, if that was
    measured, else the last; heard: the first way's, of each recording; plain_s: its decoder's seconds of a round;
    live_s: from the end of an utterance to its last text; peak_mb: most memory of the process before peers were loaded,
    None where the system does not tell."""

    bundle: Bundle
    threads: int
    rounds: int
    main: str
    recordings: Sequence[Recording]
    heard: Sequence[Heard]
    plain_s: Spread
    rows: Mapping[str, Row]
    peers: Mapping[str, Figures]
    live_s: Sequence[float]
    peak_mb: float | None
    recommendation: Recommendation

    @property
    def audio_s(self) -> float:
        """Of all recordings."""
        return sum(one.duration_s for one in self.heard)

    @property
    def lossless(self) -> bool:
        return all(row.different == 0 for row in self.rows.values())

    @property
    def was_busy(self) -> bool:
        """Whether the rounds of plain decoding disagree so much that something else was at work on this machine."""
        return self.plain_s.greatest > BUSY * self.plain_s.least


def bench(
    engine: Any,
    bundle: Bundle,
    found: Sequence[Recording],
    ways: Sequence[Way],
    *,
    n_rounds: int | None = None,
    peers: Sequence[tuple[str, str]] = (),
    on_heard: Callable[[], None] = lambda: None,
) -> Findings:
    """All of it. ways: plain decoding first; n_rounds: None for as many as take a minute; peers: names and models of
    those that are opened when ours are done. Raises what a transcription does, and UsageError for a drafter that is not
    there, no sound, or a model that cannot encode short audio alone though that is compared with whole windows."""
    contexts = {way.options.audio_context for way in ways}
    if len(contexts) > 1 and not getattr(engine, "knows_silence", False):
        raise UsageError(
            f"{bundle.path}: lacks the encoder for short audio, which `specedge export` --add-short-audio adds"
        )
    rounds = measure_rounds(engine, bundle, ways, found, n_rounds, on_heard)
    plain = ways[0].name
    first = rounds.warm[plain]
    if not any(heard.duration_s for heard in first):
        raise UsageError("no recording has any sound")
    spoken = [
        replace(one, language=one.language or heard.language or "en") for one, heard in zip(found, first, strict=True)
    ]
    short = [i for i, heard in enumerate(first) if heard.duration_s < SHORT_S]
    main = next((way for way in ways if way.drafter.name == "auto"), ways[-1])
    live_s = [_live_s(engine, bundle, spoken[i], main) for i in short[:N_LIVE]]
    rows = {way.name: _row(way.name, plain, rounds, spoken, short) for way in ways}
    peak_mb = _peak_mb()
    return Findings(
        bundle=bundle,
        threads=engine.threads,
        rounds=len(rounds.timed),
        main=main.name,
        recordings=spoken,
        heard=first,
        plain_s=Spread.of(rounds.seconds(plain, "decoder_s")),
        rows=rows,
        peers={
            name: _of_peer(peer, spoken, short, len(rounds.timed))
            for name, peer in open_peers(peers, engine.threads, bundle.manifest.precision)
        },
        live_s=live_s,
        peak_mb=peak_mb,
        recommendation=recommended(rows, ways, len(rounds.timed)),
    )


def _live_s(engine: Any, bundle: Bundle, one: Recording, way: Way) -> float:
    """Seconds from the end of an utterance to its last text, where the looks before it kept up."""
    with drafters(engine, bundle, [way]) as made:
        live = LiveTranscriber(engine, bundle, replace(way.options, language=one.language), made[way.name])
        sound = decode_audio(one.file)
        for block in np.array_split(sound, max(1, round(len(sound) / SAMPLE_RATE / BLOCK_S))):
            live.feed(block)
        started = time.perf_counter()
        live.finish()
        return time.perf_counter() - started


def _row(name: str, first: str, rounds: Rounds, spoken: Sequence[Recording], short: Sequence[int]) -> Row:
    warm, timed = rounds.warm[name], [round_[name] for round_ in rounds.timed]
    texts = [one.text for one in warm]
    used_j = statistics.fmean(sum(one.joules for one in heard) for heard in timed)
    splits = [_split(heard) for heard in timed]
    return Row(
        errors=_errors(spoken, texts),
        total_s=statistics.median(rounds.seconds(name, "total_s")),
        latencies_s=[statistics.median(heard[i].total_s for heard in timed) for i in short],
        stages_s={part: statistics.median(split[part] for split in splits) for part in SPLIT},
        counted=functools.reduce(Speculation.plus, (one.counted for one in warm)),
        decoder_speed_up=rounds.speed_up(name, "decoder_s"),
        end_to_end=rounds.speed_up(name, "total_s"),
        different=rounds.different[name],
        same=sum(text == one.text for text, one in zip(texts, rounds.warm[first], strict=True)),
        again=sum(one.n_again for one in warm),
        dropped=next((one.drafter_error for heard in (warm, *timed) for one in heard if one.drafter_error), None),
        joules=used_j if used_j >= 0 else None,
    )


def _split(heard: Sequence[Heard]) -> dict[str, float]:
    """Seconds of a round, by SPLIT."""
    parts = [(one.encoder_s, one.counted.draft_s, one.counted.verify_s, one.counted.rules_s) for one in heard]
    known = [sum(part) for part in zip(*parts, strict=True)]
    return dict(zip(SPLIT, (*known, max(sum(one.total_s for one in heard) - sum(known), 0.0)), strict=True))


def recommended(rows: Mapping[str, Row], ways: Sequence[Way], n_rounds: int) -> Recommendation:
    """Among the drafters that hear what plain decoding does. auto changes with the windows. A drafter that saved no
    pass is not quicker, whatever the clock."""
    decoder, end_to_end = {}, {}
    plain = ways[0]
    for way in ways:
        name, row = way.drafter.name, rows[way.name]
        is_sound = row.different == 0 and row.dropped is None
        saves = name != "auto" and row.counted.passes < rows[plain.name].counted.passes
        if is_sound and way.options.audio_context == plain.options.audio_context and (name == PLAIN or saves):
            decoder[name], end_to_end[name] = row.decoder_speed_up, row.end_to_end
    found = recommend(decoder, end_to_end, rounds=n_rounds)
    chosen = next(way.drafter for way in ways if way.drafter.name == found.drafter)
    draft = None if chosen.draft_model is None else str(chosen.draft_model)
    return replace(found, draft_model=draft, token_maps=tuple(map(str, chosen.token_maps)))


def _of_peer(peer: Peer, spoken: Sequence[Recording], short: Sequence[int], n_rounds: int) -> Figures:
    """The first recording warms it up."""
    texts: list[str] = []
    took_s: dict[int, list[float]] = defaultdict(list)
    peer(spoken[0].file, spoken[0].language)
    for round_, (i, one) in itertools.product(range(n_rounds), enumerate(spoken)):
        started = time.perf_counter()
        text = peer(one.file, one.language)
        took_s[i].append(time.perf_counter() - started)
        texts += [text] * (round_ == 0)
    return Figures(
        errors=_errors(spoken, texts),
        total_s=statistics.median(map(sum, zip(*took_s.values(), strict=True))),
        latencies_s=[statistics.median(took_s[i]) for i in short],
    )


def _errors(spoken: Sequence[Recording], texts: Sequence[str]) -> dict[str, Errors]:
    pairs: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for one, text in zip(spoken, texts, strict=True):
        if one.text:
            pairs[str(one.language)].append((one.text, text))
    return {language: word_errors(of_it, language) for language, of_it in sorted(pairs.items())}


def _peak_mb() -> float | None:
    """Most resident memory of this process so far, in MB (10^6 bytes)."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    return (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) // 100_000 / 10
    )
