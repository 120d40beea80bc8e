"""The options of a transcription and of its drafter, each written once.

A field that is made by `described` is an option of the command, an argument of `WhisperModel.transcribe`, and what the
server and the docs' tables read: its name, type, default and text stand here alone. Options of other classes, such as
`VadOptions` or the server's, are described in the same way; runtime/cli/options.py puts them on the command's line.

Names are faster-whisper's, meanings and defaults openai-whisper's. The classes check their values once, when they are
made, and raise UsageError with the field's name first. What depends on the model (its languages, tasks, alignment
heads) is checked where the model is.
"""

from __future__ import annotations

import functools
import math
import os
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, Field, dataclass, field, fields
from functools import partial
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from specedge.errors import UsageError

from .text.phrases import Phrases, phrases, sentences

BLOCK_KIND = "medusa-block"
BLOCK_KV_GRAPH = "medusa-block-kv"  # cross-attention keys and values of medusa-block
HEAD_KINDS = ("medusa-linear", BLOCK_KIND, "mtp-latent", "mtp-projection")
"""Kinds of heads. The drafter and the bundle's graph of a kind have its name."""
HEAD_GRAPHS = (*HEAD_KINDS, BLOCK_KV_GRAPH)

CPU, AUTO_PROVIDER = "cpu", "auto"
ENCODER_PROVIDERS = (AUTO_PROVIDER, CPU, "openvino", "coreml", "dml", "qnn", "webgpu")
"""What an encoder can run on: all but the first three are execution providers of ONNX Runtime (engine/providers.py)."""

FALLBACK_TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
PREPEND_PUNCTUATIONS = "\"'“¿([{-"
APPEND_PUNCTUATIONS = "\"'.。,，!！?？:：”)]}、"
BATCH_SIZE = 8  # pieces of speech decoded together: faster-whisper's default
MAX_BEAMS = 64  # each has a cache of its own for keys and values
_MAX_PATIENCE = 1000.0  # more than a window has tokens
_PENALTIES = (0.001, 1000.0)  # beyond, logits leave what float32 can hold
_MAX_TIME_S = 1e9  # thirty years
_DESCRIPTION = "description"


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a field is to people.

    doc: its meaning, for help and tables; group: its heading in the help; names: its spellings on the command's line,
    the long one that is shown first, none for --the-field-s-name, behind `prefix`; metavar: what the help calls its
    value, by default N or X for a number; choices: the only values; parse: makes the value of what a program or a text
    gives, and raises UsageError, or ValueError or TypeError for what is not `expected`; default_text: the default in
    the help's words; is_usual: one of the options that the short help shows; none: the value that the word None stands
    for.
    """

    doc: str
    group: str = "Options"
    names: tuple[str, ...] = ()
    prefix: str = ""
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    parse: Callable[[Any], Any] | None = None
    expected: str = ""
    default_text: str | None = None
    is_usual: bool = False
    none: Any = None


def described(default: Any, doc: str, **more: Any) -> Any:
    """A field of options with its default and its `Description`."""
    return field(default=default, metadata={_DESCRIPTION: Description(doc=doc, **more)})


def described_fields(options: type) -> Iterator[tuple[Field[Any], Description]]:
    """The fields of a class of options that are described, in their order."""
    for one in fields(options):
        if _DESCRIPTION in one.metadata:
            yield one, one.metadata[_DESCRIPTION]


@functools.cache
def kinds_of(options: type) -> dict[str, Any]:
    """The types of the fields of a class of options."""
    return get_type_hints(options)


def without_none(kind: Any) -> tuple[Any, bool]:
    """A field's type, the first one of several, and whether it may be None."""
    kinds = get_args(kind) if get_origin(kind) in (types.UnionType, Union) else (kind,)
    return kinds[0], types.NoneType in kinds


def converted(value: Any, kind: Any, about: Description) -> Any:
    """The value of a field of this type. Numbers may be text, several with commas between. Raises UsageError."""
    kind, is_optional = without_none(kind)
    inside, is_list = get_args(kind), get_origin(kind) is tuple
    convert, expected = _KINDS.get(inside[0] if is_list else kind, (None, ""))
    if about.parse is not None:
        convert, expected, is_list = about.parse, about.expected, False
    if convert is None or about.choices or (value is None and is_optional):
        return value
    try:
        return _several(convert, value) if is_list else convert(value)
    except UsageError:
        raise
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"got {value!r:.80}, expected {expected}") from None


def _whole(value: Any) -> int:
    found = int(value)
    if not isinstance(value, str) and found != value:
        raise ValueError(value)
    return found


def _number(value: Any) -> float:
    found = float(value)
    if math.isnan(found):
        raise ValueError(value)
    return found


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


_KINDS: Mapping[Any, tuple[Callable[[Any], Any], str]] = {
    int: (_whole, "a whole number"),
    float: (_number, "a number"),
    bool: (bool, "True or False"),
    str: (_text, "a text"),
}


def _several(convert: Callable[[Any], Any], value: Any) -> tuple[Any, ...]:
    """From a list, from "1,2", as openai-whisper takes them, or from a single one."""
    if isinstance(value, str):
        value = filter(str.strip, value.split(","))
    return tuple(map(convert, value if isinstance(value, Iterable) else [value]))


def _token_ids(value: Any) -> tuple[int, ...]:
    return _several(int, value if isinstance(value, str) else [*value])


def _prompt(value: Any) -> str | tuple[int, ...]:
    return value if isinstance(value, str) else tuple(map(_whole, value))


def _clips(value: Any) -> tuple[float, ...]:
    return _several(_number, value) or (0.0,)  # without any all of it


def audio_context(given: Any) -> Any:
    """The audio context that a text names: seconds where it is a number."""
    try:
        return float(given) if isinstance(given, str) else given
    except ValueError:
        return given


_decoding = partial(described, group="Decoding")
_fallback = partial(described, group="Fallback and silence")
_windows = partial(described, group="Windows and timestamps")
_language = partial(described, group="Language")
_prompting = partial(described, group="Prompting")
_drafting = partial(described, group="Drafting")


@dataclass(frozen=True, kw_only=True)
class TranscribeOptions:
    """What to do with the audio. Raises UsageError for values that cannot be."""

    language: str | None = described(
        None,
        "Spoken language, code or English name.",
        names=("--language", "-l"),
        metavar="LANG",
        default_text="detected",
        is_usual=True,
    )
    task: str = described(
        "transcribe", "Transcribe, or translate into English.", choices=("transcribe", "translate"), is_usual=True
    )
    word_timestamps: bool = described(False, "Find the start and end of every word.", is_usual=True)
    beam_size: int = _decoding(
        1, "Beams at temperature 0, up to 64; 1 is greedy, where drafts save most.", none=1, is_usual=True
    )
    temperature: tuple[float, ...] = _decoding(
        FALLBACK_TEMPERATURES,
        "Temperatures, tried one after another until a window's text passes the tests; 0 takes the likeliest token, "
        "above 0 tokens are sampled.",
        metavar="X",
        default_text="0, then up to 1 in steps",
        is_usual=True,
    )
    best_of: int = _decoding(5, "Samples at temperatures above 0, up to 64.", none=1)
    seed: int = _decoding(0, "Seed of the samples: the same one gives the same text, whatever drafts.")
    patience: float = _decoding(1.0, "The beam search ends after so many times the beams in finished texts.", none=1)
    length_penalty: float | None = _decoding(
        None, "Length penalty of beams and samples, 0 to 1; None: divide by length."
    )
    repetition_penalty: float = _decoding(1.0, "Above 1, tokens that came before are less likely.")
    no_repeat_ngram_size: int = _decoding(0, "Never repeat a run of N tokens; 0 allows it.")
    length_decay: tuple[float, float] | None = _decoding(
        None,
        "After START tokens, multiply the odds of the end by powers of X, for example 140,1.01.",
        metavar="START,X",
        default_text="None",
    )
    max_new_tokens: int | None = _decoding(None, "Most tokens in a window.", default_text="half the context")
    suppress_tokens: tuple[int, ...] | None = _decoding(
        (-1,),
        "Token ids that are never written; -1 is the model's list of non-speech symbols.",
        metavar="IDS",
        parse=_token_ids,
        expected='a list of token ids, or a text such as "-1"',
        default_text="-1",
    )
    suppress_blank: bool = _decoding(True, "Do not let a text begin with a blank, or end at once.")
    accept: str = _drafting(
        "exact",
        "Which drafts to keep. exact: the text never changes. These may change it, and results say so: typical, top-M "
        "(such as top-3), a confidence such as 0.8, and, with --drafter draft and a temperature above 0, residual "
        "(same distribution).",
        metavar="RULE",
    )
    compression_ratio_threshold: float | None = _fallback(
        2.4, "A text fails if its compression ratio is higher; None: no such test."
    )
    log_prob_threshold: float | None = _fallback(
        -1.0,
        "A text fails if its average log-probability is lower; None: no such test.",
        names=("--log-prob-threshold", "--logprob-threshold"),
    )
    no_speech_threshold: float | None = _fallback(
        0.6, "A text that fails by log-probability is silence if its no-speech probability exceeds this."
    )
    hallucination_silence_threshold: float | None = _fallback(
        None, "With word times, skip silences longer than this around text that looks hallucinated.", metavar="S"
    )
    without_timestamps: bool = _windows(
        False,
        "Do not let the model predict times: one segment per window.",
        names=("--no-timestamps", "--without-timestamps"),
        is_usual=True,
    )
    max_initial_timestamp: float | None = _windows(
        1.0, "Latest start of a window's text, in seconds; None: any.", metavar="S"
    )
    clip_timestamps: tuple[float, ...] = _windows(
        (0.0,),
        "Transcribe only these parts: START,END,START,END,... in seconds.",
        metavar="TIMES",
        parse=_clips,
        expected="times in seconds",
        default_text="0, all of it",
        is_usual=True,
    )
    audio_context: str | float = _windows(
        "auto",
        "How much of a window is encoded: auto (what holds audio), full, as openai-whisper does, or at least so many "
        "seconds. What silence behind speech becomes stands in for the rest: short audio takes a fraction of the "
        "time, and results are marked as approximate.",
        metavar="WHAT",
        parse=audio_context,
    )
    window_end: Literal["full", "pause"] | None = _windows(
        None,
        "End a window when it is full, or at a pause.",
        choices=("full", "pause"),
        default_text="full; speech LLMs: pause",
    )
    prepend_punctuations: str = _windows(
        PREPEND_PUNCTUATIONS, "Marks that join the word after them.", metavar="TEXT", default_text=""
    )
    append_punctuations: str = _windows(
        APPEND_PUNCTUATIONS, "Marks that join the word before them.", metavar="TEXT", default_text=""
    )
    multilingual: bool = _language(False, "Detect the language in every window.")
    language_detection_segments: int = _language(1, "Windows to detect the language in.")
    language_detection_threshold: float | None = _language(
        0.5, "Stop at the first language that is at least this likely."
    )
    initial_prompt: str | tuple[int, ...] | None = _prompting(
        None,
        "Text before the first window, as context.",
        metavar="TEXT",
        parse=_prompt,
        expected="a text, or a list of token ids",
        is_usual=True,
    )
    hotwords: str | None = _prompting(None, "Words to expect, put before every window.", metavar="TEXT", is_usual=True)
    bias: Phrases | None = _prompting(
        None,
        "Make the phrases of a text file likelier, one a line: X, 4 by default, is added to the log-probability of "
        "each token that goes on with one (docs/own-words.md). May change the text, and results say so.",
        metavar="FILE[:X]",
        parse=phrases,
        expected="a file, or a list of phrases",
        is_usual=True,
    )
    only: Phrases | None = _prompting(
        None,
        "Write nothing but the sentences of a text file, one a line, such as commands. May change the text, and "
        "results say so.",
        metavar="FILE",
        parse=sentences,
        expected="a file, or a list of sentences",
        is_usual=True,
    )
    carry_initial_prompt: bool = _prompting(False, "Put the initial prompt before every window.")
    prefix: str | None = _prompting(None, "Text that the first window begins with.", metavar="TEXT")
    condition_on_previous_text: bool = _prompting(True, "Use earlier text as context.")
    prompt_reset_on_temperature: float = _prompting(
        0.5, "Drop earlier text from the context after a window decoded above this temperature."
    )
    draft_sources: bool = described(
        False,
        "Keep who drafted each token. The command colours text on a terminal by it; the model's own tokens stay plain.",
        names=("--print-drafts",),
        group="Messages",
    )

    def __post_init__(self) -> None:
        keeps_one_text = self.accept.startswith(("typical", "top-"))
        for name, is_right, expected in (
            ("task", self.task in ("transcribe", "translate"), "transcribe or translate"),
            (
                "temperature",
                self.temperature and all(0 <= value < math.inf for value in self.temperature),
                "one or more numbers, 0 or more",
            ),
            ("beam_size", 1 <= self.beam_size <= MAX_BEAMS, f"1 to {MAX_BEAMS}"),
            ("accept", _is_rule(self.accept), "exact, typical, residual, top-M such as top-3, or a number from 0 to 1"),
            ("beam_size", self.beam_size == 1 or not keeps_one_text, "1 where accept is typical or top-M"),
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
                all(0 <= value <= _MAX_TIME_S for value in self.clip_timestamps)
                and list(self.clip_timestamps) == sorted(self.clip_timestamps),
                f"times in seconds that never decrease, at most {_MAX_TIME_S:g}",
            ),
            ("audio_context", _is_audio_context(self.audio_context), "auto, full, or seconds above 0"),
            ("window_end", self.window_end in ("full", "pause", None), "full, pause, or None"),
            ("language_detection_segments", self.language_detection_segments >= 1, "1 or more"),
        ):
            if not is_right:
                raise UsageError(f"{name}: got {getattr(self, name)!r}, expected {expected}")
        if self.accept == "residual" and min(self.temperature) <= 0:
            raise UsageError(
                f"accept: residual draws tokens, so temperatures must be above 0 (--temperature 0.7), got "
                f"{', '.join(f'{value:g}' for value in self.temperature)}; or use exact"
            )


def _is_rule(name: str) -> bool:
    return re.fullmatch(r"exact|typical|residual|top-[1-9]\d{0,5}|0(\.\d+)?|1(\.0+)?|\.\d+", name) is not None


def _is_decay(value: tuple[float, ...] | None) -> bool:
    return value is None or (len(value) == 2 and value[0] >= 0 and value[0] % 1 == 0 and 0 < value[1] < math.inf)


def _is_audio_context(value: str | float) -> bool:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return 0 < value < math.inf
    return value in ("auto", "full")


FRAME_SAMPLES = 512  # of voice activity
_SAMPLE_RATE_HZ = 16_000
_DETECTORS = ("energy", "silero")
_voice = partial(described, group="Voice activity and batches", prefix="vad-")


@dataclass(frozen=True, kw_only=True)
class VadOptions:
    """What counts as speech: faster-whisper's names, meanings and defaults, and which detector to ask.

    Raises UsageError for values that cannot be.
    """

    detector: Literal["energy", "silero"] = _voice(
        "energy", "Voice activity detector; silero is a neural model, which must be installed.", choices=_DETECTORS
    )
    threshold: float = _voice(0.5, "Probability from which a frame is speech.")
    neg_threshold: float | None = _voice(None, "Probability below which speech ends.", default_text="0.15 less")
    min_speech_duration_ms: int = _voice(0, "Drop speech shorter than this.", metavar="MS")
    max_speech_duration_s: float = _voice(
        math.inf, "Split speech longer than this, at its last pause where there is one.", metavar="S"
    )
    min_silence_duration_ms: int = _voice(2000, "How long silence must last to end speech.", metavar="MS")
    speech_pad_ms: int = _voice(400, "Audio kept on both sides of speech.", metavar="MS")

    def __post_init__(self) -> None:
        for name, is_right, expected in (
            ("threshold", 0 < self.threshold <= 1, "a probability above 0, up to 1"),
            (
                "neg_threshold",
                self.neg_threshold is None or 0 <= self.neg_threshold <= self.threshold,
                "0 to threshold, or None",
            ),
            ("min_speech_duration_ms", 0 <= self.min_speech_duration_ms < math.inf, "0 or more milliseconds"),
            # The cut leaves room for both pads and one frame.
            (
                "max_speech_duration_s",
                self.max_speech_samples >= FRAME_SAMPLES,
                f"more than {2 * (self.speech_pad_ms + 32)} milliseconds: two pads and two frames of 32 ms",
            ),
            ("min_silence_duration_ms", 0 <= self.min_silence_duration_ms < math.inf, "0 or more milliseconds"),
            ("speech_pad_ms", 0 <= self.speech_pad_ms < math.inf, "0 or more milliseconds"),
            ("detector", self.detector in _DETECTORS, " or ".join(_DETECTORS)),
        ):
            if not is_right:
                raise UsageError(f"VAD option {name}: got {getattr(self, name)!r}, expected {expected}")

    @property
    def silence_threshold(self) -> float:
        """`neg_threshold`, or the value that None stands for."""
        return max(self.threshold - 0.15, 0.01) if self.neg_threshold is None else self.neg_threshold

    @property
    def max_speech_samples(self) -> float:
        """How long speech may grow before its pads are added, in samples."""
        return _SAMPLE_RATE_HZ * self.max_speech_duration_s - FRAME_SAMPLES - 2 * self.pad_samples

    @property
    def pad_samples(self) -> float:
        """`speech_pad_ms` in samples."""
        return _SAMPLE_RATE_HZ * self.speech_pad_ms / 1000


DRAFTERS = ("none", "tokenmap", "ngram", "draft", "ctc", *HEAD_KINDS, "auto")
READS_MAPS = ("tokenmap", "ctc", "draft", "auto")
REMEMBERS = ("ngram", "auto")
HAS_MODEL = ("draft", "auto")
MAP_PRESETS = ("default", "paper")
TRANSLATIONS = ("words", "tokens", "direct")


@dataclass(frozen=True)
class DrafterOptions:
    """Which drafter guesses tokens, and what it may use.

    Raises UsageError for values that cannot be, and for an option that the drafter has no use for.
    """

    name: str = described(
        "auto",
        f"Drafter that guesses the next tokens, for speed; the text is the same: {', '.join(DRAFTERS)}. auto: the "
        "quickest, window by window.",
        names=("--drafter",),
        metavar="NAME",
        choices=DRAFTERS,
        default_text="auto; with --draft-model or --learn draft",
        is_usual=True,
    )
    _: KW_ONLY
    draft_model: str | os.PathLike[str] | None = _drafting(
        None,
        "Smaller model that drafts, by name or folder.",
        metavar="MODEL",
        default_text="the model's own, or the known one",
        is_usual=True,
    )
    token_maps: Sequence[str | os.PathLike[str]] = _drafting(
        (),
        "Token map for the drafters tokenmap, ctc, draft or auto (repeatable); the first wins a tie.",
        names=("--token-map",),
        metavar="FILE",
        default_text="the model's own",
        is_usual=True,
    )
    map_preset: str = _drafting(
        "default", "Draft from token maps where it pays, or as the paper does.", choices=MAP_PRESETS
    )
    lookahead: str | int = _drafting(
        "cost",
        "Tokens that a draft model drafts: a number, cost (what pays here), rule, adaptive or joint. For heads: "
        "cost or a fixed number of heads.",
        metavar="WHAT",
    )
    translation: str = _drafting(
        "words",
        "How drafts of another vocabulary are translated: word by word, merging tokens as in OmniDraft, or only tokens "
        "that both have.",
        choices=TRANSLATIONS,
    )
    learn: bool = _drafting(False, "Train the draft model on the target's text as it runs.")
    remember: bool = _drafting(False, "Keep n-grams of your text for later runs (ngram, auto).")
    allow_inexact: bool = _drafting(
        False, "Draft even on a machine where that may change the text (see `specedge doctor`); results say so."
    )

    def __post_init__(self) -> None:
        for name, value, expected in (
            ("drafter", self.name, DRAFTERS),
            ("map_preset", self.map_preset, MAP_PRESETS),
            ("translation", self.translation, TRANSLATIONS),
        ):
            if value not in expected:
                raise UsageError(f"{name}: got {value!r}, expected {_either(expected)}")
        if isinstance(self.lookahead, bool) or not isinstance(self.lookahead, (str, int)):
            raise UsageError(f"lookahead: got {self.lookahead!r}, expected a policy such as 'cost', or a number")
        if not isinstance(self.learn, bool):
            raise UsageError(f"learn: got {self.learn!r}, expected True or False")
        for name, is_given, users, why in (
            ("token_maps", bool(self.token_maps), READS_MAPS, "reads no token maps"),
            ("draft_model", self.draft_model is not None, HAS_MODEL, "has no model of its own"),
            ("translation", self.translation != "words", HAS_MODEL, "has no model whose words need translation"),
            ("learn", self.learn, HAS_MODEL, "has no model that could learn"),
            ("remember", self.remember, REMEMBERS, "learns nothing from text"),
        ):
            if is_given and self.name not in users:
                raise UsageError(f"{name}: the drafter {self.name} {why}; use {_either(users)}")


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
