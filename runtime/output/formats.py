"""Transcripts as txt, srt, vtt, tsv, json and lrc, and how an output file is written.

Layouts are openai-whisper's, byte for byte for the same segments (`whisper/utils.py`), but for texts that would break a
file there: blank lines, arrows, `&` and `<` in VTT, and cues without text. JSON begins with its fields, in
its order and with its numbers unrounded; `duration`, `speculation`, `audio_context` and, for a transcription that was
stopped, `interrupted` follow. A number that is not finite is null there, and files end with a line break. LRC is
whisper.cpp's, without its signature.

Subtitles are cut as openai-whisper cuts them (`SubtitlesWriter`). With words a cue is made of words, which
`SubtitleOptions` breaks into lines; without, every segment is a cue. A segment without words among others that have
them is written as one word, where openai-whisper fails. A cue is given as soon as the segments so far decide it, so
that live audio has subtitles.

A stopped transcription never has the name of a whole one: it is written as NAME.partial.txt.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from specedge.errors import UsageError
from specedge.files import Kind, write_atomic

from ..decoding.statistics import Speculation, calls_per_word
from ..longform.segments import Segment, TranscriptionInfo, Word
from ..options import described

_subtitle = partial(described, group="Subtitles")
_LONG_PAUSE_S = 3.0
_ANY_NUMBER = 1000
# A word inside its white space; one with a line break in the middle is left as it is.
_WORD = re.compile(r"\A(\s*)(.*)$")
_BLANK_LINES = re.compile(r"[\r\n]\s*[\r\n]")


@dataclass(frozen=True, kw_only=True)
class SubtitleOptions:
    """How subtitles made of words are broken. None, or 0, sets no limit. Raises UsageError for a negative limit."""

    max_line_width: int | None = _subtitle(None, "Characters in a line.")
    max_line_count: int | None = _subtitle(
        None, "Lines in a subtitle, which may then span segments up to a pause of 3 s; needs a line width."
    )
    max_words_per_line: int | None = _subtitle(
        None, "Words in a subtitle; without effect where both limits above are given."
    )
    highlight_words: bool = _subtitle(False, "Underline each word while it is spoken.")

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
    for start, end, text in cues(segments, options, lambda text: text.replace("&", "&amp;").replace("<", "&lt;")):
        yield f"{format_timestamp(start)} --> {format_timestamp(end)}\n{text}\n\n"


def cues(segments: Iterable[Segment], options: SubtitleOptions, escape: Callable[[str], str] = str) -> Iterator[Cue]:
    """The cues of `segments`, made of words if the first segment has any list of them, even an empty one.

    escape: what a format writes for signs of its own. A text holds no blank line and no arrow, which would end its cue;
    one without anything to show has none.
    """
    for cue in _cues(segments, options, escape):
        text = _BLANK_LINES.sub("\n", cue.text.replace("-->", "->"))
        if text.strip():
            yield cue._replace(text=text)


def _cues(segments: Iterable[Segment], options: SubtitleOptions, escape: Callable[[str], str]) -> Iterator[Cue]:
    rest = iter(segments)
    first = next(rest, None)
    if first is None:
        return
    segments = itertools.chain([first], rest)
    if first.words is None:
        for segment in segments:
            yield Cue(segment.start, segment.end, escape(segment.text.strip()))
        return
    for words in _cut(segments, options):
        if options.highlight_words:
            yield from _highlighted(words, escape)
        else:
            yield Cue(words[0].start, words[-1].end, escape("".join(word.word for word in words)))


def _cut(segments: Iterable[Segment], options: SubtitleOptions) -> Iterator[list[Word]]:
    """The words of each cue, at least one; a word that begins a new line of its cue has a line break in front."""
    most_lines = options.max_line_count
    runs_on = most_lines is not None and options.max_line_width is not None
    max_width, max_words = options.max_line_width or _ANY_NUMBER, options.max_words_per_line or _ANY_NUMBER
    cue: list[Word] = []
    line_width, n_lines, last_start_s = 0, 1, math.inf
    for segment in segments:
        whole = [Word(start=segment.start, end=segment.end, word=segment.text, probability=0.0)]
        for index, word in enumerate(whole if segment.words is None else segment.words):
            pauses = runs_on and word.start - last_start_s > _LONG_PAUSE_S
            breaks = index % max_words == 0 and bool(cue) and not runs_on
            has_room = line_width + len(word.word) <= max_width
            if line_width > 0 and has_room and not pauses and not breaks:
                line_width += len(word.word)
            else:
                text = word.word.strip()
                if breaks or (cue and most_lines is not None and (pauses or n_lines >= most_lines)):
                    yield cue
                    cue, n_lines = [], 1
                elif line_width > 0:
                    n_lines += 1
                    text = "\n" + text
                line_width = len(text.strip())
                word = replace(word, word=text)
            cue.append(word)
            last_start_s = word.start
    if cue:
        yield cue


def _highlighted(words: list[Word], escape: Callable[[str], str]) -> Iterator[Cue]:
    """The cue once for each word with that word underlined, and unmarked in the pauses between."""
    texts = [escape(word.word) for word in words]
    last_s = words[0].start
    for index, word in enumerate(words):
        if round(last_s * 1000.0) != round(word.start * 1000.0):
            yield Cue(last_s, word.start, "".join(texts))
        marked = _WORD.sub(r"\1<u>\2</u>", texts[index])
        yield Cue(word.start, word.end, "".join([*texts[:index], marked, *texts[index + 1 :]]))
        last_s = word.end


_CENTISECOND = 0.01
_SEGMENT_FIELDS: tuple[str, ...] = ("id", "seek", "start", "end", "text", "tokens")
_SEGMENT_FIELDS += ("temperature", "avg_logprob", "compression_ratio", "no_speech_prob")
_WORD_FIELDS = ("word", "start", "end", "probability")


@dataclass(frozen=True, kw_only=True)
class Transcript:
    """A transcription, whole or up to where it was interrupted, which is the duration in its `info`."""

    text: str
    segments: Sequence[Segment]
    info: TranscriptionInfo
    interrupted: bool = False


def render(format: str, transcript: Transcript, subtitles: SubtitleOptions | None = None) -> str:
    if format == "json":
        return to_json(transcript)
    return "".join(STREAMED[format](transcript.segments, subtitles or SubtitleOptions()))


def _txt(segments: Iterable[Segment], _: SubtitleOptions) -> Iterator[str]:
    for segment in segments:
        yield segment.text.strip() + "\n"


def _tsv(segments: Iterable[Segment], _: SubtitleOptions) -> Iterator[str]:
    """Times are whole milliseconds."""
    yield "start\tend\ttext\n"
    for segment in segments:
        text = re.sub(r"[\t\r\n]", " ", segment.text.strip())
        yield f"{round(1000 * segment.start)}\t{round(1000 * segment.end)}\t{text}\n"


def _lrc(segments: Iterable[Segment], _: SubtitleOptions) -> Iterator[str]:
    """Players know no hours, so minutes may have more than two digits."""
    for segment in segments:
        minutes, centiseconds = divmod(round(segment.start / _CENTISECOND), 6000)
        text = " ".join(segment.text.split())
        yield f"[{minutes:02d}:{centiseconds // 100:02d}.{centiseconds % 100:02d}]{text}\n"


STREAMED: Mapping[str, Callable[[Iterable[Segment], SubtitleOptions], Iterator[str]]] = {
    "txt": _txt,
    "srt": srt,
    "vtt": vtt,
    "tsv": _tsv,
    "lrc": _lrc,
}
"""The formats that can be written while segments come: each gives pieces of text, lazily."""
FORMATS = ("txt", "srt", "vtt", "tsv", "json", "lrc")


def _kind(name: str, pattern: bytes) -> Kind:
    """Files that begin like this, after a byte-order mark or blank lines."""
    found = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:%s)" % pattern)
    return Kind(f"{name} transcript", lambda head: found.match(head) is not None)


KINDS: Mapping[str, Kind] = {
    "txt": Kind("text", lambda head: b"\0" not in head),
    "srt": _kind("srt", rb"\d+\s+\d+:\d\d:\d\d[,.]\d+ +-->"),
    "vtt": _kind("vtt", rb"WEBVTT"),
    "tsv": _kind("tsv", rb"start\tend\ttext"),
    "json": _kind("json", rb'\{\s*"text"\s*:'),
    "lrc": _kind("lrc", rb"\["),
}
"""What a transcript in each format may take the place of: one in that format, whoever wrote it."""


def to_json(transcript: Transcript) -> str:
    """One line of JSON, newline included."""
    info = transcript.info
    value = {
        "text": transcript.text,
        "segments": [segment_fields(segment) for segment in transcript.segments],
        "language": info.language,
        "duration": _time(info.duration),
        "speculation": info.speculation,
        "audio_context": info.audio_context,
        "encoder_provider": info.encoder_provider,
    }
    if transcript.interrupted:
        value["interrupted"] = True
    return json.dumps(plain(value), allow_nan=False) + "\n"


def speculation_fields(
    speculation: Speculation, *, encoder_s: float, total_s: float, n_words: int, duration_s: float
) -> dict[str, Any]:
    """The `speculation` object: counters, rates and times in seconds.

    `acceptance_by_position` is by depth in the draft; `verify_s` and `rules_s` are
    parts of `decoder_s`; `calls_per_word` are passes for each of the `n_words`; `decoder_real_time_factor` is the time
    in decoder and drafter by `duration_s`; `choice` says what was measured of each drafter; `share` of learning is of
    `total_s`. None where there is nothing to report.
    """
    spent_s = speculation.decoder_s + speculation.draft_s
    learning = speculation.learning
    counted: tuple[str, ...] = ("proposed", "evaluated", "accepted", "acceptance_rate", "passes", "tokens")
    counted += ("tokens_per_pass", "rows_per_pass", "texts_per_pass")
    return {
        "drafter": speculation.drafter,
        "choice": speculation.choice or None,
        **{name: getattr(speculation, name) for name in counted},
        "calls_per_word": calls_per_word(speculation.passes, n_words),
        "decoder_real_time_factor": _time(spent_s / duration_s) if duration_s > 0 else None,
        "bonus": speculation.bonus,
        "encoder_s": _time(encoder_s),
        "decoder_s": _time(speculation.decoder_s),
        "draft_s": _time(speculation.draft_s),
        "total_s": _time(total_s),
        "lossless": speculation.lossless,
        "verify_s": _time(speculation.verify_s),
        "rules_s": _time(speculation.rules_s),
        "acceptance_by_position": list(speculation.acceptance_by_position),
        "by_drafter": {name: asdict(counts) for name, counts in speculation.by_drafter.items()},
        "learning": None
        if learning is None
        else {
            "updates": learning.updates,
            "seconds": _time(learning.seconds),
            "share": round(learning.seconds / total_s, 4) if total_s > 0 else 0.0,
            "rollbacks": learning.rollbacks,
        },
    }


def segment_fields(segment: Segment) -> dict[str, Any]:
    """A segment as JSON has it, with its words if they are timed."""
    found = {name: getattr(segment, name) for name in _SEGMENT_FIELDS}
    if segment.words is not None:
        found["words"] = [{name: getattr(word, name) for name in _WORD_FIELDS} for word in segment.words]
    return found


def _time(seconds: float) -> float | None:
    return round(seconds, 3) if math.isfinite(seconds) else None


def plain(value: Any) -> Any:
    """`value` in JSON's own types: numbers that are not finite become null, NumPy's become Python's."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [plain(item) for item in value]
    return value


def write_transcript(
    paths: Mapping[str, Path], transcript: Transcript, subtitles: SubtitleOptions
) -> Mapping[str, Path]:
    """Write a file for each format and return their paths: `paths`, or others for a stopped transcription.

    Raises ResourceError when one cannot be written, UsageError when it would replace a file that is no transcript.
    """
    if transcript.interrupted:
        paths = _beside(paths)
    for format, path in paths.items():
        write_atomic(path, render(format, transcript, subtitles), KINDS[format])
    return paths


def _beside(paths: Mapping[str, Path]) -> Mapping[str, Path]:
    """Names that nothing has, the same in all formats."""
    for number in itertools.count(1):
        mark = "partial" if number == 1 else f"partial-{number}"
        free = {format: path.with_name(f"{path.stem}.{mark}{path.suffix}") for format, path in paths.items()}
        if not any(map(os.path.lexists, free.values())):
            break
    return free
