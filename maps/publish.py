"""Files that are old or new at any instant, never half: written beside their place, synced, renamed.

A process that is killed leaves a temporary behind, which the next writer of the same name sweeps (`leftovers`).
Knows paths and bytes; not what is in them.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from specedge.maps import leftovers
from specedge.runtime.errors import ResourceError

if sys.platform != "win32":
    import fcntl

__all__ = ["publishing", "scratch_folder", "sweep"]

_RETRIES_S = (0.05, 0.2, 0.5)  # Windows refuses to replace a file while somebody opens it


def _names(target: Path) -> leftovers.Names:
    return leftovers.Names(parent=target.parent, prefix=f".{target.name[:100]}.", suffix=".tmp")


@contextlib.contextmanager
def publishing(path: str | os.PathLike[str], kind: Kind | None = None) -> Iterator[BinaryIO]:
    """A binary file to fill, which becomes `path` when the block ends well and vanishes when it does not.

    `kind`: a file that users have named is replaced only if it is one (`check_output`, which raises UsageError). Raises
    ResourceError when the disk is full, the folder is missing or may not be written.
    """
    target = Path(path)
    # Held until it has its name: before that, another writer's sweep would take it for a dead one's.
    with _disk_errors(target), leftovers.temporary_file(_names(target), mode=0o666) as temporary:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _replace(temporary, target)
    _sync_folder(target.parent)


@contextlib.contextmanager
def scratch_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A folder beside `path`, on the same disk, that is removed with all it holds when the block ends.

    Raises ResourceError as `publishing` does.
    """
    target = Path(path)
    with _disk_errors(target), leftovers.temporary_folder(_names(target)) as folder:
        yield folder


def sweep(target: Path) -> None:
    """Remove the temporaries that killed writers of `target` left."""
    leftovers.sweep(_names(target))


def _created(temporary: Path, target: Path) -> BinaryIO:
    """The new file, with mode and owner of the one that it will replace; never open to more readers than that."""
    try:
        old = target.stat()
    except OSError:
        old = None
    first_mode = 0o666 if old is None else 0o600
    file = open(temporary, "xb", opener=lambda path, flags: os.open(path, flags, first_mode))  # noqa: SIM115
    if old is not None and hasattr(os, "fchown"):
        for owner, group in ((old.st_uid, old.st_gid), (-1, old.st_gid)):
            with contextlib.suppress(OSError):  # only root may give files away; a group of one's own is fine
                os.fchown(file.fileno(), owner, group)
                break
        os.fchmod(file.fileno(), stat.S_IMODE(old.st_mode) & 0o777)
    return file


@contextlib.contextmanager
def _locked(descriptor: int) -> Iterator[None]:
    """Lock a temporary until it has its name, or its process is gone."""
    if sys.platform == "win32":  # which has no such locks, and renames no file that is open
        yield
        return
    held = os.dup(descriptor)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(held)


@contextlib.contextmanager
def _locked_folder(folder: Path) -> Iterator[None]:
    if sys.platform == "win32":
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with _locked(descriptor):
            yield
    finally:
        os.close(descriptor)


def _is_held(temporary: Path) -> bool | None:
    """Whether the process that made it is at work; None where nobody can say."""
    if sys.platform == "win32":
        return None
    try:
        descriptor = os.open(temporary, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(descriptor)
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False


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
