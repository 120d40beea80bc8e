"""Where files lie, on disk or in any store that fsspec knows (`s3://bucket/talks`), and what an output folder holds.

docs/fleet.md says what that is. What is written is there as a whole or not at all: on disk by a temporary file that is
renamed, in an object store because an object appears when its upload is complete.

While a run is at work lines are added to the records as files are done, the last line of a path counts; at its end
there is one line a path, in order of paths. A line that was cut short is ignored.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Literal

from specedge.errors import AudioError, AudioNotFoundError, ResourceError, SpecedgeError, UsageError
from specedge.files import make_output_folder, publishing, write_atomic
from specedge.leftovers import Names, lock_of, sweep, temporary_file

from ..runtime.audio.audio import STDIN, expand_folders, is_audio_name
from ..runtime.longform.segments import Segment, Word
from ..runtime.output.formats import STREAMED, SubtitleOptions

LOCK, RECORDS = ".lock", "records.jsonl"
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE}
_OF_THIS_RUN = ("is_new", "is_duplicate")


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
        return self.path if _is_url(self.path) else os.path.abspath(self.path)


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
            for one in _in_store(name) if _is_url(name) else _on_disk(name, notify):
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
    for path in paths:
        size, inside = int(files.info(path).get("size") or 0), path.removeprefix(folder).lstrip("/")
        yield Source(path=files.unstrip_protocol(path), inside=inside, size=size, stamp=str(files.ukey(path)))


@contextlib.contextmanager
def local_copy(path: str) -> Iterator[str]:
    """A file on this disk with the contents of `path`: itself, or a copy for as long as the block lasts.

    Raises AudioError for what cannot be read, ResourceError where there is no room for the copy.
    """
    if not _is_url(path):
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


def _is_url(path: str) -> bool:
    return "://" in path


def _opened(url: str) -> tuple[Any, str]:
    """The file system behind a path or URL, and the path in it. Raises UsageError."""
    import fsspec

    try:
        files, root = fsspec.core.url_to_fs(url if _is_url(url) else os.path.abspath(url))
    except (ImportError, ValueError) as error:
        raise UsageError(f"{url}: {_reason(error)}") from None
    return files, str(root).rstrip("/")


def _reason(error: Exception) -> str:
    reason = getattr(error, "strerror", None) or str(error)
    return f"{type(error).__name__}: {reason}" if reason else type(error).__name__


def result_file(name: str) -> str:
    """Where a result lies."""
    return f"results/{name}.json"


class Folder:
    """An output folder, by its path or URL; a disk must be seen by all workers under the same path. Names are relative,
    with "/". All methods raise ResourceError."""

    def __init__(self, url: str) -> None:
        """Makes the folder, on a disk. Raises UsageError for a place that cannot be one, ResourceError."""
        self.is_disk = not _is_url(url)
        if self.is_disk:
            make_output_folder(Path(url))
        self._files, self._root = _opened(url)
        self.url = self._root if self.is_disk else self._files.unstrip_protocol(self._root)

    def exists(self, name: str) -> bool:
        with self._asking("read", name):
            return bool(self._files.exists(f"{self._root}/{name}"))

    def names(self, inside: str) -> set[str]:
        """The names of the files in a folder of it."""
        self._files.invalidate_cache()
        try:
            with self._asking("list", inside):
                found = self._files.ls(f"{self._root}/{inside}", detail=False)
        except FileNotFoundError:
            return set()
        return {name for path in found if not (name := path.rpartition("/")[2]).startswith(".")}

    def read(self, name: str) -> bytes:
        """Raises FileNotFoundError."""
        with self._asking("read", name):
            data: bytes = self._files.cat_file(f"{self._root}/{name}")
        return data

    def write(self, name: str, data: bytes) -> None:
        path = f"{self._root}/{name}"
        with self._asking("write", name):
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
            if self.is_disk:
                write_atomic(path, data)
            else:
                self._files.pipe_file(path, data)

    def tidy(self) -> None:
        """Remove parts of files whose results are there, and temporary files of workers that were killed."""
        there = self.names("results")
        for part in self.names("parts"):
            if f"{part.partition('.')[0]}.json" in there:
                with contextlib.suppress(FileNotFoundError), self._asking("remove", part):
                    self._files.rm_file(f"{self._root}/parts/{part}")
        for inside in ("results", "parts") if self.is_disk else ():  # a store has none
            tokens = r"[0-9a-z.-]{64,100}\.[0-9a-f]{16}"
            sweep(Names(parent=Path(self.url, inside), prefix=".", suffix=".tmp", tokens=tokens))

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder against a second driver, until the block or the process ends.

        Stores, and disks and systems without locks, are not held: there two drivers do some files twice, with the same
        results. Raises UsageError where another driver holds it, ResourceError where nothing can be written.
        """
        if not self.is_disk:
            yield
            return
        with self._asking("write", LOCK), open(Path(self.url, LOCK), "a") as file:
            try:
                lock = lock_of(Path(file.name), wait=False)
            except BlockingIOError:
                message = f"{self.url}: another driver is at work on this folder; wait for it, or give another -o"
                raise UsageError(message) from None
        try:
            yield
        finally:
            if lock is not None:
                os.close(lock)

    @contextlib.contextmanager
    def _asking(self, what: str, name: str) -> Iterator[None]:
        """Turn errors into ResourceError, of which each store has its own; FileNotFoundError stays."""
        try:
            yield
        except (FileNotFoundError, SpecedgeError):
            raise
        except Exception as error:
            raise ResourceError(f"cannot {what} {self.url}/{name}: {_reason(error)}") from error


def text_stems(sources: Sequence[Source]) -> dict[str, str]:
    """The name in `texts/` of each source, by its path: that below its folder, without the extension.

    Where several would have one name they keep the extension, and then take as many parent folders as it needs.
    """
    stems: dict[str, str] = {}
    taken: set[str] = set()
    for source in sources:
        inside = PurePosixPath(source.inside)
        parents = PurePosixPath(source.place.replace("\\", "/")).parts[1:]
        longer = ("/".join(parents[-n:]) for n in range(len(inside.parts) + 1, len(parents) + 1))
        names = [inside.with_suffix("").as_posix(), inside.as_posix(), *longer, f"{len(taken)}-{inside.name}"]
        stems[source.path] = next(name for name in names if name.casefold() not in taken)
        taken.add(stems[source.path].casefold())
    return stems


def write_texts(folder: Folder, result: str, stem: str, formats: Sequence[str]) -> None:
    """Write a result as `texts/STEM.FORMAT`, where that does not lie there already. Raises ResourceError."""
    data = folder.read(result)
    known = {one.name for one in fields(Segment)}
    segments = []
    for given in json.loads(data)["segments"]:
        words = [Word(**word) for word in given["words"]] if given.get("words") is not None else None
        segments.append(Segment(**{name: given[name] for name in known & set(given)} | {"words": words}))
    for format in formats:
        text = data if format == "json" else "".join(STREAMED[format](segments, SubtitleOptions())).encode()
        name = f"texts/{stem}.{format}"
        if not folder.exists(name) or folder.read(name) != text:
            folder.write(name, text)


@dataclass(frozen=True, kw_only=True)
class Record:
    """How a file ended.

    path: as it was given; state: done, failed (the next run tries it again) or quarantined (it ends the process that
    transcribes it); stamp: what the next run knows an unchanged file by; result: the file in the output folder; error:
    why there is none. Not written: is_new, whether this run made the result; is_duplicate, whether another file of this
    run with the same bytes did.
    """

    path: str
    state: Literal["done", "failed", "quarantined"]
    stamp: str = ""
    result: str | None = None
    audio_sha256: str | None = None
    language: str | None = None
    duration_s: float | None = None
    text: str | None = None
    error: str | None = None
    is_new: bool = True
    is_duplicate: bool = False

    def to_json(self) -> bytes:
        """Its line."""
        value = {name: value for name, value in vars(self).items() if name not in _OF_THIS_RUN}
        return (json.dumps(value, ensure_ascii=False) + "\n").encode(errors="replace")

    @classmethod
    def from_json(cls, line: bytes) -> Record | None:
        """The record of a line; None for a line that is none."""
        try:
            return cls(**json.loads(line), is_new=False)
        except (ValueError, TypeError):
            return None


class Journal:
    """The records of an output folder, open for more. In memory is only where each path's line begins."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._resources = contextlib.ExitStack()
        if folder.is_disk:
            self._path = Path(folder.url, RECORDS)
        else:
            self._path = Path(self._resources.enter_context(tempfile.TemporaryDirectory()), RECORDS)
            with contextlib.suppress(FileNotFoundError):
                self._path.write_bytes(folder.read(RECORDS))
        self._file: BinaryIO = self._resources.enter_context(open(self._path, "a+b"))
        self._lines: dict[str, int] = {}
        at = self._file.seek(0)
        for line in self._file:
            record = Record.from_json(line)
            if record is not None:
                self._lines[record.path] = at
            at += len(line)
        self._file.write(b"\n")  # behind a line that was cut short

    def get(self, path: str) -> Record | None:
        """The last record of a path."""
        if path not in self._lines:
            return None
        self._file.seek(self._lines[path])
        return Record.from_json(self._file.readline())

    def add(self, record: Record) -> None:
        """Add a line, which is on the disk then."""
        self._lines[record.path] = self._file.seek(0, os.SEEK_END)
        self._file.write(record.to_json())
        self._file.flush()

    def close(self) -> None:
        """Write one line a path. Raises ResourceError; the lines that were added stay then."""
        with self._resources:
            with publishing(self._path) as file:
                for path in sorted(self._lines):
                    self._file.seek(self._lines[path])
                    file.write(self._file.readline())
            if not self._folder.is_disk:
                self._folder.write(RECORDS, self._path.read_bytes())
