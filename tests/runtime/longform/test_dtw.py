"""Median filter and warping equal openai-whisper's on random matrices, and on matrices full of ties."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from specedge.runtime.longform.words import dtw_path, median_filter

SIZES = st.tuples(st.integers(1, 24), st.integers(1, 60))


@pytest.fixture(scope="module")
def peer() -> Any:
    return pytest.importorskip("whisper.timing", reason="openai-whisper is not installed")


def matrix(n_rows: int, n_columns: int, seed: int, n_values: int) -> NDArray[np.float32]:
    """Noise, or with `n_values` of at least 1 one of so many multiples of a half, so that sums tie."""
    rng = np.random.default_rng(seed)
    if n_values:
        return (rng.integers(0, n_values, (n_rows, n_columns)) / 2 - 1).astype(np.float32)
    return rng.standard_normal((n_rows, n_columns)).astype(np.float32)


@pytest.mark.slow
@given(size=SIZES, seed=st.integers(0, 1 << 30), n_values=st.integers(0, 4))
def test_the_path_is_openai_whispers(peer: Any, size: tuple[int, int], seed: int, n_values: int) -> None:
    cost = matrix(*size, seed, n_values)
    rows, columns = dtw_path(cost)
    expected = peer.dtw_cpu(cost.astype(np.float64))
    assert rows.tolist() == expected[0].tolist() and columns.tolist() == expected[1].tolist()


@pytest.mark.slow
def test_the_path_of_a_whole_window_is_openai_whispers(peer: Any) -> None:
    """Large enough that float32 sums round, which decides between near ties."""
    cost = matrix(224, 1500, 0, 0) * 1e3
    assert np.array_equal(np.stack(dtw_path(cost)), peer.dtw_cpu(cost.astype(np.float64)))


@given(
    n_heads=st.integers(1, 3),
    size=SIZES,
    width=st.sampled_from([1, 3, 5, 7]),
    seed=st.integers(0, 1 << 30),
    n_values=st.integers(0, 4),
)
def test_the_median_is_openai_whispers(
    peer: Any, n_heads: int, size: tuple[int, int], width: int, seed: int, n_values: int
) -> None:
    import torch

    x = np.stack([matrix(*size, seed + i, n_values) for i in range(n_heads)])
    expected = peer.median_filter(torch.from_numpy(x), width).numpy()
    assert np.array_equal(median_filter(x, width), expected)
    assert np.array_equal(median_filter(x[0], width), expected[0])
