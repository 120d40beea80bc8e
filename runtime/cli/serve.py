"""`specedge serve`: options from the line, the environment or a file, and the settings that they make."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from specedge.errors import UsageError
from specedge.serve.settings import Settings

from .options import GroupedCommand, GroupedOption, fields_of, made, option, options_of

_PREFIX = "SPECEDGE_SERVE_"
_CONFIG = option("--config", metavar="FILE", help="TOML file with any of these options.")


class _Command(GroupedCommand):
    """Options that the line leaves out come from SPECEDGE_SERVE_<OPTION>, from the file that ..._FILE names, or from
    --config, in this order."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> click.Context:
        with click.Context(self, info_name=info_name, parent=parent) as bare:
            values = self.make_parser(bare).parse_args(list(self._spelled_out(args)))[0]
        config = values.get("config") or os.environ.get(f"{_PREFIX}CONFIG")
        known = dict(_spellings(self))
        extra["default_map"] = {**_from_toml(config, known), **_from_environment(known)}
        return super().make_context(info_name, args, parent, **extra)


def _spellings(command: click.Command) -> Iterator[tuple[str, click.Option]]:
    """The options of a command by their long names without dashes, with "no-" for those that are on by default."""
    for param in command.params:
        if isinstance(param, click.Option):
            name = max(param.opts, key=len).lstrip("-")
            yield name, param
            if isinstance(param, GroupedOption) and param.is_switch and param.default:
                yield f"no-{name}", param


def _value(spelling: str, param: click.Option, value: str) -> str:
    """The value of an option, turned round where its name is spelled with "no-"."""
    if not spelling.startswith("no-"):
        return value
    return "false" if value.lower() in ("true", "1", "yes") else "true"


def _from_environment(known: Mapping[str, click.Option]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for spelling, param in known.items():
        variable = _PREFIX + spelling.replace("-", "_").upper()
        value = os.environ.get(variable)
        if value is None and os.environ.get(f"{variable}_FILE"):
            value = _read(os.environ[f"{variable}_FILE"], variable).strip()
        if value is not None and param.name is not None:
            found[param.name] = value.split() if param.multiple else _value(spelling, param, value)
    return found


def _from_toml(config: str | None, known: Mapping[str, click.Option]) -> dict[str, Any]:
    if not config:
        return {}
    try:
        table = tomllib.loads(_read(config, "--config"))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{config}: is no TOML: {error}") from None
    found: dict[str, Any] = {}
    for key, value in table.items():
        spelling = key.replace("_", "-")
        param = known.get(spelling)
        if param is None or param.name is None:
            raise UsageError(f"{config}: unknown option {key!r}; expected one of {', '.join(sorted(known))}")
        if isinstance(value, (dict, list)) and not (param.multiple and isinstance(value, list)):
            raise UsageError(f"{config}: {key}: expected a single value")
        values = [str(one) for one in value] if isinstance(value, list) else [str(value)]
        found[param.name] = values if param.multiple else _value(spelling, param, values[0])
    return found


def _read(path: str, what: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise UsageError(f"{what}: {path} cannot be read: {getattr(error, 'strerror', None) or error}") from None


@click.command(cls=_Command)
@options_of(fields_of(Settings, is_usual=True), (_CONFIG,))
def serve(**given: Any) -> None:
    """Serve transcription: OpenAI's API over HTTP and WebSocket, Wyoming, and a page at /.

    Every option may be set as SPECEDGE_SERVE_<OPTION>, in a file that SPECEDGE_SERVE_<OPTION>_FILE names, or in a TOML
    file. Needs the extra [serve].

    \b
    Examples:
      specedge serve -m small
      specedge serve -m small --host 0.0.0.0 --api-key "$KEY"
      specedge serve -m small --wyoming tcp://0.0.0.0:10300 --zeroconf specedge
    """
    from specedge.serve.server import run

    run(made(Settings, given))
