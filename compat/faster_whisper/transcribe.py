"""`faster_whisper.transcribe`: specedge's model with faster-whisper's defaults, and what programs reach into it for."""

from __future__ import annotations

import functools
import inspect
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, make_dataclass
from itertools import accumulate, repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.errors import AudioError, UsageError
from specedge.runtime import batched, model
from specedge.runtime.audio.audio import NO_SAMPLES
from specedge.runtime.bundle.bundle import choose_bundle
from specedge.runtime.longform.segments import Segment, TranscriptionInfo, Word
from specedge.runtime.longform.transcribe import compression_ratio as get_compression_ratio
from specedge.runtime.longform.vad_filter import SpeechMap
from specedge.runtime.longform.windows import Piece, cut_window
from specedge.runtime.longform.words import last_end_s, time_words
from specedge.runtime.options import AUTO_PROVIDER, TranscribeOptions
from specedge.runtime.text.words import WordTokens
from specedge.runtime.text.words import merge_punctuations as _merge_punctuations

from .audio import decode_audio, pad_or_trim
from .ct2 import Encoded, GenerationResult, Whisper
from .feature_extractor import FeatureExtractor
from .tokenizer import _LANGUAGE_CODES, HFTokenizer, Tokenizer
from .utils import (
    PROVIDER_VARIABLE,
    available_models,
    chosen_model,
    download_model,
    format_timestamp,
    get_end,
    get_logger,
    installed_model,
)
from .vad import SpeechTimestampsMap, VadOptions, collect_chunks, get_speech_timestamps

__all__ = [
    "_LANGUAGE_CODES", "BatchedInferencePipeline", "FeatureExtractor", "Segment", "SpeechTimestampsMap", "Tokenizer",
    "TranscriptionInfo", "TranscriptionOptions", "VadOptions", "WhisperModel", "Word", "available_models",
    "collect_chunks", "decode_audio", "download_model", "format_timestamp", "get_compression_ratio",
    "get_ctranslate2_storage", "get_end", "get_logger", "get_speech_timestamps", "get_suppressed_tokens",
    "merge_punctuations", "pad_or_trim", "restore_speech_timestamps",
]  # fmt: skip

BEAM_SIZE = 5
"""faster-whisper's default; drafts save most with 1."""
_FALLS_BACK = ("int8", "int8_float32", "float32")  # where no bundle has it
_ON_CPU = ("default", "auto", "int4", *_FALLS_BACK)
_SILENCE = np.zeros(1, np.float32)


_OPTIONS = """
beam_size best_of patience length_penalty repetition_penalty no_repeat_ngram_size log_prob_threshold
no_speech_threshold compression_ratio_threshold condition_on_previous_text prompt_reset_on_temperature temperatures
initial_prompt prefix suppress_blank suppress_tokens without_timestamps max_initial_timestamp word_timestamps
prepend_punctuations append_punctuations multilingual max_new_tokens clip_timestamps hallucination_silence_threshold
hotwords
"""
TranscriptionOptions: Any = make_dataclass("TranscriptionOptions", _OPTIONS.split())
"""The options that programs hand to `generate_segment_batched`; meanings as in `WhisperModel.transcribe`."""


class WhisperModel(model.WhisperModel):
    """A model with faster-whisper's defaults; see `specedge.WhisperModel`.

    Other than there: SPECEDGE_COMPAT_MODEL names the model to use whatever is asked for, and
    SPECEDGE_COMPAT_ENCODER_PROVIDER what its encoder runs on (`specedge.WhisperModel`); a model that is not installed
    is fetched, a folder of another format converted, once; devices and precisions that are not here are replaced by
    the CPU and the installed precision, with a warning; audio without samples has no segments.
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
        if device not in ("cpu", "auto") or compute_type not in _ON_CPU:
            asked = f"device={device!r}, compute_type={compute_type!r}"
            self.logger.warning("%s: specedge runs on the CPU, with the installed precision", asked)
            device_index = 0
            compute_type = compute_type if compute_type in _ON_CPU else "default"
        name = chosen_model(model_size_or_path)
        name = installed_model(name, download_root, revision, fetches=not local_files_only)
        if compute_type in _FALLS_BACK:
            try:
                choose_bundle(name, compute_type=compute_type, root=download_root)
            except UsageError as error:
                self.logger.warning("%s; the installed model is used", error)
                compute_type = "default"
        super().__init__(
            name,
            device_index=device_index,
            compute_type=compute_type,
            cpu_threads=cpu_threads,
            num_workers=num_workers,
            download_root=download_root,
            files=files,
            revision=revision,
            encoder_provider=os.environ.get(PROVIDER_VARIABLE) or AUTO_PROVIDER,
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

    def transcribe(self, audio: Any, *_: Any, **options: Any) -> Any:
        """As `specedge.WhisperModel.transcribe`, with faster-whisper's defaults."""
        return _transcribe(super().transcribe, self, audio, options)

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
        options = TranscribeOptions(
            task="translate" if tokenizer.task is not None and tokenizer.task == tokenizer.translate else "transcribe",
            prepend_punctuations=prepend_punctuations,
            append_punctuations=append_punctuations,
        )
        frames = repeat(num_frames) if isinstance(num_frames, int) else num_frames
        for group, features, n_frames in zip(segments, encoder_output, frames, strict=False):
            if not group:
                continue
            timed = time_words(
                self.engine,
                features,
                [Piece(start_s=item["start"], end_s=item["end"], tokens=tuple(item["tokens"])) for item in group],
                tokenizer=self.bundle.tokenizer,
                options=options,
                language=tokenizer.language_code,
                n_content_frames=n_frames,
                last_speech_s=last_speech_timestamp,
                time_offset_s=group[0]["seek"] / self.frames_per_second,
            )
            for item, piece in zip(group, timed, strict=True):
                item.update(start=piece.start_s, end=piece.end_s, words=[asdict(word) for word in piece.words])
            last_speech_timestamp = last_end_s(timed) or last_speech_timestamp
        return last_speech_timestamp

    def find_alignment(
        self,
        tokenizer: Tokenizer,
        text_tokens: Sequence[Sequence[int]],
        encoder_output: Any,
        num_frames: int | Sequence[int],
        median_filter_width: int = 7,
    ) -> list[list[dict[str, Any]]]:
        """The words of each text with "word", "tokens", "start", "end" (seconds of its window) and "probability"."""
        found = self.model.align(
            encoder_output, tokenizer.sot_sequence, text_tokens, num_frames, median_filter_width=median_filter_width
        )
        texts = []
        for one, ids in zip(found, text_tokens, strict=True):
            words, tokens = tokenizer.split_to_word_tokens(list(ids))
            first_step = {token: step for token, step in reversed(one.alignments)}
            bounds = [0, *accumulate(map(len, tokens))]
            times = [first_step[bound] / self.tokens_per_second for bound in bounds]
            texts.append(
                [
                    {
                        "word": word,
                        "tokens": part,
                        "start": times[i],
                        "end": times[i + 1],
                        "probability": float(np.mean(one.text_token_probs[bounds[i] : bounds[i + 1]])),
                    }
                    for i, (word, part) in enumerate(zip(words, tokens, strict=True))
                ]
            )
        return texts

    def generate_with_fallback(
        self, encoder_output: Any, prompt: list[int], tokenizer: Tokenizer, options: Any
    ) -> tuple[GenerationResult, float, float, float]:
        """The text of one window, its average log-probability, the last temperature tried and its compression ratio."""
        tried: list[tuple[GenerationResult, float, float, float]] = []
        most, least = options.compression_ratio_threshold, options.log_prob_threshold
        for temperature in options.temperatures:
            (result,) = self._generated(encoder_output, [prompt], options, temperature)
            ids = result.sequences_ids[0]
            average, ratio = _average(result, options), get_compression_ratio(tokenizer.decode(ids).strip())
            tried.append((result, average, temperature, ratio))
            is_unsure = least is not None and average < least
            silence = options.no_speech_threshold
            if is_unsure and silence is not None and result.no_speech_prob > silence:
                return tried[-1]
            if not is_unsure and (most is None or ratio <= most):
                return tried[-1]
        best = max([one for one in tried if most is not None and one[3] <= most] or tried, key=lambda one: one[1])
        return best[0], best[1], tried[-1][2], best[3]

    def _generated(
        self, encoded: Any, prompts: Sequence[list[int]], options: Any, temperature: float
    ) -> list[GenerationResult]:
        """The texts of windows behind their prompts. Raises ValueError where they cannot be so long."""
        n_prompt = max(map(len, prompts))
        limit = self.max_length if options.max_new_tokens is None else n_prompt + options.max_new_tokens
        if limit > self.max_length:
            raise ValueError(
                f"{n_prompt} tokens of prompt and max_new_tokens={options.max_new_tokens} are over {self.max_length}"
            )
        asked = _search(options)
        if temperature > 0:
            asked |= {"beam_size": 1, "patience": 1, "num_hypotheses": options.best_of, "sampling_topk": 0}
        return self.model.generate(
            encoded,
            prompts,
            max_length=limit,
            max_initial_timestamp_index=round(options.max_initial_timestamp / self.time_precision),
            return_no_speech_prob=True,
            sampling_temperature=temperature,
            **asked,
        )

    def generate_segments(
        self,
        features: NDArray[Any],
        tokenizer: Tokenizer,
        options: Any,
        log_progress: bool,
        encoder_output: Any = None,
    ) -> Iterable[Segment]:
        """The segments of log-mel [n_mels, n_frames], window by window; all of it, whatever `clip_timestamps` says."""
        n_frames, step, number, seek = features.shape[-1] - 1, self.feature_extractor.nb_max_frames, 0, 0
        given = options.initial_prompt or []
        before = tokenizer.encode(" " + given.strip()) if isinstance(given, str) else list(given)
        ended_s = 0.0
        while seek < n_frames:
            size = min(step, n_frames - seek)
            mel = features[:, seek : seek + size]
            encoded = self.encode(mel) if encoder_output is None or seek else encoder_output
            prefix = None if seek else options.prefix
            prompt = self.get_prompt(tokenizer, before, options.without_timestamps, prefix, options.hotwords)
            result, average, temperature, ratio = self.generate_with_fallback(encoded, prompt, tokenizer, options)
            silence, least = options.no_speech_threshold, options.log_prob_threshold
            is_silent = silence is not None and result.no_speech_prob > silence
            if is_silent and not (least is not None and average > least):
                seek += size
                continue
            ids = result.sequences_ids[0]
            items, n_advance = self._cut(ids, size, seek)
            if options.word_timestamps:
                marks = options.prepend_punctuations, options.append_punctuations
                ended_s = self.add_word_timestamps([items], tokenizer, encoded, size, *marks, ended_s)
            for item in items:
                words = [Word(**word) for word in item["words"]] if options.word_timestamps else None
                text = tokenizer.decode(item["tokens"])
                yield Segment(
                    number, seek, item["start"], item["end"], text, item["tokens"], average, ratio,
                    result.no_speech_prob, words, temperature,
                )  # fmt: skip
                number += 1
            before = [*before, *ids]
            if not options.condition_on_previous_text or temperature > options.prompt_reset_on_temperature:
                before = []
            seek += n_advance

    def _cut(self, ids: Sequence[int], n_frames: int, seek: int) -> tuple[list[dict[str, Any]], int]:
        """The segments of a window's text with "seek", "start", "end" and "tokens", and how many frames are done."""
        special = self.bundle.manifest.whisper_tokens
        cut = cut_window(ids, n_frames, special, time_offset_s=seek / self.frames_per_second)
        items = [
            {"seek": seek, "start": piece.start_s, "end": piece.end_s, "tokens": list(piece.tokens)}
            for piece in cut.pieces
        ]
        return items, cut.n_advance

    def generate_segment_batched(
        self, features: NDArray[Any], tokenizer: Tokenizer, options: Any, encoder_output: Encoded | None = None
    ) -> dict[str, list[Any]]:
        """The text of each window and its average log-probability, which is what whisperX asks of a model."""
        prompt = options.initial_prompt or []
        prompt = tokenizer.encode(" " + prompt.strip()) if isinstance(prompt, str) else list(prompt)
        ids = self.get_prompt(tokenizer, prompt, options.without_timestamps, options.prefix, options.hotwords)
        encoded = self.encode(features) if encoder_output is None else encoder_output
        found = self.model.generate(encoded, [ids] * len(encoded), max_length=self.max_length, **_search(options))
        return {
            "text": [tokenizer.decode(result.sequences_ids[0]) for result in found],
            "avg_logprob": [_average(result, options) for result in found],
        }


_SEARCH = (
    *("beam_size", "patience", "length_penalty", "repetition_penalty", "no_repeat_ngram_size"),
    *("suppress_blank", "suppress_tokens"),
)


def _search(options: Any) -> dict[str, Any]:
    """The arguments of `Whisper.generate` that have the names of options."""
    return {name: getattr(options, name) for name in _SEARCH} | {"return_scores": True}


def _average(result: GenerationResult, options: Any) -> float:
    """The average log-probability of a text's tokens, its end included."""
    n_ids = len(result.sequences_ids[0])
    return float(result.scores[0] * max(1, n_ids) ** options.length_penalty / (n_ids + 1))


class BatchedInferencePipeline(batched.BatchedInferencePipeline):
    """A way of using a model for long audio with pauses; see `specedge.BatchedInferencePipeline`."""

    model: WhisperModel
    last_speech_timestamp = 0.0

    def forward(
        self,
        features: NDArray[Any],
        tokenizer: Tokenizer,
        chunks_metadata: Sequence[Mapping[str, Any]],
        options: Any,
    ) -> list[list[dict[str, Any]]]:
        """The segments of each window of log-mels [n_windows, n_mels, n_frames], a chunk with "offset", "duration"."""
        encoded, outputs = self.generate_segment_batched(features, tokenizer, options)
        per_s = self.model.frames_per_second
        sizes = [math.ceil(chunk["duration"]) * per_s for chunk in chunks_metadata]
        windows = []
        for chunk, size, output in zip(chunks_metadata, sizes, outputs, strict=True):
            items, _ = self.model._cut(output["tokens"], size, round(chunk["offset"] * per_s))
            for item in items:
                text = tokenizer.decode(item["tokens"])
                about = {"avg_logprob": output["avg_logprob"], "no_speech_prob": output["no_speech_prob"]}
                item.update(about, text=text, compression_ratio=get_compression_ratio(text))
            windows.append(items)
        if options.word_timestamps:
            marks = options.prepend_punctuations, options.append_punctuations
            self.last_speech_timestamp = self.model.add_word_timestamps(
                windows, tokenizer, encoded, sizes, *marks, self.last_speech_timestamp
            )
        return windows

    def generate_segment_batched(
        self, features: NDArray[Any], tokenizer: Tokenizer, options: Any
    ) -> tuple[Encoded, list[dict[str, Any]]]:
        """The features of each window, and of each its text's "tokens", "avg_logprob" and "no_speech_prob"."""
        given = options.initial_prompt or []
        before = tokenizer.encode(given) if isinstance(given, str) else list(given)
        prompt = self.model.get_prompt(tokenizer, before, options.without_timestamps, hotwords=options.hotwords)
        encoded = self.model.encode(features)
        prompts = [list(prompt) for _ in encoded]
        if options.multilingual and tokenizer.language is not None:
            for one, languages in zip(prompts, self.model.model.detect_language(encoded), strict=True):
                one[prompt.index(tokenizer.language)] = tokenizer.tokenizer.token_to_id(languages[0][0]) or 0
        found = self.model._generated(encoded, prompts, options, options.temperatures[0])
        outputs = [
            {
                "tokens": one.sequences_ids[0],
                "avg_logprob": _average(one, options),
                "no_speech_prob": one.no_speech_prob,
            }
            for one in found
        ]
        return encoded, outputs

    def transcribe(self, audio: Any, *_: Any, **options: Any) -> Any:
        """As there, with faster-whisper's defaults."""
        return _transcribe(super().transcribe, self, audio, options)


def _with_arguments(method: Callable[..., Any], base: Callable[..., Any]) -> Callable[..., Any]:
    """`method` with the arguments of `base`, but faster-whisper's beams and whole windows.

    They are in its code, too: faster-whisper's own tests look for them there.
    """
    own, signature = {"beam_size": BEAM_SIZE, "audio_context": "full"}, inspect.signature(base)
    parameters = [one.replace(default=own.get(one.name, one.default)) for one in signature.parameters.values()]
    bare = [one.replace(annotation=one.empty) for one in parameters]
    given = ", ".join(f"{one.name}={one.name}" for one in parameters[1:])
    scope: dict[str, Any] = {"method": method}
    exec(f"def transcribe{inspect.Signature(bare)}: return method(self, {given})", scope)
    made: Callable[..., Any] = functools.update_wrapper(scope["transcribe"], method)
    made.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return made


for _kind in (WhisperModel, BatchedInferencePipeline):
    _kind.transcribe = _with_arguments(_kind.transcribe, _kind.__base__.transcribe)  # type: ignore


def _transcribe(method: Callable[..., Any], owner: Any, audio: Any, options: dict[str, Any]) -> Any:
    """Call a `transcribe` of specedge with all of its options."""
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


def restore_speech_timestamps(
    segments: Iterable[Segment], speech_chunks: Sequence[Mapping[str, int]], sampling_rate: int
) -> Iterable[Segment]:
    """The segments of the joined speech of chunks with the times of the audio, which has 16 kHz."""
    times = SpeechMap.of((chunk["start"], chunk["end"]) for chunk in speech_chunks)
    yield from map(times.restored, segments)


def get_suppressed_tokens(tokenizer: Tokenizer, suppress_tokens: Sequence[int] | None) -> tuple[int, ...]:
    """The ids that are never written: those given, -1 for signs that nobody speaks, and special ones."""
    given = set(suppress_tokens or ())
    if -1 in given:
        given = {id_ for id_ in given if id_ >= 0} | set(tokenizer.non_speech_tokens)
    ids = {tokenizer.transcribe, tokenizer.translate, tokenizer.sot, tokenizer.no_speech}
    ids |= {tokenizer.sot_prev, tokenizer.sot_lm, *given}
    return tuple(sorted(id_ for id_ in ids if id_ is not None))


def merge_punctuations(alignment: list[dict[str, Any]], prepended: str, appended: str) -> None:
    """Join marks of `prepended` with the word behind them and of `appended` with the one before; empty words stay."""
    words = [WordTokens(text=word["word"], ids=word["tokens"]) for word in alignment]
    _merge_punctuations(words, prepended, appended)
    for word, merged in zip(alignment, words, strict=True):
        word.update(word=merged.text, tokens=merged.ids)


def get_ctranslate2_storage(segment: NDArray[Any]) -> NDArray[Any]:
    """`segment` as `WhisperModel.model` takes it: as it is."""
    return segment
