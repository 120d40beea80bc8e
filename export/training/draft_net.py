"""Whisper's decoder in torch, over an encoder's output that is given: what `specedge train draft` trains.

The encoder is frozen, as in Distil-Whisper (Gandhi et al. 2023, arXiv 2311.00430, section 3), so that a draft can share
it with its target and its output is computed once for all steps. The token table is frozen too, unlike there: a few
hours say a few thousand of the tokens, and a softmax over all of them would only push the others away.
Does not know: losses, targets, files.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from specedge.export.checkpoint import Checkpoint
from specedge.export.decoder_graph import PROJECTION, VOCABULARY
from specedge.export.training.head_nets import Block

__all__ = ["DraftNet", "decoder_of", "spaced_layers", "vocabulary_matrix"]

_ROOT = "model.decoder"


class DraftNet(nn.Module):
    """A decoder of `n_layers` layers of width d, whose names are transformers' below model.decoder.

    table: float32 [n_vocab, d], the token embedding; matrix: the same for the logits, None where it is that one.
    """

    def __init__(
        self, n_layers: int, n_head: int, n_ffn: int, n_text_ctx: int, table: Tensor, matrix: Tensor | None = None
    ) -> None:
        super().__init__()
        d = table.shape[1]
        # Not in the state on disk: they are frozen, and the largest part of a small model.
        self.register_buffer("table", table, persistent=False)
        self.register_buffer("matrix", table if matrix is None else matrix, persistent=False)
        self.embed_positions = nn.Embedding(n_text_ctx, d)
        self.layers = nn.ModuleList(Block(d, n_head, n_ffn) for _ in range(n_layers))
        self.layer_norm = nn.LayerNorm(d)

    def forward(self, ids: Tensor, features: Tensor) -> Tensor:
        """Rows [B, T, d] behind the last norm, of ids int64 [B, T] from position 0 on, over features [B, n_ctx, d]."""
        out: Tensor = self.layer_norm(self.layers[-1](self.below_last(ids, features), features))
        return out

    def below_last(self, ids: Tensor, features: Tensor) -> Tensor:
        """The rows [B, T, d] that the last layer reads, of the same."""
        rows = self.get_buffer("table")[ids] + self.embed_positions.weight[: ids.shape[1]]
        for layer in list(self.layers)[:-1]:
            rows = layer(rows, features)
        return rows

    def logits(self, rows: Tensor) -> Tensor:
        """Of rows [N, d]: [N, n_vocab], without any rules."""
        return rows @ self.get_buffer("matrix").T

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """The trained weights under transformers' names."""
        for name, value in self.named_parameters():
            yield f"{_ROOT}.{name}", value.detach()


def spaced_layers(n: int, of: int) -> list[int]:
    """Which `n` of a decoder's `of` layers a shallower one begins with: evenly spaced, first and last among them, one
    alone the last (Distil-Whisper, section 3.1)."""
    return [of - 1] if n == 1 else [round(at * (of - 1) / (n - 1)) for at in range(n)]


def vocabulary_matrix(checkpoint: Checkpoint) -> Tensor:
    """What a checkpoint's last rows are multiplied with for logits: float32 [n_vocab, d]. Raises CheckpointError."""
    return torch.from_numpy(checkpoint.tensor(PROJECTION if checkpoint.has(PROJECTION) else VOCABULARY))


def decoder_of(checkpoint: Checkpoint, n_layers: int | None = None) -> DraftNet:
    """The decoder of a checkpoint, or a copy of `n_layers` of its layers. Raises CheckpointError for its weights."""
    spec = checkpoint.spec
    dims = spec.dims
    kept = spaced_layers(dims.n_text_layer if n_layers is None else n_layers, dims.n_text_layer)
    net = DraftNet(
        len(kept),
        dims.n_text_head,
        spec.n_text_ffn,
        dims.n_text_ctx,
        torch.from_numpy(checkpoint.tensor(VOCABULARY)),
        vocabulary_matrix(checkpoint) if checkpoint.has(PROJECTION) else None,
    )
    for at, layer in enumerate(net.layers):
        name = f"{_ROOT}.layers.{kept[at]}"
        layer.load_state_dict(
            {part: torch.from_numpy(checkpoint.tensor(f"{name}.{part}")) for part in layer.state_dict()}
        )
    norm = {part: torch.from_numpy(checkpoint.tensor(f"{_ROOT}.layer_norm.{part}")) for part in ("weight", "bias")}
    net.layer_norm.load_state_dict(norm)
    positions = checkpoint.tensor(f"{_ROOT}.embed_positions.weight")
    net.embed_positions.load_state_dict({"weight": torch.from_numpy(positions)})
    return net
