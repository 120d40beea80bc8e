"""Voice activity: probabilities of speech, frame by frame, and the spans of speech that they make.

`SpanFinder` follows faster-whisper's `get_speech_timestamps`, which follows Silero's example: speech starts at
`threshold`, ends below `neg_threshold` once that has lasted `min_silence_duration_ms`, is split after
`max_speech_duration_s`, and is padded on both sides, by half the gap where two pads would meet. A span comes out piece
by piece, as soon as no later frame can change it. One difference keeps memory bounded: where the probability stays
between both thresholds, or no pause of 98 ms comes, for a minute (or for `min_silence_duration_ms`, if that is longer),
the speech is taken to go on; faster-whisper looks back as far as it takes.

Two detectors give probabilities: `EnergyDetector` needs no model, `SileroDetector` runs Silero's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from specedge.errors import BundleError

from ..options import FRAME_SAMPLES as FRAME_SAMPLES
from ..options import VadOptions as VadOptions

_SAMPLE_RATE = 16_000
# A pause longer than this inside speech is where speech that grows too long is split.
_SPLIT_PAUSE_SAMPLES = _SAMPLE_RATE * 98 / 1000
_HOLD_SAMPLES = 60 * _SAMPLE_RATE
Span = tuple[int, int]
"""First sample and the one after the last."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Samples [start, end) that are speech for certain; `is_new`: they begin a span, otherwise they lengthen the last.

    A piece may be empty: a span that begins, or grows, by no sample.
    """

    start: int
    end: int
    is_new: bool


class SpanFinder:
    """Spans of speech from probabilities given one after another."""

    def __init__(self, options: VadOptions) -> None:
        self._options = options
        self._pad = options.pad_samples
        self._min_silence = _SAMPLE_RATE * options.min_silence_duration_ms / 1000
        self._min_speech = _SAMPLE_RATE * options.min_speech_duration_ms / 1000
        self._hold = max(_HOLD_SAMPLES, self._min_silence)
        self._n_frames = 0
        self._start: int | None = None  # of the speech that is going on
        self._is_kept = False  # it is long enough
        # As in Silero's example: where silence set in; the last pause fit for a split, and where speech went on after
        # it; 0 for none.
        self._silence_from = self._pause_from = self._speech_after = 0
        self._end: int | None = None  # of the last span, before padding, while the next one may share the gap
        self._at = 0  # where the last piece ends
        self._pieces: list[Piece] = []

    @property
    def held_from(self) -> int:
        """The first sample that a later piece may still contain; what lies before may be let go."""
        if self._is_kept or self._end is not None:
            return self._at
        upcoming = self._n_frames * FRAME_SAMPLES if self._start is None else self._start
        return max(0, int(upcoming - self._pad))

    def push(self, probability: float) -> list[Piece]:
        """Take the next frame's probability; return what is now decided."""
        self._pieces = []
        now = self._n_frames * FRAME_SAMPLES
        self._n_frames += 1
        self._step(now, float(probability))
        self._pad_end(now if self._start is None else self._start)  # not further: the audio may end within this frame
        if self._start is not None:
            self._settle(now, self._start)
        return self._pieces

    def finish(self, n_samples: int) -> list[Piece]:
        """The audio ends after `n_samples`; the last pieces."""
        self._pieces = []
        if self._start is not None and n_samples - self._start > self._min_speech:
            self._close(self._start, n_samples)
        if self._end is not None:
            self._grow(int(min(n_samples, self._end + self._pad)))
        return self._pieces

    def _step(self, now: int, probability: float) -> None:
        is_speech = probability >= self._options.threshold
        if is_speech and self._silence_from:
            self._silence_from = 0
            if self._speech_after < self._pause_from:
                self._speech_after = now
        if self._start is None:
            self._start = now if is_speech else None
            return
        if now - self._start > self._options.max_speech_samples:
            pause_from, speech_after = self._pause_from, self._speech_after
            self._close(self._start, pause_from or now)
            if pause_from and speech_after >= pause_from:
                self._start = speech_after
        if self._start is None or probability >= self._options.silence_threshold:
            return
        self._silence_from = self._silence_from or now
        if now - self._silence_from > _SPLIT_PAUSE_SAMPLES:
            self._pause_from = self._silence_from
        if now - self._silence_from >= self._min_silence:
            if self._silence_from - self._start > self._min_speech:
                self._close(self._start, self._silence_from)
            self._forget()

    def _close(self, start: int, end: int) -> None:
        """The speech from `start` on ends at `end`, before padding."""
        if not self._is_kept:
            self._begin(start)
        self._grow(end)
        self._end = end
        self._forget()

    def _forget(self) -> None:
        self._start, self._is_kept = None, False
        self._silence_from = self._pause_from = self._speech_after = 0

    def _settle(self, now: int, start: int) -> None:
        """Let out what no later frame can change of the speech that is going on."""
        if now - self._silence_from > self._hold:
            self._silence_from = 0
        if now - self._pause_from > self._hold:
            self._pause_from = self._speech_after = 0
        until = self._silence_from or now
        if not self._is_kept and until - start > self._min_speech:
            self._begin(start)
        if self._is_kept:
            may_split = self._pause_from and math.isfinite(self._options.max_speech_samples)
            self._grow(self._pause_from if may_split else until)

    def _begin(self, start: int) -> None:
        """Speech begins at `start` and will not be dropped."""
        self._pad_end(start)
        pad = self._pad
        if self._end is not None:
            pad = (start - self._end) // 2
            self._grow(self._end + int(pad))
        self._end, self._is_kept, self._at = None, True, max(0, int(start - pad))
        self._pieces.append(Piece(start=self._at, end=self._at, is_new=True))

    def _pad_end(self, next_start: int) -> None:
        """Pad the last span's end, if no speech that begins at `next_start` or later shares the gap."""
        if self._end is not None and next_start - self._end >= 2 * self._pad:
            self._grow(int(self._end + self._pad))
            self._end = None

    def _grow(self, end: int) -> None:
        """The last span lasts at least until sample `end`."""
        if end > self._at:
            self._pieces.append(Piece(start=self._at, end=end, is_new=False))
            self._at = end


_Float = TypeVar("_Float", np.float32, np.float64)
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
_SILENCE_POWER = 1e-9  # mean of a sample at -90 dB of full scale
_WINDOW = np.hanning(FRAME_SAMPLES + 1)[:-1].astype(np.float32)
_MELS = np.linspace(float(np.log1p(_LOWEST_HZ / 700)), float(np.log1p(_HIGHEST_HZ / 700)), _N_BANDS + 1)
# The first frequency of each band, and of what lies above the last.
_EDGES: NDArray[np.intp] = np.ceil(700 * np.expm1(_MELS) * FRAME_SAMPLES / _SAMPLE_RATE).astype(np.intp)
# A window's spectrum, summed over a band: divided by this it is the mean power of a sample, per frequency.
_SCALES = (np.diff(_EDGES) * FRAME_SAMPLES * (_WINDOW.astype(np.float64) ** 2).mean()).astype(np.float32)


class EnergyDetector:
    """Probabilities of speech by how far the bands of speech rise above a noise floor that follows the recording.

    For each frame of 512 samples (32 ms) the power in 16 mel bands from 150 to 6000 Hz is taken from half-overlapping
    windows and averaged over three frames. A band's floor is a low percentile of its power over about four seconds:
    speech leaves every band again and again, so it does not lift its own floor; steady noise is all floor. With r the
    ratio of a band's power to its floor, the score is the mean over the bands of r - 1 - ln r where r is above 1 (the
    likelihood ratio of Sohn, Kim and Sung, A statistical model-based voice activity detection, 1999), the probability
    score / (score + a constant), which keeps steady noise, white to brown, below the default `neg_threshold`.

    Frames below -90 dB of full scale are silence: never speech, and no part of the floor. Music, and noise that comes
    and goes like speech, are speech here. `future_frames`: how many later frames the floor may look at.
    """

    def __init__(self, *, future_frames: int = _FUTURE_FRAMES) -> None:
        self._future = max(future_frames, 1)
        self._before = np.zeros(0, np.float32)  # the last frame of `push`
        self._raw = np.zeros((0, _N_BANDS), np.float32)  # the last two frames of `push`, not averaged yet
        self._powers = np.zeros((0, _N_BANDS), np.float32)
        self._at = 0  # the first of `_powers` whose probability was not given
        self._n_given = 0
        self._floor = np.full(_N_BANDS, np.inf, np.float32)

    def push(self, frames: NDArray[np.float32]) -> NDArray[np.float32]:
        """Take whole frames, float32 [n, 512]; return the probabilities, float32 [m], of frames that are decided."""
        if len(frames):
            samples = np.concatenate([self._before[_HALF:], frames.reshape(-1)])
            powers = _window_powers(samples)
            if not len(self._before):  # nothing comes before the first frame
                powers = np.concatenate([powers[:1], powers])
            self._before = samples[-FRAME_SAMPLES:].copy()
            # Of each frame two windows: the frame itself, and half of it with half of the one before.
            self._average((powers[0::2] + powers[1::2]) / np.float32(2))
        return self._decide(self._future)

    def finish(self, rest: NDArray[np.float32]) -> NDArray[np.float32]:
        """The audio ends with these samples, fewer than a frame; the probabilities still owed."""
        if len(rest):
            # The last 512 samples, for silence in place of the missing ones would be a click in every band.
            last = np.concatenate([self._before, rest])[-FRAME_SAMPLES:]
            self._average(_window_powers(np.pad(last, (0, FRAME_SAMPLES - len(last)))))
        if len(self._raw):
            self._average(self._raw[-1:])
        return self._decide(0)

    def _average(self, raw: NDArray[np.float32]) -> None:
        """Three frames each; the average of a frame comes with the next one."""
        if not len(self._raw):
            raw = np.concatenate([raw[:1], raw])
        raw = np.concatenate([self._raw, raw])
        self._powers = np.concatenate([self._powers, (raw[:-2] + raw[1:-1] + raw[2:]) / np.float32(3)])
        self._raw = raw[-2:]

    def _decide(self, n_open: int) -> NDArray[np.float32]:
        """The probabilities of all frames but the last `n_open`."""
        out = [np.zeros(0, np.float32)]
        silence = np.float32(_SILENCE_POWER)
        while (n_left := len(self._powers) - n_open - self._at) > 0:
            n_since = self._n_given % _STRIDE_FRAMES
            if n_since == 0:
                n_old = max(self._at - _PAST_FRAMES, 0)
                self._powers, self._at = self._powers[n_old:], self._at - n_old
                seen = self._powers[: self._at + self._future]
                loud = seen[seen.mean(1) > _SILENCE_POWER]
                if len(loud):
                    self._floor = noise_floor(loud)
            powers = self._powers[self._at : self._at + min(_STRIDE_FRAMES - n_since, n_left)]
            out.append(speech_probability(powers + silence, self._floor + silence))
            out[-1][powers.mean(1) <= _SILENCE_POWER] = 0
            self._at += len(powers)
            self._n_given += len(powers)
        return np.concatenate(out)


def noise_floor(powers: NDArray[_Float]) -> NDArray[_Float]:
    """A low percentile of each band's power, [n_bands], over one or more frames, [n_frames, n_bands]."""
    rank = int(_PERCENTILE * (len(powers) - 1))
    floor: NDArray[_Float] = np.partition(powers, rank, axis=0)[rank]
    return floor


def speech_probability(powers: NDArray[_Float], floor: NDArray[_Float]) -> NDArray[_Float]:
    """[n_frames] of powers [n_frames, n_bands] above the noise floor of each band, [n_bands]."""
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


_CONTEXT_SAMPLES = 64
_STATE_SHAPE = (1, 1, 128)
_INPUTS = ("input", "h", "c")
_PROBABILITIES, _STATES = "speech_probs", ("hn", "cn")


class SileroDetector:
    """Probabilities of speech from Silero's model, version 6, as faster-whisper ships it: ONNX, about 1.2 MB.

    Each frame of 512 samples goes in with the 64 samples before it; an LSTM carries two states from frame to frame.
    `specedge models pull silero-vad` fetches the file. Raises BundleError for a file that is not this model,
    ResourceError.
    """

    def __init__(self, path: Path) -> None:
        from ..engine.session import Canceller, Session  # only here: it loads ONNX Runtime

        self._session = Session(path, Canceller(), threads=1)
        if set(self._session.inputs) != set(_INPUTS) or not {_PROBABILITIES, *_STATES} <= set(self._session.outputs):
            raise BundleError(
                f"{path}: not the Silero model expected: it takes {', '.join(self._session.inputs)} and not "
                f"{', '.join(_INPUTS)}; get it with `specedge models pull silero-vad`"
            )
        self._states = [np.zeros(_STATE_SHAPE, np.float32) for _ in _STATES]
        self._context = np.zeros(_CONTEXT_SAMPLES, np.float32)

    def push(self, frames: NDArray[np.float32]) -> NDArray[np.float32]:
        """Take whole frames, float32 [n, 512]; return their probabilities, float32 [n]."""
        if not len(frames):
            return np.zeros(0, np.float32)
        before = np.concatenate([self._context[None], frames[:-1, -_CONTEXT_SAMPLES:]])
        self._context = frames[-1, -_CONTEXT_SAMPLES:].copy()
        window = np.concatenate([before, frames], axis=1, dtype=np.float32)
        probabilities = np.empty(len(frames), np.float32)
        states = [np.empty(_STATE_SHAPE, np.float32) for _ in _STATES]
        self._session.run_once(
            dict(zip(_INPUTS, (window, *self._states), strict=True)),
            dict(zip((_PROBABILITIES, *_STATES), (probabilities, *states), strict=True)),
        )
        self._states = states
        return probabilities

    def finish(self, rest: NDArray[np.float32]) -> NDArray[np.float32]:
        """The audio ends with these samples, fewer than a frame; silence follows, one frame of it at least in part."""
        last = np.zeros((1, FRAME_SAMPLES), np.float32)
        last[0, : len(rest)] = rest
        return self.push(last)
