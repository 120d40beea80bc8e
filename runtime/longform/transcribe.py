"""Transcribe long audio window by window, with the semantics of openai-whisper (`whisper/transcribe.py`).

A window with complete segments is followed from the last timestamp (with timed words: from the last word), any other
window from its end. A window that is silent by the no-speech test gives no segments. A text that fails its tests is
decoded again at the next temperature. The text so far is the prompt of the next window. Times and seeks refer to the
original audio. Differences from openai-whisper:

* more than a second of digital silence at either end of a window is skipped, all but half a second (`around_sound`);
* a segment without text or duration is left out instead of kept with empty text, so ids count the others;
* hotwords, prefix, language detection over several windows and a language for each window (`multilingual`) are
  faster-whisper's;
* of texts that all fail their tests the best counts, as in faster-whisper, not the last;
* times of results are settled (`times.py`): in order, inside the audio, none without length;
* a clip that ends behind the audio ends with it, and a seek always advances;
* control tokens are never written, even with an empty list of suppressed tokens.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specedge.errors import Interrupted

from ..audio.audio import AudioStream
from ..audio.mel import MelStream, WindowMel
from ..bundle.bundle import Bundle
from ..bundle.dims import FRAMES_PER_POSITION
from ..bundle.manifest import SPEECH, require_align
from ..decoding.accept import rule_named
from ..decoding.decode import DecodeOptions, Speculation, WindowResult, decoding
from ..decoding.drafter import ALONE, Drafter, Guard
from ..decoding.languages import UNKNOWN_LANGUAGE, detect_language
from ..decoding.passes import Decoding, alone
from ..decoding.presets import cuts_at_pauses, sets_late_starts, window_rules
from ..decoding.rules import RuleSet
from ..options import CPU, TranscribeOptions
from ..text.special import TokenLayout, find_language
from ..text.speech_tokens import SpeechTokens
from ..text.tokenizer import Tokenizer
from ..text.transcripts import is_unspaced
from .prompts import Prompts
from .segments import DraftedSegment, Segment
from .windows import (
    LEAST_REST_FRAMES,
    AudioContext,
    Cut,
    Piece,
    Sound,
    around_sound,
    cut_at_pause,
    cut_window,
    frames_to_s,
    s_to_frames,
    settle,
    silent_behind,
    spans_of_clips,
)
from .words import follow_words, last_end_s, time_words

if TYPE_CHECKING:
    from ..engine.engine import Engine, Features

_log = logging.getLogger(__name__)
_SURE_OF_LANGUAGE, _HEARD_FRAMES = 0.8, 1000  # before a change of language is said; shorter audio tells it wrongly
_MAX_PERIOD, _LEAST_TURNS, _LEAST_LOOP = 16, 4, 24  # of a loop, in tokens: its turn, how many, and all of them


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """The decoding that counts, its compression ratio, and the last temperature tried.

    is_last: whether no other was tried after it.
    """

    result: WindowResult
    compression_ratio: float
    last_temperature: float
    is_last: bool


def decode_with_fallback(
    decode: Callable[[float, bool], Decoding[WindowResult]],
    options: TranscribeOptions,
    tokenizer: Tokenizer,
    *,
    thrown_away: Callable[[], None],
    counts: bool = True,
) -> Decoding[Attempt]:
    """Run `decode(temperature, stops)` until its text passes or temperatures end; `thrown_away` after each that failed.

    stops: whether a text is ended once it is a loop (`loops`). One that counts in the end is decoded again, to its end.
    counts: whether one that failed may count: not with `only`, nor where the whole window is still to come.

    A text fails when it repeats itself (compression ratio) or is unlikely (average log-probability). An unlikely text
    in silence passes, because a higher temperature would invent something. When all fail the likeliest of those that do
    not repeat themselves counts, as in faster-whisper, else the one that does least; in openai-whisper the last.
    """
    attempts: list[Attempt] = []
    counts = counts and options.only is None

    def attempt(temperature: float, stops: bool) -> Decoding[Attempt]:
        result = yield from decode(temperature, stops)
        ratio = compression_ratio(spoken_text(result.tokens, tokenizer))
        return Attempt(result=result, compression_ratio=ratio, last_temperature=temperature, is_last=True)

    for temperature in options.temperature:
        if attempts:
            thrown_away()
        made = yield from attempt(temperature, len(options.temperature) > 1 or not counts)
        if not _fails(made, options):
            return made
        attempts.append(made)
    best = min(attempts, key=lambda one: _badness(one, options))
    if best.result.hopeless and counts:
        thrown_away()
        made = best = yield from attempt(best.result.temperature, False)
    return replace(best, last_temperature=options.temperature[-1], is_last=best is made)


def loops(tokens: Sequence[int], options: TranscribeOptions, tokenizer: Tokenizer) -> bool:
    """Return whether a text has come to repeat the same few tokens, so much that it fails for repeating itself.

    It hardly ever gets out again, and would go on to the limit.
    """
    threshold = options.compression_ratio_threshold
    for period in range(1, _MAX_PERIOD + 1):
        n_tail = max(_LEAST_LOOP, _LEAST_TURNS * period)
        if len(tokens) >= n_tail and tokens[period - n_tail :] == tokens[-n_tail:-period]:
            return threshold is not None and compression_ratio(spoken_text(tokens, tokenizer)) > threshold
    return False


def is_silence(result: WindowResult, options: TranscribeOptions) -> bool:
    """Return whether the window is silent: a high no-speech probability and no text likely enough to outweigh it."""
    threshold, log_prob = options.no_speech_threshold, options.log_prob_threshold
    if threshold is None or not result.no_speech_prob > threshold:
        return False
    return log_prob is None or not result.avg_logprob > log_prob


def is_no_sentence(attempt: Attempt, options: TranscribeOptions) -> bool:
    """Return whether no sentence of `only` was spoken: the text repeats itself, or is very unlikely.

    Twice the threshold: on tiny.en and base, spoken commands of the grammar had a mean log-probability of -1.5 or more,
    and other speech -2.2 or less, where it did not repeat itself.
    """
    log_prob = options.log_prob_threshold
    if options.only is None:
        return False
    return _repeats(attempt, options) or (log_prob is not None and attempt.result.avg_logprob < 2 * log_prob)


def compression_ratio(text: str) -> float:
    """Return bytes of UTF-8 over bytes after zlib: high for text that repeats itself (`whisper/utils.py`)."""
    data = text.encode("utf-8")
    return len(data) / len(zlib.compress(data))


def spoken_text(tokens: Iterable[int], tokenizer: Tokenizer) -> str:
    """Return a window's text for the compression ratio: stripped, and control tokens, if any, by their names.

    openai-whisper's tokenizer decodes everything below the timestamps. Of the control tokens only languages and
    <|notimestamps|> can be sampled at all.
    """
    special = tokenizer.special
    names = {token: name.encode() for token, name in special.control_names().items()}
    parts = [names[token] if token in names else tokenizer.decode_bytes([token]) for token in tokens]
    return b"".join(parts).decode("utf-8", errors="replace").strip()


def _fails(attempt: Attempt, options: TranscribeOptions) -> bool:
    result, log_prob, silent = attempt.result, options.log_prob_threshold, options.no_speech_threshold
    is_unsure = log_prob is not None and result.avg_logprob < log_prob
    if is_unsure and silent is not None and result.no_speech_prob > silent:
        return False
    return is_unsure or _repeats(attempt, options)


def _repeats(attempt: Attempt, options: TranscribeOptions) -> bool:
    threshold = options.compression_ratio_threshold
    return threshold is not None and attempt.compression_ratio > threshold


def _badness(attempt: Attempt, options: TranscribeOptions) -> tuple[bool, float]:
    repeats = _repeats(attempt, options)
    return repeats, attempt.compression_ratio if repeats else -attempt.result.avg_logprob


def _behind(begun: tuple[int, ...], result: WindowResult) -> WindowResult:
    """The result with the ids that were given before its own; nobody guessed them, and they are certain."""
    n = len(begun)
    return replace(
        result,
        tokens=(*begun, *result.tokens),
        token_logprobs=(*[0.0] * n, *result.token_logprobs),
        sources=(*[""] * n, *result.sources) if result.sources else (),
        n_drafted=(*[0] * n, *result.n_drafted) if result.n_drafted else (),
    )


def _only_coldest(options: TranscribeOptions) -> TranscribeOptions:
    return replace(options, temperature=options.temperature[:1])


def _fails_over_silence(attempt: Attempt, options: TranscribeOptions) -> bool:
    """Whether a text over an approximation fails openai-whisper's tests, of which `options` may have stricter or none,
    or there may be no speech, which the whole window must say."""

    def threshold(name: str) -> float:
        asked: float | None = getattr(options, name)
        default: float = getattr(TranscribeOptions, name)
        return default if asked is None else asked

    return (
        attempt.compression_ratio > threshold("compression_ratio_threshold")
        or attempt.result.avg_logprob < threshold("log_prob_threshold")
        or attempt.result.no_speech_prob > threshold("no_speech_threshold")
    )


def vote(windows: Iterable[dict[str, float]], threshold: float | None) -> tuple[str, dict[str, float]]:
    """Return the language, and the probabilities of the window looked at last, likeliest first.

    windows: the probabilities of each window, likeliest first; of none the language is unknown. threshold: a language
    likelier than this decides at once, as in faster-whisper's `detect_language`; None lets all windows vote.
    """
    wins: dict[str, int] = {}
    probabilities: dict[str, float] = {}
    for probabilities in windows:
        language, probability = next(iter(probabilities.items()))
        if threshold is not None and probability > threshold:
            return language, probabilities
        wins[language] = wins.get(language, 0) + 1
    return max(wins, key=wins.__getitem__, default=UNKNOWN_LANGUAGE), probabilities


def language_given(special: TokenLayout, options: TranscribeOptions) -> str | None:
    """Return the language code, of a model with one language that one, None where it will be found. UsageError."""
    code = None if options.language is None else find_language(options.language)
    special.check_request(code, options.task)
    if code is None and len(special.languages) == 1:
        return next(iter(special.languages))
    return code if special.is_multilingual else "en"


@dataclass(kw_only=True)
class _Window:
    """A window: its first frame, its log-mel float32 [n_mels, n_frames], and how many of its frames hold audio.

    Once it is encoded: the features of its first `n_heard` frames, and the language that it is decoded in; heard: its
    log-mel for a drafter that listens; ends_in_silence: whether silence stands in for the rest.
    """

    seek: int
    mel: NDArray[np.float32]
    n_content_frames: int
    features: Any = None
    n_heard: int = 0
    language: str | None = None
    heard: WindowMel | None = None
    ends_in_silence: bool = False

    @property
    def start_s(self) -> float:
        return frames_to_s(self.seek)

    @property
    def end(self) -> int:
        """The frame behind the last that holds audio."""
        return self.seek + self.n_content_frames


class Transcription(Iterator[Segment]):
    """A lazy iterator of segments; each step reads and decodes only as much audio as it needs.

    language: the code given or detected, None until the first window; language_probabilities: {} unless detected, else
    those of the window looked at last; duration_s: the whole audio where its length is known after the first window,
    else the audio read so far; speculation: statistics so far, with attempts that were thrown away; encoder_s: seconds
    in the encoder; audio_context: how much of the windows was encoded.

    on_progress: gets the seconds done; earlier: as in `WindowContext`; n_paths: of a draft tree in a pass, None for as
    many as can be; 1 for one whose passes are shared. once: whether each window is decoded a single time, at the first
    temperature, whatever becomes of it.

    Raises UsageError at once for a language or task the model does not have; while iterating AudioError, ModelError,
    ResourceError or Interrupted.
    """

    def __init__(
        self,
        engine: Engine,
        bundle: Bundle,
        stream: AudioStream,
        options: TranscribeOptions,
        *,
        drafter: Drafter | None = None,
        on_progress: Callable[[float], None] | None = None,
        earlier: tuple[int, ...] = (),
        n_paths: int | None = None,
        once: bool = False,
    ) -> None:
        # Sampling finds no better one of a few sentences.
        options = _only_coldest(options) if once or options.only is not None else options
        self._once = once
        self._n_paths = engine.n_paths if n_paths is None else n_paths
        self._engine, self._stream, self._options = engine, stream, options
        self._manifest, self._tokenizer = bundle.manifest, bundle.tokenizer
        self._special: TokenLayout = self._manifest.tokens
        self._guard, self._earlier = Guard(drafter), earlier
        if n_paths is None:  # the drafter may come from a batch
            self._guard.share(*ALONE)
        self._on_progress = on_progress
        if options.word_timestamps:
            require_align(self._manifest, bundle.path)
        self._keeps_start = sets_late_starts(options, self._manifest)
        self._cuts, self._spans = cuts_at_pauses(options, self._manifest), spans_of_clips(options.clip_timestamps)
        dims = self._manifest.dims
        self._prompts = Prompts(
            options,
            bundle.tokenizer,
            self._special if isinstance(self._special, SpeechTokens) else self._manifest.whisper_tokens,
            n_text_ctx=dims.n_text_ctx,
            n_audio_rows=dims.n_audio_ctx if self._manifest.kind == SPEECH else 0,
        )
        self._rules: RuleSet | None = None
        self._last_speech_s, self._span_start, self._ids = 0.0, self._spans[0][0], itertools.count()
        self._given_until_s = 0.0  # where the last segment ended
        self.language = language_given(self._special, options)
        self._detects = self._special.is_multilingual
        is_cheap = not isinstance(self._special, SpeechTokens)  # which would be asked in words
        self._notices_change = is_cheap and self._detects and not (self.language or options.multilingual or once)
        self.language_probabilities: dict[str, float] = {}
        self.duration_s = self.encoder_s = 0.0
        self.encoder_provider = CPU  # of the whole windows
        self.audio_context = AudioContext(options.audio_context, self._manifest, knows_silence=engine.knows_silence)
        self.speculation = Speculation(drafter=self._guard.name)
        self._mels = MelStream(stream, self._manifest.dims.n_mels, self._manifest.n_frames, again=stream.again)
        self._mels.keeps_power = self._guard.needs("listens")
        self._peeked: _Window | None = None
        self._given: Any = None
        self._is_first = True  # whether no window was decoded
        self._seek: int | None = None  # where the next window begins, None at the end of the audio
        self._segments = self._by_itself()
        self._is_stopped, self._encodes_in = False, 0
        self._encoding = threading.Lock()

    @property
    def drafter_error(self) -> str | None:
        """Why the drafter was dropped, as one line; None while it is in use."""
        return self._guard.error

    def __next__(self) -> Segment:
        return next(self._segments)

    def find_language(self) -> None:
        """Detect the language now instead of before the first segment, if it is not given, and keep features.

        Raises AudioError, ResourceError, Interrupted.
        """
        if self.language is not None or not self._detects or self.language_probabilities:
            return
        n_frames, n_windows = self._manifest.n_frames, self._options.language_detection_segments
        start, end = self._spans[0]
        is_decoded = start == 0 and (end is None or end >= n_frames)
        context = self.audio_context
        is_cut = is_decoded and n_windows == 1 and (self._cuts or not context.is_full)

        def windows() -> Iterator[dict[str, float]]:
            if self._given is not None and n_windows == 1:
                yield self._languages_of(self._given)
                return
            for i in range(n_windows):
                window = (self._peeked or self._read(0, end)) if is_cut else None
                if window is None:
                    mel, n = self._mels.open_window(i * n_frames, keep_from=0)
                else:
                    mel, n = window.mel, window.n_content_frames
                if n <= 0:
                    self._peeked = window  # silence was read to its end, which no stream gives twice
                    return
                # Without `is_cut` silence follows, and no 0.0.
                is_whole = context.knows_silence and not (is_cut or context.is_full)
                features = self._encode(Sound(mel=mel) if is_whole else context.sound(mel, n, self._mels.floor))
                is_same = is_decoded and i == 0 and n == n_frames and not self._cuts
                if window or (is_same and around_sound(self._mels.sound, n) == (0, n)):
                    self._given, self._peeked = features, window
                yield self._languages_of(features)

        found, self.language_probabilities = vote(windows(), self._options.language_detection_threshold)
        self.language = _known(found)

    def peek(self) -> Sound | None:
        """Return what to encode of the first window, before the first segment; None without audio. Raises AudioError.

        A caller that encodes windows of several texts together (`Engine.encode_all`) passes the features to `give`.
        """
        self._peeked = window = self._read(*self._spans[0])
        if window.n_content_frames <= 0:
            return None
        return self.audio_context.sound(window.mel, window.n_content_frames, self._mels.floor)

    def give(self, features: Features) -> None:
        """Take the features of the window of `peek`, which is then not encoded again."""
        self._given = features

    def steps(self) -> Decoding[list[Segment]]:
        """All segments, for a caller who runs the passes that it wants. Instead of iterating."""
        segments: list[Segment] = []
        for window in self._windows():
            segments += yield from window
        return segments

    def stop(self) -> None:
        """Have the thread that iterates get Interrupted: before its next pass, or within the encoder's.

        From any thread. An encoder's pass that waits for its turn is not stopped yet: call it again.
        """
        self._is_stopped = True
        with self._encoding:
            if self._encodes_in:
                self._engine.canceller.stop_running(self._encodes_in)

    def close(self) -> None:
        """Stop early; the audio stream stays the caller's."""
        self._segments.close()

    def _by_itself(self) -> Generator[Segment, None, None]:
        """The segments of a transcription that has its passes to itself; when stopped it is refused the next one."""
        for window in self._windows():
            yield from alone(self._engine, window, before_pass=self._refuse_if_stopped)

    def _refuse_if_stopped(self) -> None:
        if self._is_stopped:
            raise Interrupted("stopped")

    def _windows(self) -> Iterator[Decoding[list[Segment]]]:
        """Each window that holds sound, encoded: a decoding to its segments, to be run before the next is asked for."""
        self.find_language()
        for start, end in self._spans:
            self._seek = self._span_start = start
            while self._seek is not None and (end is None or self._seek < end):
                window, self._peeked = self._peeked or self._read(self._seek, end), None
                if window.n_content_frames <= 0:
                    break
                self._hear(window)
                yield self._segments_of(window)
                self._is_first = False
                self._report_progress(self._seek)

    def _hear(self, window: _Window) -> None:
        """Encode a window, unless its features are given, and find its language if it has one of its own."""
        mel, n_content_frames, mels = window.mel, window.n_content_frames, self._mels
        context = self.audio_context
        # Asked already, if its features are given: then this window has no language.
        is_detected = self._detects and (self._options.multilingual or not (self.language or self._given))
        features = self._given
        if features is None:
            features = self._encode(context.sound(mel, n_content_frames, mels.floor))
        window.features, self._given = features, None
        if self._notices_change and window.seek > self._span_start and n_content_frames >= _HEARD_FRAMES:
            self._notice_change(features, window.seek)
        window.ends_in_silence = getattr(features, "ends_in_silence", False)
        if window.ends_in_silence:  # then features count as two frames each
            window.n_heard = FRAMES_PER_POSITION * len(features.hidden)
        else:
            window.n_heard = context.n_frames(n_content_frames)
        if mels.last_power is not None:  # only where the drafter listens
            silent = silent_behind(mel, n_content_frames, mels.floor) if window.ends_in_silence else mel
            window.heard = WindowMel(silent, mels.last_power, mels.peak, n_content_frames)
        window.language = self._language_of(features) if is_detected else self.language

    def _report_progress(self, seek: int | None) -> None:
        if self._on_progress is not None:
            self._on_progress(self.duration_s if seek is None else min(frames_to_s(seek), self.duration_s))

    def _read(self, seek: int, end: int | None) -> _Window:
        """Return the first window from `seek` on that holds sound: half a second before it at most, and behind it."""
        while True:
            self._refuse_if_stopped()
            mel, n_content_frames = self._mels.window(seek, None if end is None else end - seek)
            n_known = self._mels.n_content_frames
            self.duration_s = max(self.duration_s, frames_to_s(seek + n_content_frames if n_known is None else n_known))
            n_skipped, n_kept = around_sound(self._mels.sound, n_content_frames)
            if n_skipped == 0:
                break
            seek += n_skipped
            self._report_progress(seek)
        if n_kept < n_content_frames:
            n_content_frames = n_kept
            mel[:, n_content_frames:] = 0.0
        if self._cuts and (seek > self._span_start or n_content_frames == mel.shape[1]):
            mel, n_content_frames = cut_at_pause(mel, n_content_frames)
        return _Window(seek=seek, mel=mel, n_content_frames=n_content_frames)

    def _segments_of(self, window: _Window) -> Decoding[list[Segment]]:
        """Decode one window. Returns its segments; `_seek` is where the next one begins then."""
        attempt = yield from self._decode(window)
        result = attempt.result
        if is_silence(result, self._options) or is_no_sentence(attempt, self._options):
            self._end(())
            self._seek = window.end
            return []
        cut = cut_window(
            result.tokens,
            window.n_content_frames,
            self._special,
            time_offset_s=window.start_s,
            keeps_start=self._keeps_start,
        )
        is_short = window.ends_in_silence and window.n_content_frames - cut.n_advance < LEAST_REST_FRAMES
        # Behind the last window of audio all was said that is in it, and what follows its last word is silence, of
        # which a window of its own would make words.
        is_over = self._options.without_timestamps and result.finished
        if is_short or (is_over and self._ends_within(frames_to_s(window.end), frames_to_s(1))):
            cut = replace(cut, n_advance=window.n_content_frames, ends_with_single=True)
        pieces, self._seek = self._follow(window, cut)
        n_begun = len(self._prompts.begun) if self._is_first else 0
        self._end(() if pieces is None or not attempt.is_last else result.tokens[n_begun:])
        if pieces is None:
            return []
        text = self._tokenizer.decode
        kept = [piece for piece in pieces if piece.start_s != piece.end_s and text(piece.tokens).strip()]
        self._earlier = self._earlier[sum(len(piece.tokens) for piece in kept) :]
        self._prompts.add([piece.tokens for piece in kept], attempt.last_temperature)
        kept = settle(kept, self._given_until_s, frames_to_s(window.end))
        self._given_until_s = kept[-1].end_s if kept else self._given_until_s
        return [self._segment(piece, window.seek, attempt) for piece in kept]

    def _end(self, tokens: tuple[int, ...]) -> None:
        """Tell the drafter the window's text, () for none."""
        self._guard.end(tokens)
        self.speculation = replace(self.speculation, learning=self._guard.learning)

    def _decode(self, window: _Window) -> Decoding[Attempt]:
        """The text of a window, which is encoded again and whole where silence stood in and the text failed."""
        if window.ends_in_silence:
            attempt = yield from self._attempt(window, _only_coldest(self._options), counts=self._once)
            if self._once or not _fails_over_silence(attempt, self._options):
                return attempt
            self._guard.end(())
            _log.info("%.1f s: the text repeats itself or is unlikely: the whole window", window.start_s)
            self.audio_context.again()
            window.features, window.n_heard = self._encode(Sound(mel=window.mel)), window.mel.shape[1]
            window.ends_in_silence = False
        return (yield from self._attempt(window, self._options))

    def _attempt(self, window: _Window, options: TranscribeOptions, *, counts: bool = True) -> Decoding[Attempt]:
        """The text of a window by the first temperature at which it passes. counts: as in `decode_with_fallback`."""
        n_text_ctx, guard, is_speech = self._manifest.dims.n_text_ctx, self._guard, self._manifest.kind == SPEECH
        n_audio = window.features.n_audio if is_speech else 0
        prompt = self._prompts.window(window.language, is_first=self._is_first, n_audio=n_audio)
        if self._rules is None:
            self._rules = window_rules(options, self._manifest, self._tokenizer)
        begun = self._prompts.begun if self._is_first else ()
        n_sample = options.max_new_tokens
        if n_sample is None and is_speech:
            n_sample = n_text_ctx - len(prompt)

        def is_hopeless(tokens: Sequence[int]) -> bool:
            return loops([*begun, *tokens], options, self._tokenizer)

        at_any_temperature = DecodeOptions(
            rules=replace(self._rules, begun=begun) if begun else self._rules,
            n_text_ctx=n_text_ctx,
            n_sample=n_sample,
            seed=options.seed,
            window_key=window.seek,
            patience=options.patience,
            length_penalty=options.length_penalty,
            acceptance=rule_named(options.accept),
            history=self._prompts.history,
            mel=window.heard,
            content=min(window.n_content_frames / window.n_heard, 1.0),
            earlier=self._earlier,
            keeps_sources=options.draft_sources,
        )

        def decode(temperature: float, stops: bool) -> Decoding[WindowResult]:
            chosen = replace(
                at_any_temperature,
                temperature=temperature,
                best_of=options.best_of if temperature > 0 else 1,
                beam_size=1 if temperature > 0 else options.beam_size,
                is_hopeless=is_hopeless if stops else None,
            )
            result = yield from decoding(self._engine, window.features, prompt, chosen, guard, n_paths=self._n_paths)
            self.speculation = self.speculation.plus(result.speculation)
            return _behind(begun, result) if begun else result

        def thrown_away() -> None:
            guard.end(())
            _log.info("%.1f s: the text repeats itself or is unlikely: the next temperature", window.start_s)

        return decode_with_fallback(decode, options, self._tokenizer, thrown_away=thrown_away, counts=counts)

    def _follow(self, window: _Window, cut: Cut) -> tuple[Sequence[Piece] | None, int | None]:
        """As `follow_words`; the pieces have words where those are wanted."""
        options, n_content_frames = self._options, window.n_content_frames
        if not options.word_timestamps:
            return cut.pieces, window.seek + cut.n_advance
        timed = time_words(
            self._engine,
            window.features,
            cut.pieces,
            tokenizer=self._tokenizer,
            options=options,
            language=window.language,
            n_content_frames=n_content_frames,
            last_speech_s=self._last_speech_s,
            time_offset_s=window.start_s,
        )
        pieces, seek = follow_words(
            cut,
            timed,
            seek=window.seek,
            n_content_frames=n_content_frames,
            n_window_frames=self._manifest.n_frames,
            last_speech_s=self._last_speech_s,
            ends_within=self._ends_within,
            threshold_s=options.hallucination_silence_threshold,
        )
        end_s = last_end_s(pieces or ())
        self._last_speech_s = self._last_speech_s if end_s is None else end_s
        return pieces, seek

    def _segment(self, piece: Piece, seek: int, attempt: Attempt) -> Segment:
        result = attempt.result
        text = self._tokenizer.decode(piece.tokens)
        if self._manifest.kind == SPEECH and not (text[:1].isspace() or is_unspaced(text[:1])):
            text = f" {text}"  # as a Whisper's begins, so that segments can be joined
        about: dict[str, Any] = {
            "id": next(self._ids),
            "seek": seek,
            "start": piece.start_s,
            "end": piece.end_s,
            "text": text,
            "tokens": list(piece.tokens),
            "avg_logprob": result.avg_logprob,
            "compression_ratio": attempt.compression_ratio,
            "no_speech_prob": result.no_speech_prob,
            "words": list(piece.words) if self._options.word_timestamps else None,
            "temperature": result.temperature,
        }
        if not self._options.draft_sources:
            return Segment(**about)
        own = slice(piece.first, piece.first + len(piece.tokens))
        about |= {"sources": result.sources[own], "n_drafted": result.n_drafted[own]}
        return DraftedSegment(**about, logprobs=result.token_logprobs[own])

    def _language_of(self, features: Features) -> str | None:
        """The language of a window, which is the recording's where none was found before."""
        language = _known(next(iter(self._languages_of(features))))
        self.language = self.language or language
        return language

    def _notice_change(self, features: Features, seek: int) -> None:
        """Say once that a window is in another language than the text is decoded in; a pass over one row."""
        found, probability = next(iter(self._languages_of(features).items()))
        if self.language is not None and found != self.language and probability > _SURE_OF_LANGUAGE:
            self._notices_change = False
            _log.warning(
                "%.1f s: sounds like %s, and is decoded as %s like the beginning; with --multilingual each window has "
                "its own language",
                *(frames_to_s(seek), found, self.language),
            )

    def _languages_of(self, features: Features) -> dict[str, float]:
        return detect_language(self._engine, features, self._special, self._prompts.context)

    def _encode(self, sound: Sound) -> Any:
        started = time.perf_counter()
        self._refuse_if_stopped()
        self._encodes_in = threading.get_ident()
        try:
            if sound.ends_in_silence:
                features = self._engine.encode(sound.mel, ends_in_silence=True)
            else:
                features = self._engine.encode(sound.mel)
                self.encoder_provider = self._engine.encoder_provider
        finally:
            with self._encoding:  # so that `stop` never meets a later pass, which may be others' too
                self._encodes_in = 0
        self.encoder_s += time.perf_counter() - started
        return features

    def _ends_within(self, end_s: float, limit_s: float) -> bool:
        """Return whether less than `limit_s` of audio follows `end_s`."""
        self._mels.ends_before(s_to_frames(end_s + limit_s) + 1)
        n_frames = self._mels.n_content_frames
        return n_frames is not None and frames_to_s(n_frames) - end_s < limit_s


def _known(language: str) -> str | None:
    return None if language == UNKNOWN_LANGUAGE else language
