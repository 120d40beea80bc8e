"""The command `specedge`: its subcommands, and how errors become one line and an exit code.

Subcommands are a table of module and attribute, imported only when called, so that `specedge --help` is quick.
Exit codes are those of `errors`: 0 ok, 1 internal or some inputs failed, 2 usage, 3 audio, 4 model or map, 5 resources,
130 interrupted; and 141, as for any program in a shell, when the reader of a pipe has gone.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import logging
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from specedge import __version__
from specedge.runtime.errors import Interrupted, ResourceError, SpecedgeError, UsageError

__all__ = ["main", "specedge"]

_BROKEN_PIPE_EXIT = 141
_RESOURCE_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM, errno.EMFILE, errno.ENFILE}
_EXTRA_OF = {
    "onnx": "export",
    "safetensors": "export",
    "huggingface_hub": "export",
    "torch": "train",
    "transformers": "train",
    "librosa": "train",
}


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """A subcommand: where it is and its line in the help."""

    target: str
    help: str


_COMMANDS = {
    "transcribe": _Entry(target="specedge.runtime.cli:transcribe", help="Turn speech into text."),
    "export": _Entry(target="specedge.export.cli:export", help="Make a bundle from a Whisper checkpoint."),
    "models": _Entry(target="specedge.models.cli:models", help="List, pull, locate and remove models."),
    "map": _Entry(
        target="specedge.runtime.commands.map:token_map", help="Build and inspect token maps from transcripts."
    ),
    "cache": _Entry(
        target="specedge.runtime.commands.cache:cache", help="Show, export or clear what was learned from your text."
    ),
    "inspect": _Entry(target="specedge.runtime.cli:inspect", help="Show what a bundle holds."),
    "doctor": _Entry(target="specedge.runtime.cli:doctor", help="Check this machine, runtime and model."),
}


class _BrokenPipe(Exception):
    """Standard output's reader went away. Not an OSError, which click would end by itself."""


@contextlib.contextmanager
def _before_click() -> Iterator[None]:
    """Take what click would answer itself: with an empty line for the first, with exit code 1 for the second."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted("interrupted") from None
    except BrokenPipeError:
        raise _BrokenPipe from None


class _LazyGroup(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = _COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module_name, _, attribute = entry.target.partition(":")
        command: click.Command = getattr(importlib.import_module(module_name), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in _COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in _COMMANDS and not name.startswith("-"):
            import difflib

            near = difflib.get_close_matches(name, _COMMANDS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(_COMMANDS)}"
            raise click.UsageError(f"unknown command {name!r}, {hint}", ctx=ctx)
        return super().resolve_command(ctx, args)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _before_click():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _before_click():
            return super().invoke(ctx)


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
@click.version_option(__version__, "-V", "--version", prog_name="specedge", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error (or SPECEDGE_DEBUG=1).")
@click.pass_context
def specedge(ctx: click.Context) -> None:
    """Speech-to-text with Whisper on CPUs, fast by speculation that never changes the text.

    \b
    Examples:
      specedge transcribe talk.wav
      specedge transcribe *.mp3 -f json -o out/ -m small
      specedge models pull small
      specedge doctor
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(UsageError.exit_code)


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=str))
@click.option("-m", "--model", metavar="MODEL", help="Model name or bundle folder.  [default: the bundled demo]")
@click.option("-l", "--language", metavar="LANG", help="Spoken language, code or English name.  [default: detected]")
@click.option(
    "--task",
    type=click.Choice(["transcribe", "translate"]),
    default="transcribe",
    show_default=True,
    help="Write what is said, or its English translation.",
)
@click.option("-t", "--threads", type=click.IntRange(min=0), metavar="N", help="CPU threads.  [default: by machine]")
@click.option(
    "-f", "--output-format", type=click.Choice(["txt", "json"]), default="txt", show_default=True, help="Format."
)
@click.option("-o", "--output-dir", metavar="DIR", help="Write one file for each input there.  [default: print]")
@click.option("--no-timestamps", is_flag=True, help="Do not let the model predict times: one segment a window.")
@click.option("--raw", metavar="FORMAT", help="Inputs are headerless PCM, such as s16le:16000 or s16le:48000:2.")
@click.option(
    "--drafter", type=click.Choice(["none"]), default="none", show_default=True, help="Who guesses the next tokens."
)
@click.pass_context
def transcribe(ctx: click.Context, /, files: tuple[str, ...], **given: Any) -> None:
    """Turn speech into text: print it, or write one file for each FILE with -o. `-` is standard input.

    Any audio that libsndfile or an ffmpeg on PATH can read. Decoding is greedy, because speculation is exact against
    greedy decoding.

    \b
    Examples:
      specedge transcribe talk.wav
      specedge transcribe talk.wav -m small -l de -f json
      specedge transcribe a.flac b.mp3 -o out/ -f json
      arecord -f S16_LE -r 16000 -t raw | specedge transcribe - --raw s16le:16000
    """
    from specedge.runtime.audio import RawFormat
    from specedge.runtime.options import TranscribeOptions
    from specedge.runtime.tokenizer import find_language
    from specedge.runtime.transcribe_files import Request, transcribe_files

    language = given["language"]
    request = Request(
        files=_expand(files),
        model=given["model"],
        threads=given["threads"] or None,
        format=given["output_format"],
        folder=None if given["output_dir"] is None else Path(given["output_dir"]),
        raw=None if given["raw"] is None else RawFormat.parse(given["raw"]),
        drafter=given["drafter"],
        options=TranscribeOptions(
            language=None if language in (None, "auto", "None") else find_language(language),
            task=given["task"],
            without_timestamps=given["no_timestamps"],
        ),
    )

    def report(error: Exception) -> None:
        _fail(error, debug=bool(ctx.obj))

    ctx.exit(transcribe_files(request, notify=_notify, report=report))


@click.command()
@click.argument("bundle", metavar="BUNDLE")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--no-verify", is_flag=True, help="Do not hash the files, which takes a second for each few gigabytes.")
def inspect(bundle: str, as_json: bool, no_verify: bool) -> None:
    """Show what BUNDLE, a model's name or a bundle's folder, holds.

    \b
    Examples:
      specedge inspect demo
      specedge inspect out/whisper-small --json
    """
    import json

    from specedge.models import store
    from specedge.runtime.bundle import Bundle
    from specedge.runtime.inspect_bundle import describe, describe_json

    opened = Bundle.open(store.find(bundle), verify=not no_verify)
    click.echo(json.dumps(describe_json(opened), indent=1) if as_json else describe(opened))


@click.command()
@click.option("-m", "--model", metavar="MODEL", help="Model name or bundle folder.  [default: the bundled demo]")
@click.option("-t", "--threads", type=click.IntRange(1, 256), multiple=True, help="Threads to probe (repeatable).")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def doctor(model: str | None, threads: tuple[int, ...], as_json: bool) -> int:
    """Check that this machine keeps a bundle's promises: rows bit-identical for every pass width.

    Exits with 1 when a promise does not hold.

    \b
    Examples:
      specedge doctor
      specedge doctor -m whisper-small
      specedge doctor -m ./bundle --json
    """
    import json

    from specedge.models import store
    from specedge.runtime.bundle import Bundle
    from specedge.runtime.doctor import examine, render

    report = examine(Bundle.open(store.default() if model is None else store.find(model)), threads=threads or None)
    click.echo(json.dumps(report.to_json(), indent=2) if as_json else render(report))
    return 0 if report.healthy else SpecedgeError.exit_code


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with `argv` (without the program's name; None: the process's own) and return its exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    debug = _debug_wanted(args)
    _prepare_streams()
    try:
        with _library_warnings():
            code = specedge.main(_without_debug(args), prog_name="specedge", standalone_mode=False, obj=debug)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except (_BrokenPipe, BrokenPipeError):
        return _BROKEN_PIPE_EXIT
    except click.exceptions.Abort:
        return _fail(Interrupted("interrupted"), debug=debug)
    except (KeyboardInterrupt, Exception) as error:
        return _fail(error, debug=debug)
    finally:
        _settle_stdout()


def _expand(files: tuple[str, ...]) -> tuple[str, ...]:
    """What a shell does elsewhere: Windows passes `*.wav` as it is."""
    if os.name != "nt":
        return files
    import glob

    return tuple(name for pattern in files for name in (sorted(glob.glob(pattern)) or [pattern]))


def _debug_wanted(args: Sequence[str]) -> bool:
    return os.environ.get("SPECEDGE_DEBUG", "") not in ("", "0") or "--debug" in _options(args)


def _without_debug(args: Sequence[str]) -> list[str]:
    options = _options(args)
    return [*(arg for arg in options if arg != "--debug"), *args[len(options) :]]


def _options(args: Sequence[str]) -> list[str]:
    args = list(args)
    return args[: args.index("--")] if "--" in args else args


def _notify(message: str) -> None:
    """One line to standard error; a standard error that is gone is no reason to stop."""
    with contextlib.suppress(OSError, ValueError):
        if sys.stderr is not None:
            sys.stderr.write(f"specedge: {message}\n")
            sys.stderr.flush()


def _fail(error: BaseException, *, debug: bool) -> int:
    """Say what happened in one line, with the traceback before it if `debug`; returns the exit code."""
    if type(error).__name__ == "NoArgsIsHelpError" and isinstance(error, click.UsageError):
        click.echo(error.format_message(), err=True)
        return error.exit_code
    if debug and sys.stderr is not None:
        traceback.print_exception(error)
    shown = _as_ours(error)
    # The prompt comes back on a line of its own after ^C; there is nothing to explain to the one who pressed it.
    _notify(str(shown) if isinstance(shown, Interrupted) else f"error: {shown}")
    return shown.exit_code


def _as_ours(error: BaseException) -> SpecedgeError:
    if isinstance(error, SpecedgeError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Interrupted("interrupted")
    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        hint = f" (see `{context.command_path} --help`)" if context is not None else ""
        return UsageError(error.format_message().rstrip(".") + hint)
    if isinstance(error, MemoryError):
        return ResourceError("out of memory: use a smaller model, or close other programs")
    if isinstance(error, OSError) and error.errno in _RESOURCE_ERRNOS:
        where = f"{error.filename}: " if error.filename else ""
        return ResourceError(f"{where}{error.strerror or error}: free some memory, disk space or open files")
    if isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] in _EXTRA_OF:
        name = (error.name or "").split(".")[0]
        return UsageError(f"this needs {name}, which is not installed: pip install 'specedge[{_EXTRA_OF[name]}]'")
    return SpecedgeError(
        f"internal fault, {type(error).__name__}: {str(error)[:500]} (run it again with --debug to see where, "
        "and please report it)"
    )


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
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagated


class _StderrHandler(logging.Handler):
    """Warnings of the library as lines of the command."""

    def emit(self, record: logging.LogRecord) -> None:
        _notify(f"{record.levelname.lower()}: {' '.join(record.getMessage().split())}")


def _settle_stdout() -> None:
    """Where what is buffered cannot be written, drop it, or the interpreter's own flush at exit would complain."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
