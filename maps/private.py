"""Files that parts of a user's words can be read from: for the user alone, from the moment they are made.

Folders get the mode 0700 and files 0600, whatever the umask; what an earlier version left open to others is closed when
it is opened. A folder that also holds other things, models that several users share, say, keeps its mode: what is
private in it is closed by itself. Does not know: what the files hold. On Windows a user's folders are private already.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

__all__ = ["SIDE_FILES", "private_file", "private_folder"]

SIDE_FILES = ("", "-wal", "-shm", ".bad")  # of an sqlite3 database, with what was set aside
_KEPT = ("learned", "learned.sqlite", "words.sqlite")
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def private_folder(path: Path) -> None:
    """Make the folder if there is none; close it to others unless there are things in it that are not private."""
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        with contextlib.suppress(OSError):
            if all(_is_kept(name) for name in os.listdir(path)):
                _close(path)


def private_file(path: str | os.PathLike[str], *, make: bool = False) -> None:
    """Close a file and what sqlite3 keeps beside it to others, if they are there; with `make` the file is, afterwards.

    What cannot be made or closed is left to who opens it.
    """
    with contextlib.suppress(OSError):
        if make:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    for ending in SIDE_FILES:
        _close(Path(f"{os.fspath(path)}{ending}"))


def _is_kept(name: str) -> bool:
    return any(name == f"{kept}{ending}" for kept in _KEPT for ending in SIDE_FILES) or ".factors" in name


def _close(path: Path) -> None:
    with contextlib.suppress(OSError):
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & _OTHERS:
            path.chmod(mode & ~_OTHERS)
