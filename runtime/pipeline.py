"""`specedge.pipeline`: the call of Hugging Face's `transformers.pipeline("automatic-speech-recognition")`.

A thin layer over `WhisperModel`, or over `BatchedInferencePipeline` with batches or shorter pieces. The shapes of
inputs and results are those of transformers; the text is specedge's, with Whisper's fallbacks.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from specedge.errors import UsageError
from specedge.export.default_model import default_model

from .audio.audio import SAMPLE_RATE
from .audio.media import resampled
from .batched import BatchedInferencePipeline
from .longform.segments import Segment
from .model import WhisperModel

__all__ = ["SpeechRecognition", "pipeline"]

_TASK = "automatic-speech-recognition"
_RATES_HZ = (1000, 768_000)
# What transformers' `generate` calls an option, and what `WhisperModel.transcribe` does.
_GENERATE = {
    "language": "language",
    "task": "task",
    "num_beams": "beam_size",
    "temperature": "temperature",
    "max_new_tokens": "max_new_tokens",
    "compression_ratio_threshold": "compression_ratio_threshold",
    "logprob_threshold": "log_prob_threshold",
    "no_speech_threshold": "no_speech_threshold",
    "condition_on_prev_tokens": "condition_on_previous_text",
}


def pipeline(
    task: str = _TASK,
    model: str | os.PathLike[str] | WhisperModel | None = None,
    *,
    device: str | int | None = None,
    batch_size: int = 1,
    chunk_length_s: float = 0,
    return_timestamps: bool | Literal["word"] = False,
    generate_kwargs: Mapping[str, Any] | None = None,
) -> SpeechRecognition:
    """A speech recognition to call, as `transformers.pipeline` makes one.

    model: an installed model, the folder of a bundle, or a loaded one; None is the default (export/default_model.py).
    device: "cpu", -1 or None. The others are defaults of `SpeechRecognition.__call__`. Raises UsageError, ModelError.
    """
    if task != _TASK:
        raise UsageError(f"task: got {task!r}, expected {_TASK!r}: specedge does speech recognition alone")
    if device not in (None, -1, "cpu"):
        raise UsageError(f"device: got {device!r}, expected 'cpu' or -1; specedge runs on the CPU alone")
    if not isinstance(model, WhisperModel):
        model = WhisperModel(default_model(quiet=True) if model is None else model)
    return SpeechRecognition(
        model,
        batch_size=batch_size,
        chunk_length_s=chunk_length_s,
        return_timestamps=return_timestamps,
        generate_kwargs=generate_kwargs,
    )


class SpeechRecognition:
    """Calls `model` with transformers' inputs and results; see `pipeline`, which makes one."""

    def __init__(self, model: WhisperModel, **defaults: Any) -> None:
        self.model = model
        self._defaults = defaults

    def __call__(
        self,
        inputs: Any,
        *,
        batch_size: int | None = None,
        chunk_length_s: float | None = None,
        return_timestamps: bool | Literal["word"] | None = None,
        generate_kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Transcribe `inputs`: {"text": ...}, and with `return_timestamps` {"text", "chunks": [{"timestamp", "text"}]}.

        inputs: a path, the bytes of a file, samples float or int16 [n_samples] at 16 kHz, a dict {"raw" or "array":
        samples, "sampling_rate": Hz}, or a list of these, which gives a list. return_timestamps: True gives segments,
        "word" words, each with its (start, end) in seconds. batch_size above 1: pieces of one recording, cut at
        pauses, are decoded together. chunk_length_s: the longest piece, seconds; 0 decodes by windows. generate_kwargs:
        language, task, num_beams, temperature (one, or several to fall back to), max_new_tokens, the thresholds
        compression_ratio_threshold, logprob_threshold and no_speech_threshold, and condition_on_prev_tokens.

        An argument left out is the one that the pipeline was made with. Raises UsageError, AudioError.
        """
        given = {
            "batch_size": batch_size,
            "chunk_length_s": chunk_length_s,
            "return_timestamps": return_timestamps,
            "generate_kwargs": generate_kwargs,
        }
        asked = {**self._defaults, **{name: value for name, value in given.items() if value is not None}}
        stamps = asked["return_timestamps"]
        if stamps not in (False, True, "word"):
            raise UsageError(f"return_timestamps: got {stamps!r}, expected True, False or 'word'")
        options = _options(asked["generate_kwargs"])
        if isinstance(inputs, (list, tuple)):
            return [self._one(each, asked, options) for each in inputs]
        return self._one(inputs, asked, options)

    def _one(self, audio: Any, asked: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
        stamps = asked["return_timestamps"]
        source, of_words = _source(audio), stamps == "word"
        if asked["batch_size"] != 1 or asked["chunk_length_s"]:
            segments, _ = BatchedInferencePipeline(self.model).transcribe(
                source,
                batch_size=asked["batch_size"],
                chunk_length=asked["chunk_length_s"] or None,
                without_timestamps=not stamps,
                word_timestamps=of_words,
                **options,
            )
        else:
            segments, _ = self.model.transcribe(source, word_timestamps=of_words, **options)
        said = list(segments)
        text = {"text": "".join(segment.text for segment in said)}
        return {**text, "chunks": _chunks(said, of_words=of_words)} if stamps else text


def _options(generate_kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    given = dict(generate_kwargs or {})
    unknown = sorted(set(given) - set(_GENERATE), key=str)
    if unknown:
        raise UsageError(f"generate_kwargs: {unknown[0]!r} is none of {', '.join(_GENERATE)}")
    return {_GENERATE[name]: value for name, value in given.items()}


def _chunks(segments: Sequence[Segment], *, of_words: bool) -> list[dict[str, Any]]:
    if of_words:
        words = [word for segment in segments for word in segment.words or ()]
        return [{"text": word.word, "timestamp": (word.start, word.end)} for word in words]
    return [{"text": segment.text, "timestamp": (segment.start, segment.end)} for segment in segments]


def _source(audio: Any) -> Any:
    """What `WhisperModel.transcribe` takes. Raises UsageError for a dict without samples or their rate."""
    if isinstance(audio, (bytes, bytearray)):
        return io.BytesIO(audio)
    if not isinstance(audio, Mapping):
        return audio
    samples = audio.get("raw", audio.get("array"))
    rate_hz = audio.get("sampling_rate")
    if samples is None or rate_hz is None:
        keys = ", ".join(map(repr, audio)) or "no keys"
        raise UsageError(f"audio: a dict with {keys}; expected 'raw' or 'array', and 'sampling_rate'")
    lowest, highest = _RATES_HZ
    if isinstance(rate_hz, bool) or not isinstance(rate_hz, (int, np.integer)) or not lowest <= rate_hz <= highest:
        raise UsageError(f"sampling_rate: got {rate_hz!r}, expected {lowest} to {highest} Hz, a whole number")
    return _at_16_khz(np.asarray(samples), int(rate_hz))


def _at_16_khz(samples: NDArray[Any], rate_hz: int) -> NDArray[Any]:
    # What is no mono audio is refused when it is opened.
    if rate_hz == SAMPLE_RATE or samples.ndim != 1 or samples.dtype.kind not in "fi" or not len(samples):
        return samples
    return resampled(samples if samples.dtype == np.int16 else samples.astype(np.float32), rate_hz, SAMPLE_RATE)
