"""The audio encoder of Qwen3-ASR (AuT): convolutions over chunks of a second, layers over the chunks of a window.

encoder    mel f32 [batch, n_mels, n_frames] -> features f32 [batch, n_audio_ctx, n_audio_state]

`n_frames` is at most `n_window_frames` (8 s), whose positions see each other; longer audio takes several passes. Three
convolutions of 3 x 3 with stride 2 halve bands and frames of each chunk, whose last one is filled with zeros to its
length; of that one, only positions whose frames begin within the audio go on. Positions are sinusoids within a chunk.

In int8 the stem is as large as all layers of the 0.6B model, so two of its convolutions are integer products: each
chunk is rounded with one step to uint8 from the least value of GELU on, then neighbours are put side by side in bytes.
A chunk's step depends on that chunk alone. Convolutions are products of neighbours with the weights for the reason that
`encoder_graph` has: their bits do not depend on the number of threads.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from specedge.runtime.bundle.dims import SpeechDims

from .encoder_graph import write_layers
from .layers import LinearKind, Weights, gelu, linear, round_rows
from .onnx_builder import CONTRIB, GraphBuilder

FLOAT = TensorProto.FLOAT
ROOT = "model.encoder"
N_CONVOLUTIONS = 3
_WIDTH, _STRIDE = 3, 2
_LEAST_GELU = 0.17  # no value of GELU is lower than -0.17
_LARGEST_BYTE = 255


def halved(n: int, times: int = 1) -> int:
    """What `n` bands or frames become behind so many convolutions."""
    return n if times == 0 else halved((n - 1) // _STRIDE + 1, times - 1)


def stem_features(n_mels: int, n_channels: int) -> int:
    """Values of each position behind the convolutions."""
    return n_channels * halved(n_mels, N_CONVOLUTIONS)


def sinusoids(n_positions: int, width: int) -> NDArray[np.float32]:
    """The positions within a chunk, float32 `[n_positions, width]`: sines, then cosines."""
    rates = np.exp(-math.log(10_000) / (width // 2 - 1) * np.arange(width // 2, dtype=np.float32))
    angles = np.arange(n_positions, dtype=np.float32)[:, None] * rates.astype(np.float32)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


def build_chunk_encoder(g: GraphBuilder, dims: SpeechDims, weights: Weights, kind: LinearKind) -> None:
    """Write the encoder into `g`."""
    mel = g.input("mel", FLOAT, ["batch", dims.n_mels, "n_frames"])
    x = _chunks(g, mel, dims)
    n_bands, n_frames = dims.n_mels, dims.n_chunk_frames
    for i in range(1, N_CONVOLUTIONS + 1):
        n_bands, n_frames = halved(n_bands), halved(n_frames)
        # The first one has a single channel: nothing to save.
        is_float = kind == "fp32" or i == 1
        convolve = _float_convolution if is_float else _integer_convolution
        x = gelu(g, convolve(g, x, weights, f"{ROOT}.conv2d{i}", n_bands, n_frames))
    rows = _rows(g, x, weights, n_bands, n_frames, kind)
    rows = g.node("Add", [rows, g.const(f"{ROOT}.positions", sinusoids(n_frames, dims.n_audio_state))])
    n_batch = g.node("Shape", [mel], start=0, end=1)
    shape = g.node("Concat", [n_batch, g.ints(-1, dims.n_audio_state)], axis=0)
    rows = g.node("Reshape", [rows, shape])
    write_layers(g, _only_heard(g, rows, mel, dims), dims, weights, "ln_post", kind)


def _chunks(g: GraphBuilder, mel: str, dims: SpeechDims) -> str:
    """Chunks `[n_chunks, n_mels, n_chunk_frames, 1]` of all windows, the last of a window filled with zeros."""
    n_frames = g.node("Shape", [mel], start=2, end=3)
    n_missing = g.node("Mod", [g.node("Neg", [n_frames]), g.ints(dims.n_chunk_frames)])
    pads = g.node("Concat", [g.ints(0, 0, 0, 0, 0), n_missing], axis=0)
    filled = g.node("Pad", [mel, pads])
    parts = g.node("Reshape", [filled, g.ints(0, dims.n_mels, -1, dims.n_chunk_frames)])
    parts = g.node("Transpose", [parts], perm=[0, 2, 1, 3])
    return g.node("Reshape", [parts, g.ints(-1, dims.n_mels, dims.n_chunk_frames, 1)])


def _only_heard(g: GraphBuilder, rows: str, mel: str, dims: SpeechDims) -> str:
    """The positions of a window whose frames begin within the audio."""
    n_frames = g.node("Shape", [mel], start=2, end=3)
    n_whole = g.node("Div", [n_frames, g.ints(dims.n_chunk_frames)])
    n_left = g.node("Mod", [n_frames, g.ints(dims.n_chunk_frames)])
    per_position = _STRIDE**N_CONVOLUTIONS
    n_last = g.node("Div", [g.node("Add", [n_left, g.ints(per_position - 1)]), g.ints(per_position)])
    n_positions = g.node("Add", [g.node("Mul", [n_whole, g.ints(dims.n_chunk_positions)]), n_last])
    return g.node("Slice", [rows, g.ints(0), n_positions, g.ints(1)])


def _float_convolution(g: GraphBuilder, x: str, weights: Weights, name: str, n_bands: int, n_frames: int) -> str:
    """A convolution of `x` `[n_chunks, ., ., n_in]`, padded with zeros: `[n_chunks, n_bands, n_frames, n_out]`."""
    matrix = _matrix(weights.tensor(f"{name}.weight"))
    rows = _side_by_side(g, _padded(g, x, 0.0), n_bands, n_frames)
    return linear(g, rows, name, matrix, weights.tensor(f"{name}.bias"), "fp32")


def _integer_convolution(g: GraphBuilder, x: str, weights: Weights, name: str, n_bands: int, n_frames: int) -> str:
    """As `_float_convolution`, of values that GELU made, in integers."""
    risen = g.node("Add", [x, g.scalar(_LEAST_GELU)])
    peaks = g.node("ReduceMax", [risen, g.ints(1, 2, 3)], keepdims=1)
    # The padding, 0 and so 0.17 above the least, is among the values.
    steps = g.node("Div", [g.node("Max", [peaks, g.scalar(_LEAST_GELU)]), g.scalar(float(_LARGEST_BYTE))])
    flat = g.node("Reshape", [steps, g.ints(-1)])
    zeros = g.node("Expand", [g.const("zero_points_0", np.array([0], np.uint8)), g.node("Shape", [flat])])
    padded = _padded(g, risen, _LEAST_GELU)
    values = g.node("QuantizeLinear", [padded, flat, zeros], axis=0)
    rounded, scales = round_rows(_matrix(weights.tensor(f"{name}.weight")))
    n_out, n_in = rounded.shape
    rows = g.node("Reshape", [_side_by_side(g, values, n_bands, n_frames), g.ints(-1, n_in)])
    product = g.node(
        "MatMulIntegerToFloat",
        [
            rows,
            g.const(f"{name}.weight", rounded.T),
            g.scalar(1.0),
            g.const(f"{name}.scales", scales),
            g.const("zero_point_0", np.array(0, np.uint8)),
        ],
        domain=CONTRIB,
    )
    y = g.node("Mul", [g.node("Reshape", [product, g.ints(-1, n_bands, n_frames, n_out)]), steps])
    lowered = (rounded.astype(np.float32) * scales[:, None]).sum(axis=1, dtype=np.float64) * _LEAST_GELU
    bias = (weights.tensor(f"{name}.bias") - lowered).astype(np.float32)
    return g.node("Add", [y, g.const(f"{name}.bias", bias)])


def _matrix(weight: NDArray[np.float32]) -> NDArray[np.float32]:
    """A weight `[n_out, n_in, 3, 3]` as a matrix `[n_out, 9 * n_in]`, in the order of `_side_by_side`."""
    return np.ascontiguousarray(weight.transpose(0, 2, 3, 1).reshape(len(weight), -1))


def _padded(g: GraphBuilder, x: str, value: float) -> str:
    """A band and a frame more on either side.

    By axes: of constants of 64 bytes, which packed graphs have outside, ONNX Runtime reads no shapes.
    """
    return g.node("Pad", [x, g.ints(1, 1, 1, 1), g.scalar(value), g.ints(1, 2)])


def _side_by_side(g: GraphBuilder, x: str, n_bands: int, n_frames: int) -> str:
    """Each output's nine neighbours in one row: `[n_chunks, n_bands, n_frames, 9 * n_in]`."""
    shifted = []
    for band, frame in np.ndindex(_WIDTH, _WIDTH):
        starts = g.ints(band, frame)
        ends = g.ints(band + _STRIDE * (n_bands - 1) + 1, frame + _STRIDE * (n_frames - 1) + 1)
        shifted.append(g.node("Slice", [x, starts, ends, g.ints(1, 2), g.ints(_STRIDE, _STRIDE)]))
    return g.node("Concat", shifted, axis=3)


def _rows(g: GraphBuilder, x: str, weights: Weights, n_bands: int, n_frames: int, kind: LinearKind) -> str:
    """Positions `[n_chunks, n_frames, n_audio_state]` of what the convolutions leave."""
    weight = weights.tensor(f"{ROOT}.conv_out.weight")
    n_out, n_channels = len(weight), weight.shape[1] // n_bands
    # Checkpoints have the bands of a channel side by side, here channels of a band are.
    weight = np.ascontiguousarray(weight.reshape(n_out, n_channels, n_bands).transpose(0, 2, 1).reshape(n_out, -1))
    frames = g.node("Transpose", [x], perm=[0, 2, 1, 3])
    rows = g.node("Reshape", [frames, g.ints(0, n_frames, n_bands * n_channels)])
    return linear(g, rows, f"{ROOT}.conv_out", weight, None, kind)
