"""Made-up input for probes of the graphs, the same on every machine."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..bundle.manifest import Dims, Manifest
from .kv_cache import Features
from .many import BIAS

N_PROBE_ROWS = 40
N_PROBE_FRAMES = 250  # an odd number of positions, so that rows of attention start at every alignment in memory


def probe_mel(dims: Dims, n_frames: int = N_PROBE_FRAMES) -> NDArray[np.float32]:
    """A made-up log-mel, float32 `[n_mels, n_frames]`: moving bands over a floor."""
    n_frames = min(n_frames, dims.n_frames)
    frames = np.arange(n_frames, dtype=np.float64)[None]
    bands = np.arange(dims.n_mels, dtype=np.float64)[:, None]
    mel = 0.6 * np.sin(0.13 * frames + 0.41 * bands) + 0.5 * np.cos(0.029 * frames * (1 + bands % 7)) - 0.2
    return np.clip(mel, -1.0, 1.5).astype(np.float32)


def probe_ids(dims: Dims, n_rows: int = N_PROBE_ROWS) -> list[int]:
    """Made-up token ids over the whole vocabulary."""
    n_rows = min(n_rows, dims.n_text_ctx)
    return [(row * row * 7919 + row * 104729 + 17) % dims.n_vocab for row in range(n_rows)]


def probe_window(manifest: Manifest, n_ctx: int, seed: int) -> Features:
    """A window of noise, `n_ctx` positions long; its encoder output is not filled."""
    rng = np.random.default_rng(seed)
    cross: dict[str, NDArray[Any]] = {}
    for tensor in manifest.graphs["decoder"].inputs:
        if tensor.name.startswith("cross_"):
            values = rng.standard_normal([1, *(axis if isinstance(axis, int) else n_ctx for axis in tensor.shape[1:])])
            values = np.abs(values) if tensor.name == BIAS else values
            cross[tensor.name] = (values * 40 if tensor.dtype == "int8" else values).astype(tensor.dtype)
    return Features(hidden=np.empty((n_ctx, manifest.dims.n_audio_state), np.float32), cross=cross)
