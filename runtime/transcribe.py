"""Long audio, window by window: segments cut by the timestamps the model predicts (`whisper/transcribe.py`).

The semantics are openai-whisper's at temperature 0 without conditioning on the previous text: a window that holds
complete segments is followed from the last timestamp, any other from its end, and a window that is silent by the
no-speech test is passed over. Times and seeks refer to the original audio. One difference: a segment without text or
duration, which openai-whisper keeps with empty text, is left out, as faster-whisper does.

Does not know: files, formats, how a window is decoded, which drafter guesses.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.audio import AudioStream
from specedge.runtime.bundle import Bundle
from specedge.runtime.decode import (
    DecodeOptions,
    DecoderEngine,
    Speculation,
    WindowResult,
    decode_window,
    detect_language,
)
from specedge.runtime.drafters import Drafter
from specedge.runtime.drafters.guard import Guard
from specedge.runtime.manifest import HOP_SAMPLES, SAMPLE_RATE_HZ
from specedge.runtime.mel import MelStream
from specedge.runtime.options import TranscribeOptions
from specedge.runtime.rules import build_rules
from specedge.runtime.segments import Segment
from specedge.runtime.special import SpecialTokens
from specedge.runtime.tokenizer import find_language

__all__ = ["SpeechEngine", "Transcription", "compression_ratio", "transcribe"]


class SpeechEngine(DecoderEngine, Protocol):
    """The part of `engine.Engine` that transcription needs."""

    def encode(self, mel: NDArray[np.float32], /) -> Any: ...


class Transcription(Iterator[Segment]):
    """A lazy iterator of segments; each step reads and decodes only as much audio as it needs.

    language: the code given or detected, None until the first window; language_probabilities: {} unless detected;
    duration_s: the audio read so far, the whole when the iterator is exhausted; speculation: counters so far;
    encoder_s: time in the encoder; drafter_error: why the drafter was dropped, if it was.
    """

    def __init__(
        self,
        engine: SpeechEngine,
        bundle: Bundle,
        stream: AudioStream,
        options: TranscribeOptions,
        drafter: Drafter | None = None,
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        self._engine, self._stream, self._options = engine, stream, options
        self._manifest, self._tokenizer = bundle.manifest, bundle.tokenizer
        self._special: SpecialTokens = self._manifest.tokens
        self._guard = Guard(drafter)
        self._on_progress = on_progress
        self.language = _checked_language(self._special, options)
        self.language_probabilities: dict[str, float] = {}
        self.duration_s = 0.0
        self.encoder_s = 0.0
        self.speculation = Speculation(drafter=self._guard.name)
        self._segments = self._run()

    @property
    def drafter_error(self) -> str | None:
        """One line, or None while the drafter is in use."""
        return self._guard.error

    def __next__(self) -> Segment:
        return next(self._segments)

    def close(self) -> None:
        """Stop early; the audio stream stays the caller's."""
        self._segments.close()

    def _run(self) -> Generator[Segment, None, None]:
        decode_options = DecodeOptions(
            rules=build_rules(
                self._special,
                space_ids=[self._tokenizer.ranks.index(b" ")],  # as encode(" ") gives it, without its index
                suppressed=self._manifest.suppress_tokens,
                timestamps=not self._options.without_timestamps,
                max_initial_timestamp_index=self._manifest.max_initial_timestamp_index,
            ),
            n_text_ctx=self._manifest.dims.n_text_ctx,
        )
        mels = MelStream(self._stream, self._manifest.dims.n_mels, self._manifest.n_frames)
        seek, n_segments = 0, 0
        while True:
            mel, n_content_frames = mels.window(seek)
            if n_content_frames <= 0:
                return
            self.duration_s = _frames_to_s(seek + n_content_frames)
            result, kept = self._window(mel, decode_options)
            if kept:
                pieces, n_advance = cut_window(result.tokens, n_content_frames, self._special)
                for segment in self._new_segments(pieces, seek, result, n_segments):
                    n_segments += 1
                    yield segment
            else:
                n_advance = n_content_frames
            seek += n_advance
            if self._on_progress is not None:
                self._on_progress(_frames_to_s(seek))

    def _window(self, mel: NDArray[np.float32], options: DecodeOptions) -> tuple[WindowResult, bool]:
        """Decode one window; the second value is False when it is silence."""
        started = time.perf_counter()
        features = self._engine.encode(mel)
        self.encoder_s += time.perf_counter() - started
        if self.language is None and self._special.is_multilingual:
            languages = dict(self._special.languages)
            self.language_probabilities = detect_language(self._engine, features, self._special.sot, languages)
            self.language = next(iter(self.language_probabilities))
        # The previous windows' text goes in front of this prompt once conditioning on it exists.
        prompt = self._special.prompt(self.language, self._options.task, not self._options.without_timestamps)
        result = decode_window(self._engine, features, prompt, options, self._guard)
        kept = not self._is_silence(result)
        self._guard.end(result.tokens if kept else ())
        self.speculation = self.speculation.plus(result.speculation)
        return result, kept

    def _is_silence(self, result: WindowResult) -> bool:
        threshold, log_prob = self._options.no_speech_threshold, self._options.log_prob_threshold
        if threshold is None or not result.no_speech_prob > threshold:
            return False
        return log_prob is None or not result.avg_logprob > log_prob

    def _new_segments(
        self, pieces: Sequence[Piece], seek: int, result: WindowResult, first_id: int
    ) -> Iterator[Segment]:
        ratio = compression_ratio(self._tokenizer.decode(result.tokens).strip())
        for piece in pieces:
            text = self._tokenizer.decode(piece.tokens)
            if piece.start_s == piece.end_s or not text.strip():
                continue
            yield Segment(
                id=first_id,
                seek=seek,
                start=_frames_to_s(seek) + piece.start_s,
                end=_frames_to_s(seek) + piece.end_s,
                text=text,
                tokens=list(piece.tokens),
                temperature=result.temperature,
                avg_logprob=result.avg_logprob,
                compression_ratio=ratio,
                no_speech_prob=result.no_speech_prob,
            )
            first_id += 1


def transcribe(
    engine: SpeechEngine,
    bundle: Bundle,
    stream: AudioStream,
    options: TranscribeOptions | None = None,
    *,
    drafter: Drafter | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> Transcription:
    """Transcribe `stream` lazily. `on_progress` is called with the seconds of audio done after each window.

    Raises UsageError at once for a language or task the model does not have; while iterating AudioError, ModelError,
    ResourceError or Interrupted.
    """
    return Transcription(engine, bundle, stream, options or TranscribeOptions(), drafter, on_progress)


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A segment relative to its window: seconds and the ids, timestamps included."""

    start_s: float
    end_s: float
    tokens: tuple[int, ...]


def cut_window(tokens: Sequence[int], n_content_frames: int, special: SpecialTokens) -> tuple[list[Piece], int]:
    """The segments of one window and how many mel frames to advance, at least 1.

    Two timestamps in a row end one segment and begin the next. Text after the last pair is unfinished and is decoded
    again from there, unless it ends with a timestamp of its own: then nothing follows in this window. Without any pair
    the window is one segment up to its last timestamp, or its end.
    """
    tokens = tuple(tokens)
    is_timestamp = [special.is_timestamp(token) for token in tokens]
    frames_per_step = special.time_precision_s * SAMPLE_RATE_HZ / HOP_SAMPLES

    def step(token: int) -> int:
        return token - special.timestamp_begin if special.is_timestamp(token) else 0

    ends = [i for i in range(1, len(tokens)) if is_timestamp[i - 1] and is_timestamp[i]]
    if not ends:
        last_step = next((step(token) for token in reversed(tokens) if special.is_timestamp(token)), 0)
        end_s = last_step * special.time_precision_s if last_step else _frames_to_s(n_content_frames)
        return [Piece(start_s=0.0, end_s=end_s, tokens=tokens)], n_content_frames

    ends_with_single = is_timestamp[-2:] == [False, True]
    if ends_with_single:
        ends.append(len(tokens))
    pieces = []
    for begin, end in zip([0, *ends], ends, strict=False):
        piece = tokens[begin:end]
        start_s, end_s = (step(token) * special.time_precision_s for token in (piece[0], piece[-1]))
        pieces.append(Piece(start_s=start_s, end_s=end_s, tokens=piece))
    n_advance = n_content_frames if ends_with_single else round(step(tokens[ends[-1] - 1]) * frames_per_step)
    # The rules make a closing timestamp later than 0; without rules a window must not be decoded for ever.
    return pieces, n_advance if n_advance > 0 else n_content_frames


def compression_ratio(text: str) -> float:
    """Bytes of UTF-8 over bytes after zlib: high for text that repeats itself (`whisper/utils.py`)."""
    data = text.encode("utf-8")
    return len(data) / len(zlib.compress(data))


def _frames_to_s(n_frames: int) -> float:
    return n_frames * HOP_SAMPLES / SAMPLE_RATE_HZ


def _checked_language(special: SpecialTokens, options: TranscribeOptions) -> str | None:
    """The language as a code, "en" for an English-only model, None where it will be detected. Raises UsageError."""
    code = None if options.language is None else find_language(options.language)
    if not special.is_multilingual:
        special.prompt(code, options.task)
        return "en"
    special.prompt(code or next(iter(special.languages)), options.task)
    return code
