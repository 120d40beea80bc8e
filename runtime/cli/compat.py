"""`specedge compat`: programs that import `faster_whisper`, run on specedge without being changed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import click

from specedge.errors import UsageError

from ..options import AUTO_PROVIDER
from .options import ModelOptions, fields_of, installed_models, options_of


# Options behind PROGRAM are the program's.
@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--model",
    metavar="MODEL",
    shell_complete=installed_models,
    help="Use this model, whatever PROGRAM asks for.  [default: what it asks for]",
)
@options_of(fields_of(ModelOptions, "encoder_provider"))
@click.option("--path", "shows_path", is_flag=True, help="Print the folder that holds faster_whisper, for PYTHONPATH.")
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="-- PROGRAM [ARGS]...")
def compat(model: str | None, encoder_provider: str, shows_path: bool, program: tuple[str, ...]) -> int:
    """Run PROGRAM with specedge's faster_whisper in front of an installed one; the exit code is the program's.

    PROGRAM is a command of this Python's environment, a script, or -m and a module. It and programs that it starts find
    a package faster_whisper that hands everything to specedge. docs/compat.md says which programs were tried and what
    differs.

    \b
    Examples:
      specedge compat -- whisper-ctranslate2 --model small talk.mp3
      specedge compat -- program.py talk.mp3
      specedge compat --model base -- -m wyoming_faster_whisper --uri tcp://0.0.0.0:10300 --data-dir data
      specedge compat --encoder-provider openvino -- program.py talk.mp3
      PYTHONPATH=$(specedge compat --path) python program.py
    """
    if shows_path:
        click.echo(_folder())
        return 0
    if not program:
        raise UsageError("expected a program: specedge compat -- PROGRAM [ARGS]...")
    command = command_line(program)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([_folder(), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]),
        "SPECEDGE_RUN_COMPAT": "1",
    }
    if model is not None:
        from specedge.models import store

        store.find(model)  # raises ModelNotFoundError, before the program loads its libraries
        environment["SPECEDGE_COMPAT_MODEL"] = model
    if encoder_provider != AUTO_PROVIDER:
        environment["SPECEDGE_COMPAT_ENCODER_PROVIDER"] = encoder_provider
    sys.stdout.flush()
    if os.name == "nt":  # where exec does not wait
        return subprocess.call(command, env=environment)
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        raise UsageError(f"{command[0]}: cannot be run ({error.strerror or error})") from None


def command_line(program: tuple[str, ...]) -> list[str]:
    """What to execute for PROGRAM and its arguments. Raises UsageError for one that cannot be found."""
    name, *arguments = program
    if name == "-m":
        if not arguments:
            raise UsageError("-m: expected a module behind it, such as -m wyoming_faster_whisper")
        return [sys.executable, "-m", *arguments]
    if os.path.isfile(name) and (name.endswith(".py") or not os.access(name, os.X_OK)):
        return [sys.executable, name, *arguments]
    own = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    found = shutil.which(name, path=own)
    if found is None:
        raise UsageError(
            f"{name}: no such program or script; expected a command that is installed beside specedge, a path, "
            "or -m MODULE"
        )
    return [found, *arguments]


def _folder() -> str:
    from specedge import compat as package

    return os.path.dirname(os.path.abspath(package.__file__))
