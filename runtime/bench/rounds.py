"""Rounds of transcriptions by several drafters that take turns, so that they can be compared, within a time budget.

All drafters transcribe each sound in a row, each time beginning with the next of them, and all sounds again in each
round: a slow moment of the machine touches all alike. Before, each warms up once, untimed. Drafters begin anew in each
round and live through it, as over several files. Ratios are taken within a round.

In the warm-up and the first round a drafter may take the time that plain decoding took, and half of what is to spare
once the others' turns are set aside; a drafter that is not done by then is left out. If the rest does not suffice for
all rounds, drafters that were clearly behind in the first are not repeated. A round that is cut short does not count.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from specedge.errors import UsageError

from ..audio.audio import AudioSource, open_audio
from ..bundle.bundle import Bundle
from ..decoding.drafter import Drafter
from ..decoding.statistics import Speculation
from ..longform.segments import Segment
from ..longform.transcribe import transcribe
from ..options import TranscribeOptions
from .recommendation import PLAIN, Spread

if TYPE_CHECKING:
    from ..engine.engine import Engine

_PASSES = ("encode", "encode_all", "forward", "forward_many", "forward_paths")


class OutOfTime(Exception):
    """A time limit is reached."""


class Timer:
    """A budget of `budget_s` seconds from now on, by `clock`."""

    def __init__(self, budget_s: float = math.inf, clock: Callable[[], float] = time.perf_counter) -> None:
        self.budget_s = budget_s
        self.now = clock
        self._end = self._limit = clock() + budget_s

    @property
    def left_s(self) -> float:
        return self._end - self.now()

    @contextlib.contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Inside, `check` also fails after so many seconds."""
        self._limit = min(self._end, self.now() + seconds)
        try:
            yield
        finally:
            self._limit = self._end

    def check(self) -> None:
        """Raises OutOfTime when the budget or the limit of `within` is spent."""
        if self.now() >= self._limit:
            raise OutOfTime


class TimedEngine:
    """An engine that asks `timer` before the encoder and each pass of the decoder; a pass that runs is let run."""

    def __init__(self, engine: Any, timer: Timer) -> None:
        self._engine, self._timer = engine, timer

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._engine, name)
        if name not in _PASSES:
            return found

        def timed(*args: Any, **kwargs: Any) -> Any:
            self._timer.check()
            return found(*args, **kwargs)

        setattr(self, name, timed)  # so that it is looked up here once, not once a token
        return timed


WARM_UP = -1
BEHIND = 1.3  # times the quickest's time in a round: more than a busy machine makes of equals
S = TypeVar("S")
D = TypeVar("D")  # a drafter, or what has one


@dataclass(frozen=True, kw_only=True)
class Heard:
    """One transcription. duration_s: of the audio that was heard; drafter_error: why the drafter was dropped;
    is_whole: False where it was stopped behind a window although there may be more; language: given or detected;
    n_again: windows that were encoded again in full."""

    segments: Sequence[Segment]
    counted: Speculation
    encoder_s: float
    total_s: float
    duration_s: float
    drafter_error: str | None = None
    is_whole: bool = True
    language: str | None = None
    n_again: int = 0

    @property
    def text(self) -> str:
        return "".join(segment.text for segment in self.segments)


@dataclass(kw_only=True)
class Sums:
    """One drafter's counters and seconds in one round."""

    counted: Speculation = field(default_factory=Speculation)
    encoder_s: float = 0.0
    total_s: float = 0.0

    @property
    def decoder_s(self) -> float:
        """Decoder and drafter."""
        return self.counted.decoder_s + self.counted.draft_s

    def add(self, counted: Speculation, encoder_s: float, total_s: float) -> None:
        self.counted = self.counted.plus(counted)
        self.encoder_s += encoder_s
        self.total_s += total_s


@dataclass(kw_only=True)
class Rounds(Generic[S]):
    """What was measured. sums: for each timed round by drafter; warm: for each drafter the warm-up's transcriptions;
    different: sounds, of all rounds, in which a drafter's segments were not plain decoding's; dropped: why a drafter
    failed and was dropped; fewer: why a drafter was measured in fewer rounds than plain decoding, or in none."""

    sources: Sequence[S]
    sums: list[dict[str, Sums]] = field(default_factory=list)
    warm: dict[str, list[Heard]] = field(default_factory=dict)
    different: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    fewer: dict[str, str] = field(default_factory=dict)

    @property
    def duration_s(self) -> float:
        return sum(heard.duration_s for heard in self.warm[PLAIN])

    def with_drafter(self, drafter: str) -> list[dict[str, Sums]]:
        return [sums for sums in self.sums if drafter in sums]

    def spread(self, drafter: str, seconds: Callable[[Sums], float]) -> Spread:
        return Spread.of([seconds(sums[drafter]) for sums in self.with_drafter(drafter)])

    def speed_up(self, drafter: str, seconds: Callable[[Sums], float]) -> Spread:
        """Plain decoding's seconds divided by the drafter's, in the same round."""
        rounds = self.with_drafter(drafter)
        return Spread.of([seconds(sums[PLAIN]) / (seconds(sums[drafter]) or 1e-9) for sums in rounds])


def turned(names: Sequence[str], turn: int) -> tuple[str, ...]:
    """`names` rotated, so that the order changes with each turn."""
    at = turn % len(names)
    return (*names[at:], *names[:at])


def measure_rounds(
    names: Sequence[str],
    sources: Sequence[S],
    n_rounds: int,
    *,
    begin: Callable[[int, Sequence[str]], Mapping[str, D]],
    listen: Callable[[D, S, int], Heard],
    plain_heard: Sequence[Heard] = (),
    on_heard: Callable[[int], None] | None = None,
    timer: Timer | None = None,
    most_rounds: int = 0,
    short_s: float = 0.0,
) -> Rounds[S]:
    """Warm up, then measure `n_rounds` rounds, or as many as `timer` has time for.

    More rounds, up to `most_rounds`, while all together took less than `short_s` seconds: short ones scatter.

    names: of the drafters, with "none"; begin: makes them anew for a round (`WARM_UP`, or from 0 on); listen:
    transcribes a sound with one of them; plain_heard: plain decoding's warm-up, if it is done; on_heard: told of each
    transcription. Raises UsageError when there is not time for one round.
    """
    run = _Run(names, sources, listen, on_heard, timer or Timer())
    found = run.found
    run.warm_up(begin(WARM_UP, names), plain_heard)
    for round_ in range(max(n_rounds, most_rounds)):
        n_left = n_rounds - round_
        if n_left <= 0 and run.spent_s >= short_s:
            break
        if round_ == 1 and run.round_s * n_left > run.timer.left_s:
            run.leave_behind()
        if round_ > 0 and run.round_s > run.timer.left_s:
            break
        try:
            found.sums.append(run.measure(begin(round_, run.active), round_))
        except OutOfTime:
            break
    if not found.sums:
        raise UsageError(
            f"there was not time for one round of {', '.join(names)} within {run.timer.budget_s:g} s: give a larger "
            "--budget, or fewer --drafters"
        )
    return found


class _Run(Generic[S, D]):
    """The rounds so far, and the drafters that still take part."""

    def __init__(
        self,
        names: Sequence[str],
        sources: Sequence[S],
        listen: Callable[[D, S, int], Heard],
        on_heard: Callable[[int], None] | None,
        timer: Timer,
    ) -> None:
        self.found = Rounds(sources=sources, warm={name: [] for name in names}, different=dict.fromkeys(names, 0))
        self.active = list(names)
        self.timer = timer
        self._listen, self._on_heard = listen, on_heard
        self._last: dict[str, Sums] = {}
        self.spent_s = 0.0  # in rounds

    @property
    def round_s(self) -> float:
        """What another round would take."""
        return sum(self._last[name].total_s for name in self.active)

    def warm_up(self, drafters: Mapping[str, D], plain_heard: Sequence[Heard]) -> None:
        """Every drafter once, plain decoding first."""
        found, sources = self.found, self.found.sources
        plain = list(plain_heard) or [self._hear(drafters, PLAIN, source, WARM_UP) for source in sources]
        found.warm[PLAIN] = plain
        waiting = [name for name in self.active if name != PLAIN]
        for at, name in enumerate(tuple(waiting)):
            for i, source in enumerate(sources):
                n_others = len(waiting) - at - 1 + len(self.active)
                owed_s = sum(one.total_s for one in plain[i + 1 :]) + sum(one.total_s for one in plain) * n_others
                heard = self._within(drafters, name, source, WARM_UP, plain[i].total_s, owed_s)
                if heard is None:
                    break
                found.different[name] += list(heard.segments) != list(plain[i].segments)
                found.warm[name].append(heard)

    def measure(self, drafters: Mapping[str, D], round_: int) -> dict[str, Sums]:
        """One round. Raises OutOfTime when plain decoding, or in a later round any drafter, is not done in time."""
        found = self.found
        sums = {name: Sums() for name in self.active}
        plain_s = [one.total_s for one in found.warm[PLAIN]]
        for at, source in enumerate(found.sources):
            heard = {}
            order = [name for name in turned(list(found.warm), at + round_) if name in self.active]
            for turn, name in enumerate(order):
                if name == PLAIN or round_ > 0:
                    heard[name] = self._hear(drafters, name, source, round_)
                    continue
                owed_s = plain_s[at] * (len(order) - turn - 1) + sum(plain_s[at + 1 :]) * len(self.active)
                one = self._within(drafters, name, source, round_, plain_s[at], owed_s)
                if one is not None:
                    heard[name] = one
            for name, one in heard.items():
                sums[name].add(one.counted, one.encoder_s, one.total_s)
                found.different[name] += list(one.segments) != list(heard[PLAIN].segments)
        self._last = {name: sums[name] for name in self.active}
        self.spent_s += self.round_s
        return self._last

    def leave_behind(self) -> None:
        """Leave out the drafters that were clearly behind in the last round."""
        least_s = min(sums.decoder_s for sums in self._last.values()) or 1e-9
        for name, sums in self._last.items():
            if name != PLAIN and sums.decoder_s > BEHIND * least_s:
                self.active.remove(name)
                self.found.fewer[name] = f"clearly behind, {sums.decoder_s / least_s:.1f} times the quickest's time"

    def _within(
        self, drafters: Mapping[str, D], name: str, source: S, round_: int, plain_s: float, owed_s: float
    ) -> Heard | None:
        """A drafter's turn within its share of the time; None where it takes longer, and is left out from now on."""
        limit_s = plain_s + max(self.timer.left_s - plain_s - owed_s, 0.0) / 2
        try:
            with self.timer.within(limit_s):
                return self._hear(drafters, name, source, round_)
        except OutOfTime:
            self.active.remove(name)
            self.found.fewer[name] = f"not done after {limit_s:.1f} s, plain decoding took {plain_s:.1f} s"
            return None

    def _hear(self, drafters: Mapping[str, D], name: str, source: S, round_: int) -> Heard:
        heard = self._listen(drafters[name], source, round_)
        if heard.drafter_error is not None:
            self.found.dropped.setdefault(name, heard.drafter_error)
        if self._on_heard is not None:
            self._on_heard(round_)
        return heard


class _Enough(Exception):
    """Enough windows are heard."""


def hear(
    engine: Engine,
    bundle: Bundle,
    source: AudioSource,
    options: TranscribeOptions,
    drafter: Drafter,
    goes_on: Callable[[int], bool] = lambda n_windows: True,
) -> Heard:
    """Transcribe a sound, until `goes_on`, asked with the number of windows done, says no. Raises as `transcribe`."""
    started = time.perf_counter()
    n_windows, until_s, is_stopped = 0, 0.0, False

    def on_progress(seconds: float) -> None:
        nonlocal n_windows, until_s
        n_windows, until_s = n_windows + 1, seconds
        if not goes_on(n_windows):
            raise _Enough

    segments = []
    with open_audio(source) as stream:
        done = transcribe(engine, bundle, stream, options, drafter=drafter, on_progress=on_progress)
        try:
            for segment in done:
                segments.append(segment)
        except _Enough:
            is_stopped = stream.duration_s is None or until_s < done.duration_s
    return Heard(
        segments=segments,
        counted=done.speculation,
        encoder_s=done.encoder_s,
        total_s=time.perf_counter() - started,
        duration_s=until_s if is_stopped else done.duration_s,
        drafter_error=done.drafter_error,
        is_whole=not is_stopped,
        language=done.language,
        n_again=done.audio_context.n_again,
    )
