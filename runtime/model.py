"""A model for Python programs, with the names, defaults and meanings of faster-whisper's `WhisperModel`.

What a program sees otherwise than there: a model is an installed bundle and nothing is downloaded; it runs on the CPU;
`beam_size` is 1 by default, because drafts save most there; errors are SpecedgeErrors. Audio is
read and decoded while the segments are, so memory does not grow with its length.

One model may be used from several threads, and several calls may be in work at once: windows take turns, and each text
is the one it would be alone. Does not know: how windows are decoded, formats, command lines.

From faster-whisper's arguments, as programs pass them, to the options of a transcription.

Lists become tuples, "0,5.5" becomes times, a dict becomes VadOptions, and what an English-only model cannot do is left
out with a warning, as faster-whisper does. Anything else that cannot be is one UsageError, when the call is made.
Does not know: audio, engines, how options are used.

The drafter that one call of a model asks for, checked against the call's other arguments.

Does not know: what drafters do, how calls are decoded.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import EllipsisType
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Protocol, cast, overload

import numpy as np
from numpy.typing import NDArray

from specedge.errors import UsageError

from .audio.audio import AudioSource, AudioStream, open_held
from .audio.vad import VadOptions
from .bundle.bundle import Bundle, choose_bundle
from .console import Progress
from .decoding.decode import detect_language
from .decoding.drafter import Drafter, DrafterOptions, EmptyDrafter
from .drafters.registry import close_drafter, make_drafter, threads_here
from .engine.packed import map_large_blocks
from .longform.segments import Segment, TranscriptionInfo
from .longform.transcribe import Transcription, transcribe, vote
from .options import APPEND_PUNCTUATIONS, PREPEND_PUNCTUATIONS, TranscribeOptions
from .output.formats import speculation_fields
from .text.special import SpecialTokens, find_language

if TYPE_CHECKING:
    from .engine.engine import Engine
    from .longform.live import LiveTranscriber, LiveUpdate
    from .longform.vad_filter import SpeechAudio

__all__ = [
    "PRIMED",
    "WhisperModel",
    "checked_drafter",
    "for_model",
    "transcribe_options",
    "vad_options",
]

_log = logging.getLogger(__name__)


def transcribe_options(
    *,
    temperature: float | Iterable[float],
    initial_prompt: str | Iterable[int] | None,
    suppress_tokens: Iterable[int] | None,
    clip_timestamps: str | Iterable[float],
    log_prob_threshold: float | None,
    length_penalty: float | None,
    logprob_threshold: float | None | EllipsisType = ...,
    **others: Any,
) -> TranscribeOptions:
    """The options that these arguments of `WhisperModel.transcribe` mean. Raises UsageError."""
    if not isinstance(logprob_threshold, EllipsisType):
        if log_prob_threshold not in (logprob_threshold, TranscribeOptions.log_prob_threshold):
            raise UsageError("log_prob_threshold and logprob_threshold are one option: give one of them")
        log_prob_threshold = logprob_threshold
    try:
        return TranscribeOptions(
            temperature=_floats(temperature),
            initial_prompt=initial_prompt if initial_prompt is None else _prompt(initial_prompt),
            suppress_tokens=None if suppress_tokens is None else tuple(map(int, suppress_tokens)),
            clip_timestamps=_clips(clip_timestamps),
            log_prob_threshold=log_prob_threshold,
            # faster-whisper divides by length ** 1, which is what openai-whisper does without a penalty.
            length_penalty=None if length_penalty == 1 else length_penalty,
            **others,
        )
    except (TypeError, ValueError) as error:
        raise UsageError(f"an option of transcribe has a wrong type: {error}") from None


def for_model(options: TranscribeOptions, special: SpecialTokens) -> TranscribeOptions:
    """The options as this model can follow them, the language as a code, or None where it is to be found.

    A model that knows English alone transcribes English, with a warning, as in faster-whisper. Raises UsageError for a
    language or a task that the model does not have.
    """
    code = options.language
    if code is not None and not isinstance(code, str):
        raise UsageError(f"language: got {type(code).__name__}, expected a code such as 'en', or None")
    if code is not None and code not in special.languages:
        code = find_language(code)
    if special.is_multilingual:
        special.prompt(code or next(iter(special.languages)), options.task)
        return replace(options, language=code)
    if options.multilingual:
        _log.warning("the model knows English alone: multilingual=True is ignored")
    if code not in (None, "en"):
        _log.warning("the model knows English alone: language=%r is ignored", options.language)
    special.prompt("en", options.task)
    return replace(options, language="en", multilingual=False)


def vad_options(parameters: Any, **otherwise: Any) -> VadOptions:
    """`parameters` (None, a mapping, or VadOptions) as VadOptions; `otherwise` are defaults of this caller's own.

    Raises UsageError for a parameter that there is not.
    """
    if isinstance(parameters, VadOptions):
        return parameters
    if parameters is not None and not isinstance(parameters, Mapping):
        raise UsageError(f"vad_parameters: got {type(parameters).__name__}, expected a dict or VadOptions")
    known = [field.name for field in fields(VadOptions)]
    given = {**otherwise, **(parameters or {})}
    unknown = sorted(set(given) - set(known), key=str)
    if unknown:
        raise UsageError(f"vad_parameters: {unknown[0]!r} is none; there are {', '.join(known)}")
    try:
        return VadOptions(**given)
    except (TypeError, ValueError) as error:
        raise UsageError(f"vad_parameters: {error}") from None


def _floats(value: float | Iterable[float]) -> tuple[float, ...]:
    return tuple(map(float, value)) if isinstance(value, Iterable) else (float(value),)


def _prompt(value: str | Iterable[int]) -> str | tuple[int, ...]:
    return value if isinstance(value, str) else tuple(map(int, value))


def _clips(value: str | Iterable[float]) -> tuple[float, ...]:
    """Times from "start,end,start,..." or a list; without any the audio from its start."""
    if isinstance(value, str):
        value = [float(item) for item in value.split(",")] if value.strip() else []
    return tuple(map(float, value)) or (0.0,)


class _Model(Protocol):
    """The part of `WhisperModel` that is needed; `draft` is the draft model used last."""

    bundle: Bundle
    engine: Engine
    threads: int
    draft: Any


def checked_drafter(
    model: _Model,
    drafter: str | Drafter,
    token_map: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None,
    options: TranscribeOptions,
    *,
    draft_model: str | os.PathLike[str] | None = None,
    lookahead: str = "cost",
    learn: bool | str = False,
    allow_inexact: bool = False,
) -> Drafter:
    """The drafter of one call; `learn` may be the name of a domain.

    Raises UsageError for an unknown drafter, ExactnessError where drafts could change the text.
    """
    if token_map is None:
        token_map = ()
    elif isinstance(token_map, (str, os.PathLike)):
        token_map = (token_map,)
    if drafter == "none" and draft_model is not None:
        drafter = "draft"
    made = make_drafter(
        drafter,
        model.bundle,
        DrafterOptions(
            threads=model.threads,
            token_maps=[Path(path) for path in token_map],
            draft_model=draft_model,
            lookahead=lookahead,
            learn=learn is not False,
            learn_domain=learn if isinstance(learn, str) else DrafterOptions.learn_domain,
            canceller=getattr(model.engine, "canceller", None),
            engine=model.engine,
            allow_inexact=allow_inexact,
        ),
    )
    if made is not drafter:  # what a program makes by itself need not have such an attribute, or one that can be read
        model.draft = made.model or model.draft
    return made


PRIMED: Any = None  # what the generator of segments yields once before it is handed out


class WhisperModel:
    """A loaded model.

    model_size_or_path: the name of an installed model ("demo", "small"; `specedge.available_models()`), or the folder
    of a bundle. device: "cpu" or "auto". compute_type: "default", or the precision that the bundle must have: "int8",
    "float32" or "int4"; a model of that precision is also looked for under the name with "-fp32" or "-int4".
    cpu_threads: 0 is what `threads_here` says. download_root: a folder of bundles to look into
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
        from .engine.engine import Engine, wait_before_fork

        self.bundle = Bundle.open(path)
        map_large_blocks()
        self.engine = Engine(self.bundle, threads=cpu_threads or threads_here(self.bundle))
        self.threads = self.engine.threads
        wait_before_fork(self.engine)
        self.draft: Any = None  # the draft model used last, which stays loaded for the next call

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
        draft_model: str | os.PathLike[str] | None = None,
        lookahead: str = "cost",
        learn: bool | str = False,
        rules: Literal["openai", "hf"] = "openai",
        seed: int = 0,
        audio_context: str | float | None = None,
        window_end: Literal["full", "pause"] | None = None,
        carry_initial_prompt: bool = False,
        allow_inexact: bool = False,
        logprob_threshold: float | None | EllipsisType = ...,
        on_progress: Callable[[float], None] | None = None,
    ) -> tuple[Generator[Segment, None, None], TranscriptionInfo]:
        """Transcribe `audio`: a path, "-", a binary file object, or samples float or int16 [n_samples] at 16 kHz.

        The arguments are faster-whisper's (see `TranscribeOptions`), behind `*` specedge's own: `draft_model` asks for
        the drafter "draft", `lookahead` is how much it drafts, `learn` True or a domain's name, `allow_inexact` drafts
        also where that may change the text. Returns the segments, decoded as they are read, and the info. Raises
        UsageError, AudioError, ExactnessError; reading ResourceError, Interrupted too.
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
        draft_model: str | os.PathLike[str] | None,
        lookahead: str,
        learn: bool | str,
        allow_inexact: bool,
        on_progress: Callable[[float], None] | None,
        log_progress: bool,
        **arguments: Any,
    ) -> tuple[Generator[Segment, None, None], TranscriptionInfo]:
        self._check_chunk_length(chunk_length)
        options = for_model(transcribe_options(**arguments), self.bundle.manifest.tokens)
        vad = vad_options(vad_parameters) if vad_filter and options.clip_timestamps == (0.0,) else None
        made = checked_drafter(
            self,
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
            from .longform.vad_filter import SpeechAudio

            speech = SpeechAudio(source, vad)
        listeners: list[Callable[[float], None]] = []
        transcription = transcribe(
            self.engine,
            self.bundle,
            cast(AudioStream, source if speech is None else speech),
            options,
            drafter=made,
            on_progress=lambda done_s: _tell(listeners, done_s),
        )
        started = time.perf_counter()
        language, probability, probabilities = self.find_language(transcription)
        info = TranscriptionInfo(
            language=language,
            language_probability=probability,
            duration=source.duration_s or 0.0,
            duration_after_vad=source.duration_s or 0.0,
            all_language_probs=probabilities if options.language is None and self.is_multilingual else None,
            transcription_options=options,
            vad_options=vad,
        )
        return _Call(transcription, source, speech, info, listeners, time.perf_counter() - started)

    def find_language(self, transcription: Transcription) -> tuple[str, float, list[tuple[str, float]]]:
        """The language of a transcription that was not begun, its probability, and those of all languages."""
        transcription.find_language()
        probabilities = list(transcription.language_probabilities.items())
        if transcription.language is None:  # nothing is heard
            n_mels = self.bundle.manifest.dims.n_mels
            return self.detect_language(features=np.zeros((n_mels, 1), np.float32))
        language = transcription.language
        return language, transcription.language_probabilities.get(language, 1.0), probabilities

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
        if audio is not None:
            vad = vad_options(vad_parameters) if vad_filter else None
            with open_held(audio) as source:
                info = self._begin(source, for_model(options, self.bundle.manifest.tokens), vad, EmptyDrafter()).info
            return info.language, info.language_probability, info.all_language_probs or [(info.language, 1.0)]
        if features is None:
            raise UsageError("detect_language: expected audio or features, got neither")
        special = self.bundle.manifest.tokens
        windows = list(self._feature_windows(features, language_detection_segments))
        if not self.is_multilingual:
            return "en", 1.0, [("en", 1.0)]
        heard = (
            detect_language(self.engine, self.engine.encode(mel), special.sot, dict(special.languages))
            for mel in windows
        )
        language, probabilities = vote(heard, language_detection_threshold)
        return language, probabilities[language], list(probabilities.items())

    @overload
    def stream(
        self, blocks: Iterable[NDArray[Any]], *, drafter: str | Drafter = ..., step_s: float = ..., **options: Any
    ) -> Iterator[LiveUpdate]: ...
    @overload
    def stream(
        self, blocks: None = ..., *, drafter: str | Drafter = ..., step_s: float = ..., **options: Any
    ) -> LiveTranscriber: ...
    def stream(
        self,
        blocks: Iterable[NDArray[Any]] | None = None,
        *,
        drafter: str | Drafter = "none",
        step_s: float = 1.0,
        allow_inexact: bool = False,
        **options: Any,
    ) -> Iterator[LiveUpdate] | LiveTranscriber:
        """Live text of `blocks`, float [n_samples] at 16 kHz: confirmed and tentative, as it becomes known.

        Without `blocks` the LiveTranscriber, whose `feed` and `finish` take them one by one. `step_s`: seconds between
        two looks at the audio. `allow_inexact`: as for `transcribe`. `options`: fields of TranscribeOptions. Raises
        UsageError, ExactnessError at once.
        """
        from .longform.live import LiveTranscriber, stream

        unknown = sorted(set(options) - set(TranscribeOptions.__dataclass_fields__))
        if unknown:
            raise UsageError(f"stream: {unknown[0]!r} is no option of it")
        chosen = for_model(TranscribeOptions(**options), self.bundle.manifest.tokens)
        made = checked_drafter(self, drafter, None, chosen, allow_inexact=allow_inexact)
        if blocks is None:
            return LiveTranscriber(self.engine, self.bundle, chosen, made, step_s=step_s)
        return stream(self.engine, self.bundle, blocks, chosen, drafter=made, step_s=step_s)

    def _feature_windows(self, features: NDArray[np.float32], n_windows: int) -> Iterator[NDArray[np.float32]]:
        """`features` window by window, the last one filled with zeros as faster-whisper does. Raises UsageError."""
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


def _tell(listeners: Iterable[Callable[[float], None]], done_s: float) -> None:
    for listener in listeners:
        listener(done_s)


@dataclass
class _Call:
    """One call of `transcribe` while its segments are read."""

    transcription: Transcription
    source: AudioStream
    speech: SpeechAudio | None
    info: TranscriptionInfo
    listeners: list[Callable[[float], None]]
    total_s: float
    n_words: int = 0

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
        self.n_words += 0 if segment is None else len(segment.text.split())
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
            encoder_s=self.transcription.encoder_s,
            total_s=self.total_s,
            n_words=self.n_words,
            duration_s=info.duration,
        )
        info.audio_context = self.transcription.audio_context.fields()
