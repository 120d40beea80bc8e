"""`specedge serve`: options from the line, the environment or a file, and the settings that they make."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from specedge.errors import UsageError

from ..options import DRAFTERS
from .options import ENCODER_PROVIDER, NO_DOWNLOAD, GroupedCommand, installed_models, option, options_of, switch

__all__ = ["serve"]

_PREFIX = "SPECEDGE_SERVE_"
_LIMITS: dict[str, Any] = {"group": "Limits"}
_MORE: dict[str, Any] = {"group": "Wyoming"}


class _Command(GroupedCommand):
    """Options that the line leaves out come from SPECEDGE_SERVE_<OPTION>, from the file that ..._FILE names, or from
    --config, in this order."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> click.Context:
        with click.Context(self, info_name=info_name, parent=parent) as bare:
            values = self.make_parser(bare).parse_args(list(self._spelled_out(bare, list(args))))[0]
        config = values.get("config") or os.environ.get(f"{_PREFIX}CONFIG")
        known = {param.name: param for param in self.params if isinstance(param, click.Option) and param.name}
        extra["default_map"] = {**_from_toml(config, known), **_from_environment(known)}
        return super().make_context(info_name, args, parent, **extra)


def _from_environment(known: Mapping[str, click.Option]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, param in known.items():
        variable = _PREFIX + max(param.opts, key=len).lstrip("-").replace("-", "_").upper()
        value = os.environ.get(variable)
        if value is None and os.environ.get(f"{variable}_FILE"):
            value = _read(os.environ[f"{variable}_FILE"], variable).strip()
        if value is not None:
            found[name] = value.split() if param.multiple else value
    return found


def _from_toml(config: str | None, known: Mapping[str, click.Option]) -> dict[str, Any]:
    if not config:
        return {}
    try:
        table = tomllib.loads(_read(config, "--config"))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{config}: is no TOML: {error}") from None
    names = {max(param.opts, key=len).lstrip("-"): name for name, param in known.items()}
    found = {}
    for key, value in table.items():
        name = names.get(key.replace("_", "-"))
        if name is None:
            raise UsageError(f"{config}: unknown option {key!r}; expected one of {', '.join(sorted(names))}")
        is_list = known[name].multiple
        if isinstance(value, (dict, list)) and not (is_list and isinstance(value, list)):
            raise UsageError(f"{config}: {key}: expected a single value")
        found[name] = (
            [str(one) for one in value] if isinstance(value, list) else [str(value)] if is_list else str(value)
        )
    return found


def _read(path: str, what: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise UsageError(f"{what}: {path} cannot be read: {getattr(error, 'strerror', None) or error}") from None


_OPTIONS = (
    option(
        "-m",
        "--model",
        "models",
        multiple=True,
        metavar="MODEL",
        shell_complete=installed_models,
        help="Model by name or folder, several times for several; the first is the default.  [default: all installed]",
    ),
    option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address to listen on."),
    option("--port", type=int, default=8000, show_default=True, metavar="N", help="Port; 0 takes a free one."),
    option("--api-key", "api_keys", multiple=True, metavar="KEY", help="Key that clients must send, or several."),
    option("--cors", multiple=True, metavar="ORIGIN", help="Origin whose pages may ask, such as https://example.org."),
    option(
        "-t",
        "--threads",
        type=click.IntRange(min=0),
        default=0,
        metavar="N",
        help="CPU threads.  [default: by machine]",
    ),
    ENCODER_PROVIDER,
    NO_DOWNLOAD,
    option(
        "--drafter", type=click.Choice(DRAFTERS), default="auto", show_default=True, metavar="NAME", help="Drafter."
    ),
    option("--token-map", "token_maps", multiple=True, metavar="FILE", help="Token map to draft with, or several."),
    switch("--remember", help="Keep the n-grams of what was said for later runs."),
    switch("--no-page", help="Serve no page at /."),
    option("--config", metavar="FILE", help="TOML file with any of these options."),
)
_BOUNDS = (
    option("--max-upload", default="200MB", show_default=True, metavar="SIZE", help="Largest request.", **_LIMITS),
    option("--max-duration", default="4h", show_default=True, metavar="TIME", help="Longest audio.", **_LIMITS),
    option(
        "--upload-timeout",
        default="30s",
        show_default=True,
        metavar="TIME",
        help="Upload that stands still.",
        **_LIMITS,
    ),
    option(
        "--parallel", type=int, default=8, show_default=True, metavar="N", help="Requests in work at once.", **_LIMITS
    ),
    option("--queue", type=int, default=16, show_default=True, metavar="N", help="Requests that may wait.", **_LIMITS),
    option("--unload-after", metavar="TIME", help="Unload a model that nobody uses.  [default: never]", **_LIMITS),
    option(
        "--grace", default="30s", show_default=True, metavar="TIME", help="Time to finish after SIGTERM.", **_LIMITS
    ),
)
_WYOMING = (
    option("--wyoming", metavar="URI", help="Serve Wyoming too: tcp://HOST:PORT, unix://PATH or stdio://.", **_MORE),
    option("--zeroconf", metavar="NAME", help="Announce it to Home Assistant under this name.", **_MORE),
    option("--sentences", metavar="FILE", help="Sentences with {name}, for the names that clients give.", **_MORE),
)


@click.command(cls=_Command)
@options_of(_OPTIONS, _BOUNDS, _WYOMING)
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
    from specedge.serve.settings import Settings, parse_bytes, parse_seconds

    def parsed(name: str, parse: Any) -> Any:
        try:
            return parse(given[name])
        except UsageError as error:
            raise UsageError(f"--{name.replace('_', '-')}: {error}") from None

    same = ("models", "host", "port", "api_keys", "cors", "parallel", "queue", "threads", "drafter", "token_maps")
    run(
        Settings(
            **{name: given[name] for name in (*same, "remember", "encoder_provider", "wyoming", "zeroconf")},
            downloads=not given["no_download"],
            page=not given["no_page"],
            sentences=None if given["sentences"] is None else Path(given["sentences"]),
            max_upload_bytes=parsed("max_upload", parse_bytes),
            max_duration_s=parsed("max_duration", parse_seconds),
            upload_timeout_s=parsed("upload_timeout", parse_seconds),
            unload_after_s=parsed("unload_after", parse_seconds) if given["unload_after"] else 0,
            grace_s=parsed("grace", parse_seconds),
        )
    )
