"""Files that are old or new at any instant, never half: written beside their place, synced, renamed.

The new file has the old one's mode and owner, and a link to it stays a link; hard links are not kept. A process that is
killed leaves a temporary file, which the next writer of the same name sweeps (leftovers.py).

An output never replaces an input, a device, a pipe, or a file of another kind: the likely accident is a forgotten
output name (`-o *.txt`). A file's kind is told by its first bytes, never its name; an empty file is of every kind.

Files that hold a user's words are private from the start: folders are made with the mode 0700 and files with 0600,
whatever the umask. On Windows a user's folders are private already.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from specedge import leftovers
from specedge.errors import ResourceError, SpecedgeError, UsageError

_HEAD_BYTES = 1 << 16
_Path = str | os.PathLike[str]
_Identity = tuple[int, int]
_DROPPINGS = (".ds_store", "thumbs.db", "desktop.ini")  # that file managers leave everywhere
_SHOWN = 3
_RETRIES_S = (0.05, 0.2, 0.5)  # Windows refuses to replace a file while somebody opens it
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Kind:
    """A kind of output: `name` as messages say it ("token map"); `begins` tells it by a file's first 64 KiB."""

    name: str
    begins: Callable[[bytes], bool]


def identities(paths: Iterable[_Path]) -> frozenset[_Identity]:
    """Device and inode of those `paths` that exist ("-" does not), to compare files by."""
    found = set()
    for path in paths:
        with contextlib.suppress(OSError, ValueError):
            found.add(_identity(os.stat(path)))
    return frozenset(found)


def check_output(path: _Path, kind: Kind, *, inputs: Collection[_Identity] = ()) -> None:
    """Raise UsageError when `path` is one of `inputs` (their `identities`), no regular file, protected, or of
    another kind. Asked before the work, and again when the file is published."""
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
    if not os.access(path, os.R_OK | os.W_OK):
        raise UsageError(f"{where}: exists and is protected, so it is not replaced; choose another place")
    with open(path, "rb") as file:
        head = file.read(_HEAD_BYTES)
    if head and not kind.begins(head):
        raise UsageError(
            f"{where}: exists and is no {kind.name}, so it is not replaced; choose another place, or remove it first"
        )


def make_output_folder(path: Path) -> None:
    """Make the folder that -o names, and those above it. Raises UsageError for a file, ResourceError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise UsageError(f"-o {path}: this is a file, expected a folder") from None
    except OSError as error:
        raise ResourceError(f"cannot make the folder {path}: {error.strerror or error}; choose another -o") from None


def check_folder(out: Path, is_part: Callable[[str], bool], what: str) -> None:
    """Raise UsageError when the folder holds files that are no part of `what`; `is_part` is asked with "/" in names."""
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

    Raises OSError for links in a circle, and for one that the system forbids to follow.
    """
    if not os.path.islink(path):
        return Path(path)
    with contextlib.suppress(FileNotFoundError):
        os.stat(path)
    return Path(os.path.realpath(path))


def _identity(status: os.stat_result) -> _Identity:
    return status.st_dev, status.st_ino


def _names(target: Path) -> leftovers.Names:
    return leftovers.Names(parent=target.parent, prefix=f".{target.name[:100]}.", suffix=".tmp")


def write_atomic(path: str | os.PathLike[str], data: str | bytes, kind: Kind | None = None) -> None:
    """Write a file as a whole. Text is UTF-8. Raises as `publishing`."""
    with publishing(path, kind) as file:
        file.write(data.encode("utf-8", errors="replace") if isinstance(data, str) else data)


@contextlib.contextmanager
def publishing(path: str | os.PathLike[str], kind: Kind | None = None) -> Iterator[BinaryIO]:
    """A binary file to fill, which becomes `path` when the block ends well and is removed when it does not.

    `kind`: an existing file is replaced only if it is of this kind (`check_output`, which raises UsageError). Raises
    ResourceError when the disk is full, or the folder is missing or may not be written.
    """
    with disk_errors(Path(path)):
        target = followed(path)
        old = target.stat() if target.exists() else None
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
    """A folder beside `path`, on the same disk, that is removed when the block ends. Raises ResourceError."""
    with disk_errors(Path(path)), leftovers.temporary_folder(_names(followed(path))) as folder:
        yield folder


def publish_folder(folder: Path, out: Path) -> None:
    """Rename a `scratch_folder` of `out`, which is whole, to `out`; what is there goes once it is replaced. A kill
    leaves one of both, at `out` or for `sweep` to put back. Raises ResourceError."""
    with disk_errors(out):
        leftovers.swap_in(folder, out, _names(out))


def sweep(target: Path) -> None:
    """Remove temporary files that killed writers of `target` left; a folder they were about to replace comes back."""
    leftovers.sweep(_names(target), target)


def _make_alike(file: BinaryIO, old: os.stat_result) -> None:
    """Give the new file mode and owner of the one that it will replace."""
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
def disk_errors(target: Path) -> Iterator[None]:
    """Turn what the system refuses while `target` is written into ResourceError."""
    try:
        yield
    except SpecedgeError:
        raise
    except OSError as error:
        reason = error.strerror or type(error).__name__
        advice = "free some space or choose" if error.errno in _FULL else "choose"
        raise ResourceError(f"cannot write {target}: {reason}; {advice} another place") from error


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable, where the system lets a folder be opened."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def private_folder(path: Path) -> None:
    """Make the folder, closed to others, if there is none. Raises OSError."""
    if not path.parent.is_dir():  # else nothing is asked of what lies above
        path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
