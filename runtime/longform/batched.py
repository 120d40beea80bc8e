"""Speech alone, in independent pieces: faster-whisper's `BatchedInferencePipeline`, names and defaults.

What is transcribed and how is in pieces.py; each text is the one that `WhisperModel.transcribe` gives for that piece
alone. Does not know: how speech is found, how a window is decoded.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import EllipsisType
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.call_arguments import for_model, transcribe_options, vad_options
from specedge.runtime.call_drafter import checked_drafter
from specedge.runtime.drafters import Drafter
from specedge.runtime.drafters.by_name import close_drafter
from specedge.runtime.errors import UsageError
from specedge.runtime.longform.options import APPEND_PUNCTUATIONS, PREPEND_PUNCTUATIONS, TranscribeOptions
from specedge.runtime.longform.segments import Segment, TranscriptionInfo
from specedge.runtime.output.formats import speculation_fields
from specedge.runtime.progress import Progress
from specedge.runtime.sound.audio import SAMPLE_RATE, AudioSource, open_audio
from specedge.runtime.sound.decode_audio import decode_audio
from specedge.runtime.sound.held_audio import HeldAudio, open_held
from specedge.runtime.speech.pieces import (
    BATCH_SIZE,
    MIN_SILENCE_MS,
    SILENCE,
    Pieces,
    PieceTranscription,
    piece_options,
    speech_pieces,
)
from specedge.runtime.speech.speech_chunks import Chunk
from specedge.runtime.speech.vad_spans import VadOptions
from specedge.runtime.text.special import SpecialTokens
from specedge.runtime.whisper_model import PRIMED, WhisperModel

__all__ = ["BatchedInferencePipeline"]


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
                give_up=self.model.engine.give_up,
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
