"""From faster-whisper's arguments, as programs pass them, to the options of a transcription.

Lists become tuples, "0,5.5" becomes times, a dict becomes VadOptions, and what an English-only model cannot do is left
out with a warning, as faster-whisper does. Anything else that cannot be is one UsageError, when the call is made.
Does not know: audio, engines, how options are used.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from types import EllipsisType
from typing import Any

from specedge.runtime.errors import UsageError
from specedge.runtime.longform.options import TranscribeOptions
from specedge.runtime.speech.vad_spans import VadOptions
from specedge.runtime.text.languages import find_language
from specedge.runtime.text.special import SpecialTokens

__all__ = ["for_model", "transcribe_options", "vad_options"]

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
