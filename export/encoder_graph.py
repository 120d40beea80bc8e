"""The encoder graph and the cross-attention key/value graph, both run once per audio window.

encoder    mel f32 [batch, n_mels, n_frames]          -> features f32 [batch, n_audio_ctx, n_audio_state]
cross_kv   features f32 [batch, n_audio_ctx, n_state] -> per decoder layer i, K and V of all heads:
             int8 cross attention: cross_k_i int8 [batch, n_head, head_dim, n_audio_ctx] (transposed),
                                   cross_v_i int8 [batch, n_head, n_audio_ctx, head_dim],
                                   cross_k_scale_i, cross_v_scale_i f32 [batch, n_head, 1, head_dim]
             fp32 cross attention: cross_k_i, cross_v_i f32 [batch, n_head, n_audio_ctx, head_dim]

K's scales carry the 1/sqrt(head_dim) of attention. `n_frames` may be shorter than the model's window: positions are cut
to length. Rows are rounded one by one, so windows may share a batch.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from specedge.runtime.bundle.manifest import Dims

from .layers import (
    COLUMN_STEP,
    LinearKind,
    Weights,
    biased_linear,
    feed_forward,
    fused_projection,
    gelu,
    is_low_rank,
    linear,
    quantize_rows,
    residual_norm,
    rows8_product,
)
from .onnx_builder import CONTRIB, Dim, GraphBuilder

FLOAT = TensorProto.FLOAT
CONVOLUTION_WIDTH = 3
SMALLEST_CHANNEL_SCALE = 1e-20  # a channel of zeros divides by this instead of by zero


def build_encoder(g: GraphBuilder, dims: Dims, weights: Weights, kind: LinearKind) -> None:
    """Write Whisper's audio encoder into `g`."""
    root = "model.encoder"
    mel = g.input("mel", FLOAT, ["batch", dims.n_mels, "n_frames"])
    x = g.node("Transpose", [mel], perm=[0, 2, 1])
    x = _convolution(g, x, weights, f"{root}.conv1", stride=1)
    x = _convolution(g, x, weights, f"{root}.conv2", stride=2)
    positions = g.const(f"{root}.positions", weights.tensor(f"{root}.embed_positions.weight"))
    n_ctx = g.node("Shape", [x], start=1, end=2)
    x = g.node("Add", [x, g.node("Slice", [positions, g.ints(0), n_ctx, g.ints(0)])])
    write_layers(g, x, dims, weights, "layer_norm", kind)


def write_layers(g: GraphBuilder, x: str, dims: Dims, weights: Weights, last_norm: str, kind: LinearKind) -> None:
    """Write the layers over the positions `x` `[batch, n_audio_ctx, n_audio_state]`, the norm behind them, and save.

    The first layer's attention is float32 in every precision: few channels of its input are far louder than the rest,
    and rounding it alone costs most of what rounding the encoder costs.
    """
    root = "model.encoder"
    branch: tuple[str, ...] = ()
    residual = x
    for i in range(dims.n_audio_layer):
        name = f"{root}.layers.{i}"
        y, residual = residual_norm(g, branch, residual, weights, f"{name}.self_attn_layer_norm")
        branch = (_self_attention(g, y, dims, weights, f"{name}.self_attn", "fp32" if i == 0 else kind),)
        y, residual = residual_norm(g, branch, residual, weights, f"{name}.final_layer_norm")
        branch = feed_forward(g, y, weights, name, kind)
    features, _ = residual_norm(g, branch, residual, weights, f"{root}.{last_norm}")
    g.output(features, "features", FLOAT, ["batch", "n_audio_ctx", dims.n_audio_state])
    g.save()


def build_cross_kv(g: GraphBuilder, dims: Dims, weights: Weights, kind: LinearKind, *, int8_attention: bool) -> None:
    """Write the graph that turns encoder features into the decoder's cross-attention keys and values."""
    features = g.input("features", FLOAT, ["batch", "n_audio_ctx", dims.n_audio_state])
    rows = quantize_rows(g, features, dims.n_audio_state) if kind == "rows8" else None
    for i in range(dims.n_text_layer):
        name = f"model.decoder.layers.{i}.encoder_attn"
        weight, bias = fused_projection(weights, name, ("k_proj", "v_proj"))
        if rows is not None:
            both = rows8_product(g, rows, f"{name}.kv", weight, bias)
        else:
            both = linear(g, features, f"{name}.kv", weight, bias, kind)
        k, v = g.nodes("Split", [both], outputs=2, axis=2, num_outputs=2)
        _publish_cross(g, dims, i, k, v, int8_attention=int8_attention)
    g.save()


def _convolution(g: GraphBuilder, x: str, weights: Weights, name: str, *, stride: int) -> str:
    """GELU of a convolution of width 3 over the rows of `x` `[batch, n_rows, n_in]`, padded by a row at either end.

    As a product of three neighbouring rows with the weights: ONNX Runtime's Conv splits its sums by the share of a
    thread, so its bits depend on the number of threads. A product with packed weights sums in one order.
    """
    weight = weights.tensor(f"{name}.weight")  # [n_out, n_in, CONVOLUTION_WIDTH]
    matrix = weight.transpose(2, 1, 0).reshape(-1, weight.shape[0])
    padded = g.node("Pad", [x, g.ints(0, 1, 0, 0, 1, 0)])
    n_padded = g.node("Shape", [padded], start=1, end=2)
    neighbours = []
    for k in range(CONVOLUTION_WIDTH):
        stop = g.node("Sub", [n_padded, g.ints(CONVOLUTION_WIDTH - 1 - k)])
        neighbours.append(g.node("Slice", [padded, g.ints(k), stop, g.ints(1), g.ints(stride)]))
    rows = g.node("Concat", neighbours, axis=2)
    y = g.node("MatMul", [rows, g.const(f"{name}.weight", matrix)])
    return gelu(g, g.node("Add", [y, g.const(f"{name}.bias", weights.tensor(f"{name}.bias"))]))


def convolution_weight(matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    """The checkpoint's weight `[n_out, n_in, 3]` of a convolution that stands in the graph as a matrix."""
    n_rows, n_out = matrix.shape
    return matrix.reshape(CONVOLUTION_WIDTH, n_rows // CONVOLUTION_WIDTH, n_out).transpose(2, 1, 0)


def _self_attention(g: GraphBuilder, x: str, dims: Dims, weights: Weights, name: str, kind: LinearKind) -> str:
    parts = ("q_proj", "k_proj", "v_proj")
    if any(is_low_rank(weights, f"{name}.{part}") for part in parts):
        q, k, v = (biased_linear(g, x, weights, f"{name}.{part}", kind) for part in parts)
    else:
        weight, bias = fused_projection(weights, name, parts)
        qkv = linear(g, x, f"{name}.qkv", weight, bias, kind)
        q, k, v = g.nodes("Split", [qkv], outputs=3, axis=2, num_outputs=3)
    attended = g.node("MultiHeadAttention", [q, k, v], domain=CONTRIB, num_heads=dims.n_audio_head)
    return biased_linear(g, attended, weights, f"{name}.out_proj", kind)


def _publish_cross(g: GraphBuilder, dims: Dims, layer: int, k: str, v: str, *, int8_attention: bool) -> None:
    n_head, head_dim = dims.n_text_head, dims.n_text_state // dims.n_text_head
    shape = g.ints(0, 0, n_head, head_dim)
    k = g.node("Reshape", [k, shape])
    v = g.node("Reshape", [v, shape])
    if not int8_attention:
        for tensor, name in ((k, f"cross_k_{layer}"), (v, f"cross_v_{layer}")):
            headed = g.node("Transpose", [tensor], perm=[0, 2, 1, 3])
            g.output(headed, name, FLOAT, ["batch", n_head, "n_audio_ctx", head_dim])
        return
    k_axes: list[Dim] = ["batch", n_head, head_dim, "n_audio_ctx"]
    v_axes: list[Dim] = ["batch", n_head, "n_audio_ctx", head_dim]
    for tensor, name, perm, shape_out in (
        (k, f"cross_k_{layer}", [0, 2, 3, 1], k_axes),
        (v, f"cross_v_{layer}", [0, 2, 1, 3], v_axes),
    ):
        # The last axis is reduced far faster than an inner one; without the Reshape the optimiser undoes the Transpose.
        channels = g.node("Transpose", [tensor], perm=[0, 2, 3, 1])
        channels = g.node("Reshape", [channels, g.ints(0, n_head * head_dim, -1)])
        highest, lowest = (g.node(op, [channels, g.ints(-1)], keepdims=1) for op in ("ReduceMax", "ReduceMin"))
        peak = g.node("Reshape", [g.node("Max", [highest, g.node("Neg", [lowest])]), g.ints(0, 1, n_head, head_dim)])
        scale = g.node("Max", [g.node("Mul", [peak, g.scalar(COLUMN_STEP)]), g.scalar(SMALLEST_CHANNEL_SCALE)])
        rounded = g.node("Cast", [g.node("Round", [g.node("Div", [tensor, scale])])], to=TensorProto.INT8)
        g.output(g.node("Transpose", [rounded], perm=perm), name, TensorProto.INT8, shape_out)
        if tensor == k:
            scale = g.node("Mul", [scale, g.const("attention_scale", np.array(1 / math.sqrt(head_dim), np.float32))])
        headed = g.node("Transpose", [scale], perm=[0, 2, 1, 3])
        name = name.replace("_k_", "_k_scale_").replace("_v_", "_v_scale_")
        g.output(headed, name, FLOAT, ["batch", n_head, 1, head_dim])
