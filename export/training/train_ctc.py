"""`specedge train ctc`: from a model and unlabelled audio to a head for the drafter ctc.

A work folder keeps what is expensive: the bundle made of a checkpoint, the features with the target's transcripts, the
state of the training. The same command goes on where it was stopped. Does not know: the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from specedge import __version__
from specedge.export.bundling import write_bundle
from specedge.export.checkpoint import Checkpoint, open_checkpoint
from specedge.export.ctc_bundle import HEAD, encoder_weights_sha256, write_head
from specedge.export.ctc_graph import CtcWeights
from specedge.export.training.ctc_trainer import CtcPlan, CtcTrainer, byte_errors, split
from specedge.export.training.features import Collection, Window, collect, load
from specedge.export.training.spelling import read_spelling
from specedge.export.training.unlabelled import Target, windows_of
from specedge.maps.outputs import check_output, identities
from specedge.models import store
from specedge.runtime.bundles.bundle import MANIFEST_NAME, Bundle
from specedge.runtime.cpu import threads_allowed
from specedge.runtime.errors import ResourceError, UsageError
from specedge.runtime.progress import Progress

__all__ = ["Trained", "bundle_in", "bundle_of", "is_checkpoint", "train_ctc"]

_BUNDLE = "bundle"
_MOST_SCORED = 40  # held-out windows whose greedy text is compared at the end


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A finished head: its file, steps, windows trained on, held-out loss a byte, and greedy byte error rates against
    the target's text on held-out windows, as they are and made rough (NaN where there are none)."""

    path: Path
    n_steps: int
    n_windows: int
    loss: float
    byte_errors: float
    rough_byte_errors: float


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
    made = work / _BUNDLE
    if (made / MANIFEST_NAME).is_file():
        return Bundle.open(made)
    return write_bundle(checkpoint, made, precision="int8", name=name, version=__version__)


def train_ctc(
    source: str,
    audio: Sequence[str],
    out: Path,
    *,
    work: Path,
    wanted: Collection,
    plan: CtcPlan,
    threads: int | None,
    language: str | None,
    notify: Callable[[str], None],
) -> Trained:
    """Train a head for the encoder of `source` and write it to `out`.

    Raises
    ------
    AudioError
        when there is no audio.
    ModelError
        when the model cannot be used.
    UsageError
        when the work folder is of something else, the audio too little, or a file at `out` is no head.
    ResourceError
        when a file cannot be written.
    """
    if out.suffix != ".onnx":
        raise UsageError(f"-o {out}: expected a name that ends in .onnx")
    check_output(out, HEAD, inputs=identities(audio))
    threads = threads or threads_allowed()
    bundle = bundle_of(source, work)
    manifest = bundle.manifest
    encoder = encoder_weights_sha256(manifest, bundle.path)
    identity = {"encoder": encoder, "bundle": bundle.digest, "audio": "\n".join(audio), "language": language or ""}
    with Progress(wanted.hours * 3600, "s", "transcribe and encode", is_time=True) as progress:
        target = Target(bundle, threads=threads, language=language)
        windows = windows_of(audio, manifest.n_samples, seed=wanted.seed, notify=notify)
        collect(windows, target, work, wanted, identity, progress.update_to)
        del target
    torch.set_num_threads(threads)
    found = load(work)
    trainer = CtcTrainer(replace(plan, seed=wanted.seed), found, work, read_spelling(Path(source)))
    if trainer.load():
        notify(f"{work}: going on from step {trainer.step}")
    else:
        trainer.judge()  # what it begins with may be the best there is
    with Progress(plan.steps, "steps", "train") as progress:
        trainer.run(progress.update_to)
    weights = trainer.best.weights().within({byte for window in found for byte in window.text})
    _write(out, weights, encoder)
    rates = _rates(weights, split(found)[1])
    return Trained(
        path=out,
        n_steps=trainer.step,
        n_windows=len(trainer.train),
        loss=trainer.best_loss,
        byte_errors=rates[0],
        rough_byte_errors=rates[1],
    )


def _write(out: Path, weights: CtcWeights, encoder: str) -> None:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_head(out, weights, encoder)
    except OSError as error:
        raise ResourceError(f"{out}: cannot be written: {error.strerror}") from error


def _rates(weights: CtcWeights, held: Sequence[Window]) -> list[float]:
    """Greedy byte error rates on held-out windows as they are, and made rough."""
    return [
        byte_errors(weights, [window for window in held if window.is_rough == is_rough][:_MOST_SCORED])
        for is_rough in (False, True)
    ]
