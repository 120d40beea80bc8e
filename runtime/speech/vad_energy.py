"""Speech by energy: how far the bands of speech rise above a noise floor that follows the recording. No model needed.

For each frame of 512 samples (32 ms) the power in 16 mel bands from 150 to 6000 Hz is taken from half-overlapping
windows and averaged over three frames. The floor of a band is a low percentile of its power over about four seconds,
past and to come: continuous speech leaves every band again and again, so it does not lift its own floor, while steady
noise of any level and colour is all floor. With r the ratio of a band's power to the floor's, the score is the mean
over the bands of r - 1 - ln r where r is above 1 (the likelihood ratio of Sohn, Kim and Sung, A statistical model-based
voice activity detection, 1999), and the probability is score / (score + a constant).

Frames below -90 dB of full scale are digital silence: never speech, and no part of the floor, so that noise that sets
in after a mute is not taken for speech. The constant puts the highest frames of steady noise, white to brown, below the
threshold at which speech ends by default, with room to spare.

Limits: music, and noise that comes and goes like speech, are speech here; speech below -90 dB is silence. Knows samples
at 16 kHz and nothing of spans, files or models. Memory: about four seconds of band powers.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from specedge.runtime.speech.vad_spans import FRAME_SAMPLES

__all__ = ["EnergyDetector", "noise_floor", "speech_probability"]

_Float = TypeVar("_Float", np.float32, np.float64)

_SAMPLE_RATE = 16_000
_N_BANDS = 16
_LOWEST_HZ, _HIGHEST_HZ = 150.0, 6000.0
_HALF = FRAME_SAMPLES // 2
_PAST_FRAMES = 96
_FUTURE_FRAMES = 32
_PERCENTILE = 0.2
# The floor is worked out once for so many frames.
_STRIDE_FRAMES = 8
_RATIO_MAX = 100.0
_SCORE_AT_HALF = 0.3
# Mean power of a sample at -90 dB of full scale.
_SILENCE_POWER = 1e-9

_WINDOW = np.hanning(FRAME_SAMPLES + 1)[:-1].astype(np.float32)


def _band_edges() -> NDArray[np.intp]:
    """The first frequency of each band, and of what lies above the last."""
    mels = np.linspace(float(np.log1p(_LOWEST_HZ / 700)), float(np.log1p(_HIGHEST_HZ / 700)), _N_BANDS + 1)
    edges: NDArray[np.intp] = np.ceil(700 * np.expm1(mels) * FRAME_SAMPLES / _SAMPLE_RATE).astype(np.intp)
    return edges


_EDGES = _band_edges()
# A window's spectrum, summed over a band: divided by this it is the mean power of a sample, per frequency.
_SCALES = (np.diff(_EDGES) * FRAME_SAMPLES * (_WINDOW.astype(np.float64) ** 2).mean()).astype(np.float32)


class EnergyDetector:
    """Probabilities of speech from the energy in the bands of speech.

    `future_frames`: how many frames after a frame its floor may look at, and so how late a probability comes, less one.
    """

    def __init__(self, *, future_frames: int = _FUTURE_FRAMES) -> None:
        self._future = max(future_frames, 1)
        self._before = np.zeros(0, np.float32)  # the last frame of `push`
        self._raw = np.zeros((0, _N_BANDS), np.float32)  # the last two frames of `push`, not averaged yet
        self._powers = np.zeros((0, _N_BANDS), np.float32)
        self._first = 0  # frame number of `_powers[0]`
        self._done = 0  # frames whose probability was given
        self._floor = np.full(_N_BANDS, np.inf, np.float32)

    def push(self, frames: NDArray[np.float32]) -> NDArray[np.float32]:
        """The next whole frames, float32 [n, 512]; probabilities float32 [m] of frames that are decided, in order."""
        if len(frames):
            self._average(self._band_powers(frames))
        return self._decide(self._first + len(self._powers) - self._future)

    def finish(self, rest: NDArray[np.float32]) -> NDArray[np.float32]:
        """The audio ends with these samples, fewer than a frame; the probabilities still owed."""
        if len(rest):
            # The last 512 samples, for silence in place of the missing ones would be a click in every band.
            last = np.concatenate([self._before, rest])[-FRAME_SAMPLES:]
            self._average(_window_powers(np.pad(last, (0, FRAME_SAMPLES - len(last)))))
        if len(self._raw):
            self._average(self._raw[-1:])
        return self._decide(self._first + len(self._powers))

    def _band_powers(self, frames: NDArray[np.float32]) -> NDArray[np.float32]:
        """Of each frame, the mean of two windows: the frame itself, and half of it with half of the one before."""
        samples = np.concatenate([self._before[_HALF:], frames.reshape(-1)])
        powers = _window_powers(samples)
        if not len(self._before):  # nothing comes before the first frame
            powers = np.concatenate([powers[:1], powers])
        self._before = samples[-FRAME_SAMPLES:].copy()
        return (powers[0::2] + powers[1::2]) / np.float32(2)

    def _average(self, raw: NDArray[np.float32]) -> None:
        """Three frames each; the average of a frame comes with the next one."""
        if not len(self._raw):
            raw = np.concatenate([raw[:1], raw])
        raw = np.concatenate([self._raw, raw])
        if len(raw) >= 3:
            self._powers = np.concatenate([self._powers, (raw[:-2] + raw[1:-1] + raw[2:]) / np.float32(3)])
        self._raw = raw[-2:]

    def _decide(self, until: int) -> NDArray[np.float32]:
        out = [np.zeros(0, np.float32)]
        while self._done < until:
            if self._done % _STRIDE_FRAMES == 0:
                self._follow()
            n = min(_STRIDE_FRAMES - self._done % _STRIDE_FRAMES, until - self._done)
            at = self._done - self._first
            out.append(self._probabilities(self._powers[at : at + n]))
            self._done += n
        return np.concatenate(out)

    def _follow(self) -> None:
        """Set the floor for the frames from `_done` on, and let go of frames that are too old."""
        too_old = self._done - _PAST_FRAMES - self._first
        if too_old > 0:
            self._powers = self._powers[too_old:]
            self._first += too_old
        seen = self._powers[: self._done - self._first + self._future]
        loud = seen[seen.mean(1) > _SILENCE_POWER]
        if len(loud):
            self._floor = noise_floor(loud)

    def _probabilities(self, powers: NDArray[np.float32]) -> NDArray[np.float32]:
        silence = np.float32(_SILENCE_POWER)
        probabilities = speech_probability(powers + silence, self._floor + silence)
        probabilities[powers.mean(1) <= _SILENCE_POWER] = 0
        return probabilities


def noise_floor(powers: NDArray[_Float]) -> NDArray[_Float]:
    """What the power of each band, [n_bands], hardly falls below in frames of [n_frames, n_bands], one or more."""
    rank = int(_PERCENTILE * (len(powers) - 1))
    floor: NDArray[_Float] = np.partition(powers, rank, axis=0)[rank]
    return floor


def speech_probability(powers: NDArray[_Float], floor: NDArray[_Float]) -> NDArray[_Float]:
    """The probability of speech in each frame, [n_frames], from the powers of its bands, [n_frames, n_bands], above the
    noise floor of each band, [n_bands]."""
    ratio = np.clip(powers / floor, 1, _RATIO_MAX)
    score = (ratio - 1 - np.log(ratio)).mean(1)
    probability: NDArray[_Float] = score / (score + _SCORE_AT_HALF)
    return probability


def _window_powers(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """Mean power in each band, float32 [n_windows, n_bands], of windows of 512 samples every 256."""
    spectrum = np.fft.rfft(sliding_window_view(samples, FRAME_SAMPLES)[::_HALF] * _WINDOW)
    power = (spectrum.real**2 + spectrum.imag**2).astype(np.float32)
    # Not a matrix product: its last bits depend on the number of rows.
    powers: NDArray[np.float32] = np.add.reduceat(power, _EDGES, axis=1)[:, :_N_BANDS] / _SCALES
    return powers
