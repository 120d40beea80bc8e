"""The command to type next, which commands that make something end with, on standard error."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

from specedge.errors import SpecedgeError
from specedge.models import store

from ..console import notify


def say_next(*words: str | Path) -> None:
    """Show `specedge WORDS`, quoted for the shell."""
    command = ["specedge", *(str(word) for word in words)]
    notify(f"next: {subprocess.list2cmdline(command) if os.name == 'nt' else shlex.join(command)}")


def model_argument(folder: Path) -> str:
    """What -m takes for the bundle in `folder`: its name where it is found by that, else the path."""
    try:
        if store.find(folder.name).samefile(folder):
            return folder.name
    except (SpecedgeError, OSError):
        pass
    return str(folder)
