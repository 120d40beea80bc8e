"""`WhisperModel`: a model for Python programs and for the command, with faster-whisper's names, defaults and meanings.

Other than there, a model is an installed bundle and nothing is downloaded; it runs on the CPU; `beam_size` is 1 by
default, because drafts save most there; errors are SpecedgeErrors. Audio is decoded while the segments are read, so
memory does not grow with its length. Several threads may use one model: their windows share passes, and each text is
the one it would be alone.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from pathlib import Path
from types import EllipsisType
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, cast, overload

import numpy as np
from numpy.typing import NDArray

from specedge.errors import AudioError, UsageError

from .audio.audio import NO_SAMPLES, SAMPLE_RATE, AudioSource, AudioStream, decode_audio, open_held
from .bundle.bundle import Bundle, choose_bundle
from .bundle.manifest import SPEECH
from .console import Progress
from .decoding.drafter import Drafter, TargetModel
from .decoding.languages import UNKNOWN_LANGUAGE, detect_language
from .device import map_large_blocks
from .drafters.kept import KeptDrafters, Loan
from .drafters.registry import make_drafter, threads_here
from .longform.segments import Segment, TranscriptionInfo
from .longform.transcribe import Transcription, vote
from .longform.windows import MIN_FRAMES
from .options import (
    APPEND_PUNCTUATIONS,
    AUTO_PROVIDER,
    CPU,
    PREPEND_PUNCTUATIONS,
    DrafterOptions,
    TranscribeOptions,
    VadOptions,
    check_together,
    converted,
    described_fields,
    drafter_named,
    kinds_of,
)
from .output.formats import speculation_fields
from .output.report import source_names
from .text.phrases import Phrases
from .text.special import TokenLayout, find_language

if TYPE_CHECKING:
    from .engine.engine import Engine
    from .longform.live import LiveTranscriber, LiveUpdate
    from .longform.vad_filter import SpeechAudio

_log = logging.getLogger(__name__)
BUDGET_BYTES = 1 << 30
_LINE_EVERY_S = 10.0  # of `log_progress` where there is no terminal
_PRIMED: Any = None  # what the generator of segments yields once before it is handed out


def load(
    path: str | os.PathLike[str],
    threads: int | None = None,
    budget_bytes: int | None = None,
    encoder_provider: str = AUTO_PROVIDER,
) -> tuple[Engine, Bundle]:
    """The engine of the bundle in this folder, and the bundle; `threads` None or 0 is what `threads_here` says."""
    from .engine.speech import open_engine

    map_large_blocks()
    bundle = Bundle.open(path)
    engine = open_engine(
        bundle, threads=threads or threads_here(bundle), budget_bytes=budget_bytes, encoder_provider=encoder_provider
    )
    return engine, bundle if engine.encoder_provider == CPU else bundle.behind(engine.encoder_provider)


def transcribe_options(given: Mapping[str, Any]) -> TranscribeOptions:
    """The options that these arguments of `WhisperModel.transcribe` mean. Raises UsageError."""
    named = dict(given)
    other = named.pop("logprob_threshold", ...)
    if other is not ...:
        if named.get("log_prob_threshold") not in (other, TranscribeOptions.log_prob_threshold):
            raise UsageError("log_prob_threshold and logprob_threshold are one option: give one of them")
        named["log_prob_threshold"] = other
    if named.get("length_penalty") == 1:  # faster-whisper's way to say what openai-whisper does without a penalty
        named["length_penalty"] = None
    for one, about in described_fields(TranscribeOptions):
        if one.name in named:
            try:
                named[one.name] = converted(named[one.name], kinds_of(TranscribeOptions)[one.name], about)
            except UsageError as error:
                raise UsageError(f"{one.name}: {error}") from None
    return TranscribeOptions(**named)


def for_model(options: TranscribeOptions, special: TokenLayout) -> TranscribeOptions:
    """The options as this model can follow them, the language as a code, or None where it is to be found ("auto" too).

    A model that knows English alone transcribes English, with a warning, as in faster-whisper. Raises UsageError for a
    language or a task that the model does not have.
    """
    code = options.language
    if code == "auto":
        code = None
    elif code is not None and code not in special.languages:
        code = find_language(code)
    if special.is_multilingual:
        special.check_request(code, options.task)
        return replace(options, language=code)
    if options.multilingual:
        _log.warning("the model knows English alone: multilingual=True is ignored")
    if code not in (None, "en"):
        _log.warning("the model knows English alone: language=%r is ignored", options.language)
    special.check_request("en", options.task)
    return replace(options, language="en", multilingual=False)


def vad_options(parameters: Any, **otherwise: Any) -> VadOptions:
    """`parameters` (None, a mapping, or VadOptions) as VadOptions; `otherwise` are defaults of this caller's own.

    Raises UsageError for a parameter that there is not.
    """
    if isinstance(parameters, VadOptions):
        return parameters
    try:
        return VadOptions(**{**otherwise, **(parameters or {})})
    except TypeError as error:  # no mapping, a name that there is not, or a value that is no number
        known = ", ".join(field.name for field in fields(VadOptions))
        raise UsageError(f"vad_parameters: {error}; expected a dict with some of {known}") from None


def asked_drafter(given: Mapping[str, Any]) -> Drafter | DrafterOptions:
    """The drafter that these arguments of `WhisperModel.transcribe` mean. Raises UsageError."""
    named = dict(given)
    drafter, maps = named.pop("drafter", None), named.pop("token_map", None)
    if drafter is None or isinstance(drafter, str):
        maps = () if maps is None else (maps,) if isinstance(maps, (str, os.PathLike)) else maps
        return drafter_named(drafter, token_maps=tuple(map(Path, maps)), **named)
    named.pop("allow_inexact", None)
    for name, value in {"token_map": maps, **named}.items():
        if value != getattr(DrafterOptions, name, None):
            raise UsageError(f"{name}: goes with the name of a drafter, not with one that is already made")
    if not isinstance(drafter, DrafterOptions) and not hasattr(drafter, "propose"):
        raise UsageError(f"drafter: got {drafter!r:.80}, expected a name, options, or a Drafter")
    made: Drafter | DrafterOptions = drafter
    return made


_OPTIONS = (*(one.name for one in fields(TranscribeOptions)), "logprob_threshold")
_OF_DRAFTER = ("drafter", "token_map", *(one.name for one in fields(DrafterOptions)[1:] if one.name != "token_maps"))


def taken(given: dict[str, Any], special: TokenLayout) -> tuple[TranscribeOptions, Drafter | DrafterOptions, bool]:
    """What arguments of `WhisperModel.transcribe` mean for this model, taken out of `given`: the options, the drafter,
    and whether it may be inexact. Raises UsageError."""
    options = transcribe_options({name: given.pop(name) for name in _OPTIONS if name in given})
    about_drafter = {name: given.pop(name) for name in _OF_DRAFTER if name in given}
    asked = asked_drafter(about_drafter)
    return for_model(options, special), asked, about_drafter.get("allow_inexact", False)


class WhisperModel(contextlib.AbstractContextManager["WhisperModel"]):
    """A loaded model.

    model_size_or_path: the name of an installed model ("tiny.en", "small"; `specedge.available_models()`), or a folder
    with a bundle. device: "cpu" or "auto". compute_type: "default", or the precision that the bundle must have: "int8",
    "float32" or "int4"; a model of that precision is also looked for under the name with "-fp32" or "-int4".
    cpu_threads: 0 is what `threads_here` says. download_root: a folder of bundles to look into
    first. revision: the commit that the bundle was exported from. budget_bytes: how much memory the windows in work may
    take together, when several threads use the model; a further one waits before its encoder until there is room. Of a
    model of small's size a window of 30 s takes up to 93 MB; None for no limit. encoder_provider: what the encoder runs
    on, one of `specedge.runtime.options.ENCODER_PROVIDERS` (docs/providers.md). Accepted and without effect:
    num_workers (one engine serves all threads), local_files_only (always so) and use_auth_token. A context manager,
    which closes the model; pickled, it is opened anew from its folder. It has `path`, the bundle's folder, whether it
    `is_multilingual`, and `supported_languages`, their codes.

    Raises UsageError for what cannot be, ModelError for a model that is not installed or broken, ProviderError for an
    encoder that its provider cannot run.
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
        *,
        budget_bytes: int | None = BUDGET_BYTES,
        encoder_provider: str = AUTO_PROVIDER,
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
        self._open_anew = functools.partial(
            type(self), str(path), cpu_threads=cpu_threads, budget_bytes=budget_bytes, encoder_provider=encoder_provider
        )
        engine, self.bundle = load(path, cpu_threads, budget_bytes, encoder_provider)
        self.path, known = self.bundle.path, self.bundle.manifest.tokens
        self.is_multilingual, self.supported_languages = known.is_multilingual, sorted(known.languages) or ["en"]
        self._engine: Engine | None = engine
        self.threads = self.engine.threads
        self.draft: Any = None  # the draft model used last, which stays loaded for the next call
        self.kept_drafters = KeptDrafters()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process the same bundle is opened anew."""
        return self._open_anew, ()

    def close(self) -> None:
        """Let go of the model's memory. A later call raises UsageError; a second `close` does nothing."""
        self.kept_drafters.close()
        self._engine = self.draft = None

    @property
    def engine(self) -> Engine:
        """What runs the model. Raises UsageError once it is closed."""
        if self._engine is None:
            raise UsageError("this model is closed: open it again")
        return self._engine

    def transcribe(
        self,
        audio: str | os.PathLike[str] | BinaryIO | NDArray[Any] | AudioStream,
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
        drafter: str | Drafter | DrafterOptions | None = None,
        token_map: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
        map_preset: str = "default",
        draft_model: str | os.PathLike[str] | None = None,
        lookahead: str | int = "cost",
        translation: str = "words",
        learn: bool = False,
        remember: bool = False,
        allow_inexact: bool = False,
        accept: str = "exact",
        length_decay: tuple[float, float] | None = None,
        seed: int = 0,
        audio_context: str | float = "auto",
        window_end: Literal["full", "pause"] | None = None,
        bias: str | os.PathLike[str] | Iterable[str] | Phrases | None = None,
        only: str | os.PathLike[str] | Iterable[str] | Phrases | None = None,
        carry_initial_prompt: bool = False,
        draft_sources: bool = False,
        logprob_threshold: float | None | EllipsisType = ...,
        on_progress: Callable[[float], None] | None = None,
    ) -> tuple[Generator[Segment, None, None], TranscriptionInfo]:
        """Transcribe `audio`: a path, "-", a binary file object, samples float or int16 [n_samples] at 16 kHz, or a
        stream from `open_audio`, which stays the caller's.

        The arguments are faster-whisper's; behind `*` are specedge's own. They are described in `TranscribeOptions` and
        `DrafterOptions`; `token_map` is one file or several; `drafter` None is "auto", or "draft" where a draft
        model is given or is to learn. Returns the segments, which are decoded as they are read, and the info. Raises
        UsageError, AudioError, ExactnessError; reading ResourceError and Interrupted too.
        """
        options, asked, allow_inexact = taken(dict(locals()), self.bundle.manifest.tokens)
        window_s = self.bundle.manifest.window_s
        if chunk_length not in (None, window_s):
            raise UsageError(f"chunk_length: got {chunk_length!r}; this model's windows are {window_s:g} s long")
        vad = vad_options(vad_parameters) if vad_filter and options.clip_timestamps == (0.0,) else None
        with contextlib.ExitStack() as stack:
            loan = stack.enter_context(lend_drafter(self, asked, options, allow_inexact=allow_inexact))
            source = opened(stack, audio)
            tell = progress_bar(stack, source.duration_s, source.name, on_progress) if log_progress else on_progress
            call = self.begin(source, options, vad=vad, drafter=loan.drafter, on_progress=tell)
            return self.hand_over(call, stack.pop_all(), on_sound_end=loan.keep)

    def begin(
        self,
        source: AudioStream,
        options: TranscribeOptions,
        *,
        vad: VadOptions | None = None,
        drafter: Drafter | None = None,
        on_progress: Callable[[float], None] | None = None,
    ) -> TranscriptionRun:
        """The transcription of a stream, which stays the caller's, as does the drafter. Nothing is decoded yet.

        `vad` None decodes all of it. Raises UsageError for a language or task that the model does not have.
        """
        speech: SpeechAudio | None = None
        if vad is not None:
            from .longform.vad_filter import SpeechAudio

            speech = SpeechAudio(source, vad)
        transcription = Transcription(
            self.engine,
            self.bundle,
            source if speech is None else cast(AudioStream, speech),
            options,
            drafter=drafter,
            on_progress=on_progress,
        )
        info = new_info(source.duration_s or 0.0, options, vad, drafter)
        return TranscriptionRun(transcription, info, source=source, speech=speech)

    def hand_over(
        self, call: TranscriptionRun, resources: contextlib.ExitStack, *, on_sound_end: Callable[[], None]
    ) -> tuple[Generator[Segment, None, None], TranscriptionInfo]:
        """Find the language, and return what `transcribe` returns.

        `resources` are closed behind the last segment; `on_sound_end` is called before, where the drafter did not fail.
        """
        with resources:
            started = time.perf_counter()
            self._find_language(call)
            call.total_s += time.perf_counter() - started
            info = call.info
            _log.debug("%.1f s of audio, language %s (%.2f)", info.duration, info.language, info.language_probability)
            segments = _segments(call, resources.pop_all(), on_sound_end)
        next(segments)
        return segments, call.info

    def drafter_for(
        self, asked: Drafter | DrafterOptions, options: TranscribeOptions, *, allow_inexact: bool = False
    ) -> Drafter:
        """The drafter of a call, to be closed by whoever asks. Raises as `make_drafter`."""
        if isinstance(asked, DrafterOptions):
            check_together(options, asked)
        target = TargetModel(
            self.bundle,
            threads=self.threads,
            engine=self.engine,
            canceller=getattr(self.engine, "canceller", None),
            draws=options.accept == "residual",
        )
        made = make_drafter(asked, target, allow_inexact=allow_inexact)
        if made is not asked:  # a program's own drafter is used as it is
            self.draft = made.model or self.draft
        return made

    def _find_language(self, call: TranscriptionRun) -> None:
        """Fill in the language of a transcription that was not begun; where nothing is heard, that of silence."""
        said, info = call.transcription, call.info
        is_given = said.language is not None
        said.find_language()
        if said.language is None and self.bundle.manifest.kind != SPEECH:
            silence = np.zeros((self.bundle.manifest.dims.n_mels, 1), np.float32)
            info.language, info.language_probability, info.all_language_probs = self.detect_language(features=silence)
            return
        info.language = said.language or UNKNOWN_LANGUAGE
        info.language_probability = said.language_probabilities.get(info.language, 1.0)
        if not is_given and self.is_multilingual:
            info.all_language_probs = list(said.language_probabilities.items()) or None

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
            audio_context="auto" if self.bundle.manifest.kind == SPEECH else "full",  # a speech LLM has no choice
        )
        if audio is not None:
            vad = vad_options(vad_parameters) if vad_filter else None
            with open_held(audio) as source:
                call = self.begin(source, for_model(options, self.bundle.manifest.tokens), vad=vad)
                self._find_language(call)
                info = call.info
            return info.language, info.language_probability, info.all_language_probs or [(info.language, 1.0)]
        if features is None:
            raise UsageError("detect_language: expected audio or features, got neither")
        windows = list(self._feature_windows(features, language_detection_segments))
        languages = list(self.bundle.manifest.tokens.languages) or ["en"]
        if len(languages) == 1:
            return languages[0], 1.0, [(languages[0], 1.0)]
        heard = (detect_language(self.engine, self.engine.encode(mel), self.bundle.manifest.tokens) for mel in windows)
        language, probabilities = vote(heard, language_detection_threshold)
        return language, probabilities[language], list(probabilities.items())

    def align(
        self,
        audio: str | os.PathLike[str] | BinaryIO | NDArray[Any],
        text: str,
        language: str | None = None,
        *,
        prepend_punctuations: str = PREPEND_PUNCTUATIONS,
        append_punctuations: str = APPEND_PUNCTUATIONS,
    ) -> tuple[list[Segment], TranscriptionInfo]:
        """When each word of `text` is said in `audio` (as in `transcribe`; it is held in memory).

        Returns a segment with words for each line of the text, and the info. Audio longer than a window is transcribed
        first, to find which part of the text belongs where (`longform/align.py`). Raises UsageError, AudioError,
        BundleError where the bundle has no graph for word times, ResourceError, Interrupted.
        """
        from .longform.align import align_text

        samples = decode_audio(audio)
        if not len(samples):
            raise AudioError(f"array: {NO_SAMPLES}")
        asked = TranscribeOptions(
            language=language, prepend_punctuations=prepend_punctuations, append_punctuations=append_punctuations
        )
        options = for_model(asked, self.bundle.manifest.tokens)
        info = new_info(len(samples) / SAMPLE_RATE, options)
        info.language = options.language or ""
        if options.language is None:
            info.language, info.language_probability, info.all_language_probs = self.detect_language(samples)

        def transcribed() -> Iterable[Segment]:
            return WhisperModel.transcribe(self, samples, info.language, condition_on_previous_text=False)[0]

        options = replace(options, language=info.language)
        return align_text(self.engine, self.bundle, samples, text, options, transcribed), info

    @overload
    def stream(
        self, blocks: Iterable[NDArray[Any]], *, step_s: float = ..., **options: Any
    ) -> Iterator[LiveUpdate]: ...
    @overload
    def stream(self, blocks: None = ..., *, step_s: float = ..., **options: Any) -> LiveTranscriber: ...
    def stream(
        self,
        blocks: Iterable[NDArray[Any]] | None = None,
        *,
        drafter: str | Drafter | DrafterOptions | None = None,
        step_s: float = 1.0,
        vad_parameters: Mapping[str, Any] | VadOptions | None = None,
        **options: Any,
    ) -> Iterator[LiveUpdate] | LiveTranscriber:
        """Live text of `blocks`, float [n_samples] at 16 kHz: confirmed and tentative, as it becomes known.

        Without `blocks` the LiveTranscriber, whose `feed` and `finish` take them one by one. step_s: seconds between
        two looks at the audio. vad_parameters: what is silence and how much ends an utterance, see `LiveTranscriber`.
        options: fields of TranscribeOptions, and the drafter's arguments as in `transcribe`.
        Raises UsageError, ExactnessError at once.
        """
        from .longform.live import LiveTranscriber

        options["drafter"] = drafter
        chosen, asked, allow_inexact = taken(options, self.bundle.manifest.tokens)
        if options:
            raise UsageError(f"stream: {min(options)!r} is no option of it")
        made = self.drafter_for(asked, chosen, allow_inexact=allow_inexact)
        owns = made is not drafter
        with contextlib.ExitStack() as stack:
            if owns:
                stack.callback(made.close)
            vad = None if vad_parameters is None else vad_options(vad_parameters, min_silence_duration_ms=1000)
            live = LiveTranscriber(self.engine, self.bundle, chosen, made, step_s=step_s, vad=vad, owns_drafter=owns)
            stack.pop_all()
        return live if blocks is None else live.updates(blocks)

    def _feature_windows(self, features: NDArray[np.float32], n_windows: int) -> Iterator[NDArray[np.float32]]:
        """`features` window by window, the last one filled with zeros as faster-whisper does. Raises UsageError."""
        n_mels, n_frames = self.bundle.manifest.dims.n_mels, self.bundle.manifest.n_frames
        if features.ndim != 2 or features.shape[0] != n_mels or not features.shape[1]:
            raise UsageError(f"features have shape {list(features.shape)}, expected [{n_mels}, n_frames]")
        for first in range(0, min(features.shape[1], n_windows * n_frames), n_frames):
            part = features[:, first : first + n_frames].astype(np.float32)
            # A speech LLM hears all there is, and needs no silence behind it.
            n_least = MIN_FRAMES if self.bundle.manifest.kind == SPEECH else n_frames
            yield np.pad(part, ((0, 0), (0, max(n_least - part.shape[1], 0))))


@dataclass
class TranscriptionRun(Iterator[Segment]):
    """One transcription while its segments are read; `info` is kept up to date.

    The times of its segments are those of the original audio, their ids count from 0. source: the audio, None where its
    length is in `info` already; speech: the filter in front, in whose times `transcription` gives them; total_s:
    seconds spent so far; n_words: in the segments so far.
    """

    transcription: Transcription
    info: TranscriptionInfo
    _: KW_ONLY
    source: AudioStream | None
    speech: SpeechAudio | None
    total_s: float = 0.0
    n_words: int = 0

    def __next__(self) -> Segment:
        started = time.perf_counter()
        try:
            segment = next(self.transcription)
            self.n_words += len(segment.text.split())
        finally:
            self.total_s += time.perf_counter() - started
            self._update_info()
        return segment if self.speech is None else self.speech.restored(segment)

    def close(self) -> None:
        self.transcription.close()

    def _update_info(self) -> None:
        info, source, said = self.info, self.source, self.transcription
        if source is not None:
            if source.is_ended:
                info.duration = source.read_s
            info.duration_after_vad = info.duration if self.speech is None else self.speech.n_samples / SAMPLE_RATE
        info.speculation = speculation_fields(
            said.speculation,
            encoder_s=said.encoder_s,
            total_s=self.total_s,
            n_words=self.n_words,
            duration_s=info.duration,
        )
        info.audio_context = said.audio_context.fields()
        info.encoder_provider = said.encoder_provider
        info.drafter_error = said.drafter_error


def lend_drafter(
    model: WhisperModel, asked: Drafter | DrafterOptions, options: TranscribeOptions, *, allow_inexact: bool = False
) -> contextlib.AbstractContextManager[Loan]:
    """The drafter of a call on loan: the next call that asks for the same gets it, with what it learned.

    A program's own drafter stays its own. Raises as `make_drafter`.
    """
    make = functools.partial(model.drafter_for, asked, options, allow_inexact=allow_inexact)
    if not isinstance(asked, DrafterOptions):
        return contextlib.nullcontext(Loan(make()))
    besides = allow_inexact, options.accept == "residual"
    return model.kept_drafters.lend(asked, make, besides=besides)


def new_info(
    duration_s: float, options: TranscribeOptions, vad: VadOptions | None = None, drafter: Drafter | None = None
) -> TranscriptionInfo:
    """The info of a transcription whose language is still to be found."""
    return TranscriptionInfo(
        language="",
        language_probability=1.0,
        duration=duration_s,
        duration_after_vad=duration_s,
        all_language_probs=None,
        transcription_options=options,
        vad_options=vad,
        drafters=source_names(drafter),
    )


def opened(stack: contextlib.ExitStack, audio: AudioSource | AudioStream) -> AudioStream:
    """The stream of `audio`, closed by `stack` unless it is a stream already. Raises as `open_held`."""
    if isinstance(audio, AudioStream):
        return audio
    source = open_held(audio)
    stack.callback(source.close)
    return source


def progress_bar(
    stack: contextlib.ExitStack, duration_s: float | None, name: str, also: Callable[[float], None] | None
) -> Callable[[float], None]:
    """A bar on standard error that `stack` closes, as a listener; what it hears it tells `also`."""
    bar = stack.enter_context(Progress(duration_s, "s", name, every_s=_LINE_EVERY_S))

    def tell(done_s: float) -> None:
        bar.update_to(done_s)
        if also is not None:
            also(done_s)

    return tell


def _segments(
    call: TranscriptionRun, resources: contextlib.ExitStack, on_sound_end: Callable[[], None]
) -> Generator[Segment, None, None]:
    """The segments. It yields once before the first, so that `resources` are closed whatever happens.

    A caller who leaves between two segments leaves a drafter between two windows, which is as good as any.
    """
    with resources, contextlib.closing(call):
        with contextlib.suppress(GeneratorExit):
            yield _PRIMED
            for segment in call:
                yield replace(segment, id=segment.id + 1)  # faster-whisper counts from 1
        if call.transcription.drafter_error is None:
            on_sound_end()
