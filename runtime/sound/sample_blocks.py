"""Samples that wait in blocks until somebody asks for some of them.

Does not know: where blocks come from, rates, files.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["take"]


def take(waiting: list[NDArray[np.float32]], n_samples: int) -> NDArray[np.float32]:
    """Remove the first `n_samples` from `waiting`, fewer where there are fewer, and return them joined."""
    out: list[NDArray[np.float32]] = []
    n_left = n_samples
    while n_left > 0 and waiting:
        block = waiting[0]
        out.append(block[:n_left])
        n_left -= len(out[-1])
        if len(out[-1]) < len(block):
            waiting[0] = block[len(out[-1]) :]
        else:
            del waiting[0]
    return np.concatenate(out) if out else np.zeros(0, np.float32)
