"""Shards of spoken utterances on disk: what the synthesizer writes and the trainer reads.

A shard is a pair of files: `NAME.npy`, int16 [n_samples_total], the utterances of 16 kHz mono one after another, and
`NAME.json`, written last, that lists them. A shard exists when its json exists, so a synthesis that was cut off leaves
no half shard and goes on with the same command. No pickle. Utterances are trimmed to their first and last audible
sample, with a margin of `MARGIN_SAMPLES` of what lay around them; `start` and `end` say where the speech is.

This module knows files and arrays. It knows nothing of voices, mels or tokens.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path

import numpy as np
import numpy.typing as npt

from specedge.runtime.errors import UsageError

__all__ = [
    "MARGIN_SAMPLES",
    "RATE_HZ",
    "Utterance",
    "is_dev",
    "list_lines",
    "load_shards",
    "training_shards",
    "trim",
    "write_shard",
]

RATE_HZ = 16000
MARGIN_SAMPLES = 320
Samples = npt.NDArray[np.int16]


@dataclass(frozen=True, kw_only=True)
class Utterance:
    """One spoken sentence: int16 16 kHz samples, its text, the voice, and where in the samples it is audible."""

    samples: Samples
    text: str
    voice: str
    source: str
    start: int
    end: int

    def sound(self) -> npt.NDArray[np.float32]:
        """The samples as float32 in [-1, 1]."""
        return np.asarray(self.samples / np.float32(32768), np.float32)


def list_lines(name: str) -> list[str]:
    """The lines of a text list: a file (plain or .gz), or the name of a list kept with this package.

    Raises UsageError when there is neither.
    """
    path = Path(name)
    if path.is_file():
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
    else:
        found = resources.files(__package__).joinpath("lists").joinpath(f"{name}.txt.gz")
        if not found.is_file():
            raise UsageError(f"text list {name!r}: expected a file or one of the lists in export/training/lists")
        data = gzip.decompress(found.read_bytes())
    return [line.strip() for line in data.decode("utf-8").splitlines() if line.strip()]


def trim(samples: npt.NDArray[np.float32], *, margin: int = MARGIN_SAMPLES) -> tuple[Samples, int, int]:
    """Cut to the audible part of a clean recording: float32 [n] -> int16 [m] scaled to a peak of one half, start, end.

    Audible is a sample above 1 % of the peak. An empty or silent input gives an empty array and zeros.
    """
    peak = float(np.abs(samples).max()) if samples.size else 0.0
    if peak < 1e-4:
        return np.zeros(0, np.int16), 0, 0
    loud = np.flatnonzero(np.abs(samples) > 0.01 * peak)
    first, last = int(loud[0]), int(loud[-1]) + 1
    begin, stop = max(0, first - margin), min(samples.size, last + margin)
    scaled = np.round(samples[begin:stop] * (0.5 * 32767 / peak)).astype(np.int16)
    return scaled, first - begin, last - begin


def write_shard(folder: Path, name: str, utterances: Sequence[Utterance]) -> None:
    """Write `name.npy` and then `name.json` into `folder`, each under a temporary name first."""
    audio = np.concatenate([item.samples for item in utterances]) if utterances else np.zeros(0, np.int16)
    rows = []
    for item in utterances:
        row = asdict(item)
        row["samples"] = int(item.samples.size)
        rows.append(row)
    data, index = folder / f"{name}.npy", folder / f"{name}.json"
    with open(data.with_suffix(".part"), "wb") as file:
        np.save(file, audio)
    os.replace(data.with_suffix(".part"), data)
    index.with_suffix(".tmp").write_text(json.dumps({"rate_hz": RATE_HZ, "utterances": rows}), encoding="utf-8")
    os.replace(index.with_suffix(".tmp"), index)


def load_shards(folder: Path, *, known: frozenset[str] = frozenset()) -> Iterator[tuple[str, list[Utterance]]]:
    """Yield (name, utterances) of the finished shards in `folder` that are not in `known`; samples stay mapped."""
    for index in sorted(folder.glob("*.json")):
        if index.stem in known:
            continue
        audio = np.load(index.with_suffix(".npy"), mmap_mode="r", allow_pickle=False)
        at, items = 0, []
        for row in json.loads(index.read_text(encoding="utf-8"))["utterances"]:
            n_samples = int(row.pop("samples"))
            items.append(Utterance(samples=audio[at : at + n_samples], **row))
            at += n_samples
        yield index.stem, items


def is_dev(folder: Path) -> bool:
    """Whether a folder of shards is for measuring: `dev` and `digits-dev*` are."""
    return folder.name == "dev" or folder.name.startswith("digits-dev")


def training_shards(speech: Path, known: frozenset[str]) -> Iterator[tuple[str, list[Utterance]]]:
    """The finished shards below `speech` that may be trained on and are not in `known` (by their path in `speech`).

    Raises UsageError when one of them holds what models are measured on: dev sentences in whatever voice, or a dev
    shard of digits that was moved out of its folder.
    """
    kept = {line for name in ("maintenance.dev", "notes.dev") for line in list_lines(name)}
    for folder in sorted({index.parent for index in speech.rglob("*.json")}):
        if is_dev(folder):
            continue
        inside = str(folder.relative_to(speech))
        there = frozenset(name.rpartition("/")[2] for name in known if name.rpartition("/")[0] == inside)
        for name, items in load_shards(folder, known=there):
            if name.startswith("digits-dev") or any(item.text in kept for item in items):
                raise UsageError(
                    f"{folder / name}: holds what models are measured on, which must not be trained on; "
                    "move it into a folder named dev"
                )
            yield f"{inside}/{name}", items
