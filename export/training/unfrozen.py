"""Train heads together with the decoder's last layer, so that its rows come to say more of what follows.

Whisper-Medusa trains its linear heads so (algorithms 1.4). The model's own next token is then head 1 of n_heads + 1, by
the same vocabulary: its loss is the cross-entropy against what the target itself said, and the divergence of its
distribution from the target's own, over the whole vocabulary, which keeps it near. The layers below, the last norm and
the vocabulary are frozen. The result is another model: its text may differ from the target's.
Knows rows and ids. Does not know: audio, bundles, files; the rules of Whisper, which the base is trained without.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specedge.export.training.draft_net import DraftNet
from specedge.export.training.head_nets import Block, HeadNet
from specedge.export.training.head_trainer import Batch, Counted, HeadPlan, HeadTrainer
from specedge.export.training.hidden_rows import HiddenText
from specedge.export.training.labels import IGNORE

__all__ = ["UnfrozenNet", "UnfrozenTrainer"]


class UnfrozenNet(HeadNet):
    """Heads, and the decoder's last layer that they read behind the frozen `norm`; `matrix` [n_vocab, d] makes the
    logits of the model itself. The rest is as in `HeadNet`."""

    def __init__(
        self,
        kind: str,
        n_heads: int,
        vocabulary: Tensor,
        block: Block | None,
        *,
        last: Block,
        norm: nn.LayerNorm,
        matrix: Tensor,
    ) -> None:
        super().__init__(kind, n_heads, vocabulary, block)
        self.last = last
        for name, value in (("norm_weight", norm.weight), ("norm_bias", norm.bias), ("matrix", matrix)):
            self.register_buffer(name, value.detach(), persistent=False)

    @property
    def slow(self) -> list[nn.Parameter]:
        """The last layer."""
        return list(self.last.parameters())

    def hidden(self, below: Tensor, features: Tensor) -> Tensor:
        """Last hidden rows [B, T, d] of what the last layer reads, over the encoder's output."""
        rows = self.last(below, features)
        return F.layer_norm(rows, rows.shape[-1:], self.get_buffer("norm_weight"), self.get_buffer("norm_bias"))

    def base_logits(self, rows: Tensor) -> Tensor:
        """Of the model itself, [N, n_vocab], for rows [N, d]."""
        return rows @ self.get_buffer("matrix").T


@dataclass(frozen=True, kw_only=True)
class _WholeBatch(Batch):
    """Besides: what the last layer reads, f32 [B, T, d], and the token after each row, i64 [B, T]."""

    below: Tensor
    said: Tensor


class UnfrozenTrainer(HeadTrainer[UnfrozenNet]):
    """As `HeadTrainer`, the model's own next token first in losses and `hit_rates`; `decoder` is the target's."""

    def __init__(
        self,
        plan: HeadPlan,
        net: UnfrozenNet,
        texts: Sequence[HiddenText],
        places: np.ndarray[Any, np.dtype[np.int64]],
        folder: Path,
        *,
        decoder: DraftNet,
    ) -> None:
        self._decoder = decoder.eval()
        super().__init__(plan, net, texts, places, folder)

    def _batch(self, texts: Sequence[HiddenText]) -> _WholeBatch:
        known = super()._batch(texts)
        n_rows = max(len(text.hidden) for text in texts)
        ids = np.zeros((len(texts), n_rows), np.int64)
        said = np.full(known.hidden.shape[:2], IGNORE, np.int64)
        for at, text in enumerate(texts):
            n = len(text.hidden)
            ids[at, :n] = text.ids[:n]
            asked = np.arange(text.n_prompt - 1, min(n, len(text.ids) - 1))
            said[at, asked] = np.array(text.ids)[asked + 1]
        features = torch.from_numpy(np.stack([text.features for text in texts]).astype(np.float32))
        with torch.no_grad():
            below = self._decoder.below_last(torch.from_numpy(ids), features)
        padded = F.pad(below, (0, 0, 0, known.hidden.shape[1] - n_rows))
        return _WholeBatch(
            hidden=known.hidden, features=features, labels=known.labels, below=padded, said=torch.from_numpy(said)
        )

    def _losses(self, batch: Batch) -> list[Counted]:
        if not isinstance(batch, _WholeBatch) or batch.features is None:
            raise TypeError("expected a batch of `_batch`")
        hidden = self.net.hidden(batch.below, batch.features)
        wanted = batch.said != IGNORE
        logits, said = self.net.base_logits(hidden[wanted]), batch.said[wanted]
        loss = F.cross_entropy(logits, said)
        if self.plan.kl_weight:
            own = F.log_softmax(self.net.base_logits(batch.hidden[wanted]), -1)
            loss = loss + self.plan.kl_weight * F.kl_div(
                F.log_softmax(logits, -1), own, reduction="batchmean", log_target=True
            )
        base = Counted(loss, (logits.detach().argmax(-1) == said).sum(), wanted.sum())
        return [base, *self._of_heads(hidden, batch)]
