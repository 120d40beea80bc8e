"""`specedge train heads`: from a checkpoint and unlabelled audio to heads that draft for it.

The loss is the weighted mean of the heads' cross-entropies against what the target itself said (Raj et al., section
III-B, eq. 11), head i at row r against the token at r + 2 + i, and a little of their divergence from the target's own
distribution there (Whisper-Medusa, section II). Every tenth window is held out. A work folder keeps what is expensive,
for all kinds of heads alike; trained heads can be fine-tuned by minimum word error rate (`mwer`), and the last layer
of the decoder can learn with them (`unfrozen`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from specedge.errors import UsageError
from specedge.files import check_output, identities, publishing
from specedge.runtime.device import DEFAULT_COSTS
from specedge.runtime.options import BLOCK_KIND

from ..checkpoint import HEADS, TOKENS, Checkpoint, open_checkpoint
from ..registered import find
from ..spec import Spec
from ..speech_layouts import SpeechSpec
from ..training.checkpoint_files import UNFROZEN, check_out
from ..training.early_stopping import EarlyStopping, Plan, Report, writing
from ..training.features import Course, HiddenText, bundle_of, heard_texts
from ..training.nets import IGNORE, Block, HeadNet, vocabulary_matrix
from ..training.worth import of_rates

N = TypeVar("N", bound=HeadNet)


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
    """Of a head over a batch: the mean loss, right best guesses, guesses."""

    loss: Tensor
    n_right: Tensor
    n: Tensor


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Texts side by side: hidden rows f32 [B, T, d], features f32 [B, S, d] or None, labels i64 [B, T, n_heads]."""

    hidden: Tensor
    features: Tensor | None
    labels: Tensor


def vocabulary_of(texts: Sequence[HiddenText], extra: Sequence[int] = ()) -> list[int]:
    """The tokens that heads can guess: those that were ever said, and `extra`; rising."""
    return sorted({token for text in texts for token in text.ids[text.n_prompt :]} | set(extra))


def token_table(tokens: Sequence[int], n_vocab: int) -> NDArray[np.int64]:
    """Place of each token among `tokens`, IGNORE for the others: int64 [n_vocab]."""
    table = np.full(n_vocab, IGNORE, np.int64)
    table[list(tokens)] = np.arange(len(tokens))
    return table


def places_of(table: NDArray[np.int64], ids: Sequence[int], n_prompt: int) -> NDArray[np.int64]:
    """The place in a vocabulary of each of `ids`, by its table; IGNORE within the prompt, where audio may be."""
    return np.concatenate([np.full(n_prompt, IGNORE, np.int64), table[list(ids[n_prompt:])]])


class HeadTrainer(EarlyStopping[HiddenText, N]):
    """Training in `folder`, which keeps `KIND.pt`, the resumable state.

    places: of each token in the heads' vocabulary (`token_table`).
    """

    def __init__(
        self, plan: HeadPlan, net: N, texts: Sequence[HiddenText], places: NDArray[np.int64], folder: Path
    ) -> None:
        self.plan, self._places = plan, places
        samples = [text for text in texts if len(text.hidden) > text.n_prompt]
        path = folder / f"{plan.kind}{'-unfrozen' if plan.unfreezes_last else ''}.pt"
        super().__init__(plan, net, samples, path, optimizer=plan.optimizer, slow=net.slow)

    @property
    def hit_rates(self) -> list[float]:
        """The share of right best guesses on held-out texts, by head, of the weights kept."""
        return self.figures

    def loss(self, batch: Sequence[HiddenText]) -> Tensor:
        return self._weighed(torch.stack([one.loss for one in self._losses(self._batch(batch))]))

    def judge(self) -> None:
        self.net.eval()
        total, right, count = (torch.zeros(()) for _ in range(3))
        with torch.no_grad():
            for at in range(0, len(self.held), self.plan.n_batch):
                found = self._losses(self._batch(self.held[at : at + self.plan.n_batch]))
                losses, n_right, n = (torch.stack(column).float() for column in zip(*found, strict=True))
                total, right, count = total + losses * n, right + n_right, count + n
                self.tick()
        loss = float(self._weighed(total / count.clamp(min=1)))
        if self.keep(loss):
            self.figures = (right / count.clamp(min=1)).tolist()

    def _weighed(self, losses: Tensor) -> Tensor:
        """The heads' losses [n_heads] as one."""
        weights = torch.full_like(losses, self.plan.later_weight)
        weights[0] = 1.0
        return (losses * weights).sum() / weights.sum()

    def _batch(self, texts: Sequence[HiddenText]) -> Batch:
        n_rows = max(len(text.hidden) for text in texts) + self.plan.n_heads
        hidden = np.zeros((len(texts), n_rows, texts[0].hidden.shape[1]), np.float32)
        labels = np.full((len(texts), n_rows, self.plan.n_heads), IGNORE, np.int64)
        for at, text in enumerate(texts):
            hidden[at, : len(text.hidden)] = text.hidden
            ids = places_of(self._places, text.ids, text.n_prompt)
            for head in range(self.plan.n_heads):
                # Guesses are asked for from the last row of the prompt on.
                rows = np.arange(text.n_prompt - 1, min(len(text.hidden), len(ids) - 2 - head))
                labels[at, rows, head] = ids[rows + 2 + head]
        features = None
        if self.net.block is not None:
            features = torch.as_tensor(np.stack([text.features for text in texts]).astype(np.float32))
        return Batch(hidden=torch.as_tensor(hidden), features=features, labels=torch.as_tensor(labels))

    def _losses(self, batch: Batch) -> list[Counted]:
        """Of every head."""
        return self._of_heads(batch.hidden, batch)

    def _of_heads(self, hidden: Tensor, batch: Batch) -> list[Counted]:
        """Of every head where these are the last hidden rows; the target's own are the batch's."""
        rows = self.net.rows(hidden, batch.features)
        vocabulary = self.net.get_buffer("vocabulary")
        found = []
        for head in range(self.plan.n_heads):
            labels = batch.labels[..., head]
            wanted = labels != IGNORE
            logits = self.net.logits(rows[wanted], head)
            loss = F.cross_entropy(logits, labels[wanted])
            if self.plan.kl_weight:
                loss = loss + self.plan.kl_weight * divergence(logits, batch.hidden, wanted, head, vocabulary)
            n_right = (logits.detach().argmax(-1) == labels[wanted]).sum()
            found.append(Counted(torch.nan_to_num(loss), n_right, wanted.sum()))  # of no rows at all
        return found


def divergence(logits: Tensor, hidden: Tensor, wanted: Tensor, head: int, vocabulary: Tensor) -> Tensor:
    """KL of a head's distributions from the target's own at the rows that say those tokens, one row each a head on."""
    # A batch ends with as many empty rows as there are heads, so that no text's end meets its beginning.
    own = torch.roll(hidden, -(1 + head), dims=1)[wanted]
    has_row = own.abs().sum(-1) > 0
    target = F.log_softmax(own[has_row] @ vocabulary.T, -1)
    return F.kl_div(F.log_softmax(logits[has_row], -1), target, reduction="batchmean", log_target=True)


def report(out: Path, trainer: HeadTrainer[Any], n_tokens: int, agreement: float | None = None) -> Report:
    """What is said of heads that can guess `n_tokens` tokens; agreement: of a model whose last layer learned, how often
    its own next token was the target's."""
    rates = trainer.hit_rates if agreement is None else trainer.hit_rates[1:]
    line = (
        f"{out}: {len(trainer.train)} texts, {trainer.step} steps, {n_tokens} tokens; best guesses right on held-out "
        f"windows, head by head: {', '.join(f'{rate:.0%}' for rate in rates)}"
    )
    if agreement is not None:
        line += f"; a new model: its own next token is the target's in {agreement:.1%}, and its text may differ"
    return Report(line, f"{out}: {of_rates(rates, DEFAULT_COSTS).sentence('set of heads', trainer.lacks)}")


def train_heads(course: Course, out: Path, **plan_of: Any) -> Report:
    """Train heads for the checkpoint of `course` and write them to `out`, a folder where its last layer learns too.

    plan_of: fields of `HeadPlan`.

    Raises AudioError when there is no audio, ModelError when the checkpoint cannot be used, UsageError when the work
    folder or `out` is of something else, the audio too little, or the last layer is to learn of a checkpoint whose base
    head takes the place of the model's own logits, ResourceError when a file cannot be written.
    """
    plan = HeadPlan(**plan_of)
    if plan.unfreezes_last:
        check_out(out, UNFROZEN)
    else:
        check_name(out)
    with open_checkpoint(course.source) as checkpoint:
        _refuse_for_llm(plan, checkpoint.spec)
        plan = _fitting(plan, checkpoint, course)
        texts = heard_texts(course, bundle_of(course.source, course.work), plan.seed)
        tokens = vocabulary_of(texts)
        torch.set_num_threads(course.n_threads)
        torch.manual_seed(plan.seed)
        if plan.unfreezes_last:
            trained: Report = find("unfrozen")(course, out, plan, checkpoint, texts, tokens)
            return trained
        net = net_of(checkpoint, plan.kind, plan.n_heads, tokens)
        trainer = HeadTrainer(plan, net, texts, token_table(tokens, checkpoint.spec.dims.n_vocab), course.work)
    trainer.run_or_go_on(f"train {plan.kind}", course.notify, course.device)
    write_heads(out, trainer.best, tokens)
    return report(out, trainer, len(tokens))


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


def _refuse_for_llm(plan: HeadPlan, spec: Spec) -> None:
    """Raises UsageError for what has no counterpart in the decoder of a speech LLM."""
    if not isinstance(spec, SpeechSpec):
        return
    if plan.kind == BLOCK_KIND:
        raise UsageError(f"--kind {BLOCK_KIND}: its layer attends to an encoder; for a speech LLM give mtp-latent")
    if plan.unfreezes_last:
        raise UsageError("--unfreeze-last-layer: the layers of a speech LLM are not trained here; leave it out")


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


def write_heads(out: Path, net: HeadNet, tokens: Sequence[int]) -> None:
    from safetensors.numpy import save

    def array(value: Tensor) -> NDArray[np.float32]:
        return np.ascontiguousarray(value.numpy(), np.float32)

    values = {name: array(value) for name, value in net.named_weights()}
    with writing(out), publishing(out, HEADS) as file:
        file.write(save({**values, TOKENS: np.array(tokens, np.float32)}))
