"""The command `specedge`: the table of its subcommands, and one place where every error ends.

Subcommands are imported when they are called, so that `specedge --help` is quick. Exit codes are those of `errors`: 0
ok, 1 internal or some inputs failed, 2 usage, 3 audio, 4 model or map, 5 resources, 130 interrupted, 143 terminated;
and 141, as for any program in a shell, when the reader of a pipe has gone.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import click
from click.shell_completion import shell_complete

from specedge.errors import UsageError
from specedge.version import __version__

from ..console import LOSS, notify
from ..interrupt import interruption, unwinding
from .errors import fail

_BROKEN_PIPE_EXIT = 141
_COMPLETE = "_SPECEDGE_COMPLETE"

# By name, the module and attribute, and the line in the help.
_COMMANDS = {
    "transcribe": ("specedge.runtime.cli.transcribe:transcribe", "Turn speech into text."),
    "listen": ("specedge.runtime.cli.listen:listen", "Turn speech into text as it is spoken."),
    "serve": ("specedge.runtime.cli.serve:serve", "Serve transcription to other programs, and a page."),
    "fleet": ("specedge.runtime.cli.fleet:fleet", "Turn archives into text, on many processes or machines."),
    "align": ("specedge.runtime.cli.align:align", "Find when each word of a known text is said."),
    "export": ("specedge.runtime.cli.export:export", "Make a bundle from a Whisper checkpoint."),
    "train": ("specedge.runtime.cli.train:train", "Train small models that draft for a target."),
    "models": ("specedge.runtime.cli.models:models", "List, pull, show and remove models."),
    "map": ("specedge.runtime.cli.map:token_map", "Build and inspect token maps from transcripts."),
    "bench": ("specedge.runtime.cli.bench:bench", "Measure drafters, models and peers here, and say what to use."),
    "doctor": ("specedge.runtime.cli.doctor:doctor", "Check this machine, runtime and model; time its passes."),
    "disk": ("specedge.runtime.cli.disk:disk", "Show and remove what lies on disk: models, caches, learned text."),
    "compat": ("specedge.runtime.cli.compat:compat", "Run programs for faster-whisper on specedge, unchanged."),
}
_MEDIA = frozenset(".wav .mp3 .flac .ogg .opus .m4a .aac .mp4 .mkv .webm .mov".split())


class _LazyGroup(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _, attribute = _COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in _COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] == "help":  # `specedge help COMMAND`, as git has it
            if len(args) == 1:
                click.echo(ctx.get_help())
                ctx.exit()
            args = [args[1], "--help"]
        name = args[0]
        if name not in _COMMANDS and not name.startswith("-"):
            import difflib

            near = difflib.get_close_matches(name, _COMMANDS, n=1)
            if name == "-" or os.path.exists(name) or os.path.splitext(name)[1].lower() in _MEDIA:
                raise UsageError(f"{name} is no command; to turn it into text: specedge transcribe {name}")
            hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(_COMMANDS)}"
            raise click.UsageError(f"unknown command {name!r}, {hint}", ctx=ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=_LazyGroup,
    invoke_without_command=True,
    # openai-whisper's spelling (--output_format) is accepted everywhere and shown nowhere.
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda name: name.replace("_", "-"),
        "max_content_width": 100,
    },
)
@click.option("-V", "--version", is_flag=True, help="Show the version.")
@click.option(
    "--completion",
    type=click.Choice(["bash", "zsh", "fish"]),
    help="Print the script that completes commands in this shell: eval it in ~/.bashrc or ~/.zshrc, or write it to "
    "~/.config/fish/completions/specedge.fish.",
)
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error (or SPECEDGE_DEBUG=1).")
@click.pass_context
def specedge(ctx: click.Context, version: bool, completion: str | None) -> None:
    """Speech-to-text with Whisper on CPUs, fast by speculation that never changes the text.

    \b
    Examples:
      specedge transcribe talk.wav
      specedge transcribe *.mp3 -f json -o out/ -m small
      specedge models pull small
      specedge doctor
    """
    if version:
        click.echo(f"specedge {__version__}")
        ctx.exit()
    if completion is not None:
        ctx.exit(shell_complete(ctx.command, {}, "specedge", _COMPLETE, f"{completion}_source"))
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(UsageError.exit_code)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with `argv` (without the program's name; None: the process's own) and return its exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    end = args.index("--") if "--" in args else len(args)
    debug = os.environ.get("SPECEDGE_DEBUG", "") not in ("", "0") or "--debug" in args[:end]
    args = [*(arg for arg in args[:end] if arg != "--debug"), *args[end:]]
    _prepare_streams()
    try:
        with _library_warnings(), unwinding():
            code = _run(args, debug)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except BrokenPipeError:
        return _BROKEN_PIPE_EXIT
    except click.exceptions.Abort as error:
        return fail(interruption(error.__cause__ or error), debug=debug)
    except (KeyboardInterrupt, Exception) as error:
        return fail(error, debug=debug)
    finally:
        _settle_stdout()


def _run(args: list[str], debug: bool) -> Any:
    """What the command returns. Not `specedge.main`, which answers Ctrl-C and broken pipes in its own way."""
    if asked := os.environ.get(_COMPLETE):
        return shell_complete(specedge, {}, "specedge", _COMPLETE, asked)
    try:
        with specedge.make_context("specedge", args, obj=debug) as ctx:
            return specedge.invoke(ctx)
    except click.exceptions.Exit as done:
        return done.exit_code


def _prepare_streams() -> None:
    """Text that standard output cannot encode must not end the program."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            if os.name == "nt" and not stream.isatty() and "PYTHONIOENCODING" not in os.environ:
                stream.reconfigure(encoding="utf-8")
            if stream is sys.stdout:
                stream.reconfigure(errors="replace")


@contextlib.contextmanager
def _library_warnings() -> Iterator[None]:
    """Show the library's own warnings as lines of the command; other programs' logging is as it was afterwards."""
    logger, handler = logging.getLogger("specedge"), _StderrHandler()
    propagated, logger.propagate = logger.propagate, False
    level = logger.level  # a subcommand may set it: --quiet, --verbose
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagated


class _StderrHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        level = "warning" if record.levelno == LOSS else record.levelname.lower()
        notify(f"{level}: {' '.join(record.getMessage().split())}")


def _settle_stdout() -> None:
    """Drop what is buffered and cannot be written: the interpreter's own flush at exit would complain."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
