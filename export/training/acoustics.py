"""Random acoustics for copies of training windows: room, band limits, noise, a telephone's codec, gain.

All take and give float32 samples at 16 kHz in [-1, 1] and a seeded NumPy generator.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from specedge.runtime.bundle.manifest import SAMPLE_RATE_HZ as RATE_HZ

Float = npt.NDArray[np.float32]
Rng = np.random.Generator


def noise(rng: Rng, n_samples: int) -> Float:
    """Noise of unit power: coloured, humming or knocking."""
    kind = rng.integers(0, 6)
    if kind == 1:
        t = np.arange(n_samples, dtype=np.float32) / RATE_HZ
        base = rng.choice((50.0, 60.0, 100.0, 120.0)) * rng.uniform(0.98, 1.02)
        out = np.zeros(n_samples, np.float32)
        for k in range(1, 8):
            out += np.sin(2 * np.pi * base * k * t + rng.uniform(0, 6.28), dtype=np.float32) * rng.uniform(0, 1) / k
        out += rng.standard_normal(n_samples, np.float32) * 0.1
    elif kind == 2:
        out = rng.standard_normal(n_samples, np.float32) * 0.03
        for at in rng.integers(0, max(1, n_samples - 400), int(rng.integers(3, 25))):
            n = min(400, n_samples - int(at))
            out[at : at + n] += rng.standard_normal(n, np.float32) * np.exp(-np.arange(n, dtype=np.float32) / 60)
    else:
        # colour by a random walk over a few bands of a half-second loop: cheap, and as varied as needed
        loop = rng.standard_normal(16384, np.float32)
        slope = rng.uniform(0.0, 1.6)
        spectrum = np.fft.rfft(loop)
        shape = np.arange(1, spectrum.size + 1, dtype=np.float32) ** (-slope / 2)
        loop = np.fft.irfft(spectrum * shape).astype(np.float32)
        out = np.resize(loop, n_samples).astype(np.float32)
        if kind == 5:
            out = out * (1 + 0.9 * np.sin(np.arange(n_samples, dtype=np.float32) * float(rng.uniform(1e-4, 3e-3))))
    return np.asarray(out / (np.sqrt(np.mean(out * out)) + 1e-9), np.float32)


def reverb(rng: Rng, samples: Float) -> Float:
    """Convolve with a synthetic room: exponentially falling noise of 0.08 to 0.5 s behind the direct sound."""
    decay_s = rng.uniform(0.08, 0.5)
    n = int(RATE_HZ * decay_s)
    tail = rng.standard_normal(n, np.float32) * np.exp(-6.9 * np.arange(n, dtype=np.float32) / n)
    tail[: int(rng.integers(20, 300))] = 0
    tail *= float(rng.uniform(0.1, 0.7)) / (np.sqrt(np.sum(tail * tail)) + 1e-9)
    tail[0] = 1.0
    size = 1 << (samples.size + n - 1).bit_length()
    wet = np.fft.irfft(np.fft.rfft(samples, size) * np.fft.rfft(tail, size), size)[: samples.size]
    return np.asarray(wet, np.float32)


def band(rng: Rng, samples: Float) -> Float:
    """A telephone's or a cheap microphone's band: soft edges at a low and a high frequency, and a tilt."""
    spectrum = np.fft.rfft(samples)
    hz = np.fft.rfftfreq(samples.size, 1 / RATE_HZ).astype(np.float32)
    high = 3400.0 if rng.random() < 0.3 else rng.uniform(3400, 8000)
    if rng.random() < 0.3:
        high = 4000.0  # recorded at 8 kHz
    low = rng.uniform(20, 300)
    tilt = (np.maximum(hz, 50) / 1000) ** float(rng.uniform(-0.35, 0.35))
    shape = tilt / (1 + (hz / high) ** 24) / (1 + (low / np.maximum(hz, 1)) ** 6)
    return np.asarray(np.fft.irfft(spectrum * shape, samples.size), np.float32)


def telephone(samples: Float) -> Float:
    """What 8 bits of mu-law at 8 kHz (ITU-T G.711) leave."""
    peak = float(np.abs(samples).max()) + 1e-6
    spectrum = np.fft.rfft(samples / peak)
    spectrum[np.fft.rfftfreq(samples.size, 1 / RATE_HZ) > 4000] = 0
    narrow = np.fft.irfft(spectrum, samples.size)
    steps = np.round(np.sign(narrow) * np.log1p(255 * np.abs(narrow)) / np.log(256) * 127) / 127
    return np.asarray(np.sign(steps) * (256 ** np.abs(steps) - 1) / 255 * peak, np.float32)


def equalise(rng: Rng, samples: Float, reach_db: float = 9.0) -> Float:
    """Another throat, room or microphone: a smooth random gain, drawn at seven frequencies an octave apart."""
    spectrum = np.fft.rfft(samples)
    hz = np.fft.rfftfreq(samples.size, 1 / RATE_HZ)
    octave = np.log2(np.maximum(hz, 60.0) / 62.5)
    gain_db = np.interp(octave, np.arange(8), rng.uniform(-reach_db, reach_db, 8))
    return np.asarray(np.fft.irfft(spectrum * 10 ** (gain_db / 20), samples.size), np.float32)


def acoustics(rng: Rng, samples: Float) -> Float:
    """Room, band, noise, codec and gain for one window, float32 [n] -> float32 [n] within [-1, 1]."""
    level = float(np.sqrt(np.mean(samples * samples))) + 1e-6
    if rng.random() < 0.25:
        samples = reverb(rng, samples)
    if rng.random() < 0.35:
        samples = band(rng, samples)
    if rng.random() < 0.6:
        samples = equalise(rng, samples)
    if rng.random() < 0.55:
        samples = samples + noise(rng, samples.size) * (level * 10 ** (-rng.uniform(8, 35) / 20))
    elif rng.random() < 0.7:
        samples = samples + rng.standard_normal(samples.size, np.float32) * 10 ** rng.uniform(-4.5, -2.7)
    if rng.random() < 0.25:
        samples = telephone(samples)
    return np.asarray(np.clip(samples * 10 ** (rng.uniform(-22, 4) / 20), -1, 1), np.float32)
