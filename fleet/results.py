"""What lies in an output folder: `results/NAME.json`, `parts/` while long files are in work, `texts/`, `records.jsonl`.

A result is a transcript as `transcribe -f json` writes it, with what it was made from and on. It holds no path and no
time of day, so its bytes are the same whoever makes it on machines of one kind. Texts are made from results, under the
names that the recordings have.

Records are lines of JSON. They follow from the results: a run over the same files with the records lost writes them
again. While a run is at work lines are added as files are done, the last line of a path counts; at its end there is one
line a path, in order of paths. A line that was cut short is ignored.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Literal

from specedge.files import publishing
from specedge.version import __version__

from ..runtime.longform.segments import Segment, Word
from ..runtime.output.formats import STREAMED, SubtitleOptions
from .job import Job, Speech
from .places import Folder, Source

FILE = "records.jsonl"
_OF_THIS_RUN = ("is_new", "is_duplicate")


def result_file(name: str) -> str:
    """Where a result lies."""
    return f"results/{name}.json"


def result_bytes(job: Job, speech: Speech, parts: Sequence[dict[str, Any]]) -> bytes:
    """The result of a file, of all its parts, as workers make them. Segments are counted through.

    Where parts were made on several instruction sets, the result names them all.
    """
    segments = [segment for one in parts for segment in one["segments"]]
    value = {
        "text": "".join(segment["text"] for segment in segments),
        "segments": [{**segment, "id": number} for number, segment in enumerate(segments)],
        "language": speech.language,
        "language_probability": round(speech.language_probability, 6),
        "duration": round(speech.duration_s, 3),
        "lossless": all(one["lossless"] for one in parts),
        "audio_sha256": speech.audio_sha256,
        "bundle": job.bundle,
        "encoder_provider": job.encoder,
        "options": job.text_options(),
        "isa": ", ".join(sorted({one["isa"] for one in parts})),
        "threads": job.threads,
        "onnxruntime": job.onnxruntime,
        "specedge": __version__,
    }
    return (json.dumps(value, allow_nan=False) + "\n").encode()


def join(folder: Folder, job: Job, speech: Speech) -> bool:
    """Write the result of a file whose parts are all there, and remove them; False where one is missing."""
    name = job.result_name(speech.audio_sha256)
    try:
        parts = [json.loads(folder.read(file)) for file in speech.part_files(name)]
    except FileNotFoundError:
        return folder.exists(result_file(name))
    folder.write(result_file(name), result_bytes(job, speech, parts))
    remove_parts(folder, name)
    return True


def remove_parts(folder: Folder, name: str) -> None:
    """Remove what a file's parts left, its result being there."""
    for one in folder.names("parts"):
        if one.startswith(f"{name}."):
            folder.remove(f"parts/{one}")


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
