"""`faster_whisper.audio`: decoding, and arrays of a given length."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.audio.audio import decode_audio

__all__ = ["decode_audio", "pad_or_trim"]


def pad_or_trim(array: NDArray[Any], length: int = 3000, *, axis: int = -1) -> NDArray[Any]:
    """`array` with `length` items along `axis`: cut, or with zeros behind."""
    kept = np.take(array, range(min(length, array.shape[axis])), axis=axis)
    widths = [(0, 0)] * array.ndim
    widths[axis] = (0, length - kept.shape[axis])
    return np.pad(kept, widths)
