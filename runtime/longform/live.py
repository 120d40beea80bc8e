"""Live transcription: blocks of audio in, confirmed and tentative text out, from looks at a growing buffer.

Every `step_s` seconds the buffer, which holds one window of the model at most, is transcribed as a file of its own
would be, and its text is tentative. Text is confirmed, and never taken back, when its audio is dropped: at the end of
an utterance, which a second of silence makes, by one more pass over all of it. In speech that goes on the buffer is cut
once it is two thirds full, behind a segment whose text and end two looks in a row agree on, at the quietest moment near
that end; when it is full, before its last segment, or whole where it is a single one. So the text of an utterance is
that of one pass over it where that fits. Confirming words that two looks agree on (LocalAgreement-2: Liu, Spanakis and
Niehues, Interspeech 2020; for Whisper Macháček, Dabre and Bojar, 2023) is sooner, but costs 2 to 7 points of word
errors on hard speech, because a look mishears the end of its audio in the same way twice.

A look stays at the first temperature, and the number of its tokens is bounded by its audio; one whose text fails its
tests confirms and shows nothing. Only the last pass over audio may fall back. Silence, by the energy detector, is never
decoded. Each pass stands alone: it is not conditioned on earlier text, so that no mistake feeds itself. Only the
drafter gets the last hypothesis of the same audio, as a draft. Steps are counted in samples, so the size of blocks
changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from specedge.errors import UsageError

from ..audio.audio import open_audio, quietest
from ..audio.vad import EnergyDetector
from ..bundle.bundle import Bundle
from ..bundle.manifest import HOP_SAMPLES, SAMPLE_RATE_HZ
from ..decoding.drafter import Drafter
from ..options import FRAME_SAMPLES, TranscribeOptions, VadOptions
from ..text.words import bare
from .segments import Segment
from .transcribe import Transcription

if TYPE_CHECKING:
    from ..engine.engine import Engine

# Scripts written without spaces: Thai, Lao, Tibetan, Myanmar, Khmer, kana, Chinese characters.
_DENSE = "\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_UNITS = re.compile(rf"\s*(?:[{_DENSE}]|[^\s{_DENSE}]+)[^\w\s]*|\s+")


def split_units(text: str) -> list[str]:
    """Split a text into words with the space before and punctuation after.

    In scripts without spaces a unit is one character. Joined, the units are the text.
    """
    return _UNITS.findall(text)


_STEP_MIN_S = 0.1
# Speech is known to the detector a quarter of a second late.
_FUTURE_FRAMES = 8
_SILENCE_MS = 1000
# Silence kept before speech, whose first sounds may be too soft for the detector.
_LEAD_SAMPLES = SAMPLE_RATE_HZ
_TRAIL_SAMPLES = SAMPLE_RATE_HZ * 2 // 5
_CUT_REACH_SAMPLES = SAMPLE_RATE_HZ // 4
_QUIET_SAMPLES = SAMPLE_RATE_HZ // 50
_AGREED_S = 0.5  # between the ends of a segment in two looks that agree
_SEAM_UNITS = 5  # words that may be heard again behind a cut
# Of a look, which must end: more than anybody says, in any script.
_TOKENS, _TOKENS_PER_S = 32, 25


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

    options: as for a file, except that clips are refused and text is not conditioned on earlier text; a language that
    is detected is kept once text is confirmed in it. drafter: guesses tokens in every pass; it never changes the text.
    step_s: seconds of audio between two passes, 0.1 to half of the model's window. vad: of the energy detector,
    `threshold`, `neg_threshold`, and `min_silence_duration_ms`, which ends an utterance; None: a second of silence; the
    others have no effect. owns_drafter: close the drafter behind the last pass.

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
        self._engine, self._bundle, self.drafter = engine, bundle, drafter
        self._owned = drafter if owns_drafter else None
        self._options = replace(options, condition_on_previous_text=False)
        self._n_step = round(step_s * SAMPLE_RATE_HZ)
        # `_held` samples, from the audio's sample `_origin` on.
        self._samples = np.zeros(self._n_window, np.float32)
        self._origin = self._held = 0
        self._step_at = self._n_step
        self._voice = _Voice(VadOptions(min_silence_duration_ms=_SILENCE_MS) if vad is None else vad)
        self._text_range: tuple[float, float] | None = None  # the range of what is confirmed of the utterance in work
        self._passed_until = 0  # the voice in the last pass
        self._seen: dict[str, float] = {}  # by the last look: the texts up to each segment's end, and that in seconds
        self._seam: list[str] = []  # the last words before a cut within an utterance, as they are compared
        self._confirmed_until_s = 0.0
        self._tentative = ""
        self._former: tuple[int, ...] = ()  # the tokens of the last pass for the audio that is still held
        self._heard: str | None = None  # the last pass's language
        self._is_finished = False
        # So that a language or task that the model lacks is refused here.
        Transcription(engine, bundle, open_audio(np.zeros(1, np.float32)), self._options)

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
            return self._end_utterances()
        finally:
            self.close()

    def close(self) -> None:
        """Close the drafter that was made for this call, which keeps what it learned. A second call does nothing."""
        if self._owned is not None:
            self._owned.close()
        self._owned = None

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
                updates += self._look(must_cut=True)
        elif self._voice.last > self._passed_until:
            updates += self._look()
        return updates

    def _end_utterances(self) -> list[LiveUpdate]:
        """Confirm the text of the utterances that are over, and drop their audio. Returns the changes."""
        updates: list[LiveUpdate] = []
        while (last := self._voice.ended) is not None:
            updates += self._last_pass(last + _TRAIL_SAMPLES - self._origin)
            self._voice.forget(last)
            self._seam = []
            if self._text_range is not None:
                start_s, end_s = self._text_range
                mark = LiveUpdate(confirmed="", tentative="", start_s=start_s, end_s=end_s, ends_utterance=True)
                updates.append(mark)
            self._text_range = None
        return updates

    def _look(self, *, must_cut: bool = False) -> list[LiveUpdate]:
        """Transcribe the buffer, and confirm the segments that its cut leaves behind. Returns the changes."""
        segments = self._said(self._held, is_look=True)
        if not self._passes(segments):
            self._seen = {}
            return self._last_pass(self._held) if must_cut else []
        n_before = self._n_agreed(segments)
        if must_cut and not n_before:
            can_leave_last = len(segments) > 1 and round(segments[-1].start * SAMPLE_RATE_HZ) >= self._n_step
            n_before = len(segments) - can_leave_last
        updates = self._update(segments, n_before, self._held)
        left = segments[n_before:]
        if left and n_before:
            self._cut(self._quietest(segments[n_before - 1].end, left[0].start), left)
        elif must_cut:
            self._cut(self._held, [])
        return updates

    def _last_pass(self, n_samples: int) -> list[LiveUpdate]:
        """Confirm the text of the first `n_samples` and drop them. Returns the changes."""
        n_samples = max(1, min(n_samples, self._held))
        segments = self._said(n_samples, is_look=False)
        updates = self._update(segments, len(segments), n_samples)
        self._cut(n_samples, [])
        return updates

    def _said(self, n_samples: int, *, is_look: bool) -> list[Segment]:
        options = self._options
        if is_look:
            most = _TOKENS + _TOKENS_PER_S * n_samples // SAMPLE_RATE_HZ
            options = replace(options, max_new_tokens=min(most, options.max_new_tokens or most))
        passage = Transcription(
            self._engine,
            self._bundle,
            open_audio(self._samples[:n_samples].copy()),
            options,
            drafter=self.drafter,
            earlier=self._former,
            once=is_look,
        )
        segments = list(passage)
        self._former, self._heard = _tokens(segments), passage.language
        self._passed_until = self._voice.last
        return segments

    def _passes(self, segments: list[Segment]) -> bool:
        """Whether no segment's text repeats itself or is unlikely."""
        ratio, log_prob = self._options.compression_ratio_threshold, self._options.log_prob_threshold
        return all(
            (ratio is None or segment.compression_ratio <= ratio)
            and (log_prob is None or segment.avg_logprob >= log_prob)
            for segment in segments
        )

    def _n_agreed(self, segments: list[Segment]) -> int:
        """How many segments can be cut off: this look and the last one agree on their text and on where they end."""
        seen, self._seen, text = self._seen, {}, ""
        n_agreed = 0
        for n, segment in enumerate(segments[:-1], 1):
            text += segment.text
            end_s = self._seen[text] = self._origin / SAMPLE_RATE_HZ + segment.end
            if abs(seen.get(text, -1.0) - end_s) <= _AGREED_S:
                n_agreed = n
        return n_agreed if 3 * self._held >= 2 * self._n_window else 0

    def _update(self, segments: list[Segment], n_confirmed: int, n_samples: int) -> list[LiveUpdate]:
        """The text of a pass, of whose segments the first `n_confirmed` are confirmed, if that changes anything."""
        text = "".join([segment.text for segment in segments])
        n_again = self._heard_again(text)
        end = max(n_again, sum([len(segment.text) for segment in segments[:n_confirmed]]))
        confirmed, tentative = text[n_again:end], text[end:]
        if not confirmed and tentative == self._tentative:
            return []
        self._tentative = tentative
        shown = [segment for segment in segments if segment.text.strip()]
        origin_s = self._origin / SAMPLE_RATE_HZ
        begin_s = max(origin_s + (shown[0].start if shown else 0.0), self._confirmed_until_s)
        end_s = max(origin_s + (shown[-1].end if shown else n_samples / SAMPLE_RATE_HZ), begin_s)
        if confirmed.strip():
            self._text_range = (begin_s if self._text_range is None else self._text_range[0], end_s)
            self._seam = [bare(unit) for unit in split_units(confirmed)][-_SEAM_UNITS:]
            self._confirmed_until_s = max(begin_s, origin_s + segments[n_confirmed - 1].end)
            if self._options.language is None:
                self._options = replace(self._options, language=self._heard)
            self._options = replace(self._options, prefix=None)
        update = LiveUpdate(
            confirmed=confirmed,
            tentative=tentative,
            start_s=begin_s,
            end_s=end_s,
            segments=segments,
            begins_at=n_again,
        )
        return [update]

    def _heard_again(self, text: str) -> int:
        """How many characters of the text are the last words before a cut, whose sound was not all cut off."""
        units = split_units(text)[:_SEAM_UNITS]
        heard = [bare(unit) for unit in units]
        again = [n for n in range(1, len(units) + 1) if heard[:n] == self._seam[-n:]]
        return sum([len(unit) for unit in units[: max(again, default=0)]])

    def _cut(self, n_samples: int, left: list[Segment]) -> None:
        """Drop the first `n_samples`; `left`: the segments of the last pass behind them."""
        self._former, self._seen = _tokens(left), {}
        self._voice.forget(self._origin + n_samples)
        self._drop(n_samples)

    def _quietest(self, end_s: float, start_s: float) -> int:
        """Return the sample to cut at between the end of a segment and the start of the next.

        It is the quietest moment there or within a quarter of a second, since a predicted time may lie in a word.
        """
        end, start = round(end_s * SAMPLE_RATE_HZ), round(start_s * SAMPLE_RATE_HZ)
        first = max(_QUIET_SAMPLES, end - _CUT_REACH_SAMPLES)
        last = min(self._held, max(start, end) + _CUT_REACH_SAMPLES)
        return first + quietest(self._samples[first:last], _QUIET_SAMPLES)

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
        self._at = 0  # so many samples are known to be speech or silence
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
        is_over = len(self._utterances) > 1 or self._at - self.last >= self._n_silence
        return self._utterances[0][1] if self._utterances and is_over else None

    def push(self, block: NDArray[np.float32]) -> None:
        """Take the next samples of the audio."""
        samples = np.concatenate([self._rest, block])
        n_whole = len(samples) - len(samples) % FRAME_SAMPLES
        self._rest = samples[n_whole:]
        self._note(self._detector.push(samples[:n_whole].reshape(-1, FRAME_SAMPLES)))

    def finish(self) -> None:
        """End the audio, and with it the last utterance."""
        self._note(self._detector.finish(self._rest))
        self._n_silence = 0

    def forget(self, sample: int) -> None:
        """Drop what lies before `sample`."""
        self._utterances = [(max(first, sample), last) for first, last in self._utterances if last > sample]

    def _note(self, probabilities: NDArray[np.float32]) -> None:
        for probability in probabilities:
            self._is_on = bool(probability >= (self._off if self._is_on else self._on))
            first, self._at = self._at, self._at + FRAME_SAMPLES
            if not self._is_on:
                continue
            if self._utterances and first - self.last < self._n_silence:
                first, _ = self._utterances.pop()
            self._utterances.append((first, self._at))
