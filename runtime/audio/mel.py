"""Whisper's log-mel spectrogram in NumPy, for one window of samples or window by window along a stream.

The recipe is openai-whisper's (whisper/audio.py, `log_mel_spectrogram`): 16 kHz samples, STFT of 400 samples under a
periodic Hann window every 160 samples, centred, reflected at the edges, last frame dropped; power; Slaney mel bands of
unit area; log10 of at least 1e-10, no lower than 8 below the maximum, then (x + 4) / 4.

* `log_mel` takes one window by itself: its own maximum, silence after its end. The models were trained so, and
  transformers' feature extractor does so.
* `MelStream` gives the windows of a whole file as openai-whisper's `transcribe` cuts them: the maximum is the file's,
  silence follows the file, and a window's frames behind the content are 0.0 in the log-mel domain. The maximum is
  found in a reading of its own (`find_peak`), so that memory stays bounded. A pipe can be read once only: there it is
  the maximum so far, and a quiet beginning comes out brighter than in openai-whisper.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from copy import copy
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from specedge.errors import AudioError

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
MIN_POWER = 1e-10
_SILENCE_POWER = 1e-9  # mean of a sample at -90 dB of full scale: less than 16 bits can hold
# A frame is five blocks and a hop two: sums of squares of blocks bound a frame's power from above.
_BLOCK_SAMPLES = 80
# Sums in float32 may fall short of the bound by less than this.
_BOUND_MARGIN = 1.001
_BATCH_FRAMES = 64
# Slaney's mel scale (Auditory Toolbox, 1998): linear up to 1 kHz, logarithmic above.
_HZ_PER_MEL = 200.0 / 3
_KNEE_HZ = 1000.0
_KNEE_MEL = _KNEE_HZ / _HZ_PER_MEL
_LOG_STEP = np.log(6.4) / 27.0
_WINDOW = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(N_FFT) / N_FFT)).astype(np.float32)


class Samples(Protocol):
    """Float32 samples at 16 kHz, fewer than asked for only at the end, as `audio.AudioStream` gives them."""

    def read(self, n_samples: int, /) -> NDArray[np.float32]: ...


class ClosingSamples(Samples, Protocol):
    """Samples that must be closed."""

    def close(self) -> None: ...


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
    filters: NDArray[np.float32] = (np.maximum(0.0, np.minimum(rising, falling)) * area[:, None]).astype(np.float32)
    filters.flags.writeable = False
    return filters


@lru_cache(maxsize=8)
def _sparse_filters(n_mels: int) -> tuple[NDArray[np.intp], NDArray[np.float32], NDArray[np.intp], NDArray[np.intp]]:
    """The non-zero weights of `filterbank`, band after band: frequencies, weights, each band's first weight, bands."""
    filters = filterbank(n_mels)
    bands, freqs = np.nonzero(filters)
    present, starts = np.unique(bands, return_index=True)
    return freqs, filters[bands, freqs], starts, present


def _bands(power: NDArray[np.float32], n_mels: int) -> NDArray[np.float32]:
    """`filterbank` times `power` [n_frames, N_FREQS], as [n_mels, n_frames].

    Not a matrix product: after one, the workers of NumPy's matrix library wait busily for milliseconds, on the cores
    that the decoder's first passes need. Few weights differ from zero.
    """
    freqs, weights, starts, present = _sparse_filters(n_mels)
    mel = np.zeros((n_mels, len(power)), np.float32)
    sounding = np.flatnonzero(power.any(axis=1))  # behind short audio lies silence, of which nothing need be computed
    n_sounding = int(sounding[-1]) + 1 if len(sounding) else 0
    for first in range(0, n_sounding, _BLOCK_FRAMES):
        block = power[first : min(first + _BLOCK_FRAMES, n_sounding)].take(freqs, axis=1)
        block *= weights
        mel[present, first : first + len(block)] = np.add.reduceat(block, starts, axis=1).T
    return mel


def _log10_mel(power: NDArray[np.float32], n_mels: int) -> NDArray[np.float32]:
    mel = _bands(power.T, n_mels)
    np.maximum(mel, np.float32(MIN_POWER), out=mel)
    # In float64: NumPy's float32 kernels for AVX-512 and for others differ in the last bit, and so could a text.
    return np.log10(mel, out=mel, dtype=np.float64, casting="same_kind")


def _peak_of(mel: NDArray[np.float32]) -> float:
    return float(mel.max(initial=np.float32(np.log10(MIN_POWER))))


def _normalised(mel: NDArray[np.float32], peak: float) -> NDArray[np.float32]:
    """In place."""
    np.maximum(mel, np.float32(peak) - np.float32(8), out=mel)
    mel += np.float32(4)
    mel *= np.float32(0.25)
    return mel


def log_mel(samples: NDArray[np.float32], n_mels: int, n_frames: int) -> NDArray[np.float32]:
    """One window's log-mel, float32 [n_mels, n_frames]: openai-whisper's log_mel_spectrogram(pad_or_trim(samples)).

    `samples`: float32 [n_samples] at 16 kHz; zero-padded or cut to `n_frames` * HOP_SAMPLES, then reflected at both
    edges.
    """
    n_window = n_frames * HOP_SAMPLES
    samples = samples[:n_window]
    padded = np.zeros(n_window + _OVERLAP, np.float32)
    end = _HALF + n_window
    padded[_HALF : _HALF + len(samples)] = samples
    _reflect_start(padded, _HALF)
    n_right = len(padded) - end
    padded[end:] = padded[end - 1 - n_right : end - 1][::-1]
    mel = _log10_mel(_power(padded, n_frames, _HALF + len(samples) + n_right), n_mels)
    return _normalised(mel, _peak_of(mel))


def find_peak(samples: Samples, n_mels: int) -> tuple[float, int | None]:
    """The largest log10 of any band of a recording with silence behind it, and its number of samples.

    By Parseval's theorem the squares of a frame's samples bound its bands, so only the few frames that could be louder
    than the loudest so far are transformed. Where the audio turns bad on the way, what came before counts and the
    number of samples is None: whoever reads it for its text will meet the same error.
    """
    loudest, n_samples = 0.0, 0
    padded = np.zeros(_HALF, np.float32)
    is_ended = is_bad = False
    while not is_ended:
        try:
            block = samples.read(_READ_SAMPLES)
        except AudioError:
            block, is_bad = np.zeros(0, np.float32), True
        is_ended = len(block) < _READ_SAMPLES
        padded = np.concatenate([padded, block, np.zeros(N_FFT if is_ended else 0, np.float32)])
        if n_samples == 0:
            _reflect_start(padded, _HALF)
        n_samples += len(block)
        n_frames = max(0, (len(padded) - N_FFT) // HOP_SAMPLES + 1)
        loudest = _louder(padded, n_frames, n_mels, loudest)
        padded = padded[n_frames * HOP_SAMPLES :]
    peak = np.float32(np.log10(float(np.float32(max(loudest, MIN_POWER)))))
    return float(peak), None if is_bad else n_samples


def _louder(padded: NDArray[np.float32], n_frames: int, n_mels: int, loudest: float) -> float:
    """The largest band power of the first `n_frames` frames, or `loudest` if none is larger."""
    if n_frames == 0:
        return loudest
    n_blocks = 2 * (n_frames - 1) + 5
    blocks = np.square(padded[: n_blocks * _BLOCK_SAMPLES]).reshape(-1, _BLOCK_SAMPLES).sum(axis=1)
    squares = sum(blocks[i : i + 2 * n_frames - 1 : 2] for i in range(5))
    filters = filterbank(n_mels)
    bounds = squares * (N_FFT * float(filters.max()) * _BOUND_MARGIN)
    frames = sliding_window_view(padded, N_FFT)[::HOP_SAMPLES]
    order = np.argsort(-bounds)
    for first in range(0, n_frames, _BATCH_FRAMES):
        batch = order[first : first + _BATCH_FRAMES]
        if bounds[batch[0]] <= loudest:
            break
        spectrum = np.fft.rfft(frames[batch] * _WINDOW)
        power = (spectrum.real**2 + spectrum.imag**2).astype(np.float32)
        loudest = max(loudest, float(_bands(power, n_mels).max()))
    return loudest


class HeldAudio:
    """Reads like `stream`; `peek` looks ahead.

    at: samples read so far; n_taken: those looked at too; is_ended: the stream has given its last.
    """

    def __init__(self, stream: Samples) -> None:
        self._stream = stream
        self._held = np.zeros(0, np.float32)
        self.at = 0
        self.is_ended = False

    @property
    def n_taken(self) -> int:
        return self.at + len(self._held)

    def peek(self, n_samples: int) -> NDArray[np.float32]:
        """The next samples, fewer at the end, which will be read again."""
        n_missing = n_samples - len(self._held)
        if n_missing > 0 and not self.is_ended:
            block = self._stream.read(n_missing)
            self.is_ended = len(block) < n_missing
            self._held = np.concatenate([self._held, block])
        return self._held[: max(n_samples, 0)]

    def read(self, n_samples: int, /) -> NDArray[np.float32]:
        block = self.peek(n_samples)
        self._held = self._held[len(block) :]
        self.at += len(block)
        return block


class MelStream:
    """Log-mel windows at non-decreasing starts along a stream, holding little more than one window of samples.

    `stream` is read no further than the window asked for, and stays the caller's to close. `again`: gives the same
    audio from its beginning, or None where it can be read once only. Raises what `stream.read` raises.
    """

    def __init__(
        self, stream: Samples, n_mels: int, n_frames: int, *, again: Callable[[], ClosingSamples | None] | None = None
    ) -> None:
        self.n_mels = n_mels
        self.n_frames = n_frames
        self._audio = HeldAudio(stream)
        self._again = again
        self._n_window = n_frames * HOP_SAMPLES + _OVERLAP  # samples that one window's frames see
        self.keeps_power = False  # set it to have the spectrum of the window read last in `last_power`
        self.last_power: NDArray[np.float32] | None = None
        self.sound = (0, 0)  # the window read last: first frame above -90 dB of full scale and the one behind the last
        self.peak = -np.inf  # the largest log10 known of the audio
        self._has_looked = self._is_peak_final = False
        self._n_samples: int | None = None

    @property
    def floor(self) -> float:
        """What silence is in the windows' log-mel, of audio that has been read."""
        return (self.peak + 4) / 4 - DYNAMIC_RANGE

    @property
    def n_content_frames(self) -> int | None:
        """The frames of the whole audio, as openai-whisper counts them; None while nobody knows."""
        n_samples = self._audio.n_taken if self._audio.is_ended else self._n_samples
        return None if n_samples is None else n_samples // HOP_SAMPLES

    def window(self, start_frame: int, n_frames_max: int | None = None) -> tuple[NDArray[np.float32], int]:
        """Log-mel float32 [n_mels, n_frames] from frame `start_frame` on, and how many of its frames hold audio.

        A frame holds audio if its whole hop does, as openai-whisper counts, and if it is one of the first
        `n_frames_max`, where a clip ends. The others are 0.0. Raises ValueError for a `start_frame` before the last
        one.
        """
        mel, n_content_frames = self.open_window(start_frame)
        if n_frames_max is not None:
            n_content_frames = min(n_content_frames, n_frames_max)
        mel[:, n_content_frames:] = 0.0
        return mel, n_content_frames

    def open_window(self, start_frame: int, *, keep_from: int | None = None) -> tuple[NDArray[np.float32], int]:
        """As `window`, but where the audio ends silence follows: what openai-whisper hears the language from.

        `keep_from`: a frame to which a later call may go back.
        """
        start = start_frame * HOP_SAMPLES
        left, audio = start - _HALF, self._audio
        if max(left, 0) < audio.at or start_frame < 0:
            raise ValueError(f"start_frame {start_frame}: windows of a stream are read forwards")
        self._find_peak()
        keep = left if keep_from is None else keep_from * HOP_SAMPLES - _HALF
        while audio.at < keep and len(audio.read(min(keep - audio.at, _READ_SAMPLES))):  # let go of what lies before
            pass
        samples = audio.peek(left + self._n_window - audio.at)[max(left, 0) - audio.at :]
        padded = np.zeros(self._n_window, np.float32)
        n_missing = max(0, -left)
        end = n_missing + len(samples)
        padded[n_missing:end] = samples
        self.sound = _find_sound(padded[_HALF:end])
        _reflect_start(padded, n_missing)
        power = _power(padded, self.n_frames, end)
        self.last_power = power if self.keeps_power else None
        mel = _log10_mel(power, self.n_mels)
        if not self._is_peak_final:
            self.peak = max(_peak_of(mel), self.peak)
        return _normalised(mel, self.peak), min(self.n_frames, max(0, audio.n_taken - start) // HOP_SAMPLES)

    def ends_before(self, frame: int) -> bool:
        """Whether the audio has no more than `frame` frames; reads on as far as it takes to know."""
        if self.n_content_frames is None:
            self._audio.peek((frame + 1) * HOP_SAMPLES - self._audio.at)
        n_content_frames = self.n_content_frames
        return n_content_frames is not None and n_content_frames <= frame

    def _find_peak(self) -> None:
        """Before the first window: the whole audio's maximum, from what is held if that is all, else read anew."""
        if self._has_looked:
            return
        self._has_looked = True
        self._audio.peek(self._n_window)
        if self._audio.is_ended:
            self.peak, self._n_samples = find_peak(copy(self._audio), self.n_mels)  # of what is held
            self._is_peak_final = True
            return
        source = None
        if self._again is not None:
            with contextlib.suppress(AudioError):  # a file that has gone since can still be read where it is open
                source = self._again()
        if source is not None:
            with contextlib.closing(source):
                self.peak, self._n_samples = find_peak(source, self.n_mels)
            self._is_peak_final = True


def _find_sound(samples: NDArray[np.float32]) -> tuple[int, int]:
    """First hop with energy and the one behind the last, (0, 0) if none has any."""
    hops = samples[: len(samples) - len(samples) % HOP_SAMPLES].reshape(-1, HOP_SAMPLES)
    loud = np.flatnonzero(np.square(hops).mean(axis=1) > _SILENCE_POWER)
    return (int(loud[0]), int(loud[-1]) + 1) if len(loud) else (0, 0)


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


DYNAMIC_RANGE = 2.0  # of the normalised log-mel: 8 in log10


class WindowMel:
    """A window's log-mel in any number of bands: large-v3 hears 128 and smaller models 80, of one power spectrum.

    mel: float32 [n_mels, n_frames] as the model heard it; power: [N_FREQS, n_frames] of the same frames; peak: the
    recording's largest log10 with the model's bands, which with other bands is taken to differ by as much as the
    loudest bands of this window do; frames from `n_content_frames` on are as the last of `mel`.
    """

    def __init__(
        self, mel: NDArray[np.float32], power: NDArray[np.float32], peak: float, n_content_frames: int
    ) -> None:
        self._mel, self._power, self._peak, self._n_content_frames = mel, power, peak, n_content_frames
        self._made: dict[int, NDArray[np.float32]] = {len(mel): mel}

    def __call__(self, n_mels: int) -> NDArray[np.float32]:
        """Float32 [n_mels, n_frames], not to be changed."""
        if n_mels not in self._made:
            mel = _normalised(_log10_mel(self._power, n_mels), -np.inf)
            n_content = max(self._n_content_frames, 1)
            louder = float(mel[:, :n_content].max()) - float(self._mel[:, :n_content].max())
            np.maximum(mel, np.float32((self._peak + 4) / 4 + louder - DYNAMIC_RANGE), out=mel)
            mel[:, self._n_content_frames :] = self._mel[0, -1]
            self._made[n_mels] = mel
        return self._made[n_mels]
