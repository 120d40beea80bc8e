"""Guesses of later tokens, learned beside the decoder, so that its last hidden rows say what comes behind the next one.

Heads of a frozen decoder can only read what is there, and a decoder that was trained to say the next token keeps little
else. Trained together (Raj et al., Faster Speech-LLaMA: latent heads, of which later ones weigh 0.2) it keeps more. The
maps are no part of a checkpoint; `specedge train heads` makes those that are used, of any kind, for the finished model.

This module knows hidden rows and targets. It does not know audio, nor what next tokens cost in quality.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specedge.export.training.labels import IGNORE

__all__ = ["Ahead"]

_LATER_WEIGHT = 0.2


class Ahead(nn.Module):
    """`n_ahead` maps [d, d] without bias, first the identity: map k guesses the token k + 1 places behind the next."""

    def __init__(self, n_ahead: int, d: int) -> None:
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(d, d, bias=False) for _ in range(n_ahead))
        for one in self.maps:
            nn.init.eye_(one.weight)

    def loss(self, hidden: Tensor, vocabulary: Tensor, targets: Tensor) -> Tensor:
        """The weighted sum of the maps' mean cross-entropies.

        `hidden` [B, L, d]; `vocabulary` [n_rows, d], which learns nothing here; `targets` int64 [B, L], the next token
        at each row or IGNORE.
        """
        total = torch.zeros(())
        vocabulary = vocabulary.detach()
        for at, one in enumerate(self.maps):
            later = targets[:, at + 1 :]
            wanted = (later != IGNORE) & (targets[:, : later.shape[1]] != IGNORE)
            if not wanted.any():
                continue
            logits = one(hidden[:, : later.shape[1]][wanted]) @ vocabulary.T
            total = total + _LATER_WEIGHT * F.cross_entropy(logits.float(), later[wanted])
        return total
