"""Speech cut into pieces of at most one window, at pauses where there are any.

Stretches of speech are joined as long as they fit, as faster-whisper's `collect_chunks` does. A stretch
longer than a piece is cut where it is quietest in the last third. Does not know: how speech is found, models.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.sound.audio import SAMPLE_RATE

__all__ = ["Chunk", "quietest", "speech_chunks"]

_PAUSE_SAMPLES = SAMPLE_RATE // 10


class _Stream(Protocol):
    def read(self, n_samples: int, /) -> NDArray[np.float32]: ...


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Samples float32 [n_samples] at 16 kHz, and where they begin in the stream, seconds."""

    samples: NDArray[np.float32]
    start_s: float


def speech_chunks(stream: _Stream, max_samples: int, ends: Callable[[], Sequence[int]]) -> Iterator[Chunk]:
    """Cut `stream` into chunks of at most `max_samples`, none empty.

    `ends` gives, in samples of the stream, where each stretch of speech found so far ends, the one being read last.
    """
    at = 0
    held = stream.read(max_samples)
    while len(held):
        more = stream.read(1) if len(held) == max_samples else held[:0]
        if not len(more):
            yield Chunk(samples=held, start_s=at / SAMPLE_RATE)
            return
        cut = _last_pause(at, max_samples, ends()) or quietest(held)
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


def _last_pause(at: int, max_samples: int, ends: Sequence[int]) -> int:
    """How many samples after `at` the last stretch ends that fits into a chunk; 0 if none does."""
    index = bisect.bisect_right(ends[:-1], at + max_samples) - 1
    return max(0, ends[index] - at) if index >= 0 else 0
