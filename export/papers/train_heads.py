"""`specedge train heads`: from a checkpoint and unlabelled audio to heads that draft for it.

The loss is the weighted mean of the heads' cross-entropies against what the target itself said (Raj et al., section
III-B, eq. 11), head i at row r against the token at r + 2 + i, and a little of their divergence from the target's own
distribution there (Whisper-Medusa, section II). Every tenth window is held out. A work folder keeps what is expensive,
for all kinds of heads alike; trained heads can be fine-tuned by minimum word error rate (`mwer`).

The decoder's last layer can learn with the heads, as Whisper-Medusa trains its linear heads (section II). The model's
own next token is then head 1 of n_heads + 1: cross-entropy against what the target said, and the divergence from the
target's own distribution over the whole vocabulary, which keeps it near. The layers below, the last norm and the
vocabulary are frozen. The result is another model: its text may differ from the target's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from specedge.errors import UsageError
from specedge.files import check_output, identities, publishing
from specedge.runtime.device import DEFAULT_COSTS
from specedge.runtime.options import BLOCK_KIND

from ..checkpoint import HEADS, HEADS_FILE, TOKENS, Checkpoint, open_checkpoint
from ..qwen3_asr import SpeechSpec
from ..training.checkpoint_files import UNFROZEN, check_out, write_checkpoint
from ..training.early_stopping import EarlyStopping, Plan
from ..training.features import Course, HiddenText, bundle_of, heard_texts
from ..training.nets import IGNORE, Block, DraftNet, HeadNet, decoder_of, vocabulary_matrix
from ..training.worth import of_rates


@dataclass(frozen=True, kw_only=True)
class HeadPlan(Plan):
    """What to train and how.

    later_weight: weight of every head but the first, whose is 1 (1.0: the plain mean); kl_weight: of the divergence;
    optimizer: of `early_stopping.OPTIMIZERS`; unfreezes_last: whether the decoder's last layer learns too.
    """

    kind: str
    n_heads: int = 5
    later_weight: float = 1.0
    kl_weight: float = 0.01
    steps: int = 2000
    n_batch: int = 16
    learning_rate: float = 1e-3
    warm_up: int = 50
    every: int = 100
    patience: int = 3
    optimizer: str = "adamw"
    unfreezes_last: bool = False


class Counted(NamedTuple):
    """Of a head over a batch: the mean loss, the share of right best guesses, guesses."""

    loss: Tensor
    right: Tensor
    n: Tensor


def vocabulary_of(texts: Sequence[HiddenText]) -> list[int]:
    """The tokens that heads can guess: those that were ever said; rising."""
    return sorted({token for text in texts for token in text.ids[text.n_prompt :]})


def token_table(tokens: Sequence[int], n_vocab: int) -> NDArray[np.int64]:
    """Place of each token among `tokens`, IGNORE for the others: int64 [n_vocab]."""
    table = np.full(n_vocab, IGNORE, np.int64)
    table[list(tokens)] = np.arange(len(tokens))
    return table


class HeadTrainer(EarlyStopping[HiddenText, HeadNet]):
    """Training in `folder`, which keeps `KIND.pt`, the resumable state.

    places: of each token in the heads' vocabulary (`token_table`); decoder: the target's, where its last layer is
    `net.last` and learns too. `figures`: the share of right best guesses, by head; with a decoder the model's own next
    token comes first, there and in losses.
    """

    def __init__(
        self,
        plan: HeadPlan,
        net: HeadNet,
        texts: Sequence[HiddenText],
        places: NDArray[np.int64],
        folder: Path,
        decoder: DraftNet | None = None,
    ) -> None:
        self.plan, self._places, self._decoder = plan, places, decoder
        samples = [text for text in texts if len(text.hidden) > text.n_prompt]
        path = folder / f"{plan.kind}{'-unfrozen' if plan.unfreezes_last else ''}.pt"
        super().__init__(plan, net, samples, path, optimizer=plan.optimizer, slow=net.last, beside=decoder)

    def loss(self, batch: Sequence[HiddenText]) -> Tensor:
        return self._weighed(torch.stack([one.loss for one in self.losses(batch)]))

    def measure(self, batch: Sequence[HiddenText]) -> tuple[Tensor, Tensor]:
        losses, right, n = (torch.stack(column) for column in zip(*self.losses(batch), strict=True))
        return torch.stack([losses, right]), n

    def judgement(self, means: Tensor) -> tuple[float, list[float]]:
        return float(self._weighed(means[0])), means[1].tolist()

    def _weighed(self, losses: Tensor) -> Tensor:
        """The heads' losses [n_heads] as one."""
        weights = torch.full_like(losses, self.plan.later_weight)
        weights[0] = 1.0
        return (losses * weights).sum() / weights.sum()

    def losses(self, texts: Sequence[HiddenText]) -> list[Counted]:
        """Of the model's own next token, where it learns, and of every head."""
        own, labels = rows_and_labels(texts, self._places, self.net.n_heads)
        features = features_of(texts) if self.net.block is not None else None
        if self._decoder is None:
            return losses_of_heads(self.net, own, own, features, labels, self.plan.kl_weight)
        hidden, base = self._of_model(self._decoder, texts, own)
        return [base, *losses_of_heads(self.net, hidden, own, features, labels, self.plan.kl_weight)]

    def _of_model(self, decoder: DraftNet, texts: Sequence[HiddenText], own: Tensor) -> tuple[Tensor, Counted]:
        """The last hidden rows of the model that learns, as many as `own` has of the target, and its own loss."""
        n_rows = max(len(text.hidden) for text in texts)
        ids = np.zeros((len(texts), n_rows), np.int64)
        labels = np.full(own.shape[:2], IGNORE, np.int64)
        for at, text in enumerate(texts):
            n = len(text.hidden)
            ids[at, :n] = text.ids[:n]
            asked = np.arange(text.n_prompt - 1, min(n, len(text.ids) - 1))
            labels[at, asked] = np.array(text.ids)[asked + 1]
        hidden = F.pad(decoder(torch.as_tensor(ids), features_of(texts)), (0, 0, 0, own.shape[1] - n_rows))
        said = torch.as_tensor(labels)
        wanted = said != IGNORE
        logits, said = decoder.logits(hidden[wanted]), said[wanted]
        loss = F.cross_entropy(logits, said)
        if self.plan.kl_weight:
            loss = loss + self.plan.kl_weight * divergence(logits, decoder.logits(own[wanted]))
        return hidden, _counted(loss, logits, said)


def rows_and_labels(texts: Sequence[HiddenText], places: NDArray[np.int64], n_heads: int) -> tuple[Tensor, Tensor]:
    """Texts side by side: hidden rows f32 [B, T, d], and what each head is to say behind them i64 [B, T, n_heads]."""
    n_rows = max(len(text.hidden) for text in texts) + n_heads
    hidden = np.zeros((len(texts), n_rows, texts[0].hidden.shape[1]), np.float32)
    labels = np.full((len(texts), n_rows, n_heads), IGNORE, np.int64)
    for at, text in enumerate(texts):
        hidden[at, : len(text.hidden)] = text.hidden
        # Within the prompt, where audio may be, nothing is said.
        ids = np.concatenate([np.full(text.n_prompt, IGNORE), places[list(text.ids[text.n_prompt :])]])
        for head in range(n_heads):
            # Guesses are asked for from the last row of the prompt on.
            rows = np.arange(text.n_prompt - 1, min(len(text.hidden), len(ids) - 2 - head))
            labels[at, rows, head] = ids[rows + 2 + head]
    return torch.as_tensor(hidden), torch.as_tensor(labels)


def features_of(texts: Sequence[HiddenText]) -> Tensor:
    """The encoder's output of each text, f32 [B, S, d]."""
    return torch.as_tensor(np.stack([text.features for text in texts]).astype(np.float32))


def losses_of_heads(
    net: HeadNet, hidden: Tensor, own: Tensor, features: Tensor | None, labels: Tensor, kl_weight: float
) -> list[Counted]:
    """Of every head, for the last hidden rows `hidden`; `own` are the target's, whose distributions they are held to.

    Both, and `labels`, as of `rows_and_labels`; features: of texts, for heads with a block.
    """
    rows = net.rows(hidden, features)
    found = []
    for head in range(net.n_heads):
        wanted = labels[..., head] != IGNORE
        logits, said = net.logits(rows[wanted], head), labels[..., head][wanted]
        loss = F.cross_entropy(logits, said)
        if kl_weight:
            # A batch ends with as many empty rows as there are heads, so that no text's end meets its beginning.
            there = torch.roll(own, -(1 + head), dims=1)[wanted]
            has_row = there.abs().sum(-1) > 0
            target = there[has_row] @ net.get_buffer("vocabulary").T
            loss = loss + kl_weight * divergence(logits[has_row], target)
        found.append(_counted(loss, logits, said))
    return found


def _counted(loss: Tensor, logits: Tensor, said: Tensor) -> Counted:
    right = (logits.detach().argmax(-1) == said).float().mean()
    return Counted(torch.nan_to_num(loss), torch.nan_to_num(right), torch.tensor(len(said)))  # NaN of no rows at all


def divergence(logits: Tensor, target: Tensor) -> Tensor:
    """The mean KL of the distributions of `logits` [N, n] from those of `target`."""
    said, wanted = F.log_softmax(logits, -1), F.log_softmax(target, -1)
    return F.kl_div(said, wanted, reduction="batchmean", log_target=True)


def train_heads(course: Course, out: Path, **plan_of: Any) -> str:
    """Train heads for the checkpoint of `course` and write them to `out`, a folder where its last layer learns too.

    plan_of: fields of `HeadPlan`.

    Raises AudioError when there is no audio, ModelError when the checkpoint cannot be used, UsageError when `out`
    is of something else, the audio too little, or the last layer is to learn of a checkpoint whose base
    head takes the place of the model's own logits, ResourceError when a file cannot be written.
    """
    plan = HeadPlan(**plan_of)
    if plan.unfreezes_last:
        check_out(out, UNFROZEN)
    else:
        check_name(out)
    with open_checkpoint(course.source) as checkpoint:
        plan = _fitting(plan, checkpoint, course)
        texts = heard_texts(course, bundle_of(course.source, course.work), plan.seed)
        tokens = vocabulary_of(texts)
        torch.set_num_threads(course.n_threads)
        torch.manual_seed(plan.seed)
        decoder = decoder_of(checkpoint) if plan.unfreezes_last else None
        net = net_of(checkpoint, plan.kind, plan.n_heads, tokens)
        if decoder is not None:
            net.unfreeze(decoder)
        table = token_table(tokens, checkpoint.spec.dims.n_vocab)
        trainer = HeadTrainer(plan, net, texts, table, course.work, decoder)
        trainer.run(f"train {plan.kind}", course.notify, course.device)
        if plan.unfreezes_last:
            _write_model(out, checkpoint, trainer.best, tokens)
        else:
            write_heads(out, trainer.best, tokens)
    rates, new = trainer.figures, ""
    if plan.unfreezes_last:
        agreement, *rates = rates
        new = f"; a new model: its own next token is the target's in {agreement:.1%}, and its text may differ"
    course.notify(f"{out}: {of_rates(rates, DEFAULT_COSTS).sentence('set of heads', trainer.lacks)}")
    return (
        f"{out}: {len(trainer.train)} texts, {trainer.step} steps, {len(tokens)} tokens; best guesses right on "
        f"held-out windows, head by head: {', '.join(f'{rate:.0%}' for rate in rates)}{new}"
    )


def _fitting(plan: HeadPlan, checkpoint: Checkpoint, course: Course) -> HeadPlan:
    """The plan as far as the checkpoint allows it. Raises UsageError for what it has no place for."""
    heads, is_llm = checkpoint.spec.heads, isinstance(checkpoint.spec, SpeechSpec)
    has_base_head = heads is not None and heads.replaces_base
    if is_llm and plan.kind == BLOCK_KIND:
        raise UsageError(f"--kind {BLOCK_KIND}: its layer attends to an encoder; for a speech LLM give mtp-latent")
    if plan.unfreezes_last and (is_llm or has_base_head):
        raise UsageError(
            f"--unfreeze-last-layer: {course.source} is a speech LLM, or a base head makes its logits; give a plain "
            "Whisper"
        )
    if not has_base_head:
        return plan
    if plan.kl_weight:
        course.notify(f"{course.source}: a base head makes its logits, so its texts are learned and not probabilities")
    return replace(plan, kl_weight=0.0)


def check_name(out: Path, given: Path | None = None) -> None:
    if out.suffix != ".safetensors":
        raise UsageError(f"-o {out}: expected a name that ends in .safetensors")
    check_output(out, HEADS, inputs=identities([] if given is None else [given]))


def net_of(checkpoint: Checkpoint, kind: str, n_heads: int, tokens: Sequence[int]) -> HeadNet:
    block = last_layer(checkpoint) if kind == BLOCK_KIND else None
    return HeadNet(kind, n_heads, vocabulary_matrix(checkpoint)[list(tokens)], block)


def last_layer(checkpoint: Checkpoint) -> Block:
    """The decoder's last layer, but adding nothing yet: what it reads is behind that layer and the last norm."""
    dims = checkpoint.spec.dims
    block = Block(dims.n_text_state, dims.n_text_head, checkpoint.spec.n_text_ffn)
    name = f"model.decoder.layers.{dims.n_text_layer - 1}"
    block.load_state_dict({part: torch.from_numpy(checkpoint.tensor(f"{name}.{part}")) for part in block.state_dict()})
    for branch in (block.self_attn.out_proj, block.encoder_attn.out_proj, block.fc2):
        torch.nn.init.zeros_(branch.weight)
        torch.nn.init.zeros_(branch.bias)
    return block


def _write_model(out: Path, checkpoint: Checkpoint, net: HeadNet, tokens: Sequence[int]) -> None:
    """A new checkpoint with the last layer that was trained, and the heads beside it."""
    n_layers = checkpoint.spec.dims.n_text_layer
    last = cast(Block, net.last)
    write_checkpoint(
        out,
        checkpoint,
        {
            f"model.decoder.layers.{n_layers - 1}.{part}": value.detach().numpy()
            for part, value in last.named_parameters()
        },
        n_layers=n_layers,
        mark=UNFROZEN,
        target=checkpoint.spec.source.id,
        beside=lambda folder: write_heads(folder / HEADS_FILE, net, tokens),
    )


def write_heads(out: Path, net: HeadNet, tokens: Sequence[int]) -> None:
    from safetensors.numpy import save

    def array(value: Tensor) -> NDArray[np.float32]:
        return np.ascontiguousarray(value.numpy(), np.float32)

    values = {name: array(value) for name, value in net.named_weights()}
    with publishing(out, HEADS) as file:
        file.write(save({**values, TOKENS: np.array(tokens, np.float32)}))
