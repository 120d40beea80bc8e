"""What a fleet is asked to do, and what its workers answer. All of it travels between processes.

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

from ..runtime.batched import piece_options
from ..runtime.model import transcribe_options, vad_options
from ..runtime.options import (
    AUTO_PROVIDER,
    BATCH_SIZE,
    CPU,
    ENCODER_PROVIDERS,
    DrafterOptions,
    TranscribeOptions,
    VadOptions,
)

_FORMAT = 1
_PIECES = piece_options(TranscribeOptions())
_OWN = ("model", "drafter", "batch_size", "threads", "shard_s", "same_isa", "encoder_provider")
_OF_WORKERS = {"bundle": "bundle", "encoder": "encoder provider", "onnxruntime": "ONNX Runtime"}
State = Literal["done", "found", "split", "part", "failed", "quarantined", "stuck", "unfit"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """The same for all files of a run.

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
        given = {one.name: getattr(self.options, one.name) for one in fields(TranscribeOptions)}
        changed = {name: value for name, value in given.items() if value != getattr(_PIECES, name)}
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
                return (
                    f"{what} {here[:12]}, expected {there[:12]}"
                    if name == "bundle"
                    else f"{what} {here}, expected {there}"
                )
        return None


def new_job(out: str, **options: Any) -> Job:
    """The job that these options of `specedge.fleet.transcribe` mean. Raises UsageError."""
    own = {name: options.pop(name) for name in _OWN if name in options}
    vad = dict(options.pop("vad_parameters", None) or {})
    unknown = sorted(set(options) - {one.name for one in fields(TranscribeOptions)})
    if unknown:
        raise UsageError(f"fleet: {unknown[0]!r} is no option of it")
    if options.get("language") == "auto":
        options["language"] = None
    asked, default = transcribe_options(options), TranscribeOptions()
    for name, expected in (("accept", "exact: the text must not depend on who works"), ("clip_timestamps", "all")):
        if getattr(asked, name) != getattr(default, name):
            raise UsageError(f"{name}: got {getattr(asked, name)!r}, expected {expected}")
    for name, least in (("batch_size", 1), ("threads", 1), ("shard_s", 30)):
        if own.get(name, least) < least:
            raise UsageError(f"{name}: got {own[name]!r}, expected {least} or more")
    provider = own.get("encoder_provider", AUTO_PROVIDER)
    if provider not in ENCODER_PROVIDERS:
        raise UsageError(f"encoder_provider: got {provider!r}, expected one of {', '.join(ENCODER_PROVIDERS)}")
    if own.get("drafter") is not None:
        DrafterOptions(own["drafter"])
    vad_options(vad)
    model = own.get("model")
    if model is not None and os.path.exists(os.path.join(model, MANIFEST_NAME)):
        own["model"] = os.path.abspath(model)  # as processes elsewhere find it; names stay names
    changed = {name: value for name, value in sorted(vad.items()) if value != getattr(VadOptions, name, None)}
    return Job(out=out, options=replace(piece_options(asked), draft_sources=False), vad=changed, **own)


@dataclass(frozen=True, kw_only=True)
class Speech:
    """Where the speech of a file lies.

    audio_sha256: of the file's bytes; spans: (start, end) in samples of the audio at 16 kHz; sizes: samples of each
    piece, end to end in the speech; firsts: the first piece of each part.
    """

    audio_sha256: str
    language: str
    language_probability: float
    duration_s: float
    spans: tuple[tuple[int, int], ...]
    sizes: tuple[int, ...]
    firsts: tuple[int, ...]

    def part_files(self, name: str) -> list[str]:
        """Where the parts of a long file lie, whose result has this name. Others who find other speech take others."""
        digest = hashlib.sha256(repr(self).encode()).hexdigest()[:16]
        return [f"parts/{name}.{digest}.{shard}.json" for shard in range(len(self.firsts))]


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

    state: State
    name: str = ""
    speech: Speech | None = None
    error: str = ""
    worker: str = ""
