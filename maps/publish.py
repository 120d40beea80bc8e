"""Files that are old or new at any instant, never half: written beside their place, synced, renamed.

A process that is killed leaves a temporary behind; the next writer of the same name sweeps those older than an hour.
Knows paths and bytes; not what is in them.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from specedge.runtime.errors import ResourceError

__all__ = ["publishing", "scratch_folder", "sweep"]

STALE_S = 3600.0
_RETRIES_S = (0.05, 0.2, 0.5)  # Windows refuses to replace a file while somebody opens it


def _temporary(target: Path) -> Path:
    return target.parent / f".{target.name[:100]}.{secrets.token_hex(8)}.tmp"


@contextlib.contextmanager
def publishing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A binary file to fill, which becomes `path` when the block ends well and vanishes when it does not.

    Raises ResourceError when the disk is full, the folder is missing or may not be written.
    """
    target = Path(path)
    temporary = _temporary(target)
    sweep(target)
    with _disk_errors(target):
        try:
            with open(temporary, "xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            _replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    _sync_folder(target.parent)


@contextlib.contextmanager
def scratch_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """An empty folder beside `path`, on the same disk, that is removed with all it holds when the block ends.

    Raises ResourceError as `publishing` does.
    """
    target = Path(path)
    sweep(target)
    folder = _temporary(target)
    with _disk_errors(target):
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def sweep(target: Path, *, older_than_s: float = STALE_S) -> None:
    """Remove the temporaries of `target` that killed writers left and nobody has written to for so long."""
    prefix = f".{target.name[:100]}."
    with contextlib.suppress(OSError):
        for entry in list(target.parent.iterdir()):
            token = entry.name.removeprefix(prefix).removesuffix(".tmp")
            if entry.name != f"{prefix}{token}.tmp" or len(token) != 16 or not set(token) <= set("0123456789abcdef"):
                continue
            with contextlib.suppress(OSError):
                is_folder = entry.is_dir() and not entry.is_symlink()
                inside = list(entry.iterdir()) if is_folder else []
                if time.time() - max(p.lstat().st_mtime for p in (entry, *inside)) > older_than_s:
                    shutil.rmtree(entry) if is_folder else entry.unlink()


def _replace(temporary: Path, target: Path) -> None:
    for wait_s in _RETRIES_S if os.name == "nt" else ():
        try:
            os.replace(temporary, target)
            return
        except PermissionError:
            time.sleep(wait_s)
    os.replace(temporary, target)


@contextlib.contextmanager
def _disk_errors(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ResourceError(f"cannot write {target}: {reason}; free some space or choose another place") from error


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable, where the system lets a folder be opened."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
