"""Weight quantisers: what goes in comes out again within half a step, also at the edges of float32."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from specedge.export.layers import quantize_blocks, round_rows


def dequantize_rows(weight: NDArray[np.float32]) -> NDArray[np.float32]:
    """What `weight` is when it was rounded."""
    rounded, scales = round_rows(weight)
    return rounded.astype(np.float32) * scales[:, None]


def dequantize_blocks(weight: NDArray[np.float32], block_size: int) -> NDArray[np.float32]:
    """What `weight` is when it was rounded in blocks."""
    packed, scales = quantize_blocks(weight, block_size=block_size)
    values = np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:2], -1).astype(np.float32) - 8
    return (values * scales[..., None]).reshape(packed.shape[0], -1)


def matrix(n_out: int, n_in: int, seed: int = 0, spread: float = 2.0) -> NDArray[np.float32]:
    """Normal values whose rows differ in size by orders of magnitude."""
    rng = np.random.default_rng(seed)
    rows = np.exp(spread * rng.standard_normal((n_out, 1)))
    return (rows * rng.standard_normal((n_out, n_in))).astype(np.float32)


@pytest.mark.parametrize("block_size", [16, 32])
def test_a_block_is_off_by_a_step_at_most(block_size: int) -> None:
    weight = matrix(7, 3 * block_size)
    back = dequantize_blocks(weight, block_size)
    blocks = weight.reshape(7, 3, block_size)
    step = np.abs(blocks).max(axis=-1) / 8
    error = np.abs(back.reshape(blocks.shape) - blocks)
    # The side opposite to the extreme has one step less, so a value there may be off by a whole one.
    assert (error.max(axis=-1) <= step * 1.00001).all()


@pytest.mark.parametrize("extreme", [-3.0, 3.0])
def test_four_bits_keep_the_extreme_of_either_sign(extreme: float) -> None:
    weight = np.linspace(-2.5, 2.5, 32, dtype=np.float32)[None]
    weight[0, 11] = extreme
    back = dequantize_blocks(weight, 32)
    assert back[0, 11] == np.float32(extreme)
    assert np.abs(back).max() <= abs(extreme)


def test_columns_are_off_by_half_a_step_at_most() -> None:
    weight = matrix(9, 50)
    step = np.abs(weight).max(axis=1, keepdims=True) / 63
    assert (np.abs(dequantize_rows(weight) - weight) <= 0.50001 * step).all()


@given(st.lists(st.floats(-(2.0**125), 2.0**125, width=32), min_size=16, max_size=16))
def test_no_finite_block_wraps_around(values: list[float]) -> None:
    """Subnormal and huge values included: the sign stays, and nothing grows."""
    weight = np.array([values], np.float32)
    for back in (dequantize_blocks(weight, 16), dequantize_rows(weight)):
        largest = np.abs(weight).max()
        assert np.isfinite(back).all()
        assert (np.abs(back) <= largest * np.float32(1.00001)).all()
        assert not ((back > 0) & (weight < 0)).any() and not ((back < 0) & (weight > 0)).any()


def test_pairs_of_products_fit_16_bits() -> None:
    """x86 without VNNI adds products of uint8 activations and weights in pairs, and clips what 16 bits do not hold."""
    largest = np.abs(round_rows(matrix(9, 50))[0].astype(np.int64)).max()
    assert 2 * 255 * largest < 2**15
