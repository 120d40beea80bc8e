"""`specedge train heads`: from a checkpoint and unlabelled audio to heads that draft for it.

A work folder keeps what is expensive, for all kinds of heads alike: the bundle made of the checkpoint, the hidden rows
of what it says, the state of each training. The same command goes on where it was stopped, and another kind begins with
the rows that are there. Heads that were trained can be fine-tuned by minimum word error rate. The checkpoint stays as
it is: where its last layer is to learn too, a new one is written, with its heads beside it.
Does not know: the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specedge.export.checkpoint import Checkpoint, open_checkpoint
from specedge.export.decoder_graph import PROJECTION, VOCABULARY
from specedge.export.heads_files import HEADS, HEADS_FILE, TOKENS, open_heads
from specedge.export.training.checkpoint_files import UNFROZEN, check_out, write_checkpoint
from specedge.export.training.draft_net import decoder_of
from specedge.export.training.head_nets import Block, HeadNet
from specedge.export.training.head_trainer import HeadPlan, HeadTrainer, N, token_table, vocabulary_of
from specedge.export.training.hidden_rows import HiddenText, collect, load
from specedge.export.training.mwer import MwerPlan, MwerTrainer, NBest, NetGuesses, nbest_lists
from specedge.export.training.train_ctc import bundle_of
from specedge.export.training.unfrozen import UnfrozenNet, UnfrozenTrainer
from specedge.export.training.unlabelled import Target, windows_of
from specedge.maps.outputs import check_output, identities
from specedge.maps.publish import publishing
from specedge.runtime.cpu import threads_allowed
from specedge.runtime.errors import ResourceError, UsageError
from specedge.runtime.passes.head_graphs import BLOCK_KIND
from specedge.runtime.progress import Progress

__all__ = ["Course", "FineTunedHeads", "TrainedHeads", "fine_tune_heads", "train_heads"]

Float = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Course:
    """What is learned from, and where: a checkpoint, `hours` of audio, the work folder; `notify` gets lines to show.

    language: of the audio, None to detect it in every window; threads: None for the cores of this process.
    """

    source: str
    audio: Sequence[str]
    work: Path
    hours: float
    threads: int | None
    language: str | None
    notify: Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class TrainedHeads:
    """Finished heads: their file, steps, texts trained on, tokens they can guess, and how often each head's best guess
    was right on held-out windows; where the last layer learned, path is the new checkpoint's, and `agreement` how often
    its own next token was the target's."""

    path: Path
    n_steps: int
    n_texts: int
    n_tokens: int
    hit_rates: tuple[float, ...]
    agreement: float | None = None

    @property
    def line(self) -> str:
        """All of it for a reader."""
        rates = ", ".join(f"{rate:.0%}" for rate in self.hit_rates)
        line = (
            f"{self.path}: {self.n_texts} texts, {self.n_steps} steps, {self.n_tokens} tokens; right best guesses, "
            f"held out, head by head: {rates}"
        )
        if self.agreement is None:
            return line
        return (
            f"{line}; a new model: its own next token is the target's in {self.agreement:.1%}, and its text may "
            f"differ; now: specedge export {self.path} --heads {self.path / HEADS_FILE}"
        )


@dataclass(frozen=True, kw_only=True)
class FineTunedHeads:
    """Fine-tuned heads: their file, steps, windows, and of held-out hypotheses before and after the expected word
    errors and the heads' cross-entropy."""

    path: Path
    n_steps: int
    n_windows: int
    errors: tuple[float, float]
    entropies: tuple[float, float]

    @property
    def line(self) -> str:
        """All of it for a reader."""
        return (
            f"{self.path}: {self.n_windows} windows, {self.n_steps} steps; held out, expected word errors of a "
            f"hypothesis {self.errors[0]:.3f}, then {self.errors[1]:.3f}; cross-entropy {self.entropies[0]:.3f}, "
            f"then {self.entropies[1]:.3f}"
        )


def train_heads(course: Course, out: Path, plan: HeadPlan) -> TrainedHeads:
    """Train heads for the checkpoint of `course` and write them to `out`, a folder where its last layer learns too.

    Raises
    ------
    AudioError
        when there is no audio.
    ModelError
        when the checkpoint cannot be used.
    UsageError
        when the work folder is of something else, `out` is, or the audio too little; when the last layer is to learn of
        a checkpoint whose base head takes the place of the model's own logits.
    ResourceError
        when a file cannot be written.
    """
    check = partial(check_out, mark=UNFROZEN) if plan.unfreezes_last else _check_name
    check(out)
    threads = course.threads or threads_allowed()
    with open_checkpoint(course.source) as checkpoint:
        plan = _fitting(plan, checkpoint, course)
        texts = _texts(course, threads, plan.seed)
        tokens = vocabulary_of(texts)
        torch.set_num_threads(threads)
        torch.manual_seed(plan.seed)
        if plan.unfreezes_last:
            return _train_unfrozen(course, out, plan, checkpoint, texts, tokens)
        net = _net(checkpoint, plan.kind, plan.n_heads, tokens)
        trainer = HeadTrainer(plan, net, texts, token_table(tokens, checkpoint.spec.dims.n_vocab), course.work)
    _run(trainer, course)
    _write(out, trainer.best, tokens)
    return TrainedHeads(
        path=out,
        n_steps=trainer.step,
        n_texts=len(trainer.train),
        n_tokens=len(tokens),
        hit_rates=tuple(trainer.hit_rates),
    )


def _fitting(plan: HeadPlan, checkpoint: Checkpoint, course: Course) -> HeadPlan:
    """The plan as far as a checkpoint with a base head allows it."""
    heads = checkpoint.spec.heads
    if heads is None or not heads.replaces_base:
        return plan
    if plan.unfreezes_last:
        raise UsageError(
            f"--unfreeze-last-layer: a base head makes the logits of {course.source}; give a plain Whisper"
        )
    if plan.kl_weight:
        course.notify(f"{course.source}: a base head makes its logits, so its texts are learned and not probabilities")
    return replace(plan, kl_weight=0.0)


def _train_unfrozen(
    course: Course,
    out: Path,
    plan: HeadPlan,
    checkpoint: Checkpoint,
    texts: Sequence[HiddenText],
    tokens: Sequence[int],
) -> TrainedHeads:
    """Train the last layer too, and write a new checkpoint with the heads beside it."""
    dims = checkpoint.spec.dims
    decoder = decoder_of(checkpoint)
    frozen = _net(checkpoint, plan.kind, plan.n_heads, tokens)
    last = cast(Block, decoder.layers[-1])
    net = UnfrozenNet(
        plan.kind,
        plan.n_heads,
        frozen.get_buffer("vocabulary"),
        frozen.block,
        last=last,
        norm=decoder.layer_norm,
        matrix=decoder.get_buffer("matrix"),
    )
    trainer = UnfrozenTrainer(plan, net, texts, token_table(tokens, dims.n_vocab), course.work, decoder=decoder)
    _run(trainer, course)
    name = f"model.decoder.layers.{dims.n_text_layer - 1}"
    write_checkpoint(
        out,
        checkpoint,
        {f"{name}.{part}": value.detach().numpy() for part, value in trainer.best.last.named_parameters()},
        n_layers=dims.n_text_layer,
        mark=UNFROZEN,
        target=checkpoint.spec.source.id,
        beside=lambda folder: _write(folder / HEADS_FILE, trainer.best, tokens),
    )
    agreement, *rates = trainer.hit_rates
    return TrainedHeads(
        path=out,
        n_steps=trainer.step,
        n_texts=len(trainer.train),
        n_tokens=len(tokens),
        hit_rates=tuple(rates),
        agreement=agreement,
    )


def _run(trainer: HeadTrainer[N], course: Course) -> None:
    """Train to the end, from where it was stopped."""
    if trainer.load():
        course.notify(f"{course.work}: going on from step {trainer.step}")
    with Progress(trainer.plan.steps, "steps", f"train {trainer.plan.kind}") as progress:
        trainer.run(progress.update_to)


def fine_tune_heads(course: Course, out: Path, plan: MwerPlan, heads: Path) -> FineTunedHeads:
    """Fine-tune the heads in the file `heads` by minimum word error rate (`mwer`), and write them to `out`.

    Raises as `train_heads`, and UsageError for heads of a layout that is not trained here.
    """
    _check_name(out, heads)
    threads = course.threads or threads_allowed()
    with open_checkpoint(course.source) as checkpoint:
        given = open_heads(heads, checkpoint.spec)
        if given.tokens is None or given.spec.n_layers > 1:
            raise UsageError(f"{heads}: expected heads that `specedge train heads` has written")
        tokens = given.tokens.tolist()
        net = _net(checkpoint, given.spec.kind, given.spec.n_heads, tokens)
        net.load_named(given.weights)
        torch.set_num_threads(threads)
        lists = _nbest(course, threads, plan, NetGuesses(net, tokens))
        trainer = MwerTrainer(plan, net, lists, token_table(tokens, checkpoint.spec.dims.n_vocab), course.work)
    if trainer.load():
        course.notify(f"{course.work}: going on from step {trainer.step}")
    with Progress(plan.steps, "steps", f"fine-tune {given.spec.kind}") as progress:
        trainer.run(progress.update_to)
    _write(out, trainer.best, tokens)
    errors_before, entropy_before, errors, entropy = trainer.figures
    return FineTunedHeads(
        path=out,
        n_steps=trainer.step,
        n_windows=len(trainer.train),
        errors=(errors_before, errors),
        entropies=(entropy_before, entropy),
    )


def _check_name(out: Path, given: Path | None = None) -> None:
    if out.suffix != ".safetensors":
        raise UsageError(f"-o {out}: expected a name that ends in .safetensors")
    check_output(out, HEADS, inputs=identities([] if given is None else [given]))


def _until(windows: Iterator[Float], hours: float) -> Iterator[Float]:
    """Windows until there are so many hours of them."""
    done_s = 0.0
    while done_s < hours * 3600 and (window := next(windows, None)) is not None:
        done_s += len(window) / 16000
        yield window


def _texts(course: Course, threads: int, seed: int) -> list[HiddenText]:
    """What the target says of the audio, with its hidden rows, from the work folder as far as it is there."""
    bundle, folder = bundle_of(course.source, course.work), course.work / "rows"
    identity = {
        "bundle": bundle.digest,
        "audio": "\n".join(course.audio),
        "language": course.language or "",
        "seed": str(seed),
    }
    with Progress(course.hours * 3600, "s", "transcribe", is_time=True) as progress:
        target = Target(bundle, threads=threads, language=course.language)
        windows = windows_of(course.audio, bundle.manifest.n_samples, seed=seed, notify=course.notify)
        collect(windows, target, folder, hours=course.hours, identity=identity, report=progress.update_to)
    return load(folder)


def _nbest(course: Course, threads: int, plan: MwerPlan, heads: NetGuesses) -> list[NBest]:
    """The heads' N-best lists of the audio."""
    bundle = bundle_of(course.source, course.work)
    with Progress(course.hours * 3600, "s", "search", is_time=True) as progress:
        target = Target(bundle, threads=threads, language=course.language)
        windows = windows_of(course.audio, bundle.manifest.n_samples, seed=plan.seed, notify=course.notify)
        return list(nbest_lists(_until(windows, course.hours), target, heads, plan, progress.update_to))


def _net(checkpoint: Checkpoint, kind: str, n_heads: int, tokens: Sequence[int]) -> HeadNet:
    matrix = checkpoint.tensor(PROJECTION if checkpoint.has(PROJECTION) else VOCABULARY)
    block = _last_layer(checkpoint) if kind == BLOCK_KIND else None
    return HeadNet(kind, n_heads, torch.from_numpy(matrix[list(tokens)]), block)


def _last_layer(checkpoint: Checkpoint) -> Block:
    """The decoder's last layer, but adding nothing yet: what it reads is behind that layer and the last norm."""
    dims = checkpoint.spec.dims
    block = Block(dims.n_text_state, dims.n_text_head, checkpoint.spec.n_text_ffn)
    name = f"model.decoder.layers.{dims.n_text_layer - 1}"
    block.load_state_dict({part: torch.from_numpy(checkpoint.tensor(f"{name}.{part}")) for part in block.state_dict()})
    for branch in (block.self_attn.out_proj, block.encoder_attn.out_proj, block.fc2):
        torch.nn.init.zeros_(branch.weight)
        torch.nn.init.zeros_(branch.bias)
    return block


def _write(out: Path, net: HeadNet, tokens: Sequence[int]) -> None:
    from safetensors.numpy import save

    def array(value: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        return np.ascontiguousarray(value.numpy(), np.float32)

    values = {name: array(value) for name, value in net.named_weights()}
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        data = save({**values, TOKENS: np.array(tokens, np.float32)})
        with publishing(out, HEADS) as file:
            file.write(data)
    except OSError as error:
        raise ResourceError(f"{out}: cannot be written: {error.strerror}") from error
