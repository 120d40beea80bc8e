"""What a target makes of unlabelled audio, on disk: the labels and inputs of all that `specedge train` trains.

A draft is right when it says what the target says, so the target's own transcripts are the labels, casing, punctuation
and mistakes included. Audio is files and folders, cut into windows at their quietest places. The order is random and
depends on the seed alone, so the first hour of it is a fair sample of all.

features  for CTC heads: the encoder's output of each window, and what the target says of it, its text and the frames of
          its timestamps. Rough copies have random `acoustics` on the audio. Of the padding behind the audio a few
          frames are kept, now and then all, for the head meets them too
rows      for heads and drafts: the decoder's last hidden rows over texts said with timestamps and without, as a drafter
          would be shown them, and the encoder's output. Half of the windows are short, and encoded as `transcribe` does
          with short audio; some have random `acoustics`. Of a speech LLM, whose heads see rows alone, texts without
          timestamps and no encoder's output

Arrays are appended to NAME.f16, then a line about their window to NAME.index.jsonl: so a collection that was cut off
goes on where it stopped.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.errors import AudioError, ResourceError, SpecedgeError, UsageError
from specedge.models import store
from specedge.runtime.audio.audio import expand_folders, open_audio
from specedge.runtime.audio.mel import DYNAMIC_RANGE, HOP_SAMPLES, log_mel
from specedge.runtime.bundle.bundle import MANIFEST_NAME, Bundle, encoder_fingerprint
from specedge.runtime.bundle.manifest import SAMPLE_RATE_HZ as RATE_HZ
from specedge.runtime.bundle.manifest import SPEECH
from specedge.runtime.console import Progress, silently
from specedge.runtime.decoding.decode import DecodeOptions, WindowResult, decode_window, detect_language
from specedge.runtime.decoding.drafter import DraftContext, DraftTree, EmptyDrafter
from specedge.runtime.decoding.languages import UNKNOWN_LANGUAGE, say_language
from specedge.runtime.decoding.presets import window_rules
from specedge.runtime.device import threads_allowed
from specedge.runtime.engine.engine import Features
from specedge.runtime.engine.many import BIAS, by_position
from specedge.runtime.engine.speech import open_engine
from specedge.runtime.longform.windows import AudioContext
from specedge.runtime.options import TranscribeOptions
from specedge.runtime.text.speech_tokens import SpeechTokens
from specedge.version import __version__

from ..bundling import write_bundle
from ..checkpoint import Checkpoint, open_checkpoint
from .acoustics import acoustics

Float = NDArray[np.float32]
F16 = NDArray[np.float16]
Line = dict[str, Any]  # of an index: rows about a window, and the shapes of its arrays by part
Make = Callable[[int, Float], tuple[list[dict[str, object]], dict[str, list[F16]]]]
EVERY_S = 8.0  # between two progress lines in a log
_SHORTEST_S = 0.3
_SEARCHED = 0.3  # of a window, at its end: where a file is cut
_QUIET_S = 0.1
_SURE_LOGPROB = -1.0  # openai-whisper's logprob_threshold
LEFT_OUT = (
    "windows are left out where the target does not end its text or is not sure of it (average log-probability below "
    f"{_SURE_LOGPROB:g}): check --language, or give more audio"
)
_ALL_PADDING = 0.1  # share of the windows whose padding is kept whole
_MEAN_PADDING = 10  # frames of the others'
_SHORT_S = (2.0, 20.0)
_ROUGH = 0.4  # share of the windows for heads and drafts
_PLAN = "plan.json"
_SPEAKS = ("encoder.", "cross_kv.", "projector.", "decoder.", "tokenizer.")
_BUNDLE = "bundle"


@dataclass(frozen=True, kw_only=True)
class Course:
    """What is learned from, and where: a bundle or checkpoint, `hours` of audio, the work folder.

    threads: None for the cores of this process; language: of the audio, None to detect it in every window; `notify`
    gets lines to show; device: torch's name of where training runs, behind the target, which runs on the CPU;
    beam_size: of the search for what the target says, 1 is greedy.
    """

    source: str
    audio: Sequence[str]
    work: Path
    hours: float
    threads: int | None
    language: str | None
    notify: Callable[[str], None]
    device: str = "cpu"
    beam_size: int = 1

    @property
    def n_threads(self) -> int:
        return self.threads or threads_allowed()

    def target(self, bundle: Bundle) -> Target:
        """The target, in the language of the audio."""
        return Target(bundle, threads=self.n_threads, language=self.language, beam_size=self.beam_size)

    def windows(self, bundle: Bundle, seed: int, *, has_short: bool = False) -> Iterator[Float]:
        """The audio in windows of `bundle`, float32 at 16 kHz; has_short: every other one has 2 to 20 seconds at most.

        A file that cannot be read is left out, with a line. Raises AudioError when there is no audio at all.
        """
        n_samples, rng = bundle.manifest.n_samples, random.Random(f"lengths {seed}")
        short = (round(rng.uniform(*_SHORT_S) * RATE_HZ) if i % 2 else n_samples for i in itertools.count())
        lengths = (min(n, n_samples) for n in short) if has_short else itertools.repeat(n_samples)
        files = expand_folders(self.audio, notify=self.notify, report=lambda error: self.notify(str(error)))
        random.Random(f"windows {seed}").shuffle(files)
        is_empty = True
        for name in files:
            try:
                with open_audio(name) as stream:
                    for window in _cut(stream, lengths):
                        is_empty = False
                        yield window
            except AudioError as error:
                self.notify(f"left out: {error}")
        if is_empty:
            raise AudioError("no audio to learn from: expected audio files, or folders of them")

    def collect(
        self,
        bundle: Bundle,
        make: Make,
        folder: Path,
        name: str,
        *,
        seed: int,
        has_short: bool = False,
        max_bytes: float = math.inf,
        **more: object,
    ) -> None:
        """Append to `folder` what `make` makes of each window that has no line in the index `name` yet, until hours or
        bytes are enough; says how to go on after a stop.

        has_short: as in `windows`; more: what it depends on besides bundle, audio, language, search and seed. Raises
        UsageError when the folder is of something else, ResourceError when it cannot be written.
        """
        self.notify(f"{self.work}: keeps what is done; after a stop (Ctrl-C) the same command goes on from there")
        given = {"audio": list(self.audio), "language": self.language, "beam_size": self.beam_size, "seed": seed}
        done_s = 0.0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _check_plan(folder / _PLAN, {"bundle": _speaker(bundle), **given, **more})
            lines, n_bytes = _read_index(folder, name), 0
            with self.progress("transcribe") as progress:
                for number, samples in enumerate(self.windows(bundle, seed, has_short=has_short)):
                    if number == len(lines):
                        lines.append(_append(folder, name, n_bytes, *make(number, samples)))
                    n_bytes += _n_bytes(lines[number])
                    done_s += len(samples) / RATE_HZ
                    progress.update_to(done_s)
                    if done_s >= self.hours * 3600 or n_bytes >= max_bytes:
                        return
        except SpecedgeError:
            raise
        except OSError as error:
            raise ResourceError(f"{folder}: cannot be written: {error.strerror}; give another --work") from error

    def progress(self, title: str) -> Progress:
        """A progress line of seconds of audio: of all that there is and tells its length, to `hours`."""
        most_s, found_s = self.hours * 3600, 0.0
        with silently(), contextlib.suppress(AudioError):  # said when it is read
            for file in expand_folders(self.audio, notify=lambda line: None, report=lambda error: None):
                with contextlib.suppress(AudioError), open_audio(file) as stream:
                    found_s += stream.duration_s or most_s
                if found_s >= most_s:
                    break
        return Progress(min(found_s or most_s, most_s), "s", title, is_time=True, every_s=EVERY_S)


def bundle_of(source: str, work: Path) -> Bundle:
    """The bundle called `source`, or one made in `work` of the checkpoint `source`.

    Raises what `models.store.find`, `open_checkpoint` and `write_bundle` raise.
    """
    if not is_checkpoint(source):
        return Bundle.open(store.find(source))
    with open_checkpoint(source) as checkpoint:
        return bundle_in(work, checkpoint, "target")


def _speaker(bundle: Bundle) -> str:
    """A digest of the files that make the text: a bundle that gets a head, a map or a draft says the same as before."""
    made = {name: entry.sha256 for name, entry in bundle.manifest.files.items() if name.startswith(_SPEAKS)}
    return hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()


def is_checkpoint(source: str) -> bool:
    """Whether `source` is a path, and no bundle's."""
    path = Path(source)
    return path.exists() and not (path / MANIFEST_NAME).is_file()


def bundle_in(work: Path, checkpoint: Checkpoint, name: str) -> Bundle:
    """The bundle in `work` that is made of `checkpoint`, unless it is there. Raises what `write_bundle` raises."""
    made = work / _BUNDLE
    if (made / MANIFEST_NAME).is_file():
        return Bundle.open(made)
    return write_bundle(checkpoint, made, precision="int8", name=name, version=__version__)


@dataclass(frozen=True, kw_only=True)
class Heard:
    """A window as the target hears it: `hidden`, the encoder's output f32 `[n_ctx, n_audio_state]`, of which the first
    `n_content` frames hold audio; `ids`, the text ids it says, None where it is not sure of them; `starts` and `ends`,
    the encoder frames at which its timestamps have segments begin and end."""

    hidden: Float
    n_content: int
    ids: tuple[int, ...] | None
    starts: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()


class RowRecorder(EmptyDrafter):
    """Guesses nothing and keeps the rows that it is shown."""

    reads_hidden = True
    rows: Float | None = None

    def propose(self, context: DraftContext, budget: int) -> DraftTree:
        self.rows = context.hidden
        return super().propose(context, budget)


class Target:
    """A bundle whose own transcripts are wanted.

    language: a code, or None to detect it in every window; beam_size: of the search, 1 is greedy. Raises BundleError,
    UsageError for a language it has not.
    """

    def __init__(
        self, bundle: Bundle, *, threads: int | None = None, language: str | None = None, beam_size: int = 1
    ) -> None:
        self.manifest = bundle.manifest
        self.tokenizer = bundle.tokenizer
        self.manifest.tokens.check_request(language, "transcribe")
        self.language, self.beam_size = language, beam_size
        self.engine = open_engine(bundle, threads=threads)
        self._context = AudioContext("auto" if self.is_llm else "full", self.manifest)
        self._as_transcribed = AudioContext("auto", self.manifest, knows_silence=self.engine.knows_silence)

    @property
    def is_llm(self) -> bool:
        """Whether it is a speech LLM, which knows no timestamps."""
        return self.manifest.kind == SPEECH

    def encode(self, samples: Float) -> Features:
        """The features of one window of samples at 16 kHz, as `transcribe` makes them."""
        mel, n_content = self.mel(samples)
        floor = float(mel[:, :n_content].max()) - DYNAMIC_RANGE
        sound = self._as_transcribed.sound(mel, n_content, floor)
        return self.engine.encode(sound.mel, ends_in_silence=sound.ends_in_silence)

    def mel(self, samples: Float) -> tuple[Float, int]:
        """The log-mel of one window, and how many of its frames hold audio."""
        manifest = self.manifest
        n_content = min(len(samples) // HOP_SAMPLES, manifest.n_frames)
        mel = log_mel(samples, manifest.dims.n_mels, manifest.n_frames)
        mel[:, n_content:] = 0.0  # as transcribe pads
        return mel, n_content

    def hear(self, samples: Float) -> Heard:
        """Encode as much of a window as transcribe would, and decode it greedily, without prompt or drafter."""
        mel, n_content = self.mel(samples)
        features = self.engine.encode(self._context.sound(mel, n_content).mel)
        _, result = self.say(features, self.language_of(features), timestamps=True)
        ids = tuple(token for token in result.tokens if token < self.manifest.tokens.eot)
        starts, ends = self._times(result.tokens)
        return Heard(
            hidden=features.hidden,
            n_content=self.manifest.dims.positions(n_content),
            ids=ids if self.is_sure(result) else None,
            starts=starts,
            ends=ends,
        )

    def _times(self, tokens: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The encoder frames of the timestamps in front of text, and of those behind it."""
        special = self.manifest.tokens
        frames_a_step = special.time_precision_s * RATE_HZ / (2 * HOP_SAMPLES)
        starts, ends = list[int](), list[int]()
        for before, token in zip([special.timestamp_begin, *tokens], tokens, strict=False):
            if token >= special.timestamp_begin:
                found = starts if before >= special.timestamp_begin else ends
                found.append(round((token - special.timestamp_begin) * frames_a_step))
        return tuple(starts), tuple(ends)

    def options(self, *, timestamps: bool = False) -> DecodeOptions:
        """How a window is decoded: at temperature 0, by the model's rules."""
        rules = window_rules(TranscribeOptions(without_timestamps=not timestamps), self.manifest, self.tokenizer)
        return DecodeOptions(rules=rules, n_text_ctx=self.manifest.dims.n_text_ctx, beam_size=self.beam_size)

    def say(
        self, features: Features, language: str | None, *, timestamps: bool = False, recorder: RowRecorder | None = None
    ) -> tuple[list[int], WindowResult]:
        """The prompt, and what the target says behind it."""
        special = self.manifest.tokens
        if isinstance(special, SpeechTokens):
            prompt = special.prompt(features.n_audio, language)
        else:
            prompt = self.manifest.whisper_tokens.prompt(language, timestamps=timestamps)
        return prompt, decode_window(self.engine, features, prompt, self.options(timestamps=timestamps), recorder)

    def rows(self, features: Features, ids: Sequence[int]) -> Float:
        """The last hidden rows f32 [len(ids), n_text_state] of a text with its prompt."""
        state = self.engine.start(features, keeps_hidden=True)
        try:
            self.engine.forward(state, ids, [len(ids) - 1])
            self.engine.commit(state, len(ids))
            if state.hidden is None:
                raise TypeError("expected an engine that keeps hidden rows")
            return state.hidden[: len(ids)].copy()
        finally:
            self.engine.release(state)

    def language_of(self, features: Features) -> str | None:
        """The given language, else the one heard in the window; None where the model knows one alone, or hears none."""
        special = self.manifest.tokens
        if self.language is not None or not special.is_multilingual:
            return self.language
        if isinstance(special, SpeechTokens):
            language = next(iter(say_language(self.engine, features, special, ())))
            return None if language == UNKNOWN_LANGUAGE else language
        special = self.manifest.whisper_tokens
        return next(iter(detect_language(self.engine, features, special.sot, dict(special.languages))))

    def is_sure(self, result: WindowResult) -> bool:
        """Whether a window's text is one to learn from."""
        return result.finished and result.avg_logprob >= _SURE_LOGPROB

    def text(self, ids: Sequence[int]) -> bytes:
        """The bytes of text ids, a leading space included, as tokens have it."""
        return self.tokenizer.decode_bytes(ids)


def _cut(stream: Any, lengths: Iterator[int]) -> Iterator[Float]:
    """Windows of a stream, each cut at the quietest tenth of a second of its last third."""
    held = np.zeros(0, np.float32)
    for n_samples in lengths:
        held = np.concatenate([held, stream.read(max(n_samples - len(held), 0))])
        if len(held) < _SHORTEST_S * RATE_HZ:
            return
        end = len(held) if len(held) < n_samples else _quietest(held[:n_samples])
        yield held[:end]
        held = held[end:]


def _quietest(samples: Float) -> int:
    n_quiet = int(_QUIET_S * RATE_HZ)
    first = int(len(samples) * (1 - _SEARCHED)) // n_quiet
    blocks = samples[: len(samples) // n_quiet * n_quiet].reshape(-1, n_quiet)[first:]
    return (first + int(np.square(blocks).sum(axis=1).argmin())) * n_quiet + n_quiet // 2


@dataclass(frozen=True, kw_only=True)
class Window:
    """A window's features float16 `[n_frames, n_state]`, memory-mapped, its text's bytes, and the frames at which the
    target has segments begin and end.

    `source`: the number of the window of audio that it is, clean or rough.
    """

    features: F16
    text: bytes
    source: int
    is_rough: bool
    starts: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class HiddenText:
    """One text over one window.

    ids: prompt (that of a speech LLM with its rows of audio), text and end; n_prompt: of them the prompt; hidden:
    float16 [n_rows, n_text_state], of the first rows of `ids`, memory-mapped; features: float16 [n_ctx, n_audio_state],
    the encoder's output, memory-mapped; source: its number.
    """

    ids: tuple[int, ...]
    n_prompt: int
    hidden: F16
    features: F16
    source: int


def _check_plan(path: Path, plan: dict[str, object]) -> None:
    """Write down what a folder is of, or compare it with what was written. Raises UsageError, OSError."""
    made = json.dumps(plan, sort_keys=True)
    if not path.is_file():
        path.write_text(made, encoding="utf-8")
    elif path.read_text(encoding="utf-8", errors="replace") != made:
        raise UsageError(
            f"{path.parent}: holds the features of another model, other audio or other options; remove that folder "
            "or give another --work"
        )


def _read_index(folder: Path, name: str) -> list[Line]:
    """The lines of the index; one that a kill cut off is taken away. Raises OSError."""
    path = folder / f"{name}.index.jsonl"
    data = path.read_bytes() if path.exists() else b""
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        os.truncate(path, len(whole))
    return [json.loads(line) for line in whole.splitlines()]


def _n_bytes(line: Line) -> int:
    """Of the arrays of a window."""
    n_values: int = sum(math.prod(shape) for shapes in line["shapes"].values() for shape in shapes)
    return n_values * np.dtype(np.float16).itemsize


def _append(
    folder: Path, name: str, n_before: int, rows: list[dict[str, object]], arrays: dict[str, list[F16]]
) -> Line:
    """Write a window's arrays behind the first `n_before` bytes, then its line. Raises OSError."""
    with open(folder / f"{name}.f16", "ab") as file:
        file.truncate(n_before)  # what a kill left behind
        file.writelines(np.ascontiguousarray(v).data for values in arrays.values() for v in values if v.size)
    line = {"rows": rows, "shapes": {part: [value.shape for value in values] for part, values in arrays.items()}}
    with open(folder / f"{name}.index.jsonl", "a", encoding="ascii") as index:
        index.write(json.dumps(line) + "\n")
    return line


def _load(folder: Path, name: str) -> Iterator[tuple[int, list[dict[str, Any]], dict[str, list[F16]]]]:
    """Number, rows and arrays of each window, memory-mapped. Raises OSError."""
    path, end = folder / f"{name}.f16", 0
    is_empty = not path.exists() or not path.stat().st_size
    whole: F16 = np.zeros(0, np.float16) if is_empty else np.memmap(path, np.float16, "r")
    for number, line in enumerate(_read_index(folder, name)):
        arrays: dict[str, list[F16]] = {part: [] for part in line["shapes"]}
        for part, shapes in line["shapes"].items():
            for shape in shapes:
                start, end = end, end + math.prod(shape)
                arrays[part].append(whole[start:end].reshape(shape))
        yield number, line["rows"], arrays


def collect_features(
    course: Course, bundle: Bundle, *, n_rough: int, max_bytes: float, seed: int, encoder: str
) -> None:
    """Keep the features of the windows, and of `n_rough` rough copies of each, to `max_bytes` on disk.

    encoder: a digest of what makes them.
    """
    target = course.target(bundle)

    def make(number: int, samples: Float) -> tuple[list[dict[str, object]], dict[str, list[F16]]]:
        rng = np.random.default_rng((seed, number))
        rows: list[dict[str, object]] = []
        kept: list[F16] = []
        for copy in range(1 + n_rough):
            heard = target.hear(acoustics(rng, samples) if copy else samples)
            n_padding = len(heard.hidden) if rng.random() < _ALL_PADDING else int(rng.exponential(_MEAN_PADDING))
            if heard.ids is None:
                continue
            kept.append(heard.hidden[: heard.n_content + n_padding].astype(np.float16))
            text = target.text(heard.ids).hex()
            rows.append({"text": text, "is_rough": copy > 0, "starts": heard.starts, "ends": heard.ends})
        return rows, {"features": kept}

    course.collect(
        bundle, make, course.work, "features", seed=seed, max_bytes=max_bytes, n_rough=n_rough, encoder=encoder
    )


def load_features(folder: Path) -> list[Window]:
    """The windows that are kept, in order. Raises OSError."""
    found = []
    for number, rows, arrays in _load(folder, "features"):
        for row, features in zip(rows, arrays["features"], strict=True):
            starts, ends = (tuple([at for at in row[kind] if at < len(features)]) for kind in ("starts", "ends"))
            text, is_rough = bytes.fromhex(row["text"]), row["is_rough"]
            window = Window(features=features, text=text, source=number, is_rough=is_rough, starts=starts, ends=ends)
            found.append(window)
    return found


def heard_texts(
    course: Course, bundle: Bundle, seed: int, *, folder: Path | None = None, ear: Bundle | None = None
) -> list[HiddenText]:
    """What the target `bundle` says of the audio, with its hidden rows, from the work folder as far as it is there.

    seed: also of the acoustics that some windows get; ear: the bundle whose encoder's output is kept in `folder`, where
    it is not the target's own.
    """
    target = course.target(bundle)
    hearing = None if ear is None else Target(ear, threads=course.n_threads)

    def make(number: int, samples: Float) -> tuple[list[dict[str, object]], dict[str, list[F16]]]:
        if (rng := np.random.default_rng((seed, number))).random() < _ROUGH:
            samples = acoustics(rng, samples)
        heard = target.encode(samples)
        said = list(_said(target, heard))
        features: list[F16] = []
        if said:
            own = heard if hearing is None else hearing.encode(samples)
            features.append((own.hidden[:0] if target.is_llm else whole_window(own)).astype(np.float16))
        rows: list[dict[str, object]] = [{"ids": ids, "n_prompt": n_prompt} for ids, n_prompt, _ in said]
        return rows, {"hidden": [hidden for _, _, hidden in said], "features": features}

    kept = (folder or course.work) / "rows"
    of_ear = None if ear is None else encoder_fingerprint(ear.manifest)
    course.collect(bundle, make, kept, "rows", seed=seed, has_short=True, ear=of_ear)
    return [
        HiddenText(
            ids=tuple(row["ids"]),
            n_prompt=row["n_prompt"],
            hidden=hidden,
            features=arrays["features"][0],
            source=number,
        )
        for number, rows, arrays in _load(kept, "rows")
        for row, hidden in zip(rows, arrays["hidden"], strict=True)
    ]


def _said(target: Target, heard: Features) -> Iterator[tuple[list[int], int, F16]]:
    """Ids, length of the prompt and hidden rows of what the target is sure of, with timestamps and without."""
    language = target.language_of(heard)
    for timestamps in (False,) if target.is_llm else (True, False):
        recorder = RowRecorder() if target.beam_size == 1 else None
        prompt, result = target.say(heard, language, timestamps=timestamps, recorder=recorder)
        ids = [*prompt, *result.tokens, target.manifest.tokens.eot]
        rows = target.rows(heard, ids[:-2]) if recorder is None else recorder.rows
        if rows is not None and target.is_sure(result):
            yield ids, len(prompt), rows.astype(np.float16)


def whole_window(features: Features) -> Float:
    """The encoder's output of every position, float32 `[n_ctx, n_audio_state]`: a group of silence is repeated."""
    return by_position(features.hidden, features.cross[BIAS]) if BIAS in features.cross else features.hidden
