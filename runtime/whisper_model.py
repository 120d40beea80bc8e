"""A model for Python programs, with the names, defaults and meanings of faster-whisper's `WhisperModel`.

What a program sees otherwise than there: a model is an installed bundle and nothing is downloaded; it runs on the CPU;
`beam_size` is 1 by default, because speculation is exact against greedy decoding; errors are SpecedgeErrors. Audio is
read and decoded while the segments are, so memory does not grow with its length.

One model may be used from several threads, and several calls may be in work at once: passes over the model take turns,
and each text is the one it would be alone. Does not know: how windows are decoded, formats, command lines.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import EllipsisType
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, cast

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.audio import AudioSource, AudioStream
from specedge.runtime.bundle import Bundle
from specedge.runtime.call_arguments import for_model, transcribe_options, vad_options
from specedge.runtime.choose_bundle import choose_bundle
from specedge.runtime.drafters import Drafter, EmptyDrafter
from specedge.runtime.drafters.by_name import make_drafter
from specedge.runtime.errors import UsageError
from specedge.runtime.formats import speculation_fields
from specedge.runtime.held_audio import HeldAudio, SampleQueue, open_held
from specedge.runtime.manifest import HOP_SAMPLES, SAMPLE_RATE_HZ
from specedge.runtime.mel import N_FFT, MelStream
from specedge.runtime.options import APPEND_PUNCTUATIONS, PREPEND_PUNCTUATIONS, TranscribeOptions
from specedge.runtime.progress import Progress
from specedge.runtime.segments import Segment, TranscriptionInfo
from specedge.runtime.shared_engine import SharedEngine
from specedge.runtime.spoken_language import SpokenLanguage, spoken_language
from specedge.runtime.transcribe import Transcription, transcribe

if TYPE_CHECKING:
    from specedge.runtime.stream import LiveUpdate
    from specedge.runtime.vad import SpeechStream, VadOptions

__all__ = ["PRIMED", "WhisperModel", "checked_drafter"]

PRIMED: Any = None  # what the generator of segments yields once before it is handed out


class WhisperModel:
    """A loaded model.

    model_size_or_path: the name of an installed model ("demo", "small"; `specedge.available_models()`), or the folder
    of a bundle. device: "cpu" or "auto". compute_type: "default", or the precision that the bundle must have: "int8",
    "float32" or "int4"; a model of that precision is also looked for under the name with "-fp32" or "-int4".
    cpu_threads: 0 is as many as there are cores for this process. download_root: a folder of bundles to look into
    first. revision: the commit that the bundle was exported from. Accepted and without effect: num_workers (one engine
    serves all threads in turn), local_files_only (always so) and use_auth_token.

    Raises UsageError for what cannot be, ModelError for a model that is not installed or broken.
    """

    def __init__(
        self,
        model_size_or_path: str | os.PathLike[str],
        device: str = "auto",
        device_index: int | list[int] = 0,
        compute_type: str = "default",
        cpu_threads: int = 0,
        num_workers: int = 1,
        download_root: str | None = None,
        local_files_only: bool = False,
        files: Mapping[str, Any] | None = None,
        revision: str | None = None,
        use_auth_token: str | bool | None = None,
    ) -> None:
        if device not in ("cpu", "auto"):
            raise UsageError(f"device: got {device!r}, expected 'cpu' or 'auto'; specedge runs on the CPU alone")
        if device_index not in (0, [0]):
            raise UsageError(f"device_index: got {device_index!r}, expected 0: there is one CPU device")
        if files is not None:
            raise UsageError("files: a model is not loaded from memory; write the bundle to a folder and give its path")
        if num_workers < 1 or cpu_threads < 0:
            raise UsageError(f"num_workers={num_workers}, cpu_threads={cpu_threads}: expected 1 or more, and 0 or more")
        path = choose_bundle(model_size_or_path, compute_type=compute_type, root=download_root, revision=revision)
        from specedge.runtime.engine import Engine

        self.bundle = Bundle.open(path)
        self.engine = SharedEngine(Engine(self.bundle, threads=cpu_threads or None))

    @property
    def path(self) -> Path:
        """The folder of the bundle."""
        return self.bundle.path

    @property
    def is_multilingual(self) -> bool:
        """Whether the model knows other languages than English."""
        return self.bundle.manifest.tokens.is_multilingual

    @property
    def supported_languages(self) -> list[str]:
        """The codes of the languages that the model knows."""
        return sorted(self.bundle.manifest.tokens.languages) or ["en"]

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
        without_timestamps: bool = False,
        max_initial_timestamp: float = 1.0,
        word_timestamps: bool = False,
        prepend_punctuations: str = PREPEND_PUNCTUATIONS,
        append_punctuations: str = APPEND_PUNCTUATIONS,
        multilingual: bool = False,
        vad_filter: bool = False,
        vad_parameters: Mapping[str, Any] | VadOptions | None = None,
        max_new_tokens: int | None = None,
        chunk_length: float | None = None,
        clip_timestamps: str | Sequence[float] = "0",
        hallucination_silence_threshold: float | None = None,
        hotwords: str | None = None,
        language_detection_threshold: float | None = 0.5,
        language_detection_segments: int = 1,
        *,
        drafter: str | Drafter = "none",
        token_map: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
        rules: Literal["openai", "hf"] = "openai",
        seed: int = 0,
        carry_initial_prompt: bool = False,
        logprob_threshold: float | None | EllipsisType = ...,
        on_progress: Callable[[float], None] | None = None,
    ) -> tuple[Generator[Segment, None, None], TranscriptionInfo]:
        """Transcribe `audio`: a path, "-", a binary file object, or samples float or int16 [n_samples] at 16 kHz.

        The arguments are faster-whisper's (`TranscribeOptions` says what each does); those after `*` are this model's
        own. Returns a generator of segments, decoded while it is iterated, and what is known of the audio: the language
        now, `speculation` as the generator runs. Close the generator, or drop it, to stop.
        Raises UsageError and AudioError at once; the generator AudioError, ResourceError and Interrupted.
        """
        arguments = dict(locals())
        return self._transcribe(**{name: value for name, value in arguments.items() if name != "self"})

    def _transcribe(
        self,
        *,
        audio: AudioSource,
        vad_filter: bool,
        vad_parameters: Any,
        chunk_length: float | None,
        drafter: str | Drafter,
        token_map: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None,
        on_progress: Callable[[float], None] | None,
        log_progress: bool,
        **arguments: Any,
    ) -> tuple[Generator[Segment, None, None], TranscriptionInfo]:
        self._check_chunk_length(chunk_length)
        options = for_model(transcribe_options(**arguments), self.bundle.manifest.tokens)
        vad = vad_options(vad_parameters) if vad_filter and options.clip_timestamps == (0.0,) else None
        made = checked_drafter(self.bundle, drafter, token_map, options)
        with contextlib.ExitStack() as stack:
            source = stack.enter_context(open_held(audio))
            call = self._begin(source, options, vad, made)
            if log_progress:
                progress = stack.enter_context(contextlib.closing(Progress(source.duration_s, "s", source.name)))
                call.listeners.append(progress.update_to)
            if on_progress is not None:
                call.listeners.append(on_progress)
            segments = call.run(stack.pop_all())
            next(segments)
        return segments, call.info

    def _begin(self, source: AudioStream, options: TranscribeOptions, vad: VadOptions | None, made: Drafter) -> _Call:
        """Find the language and make everything ready to decode."""
        speech = None
        if vad is not None:
            from specedge.runtime.vad import SpeechStream

            speech = SpeechStream(source, vad)
        held = HeldAudio(speech or source)
        engine, spoken = self.engine, None
        if options.language is None:
            spoken = self.find_language(held, round(options.clip_timestamps[0] * SAMPLE_RATE_HZ), options)
            engine = engine.after(*spoken.first_window)
        language = spoken.language if spoken else str(options.language)
        listeners: list[Callable[[float], None]] = []
        transcription = transcribe(
            engine,
            self.bundle,
            cast(AudioStream, held),
            replace(options, language=language),
            drafter=made,
            on_progress=lambda done_s: _tell(listeners, done_s),
        )
        info = TranscriptionInfo(
            language=language,
            language_probability=spoken.probability if spoken else 1.0,
            duration=source.duration_s or 0.0,
            duration_after_vad=source.duration_s or 0.0,
            all_language_probs=spoken.probabilities if spoken else None,
            transcription_options=options,
            vad_options=vad,
        )
        return _Call(transcription, source, speech, info, listeners, spoken.encoder_s if spoken else 0.0)

    def detect_language(
        self,
        audio: str | os.PathLike[str] | BinaryIO | NDArray[Any] | None = None,
        features: NDArray[np.float32] | None = None,
        vad_filter: bool = False,
        vad_parameters: Mapping[str, Any] | VadOptions | None = None,
        language_detection_segments: int = 1,
        language_detection_threshold: float | None = 0.5,
    ) -> tuple[str, float, list[tuple[str, float]]]:
        """The language of `audio` (as in `transcribe`) or of log-mel `features`, float32 [n_mels, n_frames].

        Returns its code, its probability, and all languages with theirs, likeliest first.
        Raises UsageError, AudioError.
        """
        options = TranscribeOptions(
            language_detection_segments=language_detection_segments,
            language_detection_threshold=language_detection_threshold,
        )
        with contextlib.ExitStack() as stack:
            if audio is not None:
                source: Any = stack.enter_context(open_held(audio))
                if vad_filter:
                    from specedge.runtime.vad import SpeechStream

                    source = SpeechStream(source, vad_options(vad_parameters))
                windows = self._windows(HeldAudio(source), 0, options)
            elif features is not None:
                windows = self._feature_windows(features, language_detection_segments)
            else:
                raise UsageError("detect_language: expected audio or features, got neither")
            if not self.is_multilingual:
                return "en", 1.0, [("en", 1.0)]
            spoken = spoken_language(self.engine, self.bundle.manifest.tokens, windows, language_detection_threshold)
        return spoken.language, spoken.probability, spoken.probabilities

    def stream(self, blocks: Iterable[NDArray[Any]], **options: Any) -> Iterator[LiveUpdate]:
        """Live text of `blocks`, float or int16 [n_samples] at 16 kHz; `options` are fields of TranscribeOptions.

        Yields confirmed and tentative text, as specedge.runtime.stream says. Raises UsageError at once.
        """
        from specedge.runtime.stream import stream

        unknown = sorted(set(options) - set(TranscribeOptions.__dataclass_fields__))
        if unknown:
            raise UsageError(f"stream: {unknown[0]!r} is no option of it")
        chosen = for_model(TranscribeOptions(**options), self.bundle.manifest.tokens)
        return stream(self.engine, self.bundle, blocks, chosen)

    def find_language(self, held: HeldAudio, start: int, options: TranscribeOptions) -> SpokenLanguage:
        """The language from sample `start` on; what is read for it can still be read from `held`."""
        windows = self._windows(held, start, options)
        return spoken_language(self.engine, self.bundle.manifest.tokens, windows, options.language_detection_threshold)

    def _windows(
        self, held: HeldAudio, start: int, options: TranscribeOptions
    ) -> Generator[NDArray[np.float32], None, None]:
        """Mel of the first windows from sample `start` on, one at least."""
        manifest = self.bundle.manifest
        start -= start % HOP_SAMPLES
        lead = min(start, N_FFT)  # the first frame sees half an FFT before it
        lead -= lead % HOP_SAMPLES
        n_samples = options.language_detection_segments * manifest.n_samples + lead + N_FFT
        mels = MelStream(SampleQueue(held.peek(start - lead, n_samples)), manifest.dims.n_mels, manifest.n_frames)
        for index in range(options.language_detection_segments):
            mel, n_content_frames = mels.window(lead // HOP_SAMPLES + index * manifest.n_frames)
            if index and not n_content_frames:
                return
            yield mel

    def _feature_windows(
        self, features: NDArray[np.float32], n_windows: int
    ) -> Generator[NDArray[np.float32], None, None]:
        """`features` window by window, the last one filled with zeros as faster-whisper does."""
        n_mels, n_frames = self.bundle.manifest.dims.n_mels, self.bundle.manifest.n_frames
        if features.ndim != 2 or features.shape[0] != n_mels or not features.shape[1]:
            raise UsageError(f"features have shape {list(features.shape)}, expected [{n_mels}, n_frames]")
        for first in range(0, min(features.shape[1], n_windows * n_frames), n_frames):
            part = features[:, first : first + n_frames].astype(np.float32)
            yield np.pad(part, ((0, 0), (0, n_frames - part.shape[1])))

    def _check_chunk_length(self, chunk_length: float | None) -> None:
        window_s = self.bundle.manifest.window_s
        if chunk_length not in (None, window_s):
            raise UsageError(f"chunk_length: got {chunk_length!r}; this model's windows are {window_s:g} s long")


def checked_drafter(
    bundle: Bundle,
    drafter: str | Drafter,
    token_map: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None,
    options: TranscribeOptions,
) -> Drafter:
    """The drafter of one call. Raises UsageError for an unknown one, and for one that these options cannot have."""
    if token_map is None:
        token_map = ()
    elif isinstance(token_map, (str, os.PathLike)):
        token_map = (token_map,)
    made = make_drafter(drafter, bundle, [Path(path) for path in token_map])
    if options.beam_size > 1 and not isinstance(made, EmptyDrafter):
        raise UsageError("beam_size above 1 goes with drafter='none': speculation is exact against greedy decoding")
    return made


def _tell(listeners: Iterable[Callable[[float], None]], done_s: float) -> None:
    for listener in listeners:
        listener(done_s)


@dataclass
class _Call:
    """One call of `transcribe` while its segments are read."""

    transcription: Transcription
    source: AudioStream
    speech: SpeechStream | None
    info: TranscriptionInfo
    listeners: list[Callable[[float], None]]
    encoder_s: float
    total_s: float = 0.0

    def run(self, resources: contextlib.ExitStack) -> Generator[Segment, None, None]:
        """The segments. It yields once before the first, so that `resources` are closed whatever happens."""
        with resources, contextlib.closing(self.transcription):
            yield PRIMED
            while (segment := self._next()) is not None:
                yield segment

    def _next(self) -> Segment | None:
        started = time.perf_counter()
        segment = next(self.transcription, None)
        self.total_s += time.perf_counter() - started
        self._update_info()
        if segment is None:
            return None
        if self.speech is not None:
            segment = self.speech.restored(segment)
        return replace(segment, id=segment.id + 1)  # faster-whisper counts from 1

    def _update_info(self) -> None:
        info, source = self.info, self.source
        if source.is_ended:
            info.duration = source.read_s
        info.duration_after_vad = info.duration if self.speech is None else self.speech.duration_after_vad_s
        info.speculation = speculation_fields(
            self.transcription.speculation,
            encoder_s=self.encoder_s + self.transcription.encoder_s,
            total_s=self.encoder_s + self.total_s,
        )
