"""Heads that guess the tokens after the next one from the decoder's last hidden row: kinds, names, shapes and graph.

medusa-linear   residual blocks x + SiLU(W x + b) on the row, then the vocabulary (Whisper-Medusa, section II);
                in the published layout head 0 takes the place of the model's own ("base head")
medusa-block    one more decoder layer, fed after the last norm, then heads as above; the model's own logits stay
mtp-latent      one linear map a head, then the vocabulary (Raj et al., Faster Speech-LLaMA, section III, fig. 2b)
mtp-projection  a vocabulary matrix a head (the same, fig. 2a)

Canonical names, i from 0 for the head that guesses the token after the next one: medusa_heads.i.j.linear.{weight,bias},
medusa_block.* as a Whisper decoder layer, latent_heads.i.weight (bias optional), projection_heads.i.weight;
base_head.j.linear.* for a base head.

The graph runs between two passes of the decoder, on the one row that guesses are wanted from, so it cannot touch the
decoder's bits. All heads' rows go through one product with the vocabulary, whose bytes are the decoder's.

in   hidden f32 [1, n_rows, n_text_state]: the rows since the last call, of which guesses are made from the last;
     n_choices i64 [1]: how many guesses of each head
     medusa-block: past_len i32 [1], total_len i32 [], self_k_0, self_v_0 and cross_* of layer 0, as in `decoder_graph`
out  ids i64 [n_heads, n_choices], probs f32 [n_heads, n_choices]: the likeliest tokens of each head, best first;
     medusa-block: new_self_k_0, new_self_v_0, bound to the same buffers as the inputs

The block's cross-attention keys and values are those of the graph medusa-block-kv, in float32 whatever the precision:
for one row, rounding costs more than it saves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from specedge.errors import CheckpointError, UsageError
from specedge.runtime.bundle.manifest import Dims
from specedge.runtime.options import BLOCK_KIND, BLOCK_KV_GRAPH

from .decoder_graph import (
    COLUMNS,
    PROJECTION,
    VOCABULARY,
    cross_attention,
    define_vocabulary,
    padded_vocabulary,
    self_attention,
    vocabulary_name,
    vocabulary_product,
)
from .encoder_graph import build_cross_kv
from .layers import (
    BASE_HEAD,
    LinearKind,
    Precision,
    Weights,
    bias_of,
    feed_forward,
    in_parts,
    linear,
    residual_block,
    residual_norm,
    rows_of,
    silu,
)
from .onnx_builder import GraphBuilder
from .registered import find

FLOAT = TensorProto.FLOAT
MAX_HEADS = 20
BLOCK = "medusa_block"
PROJECTION_KIND = "mtp-projection"
_PUBLISHED_KINDS = {"base_head": "medusa-linear", "medusa_block": "medusa-block"}


@dataclass(frozen=True, kw_only=True)
class HeadsSpec:
    """What a set of heads is.

    kind: of options.HEAD_KINDS; n_heads: that guess; n_layers: residual blocks in each; replaces_base: whether there is
    a base head besides. Raises CheckpointError for numbers that cannot be.
    """

    kind: str
    n_heads: int
    n_layers: int = 1
    replaces_base: bool = False

    def __post_init__(self) -> None:
        if not (1 <= self.n_heads <= MAX_HEADS and 1 <= self.n_layers <= MAX_HEADS):
            raise CheckpointError(
                f"{self.kind}: {self.n_heads} heads of {self.n_layers} layers; expected 1 to {MAX_HEADS} of both"
            )


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
    kind = _PUBLISHED_KINDS.get(str(found))
    if kind is None:
        raise CheckpointError(f"{where}: medusa_heads_type {found!r}; expected {' or '.join(_PUBLISHED_KINDS)}")
    n_heads, n_layers = config["medusa_num_heads"], config.get("medusa_num_layers", 1)
    width = config.get("medusa_hidden_size", d)
    if not type(n_heads) is type(n_layers) is int or width != d:
        raise CheckpointError(
            f"{where}: medusa_num_heads {n_heads!r}, medusa_num_layers {n_layers!r} and medusa_hidden_size {width!r}; "
            f"expected whole numbers, the last one d_model, {d}"
        )
    return HeadsSpec(kind=kind, n_heads=n_heads, n_layers=n_layers, replaces_base=kind == "medusa-linear")


Shapes = list[tuple[str, tuple[int, ...]]]


def head_shapes(spec: HeadsSpec, d: int, n_ffn: int, n_vocab: int) -> Shapes:
    """Canonical name and shape of every weight of the heads, biases of latent maps aside; `n_vocab` rows of their own
    vocabularies."""
    names = [f"{BASE_HEAD}.{j}" for j in range(spec.n_layers if spec.replaces_base else 0)]
    if spec.kind.startswith("medusa-"):
        names += [f"medusa_heads.{i}.{j}" for i in range(spec.n_heads) for j in range(spec.n_layers)]
    found = layer_shapes(BLOCK, ("self_attn", "encoder_attn"), d, n_ffn) if spec.kind == BLOCK_KIND else []
    for name in names:
        found += pair_shapes(f"{name}.linear", (d, d))
    if spec.kind == "mtp-latent":
        found += [(f"latent_heads.{i}.weight", (d, d)) for i in range(spec.n_heads)]
    if spec.kind == PROJECTION_KIND:
        found += [(f"projection_heads.{i}.weight", (n_vocab, d)) for i in range(spec.n_heads)]
    return found


def layer_shapes(at: str, attentions: Sequence[str], d: int, n_ffn: int, d_audio: int | None = None) -> Shapes:
    """Name and shape of every weight of the Whisper layer called `at`; d_audio: of the encoder's output, if not `d`."""
    found: Shapes = []
    for attention in attentions:
        d_read = d if d_audio is None or attention == "self_attn" else d_audio
        found += pair_shapes(f"{at}.{attention}_layer_norm", (d,))
        found += pair_shapes(f"{at}.{attention}.q_proj", (d, d))
        found.append((f"{at}.{attention}.k_proj.weight", (d, d_read)))  # Whisper's keys have no bias
        found += pair_shapes(f"{at}.{attention}.v_proj", (d, d_read))
        found += pair_shapes(f"{at}.{attention}.out_proj", (d, d))
    found += pair_shapes(f"{at}.final_layer_norm", (d,))
    return [*found, *pair_shapes(f"{at}.fc1", (n_ffn, d)), *pair_shapes(f"{at}.fc2", (d, n_ffn))]


def pair_shapes(at: str, weight: tuple[int, ...]) -> Shapes:
    """Name and shape of a weight and its bias."""
    return [(f"{at}.weight", weight), (f"{at}.bias", weight[:1])]


def write_heads(folder: Path, sets: Sequence[Heads], dims: Dims, decoder: Weights, precision: Precision) -> list[str]:
    """Write the graphs of all `sets` of heads beside the decoder graph in `folder`, and return their names.

    decoder: the model's own weights; dims: of the model. Raises UsageError for two of a kind, OSError, CheckpointError.
    """
    written: list[str] = []
    for heads in sets:
        kind = heads.spec.kind
        if kind in written:
            raise UsageError(f"two sets of heads of the kind {kind}: a bundle takes one of each")
        with GraphBuilder(folder, kind) as g:
            _build(g, heads, dims, decoder, precision)
        written.append(kind)
        if kind == BLOCK_KIND:
            with GraphBuilder(folder, BLOCK_KV_GRAPH) as g:
                build_cross_kv(g, dims, heads.weights, precision.cross_kv, int8_attention=False, layers=[BLOCK])
            written.append(BLOCK_KV_GRAPH)
    return written


def _build(g: GraphBuilder, heads: Heads, dims: Dims, decoder: Weights, precision: Precision) -> None:
    kind, weights = precision.decoder, heads.weights
    hidden = g.input("hidden", FLOAT, [1, "n_rows", dims.n_text_state])
    n_choices = g.input("n_choices", TensorProto.INT64, [1])
    last = _block(g, hidden, dims, weights, kind) if heads.spec.kind == BLOCK_KIND else _last(g, hidden)
    if heads.spec.kind == PROJECTION_KIND:
        logits, tokens = find("projection")(g, last, heads, dims, kind)
    else:
        logits, tokens = _by_shared_vocabulary(g, _mapped(g, last, heads, kind), heads, dims, decoder, kind)
    shares = g.node("Softmax", [logits], axis=-1)
    probs, places = g.nodes("TopK", [shares, n_choices], outputs=2, axis=-1)
    ids = g.node("Gather", [g.const("tokens", tokens), places])
    g.output(ids, "ids", TensorProto.INT64, [heads.spec.n_heads, "n_choices"])
    g.output(probs, "probs", FLOAT, [heads.spec.n_heads, "n_choices"])
    g.save()


def _last(g: GraphBuilder, rows: str) -> str:
    """The last of the rows, f32 `[1, 1, n_text_state]`."""
    return g.node("Slice", [rows, g.ints(-1), g.ints(np.iinfo(np.int64).max), g.ints(1)])


def _block(g: GraphBuilder, hidden: str, dims: Dims, weights: Weights, kind: LinearKind) -> str:
    """The last row of the extra decoder layer over new rows, without a norm behind it."""
    g.input("past_len", TensorProto.INT32, [1])
    g.input("total_len", TensorProto.INT32, [])
    y, residual = residual_norm(g, (), hidden, weights, f"{BLOCK}.self_attn_layer_norm")
    branch = self_attention(g, y, dims, weights, BLOCK, 0, kind)
    branch = (_last(g, branch[0]), *branch[1:])  # behind it the bias, if it is a part of its own
    y, residual = residual_norm(g, branch, _last(g, residual), weights, f"{BLOCK}.encoder_attn_layer_norm")
    branch = cross_attention(g, y, dims, weights, BLOCK, 0, kind, int8_attention=False)
    y, residual = residual_norm(g, branch, residual, weights, f"{BLOCK}.final_layer_norm")
    return g.node("Sum", [*feed_forward(g, y, weights, BLOCK, kind), residual])


def _mapped(g: GraphBuilder, last: str, heads: Heads, kind: LinearKind) -> str:
    """The heads' rows f32 `[1, n_heads, n_text_state]` of one row `[1, 1, n_text_state]`."""
    spec, weights = heads.spec, heads.weights
    is_latent = spec.kind == "mtp-latent"
    names = [f"latent_heads.{i}" if is_latent else f"medusa_heads.{i}.0.linear" for i in range(spec.n_heads)]
    # The first maps of all heads have one input: one product.
    matrix = np.concatenate([weights.tensor(f"{name}.weight") for name in names])
    d = matrix.shape[1]
    biases = [bias_of(weights, name, d) for name in names]
    maps = linear(g, last, "first_maps", matrix, np.concatenate(biases), kind)
    mapped = g.node("Reshape", [maps, g.ints(1, spec.n_heads, d)])
    if is_latent:
        return mapped
    mapped = g.node("Add", [last, silu(g, mapped)])
    if spec.n_layers == 1:
        return mapped
    parts = g.nodes("Split", [mapped], outputs=spec.n_heads, axis=1, num_outputs=spec.n_heads)
    for j in range(1, spec.n_layers):
        parts = [residual_block(g, part, weights, f"medusa_heads.{i}.{j}", kind) for i, part in enumerate(parts)]
    return g.node("Concat", parts, axis=1)


def _by_shared_vocabulary(
    g: GraphBuilder, mapped: str, heads: Heads, dims: Dims, decoder: Weights, kind: LinearKind
) -> tuple[str, NDArray[np.int64]]:
    """Logits `[n_heads, n]` by the model's vocabulary, or the heads' part of it, and the token of each column."""
    if heads.tokens is not None:
        tokens, source = heads.tokens, "head_vocabulary"
        matrix = rows_of(decoder, PROJECTION if decoder.has(PROJECTION) else VOCABULARY, tokens)
        if kind == "fp32":
            g.const(source, matrix)
        else:
            sized = replace(dims, n_vocab=len(tokens))
            define_vocabulary(g, sized, decoder, lambda: in_parts(matrix), source, kind)
    else:
        tokens = np.arange(dims.n_vocab)
        source = vocabulary_name(decoder, kind)
        written = onnx.load(str(g.path.parent / "decoder.onnx"), load_external_data=False)
        for tensor in written.graph.initializer:
            if tensor.name in (source, f"{source}.scales", f"{source}{COLUMNS}"):
                g.borrow(tensor)
    n_columns = padded_vocabulary(replace(dims, n_vocab=len(tokens)), kind)
    logits = vocabulary_product(g, mapped, source, dims.n_text_state, n_columns, kind)
    if n_columns > len(tokens):
        logits = g.node("Slice", [logits, g.ints(0), g.ints(len(tokens)), g.ints(2)])
    return g.node("Reshape", [logits, g.ints(heads.spec.n_heads, len(tokens))]), tokens.astype(np.int64)
