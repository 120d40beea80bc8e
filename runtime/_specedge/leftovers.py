"""Temporary files and folders that the next run sweeps if their maker is dead.

A maker holds a lock (flock) on what it made. The system takes it back however the maker ends, kill -9 included, so an
unlocked one is left over. Where the system or the disk knows no such locks, one that nobody has written to for an hour
is.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

if sys.platform != "win32":
    import fcntl

STALE_S = 3600.0
REPLACED = "replaced"  # where a folder waits in a temporary one while another takes its name


@dataclass(frozen=True, kw_only=True)
class Names:
    """How temporary files are called: a random token between `prefix` and `suffix`, in `parent`."""

    parent: Path
    prefix: str
    suffix: str = ""
    tokens: str = "[0-9a-f]{16}"

    def new(self) -> Path:
        return self.parent / f"{self.prefix}{secrets.token_hex(8)}{self.suffix}"

    def found(self) -> list[Path]:
        """Existing ones; none where the folder cannot be read."""
        pattern = re.compile(re.escape(self.prefix) + self.tokens + re.escape(self.suffix))
        with contextlib.suppress(OSError):
            return [path for path in self.parent.iterdir() if pattern.fullmatch(path.name)]
        return []


def temporary_file(names: Names, *, mode: int = 0o600) -> contextlib.AbstractContextManager[Path]:
    """A new empty file, removed when the block ends; leftovers of `names` are swept first. Raises OSError."""
    return _temporary(names, lambda path: os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)))


def temporary_folder(names: Names, *, mode: int = 0o700) -> contextlib.AbstractContextManager[Path]:
    """The same with an empty folder."""
    return _temporary(names, lambda path: path.mkdir(mode))


@contextlib.contextmanager
def _temporary(names: Names, make: Callable[[Path], None]) -> Iterator[Path]:
    sweep(names)
    path, lock = _made(names, make)
    try:
        yield path
    finally:
        _remove(path)
        if lock is not None:
            os.close(lock)


def swap_in(folder: Path, out: Path, names: Names) -> None:
    """Rename `folder` to `out`. What is there is renamed aside first, into a temporary folder of `names`, and comes
    back where that fails, or with the next `sweep` that is given `out`. Raises OSError."""
    if not os.path.lexists(out):
        os.rename(folder, out)
        return
    with temporary_folder(names) as old:
        os.rename(out, old / REPLACED)
        try:
            os.rename(folder, out)
        except BaseException:
            os.rename(old / REPLACED, out)
            raise


def sweep(names: Names, out: Path | None = None) -> None:
    """Remove the temporaries of `names` whose makers are dead, after `out` came back from one killed in `swap_in`."""
    for path in names.found():
        with contextlib.suppress(OSError):
            lock = lock_of(path, wait=False)
            try:
                inside = list(path.iterdir()) if path.is_dir() else []
                if lock is not None or time.time() - max(p.lstat().st_mtime for p in (path, *inside)) > STALE_S:
                    if out is not None and (path / REPLACED).is_dir() and not os.path.lexists(out):
                        os.rename(path / REPLACED, out)
                    _remove(path)
            finally:
                if lock is not None:
                    os.close(lock)


def _made(names: Names, make: Callable[[Path], None]) -> tuple[Path, int | None]:
    """A new temporary with its lock. A sweep may come between making and locking; then another one is made."""
    while True:
        path = names.new()
        make(path)
        try:
            lock = lock_of(path, wait=True)
        except FileNotFoundError:
            continue
        if lock is None or _is_at(path, lock):
            return path, lock
        os.close(lock)


def lock_of(path: Path, *, wait: bool) -> int | None:
    """A descriptor that holds the lock; None where there are no locks. Raises BlockingIOError if another holds it."""
    if sys.platform == "win32":
        return None
    # A network disk locks only files that are open for writing, and so no folders.
    access = os.O_RDONLY if path.is_dir() else os.O_RDWR
    descriptor = os.open(path, access | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
