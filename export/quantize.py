"""Weight quantisers: float32 matrices to the integer layouts of ONNX Runtime's CPU kernels.

Weights are `[n_out, n_in]` as checkpoints hold them. Every scheme here quantises weights only; how activations are
rounded (one scale a row, never one a tensor) is the business of `layers`. Knows nothing of accuracy on speech.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BLOCK_BITS = 4
BLOCK_SIZES = (32, 16)  # larger ones, which MatMulNBits reads too, lose accuracy
ROWS_AT_ONCE = 4096
# The largest weight, cross-attention key or value that meets uint8 activations. x86 without VNNI adds their products
# in pairs into 16 bits, which hold 2 * 255 * 63 but not 2 * 255 * 127: there they clip, and words change.
LARGEST_IN_COLUMN = 63
COLUMN_STEP = 1 / LARGEST_IN_COLUMN
SMALLEST_SCALE = np.finfo(np.float32).tiny  # below it float32 loses digits, and a quotient may leave the range


@dataclass(frozen=True, kw_only=True)
class BlockQuantized:
    """A matrix in 4-bit blocks along its inputs, for MatMulNBits.

    `packed` is uint8 `[n_out, n_blocks, block_size / 2]`, `scales` float32 `[n_out, n_blocks]`; the zero point is 8.
    """

    packed: NDArray[np.uint8]
    scales: NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class ColumnQuantized:
    """A matrix with one scale per output, for integer products.

    `weight` is int8 `[n_in, n_out]`, `scales` float32 `[n_out]`.
    """

    weight: NDArray[np.int8]
    scales: NDArray[np.float32]


def block_size_for(n_in: int) -> int:
    """The largest block that divides `n_in`, so that no block is padded; 0 when none does."""
    return next((size for size in BLOCK_SIZES if n_in % size == 0), 0)


def quantize_blocks(weight: NDArray[np.float32], *, block_size: int) -> BlockQuantized:
    """Round `weight` `[n_out, n_in]` to symmetric blocks of 4 bits."""
    n_out, n_in = weight.shape
    n_blocks = n_in // block_size
    packed = np.empty((n_out, n_blocks, block_size // 2), np.uint8)
    scales = np.empty((n_out, n_blocks), np.float32)
    for start in range(0, n_out, ROWS_AT_ONCE):  # bound the temporaries
        rows = slice(start, min(start + ROWS_AT_ONCE, n_out))
        packed[rows], scales[rows] = _round_blocks(weight[rows].reshape(-1, n_blocks, block_size))
    return BlockQuantized(packed=packed, scales=scales)


def _round_blocks(blocks: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Packed values and scales of `blocks` `[n_out, n_blocks, block_size]`."""
    # The value of largest magnitude lands on -8, the end of the range that has one step more.
    extreme = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=-1, keepdims=True), axis=-1)
    scales = extreme / np.float32(-8)
    scales[np.abs(scales) < SMALLEST_SCALE] = 1
    nibbles = np.clip(np.rint(blocks / scales) + 8, 0, 15).astype(np.uint8)
    return nibbles[..., 0::2] | (nibbles[..., 1::2] << 4), scales[..., 0]


def dequantize_blocks(quantized: BlockQuantized) -> NDArray[np.float32]:
    """The float32 matrix `[n_out, n_in]` that a BlockQuantized stands for."""
    packed = quantized.packed
    values = np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:2], -1).astype(np.float32) - 8
    return (values * quantized.scales[..., None]).reshape(packed.shape[0], -1)


def quantize_columns(weight: NDArray[np.float32]) -> ColumnQuantized:
    """Round `weight` `[n_out, n_in]` to -63 .. 63 with one scale per output."""
    scales = np.abs(weight).max(axis=1) / np.float32(LARGEST_IN_COLUMN)
    scales[scales < SMALLEST_SCALE] = 1
    rounded = np.rint(weight / scales[:, None]).astype(np.int8)
    return ColumnQuantized(weight=np.ascontiguousarray(rounded.T), scales=scales.astype(np.float32))


def dequantize_columns(quantized: ColumnQuantized) -> NDArray[np.float32]:
    """The float32 matrix `[n_out, n_in]` that a ColumnQuantized stands for."""
    return np.ascontiguousarray(quantized.weight.T).astype(np.float32) * quantized.scales[:, None]
