"""Made-up audio and tokens for checks that need no files: the same on every machine.

Says nothing about accuracy; knows only dimensions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.bundles.manifest import Dims

N_PROBE_ROWS = 40
N_PROBE_FRAMES = 250  # an odd number of positions: rows of attention then start at every alignment in memory


def probe_mel(dims: Dims, n_frames: int = N_PROBE_FRAMES) -> NDArray[np.float32]:
    """A made-up log-mel, float32 `[n_mels, n_frames]`, the same on every machine: moving bands over a floor."""
    n_frames = min(n_frames, 2 * dims.n_audio_ctx)
    frames = np.arange(n_frames, dtype=np.float64)[None]
    bands = np.arange(dims.n_mels, dtype=np.float64)[:, None]
    mel = 0.6 * np.sin(0.13 * frames + 0.41 * bands) + 0.5 * np.cos(0.029 * frames * (1 + bands % 7)) - 0.2
    return np.clip(mel, -1.0, 1.5).astype(np.float32)


def probe_ids(dims: Dims, n_rows: int = N_PROBE_ROWS) -> list[int]:
    """Made-up token ids over the whole vocabulary, the same on every machine."""
    n_rows = min(n_rows, dims.n_text_ctx)
    return [(row * row * 7919 + row * 104729 + 17) % dims.n_vocab for row in range(n_rows)]
