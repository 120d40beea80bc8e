"""Options in groups, switches that also take True or False, and numbers that may be None.

This is what openai-whisper's style of options needs and click does not have. A switch is written bare, or with the word
True or False after it (`--word-timestamps`, `--word_timestamps True`), or with "no" before its name
(`--no-word-timestamps`). Any other word after a switch is the next argument.
Does not know: which options there are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

__all__ = ["GroupedCommand", "GroupedOption", "Names", "Number", "Numbers", "Truth"]

if TYPE_CHECKING:
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

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, list(self._spelled_out(ctx, args)))

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
