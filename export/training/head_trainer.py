"""Train heads on cached hidden rows of a frozen decoder; resumable, and the same again from the same state.

The loss is the weighted mean of the heads' cross-entropies against what the target itself said, head i at row r against
the token at r + 2 + i, and a little of their divergence from the target's own distribution there (algorithms 1.4, 1.5).
Every tenth window is held out: the weights kept are those with the lowest loss on it, and training ends when that has
not fallen for some evaluations. Batches depend on the seed and the step alone.
Knows rows and ids. Does not know: audio, bundles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from specedge.export.training.early_stopping import EarlyStopping, is_held_out
from specedge.export.training.head_nets import HeadNet
from specedge.export.training.hidden_rows import HiddenText
from specedge.export.training.labels import IGNORE
from specedge.runtime.errors import UsageError

__all__ = ["Batch", "Counted", "HeadPlan", "HeadTrainer", "N", "token_table", "vocabulary_of"]

N = TypeVar("N", bound=HeadNet)

_MOST_JUDGED = 160  # held-out texts of an evaluation


@dataclass(frozen=True, kw_only=True)
class HeadPlan:
    """What to train and how.

    later_weight: weight of every head but the first, whose is 1 (1.0: the plain mean); kl_weight: of the divergence;
    steps: of `n_batch` texts at most; every: steps between evaluations, `patience` of which may pass without gain;
    optimizer: of `early_stopping.OPTIMIZERS`; unfreezes_last: whether the decoder's last layer learns too (`unfrozen`).
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
    seed: int = 1
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


def token_table(tokens: Sequence[int], n_vocab: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Place of each token among `tokens`, IGNORE for the others: int64 [n_vocab]."""
    table = np.full(n_vocab, IGNORE, np.int64)
    table[list(tokens)] = np.arange(len(tokens))
    return table


class HeadTrainer(EarlyStopping[HiddenText, N]):
    """Training in `folder`, which keeps `KIND.pt`, the resumable state. Raises UsageError for too few texts.

    places: of each token in the heads' vocabulary (`token_table`).
    """

    def __init__(
        self,
        plan: HeadPlan,
        net: N,
        texts: Sequence[HiddenText],
        places: np.ndarray[Any, np.dtype[np.int64]],
        folder: Path,
    ) -> None:
        self.plan, self._places = plan, places
        usable = [text for text in texts if len(text.hidden) > text.n_prompt]
        train = [text for text in usable if not is_held_out(text.source)]
        held = [text for text in usable if is_held_out(text.source)]
        if not train or not held:
            raise UsageError(f"{len(texts)} texts to train on: expected 20 or more; give more audio")
        held = held[:: max(1, len(held) // _MOST_JUDGED)]
        path = folder / f"{plan.kind}{'-unfrozen' if plan.unfreezes_last else ''}.pt"
        super().__init__(plan, net, train, held, path, optimizer=plan.optimizer, slow=net.slow)

    @property
    def hit_rates(self) -> list[float]:
        """The share of right best guesses on held-out texts, by head, of the weights kept."""
        return self.figures

    def loss(self, batch: Sequence[HiddenText]) -> Tensor:
        """See `EarlyStopping.loss`."""
        return self._weighed(torch.stack([one.loss for one in self._losses(self._batch(batch))]))

    def judge(self) -> None:
        """Measure the held-out loss and the share of right best guesses; keep the weights if the loss has fallen."""
        self.net.eval()
        total, right, count = (torch.zeros(()) for _ in range(3))
        with torch.no_grad():
            for at in range(0, len(self.held), self.plan.n_batch):
                found = self._losses(self._batch(self.held[at : at + self.plan.n_batch]))
                losses, n_right, n = (torch.stack(column).float() for column in zip(*found, strict=True))
                total, right, count = total + losses * n, right + n_right, count + n
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
            ids = self._places[list(text.ids)]
            for head in range(self.plan.n_heads):
                # Guesses are asked for from the last row of the prompt on.
                rows = np.arange(text.n_prompt - 1, min(len(text.hidden), len(ids) - 2 - head))
                labels[at, rows, head] = ids[rows + 2 + head]
        features = None
        if self.net.block is not None:
            features = torch.from_numpy(np.stack([text.features for text in texts]).astype(np.float32))
        return Batch(hidden=torch.from_numpy(hidden), features=features, labels=torch.from_numpy(labels))

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
                loss = loss + self.plan.kl_weight * _divergence(logits, batch.hidden, wanted, head, vocabulary)
            n_right = (logits.detach().argmax(-1) == labels[wanted]).sum()
            found.append(Counted(torch.nan_to_num(loss), n_right, wanted.sum()))  # of no rows at all
        return found


def _divergence(logits: Tensor, hidden: Tensor, wanted: Tensor, head: int, vocabulary: Tensor) -> Tensor:
    """KL of a head's distributions from the target's own at the rows that say those tokens, one row each a head on."""
    # A batch ends with as many empty rows as there are heads, so that no text's end meets its beginning.
    own = torch.roll(hidden, -(1 + head), dims=1)[wanted]
    has_row = own.abs().sum(-1) > 0
    target = F.log_softmax(own[has_row] @ vocabulary.T, -1)
    return F.kl_div(F.log_softmax(logits[has_row], -1), target, reduction="batchmean", log_target=True)
