"""Voice activity: an audio stream with the silences cut out, and the way back to the original times.

A detector gives one probability for each frame of 512 samples: by energy (vad_energy.py, the default) or by Silero's
model (vad_silero.py). vad_spans.py makes spans of them, vad_map.py maps times back. Everything is read in fixed blocks,
so that the size of the reads changes nothing, and memory does not grow with the length: what is held is the speech
that is still undecided, about three seconds by default and a minute at worst.

Knows streams of samples at 16 kHz; nothing of models for text, nor of how they are transcribed.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specedge.models import store
from specedge.runtime.longform.segments import Segment
from specedge.runtime.passes.session import Canceller
from specedge.runtime.sound.sample_blocks import take
from specedge.runtime.speech.vad_energy import EnergyDetector
from specedge.runtime.speech.vad_map import SpeechMap, restore_times
from specedge.runtime.speech.vad_silero import SileroDetector
from specedge.runtime.speech.vad_spans import (
    DETECTORS,
    FRAME_SAMPLES,
    Piece,
    Span,
    SpanFinder,
    VadOptions,
    speech_spans,
)

__all__ = [
    "DETECTORS",
    "Detector",
    "SpeechMap",
    "SpeechStream",
    "VadOptions",
    "find_speech",
    "make_detector",
    "restore_times",
    "speech_spans",
]

_SAMPLE_RATE = 16_000
_BLOCK_FRAMES = 16


class Detector(Protocol):
    """Probabilities of speech, one a frame, in order; they may come later than their frames.

    push: whole frames, float32 [n, 512]; finish: the samples left over, float32 [< 512].
    """

    def push(self, frames: NDArray[np.float32], /) -> NDArray[np.float32]: ...
    def finish(self, rest: NDArray[np.float32], /) -> NDArray[np.float32]: ...


class _Samples(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def duration_s(self) -> float | None: ...
    def read(self, n_samples: int, /) -> NDArray[np.float32]: ...


def make_detector(options: VadOptions, *, canceller: Canceller | None = None) -> Detector:
    """The detector that the options name, fresh for one stream.

    Raises ModelError when its model is not installed, saying how to get it. `canceller` stops the model's runs.
    """
    if options.detector == "silero":
        return SileroDetector(store.find_file("silero-vad"), canceller)
    return EnergyDetector()


class SpeechStream:
    """The speech of an audio stream, end to end, read like the stream itself.

    stream: an AudioStream, or anything with its `read`, `name` and `duration_s`; it stays the caller's to close.
    Errors: what the stream's `read` raises, and ModelError, ResourceError and Interrupted of the detector.
    """

    def __init__(
        self, stream: _Samples, options: VadOptions | None = None, *, detector: Detector | None = None
    ) -> None:
        self.name = stream.name
        self.options = VadOptions() if options is None else options
        self.times = SpeechMap()
        self._stream = stream
        self._detector = make_detector(self.options) if detector is None else detector
        self._finder = SpanFinder(self.options)
        self._held = np.zeros(0, np.float32)  # samples of the original audio, from `_held_from` on
        self._held_from = 0
        self._n_read = 0
        self._is_ended = False
        self._ready: list[NDArray[np.float32]] = []
        self._n_given = 0

    @property
    def duration_s(self) -> float | None:
        """Seconds of the original audio: what its stream says, and once that has ended what was read."""
        return self._n_read / _SAMPLE_RATE if self._is_ended else self._stream.duration_s

    @property
    def duration_after_vad_s(self) -> float:
        """Seconds of speech found so far; those of the whole audio once it has ended."""
        return self.times.n_samples / _SAMPLE_RATE

    @property
    def is_ended(self) -> bool:
        """Whether the original audio was read to its end."""
        return self._is_ended

    def read(self, n_samples: int) -> NDArray[np.float32]:
        """The next samples of speech, float32 [<= n_samples]; fewer only at the end, then empty."""
        while self.times.n_samples - self._n_given < n_samples and not self._is_ended:
            self._fetch()
        given = take(self._ready, n_samples)
        self._n_given += len(given)
        return given

    def original_time(self, time_s: float, *, is_end: bool = False) -> float:
        """Seconds in the original audio of `time_s` in what was read; see `SpeechMap.original_time`."""
        return self.times.original_time(time_s, is_end=is_end)

    def restored(self, segment: Segment) -> Segment:
        """The segment with its times in the original audio."""
        return restore_times(segment, self.times)

    def _fetch(self) -> None:
        """Read one block on and let out what it decides."""
        block = self._stream.read(_BLOCK_FRAMES * FRAME_SAMPLES)
        self._n_read += len(block)
        self._held = np.concatenate([self._held, block])
        n_whole = len(block) - len(block) % FRAME_SAMPLES
        pieces = self._pieces(self._detector.push(block[:n_whole].reshape(-1, FRAME_SAMPLES)))
        if len(block) < _BLOCK_FRAMES * FRAME_SAMPLES:
            self._is_ended = True
            pieces += self._pieces(self._detector.finish(block[n_whole:]))
            pieces += self._finder.finish(self._n_read)
        for piece in pieces:
            self._let_out(piece)
        n_old = min(self._finder.held_from - self._held_from, len(self._held))
        if self._is_ended:
            n_old = len(self._held)
        if n_old > 0:
            self._held = self._held[n_old:].copy()
            self._held_from += n_old

    def _pieces(self, probabilities: NDArray[np.float32]) -> list[Piece]:
        return [piece for probability in probabilities for piece in self._finder.push(float(probability))]

    def _let_out(self, piece: Piece) -> None:
        self.times.add(piece)
        if piece.end > piece.start:
            self._ready.append(self._held[piece.start - self._held_from : piece.end - self._held_from].copy())


def find_speech(stream: _Samples, options: VadOptions | None = None, *, detector: Detector | None = None) -> list[Span]:
    """The spans of speech of a stream, read to its end: (start, end) in samples at 16 kHz, sorted."""
    speech = SpeechStream(stream, options, detector=detector)
    while len(speech.read(1 << 16)):
        pass
    return speech.times.spans
