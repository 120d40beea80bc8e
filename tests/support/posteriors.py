"""Posteriors of a CTC head that nobody trained: a text spelt frame by frame, with doubts where a test wants them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specedge.runtime.drafters.ctc.head import BLANK, N_UNITS, Posteriors


@dataclass(frozen=True)
class Window:
    """What an engine gives for a window, as far as a drafter looks at it."""

    hidden: Any


def spoken(
    text: str | bytes,
    *,
    sure: float = 0.95,
    doubts: Mapping[int, Mapping[str, float]] | None = None,
    first_frame: int = 3,
    frames_each: int = 2,
    pauses: Sequence[int] = (),
    pause_frames: int = 20,
) -> Posteriors:
    """Each byte `frames_each` frames of the probability `sure`, a blank frame behind it.

    doubts: what else the byte at an index may be, and how likely (its own byte has what is left of `sure`); pauses:
    indices of bytes before which nothing is heard for `pause_frames`.
    """
    said = text.encode() if isinstance(text, str) else text
    frames, rows = list[int](), list[np.ndarray[Any, np.dtype[np.float64]]]()
    at = first_frame
    for i, byte in enumerate(said):
        at += pause_frames if i in pauses else 0
        row = np.full(N_UNITS, (1 - sure) / (N_UNITS - 2))
        row[BLANK] = (1 - sure) / 2
        others = {other: share for other, share in (doubts or {}).get(i, {}).items() if other.encode()[0] != byte}
        row[byte + 1] = sure - sum(others.values())
        for other, share in others.items():
            row[other.encode()[0] + 1] = share
        frames += range(at, at + frames_each)
        rows += [row] * frames_each
        blank = np.full(N_UNITS, 0.01 / (N_UNITS - 1))
        blank[BLANK] = 0.99
        frames.append(at + frames_each)
        rows.append(blank)
        at += frames_each + 1
    log_probs = np.log(np.array(rows).reshape(len(rows), N_UNITS) + 1e-9).astype(np.float32)
    return Posteriors(frames=np.array(frames, np.int64), log_probs=log_probs, n_ctx=max(500, at))


def unheard(n: int = 0, value: float = float("nan")) -> Posteriors:
    """`n` frames of one value."""
    return Posteriors(
        frames=np.arange(n, dtype=np.int64), log_probs=np.full((n, N_UNITS), value, np.float32), n_ctx=500
    )


def random_posteriors(rng: np.random.Generator, n: int, sharpness: float = 8.0) -> Posteriors:
    """`n` frames of anything, most of it among the bytes of English text."""
    logits = rng.standard_normal((n, N_UNITS)) * sharpness
    logits[:, 128:] -= 3 * sharpness
    peaks = logits.max(1, keepdims=True)
    log_probs = logits - peaks - np.log(np.exp(logits - peaks).sum(1, keepdims=True))
    frames = np.sort(rng.choice(500, n, replace=False)).astype(np.int64)
    return Posteriors(frames=frames, log_probs=log_probs.astype(np.float32), n_ctx=500)
