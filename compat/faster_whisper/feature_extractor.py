"""`faster_whisper.feature_extractor`: the log-mel of a piece of audio."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.audio.mel import HOP_SAMPLES, N_FFT, filterbank, log_mel

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

    @staticmethod
    def get_mel_filters(sr: int, n_fft: int, n_mels: int = 128) -> NDArray[np.float32]:
        """Float32 [n_mels, n_fft / 2 + 1], for Whisper's rate and FFT alone."""
        if (sr, n_fft) != (_SAMPLE_RATE, N_FFT):
            raise ValueError(f"mel filters of {sr} Hz, FFT {n_fft}: expected {_SAMPLE_RATE} and {N_FFT}")
        return filterbank(int(n_mels))

    @staticmethod
    def stft(
        input_array: NDArray[Any],
        n_fft: int,
        hop_length: int | None = None,
        win_length: int | None = None,
        window: NDArray[Any] | None = None,
        center: bool = True,
        mode: str = "reflect",
        normalized: bool = False,
        onesided: bool | None = None,
        return_complex: bool | None = None,
    ) -> NDArray[Any]:
        """The spectra of `input_array`, [n_bins, n_frames]: complex if `return_complex`, else their real parts."""
        hop_length, win_length = hop_length or n_fft // 4, win_length or n_fft
        given = np.ones(win_length, np.float32) if window is None else window
        left = (n_fft - len(given)) // 2
        weights = np.pad(given, (left, n_fft - len(given) - left))
        padded = np.pad(input_array, n_fft // 2, mode=mode) if center else input_array  # type: ignore[call-overload]
        frames = np.lib.stride_tricks.sliding_window_view(padded, n_fft)[::hop_length] * weights
        spectra = np.fft.fft(frames, axis=1) if onesided is False else np.fft.rfft(frames, axis=1)
        found: NDArray[Any] = spectra.T / (np.sqrt(n_fft) if normalized else 1)
        return found if return_complex else found.real

    def __call__(
        self, waveform: NDArray[Any], padding: int = HOP_SAMPLES, chunk_length: float | None = None
    ) -> NDArray[np.float32]:
        """Float32 [feature_size, n_frames] of samples [n_samples] with `padding` zeros behind them."""
        if chunk_length is not None:
            self.n_samples = int(chunk_length * self.sampling_rate)
            self.nb_max_frames = self.n_samples // self.hop_length
        samples = np.asarray(waveform, np.float32).ravel()
        return log_mel(samples, len(self.mel_filters), (len(samples) + padding) // self.hop_length)
