"""What a fleet is asked to do, and what a worker does: transcribe a file or a part of one, and write the result once.

A worker decides nothing and claims nothing. It looks whether the result is there, and if not makes it. When two workers
do one file, both write the same bytes under the same name. A process keeps one model.

A result's name says what decides its text (docs/fleet.md), and so that the work is done, by whomever. What changes no
text is no part of it: drafter, batch size, threads, parts.

Pieces of speech are those of `transcribe --batch-size`: each is decoded by itself, so it does not matter who does it.
Where speech lies is found once, in the whole file; the times of segments are led back with the spans of all of it. So a
file whose pieces were given out in parts has the segments that it would have in one.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from specedge.errors import AudioError, Interrupted, ModelError, SpecedgeError, UsageError
from specedge.export.default_model import default_model
from specedge.models.store import MANIFEST_NAME
from specedge.version import __version__

from ..runtime.audio.audio import SAMPLE_RATE, AudioStream, open_audio
from ..runtime.audio.mel import HeldAudio
from ..runtime.batched import MIN_SILENCE_MS, SILENCE, Chunk, Pieces, PieceTranscription, piece_options, speech_pieces
from ..runtime.device import device_fields, isa
from ..runtime.longform.vad_filter import SpeechAudio, SpeechMap
from ..runtime.model import WhisperModel, for_model, lend_drafter, transcribe_options, vad_options
from ..runtime.options import AUTO_PROVIDER, BATCH_SIZE, CPU, TranscribeOptions, VadOptions, drafter_named
from ..runtime.output.formats import plain, segment_fields
from .folder import Folder, local_copy, result_file

_FORMAT = 1
_PIECES = piece_options(TranscribeOptions())
_OWN = ("model", "drafter", "batch_size", "threads", "shard_s", "same_isa", "encoder_provider")
_OF_WORKERS = {"bundle": "bundle", "encoder": "encoder provider", "onnxruntime": "ONNX Runtime"}
_BLOCK_SAMPLES = 1 << 16
_loading = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class Job:
    """The same for all files of a run; it travels between processes, as tasks and outcomes do.

    out: the output folder; model: name or folder, None is the default of each machine; vad: fields of VadOptions;
    batch_size: pieces of speech that are decoded together; threads: of a worker's model; shard_s: speech of a part,
    seconds, longer files are split; same_isa: refuse workers of different instruction sets; encoder_provider: what
    encoders run on. What a worker is ("" where no worker was asked): bundle, encoder, onnxruntime, isa.
    """

    out: str
    model: str | None = None
    options: TranscribeOptions = field(default_factory=lambda: _PIECES)
    vad: Mapping[str, Any] = field(default_factory=dict)
    drafter: str | None = None
    batch_size: int = BATCH_SIZE
    threads: int = 1
    shard_s: float = 1800.0
    same_isa: bool = False
    encoder_provider: str = AUTO_PROVIDER
    bundle: str = ""
    encoder: str = CPU
    onnxruntime: str = ""
    isa: str = ""

    def text_options(self) -> dict[str, Any]:
        """What decides the text, beside audio and bundle: options that differ from the defaults, in JSON's types."""
        changed = {name: value for name, value in vars(self.options).items() if value != getattr(_PIECES, name)}
        changed.update({f"vad_{name}": value for name, value in self.vad.items()})
        plain: dict[str, Any] = json.loads(json.dumps(changed, sort_keys=True))
        return plain

    def result_name(self, audio_sha256: str) -> str:
        """The name of the result of audio with this digest, without folder and extension."""
        about = {"format": _FORMAT, "audio": audio_sha256, "bundle": self.bundle, "options": self.text_options()}
        if self.encoder != CPU:
            about["encoder_provider"] = self.encoder
        return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()

    def differs(self, other: Job) -> str | None:
        """In what this job's worker is not as the other's: what it has here, and what was expected."""
        for name, what in {**_OF_WORKERS, **({"isa": "instruction set"} if self.same_isa else {})}.items():
            here, there = getattr(self, name), getattr(other, name)
            if there and here != there:
                most = 12 if name == "bundle" else None
                return f"{what} {here[:most]}, expected {there[:most]}"
        return None


def new_job(out: str, **options: Any) -> Job:
    """The job that these options of `specedge.fleet.transcribe` mean. Raises UsageError."""
    own = {name: options.pop(name) for name in _OWN if name in options}
    vad = dict(options.pop("vad_parameters", None) or {})
    for name in options:
        if name not in {one.name for one in fields(TranscribeOptions)}:
            raise UsageError(f"fleet: {name!r} is no option of it")
    if options.get("language") == "auto":
        options["language"] = None
    asked, default = transcribe_options(options), TranscribeOptions()
    for name, expected in (("accept", "exact: the text must not depend on who works"), ("clip_timestamps", "all")):
        if getattr(asked, name) != getattr(default, name):
            raise UsageError(f"{name}: got {getattr(asked, name)!r}, expected {expected}")
    for name, least in (("batch_size", 1), ("threads", 1), ("shard_s", 30)):
        if own.get(name, least) < least:
            raise UsageError(f"{name}: got {own[name]!r}, expected {least} or more")
    drafter_named(own.get("drafter"))
    vad_options(vad)
    model = own.get("model")
    if model is not None and os.path.exists(os.path.join(model, MANIFEST_NAME)):
        own["model"] = os.path.abspath(model)  # as processes elsewhere find it; names stay names
    changed = {name: value for name, value in sorted(vad.items()) if value != getattr(VadOptions, name, None)}
    return Job(out=out, options=replace(piece_options(asked), draft_sources=False), vad=changed, **own)


@dataclass(frozen=True, kw_only=True)
class Speech:
    """Where the speech of a file lies.

    audio_sha256: of the file's bytes; spans: (start, end) in samples of the audio at 16 kHz; parts: of each part of the
    speech the samples of its pieces, end to end.
    """

    audio_sha256: str
    language: str
    language_probability: float
    duration_s: float
    spans: tuple[tuple[int, int], ...]
    parts: tuple[tuple[int, ...], ...]

    def part_files(self, name: str) -> list[str]:
        """Where the parts of a long file lie, whose result has this name. Others who find other speech take others."""
        digest = hashlib.sha256(repr(self).encode()).hexdigest()[:16]
        return [f"parts/{name}.{digest}.{shard}.json" for shard in range(len(self.parts))]


@dataclass(frozen=True, kw_only=True)
class Task:
    """A file for a worker, or a part of one.

    path: as a worker opens it; speech, shard: of the file, and which part of it, None for a whole file; alone: run it
    in a process of its own, so that it can kill nobody else; n_lost, n_stuck: workers that died with it, and that could
    not go on.
    """

    job: Job
    path: str
    size: int = 0
    speech: Speech | None = None
    shard: int = 0
    alone: bool = False
    n_lost: int = 0
    n_stuck: int = 0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a task ended.

    done, found: the result `name` is written, or was there; split: the file is long, so the parts of its `speech` are
    tasks of their own; part: a part is written; failed: the file cannot be transcribed; quarantined: it ends the
    process that transcribes it; stuck: this worker has no room, another may; unfit: this worker can do none of these
    files.
    """

    state: Literal["done", "found", "split", "part", "failed", "quarantined", "stuck", "unfit"]
    name: str = ""
    speech: Speech | None = None
    error: str = ""
    worker: str = ""


def answer(job: Job) -> Job:
    """The job with what this worker is, its model loaded. Raises SpecedgeError where it cannot work."""
    try:
        model = _model(job)
    except SpecedgeError:
        raise
    except (OSError, MemoryError) as error:
        raise ModelError(str(error) or type(error).__name__) from error
    for_model(job.options, model.bundle.manifest.tokens)
    here = isa()
    return replace(
        job,
        bundle=model.engine.bundle.digest,
        encoder=model.engine.encoder_provider,
        onnxruntime=str(device_fields(1)["onnxruntime"]),
        isa=" ".join((here.machine, *here.features)),  # what decides which kernels run
    )


@functools.lru_cache(maxsize=1)
def _loaded(name: str | None, threads: int, encoder_provider: str) -> WhisperModel:
    path = default_model(download=False, quiet=True) if name is None else name
    model = WhisperModel(path, cpu_threads=threads, encoder_provider=encoder_provider)
    model.engine.choose_encoder()  # workers that differ in it are told apart before they begin
    return model


def _model(job: Job) -> WhisperModel:
    with _loading:
        return _loaded(job.model, job.threads, job.encoder_provider)


def work(task: Task) -> Outcome:
    """Do a task. Errors are outcomes; only a stop of the process is raised."""
    try:
        return _apart(task) if task.alone else _done(task)
    except Interrupted:
        raise
    except AudioError as error:
        return Outcome(state="failed", error=str(error))
    except (ModelError, UsageError) as error:
        return Outcome(state="unfit", error=str(error))
    except (MemoryError, OSError) as error:  # also a ResourceError
        return Outcome(state="stuck", error=str(error) or type(error).__name__)
    except Exception as error:
        return Outcome(state="failed", error=f"{task.path}: internal fault, {type(error).__name__}: {error}")


def _apart(task: Task) -> Outcome:
    """Do the task in a process of its own: if that ends without an answer, the file is to blame."""
    command = [sys.executable, "-c", "from specedge.fleet.worker import main; main()"]
    child = subprocess.run(command, input=pickle.dumps(replace(task, alone=False)), stdout=subprocess.PIPE)
    if child.returncode == 0:
        outcome: Outcome = pickle.loads(child.stdout)
        return outcome
    code = child.returncode
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
    return Outcome(state="quarantined", error=f"{task.path}: ends the process that transcribes it, {how}")


def main() -> None:
    """Do the task on standard input, and write the outcome to standard output."""
    task = pickle.load(sys.stdin.buffer)
    answers = os.dup(1)
    os.dup2(2, 1)  # what a library prints must not come between
    with os.fdopen(answers, "wb") as file:
        pickle.dump(work(task), file)


def _done(task: Task) -> Outcome:
    folder, speech, model = Folder(task.job.out), task.speech, _model(task.job)
    job = answer(task.job)
    if wrong := job.differs(task.job):
        raise ModelError(f"has {wrong} as on the other workers")
    with local_copy(task.path) as path:
        audio_sha256 = _sha256(path, task.path)
        if speech is not None and audio_sha256 != speech.audio_sha256:
            raise AudioError(f"{task.path}: was changed while it was in work; run again")
        name = job.result_name(audio_sha256)
        if folder.exists(result_file(name)):
            return Outcome(state="found", name=name)
        if speech is not None:
            file = speech.part_files(name)[task.shard]
            if not folder.exists(file):
                with open_audio(path, name=task.path) as stream:
                    part = _decoded(model, job, speech, _chunks_of(speech, stream, task.shard))
                folder.write(file, json.dumps(part, allow_nan=False).encode())
            return Outcome(state="part", name=name)
        with open_audio(path, name=task.path) as stream:
            speech, chunks = _find_speech(model, job, stream, audio_sha256)
        if len(speech.parts) > 1:
            return Outcome(state="split", name=name, speech=speech)
        part = _decoded(model, job, speech, chunks)
        folder.write(result_file(name), _result(job, speech, [part]))
        return Outcome(state="done", name=name)


def _sha256(path: str, name: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise AudioError(f"{name}: cannot be read: {error.strerror or error}") from None


def _find_speech(model: WhisperModel, job: Job, stream: AudioStream, audio_sha256: str) -> tuple[Speech, list[Chunk]]:
    """Read the stream to its end: where its speech is, and the pieces of its first part, which memory holds alone."""
    manifest = model.bundle.manifest
    options = for_model(job.options, manifest.tokens)
    vad = vad_options(job.vad, min_silence_duration_ms=MIN_SILENCE_MS, max_speech_duration_s=manifest.window_s)
    pieces = speech_pieces(stream, vad, manifest.window_s)
    language, probability = options.language, 1.0
    if language is None:
        n_windows = options.language_detection_segments
        language, probability, _ = model.detect_language(
            pieces.beginning(n_windows * manifest.n_samples),
            language_detection_segments=n_windows,
            language_detection_threshold=options.language_detection_threshold,
        )
    parts: list[list[int]] = [[]]
    first: list[Chunk] = []
    n_samples = 0  # of the last part
    for chunk in pieces.chunks:
        n_samples += len(chunk.samples)
        if n_samples > job.shard_s * SAMPLE_RATE:
            parts.append([])
            n_samples = len(chunk.samples)
        parts[-1].append(len(chunk.samples))
        if len(parts) == 1:
            first.append(chunk)
    speech = Speech(
        audio_sha256=audio_sha256,
        language=language,
        language_probability=probability,
        duration_s=stream.read_s,
        spans=tuple(cast(SpeechAudio, pieces.speech).spans),
        parts=tuple(map(tuple, parts)),
    )
    return speech, first


def _chunks_of(speech: Speech, stream: AudioStream, shard: int) -> Iterator[Chunk]:
    """The pieces of a part, read from the stream of the whole file, which must be at its beginning."""
    begins = sum(map(sum, speech.parts[:shard]))
    bounds = list(accumulate(speech.parts[shard], initial=begins))
    samples: list[NDArray[np.float32]] = []
    at = n_before = 0  # samples of the stream that are read, and of the speech before a span
    for start, end in speech.spans:
        first, last = (start + min(max(bound - n_before, 0), end - start) for bound in (begins, bounds[-1]))
        n_before += end - start
        if first < last:
            while at < first:
                at += len(stream.read(min(_BLOCK_SAMPLES, first - at)))
            samples.append(stream.read(last - first))
            at = last
    joined = np.concatenate(samples)
    for bound, size in zip(bounds, speech.parts[shard], strict=False):
        yield Chunk(samples=joined[bound - begins :][:size], start_s=bound / SAMPLE_RATE)


def _decoded(model: WhisperModel, job: Job, speech: Speech, chunks: Iterable[Chunk]) -> dict[str, Any]:
    """The segments of these pieces, whether their text is that of plain decoding, and on what they were decoded."""
    options = replace(for_model(job.options, model.bundle.manifest.tokens), language=speech.language)
    restore = SpeechMap.of(speech.spans).restored
    pieces = Pieces(iter(chunks), HeldAudio(open_audio(SILENCE)))
    with lend_drafter(model, drafter_named(job.drafter), options) as loan:
        call = PieceTranscription(
            model.engine, model.bundle, pieces, options, batch_size=job.batch_size, drafter=loan.drafter
        )
        segments = [plain(segment_fields(restore(segment))) for segment in call]
        if call.drafter_error is None:
            loan.keep()
    return {"segments": segments, "lossless": call.speculation.lossless, "isa": job.isa}


def join(folder: Folder, job: Job, speech: Speech) -> bool:
    """Write the result of a file whose parts are all there; False where one is missing."""
    name = job.result_name(speech.audio_sha256)
    try:
        parts = [json.loads(folder.read(file)) for file in speech.part_files(name)]
    except FileNotFoundError:
        return False
    folder.write(result_file(name), _result(job, speech, parts))
    return True


def _result(job: Job, speech: Speech, parts: Sequence[dict[str, Any]]) -> bytes:
    """A transcript as `transcribe -f json` writes it, with what it was made from and on: of all parts, segments counted
    through, and with every instruction set that a part was made on."""
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
