"""What a frozen decoder's last hidden rows are over texts that the target itself says, on disk: what heads learn from.

Each window is decoded by the bundle, with timestamps and without, and the rows are those that a drafter would be
shown, rounding included. A shard is `rows-N.hidden.npy` and `rows-N.features.npy`, float16, and `rows-N.json`, written
last, so a collection that was cut off goes on where it stopped.

Knows windows and texts. Does not know: heads, losses.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.errors import ResourceError
from specedge.runtime.decoding.decode import DecodeOptions, decode_window
from specedge.runtime.decoding.drafter import DraftContext, DraftTree, EmptyDrafter
from specedge.runtime.decoding.presets import window_rules
from specedge.runtime.engine.engine import Features
from specedge.runtime.options import TranscribeOptions

from .features import Target, check_plan

F16 = NDArray[np.float16]
_SHARD_WINDOWS = 32


@dataclass(frozen=True, kw_only=True)
class HiddenText:
    """One text over one window.

    ids: prompt, text and end; n_prompt: of them the prompt; hidden: float16 [n_rows, n_text_state], of the first rows
    of `ids`, memory-mapped; features: float16 [n_ctx, n_audio_state], the encoder's output, memory-mapped; source: its
    number.
    """

    ids: tuple[int, ...]
    n_prompt: int
    hidden: F16
    features: F16
    source: int


class RowRecorder(EmptyDrafter):
    """Guesses nothing and keeps the rows that it is shown."""

    reads_hidden = True
    rows: NDArray[np.float32] | None = None

    def propose(self, context: DraftContext, budget: int) -> DraftTree:
        """No guess."""
        self.rows = context.hidden
        return super().propose(context, budget)


def collect(
    windows: Iterator[NDArray[np.float32]],
    target: Target,
    folder: Path,
    *,
    hours: float,
    identity: dict[str, str],
    report: Callable[[float], None],
    ear: Target | None = None,
) -> None:
    """Write shards of `windows` into `folder` until they end or the hours are reached; goes on there.

    `identity` says what the rows come from; `report` is called with the seconds of audio done; `ear` is the model whose
    encoder's output is kept, where it is not the target's own.

    Raises
    ------
    UsageError
        when the folder holds rows of something else.
    ResourceError
        when it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        check_plan(folder / "plan.json", dict(identity))
        done_s, number = 0.0, 0
        while done_s < hours * 3600 and (chunk := list(itertools.islice(windows, _SHARD_WINDOWS))):
            if not (folder / f"rows-{number:04d}.json").is_file():
                _write_shard(folder / f"rows-{number:04d}", chunk, number, target, ear or target)
            done_s += sum(map(len, chunk)) / 16000
            number += 1
            report(done_s)
    except OSError as error:
        raise ResourceError(f"{folder}: cannot be written: {error.strerror}; give another --work") from error


def load(folder: Path) -> list[HiddenText]:
    """The texts of all finished shards, in order. Raises OSError."""
    found = []
    for index in sorted(folder.glob("rows-*.json")):
        stem = index.name.removesuffix(".json")
        hidden, features = (
            np.load(folder / f"{stem}.{part}.npy", mmap_mode="r", allow_pickle=False) for part in ("hidden", "features")
        )
        at = 0
        for row in json.loads(index.read_text(encoding="ascii"))["texts"]:
            found.append(
                HiddenText(
                    ids=tuple(row["ids"]),
                    n_prompt=row["n_prompt"],
                    hidden=hidden[at : at + row["n_rows"]],
                    features=features[row["window"]],
                    source=row["source"],
                )
            )
            at += row["n_rows"]
    return found


def _write_shard(stem: Path, chunk: list[NDArray[np.float32]], number: int, target: Target, ear: Target) -> None:
    dims = ear.manifest.dims
    texts: list[dict[str, Any]] = []
    hidden: list[F16] = []
    features: list[F16] = []
    for at, samples in enumerate(chunk):
        heard, _ = target.encode(samples)
        said = list(_said(target, heard))
        for ids, n_prompt, rows in said:
            texts.append(
                {"ids": ids, "n_prompt": n_prompt, "n_rows": len(rows), "window": len(features),
                 "source": number * _SHARD_WINDOWS + at}
            )  # fmt: skip
            hidden.append(rows)
        if said:
            own = heard if ear is target else ear.encode(samples)[0]
            features.append(own.hidden.astype(np.float16))
    _save(stem.with_name(stem.name + ".hidden.npy"), hidden, (target.manifest.dims.n_text_state,))
    shape = features[0].shape if features else (dims.n_audio_ctx, dims.n_audio_state)
    _save(stem.with_name(stem.name + ".features.npy"), [one[None] for one in features], shape)
    unfinished = stem.with_name(stem.name + ".part")
    unfinished.write_text(json.dumps({"texts": texts}), encoding="ascii")
    os.replace(unfinished, stem.with_name(stem.name + ".json"))


def _said(target: Target, heard: Features) -> Iterator[tuple[list[int], int, F16]]:
    """Ids, length of the prompt and hidden rows of what the target is sure of, with timestamps and without."""
    special, manifest = target.manifest.tokens, target.manifest
    language = target.language_of(heard)
    for timestamps in (True, False):
        rules = window_rules(TranscribeOptions(without_timestamps=not timestamps), manifest, target.tokenizer)
        recorder = RowRecorder()
        prompt = special.prompt(language, timestamps=timestamps)
        options = DecodeOptions(rules=rules, n_text_ctx=manifest.dims.n_text_ctx)
        result = decode_window(target.engine, heard, prompt, options, recorder)
        if recorder.rows is not None and target.is_sure(result):
            yield [*prompt, *result.tokens, special.eot], len(prompt), recorder.rows.astype(np.float16)


def _save(path: Path, arrays: list[F16], width: tuple[int, ...]) -> None:
    unfinished = path.with_suffix(".part")
    with open(unfinished, "wb") as file:
        np.save(file, np.concatenate(arrays) if arrays else np.zeros((0, *width), np.float16))
    os.replace(unfinished, path)
