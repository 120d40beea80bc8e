"""`specedge train heads`: from a checkpoint and unlabelled audio to heads that draft for it.

A work folder keeps what is expensive, for all kinds of heads alike: the bundle made of the checkpoint, the hidden rows
of what it says, the state of each training. The same command goes on where it was stopped, and another kind begins with
the rows that are there. The checkpoint is frozen. Does not know: the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from specedge.export.checkpoint import Checkpoint, open_checkpoint
from specedge.export.decoder_graph import PROJECTION, VOCABULARY
from specedge.export.heads_files import TOKENS
from specedge.export.training.head_nets import Block, HeadNet
from specedge.export.training.head_trainer import HeadPlan, HeadTrainer, token_table, vocabulary_of
from specedge.export.training.hidden_rows import HiddenText, collect, load
from specedge.export.training.train_ctc import bundle_of
from specedge.export.training.unlabelled import Target, windows_of
from specedge.runtime.cpu import threads_allowed
from specedge.runtime.errors import ResourceError, UsageError
from specedge.runtime.passes.head_graphs import BLOCK_KIND
from specedge.runtime.progress import Progress

__all__ = ["TrainedHeads", "train_heads"]


@dataclass(frozen=True, kw_only=True)
class TrainedHeads:
    """Finished heads: their file, steps, texts trained on, tokens they can guess, and how often each head's best guess
    was right on held-out windows."""

    path: Path
    n_steps: int
    n_texts: int
    n_tokens: int
    hit_rates: tuple[float, ...]


def train_heads(
    source: str,
    audio: Sequence[str],
    out: Path,
    *,
    work: Path,
    plan: HeadPlan,
    hours: float,
    threads: int | None,
    language: str | None,
    notify: Callable[[str], None],
) -> TrainedHeads:
    """Train heads for the checkpoint `source` and write them to `out`.

    Raises
    ------
    AudioError
        when there is no audio.
    ModelError
        when the checkpoint cannot be used.
    UsageError
        when the work folder is of something else, or the audio too little.
    ResourceError
        when a file cannot be written.
    """
    if out.suffix != ".safetensors":
        raise UsageError(f"-o {out}: expected a name that ends in .safetensors")
    threads = threads or threads_allowed()
    with open_checkpoint(source) as checkpoint:
        texts = _texts(source, audio, work, hours, threads, language, plan.seed, notify)
        tokens = vocabulary_of(texts)
        torch.set_num_threads(threads)
        torch.manual_seed(plan.seed)
        net = _net(checkpoint, plan, tokens)
        trainer = HeadTrainer(plan, net, texts, token_table(tokens, checkpoint.spec.dims.n_vocab), work)
    if trainer.load():
        notify(f"{work}: going on from step {trainer.step}")
    with Progress(plan.steps, "steps", f"train {plan.kind}") as progress:
        trainer.run(progress.update_to)
    _write(out, trainer.best, tokens)
    return TrainedHeads(
        path=out,
        n_steps=trainer.step,
        n_texts=len(trainer.train),
        n_tokens=len(tokens),
        hit_rates=tuple(trainer.hit_rates),
    )


def _texts(
    source: str,
    audio: Sequence[str],
    work: Path,
    hours: float,
    threads: int,
    language: str | None,
    seed: int,
    notify: Callable[[str], None],
) -> list[HiddenText]:
    """What the target says of the audio, with its hidden rows, from the work folder as far as it is there."""
    bundle = bundle_of(source, work)
    identity = {"bundle": bundle.digest, "audio": "\n".join(audio), "language": language or "", "seed": str(seed)}
    with Progress(hours * 3600, "s", "transcribe", is_time=True) as progress:
        target = Target(bundle, threads=threads, language=language)
        windows = windows_of(audio, bundle.manifest.n_samples, seed=seed, notify=notify)
        collect(windows, target, work / "rows", hours=hours, identity=identity, report=progress.update_to)
    return load(work / "rows")


def _net(checkpoint: Checkpoint, plan: HeadPlan, tokens: Sequence[int]) -> HeadNet:
    matrix = checkpoint.tensor(PROJECTION if checkpoint.has(PROJECTION) else VOCABULARY)
    block = _last_layer(checkpoint) if plan.kind == BLOCK_KIND else None
    return HeadNet(plan.kind, plan.n_heads, torch.from_numpy(matrix[list(tokens)]), block)


def _last_layer(checkpoint: Checkpoint) -> Block:
    """A copy of the decoder's last layer."""
    dims = checkpoint.spec.dims
    block = Block(dims.n_text_state, dims.n_text_head, checkpoint.spec.n_text_ffn)
    name = f"model.decoder.layers.{dims.n_text_layer - 1}"
    block.load_state_dict({part: torch.from_numpy(checkpoint.tensor(f"{name}.{part}")) for part in block.state_dict()})
    return block


def _write(out: Path, net: HeadNet, tokens: Sequence[int]) -> None:
    from safetensors.numpy import save_file

    def array(value: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        return np.ascontiguousarray(value.numpy(), np.float32)

    values = {name: array(value) for name, value in net.named_weights()}
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        save_file({**values, TOKENS: np.array(tokens, np.float32)}, out)
    except OSError as error:
        raise ResourceError(f"{out}: cannot be written: {error.strerror}") from error
