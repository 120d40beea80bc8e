"""Samples that a program has as an array, in the blocks that audio.py reads from any source.

The array is mono; it must stay as it is while it is read. Does not know: files, resampling.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.errors import AudioError

__all__ = ["ArrayReader"]

_KINDS = {"float16", "float32", "float64", "int16"}


class ArrayReader:
    """Blocks of a caller's array [n_samples], which is never copied whole. Raises AudioError for any other array."""

    n_channels = 1

    def __init__(self, samples: NDArray[Any], *, rate_hz: int) -> None:
        if samples.ndim != 1 or samples.dtype.name not in _KINDS:
            raise AudioError(
                f"array: shape {samples.shape} of {samples.dtype}; expected mono [n_samples] at {rate_hz} Hz,"
                " float in [-1, 1] or int16"
            )
        self.is_float = samples.dtype.kind == "f"
        self.n_frames: int | None = len(samples)
        self.rate_hz = rate_hz
        self._samples = samples
        self._at = 0

    def read(self, n_frames: int) -> NDArray[np.float32]:
        with np.errstate(over="ignore", invalid="ignore"):
            block = self._samples[self._at : self._at + n_frames].astype(np.float32)
        self._at += len(block)
        return (block if self.is_float else block * np.float32(1 / 32768))[:, None]

    def close(self) -> None:
        self._samples = self._samples[:0]
