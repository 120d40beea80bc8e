"""The encoder once more, in operators of the ONNX standard alone, for execution providers other than the CPU's.

encoder_plain    mel f32 [batch, n_mels, n_frames] -> features f32 [batch, n_audio_ctx, n_audio_state]

Input and output are those of `encoder_graph`, the arithmetic is not: providers know Conv, LayerNormalization, Gelu and
Softmax, and none of ONNX Runtime's contributed operators. Weights are float32 in an fp32 bundle. In the others they are
int8 behind DequantizeLinear, with a scale an output: OpenVINO multiplies them with activations that it rounds itself, a
provider without such kernels computes in float. They are rounded to -127 .. 127, for no kernel of ours meets them.
"""

from __future__ import annotations

import math
from pathlib import Path

from onnx import TensorProto

from specedge.runtime.bundle.manifest import PLAIN_ENCODER_GRAPH, Dims, Manifest

from .layers import LinearKind, Weights, biased_linear, queries_keys_values, residual_norm
from .onnx_builder import GraphBuilder

FLOAT = TensorProto.FLOAT
KINDS: dict[str, LinearKind] = {"fp32": "fp32", "int8": "plain8", "int4": "plain8"}


def write_plain_encoder(manifest: Manifest, weights: Weights, folder: Path) -> str:
    """Write the graph into `folder`, and return its name; convolutions stay in float32.

    Raises CheckpointError, OSError.
    """
    dims, kind, root = manifest.dims, KINDS[manifest.precision], "model.encoder"
    with GraphBuilder(folder, PLAIN_ENCODER_GRAPH) as g:
        x = g.input("mel", FLOAT, ["batch", dims.n_mels, "n_frames"])
        for name, stride in (("conv1", 1), ("conv2", 2)):
            parts = [g.const(f"{name}.{part}", weights.tensor(f"{root}.{name}.{part}")) for part in ("weight", "bias")]
            x = g.node("Gelu", [g.node("Conv", [x, *parts], kernel_shape=[3], pads=[1, 1], strides=[stride])])
        x = g.node("Transpose", [x], perm=[0, 2, 1])
        positions = g.const("positions", weights.tensor(f"{root}.embed_positions.weight"))
        n_ctx = g.node("Shape", [x], start=1, end=2)
        x = g.node("Add", [x, g.node("Slice", [positions, g.ints(0), n_ctx, g.ints(0)])])
        for i in range(dims.n_audio_layer):
            name = f"{root}.layers.{i}"
            y, _ = residual_norm(g, (), x, weights, f"{name}.self_attn_layer_norm")
            x = g.node("Add", [x, _attention(g, y, dims, weights, f"{name}.self_attn", kind)])
            y, _ = residual_norm(g, (), x, weights, f"{name}.final_layer_norm")
            wide = g.node("Gelu", [biased_linear(g, y, weights, f"{name}.fc1", kind)])
            x = g.node("Add", [x, biased_linear(g, wide, weights, f"{name}.fc2", kind)])
        features, _ = residual_norm(g, (), x, weights, f"{root}.layer_norm")
        g.output(features, "features", FLOAT, ["batch", "n_audio_ctx", dims.n_audio_state])
        g.save()
    return PLAIN_ENCODER_GRAPH


def _attention(g: GraphBuilder, x: str, dims: Dims, weights: Weights, name: str, kind: LinearKind) -> str:
    """Softmax(Q K / sqrt(head_dim)) V of all heads, and the projection behind it."""
    n_head, head_dim = dims.n_audio_head, dims.n_audio_state // dims.n_audio_head
    parts = []
    projected = queries_keys_values(g, x, weights, name, kind)
    for part, perm in zip(projected, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True):
        parts.append(g.node("Transpose", [g.node("Reshape", [part, g.ints(0, 0, n_head, head_dim)])], perm=perm))
    q, k, v = parts
    scores = g.node("MatMul", [g.node("Mul", [q, g.scalar(1 / math.sqrt(head_dim))]), k])
    mixed = g.node("MatMul", [g.node("Softmax", [scores], axis=-1), v])
    joined = g.node("Reshape", [g.node("Transpose", [mixed], perm=[0, 2, 1, 3]), g.ints(0, 0, dims.n_audio_state)])
    return biased_linear(g, joined, weights, f"{name}.out_proj", kind)
