"""Windows that a speech LLM learns from: sentences put together, roughened, and heard once by a frozen encoder.

Every utterance of a shard is in a window of its own, and each shard has windows of several sentences besides, up to the
encoder's whole window, and a few without speech, whose text is empty. Most end as windows at run time do, on the grid
and behind the margin of `AudioContext`, so the audio rows always come out whole. The others are whole windows, as
`--audio-context full` has them: a model that never met one adds a word now and then. Dev windows are clean, one
sentence each, with a fifth of a second in front, and are heard both ways.

A shard of features is a pair of files: `NAME.npy`, float16 [n_rows_total, stack * n_audio_state], windows one after
another, and `NAME.json`, written last, with the text and the rows of each. A shard exists when its json exists, so work
that was cut off goes on with the same command. A shard depends on its name and its speech alone.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specedge.errors import UsageError
from specedge.export.training.corpus import RATE_HZ, Utterance, is_dev, load_shards, training_shards
from specedge.runtime.audio.mel import HOP_SAMPLES, log_mel
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.engine.engine import Engine
from specedge.runtime.longform.windows import AudioContext

from .data import Pool, Window, compose, sound, vary
from .labels import Sentence
from .speech import usable

__all__ = ["STACK", "Example", "compose_dev", "compose_training", "hear", "read_features", "write_features"]

STACK = 4  # encoder positions of 20 ms in one audio row
F16 = NDArray[np.float16]
_DEV_LISTS = ("maintenance-dev", "notes-dev")
_JOINED = 0.25  # windows of several sentences for each utterance
_SILENT = 0.06  # share of these that have no speech
_WHOLE = 0.25  # share of the windows that are not cut behind their content
_BLANK = 0.6  # share of the windows whose log-mel is 0.0 behind the content, as the stream leaves it


@dataclass(frozen=True, kw_only=True)
class Example:
    """What is learned from: audio rows float16 [n_rows, stack * n_audio_state] and the text. source: its shard."""

    audio: F16
    text: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Heard:
    """A window before the encoder: samples float32 [n], the content, at 16 kHz, its text, whether what is behind it is
    0.0 in the log-mel, and whether the encoder hears the whole window."""

    samples: NDArray[np.float32]
    text: str
    blank: bool
    whole: bool


def compose_training(name: str, items: Sequence[Utterance], n_samples: int) -> Iterator[Heard]:
    """The training windows of the shard `name`, of at most `n_samples` samples."""
    rng, wave_rng = random.Random(f"llm {name}"), np.random.default_rng(list(name.encode()))
    pool = Pool()
    pool.add(items)
    for item in items:
        window = _alone(rng, vary(rng, item), n_samples)
        yield _roughened(rng, wave_rng, pool, window)
    for _ in range(round(_JOINED * len(items))):
        kind = rng.choice(("packed", "packed", "padded"))
        window = compose(rng, pool, n_samples, kind, silent=_SILENT, cut=False)
        yield _roughened(rng, wave_rng, pool, window)


def _alone(rng: random.Random, item: Utterance, limit: int) -> Window:
    """One sentence behind up to 0.6 s of lead, a third of them behind none, with up to 0.3 s behind it."""
    lead = rng.choice((0, *[rng.randrange(round(0.6 * RATE_HZ))] * 2))
    n = min(limit, lead + item.samples.size + rng.randrange(round(0.3 * RATE_HZ)))
    lead = min(lead, n - item.samples.size)
    out = np.zeros(n, np.float32)
    out[lead : lead + item.samples.size] = item.sound() * np.float32(rng.uniform(0.5, 1.0) * 2)
    sentence = Sentence(text=item.text, start_s=lead / RATE_HZ, end_s=(lead + item.samples.size) / RATE_HZ)
    return Window(samples=np.clip(out, -1, 1), sentences=(sentence,), n_content=n)


def _roughened(rng: random.Random, wave_rng: np.random.Generator, pool: Pool, window: Window) -> Heard:
    samples = sound(wave_rng, rng, pool, window, rng.choice((0.2, 0.5, 0.8)))
    text = " ".join(sentence.text for sentence in window.sentences)
    return Heard(
        samples=samples[: max(HOP_SAMPLES, window.n_content)],
        text=text,
        blank=rng.random() < _BLANK,
        whole=rng.random() < _WHOLE,
    )


def compose_dev(items: Sequence[Utterance], *, whole: bool) -> Iterator[Heard]:
    """Clean windows of single sentences, for measuring."""
    lead = np.zeros(RATE_HZ // 5, np.float32)
    for item in items:
        yield Heard(samples=np.concatenate([lead, item.sound()]), text=item.text, blank=True, whole=whole)


def hear(engine: Engine, context: AudioContext, window: Heard) -> F16:
    """The audio rows of a window, float16 [n_rows, STACK * n_audio_state]."""
    n_whole = 2 * engine.dims.n_audio_ctx
    n_content = min(len(window.samples) // HOP_SAMPLES, n_whole)
    n_frames = n_whole if window.whole else context.n_frames(n_content)
    mel = log_mel(window.samples, engine.dims.n_mels, n_frames)
    if window.blank:
        mel[:, n_content:] = 0.0
    hidden = engine.encode(mel).hidden
    n_rows = len(hidden) // STACK
    return hidden[: n_rows * STACK].astype(np.float16).reshape(n_rows, -1)


def write_features(speech: Path, out: Path, bundle: Bundle, *, threads: int, notify: Callable[[str], None]) -> int:
    """Encode the shards below `speech` that are not in `out` yet, with the encoder of `bundle`; gives their number.

    `out`/train gets training windows, `out`/dev those of the dev lists. Raises UsageError where `speech` has no shard,
    or has dev speech outside a dev folder, ResourceError and what the engine raises.
    """
    engine = Engine(bundle, threads=threads, cache=False)
    context = AudioContext(None, bundle.manifest)
    n_samples = bundle.manifest.n_frames * HOP_SAMPLES
    n_made = 0
    for name, heard in _plan(speech, out, n_samples):
        rows, index = [], []
        for window in heard():
            rows.append(hear(engine, context, window))
            index.append({"text": window.text, "rows": len(rows[-1])})
        _write(out / name, np.concatenate(rows), index)
        n_made += 1
        notify(f"{name}: {len(rows)} windows")
    return n_made


def _plan(speech: Path, out: Path, n_samples: int) -> Iterator[tuple[str, Callable[[], Iterator[Heard]]]]:
    """Name and windows of every shard that is still to be made."""
    n_found = 0
    for path, items in training_shards(speech, frozenset()):
        n_found += 1
        name = f"train/{path.replace('/', '-')}"
        kept = [item for item in items if usable(item.voice)]
        if kept and not (out / f"{name}.json").exists():
            yield name, lambda name=name, kept=kept: compose_training(name, kept, n_samples)  # type: ignore[misc]
    if not n_found:
        raise UsageError(f"{speech}: no shards to train on; make them with `speech train` first")
    for folder in sorted({index.parent for index in speech.rglob("*.json")}):
        for path, items in load_shards(folder) if is_dev(folder) else ():
            for whole in (False, True) if path in _DEV_LISTS else ():
                name = f"dev/{path}{'-whole' * whole}"
                if not (out / f"{name}.json").exists():
                    yield name, lambda items=items, whole=whole: compose_dev(items, whole=whole)  # type: ignore[misc]


def _write(path: Path, rows: F16, index: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_suffix(".part"), "wb") as file:
        np.save(file, rows)
    os.replace(path.with_suffix(".part"), path.with_suffix(".npy"))
    path.with_suffix(".tmp").write_text(json.dumps({"windows": index}), encoding="utf-8")
    os.replace(path.with_suffix(".tmp"), path.with_suffix(".json"))


def read_features(folder: Path) -> list[Example]:
    """The windows of all finished shards in `folder`, mapped, in order of their names. Raises UsageError if none."""
    found: list[Example] = []
    for index in sorted(folder.glob("*.json")):
        rows: F16 = np.load(index.with_suffix(".npy"), mmap_mode="r", allow_pickle=False)
        at = 0
        for row in json.loads(index.read_text(encoding="utf-8"))["windows"]:
            found.append(Example(audio=rows[at : at + row["rows"]], text=row["text"], source=index.stem))
            at += row["rows"]
    if not found:
        raise UsageError(f"{folder}: no features; run the command once with --speech")
    return found
