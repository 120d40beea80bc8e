"""What the benchmarks share: sets of recordings, tables, and the last line of JSON."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.errors import SpecedgeError
from specedge.runtime.bench.recordings import Recording, read_recordings
from specedge.runtime.console import aligned
from specedge.runtime.decoding.drafter import Drafter, TargetModel
from specedge.runtime.drafters.registry import make_drafter
from specedge.runtime.options import READS_MAPS, DrafterOptions

ROOT = Path(__file__).resolve().parents[2]
RATE_HZ = 16_000
Sound = NDArray[np.float32]


class BenchError(Exception):
    """A benchmark cannot be run, or compared something else than what was to be compared."""


def recordings(given: str, limit: int | None = None) -> list[Recording]:
    """An audio file, a folder, or a .jsonl file, as `specedge bench` takes them; `limit` are spread over it. English
    where nothing else is said. Raises BenchError."""
    try:
        found = read_recordings([given], "en")
    except SpecedgeError as error:
        raise BenchError(str(error)) from None
    if not found:
        raise BenchError(f"{given}: no recordings")
    return found if limit is None else found[:: max(1, len(found) // limit)][:limit]


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
