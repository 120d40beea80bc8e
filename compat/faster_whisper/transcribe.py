"""`faster_whisper.transcribe`: specedge's model with faster-whisper's defaults, and what programs reach into it for."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.errors import AudioError, UsageError
from specedge.runtime import batched, model
from specedge.runtime.audio.audio import NO_SAMPLES
from specedge.runtime.bundle.bundle import choose_bundle
from specedge.runtime.longform.segments import Segment, TranscriptionInfo, Word
from specedge.runtime.longform.transcribe import compression_ratio as get_compression_ratio
from specedge.runtime.longform.windows import Piece
from specedge.runtime.longform.words import last_end_s, time_words

from .audio import decode_audio, pad_or_trim
from .ct2 import Encoded, Whisper
from .feature_extractor import FeatureExtractor
from .tokenizer import _LANGUAGE_CODES, HFTokenizer, Tokenizer
from .utils import (
    available_models,
    chosen_model,
    chosen_provider,
    download_model,
    format_timestamp,
    get_end,
    get_logger,
)
from .vad import SpeechTimestampsMap, VadOptions, collect_chunks, get_speech_timestamps

__all__ = [
    "_LANGUAGE_CODES",
    "BatchedInferencePipeline",
    "FeatureExtractor",
    "Segment",
    "SpeechTimestampsMap",
    "Tokenizer",
    "TranscriptionInfo",
    "TranscriptionOptions",
    "VadOptions",
    "WhisperModel",
    "Word",
    "available_models",
    "collect_chunks",
    "decode_audio",
    "download_model",
    "format_timestamp",
    "get_compression_ratio",
    "get_ctranslate2_storage",
    "get_end",
    "get_logger",
    "get_speech_timestamps",
    "pad_or_trim",
]

BEAM_SIZE = 5
"""faster-whisper's default; drafts save most with 1."""
_FALLS_BACK = ("int8", "int8_float32", "float32")
_SILENCE = np.zeros(1, np.float32)


@dataclass
class TranscriptionOptions:
    """The options that programs hand to `generate_segment_batched`; meanings as in `WhisperModel.transcribe`."""

    beam_size: int
    best_of: int
    patience: float
    length_penalty: float
    repetition_penalty: float
    no_repeat_ngram_size: int
    log_prob_threshold: float | None
    no_speech_threshold: float | None
    compression_ratio_threshold: float | None
    condition_on_previous_text: bool
    prompt_reset_on_temperature: float
    temperatures: list[float]
    initial_prompt: str | Iterable[int] | None
    prefix: str | None
    suppress_blank: bool
    suppress_tokens: list[int] | None
    without_timestamps: bool
    max_initial_timestamp: float
    word_timestamps: bool
    prepend_punctuations: str
    append_punctuations: str
    multilingual: bool
    max_new_tokens: int | None
    clip_timestamps: str | list[float] | None
    hallucination_silence_threshold: float | None
    hotwords: str | None


class WhisperModel(model.WhisperModel):
    """A model with faster-whisper's defaults; see `specedge.WhisperModel`.

    Other than there: SPECEDGE_COMPAT_MODEL names the model to use whatever is asked for, and
    SPECEDGE_COMPAT_ENCODER_PROVIDER what its encoder runs on (`specedge.WhisperModel`); a precision that is not
    installed is replaced by the installed one, with a warning; audio without samples has no segments; options of
    CTranslate2 that need a GPU or several processes are ignored.
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
        **model_kwargs: Any,
    ) -> None:
        self.logger = get_logger()
        name = chosen_model(model_size_or_path)
        super().__init__(
            name,
            device,
            device_index,
            self._precision(name, compute_type, download_root),
            cpu_threads,
            num_workers,
            download_root,
            local_files_only,
            files,
            revision,
            use_auth_token,
            encoder_provider=chosen_provider(),
        )
        manifest = self.bundle.manifest
        self.model = Whisper(self.engine)
        self.hf_tokenizer = HFTokenizer(self.bundle.tokenizer)
        self.feat_kwargs: dict[str, Any] = {"feature_size": manifest.dims.n_mels, "chunk_length": manifest.window_s}
        self.feature_extractor = FeatureExtractor(**self.feat_kwargs)
        self.max_length = manifest.dims.n_text_ctx
        self.num_languages = self.model.num_languages
        self.input_stride, self.time_precision = 2, manifest.tokens.time_precision_s
        self.num_samples_per_token = self.feature_extractor.hop_length * self.input_stride
        self.frames_per_second = self.feature_extractor.sampling_rate // self.feature_extractor.hop_length
        self.tokens_per_second = self.feature_extractor.sampling_rate // self.num_samples_per_token

    def _precision(self, name: str | os.PathLike[str], asked: str, root: str | None) -> str:
        """`asked`, or "default" where a CPU computes with that but no bundle of this precision is installed."""
        if asked in _FALLS_BACK:
            try:
                choose_bundle(name, compute_type=asked, root=root)
            except UsageError as error:
                self.logger.warning("%s; the installed model is used", error)
                return "default"
        return asked

    def transcribe(self, audio: Any, *arguments: Any, **named: Any) -> Any:
        """As `specedge.WhisperModel.transcribe`, with faster-whisper's defaults."""
        return _transcribe(super().transcribe, self, audio, *arguments, **named)

    def encode(self, features: NDArray[Any]) -> Encoded:
        """The encoder's output for log-mels [n_windows, n_mels, n_frames], or for one without the first axis."""
        return self.model.encode(features)

    def get_prompt(
        self,
        tokenizer: Tokenizer,
        previous_tokens: Sequence[int],
        without_timestamps: bool = False,
        prefix: str | None = None,
        hotwords: str | None = None,
    ) -> list[int]:
        """The ids in front of a window's text: hotwords, earlier text, start, language and task, prefix."""
        limit = self.max_length // 2 - 1
        hot = tokenizer.encode(" " + hotwords.strip())[:limit] if hotwords and not prefix else []
        before = [*hot, *previous_tokens[-limit:]]
        after = [tokenizer.no_timestamps] if without_timestamps else []
        if prefix:
            after += [] if without_timestamps else [tokenizer.timestamp_begin]
            after += tokenizer.encode(" " + prefix.strip())[:limit]
        return [*([tokenizer.sot_prev, *before] if before else []), *tokenizer.sot_sequence, *after]

    def add_word_timestamps(
        self,
        segments: Sequence[Sequence[dict[str, Any]]],
        tokenizer: Tokenizer,
        encoder_output: Any,
        num_frames: int | Sequence[int],
        prepend_punctuations: str,
        append_punctuations: str,
        last_speech_timestamp: float,
    ) -> float:
        """Give the segments of each window their "words", and starts and ends that fit them; when speech last ended.

        num_frames: mel frames of a window that are audio; a segment has "tokens", "start", "end" and "seek".
        """
        task = "translate" if tokenizer.task is not None and tokenizer.task == tokenizer.translate else "transcribe"
        frames = repeat(num_frames) if isinstance(num_frames, int) else num_frames
        for group, features, n_frames in zip(segments, encoder_output, frames, strict=False):
            if not group:
                continue
            timed = time_words(
                self.engine,
                features,
                [Piece(start_s=item["start"], end_s=item["end"], tokens=tuple(item["tokens"])) for item in group],
                tokenizer=self.bundle.tokenizer,
                special=self.bundle.manifest.whisper_tokens,
                language=tokenizer.language_code,
                task=task,
                n_content_frames=n_frames,
                prepend_punctuations=prepend_punctuations,
                append_punctuations=append_punctuations,
                last_speech_s=last_speech_timestamp,
                time_offset_s=group[0]["seek"] / self.frames_per_second,
            )
            for item, piece in zip(group, timed, strict=True):
                item.update(start=piece.start_s, end=piece.end_s, words=[asdict(word) for word in piece.words])
            last_speech_timestamp = last_end_s(timed) or last_speech_timestamp
        return last_speech_timestamp

    def generate_segment_batched(
        self, features: NDArray[Any], tokenizer: Tokenizer, options: Any, encoder_output: Encoded | None = None
    ) -> dict[str, list[Any]]:
        """The text of each window and its average log-probability, which is what whisperX asks of a model."""
        prompt = options.initial_prompt or []
        prompt = tokenizer.encode(" " + prompt.strip()) if isinstance(prompt, str) else list(prompt)
        ids = self.get_prompt(tokenizer, prompt, options.without_timestamps, options.prefix, options.hotwords)
        encoded = self.encode(features) if encoder_output is None else encoder_output
        found = self.model.generate(
            encoded,
            [ids] * len(encoded),
            beam_size=options.beam_size,
            patience=options.patience,
            length_penalty=options.length_penalty,
            repetition_penalty=options.repetition_penalty,
            no_repeat_ngram_size=options.no_repeat_ngram_size,
            max_length=self.max_length,
            suppress_blank=options.suppress_blank,
            suppress_tokens=options.suppress_tokens,
            return_scores=True,
        )
        tokens = [result.sequences_ids[0] for result in found]
        sums = [r.scores[0] * max(1, len(t)) ** options.length_penalty for r, t in zip(found, tokens, strict=True)]
        return {
            "text": [tokenizer.decode(ids) for ids in tokens],
            "avg_logprob": [total / (len(ids) + 1) for total, ids in zip(sums, tokens, strict=True)],
        }


class BatchedInferencePipeline(batched.BatchedInferencePipeline):
    """A way of using a model for long audio with pauses; see `specedge.BatchedInferencePipeline`."""

    def transcribe(self, audio: Any, *arguments: Any, **named: Any) -> Any:
        """As there, with faster-whisper's defaults."""
        return _transcribe(super().transcribe, self, audio, *arguments, **named)


def _signature(method: Callable[..., Any]) -> inspect.Signature:
    """That of `method` with faster-whisper's beams."""
    found = inspect.signature(method)
    beams = found.parameters["beam_size"].replace(default=BEAM_SIZE)
    return found.replace(parameters=[{"beam_size": beams}.get(p.name, p) for p in found.parameters.values()])


for _kind in (WhisperModel, BatchedInferencePipeline):
    _kind.transcribe.__signature__ = _signature(_kind.__base__.transcribe)  # type: ignore[union-attr]


def _transcribe(method: Callable[..., Any], owner: Any, audio: Any, *arguments: Any, **named: Any) -> Any:
    """Call a `transcribe` of specedge. Raises TypeError for arguments that it does not have."""
    given = type(owner).transcribe.__signature__.bind(owner, audio, *arguments, **named)
    given.apply_defaults()
    options = {name: value for name, value in given.arguments.items() if name not in ("self", "audio")}
    if isinstance(options["vad_parameters"], VadOptions):
        options["vad_parameters"] = asdict(options["vad_parameters"])
    if options["chunk_length"] is not None:
        used = owner if isinstance(owner, WhisperModel) else owner.model
        options["chunk_length"] = min(options["chunk_length"], used.bundle.manifest.window_s)
    if isinstance(audio, np.ndarray) and not audio.size:
        audio = _SILENCE
    try:
        return method(audio, **options)
    except AudioError as error:
        if not str(error).endswith(NO_SAMPLES):
            raise
        return method(_SILENCE, **options)


def get_ctranslate2_storage(segment: NDArray[Any]) -> NDArray[Any]:
    """`segment` as `WhisperModel.model` takes it: as it is."""
    return segment
