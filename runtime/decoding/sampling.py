"""Choose a token from a row of logits: the likeliest at temperature 0, above it a sample with keyed noise.

The token with the largest `logits / T + Gumbel noise` is a sample of softmax(logits / T). The noise of a token depends
on seed, window, temperature, sample, absolute position and token id alone, so the same prefix gets the same token
however many rows share a pass and whatever was drafted. BLAKE2b makes the 128-bit key of a Philox 4x64 generator from
the first four, the counter's second word is the position, and token i takes the i-th 64-bit number. NumPy promises the
same numbers in every release.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
from numpy.typing import NDArray

from .rules import Logits

_UNIT = 2.0**-52
_NEAR = 4.0  # times the temperature below the peak, a few tokens; any other choice gives the same samples, slower
_SLACK = 1e-6  # far more than float64 adds to a score
_UNIFORM_STREAM = 1
_SAFE_PEAK = 40.0  # up to here either way, float32 holds the exponentials of a row and their sum without a shift


class Noise:
    """The noise of one sample of one window; `window_key` tells windows apart, `sample` those of one window.

    key: 16 bytes that tell this noise from any other.
    """

    def __init__(self, *, seed: int, window_key: int, temperature: float, sample: int) -> None:
        parts = repr((int(seed), int(window_key), float(temperature), int(sample)))
        digest = hashlib.blake2b(parts.encode("ascii"), digest_size=16).digest()
        self.key = digest
        self._key = np.frombuffer(digest, "<u8").astype(np.uint64)

    def numbers(self, position: int, n: int, stream: int = 0) -> NDArray[np.uint64]:
        """Return what the noise of the tokens 0 .. n-1 at an absolute position is made of (`gumbel`), uint64 [n]."""
        counter = np.array([0, position, stream, 0], np.uint64)
        numbers: NDArray[np.uint64] = np.random.Philox(key=self._key, counter=counter).random_raw(n)
        return numbers

    def uniform(self, position: int) -> float:
        """Return the position's number of (0, 1), independent of its Gumbel noise."""
        return float(_uniforms(self.numbers(position, 1, _UNIFORM_STREAM))[0])


def gumbel(numbers: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return the Gumbel noise that uint64 numbers make, float64 of their shape: the larger the larger."""
    values: NDArray[np.float64] = -np.log(-np.log(_uniforms(numbers)))
    return values


def _uniforms(numbers: NDArray[np.uint64]) -> NDArray[np.float64]:
    uniforms: NDArray[np.float64] = ((numbers >> np.uint64(12)).astype(np.float64) + 0.5) * _UNIT
    return uniforms


class Draw:
    """The choice of one token: `temperature`, and above 0 the noise of the absolute `position`."""

    def __init__(self, temperature: float, noise: Noise | None, position: int) -> None:
        self.temperature, self._noise, self._position = temperature, noise, position

    def own(self, logits: Logits) -> int:
        """Return the token of plain decoding from a filtered row f32[n_vocab]; ties go to the lowest id."""
        if self._noise is None:
            return int(logits.argmax())
        peak = float(logits.max())
        top = peak / self.temperature
        if not math.isfinite(top):
            return int(logits.argmax())
        # Logarithms are spent on tokens that can win alone: the likeliest, and others whose noise makes up for the gap.
        numbers = self._noise.numbers(self._position, len(logits))
        tokens = np.flatnonzero(logits >= peak - _NEAR * self.temperature)
        least = self._scores(logits, tokens, numbers).max() - (top - _NEAR) - _SLACK
        can_win = numbers >= np.uint64((math.exp(-math.exp(-least)) - 4 * _UNIT) * 2.0**64)
        can_win[tokens] = True
        tokens = np.flatnonzero(can_win)
        return int(tokens[self._scores(logits, tokens, numbers).argmax()])

    def _scores(self, logits: Logits, tokens: NDArray[np.intp], numbers: NDArray[np.uint64]) -> NDArray[np.float64]:
        with np.errstate(over="ignore"):  # at a temperature near 0 all but the likeliest are minus infinity
            return logits[tokens].astype(np.float64) / self.temperature + gumbel(numbers[tokens])

    def sample(self, weights: NDArray[np.float64]) -> int:
        """Return a token drawn in proportion to `weights` f64[n_vocab], not all 0, with the position's own noise."""
        tokens = np.flatnonzero(weights)
        if self._noise is None:
            return int(weights.argmax())
        numbers = self._noise.numbers(self._position, len(weights))[tokens]
        return int(tokens[(np.log(weights[tokens]) + gumbel(numbers)).argmax()])

    def uniform(self) -> float:
        """Return the position's number of (0, 1); 0.5 at temperature 0, where nothing is drawn."""
        return 0.5 if self._noise is None else self._noise.uniform(self._position)


def log_softmax_at(logits: Logits, token: int, peak: float) -> np.float32:
    """Return the log softmax at any `token` of filtered logits f32[n_vocab], used up, whose largest is `peak`."""
    value = float(logits[token])
    if not -_SAFE_PEAK <= peak <= _SAFE_PEAK:
        logits -= np.float32(peak)
        value -= peak
    np.exp(logits, out=logits)
    return np.float32(value - math.log(np.add.reduce(logits)))


def softmax(row: Logits) -> Logits:
    """Softmax of one row f32[n]; not-a-number where the row holds one."""
    with np.errstate(invalid="ignore"):
        weights = np.exp(row - row.max())
        result: Logits = weights / weights.sum(dtype=np.float32)
    return result
