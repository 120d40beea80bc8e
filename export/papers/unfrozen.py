"""Heads trained together with the decoder's last layer, as Whisper-Medusa trains its linear heads (section II).

The model's own next token is then head 1 of n_heads + 1: cross-entropy against what the target said, and the divergence
from the target's own distribution over the whole vocabulary, which keeps it near. The layers below, the last norm and
the vocabulary are frozen. The result is another model: its text may differ from the target's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from ..checkpoint import HEADS_FILE, Checkpoint
from ..training.checkpoint_files import UNFROZEN, write_checkpoint
from ..training.early_stopping import Report
from ..training.features import Course, HiddenText
from ..training.nets import IGNORE, Block, DraftNet, HeadNet, decoder_of
from .train_heads import Batch, Counted, HeadPlan, HeadTrainer, net_of, report, token_table, write_heads


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
        places: NDArray[np.int64],
        folder: Path,
        *,
        decoder: DraftNet,
    ) -> None:
        self._decoder = decoder.eval()
        super().__init__(plan, net, texts, places, folder)

    def move(self, device: str) -> None:
        super().move(device)
        self._decoder.to(self._device)

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
        features = torch.as_tensor(np.stack([text.features for text in texts]).astype(np.float32))
        with torch.no_grad():
            below = self._decoder.below_last(torch.as_tensor(ids), features)
        padded = F.pad(below, (0, 0, 0, known.hidden.shape[1] - n_rows))
        return _WholeBatch(
            hidden=known.hidden, features=features, labels=known.labels, below=padded, said=torch.as_tensor(said)
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


def train_unfrozen(
    course: Course,
    out: Path,
    plan: HeadPlan,
    checkpoint: Checkpoint,
    texts: Sequence[HiddenText],
    tokens: Sequence[int],
) -> Report:
    """Train the last layer too, and write a new checkpoint with the heads beside it."""
    dims = checkpoint.spec.dims
    decoder = decoder_of(checkpoint)
    frozen = net_of(checkpoint, plan.kind, plan.n_heads, tokens)
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
    trainer.run_or_go_on(f"train {plan.kind}", course.notify, course.device)
    name = f"model.decoder.layers.{dims.n_text_layer - 1}"
    write_checkpoint(
        out,
        checkpoint,
        {f"{name}.{part}": value.detach().numpy() for part, value in trainer.best.last.named_parameters()},
        n_layers=dims.n_text_layer,
        mark=UNFROZEN,
        target=checkpoint.spec.source.id,
        beside=lambda folder: write_heads(folder / HEADS_FILE, trainer.best, tokens),
    )
    return report(out, trainer, len(tokens), agreement=trainer.hit_rates[0])
