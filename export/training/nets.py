"""Whisper's decoder and heads in torch.

The decoder is what `specedge train draft` trains: encoder and token table are frozen, so that a draft can share the
encoder with its target (Distil-Whisper, Gandhi et al. 2023, section 3, trains the token table; a few hours of audio say
a few thousand of the tokens, and a softmax over all of them would only push the others away). Heads are of the kinds
and names of `export.heads`: their vocabulary is the target's and frozen, a vocabulary matrix a head begins as a copy of
it, the block as the layer it is given, all other maps as the identity.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specedge.errors import UsageError
from specedge.runtime.options import BLOCK_KIND

from ..checkpoint import Checkpoint
from ..decoder_graph import PROJECTION, VOCABULARY
from ..heads import BLOCK
from ..layers import Weights

_HEADS = {
    "mtp-latent": "latent_heads.{}",
    "mtp-projection": "projection_heads.{}",
    "medusa-linear": "medusa_heads.{}.0.linear",
    "medusa-block": "medusa_heads.{}.0.linear",
}
IGNORE = -100  # the label of what is not to be learned, as torch's losses have it


class _Attention(nn.Module):
    """Whisper's attention over rows of width `d_source`; keys have no bias."""

    def __init__(self, d: int, n_head: int, d_source: int) -> None:
        super().__init__()
        self.n_head = n_head
        self.q_proj, self.out_proj = nn.Linear(d, d), nn.Linear(d, d)
        self.k_proj, self.v_proj = nn.Linear(d_source, d, bias=False), nn.Linear(d_source, d)

    def forward(self, x: Tensor, source: Tensor, *, causal: bool) -> Tensor:
        """`x` [B, T, d] over `source` [B, S, d]."""
        q, k, v = (
            part.unflatten(-1, (self.n_head, -1)).transpose(1, 2)
            for part in (self.q_proj(x), self.k_proj(source), self.v_proj(source))
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        out: Tensor = self.out_proj(attended.transpose(1, 2).flatten(-2))
        return out


class Block(nn.Module):
    """One decoder layer with Whisper's names, and no norm behind it; d_audio: of the encoder's output, if not `d`."""

    def __init__(self, d: int, n_head: int, n_ffn: int, d_audio: int | None = None) -> None:
        super().__init__()
        self.self_attn, self.encoder_attn = _Attention(d, n_head, d), _Attention(d, n_head, d_audio or d)
        self.self_attn_layer_norm, self.encoder_attn_layer_norm, self.final_layer_norm = (
            nn.LayerNorm(d) for _ in range(3)
        )
        self.fc1, self.fc2 = nn.Linear(d, n_ffn), nn.Linear(n_ffn, d)

    def forward(self, rows: Tensor, features: Tensor) -> Tensor:
        """Rows [B, T, d] of whole texts over the encoder's output [B, S, d_audio]."""
        y = self.self_attn_layer_norm(rows)
        rows = rows + self.self_attn(y, y, causal=True)
        rows = rows + self.encoder_attn(self.encoder_attn_layer_norm(rows), features, causal=False)
        out: Tensor = rows + self.fc2(F.gelu(self.fc1(self.final_layer_norm(rows))))
        return out


class HeadNet(nn.Module):
    """`n_heads` heads of `kind` over the rows `vocabulary` [n_tokens, d] of the target's vocabulary matrix.

    block: for medusa-block, the layer to begin from. `last` is the decoder's last layer where it learns too.
    """

    def __init__(self, kind: str, n_heads: int, vocabulary: Tensor, block: Block | None = None) -> None:
        super().__init__()
        self.kind, self.n_heads = kind, n_heads
        self.register_buffer("vocabulary", vocabulary)
        d = vocabulary.shape[1]
        self.block = block if kind == BLOCK_KIND else None
        self.last: nn.Module | None = None
        start = {"mtp-latent": torch.eye(d), "mtp-projection": vocabulary}.get(kind, torch.zeros(d, d))
        self.maps = nn.ModuleList(nn.Linear(d, len(start), bias=not kind.startswith("mtp")) for _ in range(n_heads))
        with torch.no_grad():
            for one in self.maps:
                one.weight.copy_(start)

    def unfreeze(self, decoder: DraftNet) -> None:
        """Let the last layer of the decoder learn, and no other part of it."""
        decoder.requires_grad_(False)
        self.last = decoder.layers[-1].requires_grad_(True)

    def rows(self, hidden: Tensor, features: Tensor | None) -> Tensor:
        """What heads read: `hidden` [B, T, d] itself, or behind the block, which needs the encoder's output."""
        if self.block is None or features is None:
            return hidden
        seen: Tensor = self.block(hidden, features)
        return seen

    def logits(self, rows: Tensor, head: int) -> Tensor:
        """Of one head, [N, n_tokens], for rows [N, d]."""
        mapped: Tensor = self.maps[head](rows)
        if self.kind == "mtp-projection":
            return mapped
        if self.kind != "mtp-latent":
            mapped = rows + F.silu(mapped)
        return mapped @ self.get_buffer("vocabulary").T

    def load_named(self, weights: Weights) -> None:
        """Take the weights of trained heads; where they have no bias it is 0."""
        with torch.no_grad():
            for name, mine in self.named_weights():
                mine.copy_(torch.from_numpy(weights.tensor(name)) if weights.has(name) else torch.zeros_like(mine))

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """The weights under the canonical names of `export.heads`."""
        for i, one in enumerate(self.maps):
            for part, value in one.named_parameters():
                yield f"{_HEADS[self.kind].format(i)}.{part}", value.detach()
        if self.block is not None:
            for name, value in self.block.named_parameters():
                yield f"{BLOCK}.{name}", value.detach()


_ROOT = "model.decoder"


class DraftNet(nn.Module):
    """A decoder of `n_layers` layers of width d, whose names are transformers' below model.decoder.

    table: float32 [n_vocab, d], the token embedding; matrix: the same for the logits, None where it is that one.
    """

    def __init__(
        self,
        n_layers: int,
        n_head: int,
        n_ffn: int,
        n_text_ctx: int,
        table: Tensor,
        matrix: Tensor | None = None,
        d_audio: int | None = None,
    ) -> None:
        super().__init__()
        d = table.shape[1]
        # Not in the state on disk: they are frozen, and the largest part of a small model.
        self.register_buffer("table", table, persistent=False)
        self.register_buffer("matrix", table if matrix is None else matrix, persistent=False)
        self.embed_positions = nn.Embedding(n_text_ctx, d)
        self.layers = nn.ModuleList(Block(d, n_head, n_ffn, d_audio) for _ in range(n_layers))
        self.layer_norm = nn.LayerNorm(d)

    def forward(self, ids: Tensor, features: Tensor) -> Tensor:
        """Rows [B, T, d] behind the last norm, of ids int64 [B, T] from position 0 on, over features [B, n_ctx, d]."""
        rows = self.get_buffer("table")[ids] + self.embed_positions.weight[: ids.shape[1]]
        for layer in self.layers:
            rows = layer(rows, features)
        out: Tensor = self.layer_norm(rows)
        return out

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
    """The decoder of a checkpoint, or a copy of `n_layers` of its layers.

    Raises CheckpointError for its weights, UsageError for layers that it has not.
    """
    spec = checkpoint.spec
    dims = spec.dims
    if n_layers is not None and not 1 <= n_layers <= dims.n_text_layer:
        raise UsageError(f"--layers {n_layers}: the decoder has {dims.n_text_layer}; expected as many or fewer")
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


def over_another_encoder(decoder: DraftNet, rows: Tensor, matrix: Tensor, shift: Tensor) -> DraftNet:
    """`decoder` with `rows` [n, d] as its token table, over an encoder whose output x the linear map `matrix` x +
    `shift`, [d, d_audio] and [d], makes into that of its own. A shift of keys moves all scores of a row alike, so that
    it changes nothing."""
    first = decoder.layers[0]
    net = DraftNet(
        len(decoder.layers),
        first.self_attn.n_head,
        first.fc1.out_features,
        decoder.embed_positions.num_embeddings,
        rows,
        d_audio=matrix.shape[1],
    )
    state = decoder.state_dict()
    for layer in range(len(decoder.layers)):
        keys, values = (f"layers.{layer}.encoder_attn.{part}_proj" for part in "kv")
        state[f"{values}.bias"] = state[f"{values}.bias"] + state[f"{values}.weight"] @ shift
        for name in (f"{keys}.weight", f"{values}.weight"):
            state[name] = state[name] @ matrix
    net.load_state_dict(state)
    return net
