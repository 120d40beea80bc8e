"""The decoder graph: `n_rows` token rows of one text in a pass, for prefill, plain decoding and verification alike.

in   ids, positions i64 [1, n_rows]; logit_rows i64 [n_logit_rows] picks the rows whose logits are wanted;
     past_len i32 [1] = rows in the cache after the pass minus one, total_len i32 [] = rows after the pass;
     self_k_i, self_v_i f32 [1, n_head, n_slots, head_dim]: the text's own keys and values, written in place;
     the cross-attention tensors of `encoder_graph.build_cross_kv`; in int8 and in a draft cross_bias f32
     [1, 1, 1, n_audio_ctx], which is added to the scores: 0, or the logarithm of the positions that a state stands for
out  logits f32 [1, n_logit_rows, n_columns], the first n_vocab columns count (`padded_vocabulary`);
     hidden f32 [1, n_rows, n_text_state], after the final norm;
     new_self_k_i, new_self_v_i: bind them to the same buffers as the inputs

A row's bits depend on its own prefix only, provided that the numbers of rows and of logit rows are even
(`runtime.engine` pads). The embedding shares the bytes of the vocabulary matrix. Suppression and timestamp rules are
not in the graph: they depend on the accepted prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from specedge.runtime.bundle.manifest import Dims

from .layers import (
    BASE_HEAD,
    ROW_STEP,
    SMALLEST_SCALE,
    LinearKind,
    Weights,
    biased_linear,
    branch_of,
    feed_forward,
    fused_projection,
    linear,
    middle,
    parts_of,
    quantize_few_rows,
    residual_blocks,
    residual_norm,
    round_rows,
    scale_few_rows,
)
from .onnx_builder import CONTRIB, Dim, GraphBuilder

FLOAT = TensorProto.FLOAT
VOCABULARY = "model.decoder.embed_tokens.weight"
PROJECTION = "proj_out.weight"
PROJECTION_SCALES = "projection.scales"
NORMS = ("model.decoder.layer_norm", "model.decoder.norm")  # before the vocabulary, of Whisper and of speech LLMs
LARGEST_LEVEL = 16  # of a column or channel, in medians, that is levelled
COLUMNS = ".columns"  # behind the name of a rounded vocabulary: its columns' scales
VOCABULARY_MULTIPLE = 16
LARGEST_PROBABILITY = 255.0  # the top attention weight of a row becomes this uint8
# A sink takes exp(NO_SINK - maximum) = 0 of a row's attention. With one, ONNX Runtime leaves its flash attention out,
# whose sums run over the rows behind a row too: in another order where four lanes are summed at a time (Arm, SSE).
NO_SINK = -1e30
FARTHEST_SCORE = 30.0  # below the top score; exp(-30) of the top weight is far from the smallest uint8


def build_decoder(
    g: GraphBuilder,
    dims: Dims,
    weights: Weights,
    kind: LinearKind,
    *,
    int8_attention: bool,
    is_draft: bool = False,
) -> None:
    """Write Whisper's text decoder into `g`; vocabulary matrix in int8 with a scale a row unless `kind` is fp32.

    is_draft: logits by a copy of it in 4 bits, and cross_bias beside float32 keys: nobody needs its rows exact.
    """
    root = "model.decoder"
    ids = g.input("ids", TensorProto.INT64, [1, "n_rows"])
    positions = g.input("positions", TensorProto.INT64, [1, "n_rows"])
    logit_rows = g.input("logit_rows", TensorProto.INT64, ["n_logit_rows"])
    g.input("past_len", TensorProto.INT32, [1])
    g.input("total_len", TensorProto.INT32, [])
    table = g.const(f"{root}.positions", weights.tensor(f"{root}.embed_positions.weight"))
    x = g.node("Add", [embed(g, dims, weights, ids, kind), g.node("Gather", [table, positions])])
    branch: tuple[str, ...] = ()
    residual = x
    bias = g.input("cross_bias", FLOAT, [1, 1, 1, "n_audio_ctx"]) if int8_attention or is_draft else ""
    if is_draft:  # for each row
        n_rows = g.node("Concat", [g.ints(1, 1), g.node("Shape", [ids], start=1), g.ints(1)], axis=0)
        bias = g.node("Expand", [bias, n_rows])
    for i in range(dims.n_text_layer):
        name = f"{root}.layers.{i}"
        y, residual = residual_norm(g, branch, residual, weights, f"{name}.self_attn_layer_norm")
        branch = self_attention(g, y, dims, weights, name, i, kind)
        y, residual = residual_norm(g, branch, residual, weights, f"{name}.encoder_attn_layer_norm")
        branch = cross_attention(g, y, dims, weights, name, i, kind, int8_attention=int8_attention, bias=bias)
        y, residual = residual_norm(g, branch, residual, weights, f"{name}.final_layer_norm")
        branch = feed_forward(g, y, weights, name, kind)
    hidden, _ = residual_norm(g, branch, residual, weights, f"{root}.layer_norm")
    g.output(hidden, "hidden", FLOAT, [1, "n_rows", dims.n_text_state])
    wanted = g.node("Gather", [hidden, logit_rows], axis=1)
    wanted = residual_blocks(g, wanted, weights, BASE_HEAD, kind)  # in Medusa-Linear alone (`heads`)
    if is_draft:
        rows = weights.tensor(VOCABULARY)
        padding = np.zeros((padded_vocabulary(dims, kind) - len(rows), rows.shape[1]), np.float32)
        logits = linear(g, wanted, "vocabulary.blocks", np.concatenate([rows, padding]), None, "block4")
    else:
        logits = project_to_vocabulary(g, wanted, dims, weights, kind)
    g.output(logits, "logits", FLOAT, [1, "n_logit_rows", padded_vocabulary(dims, kind)])
    g.save()


def padded_vocabulary(dims: Dims, kind: LinearKind) -> int:
    """Rows of the vocabulary matrix as written: a multiple of 16 unless `kind` is fp32.

    ONNX Runtime finds the parts of packed weights by aligning addresses to 64 bytes. In a file of packed weights, which
    other programs may make of a bundle, that fails for all that follows an odd-sized tensor, and the scales of 51865
    rows are one (1.31: wrong logits, no error).
    """
    return dims.n_vocab if kind == "fp32" else -(-dims.n_vocab // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE


def embed(g: GraphBuilder, dims: Dims, weights: Weights, ids: str, kind: LinearKind) -> str:
    """Token rows f32 `[1, n_ids, n_text_state]`, by the vocabulary matrix, which this writes."""
    if kind == "fp32":
        return g.node("Gather", [g.const("vocabulary", weights.tensor(VOCABULARY)), ids])
    define_vocabulary(g, dims, weights, lambda: parts_of(weights, VOCABULARY), "vocabulary", kind)
    rounded = g.node("Cast", [g.node("Gather", ["vocabulary", ids])], to=FLOAT)
    level = g.node("Mul", [rounded, g.node("Gather", ["vocabulary.scales", ids])])
    return g.node("Mul", [level, f"vocabulary{COLUMNS}"])


def define_vocabulary(
    g: GraphBuilder,
    dims: Dims,
    weights: Weights,
    parts: Callable[[], Iterable[NDArray[np.float32]]],
    name: str,
    kind: LinearKind,
) -> None:
    """Write a matrix `[n_vocab, n_text_state]`, of which `parts` gives some rows after another, in int8 with one scale
    a row, and one a column: the initializers `name`, `name`.scales, `name`.columns. weights: of the decoder."""
    scales = np.ones((padded_vocabulary(dims, kind), 1), np.float32)
    columns = column_scales(weights, parts())

    def rounded() -> Iterator[NDArray[np.int8]]:
        start = 0
        for rows in parts():
            part, steps = round_rows(rows / columns)
            scales[start : start + len(part), 0] = steps
            start += len(part)
            yield part
        yield np.zeros((len(scales) - start, dims.n_text_state), np.int8)

    g.const_in_parts(name, (len(scales), dims.n_text_state), np.dtype(np.int8), rounded())
    g.const(f"{name}.scales", scales)
    g.const(f"{name}{COLUMNS}", columns)


def column_scales(weights: Weights, parts: Iterable[NDArray[np.float32]]) -> NDArray[np.float32]:
    """What the columns of a vocabulary matrix are divided by before its rows are rounded, `[n_text_state]`.

    In tiny.en one column of 384 is the largest of 96 % of the rows, and by its step the others lose 6 %. In base one
    channel of the last norm is 27 times as loud as others, and takes the steps of the rows that meet the matrix. So
    columns are divided by their peaks and multiplied by the loudness of their channels, as far as gain and shift tell
    it: SmoothQuant (Xiao et al. 2023, eq. 4) without a calibration. Columns count more, for they have 63 steps and
    channels 127. Errors of tokens' probabilities (KL) of the two decoders: 0.50 and 0.62 of what they are without.
    """
    norm = next(name for name in NORMS if weights.has(f"{name}.weight"))
    gain = weights.tensor(f"{norm}.weight")
    shift = weights.tensor(f"{norm}.bias") if weights.has(f"{norm}.bias") else np.zeros_like(gain)
    peaks = np.max([np.abs(rows).max(axis=0) for rows in parts], axis=0)
    columns, channels = (
        np.clip(x / max(np.median(x), SMALLEST_SCALE), 1 / LARGEST_LEVEL, LARGEST_LEVEL)
        for x in (peaks, np.hypot(gain, shift))
    )
    found: NDArray[np.float32] = (columns**0.75 / channels**0.25).astype(np.float32)
    return found


def project_to_vocabulary(g: GraphBuilder, x: str, dims: Dims, weights: Weights, kind: LinearKind) -> str:
    """Logits of the rows `x`, by the token embedding or, where it is not tied, a matrix of its own."""
    source = vocabulary_name(weights, kind)
    if source == "untied":
        define_vocabulary(g, dims, weights, lambda: parts_of(weights, PROJECTION), source, kind)
    elif source == "projection":
        g.const(source, weights.tensor(PROJECTION))
    return vocabulary_product(g, x, source, dims.n_text_state, padded_vocabulary(dims, kind), kind)


def vocabulary_name(weights: Weights, kind: LinearKind) -> str:
    """The initializer of the decoder graph that logits are made with."""
    if not weights.has(PROJECTION):
        return "vocabulary"
    return "projection" if kind == "fp32" else "untied"


def vocabulary_product(g: GraphBuilder, x: str, source: str, d: int, n_columns: int, kind: LinearKind) -> str:
    """Logits f32 `[1, n_rows, n_columns]` of the rows `x` `[1, n_rows, d]` by the matrix `source`.

    With fp32 `source` is the matrix itself, else as `define_vocabulary` writes it.
    """
    if kind == "fp32":
        flat = g.node("Gemm", [g.node("Reshape", [x, g.ints(-1, d)]), source], transB=1)
        return g.node("Reshape", [flat, g.ints(1, -1, n_columns)])
    values, peaks = quantize_few_rows(g, g.node("Mul", [x, f"{source}{COLUMNS}"]))
    one, zero_point = g.scalar(1.0), middle(g)
    # Of the integer products this one takes the matrix as the embedding reads it, a token a row.
    flat = g.node(
        "QGemm",
        [
            g.node("Reshape", [values, g.ints(-1, d)]),
            one,
            zero_point,
            source,
            one,
            g.const("zero_point_0_int8", np.array(0, np.int8)),
        ],
        domain=CONTRIB,
        transB=1,
    )
    # The scales last: a Reshape at the end would copy the logits.
    scales = g.alias(PROJECTION_SCALES, f"{source}.scales", [n_columns])
    return scale_few_rows(g, g.node("Reshape", [flat, g.ints(1, -1, n_columns)]), peaks, scales)


def self_attention(
    g: GraphBuilder, x: str, dims: Dims, weights: Weights, layer_name: str, layer: int, kind: LinearKind
) -> tuple[str, ...]:
    """Causal attention of the layer called `layer_name` over the buffers self_k_`layer`, self_v_`layer`: a branch."""
    name = f"{layer_name}.self_attn"
    weight, bias = fused_projection(weights, name, ("q_proj", "k_proj", "v_proj"))
    attended = attend_causally(g, [linear(g, x, f"{name}.qkv", weight, bias, kind)], name, layer, dims)
    return branch_of(g, attended, weights, f"{name}.out_proj", kind)


def attend_causally(
    g: GraphBuilder, qkv: Sequence[str], name: str, layer: int, dims: Dims, rotations: Sequence[str] = ("", "")
) -> str:
    """Each row of `qkv` `[1, n_rows, (n_head + 2 n_kv_head) * head_dim]`, or of queries, keys and values apart, over
    the rows before it and itself, in the cache `layer`. rotations: the names of cosines and sines.

    The caches become inputs and outputs of the graph; the result is called `name`.attended.
    """
    n_head, n_kv_head = dims.n_text_head, dims.n_kv_head
    cache_shape: list[Dim] = [1, n_kv_head, "n_slots", dims.head_dim]
    caches = [g.input(f"self_{part}_{layer}", FLOAT, cache_shape) for part in "kv"]
    no_sink = g.const("no_sink", np.full(n_head, NO_SINK, np.float32))
    attended, *new = g.nodes(
        "GroupQueryAttention",
        [*qkv, *[""] * (3 - len(qkv)), *caches, "past_len", "total_len", *rotations, "", "", no_sink],
        outputs=[f"{name}.attended", f"new_self_k_{layer}", f"new_self_v_{layer}"],
        domain=CONTRIB,
        num_heads=n_head,
        kv_num_heads=n_kv_head,
        **({"do_rotary": 1} if rotations[0] else {}),
    )
    for cache in new:
        g.output(cache, cache, FLOAT, cache_shape)
    return attended


def cross_attention(
    g: GraphBuilder,
    x: str,
    dims: Dims,
    weights: Weights,
    layer_name: str,
    layer: int,
    kind: LinearKind,
    *,
    int8_attention: bool,
    bias: str = "",
) -> tuple[str, ...]:
    """Attention of the layer called `layer_name` to the audio: a branch. `build_cross_kv` makes its keys and values."""
    name = f"{layer_name}.encoder_attn"
    n_head, head_dim = dims.n_text_head, dims.n_text_state // dims.n_text_head
    q = biased_linear(g, x, weights, f"{name}.q_proj", kind)
    if int8_attention:
        k = g.input(f"cross_k_{layer}", TensorProto.INT8, [1, n_head, head_dim, "n_audio_ctx"])
        v = g.input(f"cross_v_{layer}", TensorProto.INT8, [1, n_head, "n_audio_ctx", head_dim])
        k_scale = g.input(f"cross_k_scale_{layer}", FLOAT, [1, n_head, 1, head_dim])
        v_scale = g.input(f"cross_v_scale_{layer}", FLOAT, [1, n_head, 1, head_dim])
        attended = attend_int8(g, q, k, v, k_scale, v_scale, bias, n_head=n_head, head_dim=head_dim)
    else:
        shape: list[Dim] = [1, n_head, "n_audio_ctx", head_dim]
        keys = [g.input(f"cross_{part}_{layer}", FLOAT, shape) for part in "kv"]
        inputs = [q, *keys, *(["", "", bias] if bias else [])]
        attended = g.node("MultiHeadAttention", inputs, domain=CONTRIB, num_heads=n_head)
    return branch_of(g, attended, weights, f"{name}.out_proj", kind)


def attend_int8(
    g: GraphBuilder, q: str, k: str, v: str, k_scale: str, v_scale: str, bias: str, *, n_head: int, head_dim: int
) -> str:
    """Attention over int8 keys and values, with queries and probabilities rounded a (row, head) at a time.

    Both products accumulate in integers, so a row does not notice its neighbours.
    """
    heads = g.node("Transpose", [g.node("Reshape", [q, g.ints(0, 0, n_head, head_dim)])], perm=[0, 2, 1, 3])
    queries, peaks = quantize_few_rows(g, g.node("Mul", [heads, k_scale]))
    inputs = [queries, k, g.scalar(ROW_STEP), g.scalar(1.0), middle(g)]
    scores = g.node("Mul", [g.node("MatMulIntegerToFloat", inputs, domain=CONTRIB), peaks])
    # What is rounded to nothing anyway would leave the Softmax as denormal numbers, which take several times as long.
    least = g.node("Sub", [g.node("ReduceMax", [scores, g.ints(-1)], keepdims=1), g.scalar(FARTHEST_SCORE)])
    scores = g.node("Max", [scores, least])
    scores = g.node("Add", [scores, bias])
    # A sum by ReduceSum would depend on where in memory a row starts, hence on the rows before it; Softmax's does not.
    shares = g.node("Softmax", [scores], axis=-1)
    top = g.node("ReduceMax", [shares, g.ints(-1)], keepdims=1)
    step = g.scalar(1 / LARGEST_PROBABILITY)
    rounded = g.node(
        "QuantizeLinear", [g.node("Div", [shares, top]), step, g.const("zero_point_0", np.array(0, np.uint8))]
    )
    weighted = g.node("MatMulIntegerToFloat", [rounded, v, step, v_scale], domain=CONTRIB)
    attended = g.node("Mul", [weighted, top])
    merged = g.node("Transpose", [attended], perm=[0, 2, 1, 3])
    return g.node("Reshape", [merged, g.ints(0, 0, n_head * head_dim)])
