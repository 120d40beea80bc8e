"""Files that are old or new at any instant, never half: written beside their place, synced, renamed.

The new file has the old one's mode and owner, and a link to it stays a link; hard links are not kept, for that cannot
be done at once. A process that is killed leaves a temporary behind, which the next writer of the same name sweeps
(`leftovers`). Knows paths and bytes; not what is in them (`outputs` knows what may be replaced).
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from specedge.maps import leftovers
from specedge.maps.outputs import Kind, check_output, followed
from specedge.runtime.errors import ResourceError

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
    with _disk_errors(Path(path)):
        target = followed(path)
        old = _stat(target)
        # Held until it has its name: before that, another writer's sweep would take it for a dead one's.
        with leftovers.temporary_file(_names(target), mode=0o666 if old is None else 0o600) as temporary:
            with open(temporary, "wb") as file:
                if old is not None:
                    _make_alike(file, old)
                yield file
                file.flush()
                os.fsync(file.fileno())
            if kind is not None:
                check_output(path, kind)
            _replace(temporary, target)
    _sync_folder(target.parent)


@contextlib.contextmanager
def scratch_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A folder beside `path`, on the same disk, that is removed with all it holds when the block ends.

    Raises ResourceError as `publishing` does.
    """
    with _disk_errors(Path(path)):
        with leftovers.temporary_folder(_names(followed(path))) as folder:
            yield folder


def sweep(target: Path) -> None:
    """Remove the temporaries that killed writers of `target` left."""
    leftovers.sweep(_names(target))


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _make_alike(file: BinaryIO, old: os.stat_result) -> None:
    """Give the new file mode and owner of the one that it will replace; it was never open to more readers than that."""
    if not hasattr(os, "fchown"):
        return
    for owner, group in ((old.st_uid, old.st_gid), (-1, old.st_gid)):
        with contextlib.suppress(OSError):  # only root may give files away; a group of one's own is fine
            os.fchown(file.fileno(), owner, group)
            break
    os.fchmod(file.fileno(), stat.S_IMODE(old.st_mode) & 0o777)


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
