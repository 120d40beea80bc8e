"""Where files lie: on disk, or in any store that fsspec knows (`s3://bucket/talks`).

What is written to an output folder is there as a whole or not at all: on disk by a temporary file that is renamed, in
an object store because an object appears when its upload is complete.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specedge.errors import AudioError, AudioNotFoundError, ResourceError, SpecedgeError, UsageError
from specedge.files import write_atomic
from specedge.leftovers import Names, sweep, temporary_file

from ..runtime.audio.audio import STDIN, expand_folders, is_audio_name

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

LOCK = ".lock"
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE}
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}


@dataclass(frozen=True, kw_only=True)
class Source:
    """A file to transcribe: `path` as it was given, `inside` below the folder that was given, `size` in bytes; `stamp`
    differs when the file was changed."""

    path: str
    inside: str
    size: int
    stamp: str

    @property
    def place(self) -> str:
        """As a process elsewhere opens it."""
        return self.path if is_url(self.path) else os.path.abspath(self.path)


class Folder:
    """An output folder, by its path or URL; a disk must be seen by all workers under the same path. Names are relative,
    with "/". All methods raise ResourceError."""

    def __init__(self, url: str) -> None:
        """Makes the folder, on a disk. Raises UsageError for a place that cannot be one, ResourceError."""
        self.is_disk = not is_url(url)
        if self.is_disk:
            try:
                os.makedirs(url, exist_ok=True)
            except FileExistsError:
                raise UsageError(f"-o {url}: this is a file, expected a folder") from None
            except OSError as error:
                reason = error.strerror or error
                raise ResourceError(f"cannot make the folder {url}: {reason}; choose another -o") from None
        self.files, self._root = _opened(url)
        self.url = self._root if self.is_disk else self.files.unstrip_protocol(self._root)

    def exists(self, name: str) -> bool:
        with self.asking("read", name):
            return bool(self.files.exists(f"{self._root}/{name}"))

    def names(self, inside: str) -> set[str]:
        """The names of the files in a folder of it."""
        self.files.invalidate_cache()
        try:
            with self.asking("list", inside):
                found = self.files.ls(f"{self._root}/{inside}", detail=False)
        except FileNotFoundError:
            return set()
        return {name for path in found if not (name := path.rpartition("/")[2]).startswith(".")}

    def read(self, name: str) -> bytes:
        """Raises FileNotFoundError."""
        with self.asking("read", name):
            data: bytes = self.files.cat_file(f"{self._root}/{name}")
        return data

    def write(self, name: str, data: bytes) -> None:
        path = f"{self._root}/{name}"
        with self.asking("write", name):
            self.files.makedirs(path.rpartition("/")[0], exist_ok=True)
            if self.is_disk:
                write_atomic(path, data)
            else:
                self.files.pipe_file(path, data)

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError), self.asking("remove", name):
            self.files.rm_file(f"{self._root}/{name}")

    def tidy(self) -> None:
        """Remove temporary files of workers that were killed; a store has none."""
        for inside in ("results", "parts") if self.is_disk else ():
            tokens = r"[0-9a-z.-]{64,100}\.[0-9a-f]{16}"
            sweep(Names(parent=Path(self.url, inside), prefix=".", suffix=".tmp", tokens=tokens))

    @contextlib.contextmanager
    def asking(self, what: str, name: str) -> Iterator[None]:
        """Turn errors into ResourceError, of which each store has its own; FileNotFoundError stays."""
        try:
            yield
        except (FileNotFoundError, SpecedgeError):
            raise
        except Exception as error:
            raise ResourceError(f"cannot {what} {self.url}/{name}: {_reason(error)}") from error


def is_url(path: str) -> bool:
    """Whether `path` has a scheme such as `s3://`."""
    return "://" in path


def _opened(url: str) -> tuple[Any, str]:
    """The file system behind a path or URL, and the path in it. Raises UsageError."""
    import fsspec

    try:
        files, root = fsspec.core.url_to_fs(url if is_url(url) else os.path.abspath(url))
    except (ImportError, ValueError) as error:
        raise UsageError(f"{url}: {_reason(error)}") from None
    return files, str(root).rstrip("/")


@contextlib.contextmanager
def locked(folder: Folder) -> Iterator[None]:
    """Hold the folder against a second driver, until the block or the process ends.

    Stores, and disks that know no locks, are not held: there two drivers do some files twice, with the same results.
    Raises UsageError where another driver holds it, ResourceError where nothing can be written.
    """
    if not folder.is_disk:
        yield
        return
    with folder.asking("write", LOCK):
        file = open(Path(folder.url, LOCK), "a+")
    with file:
        try:
            if sys.platform == "win32":
                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            else:
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                file.seek(0)
                owner = file.read().strip() or "another driver"
                message = f"{folder.url}: {owner} is at work on this output folder; wait for it, or give another -o"
                raise UsageError(message) from None
        else:
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}")
            file.flush()
        yield


def find_sources(
    names: Sequence[str], *, notify: Callable[[str], None]
) -> tuple[list[Source], dict[str, SpecedgeError]]:
    """The files that `names` stand for: files, folders of audio, URLs of either, each once, in the order given.

    Returned second: why names are not there or cannot be read. Raises UsageError.
    """
    found: dict[str, Source] = {}
    missing: dict[str, SpecedgeError] = {}
    for name in names:
        if name == STDIN:
            raise UsageError("'-': standard input cannot be read by a fleet; give files")
        try:
            for one in _in_store(name) if is_url(name) else _on_disk(name, notify):
                found.setdefault(one.place, one)
        except UsageError:
            raise
        except Exception as error:
            missing[name] = error if isinstance(error, SpecedgeError) else AudioError(f"{name}: {_reason(error)}")
    return list(found.values()), missing


def _on_disk(name: str, notify: Callable[[str], None]) -> Iterator[Source]:
    for path in expand_folders([name], notify=notify):
        try:
            status = os.stat(path)
        except FileNotFoundError:
            raise AudioNotFoundError(f"{path}: no such file") from None
        inside = os.path.basename(path) if path == name else Path(os.path.relpath(path, name)).as_posix()
        yield Source(path=path, inside=inside, size=status.st_size, stamp=f"{status.st_size}-{status.st_mtime_ns}")


def _in_store(url: str) -> Iterator[Source]:
    files, root = _opened(url)
    files.invalidate_cache()
    paths, folder = [root], root.rpartition("/")[0]
    if files.isdir(root):
        paths, folder = sorted(path for path in files.find(root) if is_audio_name(path)), root
        if not paths:
            raise AudioError(f"{url}: no audio file is in this folder")
    elif not files.exists(root):
        raise AudioNotFoundError(f"{url}: no such object")
    for path in paths:
        size, inside = int(files.info(path).get("size") or 0), path.removeprefix(folder).lstrip("/")
        yield Source(path=files.unstrip_protocol(path), inside=inside, size=size, stamp=str(files.ukey(path)))


@contextlib.contextmanager
def local_copy(path: str) -> Iterator[str]:
    """A file on this disk with the contents of `path`: itself, or a copy for as long as the block lasts.

    Raises AudioError for what cannot be read, ResourceError where there is no room for the copy.
    """
    if not is_url(path):
        yield path
        return
    files, root = _opened(path)
    names = Names(parent=Path(tempfile.gettempdir()), prefix="specedge-fleet-", suffix=".audio")
    with temporary_file(names) as copy:  # which sweeps the copies of workers that were killed
        try:
            files.get_file(root, str(copy))
        except Exception as error:  # each store has errors of its own
            if isinstance(error, OSError) and error.errno in _NO_ROOM:
                reason = f"no room for a copy of {path} in {copy.parent}: {error.strerror}; set TMPDIR elsewhere"
                raise ResourceError(reason) from error
            raise AudioError(f"{path}: cannot be read: {_reason(error)}") from error
        yield str(copy)


def _reason(error: Exception) -> str:
    reason = getattr(error, "strerror", None) or str(error)
    return f"{type(error).__name__}: {reason}" if reason else type(error).__name__
