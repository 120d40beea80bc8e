"""Median filter and dynamic time warping, vectorised: what turns attention into a monotonic path through the audio.

Both give the results of openai-whisper's timing.py (median_filter, dtw_cpu) to the bit: the same float32 costs, and the
same choice among equal ones. They know matrices only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["dtw_path", "median_filter"]

_DIAGONAL, _UP, _LEFT = 0, 1, 2


def median_filter(x: NDArray[np.float32], width: int) -> NDArray[np.float32]:
    """The median of `width` (odd) neighbours along the last axis of `x` float32, ends mirrored without the end itself.

    An `x` not longer than half the width comes back as it is. Makes `width` copies of `x`.
    """
    reach = width // 2
    if x.shape[-1] <= reach:
        return x
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(reach, reach)], mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, width, axis=-1)
    middle: NDArray[np.float32] = np.partition(windows, reach, axis=-1)[..., reach]
    return middle


def dtw_path(cost: NDArray[np.floating[Any]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The cheapest monotonic path through `cost` `[n_rows, n_columns]`, both at least 1, from corner to corner.

    Returns the row and the column of each step, int64. A step goes down, right or both; sums are rounded to float32.
    Of equal sums the step to the right is preferred, unless it is dearer than one of the others.
    """
    return _trace_back(_steps(cost.astype(np.float64)))


def _steps(cost: NDArray[np.float64]) -> NDArray[np.int8]:
    """How each cell is best reached, `[n_rows + 1, n_columns + 1]`, one anti-diagonal at a time.

    Cells of a diagonal depend on the two before it only. `before[i]` and `last[i]` are the sums of row i there.
    """
    n_rows, n_columns = cost.shape
    steps = np.empty((n_rows + 1, n_columns + 1), np.int8)
    before = np.full(n_rows + 1, np.inf, np.float32)
    before[0] = 0
    last = np.full(n_rows + 1, np.inf, np.float32)
    for diagonal in range(2, n_rows + n_columns + 1):
        low, high = max(1, diagonal - n_columns), min(n_rows, diagonal - 1) + 1
        rows = np.arange(low, high)
        columns = diagonal - rows
        corner, up, left = before[low - 1 : high - 1], last[low - 1 : high - 1], last[low:high]
        from_corner = (corner < up) & (corner < left)
        from_up = (up < corner) & (up < left)
        best = np.where(from_corner, corner, np.where(from_up, up, left))
        steps[rows, columns] = np.where(from_corner, _DIAGONAL, np.where(from_up, _UP, _LEFT))
        sums = np.full(n_rows + 1, np.inf, np.float32)
        sums[low:high] = cost[rows - 1, columns - 1] + best
        before, last = last, sums
    steps[0, :] = _LEFT
    steps[:, 0] = _UP
    return steps


def _trace_back(steps: NDArray[np.int8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    row, column = steps.shape[0] - 1, steps.shape[1] - 1
    path = []
    while row > 0 or column > 0:
        path.append((row - 1, column - 1))
        step = steps[row, column]
        row -= step != _LEFT
        column -= step != _UP
    rows, columns = np.array(path[::-1], np.int64).T
    return rows, columns
