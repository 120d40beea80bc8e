"""`specedge bench`: every drafter that a model has here beside plain decoding, on the user's own audio.

Plain decoding and the drafters take turns (rounds.py); figures are medians over the rounds. The text of each drafter is
compared with plain decoding's, number by number.

Each window is decoded once, at temperature 0. Falling back would measure how many texts a window takes: where most
fail, as with weights that were not trained, that is 26 of them.

All of it keeps within a time budget. Plain decoding goes first; the audio that it gets through in its share of the time
is measured.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from specedge.errors import UsageError

from ..bundle.bundle import Bundle
from ..console import silently
from ..decoding.drafter import Drafter, EmptyDrafter, TargetModel
from ..device import BUSY, Profile, load_profile
from ..drafters.registry import make_drafter
from ..options import HAS_MODEL, READS_MAPS, DrafterOptions, TranscribeOptions
from ..text.transcripts import read_sentences
from .errors import character_error_rate, word_errors
from .recommendation import PLAIN, Recommendation, Spread, recommend
from .rounds import WARM_UP, Heard, OutOfTime, Rounds, Sums, TimedEngine, Timer, hear, measure_rounds

S = TypeVar("S")


@dataclass(frozen=True)
class Part(Generic[S]):
    """The first `n_windows` of a sound; None: all of it."""

    source: S
    n_windows: int | None = None

    def goes_on(self, n_windows: int) -> bool:
        return self.n_windows is None or n_windows < self.n_windows


def as_much_as_fits(
    sources: Sequence[S],
    listen: Callable[[S, Callable[[int], bool]], Heard],
    timer: Timer,
    *,
    enough_s: float,
    limit_s: float,
) -> tuple[list[Part[S]], list[Heard]]:
    """The parts to measure and what was heard in each. No window is begun after `enough_s` or waited for longer than
    `limit_s`; nothing is returned where that is too short for one window. listen: see `rounds.hear`."""
    started = timer.now()
    parts: list[Part[S]] = []
    heard: list[Heard] = []
    n_done = 0

    def goes_on(n_windows: int) -> bool:
        nonlocal n_done
        n_done = n_windows
        return timer.now() - started < enough_s

    for source in sources:
        n_done = 0
        try:
            with timer.within(limit_s - (timer.now() - started)):
                one = listen(source, goes_on)
        except OutOfTime:
            break
        parts.append(Part(source, None if one.is_whole else n_done))
        heard.append(one)
        n_done = 0
        if timer.now() - started >= enough_s:
            return parts, heard
    if n_done and not parts:  # the window behind these took too long
        parts = [Part(sources[0], n_done)]
        heard = [listen(sources[0], parts[0].goes_on)]
    return parts, heard


ROUNDS = 5
MOST_ROUNDS, SHORT_S = 25, 15.0  # of audio so short that this many rounds take less: a moment decides over one of them
_LEAST = 2  # a warm-up and one round
ENOUGH_ROUNDS = 3  # the audio is cut so that there is time for so many
SPLIT = ("encoder", "draft", "verify", "rules", "other")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to measure. drafters: "none" first; references: what is said in each file, or (); rounds: at most; None:
    ROUNDS, or up to MOST_ROUNDS where the audio is short."""

    files: tuple[str, ...]
    drafters: tuple[str, ...]
    token_maps: tuple[Path, ...] = ()
    draft_model: str | None = None
    language: str | None = None
    references: tuple[str, ...] = ()
    rounds: int | None = None

    @property
    def n_rounds(self) -> int:
        return self.rounds or ROUNDS

    @property
    def transcribes(self) -> TranscribeOptions:
        """How all of it is transcribed."""
        return TranscribeOptions(language=self.language, temperature=TranscribeOptions.temperature[:1])

    def options_for(self, drafter: str) -> DrafterOptions:
        """What of the plan is for this drafter."""
        return DrafterOptions(
            drafter,
            token_maps=self.token_maps if drafter in READS_MAPS else (),
            draft_model=self.draft_model if drafter in HAS_MODEL else None,
        )


@dataclass(frozen=True, kw_only=True)
class Row:
    """The figures of one drafter. Seconds are of one round, all files together.

    rounds: in how many it was measured; decoder_speed_up, end_to_end: times as fast as plain decoding in the same
    round; decoder_s: decoder and drafting; split_s: medians of the parts of total_s; acceptance: accepted of evaluated
    drafts, None without any; word_error_rate,
    character_error_rate: None without references; different: sounds, of all rounds, whose text, times or
    log-probabilities were not plain decoding's; dropped: why.
    """

    drafter: str
    rounds: int
    decoder_speed_up: Spread
    end_to_end: Spread
    decoder_s: Spread
    total_s: Spread
    split_s: Mapping[str, float]
    audio_s: float
    tokens: int
    passes: int
    tokens_per_pass: float | None
    rows_per_pass: float | None
    acceptance: float | None
    word_error_rate: float | None
    character_error_rate: float | None
    different: int
    dropped: str | None

    @property
    def real_time_factor(self) -> float:
        return self.total_s.median / self.audio_s if self.audio_s else 0.0

    @property
    def encoder_share(self) -> float:
        return self.split_s["encoder"] / self.total_s.median if self.total_s.median else 0.0

    @property
    def is_sound(self) -> bool:
        return self.different == 0 and self.dropped is None

    @property
    def has_drafted(self) -> bool:
        """Whether a drafted token was ever a row of a pass."""
        return self.acceptance is not None


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Everything that was found.

    files: those of the plan that were measured; n_windows: of the last, if not all of it was; fewer: why a drafter was
    measured in fewer rounds, or none.
    """

    bundle: Bundle
    threads: int
    plan: Plan
    files: tuple[str, ...]
    n_windows: int | None
    n_rounds: int
    fewer: Mapping[str, str]
    budget_s: float
    rows: Mapping[str, Row]
    profile: Profile | None
    recommendation: Recommendation

    @property
    def lossless(self) -> bool:
        return all(row.different == 0 for row in self.rows.values())

    @property
    def was_busy(self) -> bool:
        """Whether the rounds of plain decoding disagree so much that something else was at work on this machine."""
        least_s, greatest_s = self.rows[PLAIN].decoder_s.usual
        return greatest_s > BUSY * least_s


def bench(
    engine: Any,
    bundle: Bundle,
    plan: Plan,
    *,
    timer: Timer | None = None,
    on_heard: Callable[[], None] | None = None,
) -> Findings:
    """Measure until `timer` is at its end. `on_heard` is told of each transcription.

    Raises what a transcription does, and UsageError for a drafter that is not there, or too little time.
    """
    timer = timer or Timer()
    options = plan.transcribes
    timed: Any = TimedEngine(engine, timer)
    parts, plain_heard = _material(functools.partial(hear, timed, bundle), plan, options, timer)
    if on_heard is not None:
        for _ in plain_heard:
            on_heard()
    with contextlib.ExitStack() as stack:

        def begin(round_: int, names: Sequence[str]) -> dict[str, Drafter]:
            stack.close()
            made: dict[str, Drafter] = {}
            target = TargetModel(bundle, threads=engine.threads, canceller=getattr(engine, "canceller", None))
            # What the first of them warns of is true of all rounds.
            with contextlib.nullcontext() if round_ == WARM_UP else silently():
                for name in names:
                    made[name] = make_drafter(plan.options_for(name), target)
                    stack.callback(made[name].close)
            return made

        def listen(drafter: Drafter, part: Part[str], round_: int) -> Heard:
            return hear(timed, bundle, part.source, options, drafter, part.goes_on)

        rounds = measure_rounds(
            plan.drafters,
            parts,
            plan.n_rounds,
            begin=begin,
            listen=listen,
            plain_heard=plain_heard,
            on_heard=None if on_heard is None else lambda round_: on_heard(),
            timer=timer,
            most_rounds=0 if plan.rounds else MOST_ROUNDS,
            short_s=SHORT_S,
        )
    return _findings(engine, bundle, plan, rounds, timer.budget_s)


def _material(
    hear: Callable[..., Heard], plan: Plan, options: TranscribeOptions, timer: Timer
) -> tuple[list[Part[str]], list[Heard]]:
    """The parts to measure, and plain decoding's warm-up over them. Raises UsageError when one window takes so long
    that a warm-up and one round of all drafters do not fit into the budget."""

    def listen(file: str, goes_on: Callable[[int], bool]) -> Heard:
        return hear(file, options, EmptyDrafter(), goes_on)

    left_s = timer.left_s / len(plan.drafters)
    enough_s, limit_s = left_s / (1 + min(plan.n_rounds, ENOUGH_ROUNDS)), left_s / _LEAST
    with contextlib.suppress(OutOfTime):
        parts, heard = as_much_as_fits(plan.files, listen, timer, enough_s=enough_s, limit_s=limit_s)
        if parts:
            return parts, heard
    raise UsageError(
        f"{plan.files[0]}: plain decoding does not get through one window in {limit_s:.1f} s, its share of "
        f"{timer.budget_s:g} s for {', '.join(plan.drafters)}: give a larger --budget, or fewer --drafters"
    )


def _findings(
    engine: Any,
    bundle: Bundle,
    plan: Plan,
    rounds: Rounds[Part[str]],
    budget_s: float,
) -> Findings:
    parts = rounds.sources
    is_whole = all(part.n_windows is None for part in parts)
    references = plan.references[: len(parts)] if is_whole else ()
    language = plan.language or rounds.warm[PLAIN][0].language or "en"
    rows = {name: _row(name, rounds, references, language) for name in plan.drafters if rounds.with_drafter(name)}
    return Findings(
        bundle=bundle,
        threads=engine.threads,
        plan=plan,
        files=tuple(part.source for part in parts),
        n_windows=parts[-1].n_windows,
        n_rounds=len(rounds.sums),
        fewer=rounds.fewer,
        budget_s=budget_s,
        rows=rows,
        profile=load_profile(bundle.timed_digest, engine.threads),
        recommendation=_recommended(rows, plan),
    )


def read_references(paths: Sequence[Path], n_files: int) -> tuple[str, ...]:
    """The text of each transcript, which are in the files' order. Raises UsageError."""
    if paths and len(paths) != n_files:
        raise UsageError(f"--reference: got {len(paths)} for {n_files} inputs, expected one for each, in their order")
    return tuple(" ".join(read_sentences([str(path)])) for path in paths)


def _row(name: str, rounds: Rounds[Part[str]], references: Sequence[str], language: str) -> Row:
    counted = rounds.sums[0][name].counted
    said = [one.text for one in rounds.warm[name]]
    pairs = list(zip(references, said, strict=True)) if references else []
    return Row(
        drafter=name,
        rounds=len(rounds.with_drafter(name)),
        decoder_speed_up=rounds.speed_up(name, lambda sums: sums.decoder_s),
        end_to_end=rounds.speed_up(name, lambda sums: sums.total_s),
        decoder_s=rounds.spread(name, lambda sums: sums.decoder_s),
        total_s=rounds.spread(name, lambda sums: sums.total_s),
        split_s=medians([split(sums[name]) for sums in rounds.with_drafter(name)]),
        audio_s=rounds.duration_s,
        tokens=counted.tokens,
        passes=counted.passes,
        tokens_per_pass=counted.tokens_per_pass,
        rows_per_pass=counted.rows_per_pass,
        acceptance=counted.acceptance_rate,
        word_error_rate=word_errors(pairs, language).rate if pairs else None,
        character_error_rate=character_error_rate(pairs, language) if pairs else None,
        different=rounds.different[name],
        dropped=rounds.dropped.get(name),
    )


def split(sums: Sums) -> dict[str, float]:
    """Seconds of a round, by SPLIT."""
    counted = sums.counted
    known = (sums.encoder_s, counted.draft_s, counted.verify_s, counted.rules_s)
    return dict(zip(SPLIT, (*known, max(sums.total_s - sum(known), 0.0)), strict=True))


def medians(splits: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of several rounds' splits, part by part."""
    return {part: Spread.of([split[part] for split in splits]).median for part in SPLIT}


def _recommended(rows: Mapping[str, Row], plan: Plan) -> Recommendation:
    # auto changes with the windows. A drafter that saved no pass is not quicker, whatever the clock.
    sound = {
        name: row
        for name, row in rows.items()
        if row.is_sound and name != "auto" and (name == PLAIN or row.passes < rows[PLAIN].passes)
    }
    found = recommend(
        {name: row.decoder_speed_up for name, row in sound.items()},
        {name: row.end_to_end for name, row in sound.items()},
        rounds={name: row.rounds for name, row in rows.items()},
    )
    chosen = plan.options_for(found.drafter)
    draft = None if chosen.draft_model is None else str(chosen.draft_model)
    return replace(found, draft_model=draft, token_maps=tuple(map(str, chosen.token_maps)))
