"""Whisper's log-mel spectrogram in NumPy, for one window of samples or window by window along a stream.

The recipe is openai-whisper's (whisper/audio.py, `log_mel_spectrogram`): 16 kHz samples, STFT of 400 samples under a
periodic Hann window every 160 samples, centred, reflected at the edges, last frame dropped; power; Slaney mel bands of
unit area; log10 of at least 1e-10, no lower than 8 below the maximum, then (x + 4) / 4.

Two differences, both because a stream of any length is read in bounded memory:

* The maximum is taken over the window, not over the whole file, whose end has not been read yet. It is what the models
  were trained on (30 s pieces, each normalised by itself) and what transformers' feature extractor does for one window.
  A quiet window in a loud file therefore comes out brighter here than in openai-whisper's `transcribe`.
* After the end of the audio the samples are zero, so the frames there hold the floor that silence has, as they did in
  training. openai-whisper's `transcribe` puts the value 0.0 there, in the log-mel domain.

At the edges of a window inside a file the STFT sees the samples beyond them, as a slice of the whole file's STFT does.
Band counts and window lengths are the caller's. Knows nothing of models, files or sample rates other than 16 kHz.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

__all__ = [
    "HOP_SAMPLES",
    "N_FFT",
    "N_FREQS",
    "MelStream",
    "filterbank",
    "log_mel",
    "log_mel_from_power",
    "power_spectrum",
]

N_FFT = 400
HOP_SAMPLES = 160
N_FREQS = N_FFT // 2 + 1

_SAMPLE_RATE = 16_000
_HALF = N_FFT // 2
# n_frames frames span n_frames hops and this: half an FFT to the left of the window, the rest to its right.
_OVERLAP = N_FFT - HOP_SAMPLES
# Frames times 400 float32 samples, with their spectrum, stay within a core's second-level cache.
_BLOCK_FRAMES = 128
_READ_SAMPLES = 1 << 16

# Slaney's mel scale (Auditory Toolbox, 1998): linear up to 1 kHz, logarithmic above.
_HZ_PER_MEL = 200.0 / 3
_KNEE_HZ = 1000.0
_KNEE_MEL = _KNEE_HZ / _HZ_PER_MEL
_LOG_STEP = np.log(6.4) / 27.0

_WINDOW = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(N_FFT) / N_FFT)).astype(np.float32)


class _Samples(Protocol):
    def read(self, n_samples: int, /) -> NDArray[np.float32]: ...


@lru_cache(maxsize=8)
def filterbank(n_mels: int) -> NDArray[np.float32]:
    """Slaney filters of unit area, float32 [n_mels, N_FREQS], read-only: librosa.filters.mel(sr=16000, n_fft=400)."""
    top_mel = _KNEE_MEL + np.log(_SAMPLE_RATE / 2 / _KNEE_HZ) / _LOG_STEP
    mels = np.linspace(0.0, top_mel, n_mels + 2)
    edges_hz = np.where(mels < _KNEE_MEL, mels * _HZ_PER_MEL, _KNEE_HZ * np.exp(_LOG_STEP * (mels - _KNEE_MEL)))
    freqs_hz = np.linspace(0.0, _SAMPLE_RATE / 2, N_FREQS)
    slopes = edges_hz[:, None] - freqs_hz[None, :]
    widths_hz = np.diff(edges_hz)[:, None]
    rising = -slopes[:-2] / widths_hz[:-1]
    falling = slopes[2:] / widths_hz[1:]
    area = 2.0 / (edges_hz[2:] - edges_hz[:-2])
    filters = (np.maximum(0.0, np.minimum(rising, falling)) * area[:, None]).astype(np.float32)
    filters.flags.writeable = False
    return filters


def power_spectrum(samples: NDArray[np.float32], n_frames: int | None = None) -> NDArray[np.float32]:
    """Power of the STFT of one window, float32 [N_FREQS, n_frames], laid out frame by frame in memory.

    `samples`: float32 [n_samples] at 16 kHz; zero-padded or cut to `n_frames` * HOP_SAMPLES (default: the whole hops
    that they fill). Reflected at both edges of that. Serves any number of filterbanks, see `log_mel_from_power`.
    """
    if n_frames is None:
        n_frames = len(samples) // HOP_SAMPLES
    n_window = n_frames * HOP_SAMPLES
    samples = samples[:n_window]
    padded = np.zeros(n_window + _OVERLAP, np.float32)
    end = _HALF + n_window
    padded[_HALF : _HALF + len(samples)] = samples
    _reflect_start(padded, _HALF)
    n_right = len(padded) - end
    padded[end:] = padded[end - 1 - n_right : end - 1][::-1]
    return _power(padded, n_frames, _HALF + len(samples) + n_right)


def log_mel_from_power(power: NDArray[np.float32], n_mels: int) -> NDArray[np.float32]:
    """Whisper's normalised log-mel, float32 [n_mels, n_frames], of a `power_spectrum` [N_FREQS, n_frames]."""
    mel = filterbank(n_mels) @ power
    if not mel.size:
        return mel
    np.maximum(mel, np.float32(1e-10), out=mel)
    np.log10(mel, out=mel)
    np.maximum(mel, mel.max() - np.float32(8), out=mel)
    mel += np.float32(4)
    mel *= np.float32(0.25)
    return mel


def log_mel(samples: NDArray[np.float32], n_mels: int, n_frames: int) -> NDArray[np.float32]:
    """One window's log-mel, float32 [n_mels, n_frames]: openai-whisper's log_mel_spectrogram(pad_or_trim(samples)).

    `samples`: float32 [n_samples] at 16 kHz, zero-padded or cut to `n_frames` * HOP_SAMPLES.
    """
    return log_mel_from_power(power_spectrum(samples, n_frames), n_mels)


class MelStream:
    """Log-mel windows at non-decreasing starts along an AudioStream, holding little more than one window of samples.

    `stream`: anything whose `read(n_samples)` gives float32 samples at 16 kHz, fewer than asked for only at the end; it
    is read no further than the window asked for, and stays the caller's to close. Errors: what `read` raises.
    """

    def __init__(self, stream: _Samples, n_mels: int, n_frames: int) -> None:
        self.n_mels = n_mels
        self.n_frames = n_frames
        self._stream = stream
        # `_held` samples, from the stream's sample `_origin` on: as many as one window's frames see.
        self._buffer = np.zeros(n_frames * HOP_SAMPLES + _OVERLAP, np.float32)
        self._origin = 0
        self._held = 0
        self._is_ended = False

    def window(self, start_frame: int) -> tuple[NDArray[np.float32], int]:
        """Log-mel float32 [n_mels, n_frames] from frame `start_frame` on, and how many of its frames hold audio.

        A frame holds audio if its whole hop does, as openai-whisper counts; the others are silence after the end.
        `start_frame` may stay or grow, never fall: ValueError.
        """
        power, n_content_frames = self.power(start_frame)
        return log_mel_from_power(power, self.n_mels), n_content_frames

    def power(self, start_frame: int) -> tuple[NDArray[np.float32], int]:
        """As `window`, but the power spectrum [N_FREQS, n_frames], from which several band counts can be made."""
        start = start_frame * HOP_SAMPLES
        left = start - _HALF
        if max(left, 0) < self._origin or start_frame < 0:
            raise ValueError(f"start_frame {start_frame}: windows of a stream are read forwards")
        self._advance(max(left, 0))
        self._fill(left + len(self._buffer))
        padded = np.zeros(len(self._buffer), np.float32)
        n_missing = max(0, -left)
        n_here = min(self._held, len(padded) - n_missing)
        padded[n_missing : n_missing + n_here] = self._buffer[:n_here]
        _reflect_start(padded, n_missing)
        n_content_frames = min(self.n_frames, max(0, self._origin + self._held - start) // HOP_SAMPLES)
        return _power(padded, self.n_frames, n_missing + n_here), n_content_frames

    def _advance(self, first: int) -> None:
        """Let go of everything before sample `first`, reading past what is not held."""
        n_drop = min(first - self._origin, self._held)
        self._buffer[: self._held - n_drop] = self._buffer[n_drop : self._held]
        self._held -= n_drop
        self._origin += n_drop
        while self._origin < first and not self._is_ended:
            self._origin += len(self._read(min(first - self._origin, _READ_SAMPLES)))
        if self._is_ended and not self._held:
            self._origin = max(self._origin, first)

    def _fill(self, end: int) -> None:
        """Read on until sample `end` is held or the audio ends."""
        while self._origin + self._held < end and not self._is_ended:
            block = self._read(min(end - self._origin - self._held, _READ_SAMPLES))
            self._buffer[self._held : self._held + len(block)] = block
            self._held += len(block)

    def _read(self, n_samples: int) -> NDArray[np.float32]:
        block = self._stream.read(n_samples)
        self._is_ended = len(block) < n_samples
        return block


def _reflect_start(padded: NDArray[np.float32], edge: int) -> None:
    """Mirror what follows the first sample, at `edge`, to its left; the sample itself is not repeated."""
    mirrored = padded[edge + 1 : 2 * edge + 1][::-1]
    padded[edge - len(mirrored) : edge] = mirrored


def _power(padded: NDArray[np.float32], n_frames: int, end: int) -> NDArray[np.float32]:
    """[N_FREQS, n_frames] of samples that begin half an FFT early; from index `end` on they are all zero."""
    power = np.zeros((n_frames, N_FREQS), np.float32)
    n_loud = min(n_frames, -(-end // HOP_SAMPLES))
    frames = sliding_window_view(padded, N_FFT)[::HOP_SAMPLES] if n_loud else padded[:0]
    for first in range(0, n_loud, _BLOCK_FRAMES):
        last = min(first + _BLOCK_FRAMES, n_loud)
        spectrum = np.fft.rfft(frames[first:last] * _WINDOW)
        power[first:last] = spectrum.real**2
        power[first:last] += spectrum.imag**2
    return power.T
