"""What the benchmarks share: sets of recordings, tables, and the last line of JSON."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge import decode_audio
from specedge.runtime.decoding.drafter import Drafter, TargetModel
from specedge.runtime.drafters.registry import make_drafter
from specedge.runtime.options import READS_MAPS, DrafterOptions
from specedge.runtime.output.report import aligned

ROOT = Path(__file__).resolve().parents[2]
RATE_HZ = 16_000
Sound = NDArray[np.float32]


class BenchError(Exception):
    """A benchmark cannot be run, or compared something else than what was to be compared."""


@dataclass(frozen=True, kw_only=True)
class Recording:
    """A recording, or a part of a file between two samples, its text ("" for none) and its language."""

    key: str
    file: Path
    start: int = 0
    end: int | None = None
    text: str = ""
    language: str = "en"


def recordings(given: str, limit: int | None = None) -> list[Recording]:
    """A set, or an audio file as the only one of its set. Raises BenchError where a set is empty.

    A set is a .jsonl file; each line has `audio`, a file beside it, or `file`, `start` and `samples` of it at 16 kHz;
    `language`; and `text`. SET.jsonl:NAME takes the lines whose `set` is NAME. `limit` are spread over the set.
    """
    path, _, name = given.partition(".jsonl:")
    if not name and not given.endswith(".jsonl"):
        return [Recording(key=given, file=Path(given))]
    path = f"{path}.jsonl" if name else given
    rows = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if not name or row.get("set") == name]
    if not rows:
        raise BenchError(f"{given}: no recordings")
    if limit is not None:
        rows = rows[:: max(1, len(rows) // limit)][:limit]
    return [
        Recording(
            key=f"{row.get('audio', row.get('file'))}@{row.get('start', 0)}",
            file=Path(path).parent / row.get("audio", row.get("file")),
            start=row.get("start", 0),
            end=row["start"] + row["samples"] if "start" in row else None,
            text=row.get("text", ""),
            language=row.get("language", "en"),
        )
        for row in rows
    ]


def sounds(found: Iterable[Recording]) -> Iterator[Sound]:
    """The samples of each recording; a file that several lie in is read once."""
    file, whole = None, np.zeros(0, np.float32)
    for one in found:
        if one.file != file:
            file, whole = one.file, decode_audio(str(one.file))
        yield whole[one.start : one.end]


def made(name: str, target: TargetModel, maps: Sequence[str | Path]) -> Drafter:
    """A drafter by its name; draft=MODEL is draft with that model. Maps are for those that read them."""
    kind, _, draft = name.partition("=")
    options = DrafterOptions(kind, token_maps=maps if kind in READS_MAPS else (), draft_model=draft or None)
    return make_drafter(options, target)


def print_table(rows: Sequence[Sequence[object]]) -> None:
    """Columns of equal width."""
    print("\n".join(aligned([[str(cell) for cell in row] for row in rows])))


def print_json(benchmark: str, **fields: Any) -> None:
    """The last line of every benchmark."""
    machine = {"platform": platform.platform(), "load_average": os.getloadavg()[0], "commit": commit()}
    print(json.dumps({"benchmark": benchmark, "machine": machine, **fields}))


def commit() -> str:
    """The commit that is checked out, "unknown" outside of a repository."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
