"""Train a draft's decoder to say what its target said; resumable, and the same again from the same state.

The loss is Distil-Whisper's (Gandhi et al. 2023, arXiv 2311.00430, section 3.2): the cross-entropy against the target's
own transcripts, and 0.8 times the divergence KL(p || q) from the target's distribution p at each of their tokens, where
draft and target cut text alike. p is that of the target's hidden rows as its bundle computes them, before any rules.
Every tenth window is held out: the weights kept are those with the lowest loss on it, those at the beginning included,
and training ends when that has not fallen for some evaluations. Batches depend on the seed and the step alone.
Knows ids and rows. Does not know: audio, bundles, files of models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from specedge.export.training.draft_net import DraftNet
from specedge.export.training.draft_texts import DraftText
from specedge.export.training.early_stopping import EarlyStopping, is_held_out
from specedge.export.training.labels import IGNORE
from specedge.runtime.errors import UsageError

__all__ = ["DraftPlan", "DraftTrainer", "Teacher"]

_MOST_JUDGED = 160  # held-out texts of an evaluation
_NEVER = -1e4  # a logit whose probability is 0, and whose product with 0 is a number


@dataclass(frozen=True, kw_only=True)
class DraftPlan:
    """What to train and how.

    student: what the draft began as, in a word; kl_weight: of the divergence; steps: of `n_batch` texts at
    most; every: steps between evaluations, `patience` of which may pass without gain.
    """

    student: str = ""
    kl_weight: float = 0.8
    steps: int = 2000
    n_batch: int = 8
    learning_rate: float = 3e-4
    warm_up: int = 50
    every: int = 50
    patience: int = 5
    seed: int = 1


class Teacher:
    """The target's distribution over the draft's tokens, from its last hidden rows.

    matrix: float32 [n_target_vocab, d], its vocabulary; counterparts: int64 [n_target_vocab], the draft's id of each of
    its tokens, -1 for none; n_vocab: of the draft. A token that the target has not has no probability.
    """

    def __init__(self, matrix: Tensor, counterparts: NDArray[np.int64], n_vocab: int) -> None:
        there = np.full(n_vocab, -1, np.int64)
        known = np.flatnonzero(counterparts >= 0)
        there[counterparts[known]] = known
        self._bias = torch.from_numpy(np.where(there >= 0, 0.0, _NEVER).astype(np.float32))
        self._matrix = matrix if np.array_equal(there, np.arange(len(matrix))) else matrix[np.maximum(there, 0)]

    def log_probs(self, hidden: Tensor) -> Tensor:
        """Of rows [N, d]: [N, n_vocab] by the draft's ids."""
        return F.log_softmax(hidden @ self._matrix.T + self._bias, -1)


class DraftTrainer(EarlyStopping[DraftText, DraftNet]):
    """Training in `folder`, which keeps `draft.pt`, the resumable state. Raises UsageError for too few texts.

    teacher: None where there is only the target's text to learn from. `figures` are the share of the held-out tokens
    that are the draft's likeliest behind the ones before, with the weights of the beginning and with those kept.
    """

    def __init__(
        self, plan: DraftPlan, net: DraftNet, texts: Sequence[DraftText], teacher: Teacher | None, folder: Path
    ) -> None:
        self.plan, self._teacher = plan, teacher
        train = [text for text in texts if not is_held_out(text.source)]
        held = [text for text in texts if is_held_out(text.source)]
        if not train or not held:
            raise UsageError(
                f"{len(texts)} texts that the draft can be asked for: expected 20 or more; give more audio, of a "
                "language that it knows"
            )
        held = held[:: max(1, len(held) // _MOST_JUDGED)]
        super().__init__(plan, net, train, held, folder / "draft.pt")

    def loss(self, batch: Sequence[DraftText]) -> Tensor:
        """See `EarlyStopping.loss`."""
        loss, _, _ = self._losses(batch)
        return loss

    def judge(self) -> None:
        """Measure the held-out loss and agreement; keep the weights if the loss has fallen."""
        self.net.eval()
        total = right = count = 0.0
        with torch.no_grad():
            for at in range(0, len(self.held), self.plan.n_batch):
                loss, n_right, n = self._losses(self.held[at : at + self.plan.n_batch])
                total, right, count = total + float(loss) * n, right + n_right, count + n
        if self.keep(total / count):
            self.figures = [*self.figures[:1], right / count]

    def _losses(self, texts: Sequence[DraftText]) -> tuple[Tensor, int, int]:
        """Loss a token, tokens that are the likeliest, and tokens."""
        longest = max(len(text.ids) for text in texts)
        ids = np.zeros((len(texts), longest), np.int64)
        labels = np.full((len(texts), longest), IGNORE, np.int64)
        taught: list[NDArray[np.float16]] = []  # the target's rows, of all texts in the order of their labels
        is_taught: list[NDArray[np.bool_]] = []
        for at, text in enumerate(texts):
            ids[at, : len(text.ids)] = text.ids
            asked = slice(text.n_prompt - 1, len(text.ids) - 1)
            labels[at, asked] = text.ids[text.n_prompt :]
            rows = text.rows[asked]
            is_taught.append(rows >= 0)
            taught.append(text.hidden[rows[rows >= 0]])
        features = torch.from_numpy(np.stack([text.features for text in texts]).astype(np.float32))
        said = torch.from_numpy(labels)
        wanted = said != IGNORE
        log_probs = F.log_softmax(self.net.logits(self.net(torch.from_numpy(ids), features)[wanted]), -1)
        loss = F.nll_loss(log_probs, said[wanted])
        where = torch.from_numpy(np.concatenate(is_taught))
        if self._teacher is not None and self.plan.kl_weight and bool(where.any()):
            hidden = torch.from_numpy(np.concatenate(taught).astype(np.float32))
            known = self._teacher.log_probs(hidden)
            loss = loss + self.plan.kl_weight * F.kl_div(
                log_probs[where], known, reduction="batchmean", log_target=True
            )
        n_right = int((log_probs.detach().argmax(-1) == said[wanted]).sum())
        return loss, n_right, int(wanted.sum())
