"""Where files lie: on disk, or in any store that fsspec knows (`s3://bucket/talks`).

An output folder is two small classes with the same methods. What they write is there as a whole or not at all: on disk
by a temporary file that is renamed, in an object store because an object appears when its upload is complete.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from specedge.errors import AudioError, AudioNotFoundError, ResourceError, SpecedgeError, UsageError
from specedge.files import write_atomic
from specedge.leftovers import Names, sweep, temporary_file

from ..runtime.audio.audio import STDIN, expand_folders, is_audio_name

__all__ = ["DiskFolder", "Folder", "ObjectFolder", "Source", "find_sources", "is_url", "local_copy", "open_folder"]

_BLOCK_BYTES = 1 << 20
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE}


@dataclass(frozen=True, kw_only=True)
class Source:
    """A file to transcribe: `path` as it was given, `size` in bytes, `stamp` differs when the file was changed."""

    path: str
    size: int
    stamp: str

    @property
    def place(self) -> str:
        """As a process elsewhere opens it."""
        return self.path if is_url(self.path) else os.path.abspath(self.path)


class Folder(Protocol):
    """An output folder. Names are relative, with "/"."""

    @property
    def url(self) -> str: ...
    def exists(self, name: str) -> bool: ...
    def names(self, inside: str) -> set[str]: ...
    def read(self, name: str) -> bytes: ...
    def write(self, name: str, data: bytes) -> None: ...
    def remove(self, name: str) -> None: ...
    def tidy(self) -> None: ...


@dataclass(frozen=True)
class DiskFolder:
    """A folder on a disk that all workers see under the same path."""

    url: str

    def exists(self, name: str) -> bool:
        return os.path.exists(os.path.join(self.url, name))

    def names(self, inside: str) -> set[str]:
        """The names of the files in a folder of it."""
        with contextlib.suppress(FileNotFoundError):
            return {name for name in os.listdir(os.path.join(self.url, inside)) if not name.startswith(".")}
        return set()

    def read(self, name: str) -> bytes:
        """Raises FileNotFoundError."""
        return Path(self.url, name).read_bytes()

    def write(self, name: str, data: bytes) -> None:
        """Raises ResourceError."""
        path = Path(self.url, name)
        with contextlib.suppress(OSError):  # the write says what is wrong
            path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, data)

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(self.url, name))

    def tidy(self) -> None:
        """Remove temporary files of workers that were killed."""
        for inside in ("results", "parts"):
            tokens = r"[0-9a-z.-]{64,100}\.[0-9a-f]{16}"
            sweep(Names(parent=Path(self.url, inside), prefix=".", suffix=".tmp", tokens=tokens))


@dataclass(frozen=True)
class ObjectFolder:
    """A folder of an object store, by its URL."""

    url: str

    def exists(self, name: str) -> bool:
        """Raises ResourceError."""
        files, root = _opened(self.url)
        with _asking(f"read {self.url}/{name}"):
            return bool(files.exists(f"{root}/{name}"))

    def names(self, inside: str) -> set[str]:
        """Raises ResourceError."""
        files, root = _opened(self.url)
        files.invalidate_cache()
        try:
            with _asking(f"list {self.url}/{inside}"):
                return {name.rpartition("/")[2] for name in files.ls(f"{root}/{inside}", detail=False)}
        except FileNotFoundError:
            return set()

    def read(self, name: str) -> bytes:
        """Raises FileNotFoundError, ResourceError."""
        files, root = _opened(self.url)
        with _asking(f"read {self.url}/{name}"):
            data: bytes = files.cat_file(f"{root}/{name}")
        return data

    def write(self, name: str, data: bytes) -> None:
        """Raises ResourceError."""
        files, root = _opened(self.url)
        with _asking(f"write {self.url}/{name}"):
            files.makedirs(f"{root}/{name}".rpartition("/")[0], exist_ok=True)
            files.pipe_file(f"{root}/{name}", data)

    def remove(self, name: str) -> None:
        """Raises ResourceError."""
        files, root = _opened(self.url)
        with contextlib.suppress(FileNotFoundError), _asking(f"remove {self.url}/{name}"):
            files.rm_file(f"{root}/{name}")

    def tidy(self) -> None:
        """Nothing is left by a worker that was killed: its upload was never completed."""


@contextlib.contextmanager
def _asking(what: str) -> Iterator[None]:
    """Turn what a store raises, each has errors of its own, into ResourceError; FileNotFoundError stays."""
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ResourceError(f"cannot {what}: {_said(error)}") from error


def is_url(path: str) -> bool:
    """Whether `path` has a scheme such as `s3://`."""
    return "://" in path


def open_folder(out: str) -> Folder:
    """The output folder, which is made. Raises UsageError for a place that cannot be one, ResourceError."""
    if is_url(out):
        return ObjectFolder(_opened(out)[0].unstrip_protocol(_opened(out)[1]))
    try:
        os.makedirs(out, exist_ok=True)
    except FileExistsError:
        raise UsageError(f"-o {out}: this is a file, expected a folder") from None
    except OSError as error:
        raise ResourceError(f"cannot make the folder {out}: {error.strerror or error}; choose another -o") from None
    return DiskFolder(os.path.abspath(out))


def _opened(url: str) -> tuple[Any, str]:
    """The file system behind a URL, and the path in it. Raises UsageError."""
    import fsspec

    try:
        files, root = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise UsageError(f"{url}: {_said(error)}") from None
    return files, str(root).rstrip("/")


def find_sources(
    names: Sequence[str], *, notify: Callable[[str], None], report: Callable[[str, Exception], None]
) -> list[Source]:
    """The files that `names` stand for: files, folders of audio, URLs of either, each once, in the order given.

    `report` gets names that are not there or cannot be read, with their errors. Raises UsageError.
    """
    found: dict[str, Source] = {}
    for name in names:
        if name == STDIN:
            raise UsageError("'-': standard input cannot be read by a fleet; give files")
        try:
            for one in _in_store(name) if is_url(name) else _on_disk(name, notify):
                found.setdefault(one.place, one)
        except UsageError:
            raise
        except Exception as error:
            report(name, error if isinstance(error, SpecedgeError) else AudioError(f"{name}: {_said(error)}"))
    return list(found.values())


def _on_disk(name: str, notify: Callable[[str], None]) -> Iterator[Source]:
    def refuse(error: Exception) -> None:
        raise error

    for path in expand_folders([name], notify=notify, report=refuse):
        try:
            status = os.stat(path)
        except FileNotFoundError:
            raise AudioNotFoundError(f"{path}: no such file") from None
        yield Source(path=path, size=status.st_size, stamp=f"{status.st_size}-{status.st_mtime_ns}")


def _in_store(url: str) -> Iterator[Source]:
    files, root = _opened(url)
    files.invalidate_cache()
    paths = [root]
    if files.isdir(root):
        paths = sorted(path for path in files.find(root) if is_audio_name(path))
        if not paths:
            raise AudioError(f"{url}: no audio file is in this folder")
    elif not files.exists(root):
        raise AudioNotFoundError(f"{url}: no such object")
    for path in paths:
        size = int(files.info(path).get("size") or 0)
        yield Source(path=files.unstrip_protocol(path), size=size, stamp=str(files.ukey(path)))


@contextlib.contextmanager
def local_copy(path: str) -> Iterator[str]:
    """A file on this disk with the contents of `path`: itself, or a copy for as long as the block lasts.

    Raises AudioError for what cannot be read, ResourceError where there is no room for the copy.
    """
    if not is_url(path):
        yield path
        return
    try:
        names = Names(parent=Path(tempfile.gettempdir()), prefix="specedge-fleet-", suffix=".audio")
        with temporary_file(names) as copy:  # which sweeps the copies of workers that were killed
            with open(copy, "wb") as file:
                _fetch(path, file)
            yield str(copy)
    except OSError as error:
        if error.errno in _NO_ROOM and not isinstance(error, SpecedgeError):
            reason = f"no room for a copy of {path} in {tempfile.gettempdir()}: {error.strerror}; set TMPDIR elsewhere"
            raise ResourceError(reason) from error
        raise


def _fetch(url: str, copy: BinaryIO) -> None:
    files, root = _opened(url)

    def blocks() -> Iterator[bytes]:
        try:
            with files.open(root, "rb") as source:
                while block := source.read(_BLOCK_BYTES):
                    yield block
        except Exception as error:  # each store has errors of its own
            raise AudioError(f"{url}: cannot be read: {_said(error)}") from error

    for block in blocks():
        copy.write(block)


def _said(error: Exception) -> str:
    reason = getattr(error, "strerror", None) or str(error)
    return f"{type(error).__name__}: {reason}" if reason else type(error).__name__
