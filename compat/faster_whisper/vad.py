"""`faster_whisper.vad`: speech in samples, by specedge's detectors."""

from __future__ import annotations

import bisect
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.models import store
from specedge.runtime.audio.audio import open_audio
from specedge.runtime.audio.vad import SileroDetector
from specedge.runtime.longform.vad_filter import find_speech
from specedge.runtime.model import vad_options as checked

Chunk = dict[str, int]
"""The first sample ("start") of a stretch of speech and the one behind it ("end")."""


@dataclass
class VadOptions:
    """What counts as speech; meanings are those of `specedge.VadOptions`."""

    threshold: float = 0.5
    neg_threshold: float | None = None
    min_speech_duration_ms: int = 0
    max_speech_duration_s: float = math.inf
    min_silence_duration_ms: int = 2000
    speech_pad_ms: int = 400


def get_speech_timestamps(
    audio: NDArray[Any], vad_options: VadOptions | None = None, sampling_rate: int = 16_000, **kwargs: Any
) -> list[Chunk]:
    """The speech in `audio`, float [n_samples] at 16 kHz. Raises UsageError for options that cannot be."""
    if sampling_rate != 16_000:
        raise ValueError(f"sampling_rate: got {sampling_rate}, expected 16000")
    if not len(audio):
        return []
    with open_audio(audio) as stream:
        spans = find_speech(stream, checked(asdict(vad_options or VadOptions(**kwargs))))
    return [{"start": start, "end": end} for start, end in spans]


def collect_chunks(
    audio: NDArray[Any], chunks: Sequence[Chunk], sampling_rate: int = 16_000, max_duration: float = math.inf
) -> tuple[list[NDArray[Any]], list[dict[str, Any]]]:
    """The speech of `audio` in pieces of at most `max_duration` seconds, each of whole chunks where they fit.

    Returns the samples of each piece and what is known about it: its offset in the joined speech and its duration, in
    seconds, and its chunks.
    """
    groups: list[list[Chunk]] = [[]]
    for chunk in chunks:
        n_samples = sum(item["end"] - item["start"] for item in [*groups[-1], chunk])
        if groups[-1] and n_samples > max_duration * sampling_rate:
            groups.append([])
        groups[-1].append(chunk)
    pieces, known, offset = [], [], 0
    for group in groups:
        parts = [audio[chunk["start"] : chunk["end"]] for chunk in group]
        pieces.append(np.concatenate([np.zeros(0, np.float32), *parts]))
        n_samples = len(pieces[-1])
        known.append({"offset": offset / sampling_rate, "duration": n_samples / sampling_rate, "segments": group})
        offset += n_samples
    return pieces, known


class SpeechTimestampsMap:
    """The way from times in the joined speech of `chunks` back to times of the audio, in seconds."""

    def __init__(self, chunks: Sequence[Chunk], sampling_rate: int, time_precision: int = 2) -> None:
        self.sampling_rate, self.time_precision = sampling_rate, time_precision
        self.chunk_end_sample = list(accumulate(chunk["end"] - chunk["start"] for chunk in chunks))
        silent = [chunk["end"] - end for chunk, end in zip(chunks, self.chunk_end_sample, strict=True)]
        self.total_silence_before = [n_samples / sampling_rate for n_samples in silent]

    def get_original_time(self, time: float, chunk_index: int | None = None, is_end: bool = False) -> float:
        """Seconds of the audio."""
        index = self.get_chunk_index(time, is_end) if chunk_index is None else chunk_index
        return round(self.total_silence_before[index] + time, self.time_precision)

    def get_chunk_index(self, time: float, is_end: bool = False) -> int:
        """The chunk of a time; at a border the later one, unless `is_end`."""
        sample = int(time * self.sampling_rate)
        search = bisect.bisect_left if is_end else bisect.bisect_right
        return min(search(self.chunk_end_sample, sample), len(self.chunk_end_sample) - 1)


class SileroVADModel:
    """Silero's model from its file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)

    def __call__(
        self, audio: NDArray[Any], num_samples: int = 512, context_size_samples: int = 64
    ) -> NDArray[np.float32]:
        """The probability of speech of each 512 samples of `audio` [n_samples]. Raises ValueError for other sizes."""
        if (num_samples, context_size_samples) != (512, 64) or audio.ndim != 1 or len(audio) % 512:
            raise ValueError("expected one channel of whole frames of 512 samples, with a context of 64")
        return SileroDetector(self._path).push(audio.reshape(-1, 512).astype(np.float32))


def get_vad_model() -> SileroVADModel:
    """The installed Silero model. Raises ModelError, which says how to get it."""
    return SileroVADModel(store.find_file("silero-vad"))
