"""The graphs of a speech LLM behind the encoder: the projector, and a llama decoder over audio and text.

projector  features f32 [batch, n_audio_ctx, n_audio_state] -> audio f32 [batch, n_audio_ctx, n_text_state]
decoder    one graph for prefill, plain decoding and verification:
           in   ids i64 [1, n_ids]; audio f32 [1, n_audio, n_text_state], rows before those of the ids, 0 of them but in
                a prefill; logit_rows, past_len, total_len, self_k_i, self_v_i [1, n_kv_head, n_slots, head_dim] and
           out  logits, hidden, new_self_k_i, new_self_v_i as in `decoder_graph`

Rows are exact for even numbers of them, as in `decoder_graph`, however a prompt is cut into passes. Positions come from
`past_len`: the attention turns queries and keys itself (do_rotary, by halves as in transformers' llama). Names of
weights are transformers' llama's below model.decoder, with a norm of each head of queries and keys.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from specedge.runtime.bundle.dims import SpeechDims

from .decoder_graph import attend_causally, embed, padded_vocabulary, project_to_vocabulary
from .layers import LinearKind, Weights, bias_of, gelu, linear, silu
from .onnx_builder import GraphBuilder

FLOAT = TensorProto.FLOAT
PROJECTOR = "projector"
ROOT = "model.decoder"
RESIDUAL = "residual_"  # and a number: the rows that go into a layer, and out of the last


def build_projector(g: GraphBuilder, dims: SpeechDims, weights: Weights, kind: LinearKind) -> None:
    """Write the projector: two linear layers with GELU between."""
    features = g.input("features", FLOAT, ["batch", "n_audio_ctx", dims.n_audio_state])
    x = g.node("Reshape", [features, g.ints(0, -1, dims.n_audio_state)])
    x = gelu(g, _linear(g, x, weights, [f"{PROJECTOR}.linear_1"], kind))
    audio = _linear(g, x, weights, [f"{PROJECTOR}.linear_2"], kind)
    g.output(audio, "audio", FLOAT, ["batch", "n_audio_rows", dims.n_text_state])
    g.save()


def build_llama(
    g: GraphBuilder, dims: SpeechDims, weights: Weights, kind: LinearKind, *, rope_theta: float, epsilon: float
) -> None:
    """Write the decoder; epsilon: of its norms. Vocabulary as in `decoder_graph.build_decoder`."""
    ids = g.input("ids", TensorProto.INT64, [1, "n_ids"])
    audio = g.input("audio", FLOAT, [1, "n_audio", dims.n_text_state])
    logit_rows = g.input("logit_rows", TensorProto.INT64, ["n_logit_rows"])
    g.input("past_len", TensorProto.INT32, [1])
    g.input("total_len", TensorProto.INT32, [])
    cos, sin = rotations(dims.n_text_ctx + 2, dims.head_dim, rope_theta)
    g.const("cos", cos)
    g.const("sin", sin)
    rows = [audio, embed(g, dims, weights, ids, kind)]
    residual = g.node("Concat", rows, outputs=[f"{RESIDUAL}0"], axis=1)
    for i in range(dims.n_text_layer):
        name = f"{ROOT}.layers.{i}"
        y = _norm(g, residual, weights, f"{name}.input_layernorm", epsilon)
        residual = _sum(g, _attention(g, y, dims, weights, f"{name}.self_attn", i, kind, epsilon), residual)
        y = _norm(g, residual, weights, f"{name}.post_attention_layernorm", epsilon)
        both = _linear(g, y, weights, [f"{name}.mlp.gate_proj", f"{name}.mlp.up_proj"], kind)
        gate, up = g.nodes("Split", [both], outputs=2, axis=2, num_outputs=2)
        branch = _linear(g, g.node("Mul", [silu(g, gate), up]), weights, [f"{name}.mlp.down_proj"], kind)
        residual = _sum(g, branch, residual, f"{RESIDUAL}{i + 1}")
    hidden = _norm(g, residual, weights, f"{ROOT}.norm", epsilon)
    g.output(hidden, "hidden", FLOAT, [1, "n_rows", dims.n_text_state])
    wanted = g.node("Gather", [hidden, logit_rows], axis=1)
    logits = project_to_vocabulary(g, wanted, dims, weights, kind)
    g.output(logits, "logits", FLOAT, [1, "n_logit_rows", padded_vocabulary(dims, kind)])
    g.save()


def rotations(n_rows: int, head_dim: int, theta: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Cosines and sines of each position's rotations, float32 `[n_rows, head_dim / 2]` (Su et al. 2021, eq. 15)."""
    speeds = 1.0 / theta ** (np.arange(0, head_dim, 2) / head_dim)
    angles = np.arange(n_rows)[:, None] * speeds
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _attention(
    g: GraphBuilder, x: str, dims: SpeechDims, weights: Weights, name: str, layer: int, kind: LinearKind, epsilon: float
) -> str:
    """Causal attention over the buffers self_k_`layer`, self_v_`layer`, with rotated queries and keys."""
    widths = [n * dims.head_dim for n in (dims.n_text_head, dims.n_kv_head, dims.n_kv_head)]
    product = _linear(g, x, weights, [f"{name}.{part}_proj" for part in "qkv"], kind)
    qkv = g.nodes("Split", [product, g.ints(*widths)], outputs=3, axis=2)
    for at, part in enumerate("qk"):  # each head by itself
        heads = g.node("Reshape", [qkv[at], g.ints(0, 0, widths[at] // dims.head_dim, dims.head_dim)])
        normed = _norm(g, heads, weights, f"{name}.{part}_norm", epsilon)
        qkv[at] = g.node("Reshape", [normed, g.ints(0, 0, widths[at])])
    attended = attend_causally(g, qkv, name, layer, dims, ("cos", "sin"))
    return _linear(g, attended, weights, [f"{name}.o_proj"], kind)


def _linear(g: GraphBuilder, x: str, weights: Weights, names: list[str], kind: LinearKind) -> str:
    """The layers `names` over one input, as one product."""
    matrices = [weights.tensor(f"{name}.weight") for name in names]
    bias = None
    if any(weights.has(f"{name}.bias") for name in names):
        biases = [bias_of(weights, name, len(matrix)) for name, matrix in zip(names, matrices, strict=True)]
        bias = np.concatenate(biases)
    weight = matrices[0] if len(matrices) == 1 else np.concatenate(matrices)
    return linear(g, x, "+".join(names), weight, bias, kind)


def _norm(g: GraphBuilder, x: str, weights: Weights, name: str, epsilon: float) -> str:
    gain = g.const(f"{name}.weight", weights.tensor(f"{name}.weight"))
    return g.node("SimplifiedLayerNormalization", [x, gain], axis=-1, epsilon=epsilon, stash_type=1)


def _sum(g: GraphBuilder, branch: str, residual: str, name: str | None = None) -> str:
    # No Add, which ONNX Runtime would fuse with the norm behind it where it knows the shapes: another kernel.
    return g.node("Sum", [branch, residual], outputs=[] if name is None else [name])
