"""`specedge bench`: every drafter that a model has here beside plain decoding, on the user's own audio.

Plain decoding and the drafters take turns (rounds.py); figures are medians over the rounds. The text of each drafter is
compared with plain decoding's, number by number. Peak memory is that of a fresh process which transcribes the first
file with that drafter alone.

Each window is decoded once, at temperature 0. Falling back would measure how many texts a window takes: where most
fail, as with weights that were not trained, that is 26 of them.

All of it keeps within a time budget. Plain decoding goes first; the audio that it gets through in its share of the time
is measured.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from specedge.errors import SpecedgeError, UsageError

from ..bundle.bundle import Bundle
from ..console import silently
from ..decoding.drafter import Drafter, EmptyDrafter, TargetModel
from ..device import BUSY, Profile, load_profile
from ..drafters.registry import make_drafter
from ..longform.transcribe import transcribe
from ..options import CPU, HAS_MODEL, READS_MAPS, DrafterOptions, TranscribeOptions
from ..output.report import segment_runs
from ..text.transcripts import read_sentences
from ..text.words import character_error_rate, word_errors
from .provider import ProviderWorth
from .rounds import WARM_UP, Heard, OutOfTime, Rounds, Sums, TimedEngine, Timer, hear, measure_rounds
from .verdict import PLAIN, BenchVerdict, Spread, choose

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


def can_measure() -> bool:
    """Whether the system tells what a child process used; Windows does not."""
    return hasattr(os, "wait4")


def run_measured(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    quiet: bool = False,
    limit_s: float = math.inf,
) -> dict[str, float]:
    """Run a command to its end: `wall_s`, `cpu_s`, and `peak_mb` of the largest process below it.

    Call it before anything large is loaded: a child's peak memory is never below its parent's at the fork. env:
    additional variables; quiet: drop its standard error; limit_s: kill it then, which is no error. Raises SpecedgeError
    when it ends by itself with another code than 0.
    """
    started = time.perf_counter()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL if quiet else None,
        env=None if env is None else {**os.environ, **env},
    )
    killer = threading.Timer(min(limit_s, threading.TIMEOUT_MAX), process.kill)
    killer.start()
    try:
        _, status, usage = os.wait4(process.pid, 0)
    except BaseException:
        process.kill()
        process.wait()
        raise
    finally:
        killer.cancel()
    wall_s = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0 and wall_s < limit_s:
        reason = "" if quiet else "; its reason is above"
        raise SpecedgeError(f"{' '.join(command)} ended with code {process.returncode}{reason}")
    unit = 1 if sys.platform == "darwin" else 1024
    return {"wall_s": wall_s, "cpu_s": usage.ru_utime + usage.ru_stime, "peak_mb": usage.ru_maxrss * unit / 1e6}


ROUNDS = 5
MOST_ROUNDS, SHORT_S = 25, 15.0  # of audio so short that this many rounds take less: a moment decides over one of them
_LEAST = 2  # a warm-up and one round
ENOUGH_ROUNDS = 3  # the audio is cut so that there is time for so many
SPLIT = ("encoder", "draft", "verify", "rules", "other")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to measure. drafters: "none" first; references: what is said in each file, or (); rounds: at most; None:
    ROUNDS, or up to MOST_ROUNDS where the audio is short; batch: measure batched mode, this batch size beside 1."""

    files: tuple[str, ...]
    drafters: tuple[str, ...]
    token_maps: tuple[Path, ...] = ()
    draft_model: str | None = None
    language: str | None = None
    references: tuple[str, ...] = ()
    rounds: int | None = None
    batch: int | None = None

    @property
    def rows(self) -> tuple[str, ...]:
        """What is compared: the drafters, and with a batch each of them in batches too, as "ctc x8"."""
        return self.drafters if self.batch is None else (*self.drafters, *(f"{d} x{self.batch}" for d in self.drafters))

    def batch_of(self, row: str) -> int | None:
        """The batch size of a row; None where windows follow one another."""
        return None if self.batch is None else self.batch if " " in row else 1

    @property
    def n_rounds(self) -> int:
        return self.rounds or ROUNDS

    @property
    def transcribes(self) -> TranscribeOptions:
        """How all of it is transcribed."""
        return TranscribeOptions(language=self.language, temperature=TranscribeOptions.temperature[:1])

    def options_for(self, row: str) -> DrafterOptions:
        """What of the plan is for this row's drafter."""
        drafter = row.partition(" ")[0]
        return DrafterOptions(
            drafter,
            token_maps=self.token_maps if drafter in READS_MAPS else (),
            draft_model=self.draft_model if drafter in HAS_MODEL else None,
        )


@dataclass(frozen=True)
class Peak:
    """A process's peak memory; is_whole: False where it was stopped before its end."""

    mb: float
    is_whole: bool = True


@dataclass(frozen=True, kw_only=True)
class Row:
    """The figures of one drafter. Seconds are of one round, all files together.

    rounds: in how many it was measured; decoder_speed_up, end_to_end: times as fast as plain decoding in the same
    round; decoder_s: decoder and drafting; split_s: medians of the parts of total_s; acceptance: accepted of evaluated
    drafts, None without any; peak: None where it was not measured; word_error_rate,
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
    texts_per_pass: float | None
    acceptance: float | None
    acceptance_by_position: tuple[float | None, ...]
    peak: Peak | None
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
    measured in fewer rounds, or none; texts: for each drafter and file the text in runs, each with its drafter;
    verdict: None of batches, which auto knows nothing of; provider: what another provider of the encoder than the CPU
    is worth.
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
    texts: Mapping[str, Sequence[Sequence[tuple[str, str]]]]
    profile: Profile | None
    verdict: BenchVerdict | None
    provider: ProviderWorth | None = None

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
    peaks: Mapping[str, Peak],
    *,
    timer: Timer | None = None,
    on_heard: Callable[[], None] | None = None,
    begins: Callable[[int | None], Callable[..., Any]] = lambda batch: transcribe,
) -> Findings:
    """Measure until `timer` is at its end. `on_heard` is told of each transcription.

    begins: makes of a batch size what begins a transcription, see `rounds.hear`.

    Raises what a transcription does, and UsageError for a drafter that is not there, or too little time.
    """
    timer = timer or Timer()
    options = plan.transcribes
    timed: Any = TimedEngine(engine, timer)
    listening = {row: functools.partial(hear, timed, bundle, begin=begins(plan.batch_of(row))) for row in plan.rows}
    parts, plain_heard = _material(listening[PLAIN], plan, options, timer)
    if on_heard is not None:
        for _ in plain_heard:
            on_heard()
    with contextlib.ExitStack() as stack:

        def begin(round_: int, names: Sequence[str]) -> dict[str, tuple[str, Drafter]]:
            stack.close()
            made: dict[str, tuple[str, Drafter]] = {}
            target = TargetModel(bundle, threads=engine.threads, canceller=getattr(engine, "canceller", None))
            # What the first of them warns of is true of all rounds.
            with contextlib.nullcontext() if round_ == WARM_UP else silently():
                for name in names:
                    drafter = make_drafter(plan.options_for(name), target)
                    made[name] = name, drafter
                    stack.callback(drafter.close)
            return made

        def listen(named: tuple[str, Drafter], part: Part[str], round_: int) -> Heard:
            (name, drafter), heard_so = named, replace(options, draft_sources=round_ == WARM_UP)
            return listening[name](part.source, heard_so, drafter, part.goes_on)

        rounds = measure_rounds(
            plan.rows,
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
    return _findings(engine, bundle, plan, peaks, rounds, timer.budget_s)


def _material(
    hear: Callable[..., Heard], plan: Plan, options: TranscribeOptions, timer: Timer
) -> tuple[list[Part[str]], list[Heard]]:
    """The parts to measure, and plain decoding's warm-up over them. Raises UsageError when one window takes so long
    that a warm-up and one round of all drafters do not fit into the budget."""

    def listen(file: str, goes_on: Callable[[int], bool]) -> Heard:
        heard_so = replace(options, draft_sources=True)
        return hear(file, heard_so, EmptyDrafter(), goes_on)

    left_s = timer.left_s / len(plan.rows)
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
    peaks: Mapping[str, Peak],
    rounds: Rounds[Part[str]],
    budget_s: float,
) -> Findings:
    parts = rounds.sources
    is_whole = all(part.n_windows is None for part in parts)
    references = plan.references[: len(parts)] if is_whole else ()
    rows = {name: _row(name, rounds, references, peaks.get(name)) for name in plan.rows if rounds.with_drafter(name)}
    texts = {
        name: [[run for segment in one.segments for run in segment_runs(segment, bundle.tokenizer)] for one in heard]
        for name, heard in rounds.warm.items()
        if name in rows
    }
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
        texts=texts,
        profile=load_profile(bundle.digest, engine.threads),
        verdict=None if plan.batch is not None else _verdict(rows, plan, engine.threads),
    )


def peak_memory(
    plan: Plan,
    model: Path,
    threads: int | None,
    on_done: Callable[[], None] | None = None,
    *,
    limit_s: float = math.inf,
    encoder_provider: str = CPU,
) -> dict[str, Peak]:
    """The peak memory of a fresh process for each drafter; empty where the system does not tell.

    A drafter whose process fails has no figure; one that takes more than its share of `limit_s` is stopped.
    """
    peaks: dict[str, Peak] = {}
    timer = Timer(limit_s)
    for at, name in enumerate(plan.rows):
        own_s = timer.left_s / (len(plan.rows) - at)
        options = plan.options_for(name)
        command = [sys.executable, "-m", "specedge", "transcribe", plan.files[0], "-q", "-m", str(model)]
        command += [
            "--temperature-increment-on-fallback",
            "None",
            "--drafter",
            options.name,
            *(["-t", str(threads)] if threads else []),
        ]
        command += ["-l", plan.language] if plan.language else []
        command += ["--encoder-provider", encoder_provider] if encoder_provider != CPU else []
        command += ["--batch-size", str(plan.batch_of(name))] if plan.batch_of(name) else []
        command += ["--draft-model", str(options.draft_model)] if options.draft_model else []
        command += [word for path in options.token_maps for word in ("--token-map", str(path))]
        if can_measure():
            with contextlib.suppress(SpecedgeError):
                # The measurement itself will say what is wrong.
                found = run_measured(command, quiet=True, limit_s=own_s)
                peaks[name] = Peak(found["peak_mb"], found["wall_s"] < own_s)
        if on_done is not None:
            on_done()
    return peaks


def read_references(paths: Sequence[Path], n_files: int) -> tuple[str, ...]:
    """The text of each transcript, which are in the files' order. Raises UsageError."""
    if paths and len(paths) != n_files:
        raise UsageError(f"--reference: got {len(paths)} for {n_files} inputs, expected one for each, in their order")

    def report(error: Exception) -> None:
        raise error

    return tuple(" ".join(read_sentences([str(path)], report=report)) for path in paths)


def _row(name: str, rounds: Rounds[Part[str]], references: Sequence[str], peak: Peak | None) -> Row:
    counted = rounds.sums[0][name].counted
    said = ["".join(segment.text for segment in one.segments) for one in rounds.warm[name]]
    pairs = list(zip(references, said, strict=True)) if references else []
    return Row(
        drafter=name,
        rounds=len(rounds.with_drafter(name)),
        decoder_speed_up=rounds.speed_up(name, lambda sums: sums.decoder_s),
        end_to_end=rounds.speed_up(name, lambda sums: sums.total_s),
        decoder_s=rounds.spread(name, lambda sums: sums.decoder_s),
        total_s=rounds.spread(name, lambda sums: sums.total_s),
        split_s=_medians([_split(sums[name]) for sums in rounds.with_drafter(name)]),
        audio_s=rounds.duration_s,
        tokens=counted.tokens,
        passes=counted.passes,
        tokens_per_pass=counted.tokens_per_pass,
        rows_per_pass=counted.rows_per_pass,
        texts_per_pass=counted.texts_per_pass,
        acceptance=counted.acceptance_rate,
        acceptance_by_position=counted.acceptance_by_position,
        peak=peak,
        word_error_rate=word_errors(pairs).rate if pairs else None,
        character_error_rate=character_error_rate(pairs) if pairs else None,
        different=rounds.different[name],
        dropped=rounds.dropped.get(name),
    )


def _split(sums: Sums) -> dict[str, float]:
    counted = sums.counted
    known = (sums.encoder_s, counted.draft_s, counted.verify_s, counted.rules_s)
    return dict(zip(SPLIT, (*known, max(sums.total_s - sum(known), 0.0)), strict=True))


def _medians(splits: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {part: Spread.of([split[part] for split in splits]).median for part in SPLIT}


def _verdict(rows: Mapping[str, Row], plan: Plan, threads: int) -> BenchVerdict:
    # auto begins with the verdict, so it is none. A drafter that saved no pass is not quicker, whatever the clock.
    sound = {
        name: row
        for name, row in rows.items()
        if row.is_sound and name != "auto" and (name == PLAIN or row.passes < rows[PLAIN].passes)
    }
    verdict = choose(
        {name: row.decoder_speed_up for name, row in sound.items()},
        {name: row.end_to_end for name, row in sound.items()},
        threads=threads,
        rounds={name: row.rounds for name, row in rows.items()},
        audio_s=rows[PLAIN].audio_s,
    )
    chosen = plan.options_for(verdict.drafter)
    return replace(
        verdict,
        draft_model=None if chosen.draft_model is None else str(chosen.draft_model),
        token_maps=tuple(os.path.abspath(path) for path in chosen.token_maps),
    )
