"""`specedge serve`: options from the line, the environment or a file, and the settings that they make."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import click

from specedge.errors import UsageError
from specedge.serve.settings import Settings

from .options import GroupedCommand, fields_of, made, option, options_of

_PREFIX = "SPECEDGE_SERVE_"


def _set_defaults(ctx: click.Context, _: click.Parameter, config: str | None) -> None:
    """Options that the line leaves out come from SPECEDGE_SERVE_<OPTION>, from the file that ..._FILE names, or from
    the TOML file `config`, in this order. What is on by default has its name with "no-", too."""
    params = {max(one.opts, key=len)[2:]: one for one in ctx.command.params if isinstance(one, click.Option)}
    params |= {f"no-{name}": one for name, one in params.items() if one.default is True}
    config = config or os.environ.get(f"{_PREFIX}CONFIG")
    try:
        found: dict[str, Any] = tomllib.loads(_read(config)) if config else {}
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{config}: is no TOML: {error}") from None
    found = {name.replace("_", "-"): value for name, value in found.items()}
    for name, param in params.items():
        variable = _PREFIX + name.replace("-", "_").upper()
        text = os.environ.get(variable)
        if text is None and f"{variable}_FILE" in os.environ:
            text = _read(os.environ[f"{variable}_FILE"]).strip()
        if text is not None:
            found[name] = text.split() if param.multiple else text
    ctx.default_map = {}
    for name, value in found.items():
        if name not in params:
            raise UsageError(f"{config}: unknown option {name!r}; expected one of {', '.join(sorted(params))}")
        param = params[name]
        if param.multiple:
            value = value if isinstance(value, list) else [value]
        elif name.startswith("no-"):
            value = str(value).lower() not in ("true", "1", "yes")
        ctx.default_map[str(param.name)] = value if param.multiple else str(value)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise UsageError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None


_CONFIG = option(
    "--config",
    metavar="FILE",
    is_eager=True,
    expose_value=False,
    callback=_set_defaults,
    help="TOML file with any of these options.",
)


@click.command(cls=GroupedCommand)
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
