"""Subtitles: segments or words cut into cues, and cues written as SRT and WebVTT.

The cutting and both layouts are openai-whisper's (`whisper/utils.py: SubtitlesWriter`), byte for byte. With words a cue
is made of words, which `SubtitleOptions` breaks into lines; without, every segment is a cue. One difference: a segment
without words among others that have them is written as one word, where openai-whisper fails.
Everything here is lazy: a cue is given as soon as the segments read so far decide it, so that live audio has subtitles.
Does not know: files, other formats, where segments come from.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from specedge.runtime.errors import UsageError
from specedge.runtime.longform.segments import Segment, Word

__all__ = ["Cue", "SubtitleOptions", "cues", "format_timestamp", "srt", "vtt"]

_LONG_PAUSE_S = 3.0
_ANY_NUMBER = 1000
# A word inside its white space; one with a line break in the middle is left as it is.
_WORD = re.compile(r"\A(\s*)(.*)$")


@dataclass(frozen=True, kw_only=True)
class SubtitleOptions:
    """How subtitles made of words are broken. None, or 0, sets no limit.

    max_line_width
        characters in a line.
    max_line_count
        lines in a cue. With a line width too, cues run on across segments, and a pause above 3 s ends one.
    max_words_per_line
        words in a cue; without effect where both limits above are given.
    highlight_words
        one cue for each word as it is spoken, in which that word is underlined.

    Raises UsageError for a negative limit.
    """

    max_line_width: int | None = None
    max_line_count: int | None = None
    max_words_per_line: int | None = None
    highlight_words: bool = False

    def __post_init__(self) -> None:
        for name in ("max_line_width", "max_line_count", "max_words_per_line"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise UsageError(f"{name}: got {value}, expected 1 or more, or None")
            object.__setattr__(self, name, value or None)


class Cue(NamedTuple):
    """A piece of text and when it is shown, in seconds."""

    start: float
    end: float
    text: str


def format_timestamp(seconds: float, always_include_hours: bool = False, decimal_marker: str = ".") -> str:
    """`seconds` as MM:SS.mmm, or HH:MM:SS.mmm from an hour on. Raises UsageError for what is no time."""
    if not (math.isfinite(seconds) and seconds >= 0):
        raise UsageError(f"timestamp: got {seconds}, expected 0 or more seconds")
    total_s, milliseconds = divmod(round(seconds * 1000.0), 1000)
    total_min, whole_s = divmod(total_s, 60)
    hours, minutes = divmod(total_min, 60)
    shown = f"{hours:02d}:" if hours or always_include_hours else ""
    return f"{shown}{minutes:02d}:{whole_s:02d}{decimal_marker}{milliseconds:03d}"


def srt(segments: Iterable[Segment], options: SubtitleOptions) -> Iterator[str]:
    """SubRip: pieces of text that make up the file, one for each cue."""
    for number, (start, end, text) in enumerate(cues(segments, options), 1):
        times = (format_timestamp(time, always_include_hours=True, decimal_marker=",") for time in (start, end))
        yield f"{number}\n{' --> '.join(times)}\n{text}\n\n"


def vtt(segments: Iterable[Segment], options: SubtitleOptions) -> Iterator[str]:
    """WebVTT: pieces of text that make up the file, the header first and then one for each cue."""
    yield "WEBVTT\n\n"
    for start, end, text in cues(segments, options):
        yield f"{format_timestamp(start)} --> {format_timestamp(end)}\n{text}\n\n"


def cues(segments: Iterable[Segment], options: SubtitleOptions) -> Iterator[Cue]:
    """The cues of `segments`, made of words if the first segment has any list of them, even an empty one."""
    rest = iter(segments)
    first = next(rest, None)
    if first is None:
        return
    segments = itertools.chain([first], rest)
    if first.words is None:
        for segment in segments:
            yield Cue(segment.start, segment.end, segment.text.strip().replace("-->", "->"))
        return
    for words in _Cutter(options).cut(segments):
        yield from _highlighted(words) if options.highlight_words else [_plain(words)]


class _Cutter:
    """Words gathered into cues; a word that begins a new line of its cue has a line break in front."""

    def __init__(self, options: SubtitleOptions) -> None:
        self._options = options
        self._runs_on = options.max_line_count is not None and options.max_line_width is not None
        self._max_width = options.max_line_width or _ANY_NUMBER
        self._max_words = options.max_words_per_line or _ANY_NUMBER
        self._cue: list[Word] = []
        self._line_width = 0
        self._n_lines = 1
        self._last_start_s: float | None = None

    def cut(self, segments: Iterable[Segment]) -> Iterator[list[Word]]:
        """The words of each cue, at least one."""
        for segment in segments:
            for index, word in enumerate(_words(segment)):
                yield from self._add(word, begins_chunk=index % self._max_words == 0)
        if self._cue:
            yield self._cue

    def _add(self, word: Word, *, begins_chunk: bool) -> Iterator[list[Word]]:
        """Take one more word; gives the cue that it ends, if it does."""
        pauses = self._runs_on and self._last_start_s is not None and word.start - self._last_start_s > _LONG_PAUSE_S
        breaks = begins_chunk and bool(self._cue) and not self._runs_on
        has_room = self._line_width + len(word.word) <= self._max_width
        if self._line_width > 0 and has_room and not pauses and not breaks:
            self._line_width += len(word.word)
        else:
            text = word.word.strip()
            if breaks or self._is_full(pauses):
                yield self._cue
                self._cue, self._n_lines = [], 1
            elif self._line_width > 0:
                self._n_lines += 1
                text = "\n" + text
            self._line_width = len(text.strip())
            word = replace(word, word=text)
        self._cue.append(word)
        self._last_start_s = word.start

    def _is_full(self, pauses: bool) -> bool:
        limit = self._options.max_line_count
        return bool(self._cue) and limit is not None and (pauses or self._n_lines >= limit)


def _words(segment: Segment) -> list[Word]:
    if segment.words is not None:
        return segment.words
    return [Word(start=segment.start, end=segment.end, word=segment.text, probability=0.0)]


def _plain(words: list[Word]) -> Cue:
    return Cue(words[0].start, words[-1].end, "".join(word.word for word in words))


def _highlighted(words: list[Word]) -> Iterator[Cue]:
    """The cue once for each word with that word underlined, and unmarked in the pauses between."""
    texts = [word.word for word in words]
    last_s = words[0].start
    for index, word in enumerate(words):
        # Times are equal when they are written equally.
        if round(last_s * 1000.0) != round(word.start * 1000.0):
            yield Cue(last_s, word.start, "".join(texts))
        marked = _WORD.sub(r"\1<u>\2</u>", texts[index])
        yield Cue(word.start, word.end, "".join([*texts[:index], marked, *texts[index + 1 :]]))
        last_s = word.end
