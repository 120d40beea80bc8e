"""What a worker does: transcribe a file or a part of one, and write the result once.

A worker decides nothing and claims nothing. It looks whether the result is there, and if not makes it. When two workers
do one file, both write the same bytes under the same name. A process keeps one model.
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
from dataclasses import replace

from specedge.errors import AudioError, Interrupted, ModelError, SpecedgeError, UsageError
from specedge.export.default_model import default_model

from ..runtime.audio.audio import open_audio
from ..runtime.device import device_fields, isa
from ..runtime.model import WhisperModel, for_model
from .job import Job, Outcome, Task
from .places import Folder, local_copy
from .results import result_bytes, result_file
from .speech import chunks_of, decoded, find_speech

_loading = threading.Lock()


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
                    part = decoded(model, job, speech, chunks_of(speech, stream, task.shard))
                folder.write(file, json.dumps(part, allow_nan=False).encode())
            return Outcome(state="part", name=name)
        with open_audio(path, name=task.path) as stream:
            speech, chunks = find_speech(model, job, stream, audio_sha256)
        if chunks is None:
            return Outcome(state="split", name=name, speech=speech)
        part = decoded(model, job, speech, iter(chunks))
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
