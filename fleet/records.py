"""One line of JSON for each file: `records.jsonl`.

Records follow from the results: a run over the same files with the records lost writes them again. While a run is at
work lines are added as files are done, the last line of a path counts; at its end there is one line a path, in order of
paths. A line that was cut short is ignored.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import BinaryIO, Literal

from specedge.files import publishing

from .places import Folder

FILE = "records.jsonl"
_OF_THIS_RUN = ("is_new", "is_duplicate")


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
        value = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in _OF_THIS_RUN}
        return (json.dumps(value, ensure_ascii=False) + "\n").encode(errors="replace")

    @classmethod
    def from_json(cls, line: bytes) -> Record | None:
        """The record of a line; None for a line that is none."""
        try:
            value = json.loads(line)
            return cls(
                **{one.name: value[one.name] for one in fields(cls) if one.name not in _OF_THIS_RUN}, is_new=False
            )
        except (ValueError, TypeError, KeyError):
            return None


class Journal:
    """The records of an output folder, open for more. In memory is only where each path's line begins."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._resources = contextlib.ExitStack()
        if folder.is_disk:
            self._path = Path(folder.url, FILE)
        else:
            self._path = Path(self._resources.enter_context(tempfile.TemporaryDirectory()), FILE)
            with contextlib.suppress(FileNotFoundError):
                self._path.write_bytes(folder.read(FILE))
        self._file: BinaryIO = self._resources.enter_context(open(self._path, "a+b"))
        self._lines: dict[str, int] = {}
        self._file.seek(0)
        at, is_whole = 0, True
        for line in self._file:
            is_whole = line.endswith(b"\n")
            record = Record.from_json(line) if is_whole else None
            if record is not None:
                self._lines[record.path] = at
            at += len(line)
        if not is_whole:
            self._file.write(b"\n")

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
                self._folder.write(FILE, self._path.read_bytes())
