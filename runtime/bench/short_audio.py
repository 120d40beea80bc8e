"""`specedge bench --audio-context`: what encoding short audio alone saves, and what it costs in words.

Recordings shorter than a window are transcribed whole and with an audio context of "auto", plainly and in turn, from
samples to text. Ratios are taken within a round; a recording's is the median over its rounds. Errors are those of the
first round: decoding is the same in each.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from specedge.errors import UsageError

from ..audio.audio import SAMPLE_RATE, decode_audio
from ..bundle.bundle import Bundle
from ..decoding.drafter import EmptyDrafter
from ..device import device_fields
from ..options import TranscribeOptions
from ..output.report import aligned
from ..text.words import edit_distance
from .errors import units
from .recommendation import Spread
from .recordings import Recording
from .rounds import Heard, OutOfTime, TimedEngine, Timer, hear, turned

WAYS = ("full", "auto")
ROUNDS = 3
LENGTHS_S = (0.0, 4.0, 8.0, 15.0)  # and the window's
Pair = Mapping[str, Heard]
"""What was heard of a recording, by `WAYS`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Class:
    """The recordings of `least_s` to `below_s` seconds, beside the whole window's figures.

    same: texts equal to the letter; again: windows encoded again in full; units: words, or characters of languages
    without spaces, of which `wrong` are wrong by `WAYS`; end_to_end, encoder, decoder: ratios of time, auto over full.
    """

    least_s: float
    below_s: float
    recordings: int
    same: int
    again: int
    units: int
    wrong: Mapping[str, int]
    end_to_end: Spread
    encoder: Spread
    decoder: Spread


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """All classes that have recordings, and all of them together at the end; n_left_out: recordings of a window or
    more, or for which there was no time; rounds: of all recordings."""

    bundle: Bundle
    threads: int
    rounds: int
    classes: Sequence[Class]
    n_left_out: int


def compare_contexts(
    engine: Any,
    bundle: Bundle,
    found: Sequence[Recording],
    *,
    n_rounds: int = ROUNDS,
    timer: Timer | None = None,
    on_heard: Callable[[], None] = lambda: None,
) -> Comparison:
    """Transcribe the recordings in both ways, up to `n_rounds` times while `timer` has time. Raises UsageError where
    none is shorter than a window, or the model cannot encode short audio alone, and what a transcription does."""
    if not getattr(engine, "knows_silence", False):
        raise UsageError(f"{bundle.manifest.name}: has no encoder for short audio; export the model again")
    timer, window_s = timer or Timer(), bundle.manifest.window_s
    sounds = [(one, decode_audio(one.file)) for one in found]
    short = [pair for pair in sounds if 0 < len(pair[1]) < window_s * SAMPLE_RATE]
    timed: Any = TimedEngine(engine, timer)

    def listen(one: Recording, sound: Any, way: str) -> Heard:
        options = TranscribeOptions(language=one.language, audio_context=way)
        return hear(timed, bundle, sound, options, EmptyDrafter())

    heard: list[list[Pair]] = [[] for _ in short]
    try:
        for way in WAYS if short else ():  # loads the graphs
            listen(*short[0], way)
        for round_, (pairs, (one, sound)) in itertools.product(range(n_rounds), zip(heard, short, strict=True)):
            pairs.append({way: listen(one, sound, way) for way in turned(WAYS, round_)})
            on_heard()
    except OutOfTime:
        pass
    done = [(one, pairs) for (one, _), pairs in zip(short, heard, strict=True) if pairs]
    if not done:
        raise UsageError(f"no recording was shorter than {window_s:g} s, or --budget is too short for one")
    edges = [*LENGTHS_S, window_s]
    classes = [
        [each for each in done if low <= each[1][0]["full"].duration_s < high]
        for low, high in itertools.pairwise(edges)
    ]
    figures = [_figures(group, *ends) for group, ends in zip(classes, itertools.pairwise(edges), strict=True) if group]
    return Comparison(
        bundle=bundle,
        threads=engine.threads,
        rounds=min(len(pairs) for _, pairs in done),
        classes=[*figures, _figures(done, 0.0, window_s)],
        n_left_out=len(found) - len(done),
    )


def _figures(group: Sequence[tuple[Recording, Sequence[Pair]]], least_s: float, below_s: float) -> Class:
    def ratio(seconds: Callable[[Heard], float]) -> Spread:
        return Spread.of(
            [statistics.median(seconds(p["auto"]) / (seconds(p["full"]) or 1e-9) for p in pairs) for _, pairs in group]
        )

    texts = [(one, pairs[0], one.language or pairs[0]["full"].language or "en") for one, pairs in group if one.text]
    return Class(
        least_s=least_s,
        below_s=below_s,
        recordings=len(group),
        same=sum(pairs[0]["auto"].text == pairs[0]["full"].text for _, pairs in group),
        again=sum(pairs[0]["auto"].n_again for _, pairs in group),
        units=sum(len(units(one.text, language)) for one, _, language in texts),
        wrong={
            way: sum(edit_distance(units(one.text, code), units(pair[way].text, code)) for one, pair, code in texts)
            for way in WAYS
        },
        end_to_end=ratio(lambda heard: heard.total_s),
        encoder=ratio(lambda heard: heard.encoder_s),
        decoder=ratio(lambda heard: heard.counted.decoder_s),
    )


def lines(found: Comparison) -> Iterator[str]:
    """The comparison as a table: the time of auto divided by that of whole windows, with the least and the greatest."""
    manifest, n = found.bundle.manifest, found.rounds
    yield (
        f"{manifest.name}, {manifest.precision}, {found.threads} thread{'s' if found.threads > 1 else ''}, "
        f"{n} round{'s' if n > 1 else ''}; --audio-context auto beside full"
    )
    yield ""
    head = [
        "seconds",
        "recordings",
        "wrong, full",
        "auto",
        "of",
        "same text",
        "again",
        "encoder",
        "decoder",
        "end to end",
    ]
    yield from aligned([head, *(_cells(each) for each in found.classes)])
    yield ""
    yield "wrong: words, or characters of languages without spaces; again: encoded again in full; last: ratios of time"


def _cells(row: Class) -> list[str]:
    whole = row.end_to_end
    wrong = (row.wrong["full"], row.wrong["auto"], row.units)
    return [
        f"{row.least_s:g} to {row.below_s:g}",
        *map(str, (row.recordings, *(wrong if row.units else "---"), row.same, row.again)),
        *(f"{spread.median:.2f}" for spread in (row.encoder, row.decoder)),
        f"{whole.median:.2f} ({whole.least:.2f}-{whole.greatest:.2f})",
    ]


def to_json(found: Comparison) -> dict[str, Any]:
    """Conditions and classes; ratios are [median, least, greatest]."""

    def fields(row: Class) -> dict[str, Any]:
        spreads = {name: getattr(row, name) for name in ("end_to_end", "encoder", "decoder")}
        rounded = {name: [round(x, 5) for x in (s.median, s.least, s.greatest)] for name, s in spreads.items()}
        return dataclasses.asdict(row) | rounded

    return {
        "benchmark": "specedge bench --audio-context",
        "model": found.bundle.manifest.name,
        "precision": found.bundle.manifest.precision,
        **device_fields(found.threads),
        "rounds": found.rounds,
        "left_out": found.n_left_out,
        "classes": [fields(row) for row in found.classes],
    }
