"""The layers Whisper's graphs are made of, in three precisions, and how their weights are rounded.

Every product is row-invariant: for an even number of rows, a row's bits do not depend on the rows that share the pass.
So activations are rounded with one scale a row ("rows8"; "few8" for passes of some 30 rows at most, whose time goes
into the number of nodes), inside the kernel a row and a block at a time ("block4"), or by a provider ("plain8", see
`plain_encoder`). One scale for a whole tensor, as ONNX Runtime's dynamic quantisation has it, would make rows depend on
each other. Weights are `[n_out, n_in]`, as in checkpoints.

fp32  everything in float32: the reference, large and slow.
int8  the default: activations in 8 bits, weights and cross-attention in 7 bits with a scale an output channel.
int4  for size, not speed: linear layers in 4-bit blocks. Vocabulary and cross-attention are those of int8.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from specedge.errors import CheckpointError

from .onnx_builder import CONTRIB, GraphBuilder

LinearKind = Literal["fp32", "rows8", "few8", "block4", "plain8"]
# MatMulNBits computes in int8 at this level; level 0 computes in float32, which is slower and not row-invariant.
ACCURACY_LEVEL_INT8 = 4
LAYER_NORM_EPSILON = 1e-5
BASE_HEAD = "base_head"  # the blocks that make the next token in a Medusa-Linear checkpoint
SMALLEST_ROW_SCALE = 1e-20  # a row of zeros divides by this instead of by zero
ROW_STEP = 1 / 127
BLOCK_BITS = 4
POSITIONS_A_KEY = 3  # of a draft over its target's encoder
BLOCK_SIZES = (32, 16)  # larger ones, which MatMulNBits reads too, lose accuracy
ROWS_AT_ONCE = 4096
# The largest weight, cross-attention key or value that meets uint8 activations. x86 without VNNI adds their products
# in pairs into 16 bits, which hold 2 * 255 * 63 but not 2 * 255 * 127: there they clip, and words change.
LARGEST_IN_COLUMN = 63
COLUMN_STEP = 1 / LARGEST_IN_COLUMN
SMALLEST_SCALE = np.finfo(np.float32).tiny  # below it float32 loses digits, and a quotient may leave the range


class Weights(Protocol):
    """Weights by their Hugging Face names, read one at a time: float32, C-contiguous."""

    def tensor(self, name: str) -> NDArray[np.float32]: ...

    def has(self, name: str) -> bool: ...


def parts_of(weights: Weights, name: str) -> Iterator[NDArray[np.float32]]:
    """The rows of a matrix, `ROWS_AT_ONCE` after another; of a large one no more are in memory, where weights have
    `parts`."""
    parts = getattr(weights, "parts", None)
    yield from in_parts(weights.tensor(name)) if parts is None else parts(name)


def in_parts(matrix: NDArray[np.float32]) -> Iterator[NDArray[np.float32]]:
    """A matrix that is in memory, as `parts_of` gives it."""
    for start in range(0, len(matrix), ROWS_AT_ONCE):
        yield matrix[start : start + ROWS_AT_ONCE]


def rows_of(weights: Weights, name: str, rows: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float32]:
    """Some rows of a matrix, float32 `[n, n_in]`, in the order asked for."""
    wanted, found, start = np.asarray(rows, np.int64), list[NDArray[np.float32]](), 0
    places = list[NDArray[np.int64]]()
    for part in parts_of(weights, name):
        here = ((wanted >= start) & (wanted < start + len(part))).nonzero()[0]
        places.append(here)
        found.append(part[wanted[here] - start])
        start += len(part)
    return np.concatenate(found)[np.argsort(np.concatenate(places))]


def quantize_blocks(weight: NDArray[np.float32], *, block_size: int) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """`weight` `[n_out, n_in]` in symmetric blocks of 4 bits along its inputs, for MatMulNBits zero point 8: values
    `[n_out, n_blocks, block_size / 2]`, two in a byte, and scales `[n_out, n_blocks]`."""
    n_out, n_in = weight.shape
    n_blocks = n_in // block_size
    packed = np.empty((n_out, n_blocks, block_size // 2), np.uint8)
    scales = np.empty((n_out, n_blocks), np.float32)
    for start in range(0, n_out, ROWS_AT_ONCE):  # bound the temporaries
        rows = slice(start, start + ROWS_AT_ONCE)
        blocks = weight[rows].reshape(-1, n_blocks, block_size)
        # The value of largest magnitude lands on -8, the end of the range that has one step more.
        extreme = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=-1, keepdims=True), axis=-1)
        steps = extreme / np.float32(-8)
        steps[np.abs(steps) < SMALLEST_SCALE] = 1
        nibbles = np.clip(np.rint(blocks / steps) + 8, 0, 15).astype(np.uint8)
        packed[rows] = np.bitwise_or(nibbles[..., 0::2], nibbles[..., 1::2] << np.uint8(4))
        scales[rows] = steps[..., 0]
    return packed, scales


def round_rows(
    weight: NDArray[np.float32], *, largest: int = LARGEST_IN_COLUMN
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """`weight` `[n_out, n_in]` rounded to -`largest` .. `largest` with a scale a row, and the scales `[n_out]`."""
    rounded = np.zeros(weight.shape, np.int8)
    scales = np.ones(len(rounded), np.float32)
    for start in range(0, len(weight), ROWS_AT_ONCE):
        some = weight[start : start + ROWS_AT_ONCE]
        steps = np.abs(some).max(axis=1) / np.float32(largest)
        steps[steps < SMALLEST_SCALE] = 1
        rounded[start : start + len(some)] = np.rint(some / steps[:, None])
        scales[start : start + len(some)] = steps
    return rounded, scales


def bias_of(weights: Weights, name: str, n_out: int) -> NDArray[np.float32]:
    """The bias of layer `name`, zeros where the layer has none (Whisper's key projections)."""
    full = f"{name}.bias"
    return weights.tensor(full) if weights.has(full) else np.zeros(n_out, np.float32)


def quantize_few_rows(g: GraphBuilder, x: str) -> tuple[str, str]:
    """Round each row (last axis) of `x` to uint8 around 128 with its own step, 1/127 of its peak; for passes whose time
    goes into the number of nodes. The values u8 `[..., n_rows, n_in]`, and the peaks f32 `[..., n_rows, 1]`.

    A row of zeros is divided by its peak, which is 0; what comes of that is multiplied by the peak again. Over many
    rows `quantize_rows` is faster, for it does not write out what is in between.
    """
    peaks = g.node("ReduceMax", [g.node("Abs", [x]), g.ints(-1)], keepdims=1)
    step, zero = g.scalar(ROW_STEP), middle(g)
    return g.node("QuantizeLinear", [g.node("Div", [x, peaks]), step, zero]), peaks


def quantize_rows(g: GraphBuilder, x: str, n_in: int) -> tuple[str, str, str]:
    """Round each row of `x` `[batch, n_rows, n_in]` to uint8 around 128 with its own scale.

    The values u8 `[n_rows, n_in]`, the scales f32 `[n_rows, 1]`, and the batch and row sizes to give back, i64 `[2]`.
    """
    shape = g.node("Shape", [x], start=0, end=2)
    rows = g.node("Reshape", [x, g.ints(-1, n_in)])
    highest, lowest = (g.node(op, [rows, g.ints(-1)], keepdims=1) for op in ("ReduceMax", "ReduceMin"))
    peak = g.node("Max", [highest, g.node("Neg", [lowest])])  # two passes cost less than writing out Abs
    scales = g.node("Max", [g.node("Mul", [peak, g.scalar(ROW_STEP)]), g.scalar(SMALLEST_ROW_SCALE)])
    steps = g.node("Reshape", [scales, g.ints(-1)])
    zeros = g.node("Expand", [g.const("zero_points_128", np.array([128], np.uint8)), g.node("Shape", [steps])])
    return g.node("QuantizeLinear", [rows, steps, zeros], axis=0), scales, shape


def rows8_product(
    g: GraphBuilder,
    x: tuple[str, str, str],
    name: str,
    weight: NDArray[np.float32],
    bias: NDArray[np.float32] | None,
) -> str:
    """`x @ weight.T + bias` with integer accumulation; `x` is of `quantize_rows`, `weight` is `[n_out, n_in]`."""
    values, row_steps, shape = x
    rounded, scales = round_rows(weight)
    inputs = [values, g.const(f"{name}.weight", rounded.T), g.scalar(1.0), g.const(f"{name}.scales", scales)]
    y = g.node("MatMulIntegerToFloat", [*inputs, middle(g)], domain=CONTRIB)
    y = _add_bias(g, g.node("Mul", [y, row_steps]), name, bias)
    return g.node("Reshape", [y, g.node("Concat", [shape, g.ints(weight.shape[0])], axis=0)])


def middle(g: GraphBuilder) -> str:
    """The zero point of rounded activations."""
    return g.const("zero_point_128", np.array(128, np.uint8))


def scale_few_rows(g: GraphBuilder, y: str, peaks: str, scales: str) -> str:
    """The integer product `y` `[..., n_rows, n_out]` of rows with these peaks in its units: a scale for each column.

    A node of its own for the columns: the product's kernel would multiply their scales by the step in every pass, one
    by one, which costs a short pass more. Of constants ONNX Runtime does it once, when it loads the graph.
    """
    return g.node("Mul", [g.node("Mul", [y, g.node("Mul", [scales, g.scalar(ROW_STEP)])]), peaks])


def _add_bias(g: GraphBuilder, y: str, name: str, bias: NDArray[np.float32] | None) -> str:
    return y if bias is None else g.node("Add", [y, g.const(f"{name}.bias", bias)])


def linear(
    g: GraphBuilder, x: str, name: str, weight: NDArray[np.float32], bias: NDArray[np.float32] | None, kind: LinearKind
) -> str:
    """`x @ weight.T + bias` in the precision `kind`; `weight` is float32 `[n_out, n_in]`.

    Raises CheckpointError when `kind` is "block4" and `n_in` no multiple of 16, the smallest block of the kernel.
    """
    if kind == "fp32":
        return _add_bias(g, g.node("MatMul", [x, g.const(f"{name}.weight", weight.T)]), name, bias)
    if kind == "few8":
        values, peaks = quantize_few_rows(g, x)
        rounded, steps = round_rows(weight)
        one = g.scalar(1.0)
        inputs = [values, g.const(f"{name}.weight", rounded.T), one, one, middle(g)]
        y = g.node("MatMulIntegerToFloat", inputs, domain=CONTRIB)
        return _add_bias(g, scale_few_rows(g, y, peaks, g.const(f"{name}.scales", steps)), name, bias)
    if kind == "plain8":
        rounded, steps = round_rows(weight, largest=127)
        stored = [g.const(f"{name}.weight", rounded.T), g.const(f"{name}.scales", steps)]
        return _add_bias(g, g.node("MatMul", [x, g.node("DequantizeLinear", stored, axis=1)]), name, bias)
    if kind == "rows8":
        return rows8_product(g, quantize_rows(g, x, weight.shape[1]), name, weight, bias)
    n_out, n_in = weight.shape
    block_size = next((size for size in BLOCK_SIZES if n_in % size == 0), 0)  # so that no block is padded
    if block_size == 0:
        raise CheckpointError(
            f"weight {name}: its {n_in} inputs are no multiple of 16, the smallest quantisation block; "
            "export with --precision int8"
        )
    packed, scales = quantize_blocks(weight, block_size=block_size)
    inputs = [x, g.const(f"{name}.weight", packed), g.const(f"{name}.scales", scales.reshape(-1))]
    if bias is not None:
        inputs += ["", "", g.const(f"{name}.bias", bias)]
    return g.node(
        "MatMulNBits",
        inputs,
        domain=CONTRIB,
        K=n_in,
        N=n_out,
        bits=BLOCK_BITS,
        block_size=block_size,
        accuracy_level=ACCURACY_LEVEL_INT8,
    )


def biased_linear(g: GraphBuilder, x: str, weights: Weights, name: str, kind: LinearKind) -> str:
    """`linear` by the weight and the bias called `name`, or by two factors: x @ weight1 @ weight2 + bias."""
    bias = weights.tensor(f"{name}.bias") if weights.has(f"{name}.bias") else None
    if weights.has(f"{name}.weight1"):  # lite-whisper's layout
        x = linear(g, x, f"{name}.1", weights.tensor(f"{name}.weight1").T, None, kind)
        return linear(g, x, f"{name}.2", weights.tensor(f"{name}.weight2").T, bias, kind)
    return linear(g, x, name, weights.tensor(f"{name}.weight"), bias, kind)


def branch_of(g: GraphBuilder, x: str, weights: Weights, name: str, kind: LinearKind) -> tuple[str, ...]:
    """`biased_linear` for `residual_norm`: in short passes of integers the bias is a part of its own, a node less."""
    if kind != "few8":
        return (biased_linear(g, x, weights, name, kind),)
    y = linear(g, x, name, weights.tensor(f"{name}.weight"), None, kind)
    return y, g.const(f"{name}.bias", weights.tensor(f"{name}.bias"))


def gelu(g: GraphBuilder, x: str) -> str:
    """The exact (error function) GELU that Whisper uses."""
    return g.node("Gelu", [x], domain=CONTRIB)


def residual_block(g: GraphBuilder, x: str, weights: Weights, name: str, kind: LinearKind) -> str:
    """Medusa's `x + SiLU(W x + b)`, W and b being `name`.linear (Whisper-Medusa, section II)."""
    return g.node("Add", [x, silu(g, biased_linear(g, x, weights, f"{name}.linear", kind))])


def residual_blocks(g: GraphBuilder, x: str, weights: Weights, name: str, kind: LinearKind) -> str:
    """The residual blocks `name`.0, `name`.1, ... one after another, as many as there are."""
    n = 0
    while weights.has(f"{name}.{n}.linear.weight"):
        x = residual_block(g, x, weights, f"{name}.{n}", kind)
        n += 1
    return x


def silu(g: GraphBuilder, x: str) -> str:
    """`x` times its logistic function."""
    return g.node("Mul", [x, g.node("Sigmoid", [x])])


def residual_norm(
    g: GraphBuilder, branch: Sequence[str], residual: str, weights: Weights, name: str
) -> tuple[str, str]:
    """Add the parts of `branch`, first to each other, to the residual stream and normalise: (normalised, new residual).

    No branch, no addition.
    """
    gain = g.const(f"{name}.weight", weights.tensor(f"{name}.weight"))
    shift = g.const(f"{name}.bias", weights.tensor(f"{name}.bias"))
    # Not SkipLayerNormalization, which ONNX Runtime computes in a scalar loop. An Add would be fused into one where its
    # optimiser knows the shapes: in the decoder but not in the many graph, whose rows then have other bits.
    total = g.node("Sum", [*branch, residual]) if branch else residual
    return g.node("LayerNormalization", [total, gain, shift], axis=-1, epsilon=LAYER_NORM_EPSILON), total


def feed_forward(g: GraphBuilder, x: str, weights: Weights, name: str, kind: LinearKind) -> tuple[str, ...]:
    """Whisper's two linear layers with GELU between, of the layer called `name`: a branch for `residual_norm`."""
    wide = biased_linear(g, x, weights, f"{name}.fc1", kind)
    return branch_of(g, gelu(g, wide), weights, f"{name}.fc2", kind)


def fused_projection(
    weights: Weights, name: str, parts: tuple[str, ...]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The projections `parts` of attention `name` stacked into one weight `[n_out, n_in]` and one bias `[n_out]`."""
    matrices = [weights.tensor(f"{name}.{part}.weight") for part in parts]
    biases = [bias_of(weights, f"{name}.{part}", m.shape[0]) for part, m in zip(parts, matrices, strict=True)]
    return np.concatenate(matrices), np.concatenate(biases)


def queries_keys_values(g: GraphBuilder, x: str, weights: Weights, name: str, kind: LinearKind) -> list[str]:
    """The three projections of the attention `name`, as one product unless one is stored as two factors."""
    parts = ("q_proj", "k_proj", "v_proj")
    if any(weights.has(f"{name}.{part}.weight1") for part in parts):
        return [biased_linear(g, x, weights, f"{name}.{part}", kind) for part in parts]
    weight, bias = fused_projection(weights, name, parts)
    qkv = linear(g, x, f"{name}.qkv", weight, bias, kind)
    return g.nodes("Split", [qkv], outputs=3, axis=2, num_outputs=3)


@dataclass(frozen=True, kw_only=True)
class Precision:
    """The linear kinds of the three graphs, and what the self-check may find.

    positions_a_key: of the encoder, of which a cross-attention key and value are the mean.

    `weight_bits` are those of weights and cross-attention that meet 8-bit activations: with more than 7, x86 without
    VNNI clips their products. `max_features_error` and `max_logits_error` bound the relative error
    (Frobenius norm) against float32; they catch a wrong graph or a kernel that saturates, not a loss of accuracy on
    speech.
    """

    name: str
    encoder: LinearKind
    cross_kv: LinearKind
    decoder: LinearKind
    int8_attention: bool
    positions_a_key: int = 1
    weight_bits: int
    max_features_error: float
    max_logits_error: float


_FP32 = Precision(
    name="fp32",
    encoder="fp32",
    cross_kv="fp32",
    decoder="fp32",
    int8_attention=False,
    weight_bits=32,
    max_features_error=1e-3,
    max_logits_error=1e-3,
)
_INT8 = Precision(
    name="int8",
    encoder="rows8",
    cross_kv="rows8",
    decoder="few8",
    int8_attention=True,
    weight_bits=7,
    max_features_error=0.25,
    max_logits_error=0.35,
)
_INT4 = replace(_INT8, name="int4", encoder="block4", decoder="block4", max_features_error=0.9, max_logits_error=1.2)
PRECISIONS = {precision.name: precision for precision in (_FP32, _INT8, _INT4)}


def of_draft(precision: Precision) -> Precision:
    """That of a draft over the encoder of a model in `precision`, whose rows need not be exact: what it reads in a pass
    in 4 bits, for that is the most of its time, and cross-attention in float32, a node in place of 21 in each layer. Of
    three positions tiny.en guesses 0.6 points fewer tokens right before it has learned to, and hears and reads a third.
    """
    return replace(
        precision,
        name=_INT4.name,
        decoder="block4",
        int8_attention=False,
        positions_a_key=POSITIONS_A_KEY,
        max_logits_error=_INT4.max_logits_error,
    )
