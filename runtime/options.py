"""The options of a transcription and of its drafter, for programs and the command.

Names are faster-whisper's, meanings and defaults openai-whisper's. Both classes check their values once, when they are
made, and raise UsageError with the field's name first. What depends on the model (its languages, tasks, alignment
heads) is checked where the model is.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

from specedge.errors import UsageError

__all__ = [
    "APPEND_PUNCTUATIONS",
    "BLOCK_KIND",
    "BLOCK_KV_GRAPH",
    "CPU",
    "DRAFTERS",
    "DrafterOptions",
    "ENCODER_PROVIDERS",
    "FALLBACK_TEMPERATURES",
    "HAS_MODEL",
    "HEAD_GRAPHS",
    "HEAD_KINDS",
    "MAP_PRESETS",
    "PREPEND_PUNCTUATIONS",
    "READS_MAPS",
    "TRANSLATIONS",
    "TranscribeOptions",
    "check_together",
    "drafter_named",
]

BLOCK_KIND = "medusa-block"
BLOCK_KV_GRAPH = "medusa-block-kv"  # cross-attention keys and values of medusa-block
HEAD_KINDS = ("medusa-linear", BLOCK_KIND, "mtp-latent", "mtp-projection")
"""Kinds of heads. The drafter and the bundle's graph of a kind have its name."""
HEAD_GRAPHS = (*HEAD_KINDS, BLOCK_KV_GRAPH)

CPU = "cpu"
ENCODER_PROVIDERS = (CPU, "openvino", "openvino-ep", "webgpu", "qnn", "coreml")
"""What an encoder can run on (engine/providers.py)."""

FALLBACK_TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
PREPEND_PUNCTUATIONS = "\"'“¿([{-"
APPEND_PUNCTUATIONS = "\"'.。,，!！?？:：”)]}、"
MAX_BEAMS = 64  # each has a cache of its own for keys and values
_MAX_PATIENCE = 1000.0  # more than a window has tokens
_PENALTIES = (0.001, 1000.0)  # beyond, logits leave what float32 can hold
_MAX_TIME_S = 1e9  # thirty years
_TASKS = ("transcribe", "translate")
_RULES = ("openai", "hf")
_WINDOW_ENDS = ("full", "pause", None)


@dataclass(frozen=True, kw_only=True)
class TranscribeOptions:
    """What to do with the audio.

    language
        code or name; None detects it.
    temperature
        tried one after another until a window's text passes the tests of compression ratio and log-probability; above
        0 tokens are sampled, with noise keyed by `seed`, so that a run is repeatable and no drafter changes it.
    beam_size, best_of, patience, length_penalty
        beams at temperature 0 (1 is greedy, where a drafter saves most), samples above 0, at most 64 of either.
    length_decay
        (start, factor): behind `start` tokens the end grows likelier with each (`rules.hasten_end`); transformers'
        exponential_decay_length_penalty.
    compression_ratio_threshold, log_prob_threshold, no_speech_threshold
        the tests of a window's text; None switches a test off.
    initial_prompt, prefix, hotwords
        text or token ids before the first window; text that the first window begins with; text before every window.
    carry_initial_prompt
        keep `initial_prompt` before every window, as openai-whisper's option of that name.
    suppress_tokens
        ids never written; -1 stands for the model's own list of non-speech symbols; None or () suppresses none.
    max_initial_timestamp
        the latest start of a window's first segment, seconds; None: any. Left at 1.0, a checkpoint whose own limit is
        later has that.
    clip_timestamps
        (start, end, start, end, ...) in seconds; the last end may be left out.
    word_timestamps, prepend_punctuations, append_punctuations
        time every word (the bundle needs the graph for it); marks that belong to the word after or before them.
    hallucination_silence_threshold
        with word times, skip silences longer than this many seconds around text that looks invented.
    language_detection_segments, language_detection_threshold
        how many windows to look at until one language is at least this likely.
    rules
        "openai": openai-whisper's long form; "hf": transformers' generate.
    accept
        which drafts are kept: "exact", or one of the rules that may change the text: "typical", "top-M" (among the M
        likeliest), or how sure the drafter must be, from 0 to 1, where the model is not asked (`accept`). "residual"
        is speculative sampling, for temperatures above 0 and the drafter "draft": the text has the distribution of
        plain sampling, but it is another sample.
    seed
        key of the sampling noise.
    audio_context
        how much of a window is encoded: "full", "auto" (what holds audio), or at least so many seconds; None: what the
        model was trained for (`audio_context`). Marked in results where it was trained for another.
    window_end
        "full": a window is as long as the model takes; "pause": in audio longer than that, it ends with the first pause
        that does not come at once (`pauses`), not with `rules` "hf". None: "pause" for a checkpoint that was trained
        with short windows and whose own limit of the first timestamp is later than a second.
    draft_sources
        keep who drafted each token, in segments.DraftedSegment.

    Raises UsageError for values that cannot be.
    """

    language: str | None = None
    task: str = "transcribe"
    temperature: tuple[float, ...] = FALLBACK_TEMPERATURES
    beam_size: int = 1
    best_of: int = 5
    patience: float = 1.0
    length_penalty: float | None = None
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    length_decay: tuple[float, float] | None = None
    compression_ratio_threshold: float | None = 2.4
    log_prob_threshold: float | None = -1.0
    no_speech_threshold: float | None = 0.6
    condition_on_previous_text: bool = True
    prompt_reset_on_temperature: float = 0.5
    initial_prompt: str | tuple[int, ...] | None = None
    carry_initial_prompt: bool = False
    prefix: str | None = None
    hotwords: str | None = None
    suppress_blank: bool = True
    suppress_tokens: tuple[int, ...] | None = (-1,)
    without_timestamps: bool = False
    max_initial_timestamp: float | None = 1.0
    max_new_tokens: int | None = None
    word_timestamps: bool = False
    prepend_punctuations: str = PREPEND_PUNCTUATIONS
    append_punctuations: str = APPEND_PUNCTUATIONS
    hallucination_silence_threshold: float | None = None
    clip_timestamps: tuple[float, ...] = (0.0,)
    multilingual: bool = False
    language_detection_segments: int = 1
    language_detection_threshold: float | None = 0.5
    rules: Literal["openai", "hf"] = "openai"
    accept: str = "exact"
    seed: int = 0
    audio_context: str | float | None = None
    window_end: Literal["full", "pause"] | None = None
    draft_sources: bool = False

    def __post_init__(self) -> None:
        for name, is_right, expected in (
            ("task", self.task in _TASKS, "transcribe or translate"),
            ("rules", self.rules in _RULES, "openai or hf"),
            ("temperature", _all_at_least(self.temperature, 0), "one or more numbers, 0 or more"),
            ("beam_size", 1 <= self.beam_size <= MAX_BEAMS, f"1 to {MAX_BEAMS}"),
            ("accept", _is_rule(self.accept), "exact, typical, residual, top-M such as top-3, or a number from 0 to 1"),
            ("beam_size", self.beam_size == 1 or _goes_with_beams(self.accept), "1 where accept is typical or top-M"),
            ("best_of", 1 <= self.best_of <= MAX_BEAMS, f"1 to {MAX_BEAMS}"),
            ("patience", 0 < self.patience <= _MAX_PATIENCE, f"a number above 0, at most {_MAX_PATIENCE:g}"),
            ("length_penalty", self.length_penalty is None or 0 <= self.length_penalty <= 1, "0 to 1, or None"),
            (
                "repetition_penalty",
                _PENALTIES[0] <= self.repetition_penalty <= _PENALTIES[1],
                "a number from {:g} to {:g}".format(*_PENALTIES),
            ),
            ("no_repeat_ngram_size", self.no_repeat_ngram_size >= 0, "0 or more"),
            ("length_decay", _is_decay(self.length_decay), "a number of tokens and a factor above 0, or None"),
            ("max_new_tokens", self.max_new_tokens is None or self.max_new_tokens >= 1, "1 or more, or None"),
            (
                "max_initial_timestamp",
                self.max_initial_timestamp is None or 0 <= self.max_initial_timestamp <= _MAX_TIME_S,
                f"0 to {_MAX_TIME_S:g} seconds, or None",
            ),
            ("prepend_punctuations", isinstance(self.prepend_punctuations, str), "a text of punctuation marks"),
            ("append_punctuations", isinstance(self.append_punctuations, str), "a text of punctuation marks"),
            (
                "clip_timestamps",
                _is_clips(self.clip_timestamps),
                f"times in seconds that never decrease, at most {_MAX_TIME_S:g}",
            ),
            ("audio_context", _is_audio_context(self.audio_context), "auto, full, or seconds above 0"),
            ("window_end", self.window_end in _WINDOW_ENDS, "full, pause, or None"),
            ("window_end", self.window_end != "pause" or self.rules != "hf", "full where rules is hf"),
            ("language_detection_segments", self.language_detection_segments >= 1, "1 or more"),
        ):
            if not is_right:
                raise UsageError(f"{name}: got {getattr(self, name)!r}, expected {expected}")
        if self.accept == "residual" and min(self.temperature) <= 0:
            raise UsageError(
                f"accept: residual draws tokens, so temperatures must be above 0 (--temperature 0.7), got "
                f"{', '.join(f'{value:g}' for value in self.temperature)}; or use exact"
            )


def _goes_with_beams(accept: str) -> bool:
    """Whether a rule leaves beams as they are, or believes heads in them."""
    return not accept.startswith(("typical", "top-"))


def _is_above(value: float, limit: float) -> bool:
    return math.isfinite(value) and value > limit


def _all_at_least(values: tuple[float, ...], limit: float) -> bool:
    return bool(values) and all(math.isfinite(value) and value >= limit for value in values)


def _is_rule(name: str) -> bool:
    return re.fullmatch(r"exact|typical|residual|top-[1-9]\d{0,5}|0(\.\d+)?|1(\.0+)?|\.\d+", name) is not None


def _is_decay(value: tuple[float, ...] | None) -> bool:
    return value is None or (len(value) == 2 and value[0] >= 0 and value[0] == int(value[0]) and _is_above(value[1], 0))


def _is_audio_context(value: str | float | None) -> bool:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _is_above(value, 0)
    return value in ("auto", "full", None)


def _is_clips(values: tuple[float, ...]) -> bool:
    return all(0 <= value <= _MAX_TIME_S for value in values) and list(values) == sorted(values)


DRAFTERS = ("none", "tokenmap", "ngram", "draft", "ctc", *HEAD_KINDS, "cascade", "auto")
SEVERAL = ("cascade", "auto")
READS_MAPS = ("tokenmap", "ctc", "draft", *SEVERAL)
REMEMBERS = ("ngram", "draft", *SEVERAL)
HAS_MODEL = ("draft", *SEVERAL)
MAP_PRESETS = ("default", "paper")
TRANSLATIONS = ("words", "tokens", "direct")


@dataclass(frozen=True)
class DrafterOptions:
    """Which drafter guesses tokens, and what it may use.

    name
        one of `DRAFTERS`; "none" is plain decoding, "auto" takes the quickest, window by window.
    token_maps
        token map files, the first wins a tie; none means the maps that the bundle brings. A draft model takes from them
        which words to expect.
    map_preset
        how token maps draft: "default" weighs costs, "paper" follows the paper (Token Map Drafting, section 3).
    draft_model
        name or folder of a smaller model that drafts; None: the one in the bundle, else the installed
        one that is known to draft for this model.
    lookahead
        how many tokens a draft model drafts: a number, or "cost", "rule", "confidence", "adaptive"
        (`drafters/draft/lookahead.py`, `papers/lookahead.py`). For heads "cost", or a fixed number of heads.
    translation
        how drafts of another vocabulary become the target's tokens: "words", "tokens", "direct"
        (`papers/across_words.py`).
    learn, learn_domain
        the draft model learns from its target, and what it learned is kept under this name for later runs.
    remember
        keep the n-grams and the translated words of the user's text for later runs.
    allow_inexact
        draft also on a machine where that may change the text (`specedge doctor`).

    Raises UsageError for values that cannot be, and for an option that the drafter has no use for.
    """

    name: str = "auto"
    _: KW_ONLY
    token_maps: Sequence[str | os.PathLike[str]] = ()
    map_preset: str = "default"
    draft_model: str | os.PathLike[str] | None = None
    lookahead: str | int = "cost"
    translation: str = "words"
    learn: bool = False
    learn_domain: str = "default"
    remember: bool = False
    allow_inexact: bool = False

    def __post_init__(self) -> None:
        for field, value, expected in (
            ("drafter", self.name, DRAFTERS),
            ("map_preset", self.map_preset, MAP_PRESETS),
            ("translation", self.translation, TRANSLATIONS),
        ):
            if value not in expected:
                raise UsageError(f"{field}: got {value!r}, expected {_either(expected)}")
        if isinstance(self.lookahead, bool) or not isinstance(self.lookahead, (str, int)):
            raise UsageError(f"lookahead: got {self.lookahead!r}, expected a policy such as 'cost', or a number")
        if not isinstance(self.learn, bool):
            raise UsageError(f"learn: got {self.learn!r}, expected True or False; its name is learn_domain")
        if not self.learn_domain:
            raise UsageError("learn_domain: got an empty name, expected one such as 'default'")
        for field, is_given, users, why in (
            ("token_maps", bool(self.token_maps), READS_MAPS, "reads no token maps"),
            ("draft_model", self.draft_model is not None, HAS_MODEL, "has no model of its own"),
            ("translation", self.translation != "words", HAS_MODEL, "has no model whose words need translation"),
            ("learn", self.learn, HAS_MODEL, "has no model that could learn"),
            ("remember", self.remember, REMEMBERS, "learns nothing from text"),
        ):
            if is_given and self.name not in users:
                raise UsageError(f"{field}: the drafter {self.name} {why}; use {_either(users)}")


def check_together(options: TranscribeOptions, drafter: DrafterOptions) -> None:
    """Raise UsageError for an acceptance rule that this drafter cannot follow."""
    if options.accept == "residual" and drafter.name != "draft":
        raise UsageError(
            f"accept: residual needs --drafter draft, whose drafts are sampled, got {drafter.name}; or use exact"
        )


def drafter_named(name: str | None, **options: Any) -> DrafterOptions:
    """The options of the drafter `name`. None is "draft" where a draft model is given or is to learn, else "auto"."""
    if name is None:
        is_draft = options.get("draft_model") is not None or options.get("learn") is True
        name = "draft" if is_draft else DrafterOptions.name
    return DrafterOptions(name, **options)


def _either(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + " or " + names[-1]
