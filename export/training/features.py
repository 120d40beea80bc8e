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

Each window has a file of its own, in a folder for what it depends on: a collection that was cut off goes on where it
stopped, and one of another model, audio or option begins anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import random
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from specedge.errors import AudioError, UsageError
from specedge.files import disk_errors, publishing
from specedge.models import store
from specedge.runtime.audio.audio import expand_folders, open_audio, quietest
from specedge.runtime.audio.mel import DYNAMIC_RANGE, HOP_SAMPLES, log_mel
from specedge.runtime.bundle.bundle import MANIFEST_NAME, Bundle, encoder_fingerprint
from specedge.runtime.bundle.manifest import SAMPLE_RATE_HZ as RATE_HZ
from specedge.runtime.bundle.manifest import SPEECH
from specedge.runtime.console import Progress, silently
from specedge.runtime.decoding.decode import DecodeOptions, WindowResult, decode_window
from specedge.runtime.decoding.drafter import DraftContext, DraftTree, EmptyDrafter
from specedge.runtime.decoding.languages import UNKNOWN_LANGUAGE, detect_language
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
EVERY_S = 8.0  # between two progress lines in a log
_SHORTEST_S = 0.3
_SEARCHED = 0.3  # of a window, at its end: where a file is cut
_QUIET_SAMPLES = RATE_HZ // 10
_SURE_LOGPROB = -1.0  # openai-whisper's logprob_threshold
LEFT_OUT = (
    "windows are left out where the target does not end its text or is not sure of it (average log-probability below "
    f"{_SURE_LOGPROB:g}): check --language, or give more audio"
)
_ALL_PADDING = 0.1  # share of the windows whose padding is kept whole
_MEAN_PADDING = 10  # frames of the others'
_SHORT_S = (2.0, 20.0)
_ROUGH = 0.4  # share of the windows for heads and drafts
_N_ALIKE, _RIDGE = 96, 1e-3  # windows that encoders are compared on; of the mean square, against chance
_SPEAKS = ("encoder.", "cross_kv.", "projector.", "decoder.", "tokenizer.")


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What is trained on. `source`: the number of its window of audio, clean or rough. Arrays are memory-mapped."""

    source: int


@dataclass(frozen=True, kw_only=True)
class Window(Sample):
    """A window's features float16 `[n_frames, n_state]`, its text's bytes, and the frames at which the target has
    segments begin and end."""

    features: F16
    text: bytes
    is_rough: bool
    starts: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class HiddenText(Sample):
    """One text over one window.

    ids: prompt (that of a speech LLM with its rows of audio), text and end; n_prompt: of them the prompt; hidden:
    float16 [n_rows, n_text_state], of the first rows of `ids`; features: float16 [n_ctx, n_audio_state], the encoder's
    output.
    """

    ids: tuple[int, ...]
    n_prompt: int
    hidden: F16
    features: F16


S = TypeVar("S", bound=Sample)


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

    def timed(self, title: str, windows: Iterator[Float]) -> Generator[tuple[int, Float], None, None]:
        """`windows` with their numbers, until there are `hours` of audio; a progress line says how far it is."""
        most_s, found_s, done_s = self.hours * 3600, 0.0, 0.0
        with silently(), contextlib.suppress(AudioError):  # said when it is read
            for file in expand_folders(self.audio, notify=lambda line: None, report=lambda error: None):
                with contextlib.suppress(AudioError), open_audio(file) as stream:
                    found_s += stream.duration_s or most_s
                if found_s >= most_s:
                    break
        with Progress(min(found_s or most_s, most_s), "s", title, every_s=EVERY_S) as progress:
            for number, samples in enumerate(windows):
                yield number, samples
                done_s += len(samples) / RATE_HZ
                progress.update_to(done_s)
                if done_s >= most_s:
                    return

    def collect(
        self,
        kind: type[S],
        make: Callable[[int, Float], list[dict[str, Any]]],
        bundle: Bundle,
        seed: int,
        *,
        has_short: bool = False,
        max_bytes: float = math.inf,
        **more: object,
    ) -> list[S]:
        """The samples whose fields, arrays as tensors, `make` makes of each window by its number, until hours or bytes
        are enough; those of windows that have a file already are read. Says how to go on after a stop.

        has_short: as in `windows`; more: what they depend on besides bundle, audio, language, search and seed. Raises
        ResourceError when a file cannot be written.
        """
        self.notify(f"{self.work}: keeps what is done; after a stop (Ctrl-C) the same command goes on from there")
        # A digest of the files that make the text: a bundle that gets a head, a map or a draft says the same as before.
        speaker = {name: entry.sha256 for name, entry in bundle.manifest.files.items() if name.startswith(_SPEAKS)}
        given = [kind.__name__, speaker, list(self.audio), self.language, self.beam_size, seed, more]
        digest = hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()
        paths, n_bytes = list[Path](), 0
        windows = self.windows(bundle, seed, has_short=has_short)
        folder = self.work / f"samples-{digest[:16]}"
        with disk_errors(folder), contextlib.closing(self.timed("transcribe", windows)) as timed:
            folder.mkdir(parents=True, exist_ok=True)
            for number, samples in timed:
                paths.append(folder / f"{number}.pt")
                if not paths[-1].exists():
                    with publishing(paths[-1]) as file:
                        torch.save(make(number, samples), file)
                n_bytes += paths[-1].stat().st_size
                if n_bytes >= max_bytes:
                    break
        return [
            kind(source=number, **{name: v.numpy() if torch.is_tensor(v) else v for name, v in fields.items()})
            for number, path in enumerate(paths)
            for fields in torch.load(path, mmap=True, weights_only=True)
        ]


def bundle_of(source: str, work: Path) -> Bundle:
    """The bundle called `source`, or one made in `work` of the checkpoint `source`.

    Raises what `models.store.find`, `open_checkpoint` and `write_bundle` raise.
    """
    if not is_checkpoint(source):
        return Bundle.open(store.find(source))
    with open_checkpoint(source) as checkpoint:
        return bundle_in(work, checkpoint, "target")


def is_checkpoint(source: str) -> bool:
    """Whether `source` is a path, and no bundle's."""
    path = Path(source)
    return path.exists() and not (path / MANIFEST_NAME).is_file()


def bundle_in(work: Path, checkpoint: Checkpoint, name: str) -> Bundle:
    """The bundle in `work` that is made of `checkpoint`, unless it is there. Raises what `write_bundle` raises."""
    made = work / "bundle"
    if (made / MANIFEST_NAME).is_file():
        return Bundle.open(made)
    return write_bundle(checkpoint, made, precision="int8", name=name, version=__version__)


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
        self.is_llm = self.manifest.kind == SPEECH  # which knows no timestamps
        self._as_transcribed = AudioContext("auto", self.manifest, knows_silence=self.engine.knows_silence)
        self._by_itself = AudioContext("auto" if self.is_llm else "full", self.manifest)

    def encode(self, samples: Float, *, ends_in_silence: bool = True) -> Features:
        """The features of one window of samples at 16 kHz, as `transcribe` makes them; ends_in_silence: silence may
        stand in for the rest of a window."""
        n_content = len(samples) // HOP_SAMPLES
        mel = log_mel(samples, self.manifest.dims.n_mels, self.manifest.n_frames)
        mel[:, n_content:] = 0.0  # as transcribe pads
        floor = float(mel[:, :n_content].max()) - DYNAMIC_RANGE
        sound = (self._as_transcribed if ends_in_silence else self._by_itself).sound(mel, n_content, floor)
        return self.engine.encode(sound.mel, ends_in_silence=sound.ends_in_silence)

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
        language = next(iter(detect_language(self.engine, features, special)))
        return None if language == UNKNOWN_LANGUAGE else language

    def is_sure(self, result: WindowResult) -> bool:
        """Whether a window's text is one to learn from."""
        return result.finished and result.avg_logprob >= _SURE_LOGPROB

    def text(self, ids: Sequence[int]) -> bytes:
        """The bytes of the text among `ids`, a leading space included, as tokens have it."""
        return self.tokenizer.decode_bytes([token for token in ids if token < self.manifest.tokens.eot])


def _cut(stream: Any, lengths: Iterator[int]) -> Iterator[Float]:
    """Windows of a stream, each cut at the quietest tenth of a second of its last third."""
    held = np.zeros(0, np.float32)
    for n_samples in lengths:
        held = np.concatenate([held, stream.read(max(n_samples - len(held), 0))])
        if len(held) < _SHORTEST_S * RATE_HZ:
            return
        searched = int(n_samples * (1 - _SEARCHED))
        is_last = len(held) < n_samples
        end = len(held) if is_last else searched + quietest(held[searched:n_samples], _QUIET_SAMPLES)
        yield held[:end]
        held = held[end:]


def collect_features(
    course: Course, bundle: Bundle, *, n_rough: int, max_bytes: float, seed: int, encoder: str
) -> list[Window]:
    """The features of the windows, and of `n_rough` rough copies of each, to `max_bytes` on disk.

    encoder: a digest of what makes them.
    """
    target = course.target(bundle)
    special, dims = target.manifest.tokens, target.manifest.dims
    frames_a_step = special.time_precision_s * RATE_HZ / (2 * HOP_SAMPLES)

    def make(number: int, samples: Float) -> list[dict[str, Any]]:
        rng = np.random.default_rng((seed, number))
        found = []
        for copy in range(1 + n_rough):
            heard = target.encode(acoustics(rng, samples) if copy else samples, ends_in_silence=False)
            _, result = target.say(heard, target.language_of(heard), timestamps=True)
            n_padding = len(heard.hidden) if rng.random() < _ALL_PADDING else int(rng.exponential(_MEAN_PADDING))
            if not target.is_sure(result):
                continue
            features = heard.hidden[: dims.positions(len(samples) // HOP_SAMPLES) + n_padding].astype(np.float16)
            times: tuple[list[int], list[int]] = ([], [])  # timestamps in front of text, and behind it
            for before, token in itertools.pairwise([special.timestamp_begin, *result.tokens]):
                if token >= special.timestamp_begin:
                    frame = round((token - special.timestamp_begin) * frames_a_step)
                    times[before < special.timestamp_begin].extend([frame] * (frame < len(features)))
            text, (starts, ends) = target.text(result.tokens), map(tuple, times)
            fields = {"features": torch.from_numpy(features), "text": text, "starts": starts, "ends": ends}
            found.append(fields | {"is_rough": copy > 0})
        return found

    return course.collect(Window, make, bundle, seed, max_bytes=max_bytes, n_rough=n_rough, encoder=encoder)


def heard_texts(course: Course, bundle: Bundle, seed: int, *, ear: Bundle | None = None) -> list[HiddenText]:
    """What the target `bundle` says of the audio, with its hidden rows, from the work folder as far as it is there.

    seed: also of the acoustics that some windows get; ear: the bundle whose encoder's output is kept, where it is not
    the target's own.
    """
    target = course.target(bundle)
    hearing = target if ear is None else Target(ear, threads=course.n_threads)

    def make(number: int, samples: Float) -> list[dict[str, Any]]:
        if (rng := np.random.default_rng((seed, number))).random() < _ROUGH:
            samples = acoustics(rng, samples)
        heard = target.encode(samples)
        said = list(_said(target, heard))
        if not said:
            return []
        own = heard if ear is None else hearing.encode(samples)
        features = torch.from_numpy((own.hidden[:0] if target.is_llm else whole_window(own)).astype(np.float16))
        return [
            {"ids": ids, "n_prompt": n_prompt, "hidden": torch.from_numpy(hidden), "features": features}
            for ids, n_prompt, hidden in said
        ]

    of_ear = None if ear is None else encoder_fingerprint(ear.manifest)
    return course.collect(HiddenText, make, bundle, seed, has_short=True, ear=of_ear)


def encoders_alike(course: Course, bundle: Bundle, ear: Bundle, seed: int) -> tuple[Float, Float]:
    """The linear map that comes nearest to making the encoder's output of `ear` of that of `bundle`, and what to add:
    float32 [d_ear, d], [d_ear]. By least squares over the first windows of audio. Raises UsageError where the two have
    windows of other lengths.
    """
    if ear.manifest.dims.n_audio_ctx != bundle.manifest.dims.n_audio_ctx:
        raise UsageError(f"{ear.manifest.name}: hears windows of another length than {bundle.manifest.name}")
    target, other = course.target(bundle), Target(ear, threads=course.n_threads)
    xs, ys = [], []
    for samples in itertools.islice(course.windows(bundle, seed, has_short=True), _N_ALIKE):
        xs.append(target.encode(samples).hidden)
        ys.append(other.encode(samples).hidden)
    x, y = (np.concatenate(some).astype(np.float64) for some in (xs, ys))
    x_mean, y_mean = x.mean(0), y.mean(0)
    x -= x_mean
    squares = x.T @ x
    squares += np.eye(len(squares)) * (_RIDGE * np.trace(squares) / len(squares))
    matrix = np.linalg.solve(squares, x.T @ (y - y_mean)).T
    return matrix.astype(np.float32), (y_mean - matrix @ x_mean).astype(np.float32)


def _said(target: Target, heard: Features) -> Iterator[tuple[tuple[int, ...], int, F16]]:
    """Ids, length of the prompt and hidden rows of what the target is sure of, with timestamps and without."""
    language = target.language_of(heard)
    for timestamps in (False,) if target.is_llm else (True, False):
        recorder = RowRecorder() if target.beam_size == 1 else None
        prompt, result = target.say(heard, language, timestamps=timestamps, recorder=recorder)
        ids = (*prompt, *result.tokens, target.manifest.tokens.eot)
        rows = target.rows(heard, ids[:-2]) if recorder is None else recorder.rows
        if rows is not None and target.is_sure(result):
            yield ids, len(prompt), rows.astype(np.float16)


def whole_window(features: Features) -> Float:
    """The encoder's output of every position, float32 `[n_ctx, n_audio_state]`: a group of silence is repeated."""
    return by_position(features.hidden, features.cross[BIAS]) if BIAS in features.cross else features.hidden
