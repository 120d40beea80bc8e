"""Heads that guess the tokens after the next one from the decoder's last hidden row: their kinds, names and shapes.

medusa-linear   residual blocks x + SiLU(W x + b) on the row, then the vocabulary (Whisper-Medusa, algorithms 1.4);
                in the published layout head 0 takes the place of the model's own ("base head")
medusa-block    one more decoder layer, fed after the last norm, then heads as above; the model's own logits stay
mtp-latent      one linear map a head, then the vocabulary (Faster Speech-LLaMA, algorithms 1.5)
mtp-projection  a vocabulary matrix a head

Canonical names, i from 0 for the head that guesses the token after the next one: medusa_heads.i.j.linear.{weight,bias},
medusa_block.* as a Whisper decoder layer, latent_heads.i.weight (bias optional), projection_heads.i.weight;
base_head.j.linear.* for a base head. Does not know: files, graphs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.errors import CheckpointError
from specedge.runtime.options import BLOCK_KIND, HEAD_KINDS

from .layers import Weights

__all__ = ["BASE_HEAD", "BLOCK", "Heads", "HeadsSpec", "MAX_HEADS", "head_shapes", "heads_in_config"]

MAX_HEADS = 20
BASE_HEAD = "base_head"
BLOCK = "medusa_block"
_PUBLISHED_KINDS = {"base_head": "medusa-linear", "medusa_block": "medusa-block"}


@dataclass(frozen=True, kw_only=True)
class HeadsSpec:
    """What a set of heads is.

    kind: of HEAD_KINDS; n_heads: that guess; n_layers: residual blocks in each; replaces_base: whether there is a base
    head besides; own_vocabulary: whether each has a vocabulary matrix of its own. Raises CheckpointError for a kind or
    numbers that cannot be.
    """

    kind: str
    n_heads: int
    n_layers: int = 1
    replaces_base: bool = False
    own_vocabulary: bool = False

    def __post_init__(self) -> None:
        if self.kind not in HEAD_KINDS:
            raise CheckpointError(f"heads of kind {self.kind!r}: expected {' or '.join(HEAD_KINDS)}")
        if not 1 <= self.n_heads <= MAX_HEADS:
            raise CheckpointError(f"{self.kind}: {self.n_heads} heads; expected 1 to {MAX_HEADS}")
        if not 1 <= self.n_layers <= MAX_HEADS:
            raise CheckpointError(f"{self.kind}: {self.n_layers} layers in a head; expected 1 to {MAX_HEADS}")


@dataclass(frozen=True, kw_only=True)
class Heads:
    """A set of heads with its weights under canonical names.

    tokens: int64, the token of each row of a head's vocabulary, rising; None for all of them.
    """

    spec: HeadsSpec
    weights: Weights
    tokens: NDArray[np.int64] | None = None


def heads_in_config(config: Mapping[str, Any], d: int, where: str) -> HeadsSpec | None:
    """The heads of a checkpoint in whisper-medusa's layout, of width `d`; None for others. Raises CheckpointError."""
    if "medusa_num_heads" not in config:
        return None
    found = config.get("medusa_heads_type", "base_head")
    kind = _PUBLISHED_KINDS.get(found) if isinstance(found, str) else None
    if kind is None:
        raise CheckpointError(
            f"{where}: medusa_heads_type {found!r} is not supported; expected {' or '.join(_PUBLISHED_KINDS)}"
        )
    numbers = [config.get("medusa_num_heads"), config.get("medusa_num_layers", 1), config.get("medusa_hidden_size", d)]
    for value in numbers:
        if type(value) is not int:
            raise CheckpointError(f"{where}: medusa_num_heads and its like must be whole numbers, found {value!r}")
    n_heads, n_layers, width = numbers
    if width != d:
        raise CheckpointError(f"{where}: medusa_hidden_size is {width}; expected d_model, {d}")
    return HeadsSpec(kind=kind, n_heads=int(n_heads), n_layers=int(n_layers), replaces_base=kind == "medusa-linear")


def head_shapes(spec: HeadsSpec, d: int, n_ffn: int, n_vocab: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Canonical name and shape of every weight of the heads, biases of latent maps aside; `n_vocab` rows of their own
    vocabularies."""
    for j in range(spec.n_layers if spec.replaces_base else 0):
        yield from _pair(f"{BASE_HEAD}.{j}.linear", (d, d))
    if spec.kind == BLOCK_KIND:
        for attention in ("self_attn", "encoder_attn"):
            yield from _pair(f"{BLOCK}.{attention}_layer_norm", (d,))
            yield from _pair(f"{BLOCK}.{attention}.q_proj", (d, d))
            yield f"{BLOCK}.{attention}.k_proj.weight", (d, d)
            yield from _pair(f"{BLOCK}.{attention}.v_proj", (d, d))
            yield from _pair(f"{BLOCK}.{attention}.out_proj", (d, d))
        yield from _pair(f"{BLOCK}.final_layer_norm", (d,))
        yield from _pair(f"{BLOCK}.fc1", (n_ffn, d))
        yield from _pair(f"{BLOCK}.fc2", (d, n_ffn))
    for i in range(spec.n_heads):
        if spec.kind.startswith("medusa-"):
            for j in range(spec.n_layers):
                yield from _pair(f"medusa_heads.{i}.{j}.linear", (d, d))
        if spec.kind == "mtp-latent":
            yield f"latent_heads.{i}.weight", (d, d)
        if spec.own_vocabulary:
            yield f"projection_heads.{i}.weight", (n_vocab, d)


def _pair(at: str, weight: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{at}.weight", weight
    yield f"{at}.bias", weight[:1]
