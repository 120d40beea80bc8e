"""Subtitles are openai-whisper's, byte for byte; times, limits and laziness."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specedge.errors import UsageError
from specedge.runtime.longform.segments import Segment, Word
from specedge.runtime.model import new_info
from specedge.runtime.options import TranscribeOptions
from specedge.runtime.output.formats import (
    FORMATS,
    STREAMED,
    SubtitleOptions,
    Transcript,
    cues,
    format_timestamp,
    render,
    srt,
)
from support import openai_whisper

# Not what would break a file, which openai-whisper writes as it is.
TEXTS = st.one_of(
    st.text(st.characters(exclude_characters="\r\n&<>"), max_size=12).filter(str.strip),
    st.sampled_from([" the", " pump", ".", "a\tb", "läuft", " 水泵", " 👍🏽", "­"]),
)
# Odd ones too: halves of a millisecond, hours, and words that do not follow each other.
TIMES = st.one_of(
    st.integers(0, 4000).map(lambda n: n / 100),
    st.integers(0, 20_000_000).map(lambda n: n / 2000),
    st.floats(0, 400_000, allow_nan=False),
)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def word_lists(draw: st.DrawFn, n_max: int) -> list[Word]:
    return [
        Word(start=draw(TIMES), end=draw(TIMES), word=draw(TEXTS), probability=draw(NUMBERS))
        for _ in range(draw(st.integers(0, n_max)))
    ]


@st.composite
def segment_lists(draw: st.DrawFn) -> list[Segment]:
    has_words = draw(st.booleans())
    return [
        Segment(
            id=index,
            seek=draw(st.integers(0, 10_000)),
            start=draw(TIMES),
            end=draw(TIMES),
            text=draw(TEXTS),
            tokens=draw(st.lists(st.integers(0, 51_865), max_size=4)),
            avg_logprob=draw(NUMBERS),
            compression_ratio=draw(NUMBERS),
            no_speech_prob=draw(NUMBERS),
            temperature=draw(NUMBERS),
            words=draw(word_lists(6)) if has_words else None,
        )
        for index in range(draw(st.integers(0, 5)))
    ]


def limits(largest: int) -> st.SearchStrategy[int | None]:
    return st.one_of(st.none(), st.integers(0, largest))


OPTIONS = st.builds(
    SubtitleOptions,
    max_line_width=limits(20),
    max_line_count=limits(3),
    max_words_per_line=limits(4),
    highlight_words=st.booleans(),
)


def a_segment(**changes: Any) -> Segment:
    values = {"id": 0, "seek": 0, "start": 0.0, "end": 2.0, "text": " the pump", "tokens": [1]}
    values |= {"avg_logprob": -0.5, "compression_ratio": 1.0, "no_speech_prob": 0.1}
    return Segment(**{**values, **changes})


def words(*texts: str, start: float = 0.0) -> list[Word]:
    """Half a second each."""
    return [Word(start=start + i / 2, end=start + i / 2 + 0.5, word=t, probability=0.9) for i, t in enumerate(texts)]


@pytest.mark.parametrize("format", [name for name in FORMATS if name not in ("json", "lrc")])
def test_files_are_openai_whisper_s(format: str) -> None:
    openai_whisper.utils()  # skips here, not in the middle of the search

    @settings(max_examples=150)
    @given(segments=segment_lists(), options=OPTIONS)
    def check(segments: list[Segment], options: SubtitleOptions) -> None:
        transcript = Transcript(text="", segments=segments, info=new_info(1.0, TranscribeOptions()))
        expected = openai_whisper.written(format, segments, options if format in ("srt", "vtt") else None)
        assert render(format, transcript, options) == expected

    check()


@settings(max_examples=200)
@given(seconds=TIMES, hours=st.booleans(), marker=st.sampled_from([".", ","]))
def test_timestamps_are_openai_whisper_s(seconds: float, hours: bool, marker: str) -> None:
    expected = openai_whisper.utils().format_timestamp(seconds, hours, marker)
    assert format_timestamp(seconds, hours, marker) == expected


@pytest.mark.parametrize("seconds", [-0.001, math.nan, math.inf])
def test_what_is_no_time_is_refused(seconds: float) -> None:
    with pytest.raises(UsageError, match="timestamp"):
        format_timestamp(seconds)


def test_lines_and_cues_are_broken_by_the_limits() -> None:
    segment = a_segment(words=words(" the", " pump", " is", " on", " now"))
    wide = SubtitleOptions(max_line_width=9)
    assert [c.text for c in cues([segment], wide)] == ["the pump\nis on now"]
    counted = SubtitleOptions(max_line_width=9, max_line_count=1)
    assert [c.text for c in cues([segment, segment], counted)] == ["the pump", "is on now", "the pump", "is on now"]
    assert [c.text for c in cues([segment], SubtitleOptions(max_words_per_line=2))] == ["the pump", "is on", "now"]


@pytest.mark.parametrize(("start", "shown"), [(3.5, ["the pump is"]), (3.51, ["the pump", "is"])])
def test_a_pause_above_three_seconds_ends_a_cue(start: float, shown: list[str]) -> None:
    """From the start of one word, here 0.5, to the start of the next."""
    segments = [a_segment(words=words(" the", " pump")), a_segment(words=words(" is", start=start))]
    options = SubtitleOptions(max_line_width=40, max_line_count=2)
    assert [c.text for c in cues(segments, options)] == shown
    assert len(list(cues(segments, SubtitleOptions(max_line_width=40)))) == 2, "segments are kept apart"


def test_a_highlighted_word_is_underlined_while_it_is_spoken() -> None:
    spoken = [*words(" the"), *words(" pump", start=1.0)]
    shown = list(cues([a_segment(words=spoken)], SubtitleOptions(highlight_words=True)))
    assert [(c.start, c.end, c.text) for c in shown] == [
        (0.0, 0.5, "<u>the</u> pump"),
        (0.5, 1.0, "the pump"),
        (1.0, 1.5, "the <u>pump</u>"),
    ]


def test_cues_come_as_soon_as_they_are_decided() -> None:
    read = []

    def live() -> Iterator[Segment]:
        for index in range(3):
            read.append(index)
            yield a_segment(id=index, start=float(index), end=index + 1.0)

    pieces = srt(live(), SubtitleOptions())
    assert next(pieces).startswith("1\n") and read == [0]
    assert next(pieces).startswith("2\n") and read == [0, 1]


def test_limits() -> None:
    assert SubtitleOptions(max_line_width=0) == SubtitleOptions()
    with pytest.raises(UsageError, match="max_line_count: got -1"):
        SubtitleOptions(max_line_count=-1)


@pytest.mark.parametrize("has_words", [True, False])
@pytest.mark.parametrize(
    ("text", "in_srt", "in_vtt"),
    [
        (" a --> b", "a -> b", "a -> b"),
        (" a\n\n 2\r\n\r\nb", "a\n 2\nb", "a\n 2\nb"),
        (" R&D <b> x", "R&D <b> x", "R&amp;D &lt;b> x"),
        (" \n ", None, None),
    ],
)
def test_no_text_breaks_a_file(text: str, in_srt: str | None, in_vtt: str | None, has_words: bool) -> None:
    segment = a_segment(text=text, words=[Word(0.0, 1.0, text, 1.0)] if has_words else None)
    for format, shown, head in (("srt", in_srt, "1\n00:00:00,000"), ("vtt", in_vtt, "WEBVTT\n\n00:00.000")):
        written = render(format, Transcript(text="", segments=[segment], info=new_info(1.0, TranscribeOptions())))
        assert written.endswith(f"\n{shown}\n\n") if shown else written == ("WEBVTT\n\n" if format == "vtt" else "")
        assert written.count("-->") == (shown is not None) and (not shown or written.startswith(head))
    marked = SubtitleOptions(highlight_words=True)
    assert [cue.text for cue in cues([segment], marked) if "-->" in cue.text or "\n\n" in cue.text] == []
    assert len("".join(STREAMED["tsv"]([segment], marked)).splitlines()) == 2
