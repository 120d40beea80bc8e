"""The options of a command, read off the fields of classes of options, and the options that their values make.

Flags are kebab-case. openai-whisper's style is accepted as well: snake_case, None for a number that may be absent, True
or False behind a switch (or "no" before its name), lists with commas. The short help shows the usual options;
--help-all, or -h -v, shows all of them in groups. Shells complete names of models and languages, and folders.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin

import click
from click.shell_completion import CompletionItem

from specedge.errors import UsageError
from specedge.models import catalogue, store

from ..options import (
    AUTO_PROVIDER,
    ENCODER_PROVIDERS,
    FALLBACK_TEMPERATURES,
    Description,
    DrafterOptions,
    TranscribeOptions,
    converted,
    described,
    described_fields,
    drafter_named,
    kinds_of,
    without_none,
)
from ..text.special import LANGUAGE_NAMES, find_language

if TYPE_CHECKING:
    from ..bundle.bundle import Bundle
    from ..model import WhisperModel

    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType  # generic only in newer versions of click

_Made = TypeVar("_Made")
Decorator = Callable[[Any], Any]
_NONE = "None"
SHOWS_ALL = "specedge.shows_all"
"""In `Context.meta`: whether help shows all options, and not the usual ones alone."""


class GroupedOption(click.Option):
    """An option of a group of the help.

    `group`: the group's heading; `shown`: its names and value in the help, by default all names; `is_switch`: bare or
    with True or False; `is_usual`: shown in the short help.
    """

    def __init__(
        self,
        *args: Any,
        group: str = "Options",
        shown: str | None = None,
        is_switch: bool = False,
        is_usual: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.group, self.shown, self.is_switch, self.is_usual = group, shown, is_switch, is_usual

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
            flag = flags.get(field.removeprefix("VAD option "))
            if flag is None:
                raise
            raise UsageError(f"{flag}{colon}{rest}") from error

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Show the whole help and end, if that is asked for; else as click does, with a value behind every switch."""
        given = {_normal(arg) for arg in (args[: args.index("--")] if "--" in args else args)}
        asks = given & set(ctx.help_option_names) and given & {"-v", "--verbose"}
        if ("--help-all" in given or asks) and not ctx.resilient_parsing:
            ctx.meta[SHOWS_ALL] = True
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()
        return super().parse_args(ctx, list(self._spelled_out(args)))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        shows_all = ctx.meta.get(SHOWS_ALL, False)
        groups: dict[str, list[tuple[str, str]]] = {"Options": []}
        n_left_out = 0
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None or not isinstance(param, click.Option):
                continue
            if shows_all or getattr(param, "is_usual", True):
                groups.setdefault(getattr(param, "group", "Options") if shows_all else "Options", []).append(record)
            else:
                n_left_out += 1
        if n_left_out:
            groups["Options"].append(("--help-all", f"Show {n_left_out} more options, as -h -v does."))
        for heading, records in groups.items():
            with formatter.section(heading):
                formatter.write_dl(records)

    def _spelled_out(self, args: Sequence[str]) -> Iterator[str]:
        """`args` with a value given to every switch, which click could only take for an option or for a flag."""
        grouped = [param for param in self.params if isinstance(param, GroupedOption)]
        switches = {name: param for param in grouped if param.is_switch for name in param.opts}
        rest = list(args)
        while rest and rest[0] != "--":
            token = rest.pop(0)
            name = _normal(token)
            positive = "--" + name.removeprefix("--no-")
            if name in switches:
                says = rest.pop(0) if rest and rest[0].lower() in ("true", "false") else "True"
                yield f"{switches[name].opts[-1]}={says}"
            elif name.startswith("--no-") and positive in switches:
                yield f"{switches[positive].opts[-1]}=False"
            else:
                yield token
        yield from rest


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

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",")
        return [CompletionItem(before + comma + name) for name in (*self._names, "all") if name.startswith(last)]


class Value(_ParamType):
    """A value of a type that a field of options may have, as a text; "None" where there may be none."""

    name = "value"

    def __init__(self, kind: Any, about: Description | None = None) -> None:
        self.kind, self._about = kind, about or Description(doc="")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        if value == _NONE and (without_none(self.kind)[1] or self._about.none is not None):
            return self._about.none
        try:
            return converted(value, self.kind, self._about)
        except UsageError as error:
            raise UsageError(f"{max(param.opts, key=len)}: {error}" if param is not None else str(error)) from None


def _normal(name: str) -> str:
    """The name of an option as click compares it."""
    return name.replace("_", "-") if name.startswith("-") else name


def installed_models(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The models of the store, also without "whisper-", else folders."""
    names = [path.name for path in store.installed()]
    found = _beginning(incomplete, names) or _beginning(incomplete, [name.removeprefix("whisper-") for name in names])
    return found or [CompletionItem(incomplete, type="dir")]


def known_models(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """What `specedge models pull` knows by a short name."""
    return _beginning(incomplete, [*store.available_models(), *catalogue.FILES])


def languages(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Codes, or English names where no code fits."""
    return _beginning(incomplete, LANGUAGE_NAMES) or _beginning(incomplete, LANGUAGE_NAMES.values())


def _beginning(incomplete: str, names: Iterable[str]) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


# What completes the values of options, by the first of their names.
_COMPLETES = {"--model": installed_models, "--draft-model": installed_models, "--language": languages}


def option(*names: str, **settings: Any) -> Decorator:
    """A grouped option."""
    return click.option(*names, cls=GroupedOption, **settings)


def switch(*names: str, **settings: Any) -> Decorator:
    """An option that is on or off, False by default; the last name is the long one."""
    settings = {"default": False, "shown": ", ".join(names), **settings}
    return option(*names, type=bool, is_flag=False, is_switch=True, show_default=False, **settings)


def options_of(*groups: Sequence[Decorator]) -> Decorator:
    """One decorator that adds the options of all groups, in their order."""

    def decorate(function: Any) -> Any:
        for one in reversed([one for group in groups for one in group]):
            function = one(function)
        return function

    return decorate


def fields_of(options: type, *names: str, without: Sequence[str] = (), **changes: Any) -> tuple[Decorator, ...]:
    """The command's options of the described fields of a class: all, those named, or all `without` some.

    changes: settings that these options have in this command alone.
    """
    return tuple(
        _option_of(one.name, kinds_of(options)[one.name], one.default, about, changes)
        for one, about in described_fields(options)
        if (not names or one.name in names) and one.name not in without
    )


def values_of(options: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the described fields of a class that the command has options for, by the fields' names."""
    return {one.name: given[one.name] for one, _ in described_fields(options) if one.name in given}


def made(options: type[_Made], given: Mapping[str, Any], **more: Any) -> _Made:
    """The options that the command's values make, and `more`. Raises UsageError."""
    return options(**{**values_of(options, given), **more})


def _option_of(name: str, kind: Any, default: Any, about: Description, changes: Mapping[str, Any]) -> Decorator:
    long, *others = about.names or ["--" + about.prefix + name.replace("_", "-")]
    default = changes.get("default", default)
    short = [one for one in others if not one.startswith("--")]
    settings: dict[str, Any] = {
        "group": about.group,
        "is_usual": about.is_usual,
        "default": default,
        "help": about.doc,
        "shell_complete": _COMPLETES.get(long),
        **changes,
    }
    names = (*others, long, name)
    if kind is bool:
        shown = f"--no-{long[2:]}" if default and not long.startswith("--no-") else long
        return switch(*names, **{"shown": ", ".join([*short, shown]), **settings})
    settings |= _value(kind, about)
    if metavar := about.metavar or {int: "N", float: "X"}.get(without_none(kind)[0]):
        settings |= {"shown": f"{', '.join([*short, long])} {metavar}", "metavar": metavar}
    text = (
        about.default_text
        if about.default_text is not None
        else default
        if isinstance(default, (int, float, str))
        else ""
    )
    if text != "" and "help" not in changes:
        settings["help"] = f"{settings['help']}  [default: {text}]"
    return option(*names, **settings)


def _value(kind: Any, about: Description) -> dict[str, Any]:
    """The settings that say what values an option takes."""
    plain, _ = without_none(kind)
    inside = get_args(plain)
    if about.choices:
        return {"type": Names(about.choices) if get_origin(plain) is tuple else click.Choice(about.choices)}
    if about.parse is not None or {int, float} & {plain, *inside}:
        return {"type": Value(kind, about)}
    if inside:  # a sequence of names or files
        return {"multiple": True, "type": click.Path(path_type=Path) if inside[0] is not str else None}
    return {"type": click.Path(path_type=Path) if plain is Path else None}


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The model of a command, and what it runs on. Raises UsageError for a number of threads that cannot be."""

    model: str | None = described(
        None,
        "Model name or bundle folder.",
        names=("--model", "-m", "--model-directory"),
        metavar="MODEL",
        default_text="$SPECEDGE_MODEL, else the best installed",
        is_usual=True,
    )
    threads: int = described(0, "CPU threads.", names=("--threads", "-t"), default_text="by machine", is_usual=True)
    encoder_provider: str = described(
        AUTO_PROVIDER, "What the encoder runs on (docs/providers.md).", choices=ENCODER_PROVIDERS, group="Model"
    )
    downloads: bool = described(
        True,
        "Never fetch a model: where none is installed, stop, as with $HF_HUB_OFFLINE.",
        names=("--download",),
        group="Model",
    )

    def __post_init__(self) -> None:
        if self.threads < 0:
            raise UsageError(f"threads: got {self.threads}, expected 0 or more")

    def find(self, language: str | None = None, task: str = "transcribe", *, quiet: bool = False) -> Path:
        """The folder of the bundle, of the default one for these where none is named. Raises ModelError."""
        if self.model is not None:
            return store.find(self.model)
        from specedge.export.default_model import default_model

        return default_model(language, task, download=self.downloads, quiet=quiet)

    def open(self, language: str | None = None, *, verify: bool = True) -> Bundle:
        """The bundle. Raises ModelError."""
        from ..bundle.bundle import Bundle

        return Bundle.open(self.find(language), verify=verify)

    def load(self, path: Path) -> WhisperModel:
        """The model in this folder. Raises ModelError, ProviderError."""
        from ..model import WhisperModel

        return WhisperModel(path, cpu_threads=self.threads, encoder_provider=self.encoder_provider)


DRAFTING = (*fields_of(DrafterOptions, "name", default=None), *fields_of(DrafterOptions, without=("name",)))
JSON = option("--json", "as_json", is_flag=True, help="Print JSON.")
INCREMENT = option(
    "--temperature-increment-on-fallback",
    type=Value(float | None),
    default=0.2,
    metavar="X",
    is_usual=False,
    group="Fallback and silence",
    help="Step to the next temperature, up to 1, when a text fails a test below; None: no fallback.  [default: 0.2]",
)
_SMALLEST_INCREMENT = 0.01


def transcribe_options(given: Mapping[str, Any]) -> TranscribeOptions:
    """The options that the command's values make. Raises UsageError for values that cannot be."""
    language = given.get("language")
    more: dict[str, Any] = {"language": None if language in (None, "auto", _NONE) else find_language(language)}
    if "temperature" in given:
        more["temperature"] = _temperatures(given["temperature"], given["temperature_increment_on_fallback"])
    return made(TranscribeOptions, given, **more)


def drafter_options(given: Mapping[str, Any]) -> DrafterOptions:
    """The drafter that the command's values ask for. Raises UsageError."""
    return drafter_named(**values_of(DrafterOptions, given))


def _temperatures(given: tuple[float, ...], increment: float | None) -> tuple[float, ...]:
    """Rounded, so that the steps of openai-whisper's command are the temperatures of its library."""
    start = 0.0 if given is FALLBACK_TEMPERATURES else given[0] if len(given) == 1 else None
    if start is None or not 0 <= start <= 1:
        return given
    if increment is None:
        return (start,)
    if not _SMALLEST_INCREMENT <= increment < math.inf:
        raise UsageError(
            f"--temperature-increment-on-fallback: got {increment}, expected {_SMALLEST_INCREMENT} or more, or None"
        )
    n_steps = int((1.0 - start) / increment + 1e-6)
    return tuple(round(start + step * increment, 9) for step in range(n_steps + 1))
