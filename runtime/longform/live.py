"""Live transcription: blocks of audio in, confirmed and tentative text out, by local agreement over a growing buffer.

Every `step_s` seconds the buffer is transcribed as a file of its own would be. Words on which two hypotheses in a row
agree are confirmed and never taken back (LocalAgreement-2: Liu, Spanakis and Niehues, Interspeech 2020; for Whisper
Macháček, Dabre and Bojar, 2023). The buffer holds one window of the model at most. It is cut after a segment whose text
is confirmed, at the quietest moment near the predicted time of the next segment; when it is full, before its last
segment, or whole where it is a single one. Silence, by the energy detector, is never decoded; a second of it ends an
utterance, whose text is then confirmed as it stands.

Each pass stands alone: it is not conditioned on earlier text, so that no mistake feeds itself. Only the drafter gets
the last hypothesis of the same audio, as a draft. Steps are counted in samples, so the size of blocks changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from specedge.errors import UsageError

from ..audio.audio import open_audio
from ..audio.vad import EnergyDetector
from ..bundle.bundle import Bundle
from ..bundle.manifest import HOP_SAMPLES, SAMPLE_RATE_HZ
from ..decoding.drafter import Drafter
from ..options import FRAME_SAMPLES, TranscribeOptions, VadOptions
from .segments import Segment
from .transcribe import transcribe

if TYPE_CHECKING:
    from ..engine.engine import Engine

__all__ = ["LiveTranscriber", "LiveUpdate", "LocalAgreement", "prefix_length", "split_units"]

# Scripts written without spaces: Thai, Lao, Tibetan, Myanmar, Khmer, kana, Chinese characters.
_DENSE = "\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_UNITS = re.compile(rf"\s*(?:[{_DENSE}]|[^\s{_DENSE}]+)[^\w\s]*|\s+")


def split_units(text: str) -> list[str]:
    """Split a text into the units that are confirmed one by one: words with the space before and punctuation after.

    In scripts without spaces a unit is one character. Joined, the units are the text.
    """
    return _UNITS.findall(text)


def prefix_length(settled: Sequence[str], units: Sequence[str]) -> int:
    """Return the length of the prefix of `units` with the least edit distance to `settled`.

    Among equals one that ends like `settled`, then the one whose length is nearest to it, then the longer.
    """
    row = list(range(len(units) + 1))
    for i, mine in enumerate(settled, 1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(units, 1):
            cost = min(diagonal + (mine != other), row[j] + 1, row[j - 1] + 1)
            diagonal, row[j] = row[j], cost

    def badness(j: int) -> tuple[int, bool, int, int]:
        ends_alike = bool(settled) and j > 0 and units[j - 1] == settled[-1]
        return row[j], not ends_alike, abs(j - len(settled)), -j

    return min(range(len(row)), key=badness)


class LocalAgreement:
    """The confirmed units of one buffer of audio. Positions count the units of the last hypothesis."""

    def __init__(self) -> None:
        self._settled: list[str] = []  # of the audio still in the buffer
        self._tail: list[str] = []  # what the last hypothesis had beyond that

    def push(self, units: Sequence[str], *, at_least: int = 0) -> tuple[int, int]:
        """Take a hypothesis. Returns the range of its units that is newly confirmed.

        Units that agree with the last hypothesis are confirmed, and the first `at_least` units in any case.
        """
        start = prefix_length(self._settled, units)
        end = start
        for mine, before in zip(units[start:], self._tail, strict=False):
            if mine != before:
                break
            end += 1
        end = max(end, min(at_least, len(units)))
        self._settled += units[start:end]
        self._tail = list(units[end:])
        return start, end

    def cut(self, n_left: int) -> None:
        """Note that the buffer was cut at its front; the last `n_left` confirmed units are still in it."""
        self._settled = self._settled[max(0, len(self._settled) - n_left) :] if n_left > 0 else []


_STEP_MIN_S = 0.1
# Speech is known to the detector a quarter of a second late.
_FUTURE_FRAMES = 8
_SILENCE_MS = 1000
# Silence kept before speech, whose first sounds may be too soft for the detector.
_LEAD_SAMPLES = SAMPLE_RATE_HZ
_TRAIL_SAMPLES = SAMPLE_RATE_HZ * 2 // 5
_CUT_REACH_SAMPLES = SAMPLE_RATE_HZ // 4
_CUT_HOP_SAMPLES = SAMPLE_RATE_HZ // 50


@dataclass(frozen=True, kw_only=True)
class LiveUpdate:
    """A change: `confirmed` text to append for good, and the `tentative` text after it, in place of the last.

    Joined, the confirmed texts of all updates are the transcript. start_s, end_s: the range of the segments that hold
    these texts, seconds of the audio; for an update that takes tentative text back, the range that was transcribed.
    ends_utterance: what was confirmed since the last such update is a whole utterance, with silence behind it; this
    update has no text, and its range is the utterance's. segments: all of the pass; `confirmed` begins at the
    character `begins_at` of their joined texts, and `tentative` follows. They take no part in comparisons.
    """

    confirmed: str
    tentative: str
    start_s: float
    end_s: float
    ends_utterance: bool = False
    segments: Sequence[Segment] = field(default=(), compare=False, repr=False)
    begins_at: int = field(default=0, compare=False, repr=False)


class LiveTranscriber:
    """Transcribes audio while it comes in.

    Parameters
    ----------
    options
        as for a file, except that clips are refused and text is not conditioned on earlier text; a language that is
        detected is kept once text is confirmed in it.
    drafter
        guesses tokens in every pass; it never changes the text.
    step_s
        seconds of audio between two passes: 0.1 to half of the model's window.
    vad
        of the energy detector: `threshold`, `neg_threshold`, and `min_silence_duration_ms`, which ends an utterance;
        None: a second of silence. The others have no effect.
    owns_drafter
        close the drafter behind the last pass.

    Raises UsageError. Not for several threads at once. What `feed` and `finish` raise is what `transcribe` raises.
    After an Interrupted the audio taken in so far is still there, without the rest of that block: `finish` or `feed`
    may follow.
    """

    def __init__(
        self,
        engine: Engine,
        bundle: Bundle,
        options: TranscribeOptions | None = None,
        drafter: Drafter | None = None,
        *,
        step_s: float = 1.0,
        vad: VadOptions | None = None,
        owns_drafter: bool = False,
    ) -> None:
        options = TranscribeOptions() if options is None else options
        self._n_window = bundle.manifest.n_frames * HOP_SAMPLES
        window_s = self._n_window / SAMPLE_RATE_HZ
        if not _STEP_MIN_S <= step_s <= window_s / 2:
            raise UsageError(f"step_s: got {step_s!r}, expected {_STEP_MIN_S} to {window_s / 2:g} seconds")
        if options.clip_timestamps not in ((), (0.0,)):
            raise UsageError("clip_timestamps: live audio has no clips; leave them out")
        self._engine, self._bundle, self._drafter = engine, bundle, drafter
        self._owned = drafter if owns_drafter else None
        # A few seconds at a time: of each step, whole windows would cost several times as much.
        context = "auto" if options.audio_context is None else options.audio_context
        self._options = replace(options, condition_on_previous_text=False, audio_context=context)
        self._n_step = round(step_s * SAMPLE_RATE_HZ)
        # `_held` samples, from the audio's sample `_origin` on.
        self._samples = np.zeros(self._n_window, np.float32)
        self._origin = self._held = 0
        self._step_at = self._n_step
        self._voice = _Voice(VadOptions(min_silence_duration_ms=_SILENCE_MS) if vad is None else vad)
        self._text_range: tuple[float, float] | None = None  # the range of what is confirmed of the utterance in work
        self._passed_until = 0  # the voice in the last pass
        self._agreement = LocalAgreement()
        self._tentative = ""
        self._former: tuple[int, ...] = ()  # the tokens of the last pass for the audio that is still held
        self._is_finished = False
        # So that a language or task that the model lacks is refused here.
        transcribe(engine, bundle, open_audio(np.zeros(1, np.float32)), self._options)

    @property
    def drafter(self) -> Drafter | None:
        """The one given, or made for this call; None without."""
        return self._drafter

    @property
    def language(self) -> str | None:
        """The language given, or detected once text is confirmed; None before."""
        return self._options.language

    def feed(self, block: NDArray[np.float32]) -> list[LiveUpdate]:
        """Take the next samples, float32 [n] mono at 16 kHz in [-1, 1]. Returns the changes."""
        block = np.asarray(block)
        if block.ndim != 1 or block.dtype.kind != "f":
            raise UsageError(f"a block of {block.dtype} {block.shape}: expected mono float samples [n] at 16 kHz")
        if self._is_finished:
            raise UsageError("this live transcription is finished; start another one")
        block = np.clip(np.nan_to_num(block.astype(np.float32), nan=0.0, posinf=0.0, neginf=0.0), -1, 1)
        updates: list[LiveUpdate] = []
        while len(block):
            n = min(len(block), self._step_at - self._end)
            # There is room, unless a pass that should have made it was interrupted.
            self._drop(self._held + n - self._n_window)
            self._samples[self._held : self._held + n] = block[:n]
            self._held += n
            self._voice.push(block[:n])
            block = block[n:]
            if self._end == self._step_at:
                self._step_at += self._n_step
                updates += self._step()
        return updates

    def finish(self) -> list[LiveUpdate]:
        """End the audio: the rest of the text becomes confirmed. Returns the changes."""
        if self._is_finished:
            return []
        self._is_finished = True
        try:
            self._voice.finish()
            updates = self._end_utterances()
            if self._voice.first is not None:
                updates += self._end_utterance(self._voice.last)
        finally:
            self.close()
        return updates

    def close(self) -> None:
        """Close the drafter that was made for this call, which keeps what it learned. A second call does nothing."""
        owned, self._owned = self._owned, None
        if owned is not None:
            owned.close()

    def updates(self, blocks: Iterable[NDArray[np.float32]]) -> Iterator[LiveUpdate]:
        """The changes that `blocks` make, as they come, up to their end."""
        try:
            for block in blocks:
                yield from self.feed(block)
            yield from self.finish()
        finally:
            self.close()

    @property
    def _end(self) -> int:
        return self._origin + self._held

    def _step(self) -> list[LiveUpdate]:
        updates = self._end_utterances()
        voice_from = self._end if self._voice.first is None else self._voice.first
        self._drop(voice_from - _LEAD_SAMPLES - self._origin)
        if self._voice.first is None:
            return updates
        if self._held + self._n_step > self._n_window:
            while self._held + self._n_step > self._n_window:
                updates += self._pass(self._held, must_cut=True)
        elif self._voice.last > self._passed_until:
            updates += self._pass(self._held)
        return updates

    def _end_utterances(self) -> list[LiveUpdate]:
        updates: list[LiveUpdate] = []
        while (last := self._voice.ended) is not None:
            updates += self._end_utterance(last)
        return updates

    def _end_utterance(self, last: int) -> list[LiveUpdate]:
        """Confirm the text up to sample `last`, and drop its audio."""
        updates = self._pass(last + _TRAIL_SAMPLES - self._origin, confirm_all=True)
        self._voice.forget(last)
        text_range, self._text_range = self._text_range, None
        if text_range is not None:
            mark = LiveUpdate(
                confirmed="", tentative="", start_s=text_range[0], end_s=text_range[1], ends_utterance=True
            )
            updates.append(mark)
        return updates

    def _pass(self, n_samples: int, *, confirm_all: bool = False, must_cut: bool = False) -> list[LiveUpdate]:
        """Transcribe the first `n_samples` of the buffer and cut it. Returns the changes."""
        n_samples = max(1, min(n_samples, self._held))
        audio = open_audio(self._samples[:n_samples].copy())
        passage = transcribe(
            self._engine,
            self._bundle,
            audio,
            self._options,
            drafter=self._drafter,
            earlier=self._former,
            goes_on=True,
        )
        segments = list(passage)
        self._former = _tokens(segments)
        units = [split_units(segment.text) for segment in segments]
        hypothesis = [unit for of_segment in units for unit in of_segment]
        n_last = len(units[-1]) if units else 0
        is_whole = confirm_all or (must_cut and not self._can_cut_before_last(segments))
        n_certain = len(hypothesis) if is_whole else len(hypothesis) - n_last if must_cut else 0
        start, end = self._agreement.push(hypothesis, at_least=n_certain)
        if end > start and self._options.language is None:
            self._options = replace(self._options, language=passage.language)
        self._passed_until = self._voice.last
        updates = self._update(segments, units, start, end, n_samples)
        self._cut(segments, units, end, n_samples if is_whole else 0)
        return updates

    def _can_cut_before_last(self, segments: list[Segment]) -> bool:
        return len(segments) > 1 and round(segments[-1].start * SAMPLE_RATE_HZ) >= self._n_step

    def _update(
        self, segments: list[Segment], units: list[list[str]], start: int, end: int, n_samples: int
    ) -> list[LiveUpdate]:
        flat = [(unit, segment) for segment, of_segment in zip(segments, units, strict=True) for unit in of_segment]
        confirmed = "".join(unit for unit, _ in flat[start:end])
        tentative = "".join(unit for unit, _ in flat[end:])
        if not confirmed and tentative == self._tentative:
            return []
        self._tentative = tentative
        shown = [segment for _, segment in flat[start:]]
        begin_s = shown[0].start if shown else 0.0
        end_s = shown[-1].end if shown else n_samples / SAMPLE_RATE_HZ
        origin_s = self._origin / SAMPLE_RATE_HZ
        begin_s, end_s = origin_s + begin_s, origin_s + end_s
        if confirmed.strip():
            self._text_range = (begin_s if self._text_range is None else self._text_range[0], end_s)
        update = LiveUpdate(
            confirmed=confirmed,
            tentative=tentative,
            start_s=begin_s,
            end_s=end_s,
            segments=segments,
            begins_at=sum(len(unit) for unit, _ in flat[:start]),
        )
        return [update]

    def _cut(self, segments: list[Segment], units: list[list[str]], n_settled: int, n_whole: int) -> None:
        """Drop the first `n_whole` samples, or else the segments before the last whose text is confirmed."""
        if n_whole:
            self._agreement.cut(0)
            self._former = ()
            self._voice.forget(self._origin + n_whole)
            self._drop(n_whole)
            return
        n_before, at = 0, 0
        for n, (segment, following, of_segment) in enumerate(zip(segments, segments[1:], units, strict=False), 1):
            if n_before + len(of_segment) > n_settled:
                break
            n_before += len(of_segment)
            at = self._quietest(round(segment.end * SAMPLE_RATE_HZ), round(following.start * SAMPLE_RATE_HZ))
            self._former = _tokens(segments[n:])
        if at:
            self._agreement.cut(n_settled - n_before)
            self._voice.forget(self._origin + at)
            self._drop(at)

    def _quietest(self, end: int, start: int) -> int:
        """Return the sample to cut at between a segment that ends at `end` and the next, which starts at `start`.

        It is the quietest moment there or within a quarter of a second, since a predicted time may lie in a word.
        """
        first = max(_CUT_HOP_SAMPLES, end - _CUT_REACH_SAMPLES)
        last = min(self._held, max(start, end) + _CUT_REACH_SAMPLES)
        hops = range(first, last - _CUT_HOP_SAMPLES, _CUT_HOP_SAMPLES)
        if not hops:
            return min(end, self._held)
        powers = [float((self._samples[i : i + _CUT_HOP_SAMPLES] ** 2).mean()) for i in hops]
        # Among equals, such as digital silence, the one nearest to the prediction.
        best = min(range(len(powers)), key=lambda i: (powers[i], abs(hops[i] - end)))
        return hops[best] + _CUT_HOP_SAMPLES // 2

    def _drop(self, n_samples: int) -> None:
        n_samples = max(0, min(n_samples, self._held))
        self._samples[: self._held - n_samples] = self._samples[n_samples : self._held]
        self._held -= n_samples
        self._origin += n_samples


def _tokens(segments: list[Segment]) -> tuple[int, ...]:
    return tuple([token for segment in segments for token in segment.tokens])


class _Voice:
    """The utterances, with silence between them, that are still to be decoded."""

    def __init__(self, options: VadOptions) -> None:
        self._n_silence = options.min_silence_duration_ms * SAMPLE_RATE_HZ // 1000
        self._on, self._off = options.threshold, options.silence_threshold
        self._detector = EnergyDetector(future_frames=_FUTURE_FRAMES)
        self._rest = np.zeros(0, np.float32)
        self._n_frames = 0
        self._is_on = False
        self._utterances: list[tuple[int, int]] = []  # first sample, and the one after the last

    @property
    def first(self) -> int | None:
        """The first sample, or None."""
        return self._utterances[0][0] if self._utterances else None

    @property
    def last(self) -> int:
        """The sample after the last, 0 for none."""
        return self._utterances[-1][1] if self._utterances else 0

    @property
    def ended(self) -> int | None:
        """The sample after the first utterance, if it is known to be over."""
        judged = self._n_frames * FRAME_SAMPLES
        if len(self._utterances) > 1 or (self._utterances and judged - self.last >= self._n_silence):
            return self._utterances[0][1]
        return None

    def push(self, block: NDArray[np.float32]) -> None:
        """Take the next samples of the audio."""
        samples = np.concatenate([self._rest, block])
        n_whole = len(samples) - len(samples) % FRAME_SAMPLES
        self._rest = samples[n_whole:]
        self._note(self._detector.push(samples[:n_whole].reshape(-1, FRAME_SAMPLES)))

    def finish(self) -> None:
        """End the audio."""
        self._note(self._detector.finish(self._rest))

    def forget(self, sample: int) -> None:
        """Drop what lies before `sample`."""
        self._utterances = [(max(first, sample), last) for first, last in self._utterances if last > sample]

    def _note(self, probabilities: NDArray[np.float32]) -> None:
        for probability in probabilities:
            self._is_on = bool(probability >= (self._off if self._is_on else self._on))
            start = self._n_frames * FRAME_SAMPLES
            self._n_frames += 1
            if not self._is_on:
                continue
            first = start
            if self._utterances and start - self.last < self._n_silence:
                first, _ = self._utterances.pop()
            self._utterances.append((first, start + FRAME_SAMPLES))
