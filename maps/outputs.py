"""Which file an output may take the place of: none that is an input, no device or pipe, and nothing of another kind.

The likely accident is a forgotten output name (`-o *.txt`) or the wrong one of two. What a file is, its first bytes
say, never its name; an empty file is of every kind. Links are followed: what they lead to is looked at and replaced.
Knows paths and first bytes. Does not know: options, what is written.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from specedge.runtime.errors import UsageError

__all__ = ["Kind", "check_folder", "check_output", "followed", "identities"]

_HEAD_BYTES = 1 << 16
_Path = str | os.PathLike[str]
_Identity = tuple[int, int]
_DROPPINGS = (".ds_store", "thumbs.db", "desktop.ini")  # that file managers leave everywhere
_SHOWN = 3


@dataclass(frozen=True)
class Kind:
    """What an output is: `name` as messages say it ("token map"); `begins` tells by a file's first 64 KiB."""

    name: str
    begins: Callable[[bytes], bool]


def identities(paths: Iterable[_Path]) -> frozenset[_Identity]:
    """What tells files apart, whatever they are called: of those of `paths` that are there ("-" is none)."""
    found = set()
    for path in paths:
        with contextlib.suppress(OSError, ValueError):
            found.add(_identity(os.stat(path)))
    return frozenset(found)


def check_output(path: _Path, kind: Kind, *, inputs: Collection[_Identity] = ()) -> None:
    """Refuse an output that would destroy something else; asked before the work, and again when it is published.

    Raises UsageError when `path` is one of `inputs` (their `identities`), no regular file, write-protected, or of
    another kind.
    """
    where = os.fspath(path)
    try:
        status = os.stat(path)
    except OSError:  # nothing is there, or the writing will say what is wrong
        return
    if _identity(status) in inputs:
        raise UsageError(f"the output {where} would replace the input: choose another name or folder for it")
    if stat.S_ISDIR(status.st_mode):
        return  # writing says so
    if not stat.S_ISREG(status.st_mode):
        raise UsageError(f"{where}: is a device or a pipe, expected the name of a file for a {kind.name}")
    if not os.access(path, os.W_OK):
        raise UsageError(f"{where}: exists and is write-protected, so it is not replaced; choose another place")
    if not _is_kind(path, kind):
        raise UsageError(
            f"{where}: exists and is no {kind.name}, so it is not replaced; choose another place, or remove it first"
        )


def check_folder(out: Path, is_part: Callable[[str], bool], what: str) -> None:
    """Refuse to replace a folder that holds more than `what` it is: the names of its parts, with "/" between folders.

    Raises UsageError naming what else is there.
    """
    strangers = []
    for place, _, names in os.walk(out):
        found = [Path(place, name).relative_to(out).as_posix() for name in names if name.lower() not in _DROPPINGS]
        strangers += [name for name in found if not is_part(name)]
    if strangers:
        named = ", ".join(sorted(strangers)[:_SHOWN]) + (", ..." if len(strangers) > _SHOWN else "")
        raise UsageError(
            f"{out}: holds what is no part of the {what} ({named}), so it is not replaced; move that away, or give "
            "another -o"
        )


def followed(path: _Path) -> Path:
    """Where `path` leads through links, so that a link stays one when its file is replaced.

    Raises OSError for links in a circle, and for one that the system forbids to follow: a stranger's in a shared
    folder.
    """
    if not os.path.islink(path):
        return Path(path)
    with contextlib.suppress(FileNotFoundError):
        os.stat(path)
    return Path(os.path.realpath(path))


def _identity(status: os.stat_result) -> _Identity:
    return status.st_dev, status.st_ino


def _is_kind(path: _Path, kind: Kind) -> bool:
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return False
    return not head or kind.begins(head)
