"""The frozen encoder's output over training windows, on disk, with the target's text of each.

A shard is a pair of files: `NAME.npy`, float16 `[n_frames_total, n_audio_state]`, and `NAME.json`, written last, which
lists its windows: frames, text and whether it is a rough copy. A shard exists when its json exists, so a collection
that was cut off goes on where it stopped. Rough copies have the recipe's acoustics on the audio, and the text of the
clean window: a head learns to hear through noise. Of the padding behind the audio a few frames are kept, now and then
all, for the head meets them too.

Knows windows and arrays. Does not know: what is trained on them.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specedge.export.training import augment
from specedge.export.training.unlabelled import Target
from specedge.runtime.errors import ResourceError, UsageError

__all__ = ["Collection", "Window", "check_plan", "collect", "load"]

Float = NDArray[np.float32]

_SHARD_WINDOWS = 32
_STRENGTH = 0.7
_ALL_PADDING = 0.1  # share of the windows whose padding is kept whole
_MEAN_PADDING = 10  # frames of the others'
_PLAN = "plan.json"


@dataclass(frozen=True, kw_only=True)
class Window:
    """A window's features float16 `[n_frames, n_state]`, memory-mapped, and its text's bytes.

    `source`: the number of the window of audio that it is, clean or rough.
    """

    features: NDArray[np.float16]
    text: bytes
    source: int
    is_rough: bool


@dataclass(frozen=True, kw_only=True)
class Collection:
    """What to collect: `hours` of audio at most, `n_rough` rough copies of each window, `max_bytes` on disk at most."""

    hours: float
    n_rough: int
    max_bytes: int
    seed: int


def collect(
    windows: Iterator[Float],
    target: Target,
    folder: Path,
    wanted: Collection,
    identity: dict[str, str],
    report: Callable[[float], None],
) -> None:
    """Write shards of `windows` into `folder` until they end, or the hours or bytes are reached; goes on there.

    `identity` says what the features come from; `report` is called with the seconds of audio done.

    Raises
    ------
    UsageError
        when the folder holds features of something else.
    ResourceError
        when it cannot be written.
    """
    plan = {**identity, "n_rough": wanted.n_rough, "seed": wanted.seed}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        check_plan(folder / _PLAN, plan)
        done_s, n_bytes, number = 0.0, 0, 0
        while chunk := list(itertools.islice(windows, _SHARD_WINDOWS)):
            path = folder / f"features-{number:04d}.npy"
            if done_s >= wanted.hours * 3600 or n_bytes >= wanted.max_bytes:
                return
            if not path.with_suffix(".json").is_file():
                _write_shard(path, chunk, number, target, wanted, functools.partial(_report_from, report, done_s))
            n_bytes += path.stat().st_size
            done_s += sum(map(len, chunk)) / 16000
            number += 1
            report(done_s)
    except OSError as error:
        raise ResourceError(f"{folder}: cannot be written: {error.strerror}; give another --work") from error


def load(folder: Path) -> list[Window]:
    """The windows of all finished shards, in order; those with more bytes than frames are left out. Raises OSError."""
    found = []
    for index in sorted(folder.glob("features-*.json")):
        features = np.load(index.with_suffix(".npy"), mmap_mode="r", allow_pickle=False)
        at = 0
        for row in json.loads(index.read_text(encoding="ascii"))["windows"]:
            n_frames, text = int(row["n_frames"]), bytes.fromhex(row["text"])
            if _n_needed(text) <= n_frames:
                found.append(
                    Window(
                        features=features[at : at + n_frames], text=text, source=row["source"], is_rough=row["is_rough"]
                    )
                )
            at += n_frames
    return found


def _n_needed(text: bytes) -> int:
    """Frames that CTC needs for a text: one a byte, and a blank between two that are the same."""
    return len(text) + sum(a == b for a, b in itertools.pairwise(text))


def _report_from(report: Callable[[float], None], start_s: float, done_s: float) -> None:
    report(start_s + done_s)


def check_plan(path: Path, plan: dict[str, object]) -> None:
    """Write down what a folder is of, or compare it with what was written. Raises UsageError, OSError."""
    if path.is_file():
        try:
            there = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:  # somebody else's file of this name
            there = None
        if there != plan:
            raise UsageError(
                f"{path.parent}: holds the features of another model, other audio or other options; remove that folder "
                "or give another --work"
            )
        return
    path.write_text(json.dumps(plan), encoding="utf-8")


def _write_shard(
    path: Path,
    chunk: list[Float],
    number: int,
    target: Target,
    wanted: Collection,
    report: Callable[[float], None],
) -> None:
    arrays: list[NDArray[np.float16]] = []
    rows = []
    done_s = 0.0
    for at, samples in enumerate(chunk):
        source = number * _SHARD_WINDOWS + at
        rng = np.random.default_rng((wanted.seed, source))
        heard = target.hear(samples)
        done_s += len(samples) / 16000
        report(done_s)
        if heard.ids is None:
            continue
        text = target.text(heard.ids)
        for copy in range(1 + wanted.n_rough):
            hidden = heard.hidden
            if copy:
                features, _ = target.encode(augment.acoustics(rng, samples, _STRENGTH))
                hidden = features.hidden
            n_padding = len(hidden) if rng.random() < _ALL_PADDING else int(rng.exponential(_MEAN_PADDING))
            kept = hidden[: heard.n_content + n_padding]
            arrays.append(kept.astype(np.float16))
            rows.append({"n_frames": len(kept), "text": text.hex(), "source": source, "is_rough": copy > 0})
    n_state = target.manifest.dims.n_audio_state
    with open(path.with_suffix(".part"), "wb") as file:
        np.save(file, np.concatenate(arrays) if arrays else np.zeros((0, n_state), np.float16))
    os.replace(path.with_suffix(".part"), path)
    index = path.with_suffix(".json")
    index.with_suffix(".tmp").write_text(json.dumps({"windows": rows}), encoding="ascii")
    os.replace(index.with_suffix(".tmp"), index)
