"""`specedge train draft`: from a target and unlabelled audio to a smaller Whisper that drafts for it.

The draft begins as a checkpoint of any Whisper vocabulary, or as some of the target's own decoder layers over its
encoder (Distil-Whisper, arXiv 2311.00430). A work folder keeps what is expensive: bundles, what the target says, the
encoder's output, the state of the training. The same command goes on where it was stopped. Does not know: the command
line.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from specedge.export.checkpoint import Checkpoint, open_checkpoint
from specedge.export.training.checkpoint_files import DRAFT, check_out, write_checkpoint
from specedge.export.training.draft_net import decoder_of, vocabulary_matrix
from specedge.export.training.draft_texts import draft_texts
from specedge.export.training.draft_trainer import DraftPlan, DraftTrainer, Teacher
from specedge.export.training.hidden_rows import HiddenText, collect, load
from specedge.export.training.train_ctc import bundle_in, bundle_of, is_checkpoint
from specedge.export.training.unlabelled import Target, windows_of
from specedge.runtime.bundles.bundle import Bundle, encoder_fingerprint
from specedge.runtime.cpu import threads_allowed
from specedge.runtime.drafters.across_words import AcrossWords
from specedge.runtime.drafters.draft_fit import check_fit, check_share
from specedge.runtime.drafters.translation import Remapped, Translation
from specedge.runtime.errors import UsageError
from specedge.runtime.progress import Progress

__all__ = ["Student", "TrainedDraft", "train_draft"]


@dataclass(frozen=True, kw_only=True)
class Student:
    """What the draft begins as: the checkpoint `start`, or `n_layers` of the target's decoder layers."""

    start: str | None = None
    n_layers: int | None = None


@dataclass(frozen=True, kw_only=True)
class TrainedDraft:
    """A finished draft: its folder, steps, texts trained on, the share of the target's next tokens on held-out windows
    that are its likeliest, before and after, and whether it hears with the target's encoder."""

    path: Path
    n_steps: int
    n_texts: int
    agreement_before: float
    agreement: float
    shares_encoder: bool


def train_draft(
    source: str,
    audio: Sequence[str],
    out: Path,
    *,
    student: Student,
    work: Path,
    plan: DraftPlan,
    hours: float,
    threads: int | None,
    language: str | None,
    notify: Callable[[str], None],
) -> TrainedDraft:
    """Train a draft for `source`, a bundle or a checkpoint, into the folder `out`; `plan.student` is set here.

    Raises
    ------
    AudioError
        when there is no audio.
    ModelError
        when a model cannot be used.
    UsageError
        when draft and target do not fit, the work folder is of something else, `out` is, or the audio too little.
    ResourceError
        when a file cannot be written.
    """
    check_out(out, DRAFT)
    threads = threads or threads_allowed()
    with ExitStack() as stack:
        own = stack.enter_context(open_checkpoint(source)) if is_checkpoint(source) else None
        begun = _begun(student, own, source) or stack.enter_context(open_checkpoint(student.start or ""))
        target = bundle_of(source, work)
        folder = work if begun is own else work / f"draft-{_fingerprint(begun)}"
        draft = target if begun is own else bundle_in(folder, begun, "draft")
        translation = _between(draft, target)
        shares = encoder_fingerprint(draft.manifest) == encoder_fingerprint(target.manifest)
        ear, kept = (None, work) if shares else (draft, folder)
        heard = _texts(target, ear, audio, kept, hours, threads, language, plan.seed, notify)
        dims = draft.manifest.dims
        is_alike = isinstance(translation, Remapped)
        texts = draft_texts(heard, translation, dims.n_text_ctx, is_alike=is_alike)
        torch.set_num_threads(threads)
        torch.manual_seed(plan.seed)
        teacher = _teacher(own, translation, dims.n_vocab) if is_alike else None
        if is_alike and teacher is None:
            notify(f"{source}: no checkpoint of plain logits, so its texts are learned and not its probabilities")
        net = decoder_of(begun, student.n_layers)
        plan = replace(plan, student=f"{draft.digest} layers {len(net.layers)}")
        trainer = DraftTrainer(plan, net, texts, teacher, work)
        _train(trainer, notify)
        weights = {name: value.numpy() for name, value in trainer.best.named_weights()}
        write_checkpoint(out, begun, weights, n_layers=len(net.layers), mark=DRAFT, target=target.manifest.source.id)
    return TrainedDraft(
        path=out,
        n_steps=trainer.step,
        n_texts=len(trainer.train),
        agreement_before=trainer.figures[0],
        agreement=trainer.figures[1],
        shares_encoder=shares,
    )


def _begun(student: Student, own: Checkpoint | None, source: str) -> Checkpoint | None:
    """The target's checkpoint where the draft begins as layers of it. Raises UsageError where it cannot."""
    if (student.start is None) == (student.n_layers is None):
        raise UsageError(
            "a draft begins as a checkpoint, --from, or as layers of the target, --layers: give one of them"
        )
    if student.n_layers is None:
        return None
    if own is None:
        raise UsageError(
            f"--layers copies weights of the target, and {source} is no checkpoint: give that, or a draft by --from"
        )
    n_there = own.spec.dims.n_text_layer
    if not 1 <= student.n_layers < n_there:
        most = f"1 to {n_there - 1}" if n_there > 1 else "--from, for there is no smaller one"
        raise UsageError(f"--layers {student.n_layers}: the target's decoder has {n_there}; expected {most}")
    return own


def _between(draft: Bundle, target: Bundle) -> Remapped | AcrossWords:
    """How the two understand each other when one drafts for the other. Raises UsageError where they cannot."""
    check_fit(draft.manifest, target.manifest, "--from")
    alike = Remapped.between(draft.tokenizer, target.tokenizer)
    if alike is not None:
        return alike
    made = AcrossWords(draft.tokenizer, target.tokenizer)
    check_share(made.share, draft.manifest, target.manifest, "--from")
    return made


def _fingerprint(checkpoint: Checkpoint) -> str:
    """Tells checkpoints apart by their config and the norms that any training changes. Raises CheckpointError."""
    hasher = hashlib.sha256(json.dumps(checkpoint.spec.config, sort_keys=True).encode())
    for part in ("encoder", "decoder"):
        hasher.update(checkpoint.tensor(f"model.{part}.layer_norm.weight").tobytes())
    return hasher.hexdigest()[:16]


def _teacher(own: Checkpoint | None, translation: Translation, n_vocab: int) -> Teacher | None:
    """The target's distributions over the draft's `n_vocab` tokens; None without its checkpoint, and where a head takes
    the place of its own."""
    if own is None or (own.spec.heads is not None and own.spec.heads.replaces_base):
        return None
    return Teacher(vocabulary_matrix(own), translation.counterparts(np.arange(own.spec.dims.n_vocab)), n_vocab)


def _texts(
    bundle: Bundle,
    ear: Bundle | None,
    audio: Sequence[str],
    folder: Path,
    hours: float,
    threads: int,
    language: str | None,
    seed: int,
    notify: Callable[[str], None],
) -> list[HiddenText]:
    """What the target says of the audio, with the encoder's output of `ear`, from `folder` as far as it is there."""
    identity = {"bundle": bundle.digest, "audio": "\n".join(audio), "language": language or "", "seed": str(seed)}
    if ear is not None:
        identity["ear"] = encoder_fingerprint(ear.manifest)
    rows = folder / "rows"
    with Progress(hours * 3600, "s", "transcribe", is_time=True) as progress:
        target = Target(bundle, threads=threads, language=language)
        hearing = None if ear is None else Target(ear, threads=threads)
        windows = windows_of(audio, bundle.manifest.n_samples, seed=seed, notify=notify)
        collect(windows, target, rows, hours=hours, identity=identity, report=progress.update_to, ear=hearing)
    return load(rows)


def _train(trainer: DraftTrainer, notify: Callable[[str], None]) -> None:
    if trainer.load():
        notify(f"{trainer.path.parent}: going on from step {trainer.step}")
    else:
        trainer.judge()  # the draft as it is, which training must do better than
        trainer.figures *= 2
    with Progress(trainer.plan.steps, "steps", "train draft") as progress:
        trainer.run(progress.update_to)
