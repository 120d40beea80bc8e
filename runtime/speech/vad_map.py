"""From times in audio with the silences cut out back to times in the audio as it was.

Meanings and rounding are those of faster-whisper's `SpeechTimestampsMap` and `restore_speech_timestamps`. The map grows
while the audio is read and takes 16 bytes a span. Knows spans and segments; not how speech was found.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from dataclasses import replace

from specedge.runtime.longform.segments import Segment, Word
from specedge.runtime.speech.vad_spans import Piece, Span

__all__ = ["SpeechMap", "restore_times"]

_SAMPLE_RATE = 16_000
_N_DIGITS = 2


class SpeechMap:
    """Where each span of speech lies in the concatenated speech, and how much silence was cut out before it."""

    def __init__(self) -> None:
        self._ends = array("q")  # of each span, in samples of the concatenated speech
        self._silences = array("q")  # samples cut out before each span

    def add(self, piece: Piece) -> None:
        """The next piece of speech, in order."""
        n_speech = self.n_samples
        if piece.is_new:
            self._silences.append(piece.start - n_speech)
            self._ends.append(n_speech)
        self._ends[-1] += piece.end - piece.start

    @property
    def n_samples(self) -> int:
        """Samples of speech so far."""
        return self._ends[-1] if self._ends else 0

    @property
    def spans(self) -> list[Span]:
        """The spans so far, in samples of the original audio; touching ones stay apart."""
        starts = [0, *self._ends]
        return [(start + cut, end + cut) for start, end, cut in zip(starts, self._ends, self._silences, strict=False)]

    def span_index(self, time_s: float, *, is_end: bool = False) -> int:
        """Which span a time of the concatenated speech lies in; at a border the later one, unless it ends something."""
        sample = int(time_s * _SAMPLE_RATE)
        if is_end:
            index = bisect_left(self._ends, sample)
            if index < len(self._ends) and self._ends[index] == sample:
                return index
        return min(bisect_right(self._ends, sample), len(self._ends) - 1)

    def original_time(self, time_s: float, *, is_end: bool = False, span_index: int | None = None) -> float:
        """Seconds in the original audio, to the hundredth, of `time_s` in the concatenated speech.

        `is_end`: the time ends something, so at a border it belongs to the span before. `span_index`: which span to
        count in, where that is known. Without any speech the time stays what it is.
        """
        if not self._ends:
            return round(time_s, _N_DIGITS)
        index = self.span_index(time_s, is_end=is_end) if span_index is None else span_index
        return round(self._silences[index] / _SAMPLE_RATE + time_s, _N_DIGITS)


def restore_times(segment: Segment, times: SpeechMap) -> Segment:
    """The segment with its own and its words' times in the original audio.

    Both ends of a word are taken to lie in the span of its middle; a segment with words spans them.
    """
    if not segment.words:
        return replace(
            segment,
            start=times.original_time(segment.start),
            end=times.original_time(segment.end, is_end=True),
        )
    words = [_restored_word(word, times) for word in segment.words]
    return replace(segment, start=words[0].start, end=words[-1].end, words=words)


def _restored_word(word: Word, times: SpeechMap) -> Word:
    index = times.span_index((word.start + word.end) / 2)
    return replace(
        word,
        start=times.original_time(word.start, span_index=index),
        end=times.original_time(word.end, span_index=index),
    )
