"""Noise and speech for tests of what tells them apart: repeatable, as loud as asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.audio.audio import open_audio
from support.tree import ROOT

SAMPLES = tuple(ROOT / "tests" / "assets" / "samples" / name for name in ("maintenance.wav", "notes.wav"))
_EXPONENTS = {"white": 0.0, "pink": 0.5, "brown": 1.0}


def noise(n_samples: int, *, rms: float, color: str = "white", seed: int = 0) -> NDArray[np.float32]:
    """Steady noise of this level; pink falls by 3 dB an octave, brown by 6, both from 20 Hz on."""
    # Cut from a longer one, for the two ends of a noise made by an inverse FFT fit each other.
    n_made = n_samples + 16_000
    spectrum = np.fft.rfft(np.random.default_rng(seed).standard_normal(n_made))
    freqs_hz = np.maximum(np.fft.rfftfreq(n_made, 1 / 16_000), 20.0)
    shaped = np.fft.irfft(spectrum / freqs_hz ** _EXPONENTS[color], n_made)[:n_samples]
    return (shaped * (rms / np.sqrt((shaped**2).mean()))).astype(np.float32)


def speech(path: Path) -> NDArray[np.float32]:
    """A file's samples, float32 [n_samples] at 16 kHz."""
    with open_audio(path) as stream:
        return stream.read(60 * 16_000)


def mixed(samples: NDArray[np.float32], snr_db: float, *, color: str = "white") -> NDArray[np.float32]:
    """Speech with two seconds of noise before and after it, and noise under it, so many dB below its louder half."""
    level = np.sqrt((samples[np.abs(samples) > np.median(np.abs(samples))] ** 2).mean())
    padded = np.pad(samples, 32_000)
    return padded + noise(len(padded), rms=float(level) * 10 ** (-snr_db / 20), color=color)
