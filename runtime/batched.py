"""Speech alone, in independent pieces: faster-whisper's `BatchedInferencePipeline`, names and defaults.

What is transcribed and how is in pieces.py; each text is the one that `WhisperModel.transcribe` gives for that piece
alone. Does not know: how speech is found, how a window is decoded.

Speech alone, in independent pieces of at most one window: what batched mode decodes, for programs and the command.

Pauses are left out, what remains is cut into pieces, and each is transcribed by itself, without the text before it, at
the first temperature only and with no test of the result, as faster-whisper's batched mode does. Up to `batch_size`
pieces are read and encoded together, fewer where features are large (`Engine.n_at_once`), those of one length in one
pass where windows are cut (audio_context.py); then each is decoded by itself. An error while reading comes after the
texts of the pieces before it.
Does not know: arguments of programs, how speech is found, how a window is decoded, which windows share a pass.

Speech cut into pieces of at most one window, at pauses where there are any.

Stretches of speech are joined as long as they fit, as faster-whisper's `collect_chunks` does. A stretch
longer than a piece is cut where it is quietest in the last third. Does not know: how speech is found, models.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from types import EllipsisType
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from specedge.errors import AudioError, UsageError

from .audio.audio import SAMPLE_RATE, AudioSource, AudioStream, HeldAudio, decode_audio, open_audio, open_held
from .audio.vad import VadOptions
from .bundle.bundle import Bundle
from .bundle.manifest import HOP_SAMPLES, N_FFT
from .console import Progress
from .decoding.decode import Speculation
from .decoding.drafter import Drafter
from .drafters.registry import close_drafter
from .longform.segments import Segment, TranscriptionInfo
from .longform.transcribe import Transcription, transcribe
from .model import PRIMED, WhisperModel, checked_drafter, for_model, transcribe_options, vad_options
from .options import APPEND_PUNCTUATIONS, PREPEND_PUNCTUATIONS, TranscribeOptions
from .output.formats import speculation_fields
from .text.special import SpecialTokens

if TYPE_CHECKING:
    from .engine.engine import Engine
    from .longform.vad_filter import SpeechAudio

__all__ = [
    "BATCH_SIZE",
    "BatchedInferencePipeline",
    "Chunk",
    "MIN_SILENCE_MS",
    "PieceTranscription",
    "Pieces",
    "SILENCE",
    "piece_options",
    "quietest",
    "speech_chunks",
    "speech_pieces",
]

_PAUSE_SAMPLES = SAMPLE_RATE // 10


class _Stream(Protocol):
    def read(self, n_samples: int, /) -> NDArray[np.float32]: ...


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Samples float32 [n_samples] at 16 kHz, and where they begin in the stream, seconds."""

    samples: NDArray[np.float32]
    start_s: float


def speech_chunks(stream: _Stream, max_samples: int, ends: Callable[[], Sequence[int]]) -> Iterator[Chunk]:
    """Cut `stream` into chunks of at most `max_samples`, none empty.

    `ends` gives, in samples of the stream, where each stretch of speech found so far ends, the one being read last.
    """
    at = 0
    held = stream.read(max_samples)
    while len(held):
        more = stream.read(1) if len(held) == max_samples else held[:0]
        if not len(more):
            yield Chunk(samples=held, start_s=at / SAMPLE_RATE)
            return
        cut = _last_pause(at, max_samples, ends()) or quietest(held)
        yield Chunk(samples=held[:cut], start_s=at / SAMPLE_RATE)
        at += cut
        held = np.concatenate([held[cut:], more])
        held = np.concatenate([held, stream.read(max_samples - len(held))])


def quietest(samples: NDArray[np.float32]) -> int:
    """The middle of the tenth of a second with the least energy in the last third of `samples`, more than 0."""
    first = len(samples) - len(samples) // 3
    tail = samples[first:].astype(np.float64)
    if len(tail) <= _PAUSE_SAMPLES:
        return len(samples)
    energy = np.concatenate([[0.0], np.cumsum(tail * tail)])
    return first + int(np.argmin(energy[_PAUSE_SAMPLES:] - energy[:-_PAUSE_SAMPLES])) + _PAUSE_SAMPLES // 2


def _last_pause(at: int, max_samples: int, ends: Sequence[int]) -> int:
    """How many samples after `at` the last stretch ends that fits into a chunk; 0 if none does."""
    index = bisect.bisect_right(ends[:-1], at + max_samples) - 1
    return max(0, ends[index] - at) if index >= 0 else 0


BATCH_SIZE = 8  # faster-whisper's default
MIN_SILENCE_MS = 160  # and of its speech detection in this mode
SILENCE = np.zeros(1, np.float32)


@dataclass
class Pieces:
    """What is to be transcribed. `source` and `speech` are None where the times need no translation."""

    chunks: Iterator[Chunk]
    held: HeldAudio
    source: AudioStream | None = None
    speech: SpeechAudio | None = None

    def beginning(self, n_samples: int) -> Any:
        """Samples to hear the language in: the first `n_samples` and what the last frame sees behind them."""
        samples = self.held.peek(n_samples + N_FFT)
        return samples if len(samples) else SILENCE


def piece_options(options: TranscribeOptions) -> TranscribeOptions:
    """What of `options` holds for a piece: nothing that looks at other pieces, and no second try."""
    return replace(
        options,
        temperature=options.temperature[:1],
        condition_on_previous_text=False,
        compression_ratio_threshold=None,
        log_prob_threshold=None,
        no_speech_threshold=None,
        hallucination_silence_threshold=None,
        prefix=None,
    )


def speech_pieces(source: AudioStream, vad: VadOptions, max_s: float) -> Pieces:
    """The speech of `source` in pieces of at most `max_s`, which is also the longest stretch of speech."""
    from .longform.vad_filter import SpeechAudio

    speech = SpeechAudio(source, replace(vad, max_speech_duration_s=max_s))
    held = HeldAudio(speech)
    return Pieces(speech_chunks(held, round(max_s * SAMPLE_RATE), lambda: _ends(speech)), held, source, speech)


class PieceTranscription(Iterator[Segment]):
    """A lazy iterator of segments, with the attributes of a `Transcription`; times are those of the original audio.

    `options`: from `piece_options`. `on_progress` is called with the seconds of audio done after each piece.
    total_s: time in reading, encoding and decoding.
    """

    def __init__(
        self,
        engine: Engine,
        bundle: Bundle,
        pieces: Pieces,
        options: TranscribeOptions,
        *,
        batch_size: int,
        drafter: Drafter | None = None,
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        self._engine, self._bundle, self._pieces, self._options = engine, bundle, pieces, options
        self._drafter, self._on_progress = drafter, on_progress
        self._n_at_once = min(batch_size, engine.n_at_once)
        # Made now for what it refuses: a language or task that the model does not have.
        first = transcribe(engine, bundle, open_audio(SILENCE), options, drafter=drafter)
        self.language = first.language
        self.language_probabilities: dict[str, float] = {}
        self.speculation: Speculation = first.speculation
        self.audio_context = first.audio_context
        self.drafter_error: str | None = None
        self.duration_s = self.encoder_s = self.total_s = 0.0
        self._segments = self._run()

    def __next__(self) -> Segment:
        return next(self._segments)

    def close(self) -> None:
        """Stop early; the audio stream stays the caller's."""
        self._segments.close()

    def find_language(self) -> None:
        """Hear the language in the beginning of the speech, if it is not given, and not before the first segment."""
        if self.language is not None:
            return
        n_samples = self._options.language_detection_segments * self._bundle.manifest.n_samples
        heard = transcribe(self._engine, self._bundle, open_audio(self._pieces.beginning(n_samples)), self._options)
        heard.find_language()
        self.language, self.language_probabilities = heard.language, heard.language_probabilities
        self.encoder_s += heard.encoder_s
        self.audio_context.add(heard.audio_context)

    def _run(self) -> Generator[Segment, None, None]:
        self.find_language()
        self._options = replace(self._options, language=self.language)
        n_segments = 0
        for chunk, transcription in self._encoded():
            for segment in self._decoded(chunk, transcription):
                yield replace(self._placed(segment, chunk), id=n_segments)
                n_segments += 1
        self._update_duration(0.0)

    def _encoded(self) -> Iterator[tuple[Chunk, Transcription]]:
        """The pieces, each with its window encoded."""
        failure: AudioError | None = None
        while failure is None:
            chunks: list[Chunk] = []
            try:
                for chunk in itertools.islice(self._pieces.chunks, self._n_at_once):
                    chunks.append(chunk)
            except AudioError as error:
                failure = error
            if not chunks and failure is None:
                return
            yield from self._together(chunks)
        raise failure

    def _together(self, chunks: Sequence[Chunk]) -> list[tuple[Chunk, Transcription]]:
        started = time.perf_counter()
        texts = [
            (
                chunk,
                transcribe(self._engine, self._bundle, open_audio(chunk.samples), self._options, drafter=self._drafter),
            )
            for chunk in chunks
        ]
        heard: dict[int, list[tuple[Transcription, NDArray[np.float32]]]] = {}  # by length: one of each in a pass
        for _, text in texts:
            if (mel := text.peek()) is not None:
                heard.setdefault(mel.shape[1], []).append((text, mel))
        encoding_since = time.perf_counter()
        for alike in heard.values():
            features = self._engine.encode_all([mel for _, mel in alike])
            for (text, _), one in zip(alike, features, strict=True):
                text.give(one)
        now = time.perf_counter()
        self.encoder_s += now - encoding_since
        self.total_s += now - started
        return texts

    def _decoded(self, chunk: Chunk, transcription: Transcription) -> list[Segment]:
        started = time.perf_counter()
        segments = list(transcription)
        self.total_s += time.perf_counter() - started
        self.encoder_s += transcription.encoder_s
        self.speculation = self.speculation.plus(transcription.speculation)
        self.audio_context.add(transcription.audio_context)
        self.drafter_error = self.drafter_error or transcription.drafter_error
        end_s = chunk.start_s + len(chunk.samples) / SAMPLE_RATE
        speech = self._pieces.speech
        done_s = end_s if speech is None else speech.original_time(end_s, is_end=True)
        self._update_duration(done_s)
        if self._on_progress is not None:
            self._on_progress(done_s)
        return segments

    def _placed(self, segment: Segment, chunk: Chunk) -> Segment:
        """`segment` of the chunk at its place in the audio, times to the millisecond as faster-whisper gives them."""
        placed = replace(
            segment,
            seek=segment.seek + int(chunk.start_s * SAMPLE_RATE / HOP_SAMPLES),
            start=round(segment.start + chunk.start_s, 3),
            end=round(segment.end + chunk.start_s, 3),
            words=None
            if segment.words is None
            else [
                replace(word, start=round(word.start + chunk.start_s, 3), end=round(word.end + chunk.start_s, 3))
                for word in segment.words
            ],
        )
        return placed if self._pieces.speech is None else self._pieces.speech.restored(placed)

    def _update_duration(self, done_s: float) -> None:
        source = self._pieces.source
        known_s = None if source is None else source.read_s if source.is_ended else source.duration_s
        self.duration_s = known_s if known_s is not None else max(self.duration_s, done_s)


def _ends(speech: SpeechAudio) -> list[int]:
    """Where each stretch of speech found so far ends, in samples of the speech."""
    return list(accumulate(end - start for start, end in speech.times.spans))


class BatchedInferencePipeline:
    """A way of using `model` for long audio with pauses; see the module."""

    def __init__(self, model: WhisperModel) -> None:
        self.model = model

    def transcribe(
        self,
        audio: str | os.PathLike[str] | BinaryIO | NDArray[Any],
        language: str | None = None,
        task: str = "transcribe",
        log_progress: bool = False,
        beam_size: int = 1,
        best_of: int = 5,
        patience: float = 1,
        length_penalty: float = 1,
        repetition_penalty: float = 1,
        no_repeat_ngram_size: int = 0,
        temperature: float | Sequence[float] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0),
        compression_ratio_threshold: float | None = 2.4,
        log_prob_threshold: float | None = -1.0,
        no_speech_threshold: float | None = 0.6,
        condition_on_previous_text: bool = True,
        prompt_reset_on_temperature: float = 0.5,
        initial_prompt: str | Iterable[int] | None = None,
        prefix: str | None = None,
        suppress_blank: bool = True,
        suppress_tokens: Sequence[int] | None = (-1,),
        without_timestamps: bool = True,
        max_initial_timestamp: float = 1.0,
        word_timestamps: bool = False,
        prepend_punctuations: str = PREPEND_PUNCTUATIONS,
        append_punctuations: str = APPEND_PUNCTUATIONS,
        multilingual: bool = False,
        vad_filter: bool = True,
        vad_parameters: Mapping[str, Any] | VadOptions | None = None,
        max_new_tokens: int | None = None,
        chunk_length: float | None = None,
        clip_timestamps: Sequence[Mapping[str, float]] | None = None,
        hallucination_silence_threshold: float | None = None,
        batch_size: int = BATCH_SIZE,
        hotwords: str | None = None,
        language_detection_threshold: float | None = 0.5,
        language_detection_segments: int = 1,
        *,
        drafter: str | Drafter = "none",
        token_map: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
        draft_model: str | os.PathLike[str] | None = None,
        lookahead: str = "cost",
        learn: bool | str = False,
        rules: Literal["openai", "hf"] = "openai",
        seed: int = 0,
        audio_context: str | float | None = None,
        window_end: Literal["full", "pause"] | None = None,
        allow_inexact: bool = False,
        logprob_threshold: float | None | EllipsisType = ...,
        on_progress: Callable[[float], None] | None = None,
    ) -> tuple[Generator[Segment, None, None], TranscriptionInfo]:
        """As `WhisperModel.transcribe`; `initial_prompt` goes before every piece.

        chunk_length: the longest piece, seconds, at most (and by default) the model's window. clip_timestamps: the
        pieces, [{"start": seconds, "end": seconds}, ...], instead of finding speech; the audio is then held in memory.
        batch_size: the most pieces encoded together; it changes no text. Raises UsageError and AudioError at once.
        """
        arguments = dict(locals())
        return self._transcribe(**{name: value for name, value in arguments.items() if name != "self"})

    def _transcribe(
        self,
        *,
        audio: AudioSource,
        batch_size: int,
        chunk_length: float | None,
        clip_timestamps: Sequence[Mapping[str, float]] | None,
        vad_filter: bool,
        vad_parameters: Any,
        drafter: str | Drafter,
        token_map: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None,
        draft_model: str | os.PathLike[str] | None,
        lookahead: str,
        learn: bool | str,
        allow_inexact: bool,
        log_progress: bool,
        on_progress: Callable[[float], None] | None,
        **arguments: Any,
    ) -> tuple[Generator[Segment, None, None], TranscriptionInfo]:
        if batch_size < 1:
            raise UsageError(f"batch_size: got {batch_size!r}, expected 1 or more")
        window_s = self.model.bundle.manifest.window_s
        max_s = window_s if chunk_length is None else chunk_length
        if not 0 < max_s <= window_s:
            raise UsageError(f"chunk_length: got {chunk_length!r}, expected up to {window_s:g} s, this model's window")
        asked = transcribe_options(**{**arguments, "clip_timestamps": "0"})
        options = for_model(piece_options(asked), self._special)
        made = checked_drafter(
            self.model,
            drafter,
            token_map,
            options,
            draft_model=draft_model,
            lookahead=lookahead,
            learn=learn,
            allow_inexact=allow_inexact,
        )
        with contextlib.ExitStack() as stack:
            if made is not drafter:
                stack.callback(close_drafter, made)
            pieces, info = self._pieces(stack, audio, max_s, clip_timestamps, vad_filter, vad_parameters)
            listeners = [] if on_progress is None else [on_progress]
            if log_progress:
                progress = stack.enter_context(contextlib.closing(Progress(info.duration or None, "s")))
                listeners.append(progress.update_to)
            self._complete(info, pieces, options)
            run = _Run(info, pieces, listeners)
            transcription = PieceTranscription(
                self.model.engine,
                self.model.bundle,
                pieces,
                replace(options, language=info.language),
                batch_size=batch_size,
                drafter=made,
                on_progress=run.update,
            )
            segments = run.segments(transcription, stack.pop_all())
            next(segments)
        return segments, info

    @property
    def _special(self) -> SpecialTokens:
        return self.model.bundle.manifest.tokens

    def _pieces(
        self,
        stack: contextlib.ExitStack,
        audio: AudioSource,
        max_s: float,
        clips: Sequence[Mapping[str, float]] | None,
        vad_filter: bool,
        vad_parameters: Any,
    ) -> tuple[Pieces, TranscriptionInfo]:
        if clips:
            return _clipped(audio, clips)
        max_samples = round(max_s * SAMPLE_RATE)
        source = stack.enter_context(open_held(audio))
        if vad_filter:
            # faster-whisper's own defaults here; the longest stretch of speech is always the chunk.
            given = vad_options(vad_parameters, min_silence_duration_ms=MIN_SILENCE_MS, max_speech_duration_s=max_s)
            vad = replace(given, max_speech_duration_s=max_s)
            return speech_pieces(source, vad, max_s), _blank_info(source.duration_s or 0.0, vad)
        samples = source.read(max_samples + 1)
        if len(samples) > max_samples:
            raise UsageError(
                f"{source.name}: longer than a chunk ({max_s:g} s): leave vad_filter on, or give clip_timestamps"
            )
        chunk = Chunk(samples=samples, start_s=0.0)
        return Pieces(iter([chunk]), HeldAudio(open_audio(samples)), source), _blank_info(source.read_s, None)

    def _complete(self, info: TranscriptionInfo, pieces: Pieces, options: TranscribeOptions) -> None:
        """Fill in the options and the language, which is heard in the first windows of what is to be transcribed."""
        info.transcription_options = options
        if options.language is not None:
            info.language = options.language
            return
        n_samples = options.language_detection_segments * self.model.bundle.manifest.n_samples
        found = self.model.detect_language(
            pieces.beginning(n_samples),
            language_detection_segments=options.language_detection_segments,
            language_detection_threshold=options.language_detection_threshold,
        )
        info.language, info.language_probability, info.all_language_probs = found


def _blank_info(duration_s: float, vad: VadOptions | None) -> TranscriptionInfo:
    return TranscriptionInfo(
        language="",
        language_probability=1.0,
        duration=duration_s,
        duration_after_vad=duration_s,
        all_language_probs=None,
        transcription_options=None,
        vad_options=vad,
    )


def _clipped(audio: AudioSource, clips: Sequence[Mapping[str, float]]) -> tuple[Pieces, TranscriptionInfo]:
    """One piece for each clip, which may overlap and need no order. Raises UsageError."""
    samples = decode_audio(audio)
    chunks = []
    for clip in clips:
        try:
            start_s, end_s = float(clip["start"]), float(clip["end"])
        except (TypeError, KeyError, ValueError):
            raise UsageError(f"clip_timestamps: got {clip!r}, expected {{'start': seconds, 'end': seconds}}") from None
        if not 0 <= start_s < end_s:
            raise UsageError(f"clip_timestamps: got {start_s:g} to {end_s:g} s, expected an end after the start")
        start = int(start_s * SAMPLE_RATE)
        if len(part := samples[start : int(end_s * SAMPLE_RATE)]):
            chunks.append(Chunk(samples=part, start_s=start / SAMPLE_RATE))
    joined = np.concatenate([np.zeros(0, np.float32), *(chunk.samples for chunk in chunks)])
    info = _blank_info(len(samples) / SAMPLE_RATE, None)
    info.duration_after_vad = len(joined) / SAMPLE_RATE
    return Pieces(iter(chunks), HeldAudio(open_audio(joined if len(joined) else SILENCE))), info


@dataclass
class _Run:
    """One call while its segments are read: keeps `info` up to date."""

    info: TranscriptionInfo
    pieces: Pieces
    listeners: Sequence[Callable[[float], None]]
    transcription: PieceTranscription | None = None
    n_words: int = 0

    def segments(
        self, transcription: PieceTranscription, resources: contextlib.ExitStack
    ) -> Generator[Segment, None, None]:
        """The segments. It yields once before the first, so that `resources` are closed whatever happens."""
        self.transcription = transcription
        with resources, contextlib.closing(transcription):
            yield PRIMED
            for segment in transcription:
                self.n_words += len(segment.text.split())
                yield replace(segment, id=segment.id + 1)
            self._update()

    def update(self, done_s: float) -> None:
        """After each piece, with the seconds of audio done."""
        self._update()
        for listener in self.listeners:
            listener(done_s)

    def _update(self) -> None:
        self._update_duration()
        run = self.transcription
        if run is not None:
            self.info.speculation = speculation_fields(
                run.speculation,
                encoder_s=run.encoder_s,
                total_s=run.total_s,
                n_words=self.n_words,
                duration_s=self.info.duration,
            )
            self.info.audio_context = run.audio_context.fields()

    def _update_duration(self) -> None:
        source, speech = self.pieces.source, self.pieces.speech
        if source is None:
            return
        if source.is_ended:
            self.info.duration = source.read_s
        self.info.duration_after_vad = self.info.duration if speech is None else speech.duration_after_vad_s
