"""Transcripts as text: txt, srt, vtt, tsv, json and lrc, and the one way an output file is written.

Layouts are openai-whisper's, byte for byte for the same segments (`whisper/utils.py`). JSON begins with its fields, in
its order and with its numbers unrounded; `duration`, `speculation`, `audio_context` and, for a transcription that was
stopped, `interrupted` follow. What is no number is null there, and files end with a line break. LRC is whisper.cpp's,
without its signature. Does not know: engines, audio, the terminal.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from specedge.maps.outputs import Kind
from specedge.maps.publish import publishing
from specedge.runtime.decoding.statistics import Speculation, calls_per_word
from specedge.runtime.longform.segments import Segment
from specedge.runtime.output.subtitles import SubtitleOptions, format_timestamp, srt, vtt

__all__ = [
    "FORMATS",
    "KINDS",
    "STREAMED",
    "SubtitleOptions",
    "Transcript",
    "format_timestamp",
    "render",
    "speculation_fields",
    "to_json",
    "write_atomic",
]

_CENTISECOND = 0.01


@dataclass(frozen=True, kw_only=True)
class Transcript:
    """A transcription, whole or up to where it was interrupted. `text` is decoded in one; `duration_s`: the audio's."""

    text: str
    segments: Sequence[Segment]
    language: str | None
    duration_s: float
    speculation: Mapping[str, Any] = field(default_factory=dict)
    audio_context: Mapping[str, Any] = field(default_factory=dict)
    interrupted: bool = False


def render(format: str, transcript: Transcript, subtitles: SubtitleOptions | None = None) -> str:
    """A whole file's text in one of `FORMATS`."""
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
        text = segment.text.strip().replace("\t", " ")
        yield f"{round(1000 * segment.start)}\t{round(1000 * segment.end)}\t{text}\n"


def _lrc(segments: Iterable[Segment], _: SubtitleOptions) -> Iterator[str]:
    """A line each, which must be one line. Minutes are not limited to two digits: players know no hours."""
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
    """Files that begin like this, behind a byte-order mark or blank lines."""
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
    value = {
        "text": transcript.text,
        "segments": [_segment_fields(segment) for segment in transcript.segments],
        "language": transcript.language,
        "duration": _time(transcript.duration_s),
        "speculation": transcript.speculation,
        "audio_context": transcript.audio_context,
    }
    if transcript.interrupted:
        value["interrupted"] = True
    return json.dumps(_plain(value), allow_nan=False) + "\n"


def speculation_fields(
    speculation: Speculation, *, encoder_s: float, total_s: float, n_words: int, duration_s: float
) -> dict[str, Any]:
    """The `speculation` object: counters, rates and times in seconds; `lossless` is true for exact acceptance.

    `suspected_loops` counts windows; `acceptance_by_position` is by depth in the draft; `verify_s` and `rules_s` are
    parts of `decoder_s`. `calls_per_word` is by the `n_words` of the text, `decoder_real_time_factor` the time in
    decoder and drafter for each of the `duration_s` of audio; None where there are none. `choice` says why the drafter
    auto is made of what it is made of, null for others. `learning` is null unless a draft learns; its `share` is of
    `total_s`.
    """
    spent_s = speculation.decoder_s + speculation.draft_s
    learning = speculation.learning
    return {
        "drafter": speculation.drafter,
        "choice": speculation.choice or None,
        "proposed": speculation.proposed,
        "evaluated": speculation.evaluated,
        "accepted": speculation.accepted,
        "acceptance_rate": speculation.acceptance_rate,
        "passes": speculation.passes,
        "tokens": speculation.tokens,
        "tokens_per_pass": speculation.tokens_per_pass,
        "calls_per_word": calls_per_word(speculation.passes, n_words),
        "decoder_real_time_factor": _time(spent_s / duration_s) if duration_s > 0 else None,
        "bonus": speculation.bonus,
        "suspected_loops": speculation.suspected_loops,
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


def write_atomic(path: str | os.PathLike[str], data: str | bytes, kind: Kind | None = None) -> None:
    """Write a file so that it is the old one or the new one at any instant, whole (`maps.publish`).

    Text is UTF-8 with "\\n". Raises ResourceError when the disk is full, the folder is missing or may not be written,
    UsageError for a file of another than the given kind; nothing is left behind.
    """
    with publishing(path, kind) as file:
        file.write(data.encode("utf-8", errors="replace") if isinstance(data, str) else data)


def _segment_fields(segment: Segment) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "id": segment.id,
        "seek": segment.seek,
        "start": segment.start,
        "end": segment.end,
        "text": segment.text,
        "tokens": segment.tokens,
        "temperature": segment.temperature,
        "avg_logprob": segment.avg_logprob,
        "compression_ratio": segment.compression_ratio,
        "no_speech_prob": segment.no_speech_prob,
    }
    if segment.words is not None:
        fields["words"] = [
            {"word": word.word, "start": word.start, "end": word.end, "probability": word.probability}
            for word in segment.words
        ]
    return fields


def _time(seconds: float) -> float | None:
    return round(seconds, 3) if math.isfinite(seconds) else None


def _plain(value: Any) -> Any:
    """`value` of JSON's own types: numbers that are none become null, NumPy's become Python's."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value
