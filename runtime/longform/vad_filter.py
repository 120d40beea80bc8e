"""Voice activity filter: an audio stream with the silences cut out, and the way back to the original times.

A detector gives one probability for each frame of 512 samples: by energy (the default) or by Silero's model.
audio/vad.py makes spans of them; `SpeechMap` maps times back, with the meanings and the rounding of faster-whisper's
`SpeechTimestampsMap` and `restore_speech_timestamps`. Audio is read in fixed blocks, so the size of the reads changes
nothing, and memory does not grow with the length: undecided speech is held, about three seconds by default and a minute
at most, and 16 bytes a span. Streams have 16 kHz.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from specedge.models import store

from ..audio.audio import AudioStream, take
from ..audio.vad import EnergyDetector, Piece, SileroDetector, Span, SpanFinder
from ..options import FRAME_SAMPLES, VadOptions
from .segments import Segment

_SAMPLE_RATE = 16_000
_N_DIGITS = 2


class SpeechMap:
    """The place of each span of speech in the concatenated speech, and the silence cut out before it.

    ends: of each span, in samples of the concatenated speech.
    """

    def __init__(self) -> None:
        self.ends = array("q")
        self._silences = array("q")  # samples cut out before each span

    @classmethod
    def of(cls, spans: Iterable[Span]) -> SpeechMap:
        """The map of these spans, in order."""
        made = SpeechMap()
        for start, end in spans:
            made.add(Piece(start=start, end=end, is_new=True))
        return made

    def add(self, piece: Piece) -> None:
        """Add the next piece of speech, in order."""
        if piece.is_new:
            self._silences.append(piece.start - self.n_samples)
            self.ends.append(self.n_samples)
        self.ends[-1] += piece.end - piece.start

    @property
    def n_samples(self) -> int:
        """Samples of speech so far."""
        return self.ends[-1] if self.ends else 0

    @property
    def spans(self) -> list[Span]:
        """The spans so far, in samples of the original audio; touching ones stay apart."""
        starts = [0, *self.ends]
        return [(start + cut, end + cut) for start, end, cut in zip(starts, self.ends, self._silences, strict=False)]

    def restored(self, segment: Segment) -> Segment:
        """Return the segment with its own and its words' times in the original audio.

        Both ends of a word are taken to lie in the span of its middle; a segment with words spans them.
        """
        if not segment.words:
            start, end = self.original_time(segment.start), self.original_time(segment.end, is_end=True)
            return replace(segment, start=start, end=end)
        words = []
        for word in segment.words:
            index = self._span_index((word.start + word.end) / 2)
            start, end = (self.original_time(time_s, span_index=index) for time_s in (word.start, word.end))
            words.append(replace(word, start=start, end=end))
        return replace(segment, start=words[0].start, end=words[-1].end, words=words)

    def original_time(self, time_s: float, *, is_end: bool = False, span_index: int | None = None) -> float:
        """Return seconds of the original audio, to the hundredth, for `time_s` of the concatenated speech.

        is_end: whether the time ends something, so that at a border it belongs to the span before; span_index: the
        span, where it is known. Without any speech the time stays as it is.
        """
        if not self.ends:
            return round(time_s, _N_DIGITS)
        index = self._span_index(time_s, is_end=is_end) if span_index is None else span_index
        return round(self._silences[index] / _SAMPLE_RATE + time_s, _N_DIGITS)

    def _span_index(self, time_s: float, *, is_end: bool = False) -> int:
        bisect = bisect_left if is_end else bisect_right
        return min(bisect(self.ends, int(time_s * _SAMPLE_RATE)), len(self.ends) - 1)


_BLOCK_FRAMES = 16
Detector = EnergyDetector | SileroDetector


class SpeechAudio(SpeechMap):
    """The speech of an audio stream, end to end, read like the stream itself, which `close` closes.

    It is the map of its times, too. is_ended: whether the original audio was read to its end. Errors: ModelError at
    once when the detector's model is not installed; what the stream's `read` raises, and ResourceError and Interrupted.
    """

    def __init__(
        self, stream: AudioStream, options: VadOptions | None = None, *, detector: Detector | None = None
    ) -> None:
        super().__init__()
        self.name = stream.name
        self.options = VadOptions() if options is None else options
        self.is_ended = False
        self._stream = stream
        if detector is None:
            is_silero = self.options.detector == "silero"
            detector = SileroDetector(store.find_file("silero-vad")) if is_silero else EnergyDetector()
        self._detector: Detector = detector
        self._finder = SpanFinder(self.options)
        self._held = np.zeros(0, np.float32)  # samples of the original audio, from `_held_from` on
        self._held_from = self._n_read = self._n_given = 0
        self._ready: list[NDArray[np.float32]] = []

    @property
    def duration_s(self) -> float | None:
        """Seconds of the original audio: what its stream says, and once that has ended what was read."""
        return self._n_read / _SAMPLE_RATE if self.is_ended else self._stream.duration_s

    def read(self, n_samples: int) -> NDArray[np.float32]:
        """Return the next samples of speech, float32 [<= n_samples]; fewer only at the end, then empty."""
        while self.n_samples - self._n_given < n_samples and not self.is_ended:
            self._fetch()
        given = take(self._ready, n_samples)
        self._n_given += len(given)
        return given

    def again(self) -> SpeechAudio | None:
        """Return the same speech from its beginning, to be closed; None where the audio can be read only once.

        The loudest frame of all speech is found in a reading of its own (audio/mel.py), so speech is found twice.
        """
        source = self._stream.again()
        return None if source is None else SpeechAudio(source, self.options)

    def close(self) -> None:
        """Close the audio stream: one that `again` opened."""
        self._stream.close()

    def _fetch(self) -> None:
        """Read one block and release the speech that it decides."""
        block = self._stream.read(_BLOCK_FRAMES * FRAME_SAMPLES)
        self._n_read += len(block)
        self._held = np.concatenate([self._held, block])
        n_whole = len(block) - len(block) % FRAME_SAMPLES
        pieces = self._pieces(self._detector.push(block[:n_whole].reshape(-1, FRAME_SAMPLES)))
        if len(block) < _BLOCK_FRAMES * FRAME_SAMPLES:
            self.is_ended = True
            pieces += self._pieces(self._detector.finish(block[n_whole:]))
            pieces += self._finder.finish(self._n_read)
        for piece in pieces:
            self.add(piece)
            if piece.end > piece.start:
                self._ready.append(self._held[piece.start - self._held_from : piece.end - self._held_from].copy())
        held_from = self._n_read if self.is_ended else min(self._finder.held_from, self._n_read)
        if held_from > self._held_from:
            self._held = self._held[held_from - self._held_from :].copy()
            self._held_from = held_from

    def _pieces(self, probabilities: NDArray[np.float32]) -> list[Piece]:
        return [piece for probability in probabilities for piece in self._finder.push(float(probability))]


def find_speech(
    stream: AudioStream, options: VadOptions | None = None, *, detector: Detector | None = None
) -> list[Span]:
    """Return the spans of speech of a stream, read to its end: (start, end) in samples at 16 kHz, sorted."""
    speech = SpeechAudio(stream, options, detector=detector)
    while len(speech.read(1 << 16)):
        pass
    return speech.spans
