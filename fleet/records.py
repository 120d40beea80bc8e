"""One line of JSON for each file: `records.jsonl`, and Parquet where it is asked for.

Records follow from the results: a run over the same files with the records lost writes them again. While a run is at
work lines are added as files are done, the last line of a path counts; at its end there is one line a path, in order of
paths. A line that was cut short is ignored.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO, Literal

from specedge.errors import UsageError
from specedge.files import publishing

from .places import DiskFolder, Folder

__all__ = ["FILE", "Journal", "Record", "check_parquet", "write_parquet"]

FILE = "records.jsonl"
_PARQUET, _ROWS = "records.parquet", 1000


@dataclass(frozen=True, kw_only=True)
class Record:
    """What became of a file.

    path: as it was given; state: done, failed (the next run tries it again) or quarantined (it ends the process that
    transcribes it); stamp: what the next run knows an unchanged file by; result: the file in the output folder; error:
    why there is none; is_new: whether this run made the result, which is not written.
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

    def to_json(self) -> bytes:
        told = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "is_new"}
        return (json.dumps(told, ensure_ascii=False) + "\n").encode(errors="replace")

    @classmethod
    def from_json(cls, line: bytes) -> Record | None:
        """The record of a line; None for a line that is none."""
        try:
            value = json.loads(line)
            return cls(**{one.name: value[one.name] for one in fields(cls) if one.name != "is_new"}, is_new=False)
        except (ValueError, TypeError, KeyError):
            return None


class Journal:
    """The records of an output folder, open for more. In memory is only where each path's line begins."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._resources = contextlib.ExitStack()
        if isinstance(folder, DiskFolder):
            self._path = Path(folder.url, FILE)
        else:
            self._path = Path(self._resources.enter_context(tempfile.TemporaryDirectory()), FILE)
            with contextlib.suppress(FileNotFoundError):
                self._path.write_bytes(folder.read(FILE))
        self._file: BinaryIO = self._resources.enter_context(open(self._path, "a+b"))
        self._lines: dict[str, int] = {}
        self._file.seek(0)
        at, whole = 0, True
        for line in self._file:
            whole = line.endswith(b"\n")
            record = Record.from_json(line) if whole else None
            if record is not None:
                self._lines[record.path] = at
            at += len(line)
        if not whole:
            self._file.write(b"\n")

    def get(self, path: str) -> Record | None:
        """The last record of a path."""
        if path not in self._lines:
            return None
        self._file.seek(self._lines[path])
        return Record.from_json(self._file.readline())

    def add(self, record: Record) -> None:
        self._lines[record.path] = self._file.seek(0, os.SEEK_END)
        self._file.write(record.to_json())
        self._file.flush()

    def close(self) -> None:
        """Write one line a path. Raises ResourceError; the lines that were added stay then."""
        with self._resources:
            tidy = self._path.with_suffix(".tidy") if not isinstance(self._folder, DiskFolder) else self._path
            with publishing(tidy) as file:
                for path in sorted(self._lines):
                    self._file.seek(self._lines[path])
                    file.write(self._file.readline())
            if not isinstance(self._folder, DiskFolder):
                self._folder.write(FILE, tidy.read_bytes())


def check_parquet() -> Any:
    """pyarrow. Raises UsageError where it is not installed."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise UsageError("--parquet needs pyarrow, which is not installed: pip install pyarrow") from None
    return pyarrow


def write_parquet(folder: Folder) -> str:
    """`records.parquet` of the folder's records; returns its name. Raises UsageError, ResourceError."""
    arrow = check_parquet()
    kinds = {"duration_s": arrow.float64()}
    schema = arrow.schema(
        [(one.name, kinds.get(one.name, arrow.string())) for one in fields(Record) if one.name != "is_new"]
    )
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch, _PARQUET)
        with arrow.parquet.ParquetWriter(str(made), schema) as writer:
            for rows in _batches(folder.read(FILE)):
                writer.write_table(arrow.Table.from_pylist(rows, schema=schema))
        if isinstance(folder, DiskFolder):
            with publishing(Path(folder.url, _PARQUET)) as file, open(made, "rb") as source:
                shutil.copyfileobj(source, file)
        else:
            folder.write(_PARQUET, made.read_bytes())
    return _PARQUET


def _batches(data: bytes) -> Iterator[list[dict[str, Any]]]:
    lines = data.splitlines()
    for first in range(0, len(lines), _ROWS):
        yield [json.loads(line) for line in lines[first : first + _ROWS]]
