"""Speech cut into pieces of at most one window, at pauses where there are any.

Stretches of speech are joined as long as they fit, as faster-whisper's `collect_chunks` does. Speech that goes on for
longer than a piece is cut where it is quietest in the last third. Does not know: how speech is found, models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.audio import SAMPLE_RATE

__all__ = ["Chunk", "quietest", "speech_chunks"]

_GAP_S = 0.05
_PAUSE_SAMPLES = SAMPLE_RATE // 10


class _Stream(Protocol):
    def read(self, n_samples: int, /) -> NDArray[np.float32]: ...


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Samples float32 [n_samples] at 16 kHz, and where they begin in the stream, seconds."""

    samples: NDArray[np.float32]
    start_s: float


def speech_chunks(stream: _Stream, max_samples: int, original_s: Callable[[float], float]) -> Iterator[Chunk]:
    """Cut `stream` into chunks of at most `max_samples`, none empty.

    `original_s` says when a second of the stream was in the audio it was cut from: where that jumps, there was a pause.
    """
    at = 0
    held = stream.read(max_samples)
    while len(held):
        is_last = len(held) < max_samples
        more = np.zeros(0, np.float32) if is_last else stream.read(1)
        if is_last or not len(more):
            yield Chunk(samples=held, start_s=at / SAMPLE_RATE)
            return
        cut = _last_pause(at, len(held), original_s) or quietest(held)
        yield Chunk(samples=held[:cut], start_s=at / SAMPLE_RATE)
        at += cut
        held = np.concatenate([held[cut:], more])
        held = np.concatenate([held, stream.read(max_samples - len(held))])


def quietest(samples: NDArray[np.float32]) -> int:
    """The middle of the tenth of a second with the least energy in the last third of `samples`, more than 0."""
    first = len(samples) - len(samples) // 3
    tail = samples[first:].astype(np.float64)
    if len(tail) <= _PAUSE_SAMPLES:
        return len(samples)
    energy = np.concatenate([[0.0], np.cumsum(tail * tail)])
    return first + int(np.argmin(energy[_PAUSE_SAMPLES:] - energy[:-_PAUSE_SAMPLES])) + _PAUSE_SAMPLES // 2


def _last_pause(at: int, n_samples: int, original_s: Callable[[float], float]) -> int:
    """The last place within `n_samples` from sample `at` on where a pause was cut out; 0 if there is none."""

    def removed_s(n: int) -> float:
        return original_s((at + n) / SAMPLE_RATE) - (at + n) / SAMPLE_RATE

    limit = removed_s(n_samples) - _GAP_S
    low, high = 0, n_samples
    if removed_s(low) > limit:
        return 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if removed_s(middle) <= limit else (low, middle)
    return high
