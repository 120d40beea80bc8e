"""What a worker does: transcribe a file or a part of one, and write the result once.

A worker decides nothing and claims nothing. It looks whether the result is there, and if not makes it. When two workers
do one file, both write the same bytes under the same name. A process keeps one model.

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
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from specedge.errors import AudioError, Interrupted, ModelError, SpecedgeError, UsageError
from specedge.export.default_model import default_model

from ..runtime.audio.audio import SAMPLE_RATE, AudioStream, open_audio, take
from ..runtime.audio.mel import HeldAudio
from ..runtime.batched import MIN_SILENCE_MS, SILENCE, Chunk, Pieces, PieceTranscription, speech_pieces
from ..runtime.device import device_fields, isa
from ..runtime.longform.vad_filter import SpeechAudio, SpeechMap
from ..runtime.model import WhisperModel, for_model, lend_drafter, vad_options
from ..runtime.options import drafter_named
from ..runtime.output.formats import plain, segment_fields
from .job import Job, Outcome, Speech, Task
from .places import Folder, local_copy
from .results import result_bytes, result_file

_loading = threading.Lock()
_BLOCK_SAMPLES = 1 << 16


def answer(job: Job) -> Job:
    """The job with what this worker is, its model loaded. Raises SpecedgeError where it cannot work."""
    try:
        model = _model(job)
    except SpecedgeError:
        raise
    except (OSError, MemoryError) as error:
        raise ModelError(str(error) or type(error).__name__) from error
    for_model(job.options, model.bundle.manifest.tokens)
    return replace(
        job,
        bundle=model.engine.bundle.digest,
        encoder=model.engine.encoder_provider,
        onnxruntime=str(device_fields(1)["onnxruntime"]),
        isa=instruction_set(),
    )


def instruction_set() -> str:
    """The machine and what of its instruction set decides which kernels run."""
    here = isa()
    return " ".join((here.machine, *here.features))


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
        if chunks is None:
            return Outcome(state="split", name=name, speech=speech)
        part = _decoded(model, job, speech, iter(chunks))
        folder.write(result_file(name), result_bytes(job, speech, [part]))
        return Outcome(state="done", name=name)


@functools.lru_cache(maxsize=1)
def _loaded(name: str | None, threads: int, encoder_provider: str) -> WhisperModel:
    path = default_model(download=False, quiet=True) if name is None else name
    model = WhisperModel(path, cpu_threads=threads, encoder_provider=encoder_provider)
    model.engine.choose_encoder()  # workers that differ in it are told apart before they begin
    return model


def _model(job: Job) -> WhisperModel:
    with _loading:
        return _loaded(job.model, job.threads, job.encoder_provider)


def _sha256(path: str, name: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise AudioError(f"{name}: cannot be read: {error.strerror or error}") from None


def _find_speech(
    model: WhisperModel, job: Job, stream: AudioStream, audio_sha256: str
) -> tuple[Speech, list[Chunk] | None]:
    """Read the stream to its end: where its speech is, and the pieces themselves where they are one part.

    Memory holds the speech of one part at most.
    """
    window_s = model.bundle.manifest.window_s
    vad = vad_options(job.vad, min_silence_duration_ms=MIN_SILENCE_MS, max_speech_duration_s=window_s)
    pieces = speech_pieces(stream, vad, window_s)
    language, probability = _language(model, job, pieces)
    sizes: list[int] = []
    firsts, n_samples = [0], 0  # of the part that is being filled
    kept: list[Chunk] | None = []
    for chunk in pieces.chunks:
        if n_samples + len(chunk.samples) > job.shard_s * SAMPLE_RATE:
            firsts.append(len(sizes))
            n_samples, kept = 0, None
        sizes.append(len(chunk.samples))
        n_samples += sizes[-1]
        if kept is not None:
            kept.append(chunk)
    speech = Speech(
        audio_sha256=audio_sha256,
        language=language,
        language_probability=probability,
        duration_s=stream.read_s,
        spans=tuple(cast(SpeechAudio, pieces.speech).spans),
        sizes=tuple(sizes),
        firsts=tuple(firsts),
    )
    return speech, kept


def _language(model: WhisperModel, job: Job, pieces: Pieces) -> tuple[str, float]:
    options = for_model(job.options, model.bundle.manifest.tokens)
    if options.language is not None:
        return options.language, 1.0
    n_windows = options.language_detection_segments
    language, probability, _ = model.detect_language(
        pieces.beginning(n_windows * model.bundle.manifest.n_samples),
        language_detection_segments=n_windows,
        language_detection_threshold=options.language_detection_threshold,
    )
    return language, probability


def _chunks_of(speech: Speech, stream: AudioStream, shard: int) -> Iterator[Chunk]:
    """The pieces of a part, read from the stream of the whole file, which must be at its beginning."""
    starts = [0, *accumulate(speech.sizes)]
    first, last = speech.firsts[shard], [*speech.firsts, len(speech.sizes)][shard + 1]
    blocks = _speech_from(stream, speech.spans, starts[first])
    waiting: list[NDArray[np.float32]] = []
    for number in range(first, last):
        while sum(map(len, waiting)) < speech.sizes[number]:
            waiting.append(next(blocks))
        yield Chunk(samples=take(waiting, speech.sizes[number]), start_s=starts[number] / SAMPLE_RATE)


def _speech_from(stream: AudioStream, spans: Sequence[tuple[int, int]], first: int) -> Iterator[NDArray[np.float32]]:
    """The spans put end to end, from the sample `first` of that on, span by span."""
    at = n_before = 0
    for start, end in spans:
        begin = start + max(0, first - n_before)
        n_before += end - start
        if begin < end:
            while at < begin:
                at += len(stream.read(min(_BLOCK_SAMPLES, begin - at)))
            yield stream.read(end - begin)
            at = end


def _decoded(model: WhisperModel, job: Job, speech: Speech, chunks: Iterator[Chunk]) -> dict[str, Any]:
    """The segments of these pieces, whether their text is that of plain decoding, and on what they were decoded."""
    options = replace(for_model(job.options, model.bundle.manifest.tokens), language=speech.language)
    restore = SpeechMap.of(speech.spans).restored
    pieces = Pieces(chunks, HeldAudio(open_audio(SILENCE)))
    with lend_drafter(model, drafter_named(job.drafter), options) as loan:
        call = PieceTranscription(
            model.engine, model.bundle, pieces, options, batch_size=job.batch_size, drafter=loan.drafter
        )
        segments = [plain(segment_fields(restore(segment))) for segment in call]
        if call.drafter_error is None:
            loan.keep()
    return {"segments": segments, "lossless": call.speculation.lossless, "isa": job.isa}


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
