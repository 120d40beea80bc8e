"""Speech alone, in independent pieces: faster-whisper's `BatchedInferencePipeline`, names and defaults.

Pauses are left out, what remains is cut into pieces of at most one window, and each is transcribed by itself, without
the text before it, at the first temperature only and with no test of the result, as faster-whisper does. Each text is
the one that `WhisperModel.transcribe` gives for that piece alone. The pieces are taken one after another: `batch_size`
is accepted and changes nothing. Does not know: how speech is found, how a window is decoded.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from types import EllipsisType
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.audio import SAMPLE_RATE, AudioSource, AudioStream, open_audio
from specedge.runtime.call_arguments import for_model, transcribe_options, vad_options
from specedge.runtime.call_drafter import checked_drafter
from specedge.runtime.decode import Speculation
from specedge.runtime.decode_audio import decode_audio
from specedge.runtime.drafters import Drafter
from specedge.runtime.drafters.by_name import close_drafter
from specedge.runtime.errors import UsageError
from specedge.runtime.formats import speculation_fields
from specedge.runtime.held_audio import HeldAudio, open_held
from specedge.runtime.manifest import HOP_SAMPLES, N_FFT
from specedge.runtime.options import APPEND_PUNCTUATIONS, PREPEND_PUNCTUATIONS, TranscribeOptions
from specedge.runtime.progress import Progress
from specedge.runtime.segments import Segment, TranscriptionInfo
from specedge.runtime.special import SpecialTokens
from specedge.runtime.speech_chunks import Chunk, speech_chunks
from specedge.runtime.transcribe import transcribe
from specedge.runtime.vad_spans import VadOptions
from specedge.runtime.whisper_model import PRIMED, WhisperModel

if TYPE_CHECKING:
    from specedge.runtime.speech_audio import SpeechAudio

__all__ = ["BatchedInferencePipeline"]

_MIN_SILENCE_MS = 160
_SILENCE = np.zeros(1, np.float32)
# What faster-whisper's batched mode does not do, whatever is asked for.
_ALWAYS: dict[str, Any] = {
    "condition_on_previous_text": False,
    "compression_ratio_threshold": None,
    "log_prob_threshold": None,
    "no_speech_threshold": None,
    "hallucination_silence_threshold": None,
    "prefix": None,
}


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
        batch_size: int = 8,
        hotwords: str | None = None,
        language_detection_threshold: float | None = 0.5,
        language_detection_segments: int = 1,
        *,
        drafter: str | Drafter = "none",
        token_map: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
        draft_model: str | os.PathLike[str] | None = None,
        rules: Literal["openai", "hf"] = "openai",
        seed: int = 0,
        logprob_threshold: float | None | EllipsisType = ...,
        on_progress: Callable[[float], None] | None = None,
    ) -> tuple[Generator[Segment, None, None], TranscriptionInfo]:
        """As `WhisperModel.transcribe`; `initial_prompt` goes before every piece.

        chunk_length: the longest piece, seconds, at most (and by default) the model's window. clip_timestamps: the
        pieces themselves, [{"start": seconds, "end": seconds}, ...], instead of finding speech; the audio is then held
        in memory. `on_progress` gets the seconds done. Raises UsageError and AudioError at once.
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
        options = for_model(replace(asked, temperature=asked.temperature[:1], **_ALWAYS), self._special)
        made = checked_drafter(self.model, drafter, token_map, options, draft_model=draft_model)
        with contextlib.ExitStack() as stack:
            if made is not drafter:
                stack.callback(close_drafter, made)
            pieces = self._pieces(stack, audio, max_s, clip_timestamps, vad_filter, vad_parameters)
            listeners = [] if on_progress is None else [on_progress]
            if log_progress:
                progress = stack.enter_context(contextlib.closing(Progress(pieces.info.duration or None, "s")))
                listeners.append(progress.update_to)
            self._complete(pieces.info, pieces.held, options)
            options = replace(options, language=pieces.info.language)
            run = _Run(self.model, pieces, options, made, listeners)
            segments = run.segments(stack.pop_all())
            next(segments)
        return segments, pieces.info

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
    ) -> _Pieces:
        if clips:
            return _clipped(audio, clips)
        max_samples = round(max_s * SAMPLE_RATE)
        source = stack.enter_context(open_held(audio))
        if vad_filter:
            from specedge.runtime.speech_audio import SpeechAudio

            # faster-whisper's own defaults here; the longest stretch of speech is always the chunk.
            given = vad_options(vad_parameters, min_silence_duration_ms=_MIN_SILENCE_MS, max_speech_duration_s=max_s)
            vad = replace(given, max_speech_duration_s=max_s)
            speech = SpeechAudio(source, vad)
            held = HeldAudio(speech)
            chunks = speech_chunks(held, max_samples, lambda: _ends(speech))
            return _Pieces(chunks, held, _blank_info(source.duration_s or 0.0, vad), source, speech)
        samples = source.read(max_samples + 1)
        if len(samples) > max_samples:
            raise UsageError(
                f"{source.name}: longer than a chunk ({max_s:g} s): leave vad_filter on, or give clip_timestamps"
            )
        chunk = Chunk(samples=samples, start_s=0.0)
        return _Pieces(iter([chunk]), HeldAudio(open_audio(samples)), _blank_info(source.read_s, None), source)

    def _complete(self, info: TranscriptionInfo, held: HeldAudio, options: TranscribeOptions) -> None:
        """Fill in the options and the language, which is heard in the first windows of what is to be transcribed."""
        info.transcription_options = options
        if options.language is not None:
            info.language = options.language
            return
        n_samples = options.language_detection_segments * self.model.bundle.manifest.n_samples
        samples = held.peek(n_samples + N_FFT)  # the last frame sees half an FFT behind it
        found = self.model.detect_language(
            samples if len(samples) else _SILENCE,
            language_detection_segments=options.language_detection_segments,
            language_detection_threshold=options.language_detection_threshold,
        )
        info.language, info.language_probability, info.all_language_probs = found


@dataclass
class _Pieces:
    """What is to be transcribed. `source` and `speech` are None where the times need no translation."""

    chunks: Iterator[Chunk]
    held: HeldAudio
    info: TranscriptionInfo
    source: AudioStream | None = None
    speech: SpeechAudio | None = None


def _ends(speech: SpeechAudio) -> list[int]:
    """Where each stretch of speech found so far ends, in samples of the speech."""
    return list(accumulate(end - start for start, end in speech.times.spans))


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


def _clipped(audio: AudioSource, clips: Sequence[Mapping[str, float]]) -> _Pieces:
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
    return _Pieces(iter(chunks), HeldAudio(open_audio(joined if len(joined) else _SILENCE)), info)


@dataclass
class _Run:
    """One call while its segments are read."""

    model: WhisperModel
    pieces: _Pieces
    options: TranscribeOptions
    drafter: Drafter
    listeners: Sequence[Callable[[float], None]]
    encoder_s: float = 0.0
    total_s: float = 0.0
    speculation: Speculation | None = None

    def segments(self, resources: contextlib.ExitStack) -> Generator[Segment, None, None]:
        """The segments. It yields once before the first, so that `resources` are closed whatever happens."""
        with resources:
            yield PRIMED
            n_segments = 0
            for chunk in self.pieces.chunks:
                for segment in self._decoded(chunk):
                    n_segments += 1
                    yield replace(self._placed(segment, chunk), id=n_segments)
            self._update_duration()

    def _decoded(self, chunk: Chunk) -> list[Segment]:
        started = time.perf_counter()
        source = open_audio(chunk.samples)
        transcription = transcribe(self.model.engine, self.model.bundle, source, self.options, drafter=self.drafter)
        try:
            segments = list(transcription)
        finally:
            self.model.engine.give_up()
        self.total_s += time.perf_counter() - started
        self.encoder_s += transcription.encoder_s
        one = transcription.speculation
        self.speculation = one if self.speculation is None else self.speculation.plus(one)
        self.pieces.info.speculation = speculation_fields(
            self.speculation, encoder_s=self.encoder_s, total_s=self.total_s
        )
        self._update_duration()
        end_s = chunk.start_s + len(chunk.samples) / SAMPLE_RATE
        for listener in self.listeners:
            listener(end_s if self.pieces.speech is None else self.pieces.speech.original_time(end_s, is_end=True))
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
        return placed if self.pieces.speech is None else self.pieces.speech.restored(placed)

    def _update_duration(self) -> None:
        info, source = self.pieces.info, self.pieces.source
        if source is None:
            return
        if source.is_ended:
            info.duration = source.read_s
        speech = self.pieces.speech
        info.duration_after_vad = info.duration if speech is None else speech.duration_after_vad_s
