"""Options of the commands that transcribe, and the TranscribeOptions and DrafterOptions that they make.

Names are faster-whisper's in kebab-case. openai-whisper's style is accepted as well: snake_case, None for a number that
may be absent, True or False behind a switch (or "no" before its name), lists with commas. Each option has a group of
the help. Defaults are those of the option classes. Shells complete names of models and languages, and folders.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from specedge.errors import UsageError
from specedge.models import catalogue, store

from ..options import (
    CPU,
    DRAFTERS,
    ENCODER_PROVIDERS,
    MAP_PRESETS,
    TRANSLATIONS,
    DrafterOptions,
    TranscribeOptions,
    drafter_named,
)
from ..text.special import LANGUAGE_NAMES, find_language

__all__ = [
    "COMMON",
    "MODEL_AND_LANGUAGE",
    "DECODING",
    "DETECTION",
    "DRAFTER",
    "DRAFTING",
    "ENCODER_PROVIDER",
    "GroupedCommand",
    "GroupedOption",
    "HINTS",
    "JSON",
    "LANGUAGE",
    "MODEL",
    "NO_DOWNLOAD",
    "Names",
    "Number",
    "Numbers",
    "PROMPTING",
    "THREADS",
    "Truth",
    "WINDOWS",
    "WORDS",
    "audio_context",
    "drafter_options",
    "installed_models",
    "known_models",
    "languages",
    "model_path",
    "open_model",
    "option",
    "options_of",
    "switch",
    "transcribe_options",
]


if TYPE_CHECKING:
    from ..bundle.bundle import Bundle

    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType  # generic only in newer versions of click

_TRUTHS = ("true", "false")
_NONE = "None"


class GroupedOption(click.Option):
    """An option of a group of the help.

    `group`: the group's heading; `shown`: its names and value in the help, by default all names; `is_switch`: bare or
    with True or False.
    """

    def __init__(
        self, *args: Any, group: str = "Options", shown: str | None = None, is_switch: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.group, self.shown, self.is_switch = group, shown, is_switch

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        record = super().get_help_record(ctx)
        return record if record is None or self.shown is None else (self.shown, record[1])


class GroupedCommand(click.Command):
    """A command with `GroupedOption`s; their groups are shown in the order of their first options."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. A UsageError about a field of the options names the flag that the user typed instead."""
        try:
            return super().invoke(ctx)
        except UsageError as error:
            field, colon, rest = str(error).partition(":")
            flags = {param.name: max(param.opts, key=len) for param in self.params if isinstance(param, click.Option)}
            flag = flags.get(field, flags.get(f"vad_{field}"))
            if flag is None:
                raise
            raise UsageError(f"{flag}{colon}{rest}") from error

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, list(self._spelled_out(ctx, args)))
        except click.NoSuchOption as error:
            from .peers import ANSWERS

            answer = ANSWERS.get(_normal(ctx, error.option_name))
            if answer is None:
                raise
            raise UsageError(f"there is no {error.option_name}: {answer}") from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                groups.setdefault(getattr(param, "group", "Options"), []).append(record)
        for heading, records in groups.items():
            with formatter.section(heading):
                formatter.write_dl(records)

    def _spelled_out(self, ctx: click.Context, args: Sequence[str]) -> Iterator[str]:
        """`args` with a value given to every switch, which click could only take for an option or for a flag."""
        options = {
            _normal(ctx, name): param
            for param in self.get_params(ctx)
            if isinstance(param, click.Option)
            for name in param.opts
        }
        rest = list(args)
        while rest:
            token = rest.pop(0)
            if token == "--":
                yield token
                yield from rest
                return
            name = _normal(ctx, token)
            positive = "--" + name.removeprefix("--no-")
            if _is_switch(options.get(name)):
                says = rest.pop(0) if rest and rest[0].lower() in _TRUTHS else "True"
                yield f"{options[name].opts[-1]}={says}"
            elif name.startswith("--no-") and name not in options and _is_switch(options.get(positive)):
                yield f"{options[positive].opts[-1]}=False"
            else:
                yield token
                takes_value = name in options and not options[name].is_flag and not options[name].count
                if takes_value and rest:
                    yield rest.pop(0)


class Truth(_ParamType):
    """True or False, in any case: the value of a switch."""

    name = "truth"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        if value.lower() not in _TRUTHS:
            self.fail(f"{value!r} is neither True nor False", param, ctx)
        return value.lower() == "true"


class Number(_ParamType):
    """A number of `kind`; with `optional` also the word None."""

    def __init__(self, kind: type[int] | type[float], *, optional: bool = False) -> None:
        self._kind, self._optional = kind, optional
        self.name = "integer" if kind is int else "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        if self._optional and value == _NONE:
            return None
        try:
            number = self._kind(value)
        except ValueError:
            number = math.nan
        if math.isnan(number):
            what = "an integer" if self._kind is int else "a number"
            self.fail(f"{value!r} is not {what}{' or None' if self._optional else ''}", param, ctx)
        return number


class Numbers(_ParamType):
    """Numbers of `kind` with commas between them, as a tuple; nothing is the empty one."""

    name = "numbers"

    def __init__(self, kind: type[int] | type[float], *, optional: bool = False) -> None:
        self._optional = optional
        self._number = Number(kind)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        if self._optional and value == _NONE:
            return None
        return tuple(self._number.convert(part, param, ctx) for part in value.split(",") if value.strip())


class Names(_ParamType):
    """Some of `names` with commas between them, or "all", as a tuple without repetitions."""

    name = "names"

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        given = [part.strip().lower() for part in value.split(",")]
        for part in given:
            if part not in (*self._names, "all"):
                self.fail(f"{part!r} is not one of {', '.join(self._names)}, all", param, ctx)
        return self._names if "all" in given else tuple(dict.fromkeys(given))

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem[str]]:
        from click.shell_completion import CompletionItem

        before, comma, last = incomplete.rpartition(",")
        return [CompletionItem(before + comma + name) for name in (*self._names, "all") if name.startswith(last)]


def _is_switch(param: click.Option | None) -> bool:
    return isinstance(param, GroupedOption) and param.is_switch


def _normal(ctx: click.Context, name: str) -> str:
    """The name as click compares it: `token_normalize_func` is for the part after the dashes."""
    if ctx.token_normalize_func is None or not name.startswith("-"):
        return name
    bare = name.lstrip("-")
    return name[: len(name) - len(bare)] + ctx.token_normalize_func(bare)


def installed_models(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The models of the store, also without "whisper-", else folders."""
    names = [model.name for model in store.installed()]
    found = _beginning(incomplete, names) or _beginning(incomplete, [name.removeprefix("whisper-") for name in names])
    return found or [CompletionItem(incomplete, type="dir")]


def known_models(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """What `specedge models pull` knows by a short name."""
    return _beginning(incomplete, [*store.available_models(), *catalogue.FILES])


def languages(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Codes, or English names where no code fits."""
    return _beginning(incomplete, LANGUAGE_NAMES) or _beginning(incomplete, LANGUAGE_NAMES.values())


MODEL = click.option(
    "-m",
    "--model",
    metavar="MODEL",
    shell_complete=installed_models,
    help="Model name or bundle folder.  [default: $SPECEDGE_MODEL, else the best installed]",
)
ENCODER_PROVIDER = click.option(
    "--encoder-provider",
    type=click.Choice(ENCODER_PROVIDERS),
    default=CPU,
    show_default=True,
    cls=GroupedOption,
    help="What the encoder runs on (docs/providers.md).",
)
LANGUAGE = click.option(
    "-l",
    "--language",
    metavar="LANG",
    shell_complete=languages,
    help="Spoken language, code or English name.  [default: detected]",
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
THREADS = click.option(
    "-t", "--threads", type=click.IntRange(min=0), metavar="N", help="CPU threads.  [default: by machine]"
)


def open_model(name: str | None, *, language: str | None = None, verify: bool = True) -> Bundle:
    """The bundle that --model names, or the default for the language. Raises ModelError and BundleError."""
    from ..bundle.bundle import Bundle

    return Bundle.open(model_path(name, language=language), verify=verify)


def model_path(
    name: str | None,
    *,
    language: str | None = None,
    task: str = "transcribe",
    download: bool = True,
    quiet: bool = False,
) -> Path:
    """The folder of the bundle that --model names, else of the default (export/default_model.py). Raises ModelError."""
    if name is not None:
        return store.find(name)
    from specedge.export.default_model import default_model

    return default_model(language, task, download=download, quiet=quiet)


def _beginning(incomplete: str, names: Iterable[str]) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


Decorator = Callable[[Any], Any]
_DEFAULTS = {field.name: field.default for field in fields(TranscribeOptions)}
_SMALLEST_INCREMENT = 0.01


def option(*names: str, **settings: Any) -> Decorator:
    """A grouped option."""
    return click.option(*names, cls=GroupedOption, **settings)


def switch(*names: str, **settings: Any) -> Decorator:
    """An option that is on or off, False by default; the last name is the long one."""
    settings = {"default": False, "shown": ", ".join(names), **settings}
    return option(*names, type=Truth(), is_flag=False, is_switch=True, show_default=False, **settings)


def options_of(*groups: Sequence[Decorator]) -> Decorator:
    """One decorator that adds the options of all groups, in their order."""

    def decorate(function: Any) -> Any:
        for one in reversed([one for group in groups for one in group]):
            function = one(function)
        return function

    return decorate


def _field(name: str, *names: str, **settings: Any) -> Decorator:
    """The option of the field `name` of TranscribeOptions, with its default."""
    default = _DEFAULTS[name]
    shows = isinstance(default, (int, float, str))
    settings = {"default": default, "show_default": shows, **settings}
    return option("--" + name.replace("_", "-"), *names, name, **settings)


def _field_switch(name: str, **settings: Any) -> Decorator:
    """The switch of a field; one that is on by default is shown with "no", which turns it off."""
    long = "--" + name.replace("_", "-")
    default = _DEFAULTS[name]
    return switch(long, name, **{"default": default, "shown": f"--no-{long[2:]}" if default else long, **settings})


_INT, _FLOAT = Number(int), Number(float)
_MAYBE_INT, _MAYBE_FLOAT = Number(int, optional=True), Number(float, optional=True)
_DRAFTS: dict[str, Any] = {"group": "Drafting"}
_DECODE: dict[str, Any] = {"group": "Decoding"}
_FALLBACK: dict[str, Any] = {"group": "Fallback and silence"}
_WINDOW: dict[str, Any] = {"group": "Windows and timestamps"}
_PROMPT: dict[str, Any] = {"group": "Prompting"}
_LANGUAGE: dict[str, Any] = {"group": "Language"}

MODEL_AND_LANGUAGE: tuple[Decorator, ...] = (
    option(
        "-m",
        "--model",
        "--model-directory",
        metavar="MODEL",
        shown="-m, --model MODEL",
        shell_complete=installed_models,
        help="Model name or bundle folder.  [default: $SPECEDGE_MODEL, else the best installed]",
    ),
    option(
        "-l",
        "--language",
        metavar="LANG",
        shell_complete=languages,
        help="Spoken language, code or English name.  [default: detected]",
    ),
)
NO_DOWNLOAD = switch(
    "--no-download",
    "no_download",
    shown="--no-download",
    help="Never fetch a model: where none is installed, stop.  [as with $HF_HUB_OFFLINE]",
)
COMMON: tuple[Decorator, ...] = (
    *MODEL_AND_LANGUAGE,
    _field("task", type=click.Choice(["transcribe", "translate"]), help="Transcribe, or translate into English."),
)
WORDS: tuple[Decorator, ...] = (_field_switch("word_timestamps", help="Find the start and end of every word."),)
DRAFTER: tuple[Decorator, ...] = (
    option(
        "--drafter",
        type=click.Choice(DRAFTERS),
        metavar="NAME",
        help=f"Drafter that guesses the next tokens, for speed; the text is the same: {', '.join(DRAFTERS)}. cascade: "
        "all that the model has; auto: the quickest, window by window.  [default: auto; with --draft-model or "
        "--learn draft]",
    ),
)
DRAFTING: tuple[Decorator, ...] = (
    option(
        "--draft-model",
        metavar="MODEL",
        shell_complete=installed_models,
        help="Smaller model that drafts, by name or folder.  [default: the model's own, or the known one]",
        **_DRAFTS,
    ),
    option(
        "--token-map",
        "token_maps",
        multiple=True,
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="Token map for --drafter tokenmap, ctc, draft, cascade or auto (repeatable).  [default: the model's own]",
        **_DRAFTS,
    ),
    option(
        "--map-preset",
        type=click.Choice(MAP_PRESETS),
        default="default",
        help="Draft from token maps where it pays, or as the paper does.",
        **_DRAFTS,
    ),
    option(
        "--lookahead",
        default=DrafterOptions.lookahead,
        metavar="WHAT",
        help="Tokens that a draft model drafts: a number, cost (what pays here), rule, confidence, or adaptive. For "
        "heads: cost (default) or a fixed number of heads.",
        **_DRAFTS,
    ),
    option(
        "--translation",
        type=click.Choice(TRANSLATIONS),
        default=DrafterOptions.translation,
        help="How a draft model of another vocabulary is translated: word by word, merging tokens as in OmniDraft, or "
        "only tokens that both have.  [default: words]",
        **_DRAFTS,
    ),
    _field(
        "accept",
        metavar="RULE",
        help="Which drafts to keep. exact: the text never changes. These may change it, and results say so: typical, "
        "top-M (such as top-3), a confidence such as 0.8, and, with --drafter draft and a temperature above 0, "
        "residual (same distribution).",
        **_DRAFTS,
    ),
    switch(
        "--learn",
        help="Train the draft model on the target's text as it runs, and keep that for later runs.",
        **_DRAFTS,
    ),
    option(
        "--learn-domain",
        default=DrafterOptions.learn_domain,
        metavar="NAME",
        help="Keep what is learned under this name, apart from other domains.",
        **_DRAFTS,
    ),
    switch(
        "--remember",
        help="Keep n-grams and translated words of your text for later runs (ngram, draft, cascade, auto).",
        **_DRAFTS,
    ),
    switch(
        "--allow-inexact",
        help="Draft even on a machine where that may change the text (see `specedge doctor`); results say so.",
        **_DRAFTS,
    ),
)
DECODING: tuple[Decorator, ...] = (
    _field(
        "beam_size",
        type=_MAYBE_INT,
        metavar="N",
        help="Beams at temperature 0, up to 64; 1 is greedy, where drafts save most.",
        **_DECODE,
    ),
    option(
        "--temperature",
        type=Numbers(float),
        default=(0.0,),
        metavar="X",
        help="First temperature, or all of them with commas; 0 takes the likeliest token.  [default: 0]",
        **_DECODE,
    ),
    _field("best_of", type=_MAYBE_INT, metavar="N", help="Samples at temperatures above 0, up to 64.", **_DECODE),
    _field("seed", type=_INT, metavar="N", help="Seed of the samples.", **_DECODE),
    _field("patience", type=_MAYBE_FLOAT, metavar="X", help="Patience of the beam search.", **_DECODE),
    _field(
        "length_penalty",
        type=_MAYBE_FLOAT,
        metavar="X",
        help="Length penalty of beams and samples, 0 to 1; None: divide by length.",
        **_DECODE,
    ),
    _field(
        "repetition_penalty",
        type=_FLOAT,
        metavar="X",
        help="Above 1, tokens that were said before are less likely.",
        **_DECODE,
    ),
    _field(
        "no_repeat_ngram_size", type=_INT, metavar="N", help="Never repeat a run of N tokens; 0 allows it.", **_DECODE
    ),
    _field(
        "length_decay",
        type=Numbers(float, optional=True),
        metavar="START,X",
        help="After START tokens, multiply the odds of the end by powers of X, for example 140,1.01.  [default: None]",
        **_DECODE,
    ),
    _field(
        "max_new_tokens",
        type=_MAYBE_INT,
        metavar="N",
        help="Tokens in a window.  [default: half the context]",
        **_DECODE,
    ),
    _field(
        "suppress_tokens",
        type=Numbers(int, optional=True),
        metavar="IDS",
        help="Token ids that are never written; -1 is the model's list of non-speech symbols.  [default: -1]",
        **_DECODE,
    ),
    _field_switch("suppress_blank", help="Let a text begin with a blank, or end at once.", **_DECODE),
    _field(
        "rules",
        type=click.Choice(["openai", "hf"]),
        help="Decode long audio as openai-whisper or as transformers does.",
        **_DECODE,
    ),
    option(
        "--temperature-increment-on-fallback",
        type=_MAYBE_FLOAT,
        default=0.2,
        show_default=True,
        metavar="X",
        help="Step to the next temperature, up to 1, when a text fails a test below; None: no fallback.",
        **_FALLBACK,
    ),
    _field(
        "compression_ratio_threshold",
        type=_MAYBE_FLOAT,
        metavar="X",
        help="A text fails if its compression ratio is higher.",
        **_FALLBACK,
    ),
    _field(
        "log_prob_threshold",
        "--logprob-threshold",
        type=_MAYBE_FLOAT,
        metavar="X",
        shown="--log-prob-threshold X",
        help="A text fails if its average log-probability is lower.",
        **_FALLBACK,
    ),
    _field(
        "no_speech_threshold",
        type=_MAYBE_FLOAT,
        metavar="X",
        help="Treat a low-confidence segment as silence if its no-speech probability exceeds this.",
        **_FALLBACK,
    ),
    _field(
        "hallucination_silence_threshold",
        type=_MAYBE_FLOAT,
        metavar="S",
        help="With word times, skip silences longer than this around text that looks hallucinated.",
        **_FALLBACK,
    ),
)
WINDOWS: tuple[Decorator, ...] = (
    option(
        "--no-timestamps",
        "--without-timestamps",
        "without_timestamps",
        type=Truth(),
        default=False,
        is_flag=False,
        is_switch=True,
        shown="--no-timestamps",
        help="Do not let the model predict times: one segment per window.",
        **_WINDOW,
    ),
    _field("max_initial_timestamp", type=_MAYBE_FLOAT, metavar="S", help="Latest start of a window's text.", **_WINDOW),
    _field(
        "clip_timestamps",
        type=Numbers(float),
        metavar="TIMES",
        help="Transcribe only these parts: START,END,START,END,... in seconds.  [default: 0, all of it]",
        **_WINDOW,
    ),
    _field(
        "audio_context",
        metavar="WHAT",
        help="How much of a window is encoded: full, auto (what holds audio), or at least so many seconds. A model "
        "trained on whole windows often loops on shorter ones (tiny.en: 226 % word errors instead of 4.7), so results "
        "are marked lossy.  [default: full, or auto for models trained on short windows]",
        **_WINDOW,
    ),
    _field(
        "window_end",
        type=click.Choice(["full", "pause"]),
        help="End a window when it is full, or at a pause.  [default: full; models trained on short windows: pause]",
        **_WINDOW,
    ),
    _field(
        "prepend_punctuations",
        metavar="TEXT",
        show_default=False,
        help="Marks that join the word after them.",
        **_WINDOW,
    ),
    _field(
        "append_punctuations",
        metavar="TEXT",
        show_default=False,
        help="Marks that join the word before them.",
        **_WINDOW,
    ),
)
DETECTION: tuple[Decorator, ...] = (
    _field_switch("multilingual", help="Detect the language in every window.", **_LANGUAGE),
    _field(
        "language_detection_segments", type=_INT, metavar="N", help="Windows to detect the language in.", **_LANGUAGE
    ),
    _field(
        "language_detection_threshold",
        type=_MAYBE_FLOAT,
        metavar="X",
        help="Stop at the first language that is at least this likely.",
        **_LANGUAGE,
    ),
)
HINTS: tuple[Decorator, ...] = (
    _field("initial_prompt", metavar="TEXT", help="Text before the first window, as context.", **_PROMPT),
    _field("hotwords", metavar="TEXT", help="Words to expect, put before every window.", **_PROMPT),
)
PROMPTING: tuple[Decorator, ...] = (
    *HINTS,
    _field_switch("carry_initial_prompt", help="Put it before every window.", **_PROMPT),
    _field("prefix", metavar="TEXT", help="Text that the first window begins with.", **_PROMPT),
    _field_switch("condition_on_previous_text", help="Do not use earlier text as context.", **_PROMPT),
    _field(
        "prompt_reset_on_temperature",
        type=_FLOAT,
        metavar="X",
        help="Drop earlier text from the context after a window decoded above this temperature.",
        **_PROMPT,
    ),
)


def transcribe_options(given: Mapping[str, Any]) -> TranscribeOptions:
    """The options that the command's values make. Raises UsageError for values that cannot be."""
    taken = {name: given[name] for name in _DEFAULTS if name in given}
    for name in ("beam_size", "best_of", "patience"):  # None is openai-whisper's word for one of them
        taken[name] = 1 if taken.get(name, _DEFAULTS[name]) is None else taken.get(name, _DEFAULTS[name])
    language = given["language"]
    taken["language"] = None if language in (None, "auto", "None") else find_language(language)
    if "temperature" in given:
        taken["temperature"] = _temperatures(given["temperature"], given["temperature_increment_on_fallback"])
    taken["audio_context"] = audio_context(given["audio_context"])
    return TranscribeOptions(**taken)


def drafter_options(given: Mapping[str, Any]) -> DrafterOptions:
    """The drafter that the command's values ask for. Raises UsageError."""
    named = {field.name: given[field.name] for field in fields(DrafterOptions) if field.name != "name"}
    return drafter_named(given["drafter"], **named)


def audio_context(given: str | None) -> str | float | None:
    """The value of --audio-context: a number where it is one."""
    try:
        return given if given is None else float(given)
    except ValueError:
        return given


def _temperatures(given: tuple[float, ...], increment: float | None) -> tuple[float, ...]:
    """Rounded, so that the steps of openai-whisper's command are the temperatures of its library."""
    if len(given) != 1 or increment is None or not 0 <= given[0] <= 1:
        return given
    if not _SMALLEST_INCREMENT <= increment < math.inf:
        raise UsageError(
            f"--temperature-increment-on-fallback: got {increment}, expected {_SMALLEST_INCREMENT} or more, or None"
        )
    start = given[0]
    n_steps = int((1.0 - start) / increment + 1e-6)
    return tuple(round(start + step * increment, 9) for step in range(n_steps + 1))
