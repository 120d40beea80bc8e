"""`faster_whisper.feature_extractor`: the log-mel of a piece of audio."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.audio.mel import HOP_SAMPLES, N_FFT, filterbank, log_mel

__all__ = ["FeatureExtractor"]

_SAMPLE_RATE = 16_000


class FeatureExtractor:
    """Whisper's log-mel with `feature_size` bands; chunk_length: seconds of a model's window.

    Raises ValueError for a rate, a hop or an FFT that Whisper does not have.
    """

    def __init__(
        self,
        feature_size: int = 80,
        sampling_rate: int = _SAMPLE_RATE,
        hop_length: int = HOP_SAMPLES,
        chunk_length: float = 30,
        n_fft: int = N_FFT,
    ) -> None:
        if (sampling_rate, hop_length, n_fft) != (_SAMPLE_RATE, HOP_SAMPLES, N_FFT):
            raise ValueError(
                f"features of {sampling_rate} Hz, hop {hop_length}, FFT {n_fft}: expected {_SAMPLE_RATE}, "
                f"{HOP_SAMPLES} and {N_FFT}"
            )
        self.sampling_rate, self.hop_length, self.n_fft = sampling_rate, hop_length, n_fft
        self.chunk_length = chunk_length
        self.n_samples = int(chunk_length * sampling_rate)
        self.nb_max_frames = self.n_samples // hop_length
        self.time_per_frame = hop_length / sampling_rate
        self.mel_filters = filterbank(feature_size)

    def __call__(
        self, waveform: NDArray[Any], padding: int = HOP_SAMPLES, chunk_length: float | None = None
    ) -> NDArray[np.float32]:
        """Float32 [feature_size, n_frames] of samples [n_samples] with `padding` zeros behind them."""
        if chunk_length is not None:
            self.n_samples = int(chunk_length * self.sampling_rate)
            self.nb_max_frames = self.n_samples // self.hop_length
        samples = np.asarray(waveform, np.float32).ravel()
        return log_mel(samples, len(self.mel_filters), (len(samples) + padding) // self.hop_length)
