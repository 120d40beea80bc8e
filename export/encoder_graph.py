"""The encoder graphs and the cross-attention key/value graph, which run once per audio window.

encoder    mel f32 [batch, n_mels, n_frames]          -> features f32 [batch, n_audio_ctx, n_audio_state]
encoder_short  as encoder, for windows that end in silence: see below
cross_kv   features f32 [batch, n_audio_ctx, n_state] -> per decoder layer i, K and V of all heads:
             int8 cross attention: cross_k_i int8 [batch, n_head, head_dim, n_audio_ctx] (transposed),
                                   cross_v_i int8 [batch, n_head, n_audio_ctx, head_dim],
                                   cross_k_scale_i, cross_v_scale_i f32 [batch, n_head, 1, head_dim]
             fp32 cross attention: cross_k_i, cross_v_i f32 [batch, n_head, n_audio_ctx, head_dim]

K's scales carry the 1/sqrt(head_dim) of attention. `n_frames` may be shorter than the model's window: positions are cut
to length. Rows are rounded one by one, so windows may share a batch.

encoder_short computes the positions of the audio alone. Behind its audio a window is silent, and what the encoder makes
of silence is the same for every recording of one loudness: each layer's keys and values behind the audio are constants,
taken from a window that ends in silence, and positions of the audio attend to them beside their own. The last frame of
`mel` is silence, and the whole is shifted until that is `FLOOR`, as a change of volume would. Neighbouring silent
positions are merged, `GROUP_POSITIONS` at a time: their mean key and mean value, with the logarithm of their number
added to the scores. It is an approximation, for in the whole window silence attends to the audio, too. `n_frames` are
those of some whole groups and of one position more, which the convolutions look at and which is dropped. `features` are
the positions of the audio and a state of silence for each group behind them; a second output, `log_counts` f32 [1, 1,
1, n_states], is the logarithm of the positions that each stands for, which the decoder adds to its scores; in float32,
whose decoder adds nothing, the engine repeats each state so often instead. The graph is made of the encoder's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from specedge.runtime.bundle.dims import GROUP_POSITIONS
from specedge.runtime.bundle.manifest import LOG_COUNTS, SHORT_ENCODER_GRAPH, Dims
from specedge.runtime.engine.session import Canceller, Session, bind_array_input, run_outputs

from .layers import (
    COLUMN_STEP,
    LinearKind,
    Weights,
    biased_linear,
    feed_forward,
    fused_projection,
    gelu,
    linear,
    quantize_rows,
    queries_keys_values,
    residual_norm,
    rows8_product,
)
from .onnx_builder import CONTRIB, Dim, GraphBuilder

FLOAT = TensorProto.FLOAT
Tables = dict[str, NDArray[np.float32]]
"""Silence behind speech in groups: `[n_groups, n_audio_state]` by name, "features", "key.LAYER" and "value.LAYER"."""
CONVOLUTION_WIDTH = 3
POSITIONS = "model.encoder.positions"
SMALLEST_CHANNEL_SCALE = 1e-20  # a channel of zeros divides by this instead of by zero


def build_encoder(g: GraphBuilder, dims: Dims, weights: Weights, kind: LinearKind) -> None:
    """Write Whisper's audio encoder into `g`."""
    root = "model.encoder"
    mel = g.input("mel", FLOAT, ["batch", dims.n_mels, "n_frames"])
    x = g.node("Transpose", [mel], perm=[0, 2, 1])
    x = _convolution(g, x, weights, f"{root}.conv1", stride=1)
    x = _convolution(g, x, weights, f"{root}.conv2", stride=2)
    positions = g.const(POSITIONS, weights.tensor(f"{root}.embed_positions.weight"))
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
        kind_here = "fp32" if i == 0 else kind
        parts = queries_keys_values(g, y, weights, f"{name}.self_attn", kind_here)
        attended = g.node("MultiHeadAttention", parts, domain=CONTRIB, num_heads=dims.n_audio_head)
        branch = (biased_linear(g, attended, weights, f"{name}.self_attn.out_proj", kind_here),)
        y, residual = residual_norm(g, branch, residual, weights, f"{name}.final_layer_norm")
        branch = feed_forward(g, y, weights, name, kind)
    features, _ = residual_norm(g, branch, residual, weights, f"{root}.{last_norm}")
    g.output(features, "features", FLOAT, ["batch", "n_audio_ctx", dims.n_audio_state])
    g.save()


def find_silence(folder: Path, dims: Dims) -> Tables:
    """What the `encoder.onnx` in `folder` makes of silence behind speech. Raises OSError, BundleError.

    Of silence alone an encoder makes something else than of silence behind speech, whose states are alike whoever
    spoke. So windows begin with some made-up speech, and each position is averaged over those where it is behind it.
    """
    model = onnx.load(str(folder / "encoder.onnx"), load_external_data=False)
    names = {"features": "features"}
    for layer, node in enumerate(node for node in model.graph.node if node.op_type == "MultiHeadAttention"):
        names |= {f"key.{layer}": node.input[1], f"value.{layer}": node.input[2]}
    for name in list(names.values())[1:]:
        model.graph.output.append(helper.make_tensor_value_info(name, FLOAT, None))
    tables = {name: np.zeros((dims.n_audio_ctx, dims.n_audio_state), np.float32) for name in names}
    counts = np.zeros((dims.n_audio_ctx, 1), np.float32)
    canceller, path = Canceller(), folder / "silence.onnx"  # beside its weights
    path.write_bytes(model.SerializeToString())
    with canceller.on_sigint():
        session = Session(path, canceller, threads=1)
        path.unlink()
        for seed, n_frames in enumerate(SPEECH_FRAMES):
            speech = made_up_speech(dims.n_mels, min(n_frames, dims.n_frames // 2), seed)
            mel = np.full((1, dims.n_mels, dims.n_frames), FLOOR, np.float32)
            mel[0, :, : speech.shape[1]] = speech
            binding = session.binding()
            bind_array_input(binding, "mel", mel)
            first = min(speech.shape[1] // 2 + BEHIND_POSITIONS, dims.n_audio_ctx - 1)
            counts[first:] += 1
            found = run_outputs(session, binding, list(names.values()))
            for table, rows in zip(tables.values(), found, strict=True):
                table[first:] += rows[0, first:]
    starts, sizes = np.arange(0, dims.n_audio_ctx, GROUP_POSITIONS), _group_sizes(dims)[:, None]
    return {
        name: (np.add.reduceat(table / np.maximum(counts, 1), starts, axis=0) / sizes).astype(np.float32)
        for name, table in tables.items()
    }


def _group_sizes(dims: Dims) -> NDArray[np.int64]:
    return np.diff([*range(0, dims.n_audio_ctx, GROUP_POSITIONS), dims.n_audio_ctx])


SPEECH_FRAMES = (60, 200, 500)
BEHIND_POSITIONS = 10  # behind speech, that its end reaches
FLOOR = -0.85  # of a log-mel of recorded speech, where the loudest frame has the usual level
_PEAK = FLOOR + 2.0  # Whisper's log-mels span no more


def made_up_speech(n_mels: int, n_frames: int, seed: int) -> NDArray[np.float32]:
    """A log-mel like that of speech, float32 `[n_mels, n_frames]`: syllables of three moving formants over a floor."""
    rng = np.random.default_rng(seed)
    time_s, bands = np.arange(n_frames) / 100, np.arange(n_mels)[:, None] / n_mels
    turns = 2 * np.pi * (np.outer((2.5, 0.7), time_s) + rng.uniform(size=(2, 1)))
    loudness = np.clip(np.sin(turns[0]) + 0.6 * np.sin(turns[1]), 0, 1)
    formants = np.zeros((n_mels, n_frames))
    for centre, width in ((0.15, 0.05), (0.35, 0.12), (0.6, 0.1)):
        place = centre + width * np.sin(2 * np.pi * (rng.uniform(1, 3) * time_s + rng.uniform()))
        formants += np.exp(-(((bands - place) / 0.07) ** 2))
    mel = FLOOR + (0.5 + 1.2 * formants) * loudness * np.exp(-0.6 * bands)
    noise = 0.1 * rng.standard_normal((n_mels, n_frames))
    return np.asarray(np.clip(mel + noise, FLOOR, _PEAK), np.float32)


def write_short_encoder(folder: Path, dims: Dims, silence: Tables | None = None) -> None:
    """Write `encoder_short.onnx` over the weights of the `encoder.onnx` in `folder`, beside it.

    The graph is that of the encoder, cut behind the audio's positions. silence: by default found now. Raises OSError,
    BundleError.
    """
    model = onnx.load(str(folder / "encoder.onnx"), load_external_data=False)
    nodes, sizes = list(model.graph.node), _group_sizes(dims)
    tables = find_silence(folder, dims) if silence is None else silence
    places = next(node.output[0] for node in nodes if node.input[0] == POSITIONS)
    added = next(node for node in nodes if node.op_type == "Add" and places in node.input)
    (whole,) = set(added.input) - {places}
    with GraphBuilder(folder, SHORT_ENCODER_GRAPH, prefix="short.") as g:
        for tensor in model.graph.initializer:
            g.borrow(tensor)
        mel = g.input("mel", FLOAT, ["batch", dims.n_mels, "n_frames"])
        n_batch = g.node("Shape", [mel], start=0, end=1)
        n_frames = g.node("Shape", [mel], start=2, end=3)
        n_groups = g.node("Div", [n_frames, g.ints(2 * GROUP_POSITIONS)])
        n_audio = g.node("Mul", [n_groups, g.ints(GROUP_POSITIONS)])

        def behind(name: str, table: NDArray[np.float32]) -> str:
            return g.node("Slice", [g.const(f"silence.{name}", table), n_groups, g.ints(len(sizes)), g.ints(0)])

        def join(x: str, name: str) -> str:
            """`x` `[batch, n_audio, n_state]` and, behind it, the groups of the table `name`."""
            rows = behind(name, tables[name])
            shape = g.node("Concat", [n_batch, g.ints(1, 1)], axis=0)
            return g.node("Concat", [x, g.node("Expand", [rows, shape])], axis=1)

        logs = behind("log_counts", np.log(sizes).astype(np.float32))
        bias = g.node("Concat", [g.node("Expand", [g.scalar(0.0), n_audio]), logs], axis=0)
        bias = g.node("Reshape", [bias, g.ints(1, 1, 1, -1)])
        shape = g.node("Concat", [g.ints(1, 1), n_audio, g.ints(1)], axis=0)
        bias_of_scores = g.node("Expand", [bias, shape])  # [1, 1, n_audio, n_states]
        first = g.ints(0, 0, -1), g.ints(1 << 31, 1, 1 << 31), g.ints(0, 1, 2)
        last = g.node("Slice", [mel, *first])  # of one band: silence, as everywhere behind the audio
        layer, names = 0, {"features": "audio.features"}
        names["mel"] = g.node("Add", [g.node("Sub", [mel, last]), g.scalar(FLOOR)])
        for node in nodes:
            for side in (node.input, node.output):
                for at, name in enumerate(side):
                    side[at] = names.get(name, name)
            if node.op_type == "MultiHeadAttention":
                keys, values = join(node.input[1], f"key.{layer}"), join(node.input[2], f"value.{layer}")
                node.input[1:] = [keys, values, "", "", bias_of_scores]
                layer += 1
            g.written.append(node)
            if whole in node.output:
                names[whole] = g.node("Slice", [whole, g.ints(0), n_audio, g.ints(1)])
        g.output(bias, LOG_COUNTS, FLOAT, [1, 1, 1, "n_audio_ctx"])
        features = join(names["features"], "features")
        g.output(features, "features", FLOAT, ["batch", "n_audio_ctx", dims.n_audio_state])
        g.save()


def build_cross_kv(
    g: GraphBuilder,
    dims: Dims,
    weights: Weights,
    kind: LinearKind,
    *,
    int8_attention: bool,
    layers: Sequence[str] = (),
) -> None:
    """Write the graph that turns encoder features into cross-attention keys and values.

    layers: that attend to them, by the names of their weights; by default all of the decoder's.
    """
    features = g.input("features", FLOAT, ["batch", "n_audio_ctx", dims.n_audio_state])
    rows = quantize_rows(g, features, dims.n_audio_state) if kind == "rows8" else None
    for i, layer in enumerate(layers or [f"model.decoder.layers.{i}" for i in range(dims.n_text_layer)]):
        name = f"model.decoder.layers.{i}.encoder_attn"
        weight, bias = fused_projection(weights, f"{layer}.encoder_attn", ("k_proj", "v_proj"))
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
    return gelu(g, linear(g, rows, name, matrix.T, weights.tensor(f"{name}.bias"), "fp32"))


def convolution_weight(matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    """The checkpoint's weight `[n_out, n_in, 3]` of a convolution that stands in the graph as a matrix."""
    n_rows, n_out = matrix.shape
    return matrix.reshape(CONVOLUTION_WIDTH, n_rows // CONVOLUTION_WIDTH, n_out).transpose(2, 1, 0)


def _publish_cross(g: GraphBuilder, dims: Dims, layer: int, k: str, v: str, *, int8_attention: bool) -> None:
    n_head, head_dim = dims.n_text_head, dims.n_text_state // dims.n_text_head
    axes: list[Dim] = ["batch", "n_audio_ctx", n_head, head_dim]
    shape = g.ints(0, 0, n_head, head_dim)
    parts = {part: g.node("Reshape", [x, shape]) for part, x in (("k", k), ("v", v))}
    for part, tensor in parts.items():
        perm = [0, 2, 3, 1] if int8_attention and part == "k" else [0, 2, 1, 3]
        name, shape_out = f"cross_{part}_{layer}", [axes[axis] for axis in perm]
        if not int8_attention:
            g.output(g.node("Transpose", [tensor], perm=perm), name, FLOAT, shape_out)
            continue
        # The last axis is reduced far faster than an inner one; without the Reshape the optimiser undoes the Transpose.
        channels = g.node("Transpose", [tensor], perm=[0, 2, 3, 1])
        channels = g.node("Reshape", [channels, g.ints(0, n_head * head_dim, -1)])
        highest, lowest = (g.node(op, [channels, g.ints(-1)], keepdims=1) for op in ("ReduceMax", "ReduceMin"))
        peak = g.node("Reshape", [g.node("Max", [highest, g.node("Neg", [lowest])]), g.ints(0, 1, n_head, head_dim)])
        scale = g.node("Max", [g.node("Mul", [peak, g.scalar(COLUMN_STEP)]), g.scalar(SMALLEST_CHANNEL_SCALE)])
        rounded = g.node("Cast", [g.node("Round", [g.node("Div", [tensor, scale])])], to=TensorProto.INT8)
        g.output(g.node("Transpose", [rounded], perm=perm), name, TensorProto.INT8, shape_out)
        if part == "k":
            scale = g.node("Mul", [scale, g.const("attention_scale", np.array(1 / math.sqrt(head_dim), np.float32))])
        headed = g.node("Transpose", [scale], perm=[0, 2, 1, 3])
        g.output(headed, f"cross_{part}_scale_{layer}", FLOAT, ["batch", n_head, 1, head_dim])
