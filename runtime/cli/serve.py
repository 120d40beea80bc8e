"""`specedge serve`: options from the line, the environment or a file, and the settings that they make."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from specedge.errors import UsageError
from specedge.serve.settings import Settings

from .options import GroupedCommand, fields_of, made, option, options_of

_PREFIX = "SPECEDGE_SERVE_"


class _Command(GroupedCommand):
    """Options that the line leaves out come from SPECEDGE_SERVE_<OPTION>, from the file that ..._FILE names, or from
    --config, in this order."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        found: dict[str, Any] = {}
        for spelling, param in _spellings(self).items():
            variable = _PREFIX + spelling.replace("-", "_").upper()
            value = os.environ.get(variable)
            if value is None and os.environ.get(f"{variable}_FILE"):
                value = _read(os.environ[f"{variable}_FILE"], variable).strip()
            if value is not None:
                found[str(param.name)] = value.split() if param.multiple else _value(spelling, value)
        ctx.default_map = found
        return super().parse_args(ctx, args)


def _spellings(command: click.Command) -> Mapping[str, click.Option]:
    """The options of a command by their long names without dashes, with "no-" for those that are on by default."""
    options = {max(one.opts, key=len)[2:]: one for one in command.params if isinstance(one, click.Option)}
    return options | {f"no-{name}": one for name, one in options.items() if one.default is True}


def _value(spelling: str, value: str) -> str:
    """The value of an option, turned round where its name is spelled with "no-"."""
    if not spelling.startswith("no-"):
        return value
    return "false" if value.lower() in ("true", "1", "yes") else "true"


def _add_config(ctx: click.Context, _: click.Parameter, config: str | None) -> None:
    """Take what the TOML file `config` has of options that neither the line nor the environment has."""
    if not config:
        return
    known, found = _spellings(ctx.command), {}
    try:
        table = tomllib.loads(_read(config, "--config"))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{config}: is no TOML: {error}") from None
    for key, value in table.items():
        spelling = key.replace("_", "-")
        if spelling not in known:
            raise UsageError(f"{config}: unknown option {key!r}; expected one of {', '.join(sorted(known))}")
        param = known[spelling]
        if isinstance(value, (dict, list)) and not (param.multiple and isinstance(value, list)):
            raise UsageError(f"{config}: {key}: expected a single value")
        values = [str(one) for one in value] if isinstance(value, list) else [str(value)]
        found[str(param.name)] = values if param.multiple else _value(spelling, values[0])
    ctx.default_map = {**found, **(ctx.default_map or {})}


_CONFIG = option(
    "--config",
    metavar="FILE",
    is_eager=True,
    expose_value=False,
    callback=_add_config,
    help="TOML file with any of these options.",
)


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
