"""What a fleet is asked to do, and what its workers answer. Both travel between processes.

A result's name is the sha256 of the audio's bytes, the bundle's digest and what decides the text. What changes no text
is no part of it: drafter, batch size, threads, parts. So a name that is there says that the work is done, by whomever.
An encoder elsewhere than on the CPU decides the text too, with its version and device.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from specedge.errors import UsageError
from specedge.models.store import MANIFEST_NAME

from ..runtime.audio.vad import VadOptions
from ..runtime.batched import BATCH_SIZE, piece_options
from ..runtime.model import vad_options
from ..runtime.options import CPU, ENCODER_PROVIDERS, DrafterOptions, TranscribeOptions

__all__ = ["Answer", "Job", "Outcome", "Task", "new_job"]

SHARD_S = 1800.0
_FORMAT = 1
State = Literal["done", "found", "split", "part", "failed", "quarantined", "stuck", "unfit"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """The same for all files of a run.

    out: the output folder; model: name or folder, None is the default of each machine; vad: fields of VadOptions;
    threads: of a worker's model; shard_s: speech of a part, seconds, longer files are split; bundle, onnxruntime: what
    every worker must have, isa: its instruction set, "" before the workers were asked; same_isa: whether that must be
    one too.
    encoder_provider: what encoders run on, encoder: the same with version and device, as every worker must have it.
    """

    out: str
    model: str | None = None
    options: TranscribeOptions = field(default_factory=lambda: piece_options(TranscribeOptions()))
    vad: Mapping[str, Any] = field(default_factory=dict)
    drafter: str | None = None
    batch_size: int = BATCH_SIZE
    threads: int = 1
    shard_s: float = SHARD_S
    same_isa: bool = False
    encoder_provider: str = CPU
    bundle: str = ""
    encoder: str = CPU
    onnxruntime: str = ""
    isa: str = ""

    def text_options(self) -> dict[str, Any]:
        """What decides the text, beside audio and bundle: options that differ from the defaults, in JSON's types."""
        default = piece_options(TranscribeOptions())
        given = {one.name: getattr(self.options, one.name) for one in fields(TranscribeOptions)}
        changed = {name: value for name, value in given.items() if value != getattr(default, name)}
        changed.update({f"vad_{name}": value for name, value in self.vad.items()})
        plain: dict[str, Any] = json.loads(json.dumps(changed, sort_keys=True))
        return plain

    def result_name(self, audio_sha256: str) -> str:
        """The name of the result of audio with this digest, without folder and extension."""
        told = {"format": _FORMAT, "audio": audio_sha256, "bundle": self.bundle, "options": self.text_options()}
        if self.encoder != CPU:
            told["encoder_provider"] = self.encoder
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def new_job(
    out: str,
    *,
    model: str | None = None,
    drafter: str | None = None,
    vad_parameters: Mapping[str, Any] | None = None,
    batch_size: int = BATCH_SIZE,
    threads: int = 1,
    shard_s: float = SHARD_S,
    same_isa: bool = False,
    encoder_provider: str = CPU,
    **options: Any,
) -> Job:
    """The job that these arguments of `specedge.fleet.transcribe` mean. Raises UsageError."""
    unknown = sorted(set(options) - {one.name for one in fields(TranscribeOptions)})
    if unknown:
        raise UsageError(f"fleet: {unknown[0]!r} is no option of it")
    if "temperature" in options and isinstance(options["temperature"], (int, float)):
        options["temperature"] = (float(options["temperature"]),)
    asked = TranscribeOptions(**options)
    default = TranscribeOptions()
    for name, expected in (("accept", "exact: the text must not depend on who works"), ("clip_timestamps", "all")):
        if getattr(asked, name) != getattr(default, name):
            raise UsageError(f"{name}: got {getattr(asked, name)!r}, expected {expected}")
    for name, value, least in (("batch_size", batch_size, 1), ("threads", threads, 1), ("shard_s", shard_s, 30)):
        if value < least:
            raise UsageError(f"{name}: got {value!r}, expected {least} or more")
    if encoder_provider not in ENCODER_PROVIDERS:
        raise UsageError(f"encoder_provider: got {encoder_provider!r}, expected one of {', '.join(ENCODER_PROVIDERS)}")
    if drafter is not None:
        DrafterOptions(drafter)
    given = dict(vad_parameters or {})
    vad_options(given)
    return Job(
        out=out,
        model=_for_workers(model),
        options=replace(piece_options(asked), draft_sources=False),
        vad={name: value for name, value in sorted(given.items()) if value != getattr(VadOptions, name, None)},
        drafter=drafter,
        batch_size=batch_size,
        threads=threads,
        shard_s=shard_s,
        same_isa=same_isa,
        encoder_provider=encoder_provider,
    )


def _for_workers(model: str | None) -> str | None:
    """The folder of a bundle as processes elsewhere find it; names stay names."""
    return os.path.abspath(model) if model is not None and os.path.exists(os.path.join(model, MANIFEST_NAME)) else model


@dataclass(frozen=True, kw_only=True)
class Task:
    """A file for a worker, or a part of one.

    path: as a worker opens it; shard: which part, None for a whole file; name: of the result, known for parts;
    alone: run it in a process of its own, so that it can kill nobody else; n_lost, n_stuck: workers that died with it,
    and that could not go on.
    """

    job: Job
    path: str
    size: int = 0
    shard: int | None = None
    name: str = ""
    alone: bool = False
    n_lost: int = 0
    n_stuck: int = 0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a task.

    done, found: the result is written, or was there; split: it is long, so its `n_shards` parts are tasks of their own;
    part: a part is written; failed: the file cannot be transcribed; quarantined: it ends the process that transcribes
    it; stuck: this worker has no room, another may; unfit: this worker can do none of these files.
    """

    state: State
    name: str = ""
    n_shards: int = 0
    error: str = ""
    worker: str = ""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a worker says of itself; `error` is why it cannot work, or ""."""

    bundle: str = ""
    encoder: str = CPU
    onnxruntime: str = ""
    isa: str = ""
    error: str = ""
