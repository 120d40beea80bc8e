"""The frozen encoder's output over training windows, on disk, with the target's text of each.

A shard is a pair of files: `NAME.npy`, float16 `[n_frames_total, n_audio_state]`, and `NAME.json`, written last, which
lists its windows: frames, text and whether it is a rough copy. A shard exists when its json exists, so a collection
that was cut off goes on where it stopped. Rough copies have the recipe's acoustics on the audio, and the text of the
clean window: a head learns to hear through noise. Of the padding behind the audio a few frames are kept, now and then
all, for the head meets them too.

Knows windows and arrays. Does not know: what is trained on them.

Unlabelled audio as training windows, and what the target itself makes of them (self-distillation).

A draft is right when it says what the target says, so the target's own transcripts are the labels: casing, punctuation
and mistakes included. Audio is files and folders, which are cut into windows at their quietest places, or the
recipe's shards (`corpus`), whose utterances are packed into windows with pauses and whose texts are not read. The order
is random and depends on the seed alone, so the first hour of it is a fair sample of all.

Knows audio, windows and texts. Does not know: what is trained on them.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.errors import AudioError, ResourceError, UsageError
from specedge.runtime.audio.audio import expand_folders, open_audio
from specedge.runtime.audio.mel import HOP_SAMPLES, log_mel
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.decoding.decode import DecodeOptions, WindowResult, decode_window, detect_language
from specedge.runtime.decoding.presets import window_rules
from specedge.runtime.engine.engine import Engine, Features
from specedge.runtime.options import TranscribeOptions

from . import corpus
from .corpus import RATE_HZ, Utterance, training_shards

Float = NDArray[np.float32]
_SHORTEST_S = 0.3
_SEARCHED = 0.3  # of a window, at its end: where a file is cut
_QUIET_S = 0.1
_SURE_LOGPROB = -1.0  # openai-whisper's logprob_threshold


@dataclass(frozen=True, kw_only=True)
class Heard:
    """A window as the target hears it: `hidden`, the encoder's output f32 `[n_ctx, n_audio_state]` of the full window,
    of which the first `n_content` frames hold audio; `ids`, the text ids it says, None where it is not sure of them."""

    hidden: Float
    n_content: int
    ids: tuple[int, ...] | None


class Target:
    """A bundle whose own transcripts are wanted.

    language: a code, or None to detect it in every window. Raises BundleError, UsageError for a language it has not.
    """

    def __init__(self, bundle: Bundle, *, threads: int | None = None, language: str | None = None) -> None:
        self.manifest = bundle.manifest
        self.tokenizer = bundle.tokenizer
        special = self.manifest.tokens
        if language is not None or not special.is_multilingual:
            special.prompt(language, timestamps=False)
        self.language = language
        self.engine = Engine(bundle, threads=threads)
        self._rules = window_rules(TranscribeOptions(without_timestamps=True), self.manifest, self.tokenizer)

    def encode(self, samples: Float) -> tuple[Features, int]:
        """The features of one window of samples at 16 kHz, and how many of its frames hold audio."""
        manifest = self.manifest
        n_content = min(len(samples) // HOP_SAMPLES, manifest.n_frames)
        mel = log_mel(samples, manifest.dims.n_mels, manifest.n_frames)
        mel[:, n_content:] = 0.0  # as transcribe pads
        return self.engine.encode(mel), -(-n_content // 2)

    def hear(self, samples: Float) -> Heard:
        """Encode a window and decode it greedily, without timestamps, prompt or drafter."""
        features, n_content = self.encode(samples)
        special = self.manifest.tokens
        options = DecodeOptions(rules=self._rules, n_text_ctx=self.manifest.dims.n_text_ctx)
        prompt = special.prompt(self.language_of(features), timestamps=False)
        result = decode_window(self.engine, features, prompt, options)
        ids = tuple(token for token in result.tokens if token < special.eot)
        return Heard(hidden=features.hidden, n_content=n_content, ids=ids if self.is_sure(result) else None)

    def language_of(self, features: Features) -> str | None:
        """The given language, else the one heard in the window; None for a model that knows one alone."""
        special = self.manifest.tokens
        if self.language is not None or not special.is_multilingual:
            return self.language
        return next(iter(detect_language(self.engine, features, special.sot, dict(special.languages))))

    def is_sure(self, result: WindowResult) -> bool:
        """Whether a window's text is one to learn from."""
        return result.finished and result.avg_logprob >= _SURE_LOGPROB

    def text(self, ids: Sequence[int]) -> bytes:
        """The bytes of text ids, a leading space included, as tokens have it."""
        return self.tokenizer.decode_bytes(ids)


def windows_of(audio: Sequence[str], n_samples: int, *, seed: int, notify: Callable[[str], None]) -> Iterator[Float]:
    """Windows of at most `n_samples`, float32 at 16 kHz, of files, folders of files and folders of shards, in turn.

    `notify` gets a line about each folder, and about each file that cannot be read and is left out.

    Raises
    ------
    AudioError
        when there is no audio at all.
    UsageError
        when shards hold what models are measured on.
    """
    rng = random.Random(f"windows {seed}")
    names, utterances = [], []
    for name in audio:
        found = (
            [item for _, items in training_shards(Path(name), frozenset()) for item in items] if _shards(name) else []
        )
        utterances += found
        if not found:
            names.append(name)
    files = expand_folders(names, notify=notify, report=lambda error: notify(str(error)))
    rng.shuffle(files)
    rng.shuffle(utterances)
    n_given = 0
    sources = [_cut_files(files, n_samples, notify), _packed(utterances, n_samples, seed)]
    while sources:  # in turn, so that a limit takes of both
        for source in list(sources):
            window = next(source, None)
            if window is None:
                sources.remove(source)
            else:
                n_given += 1
                yield window
    if not n_given:
        raise AudioError("no audio to learn from: expected files, folders of audio files or of the recipe's shards")


def _shards(name: str) -> bool:
    """Whether this is a folder with finished shards below."""
    folder = Path(name)
    return folder.is_dir() and any(index.with_suffix(".npy").is_file() for index in folder.rglob("*.json"))


def _packed(utterances: Sequence[Utterance], n_samples: int, seed: int) -> Iterator[Float]:
    """Utterances with pauses of 0 to 1.5 s, as many as fit into a window; one in four stays alone."""
    rng = random.Random(f"packed {seed}")
    out, at, wanted = np.zeros(n_samples, np.float32), 0, 99
    for item in utterances:
        sound = item.sound()[:n_samples]
        if at and (at + len(sound) > n_samples or wanted == 0):
            yield out[:at]
            out, at, wanted = np.zeros(n_samples, np.float32), 0, 99
        if not at:
            at = min(int(RATE_HZ * rng.uniform(0, 0.5)), n_samples - len(sound))
            wanted = rng.choice((1, 99, 99, 99))
        out[at : at + len(sound)] = sound * rng.uniform(0.5, 1.0)
        at = min(
            n_samples, at + len(sound) + int(RATE_HZ * rng.choice((0.05, rng.uniform(0, 0.6), rng.uniform(0, 1.5))))
        )
        wanted -= 1
    if at:
        yield out[:at]


def _cut_files(files: Sequence[str], n_samples: int, notify: Callable[[str], None]) -> Iterator[Float]:
    for name in files:
        try:
            with open_audio(name) as stream:
                yield from _cut(stream, n_samples)
        except AudioError as error:
            notify(f"left out: {error}")


def _cut(stream: Any, n_samples: int) -> Iterator[Float]:
    """Windows of a stream, each cut at the quietest tenth of a second of its last third."""
    held = stream.read(n_samples)
    while len(held) >= _SHORTEST_S * RATE_HZ:
        end = len(held) if len(held) < n_samples else _quietest(held)
        yield held[:end]
        held = np.concatenate([held[end:], stream.read(end)])


def _quietest(samples: Float) -> int:
    n_quiet = int(_QUIET_S * RATE_HZ)
    first = int(len(samples) * (1 - _SEARCHED)) // n_quiet
    blocks = samples[: len(samples) // n_quiet * n_quiet].reshape(-1, n_quiet)[first:]
    return (first + int(np.square(blocks).sum(axis=1).argmin())) * n_quiet + n_quiet // 2


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
                features, _ = target.encode(corpus.acoustics(rng, samples, _STRENGTH))
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
