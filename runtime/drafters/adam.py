"""Adam with the gradients' common norm bounded, over named arrays that are changed in place (Kingma and Ba, 2015).

Does not know: what the arrays are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

__all__ = ["Adam"]

Floats = NDArray[np.float32]

_FIRST, _SECOND, _TINY = 0.9, 0.99, 1e-8


class Adam:
    """The optimiser of `weights`, float32 arrays; `rate` is the step, `clip` the largest norm of all gradients."""

    def __init__(self, weights: Mapping[str, Floats], *, rate: float, clip: float = 1.0) -> None:
        self._weights, self._rate, self._clip = weights, rate, clip
        self.reset()

    def reset(self) -> None:
        """Forget the gradients so far."""
        self._n_steps = 0
        self._mean = {name: np.zeros_like(array) for name, array in self._weights.items()}
        self._square = {name: np.zeros_like(array) for name, array in self._weights.items()}

    def step(self, gradients: Mapping[str, Floats]) -> bool:
        """One step; False, and nothing is changed, where the gradients are not all numbers."""
        norm = math.sqrt(sum(float((gradient.astype(np.float64) ** 2).sum()) for gradient in gradients.values()))
        if not math.isfinite(norm):
            return False
        scale = np.float32(min(1.0, self._clip / norm) if norm else 1.0)
        self._n_steps += 1
        rate = self._rate * math.sqrt(1 - _SECOND**self._n_steps) / (1 - _FIRST**self._n_steps)
        for name, gradient in gradients.items():
            mean, square, change = self._mean[name], self._square[name], gradient * scale
            mean += np.float32(1 - _FIRST) * (change - mean)
            square += np.float32(1 - _SECOND) * (change * change - square)
            self._weights[name][...] -= np.float32(rate) * mean / (np.sqrt(square) + np.float32(_TINY))
        return True
