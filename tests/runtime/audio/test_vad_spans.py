"""Spans of speech: faster-whisper's own function as the reference, and what every result must keep."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specedge.errors import UsageError
from specedge.runtime.audio.vad import FRAME_SAMPLES, Span, SpanFinder, VadOptions


def speech_spans(values: Sequence[float], n_samples: int, options: VadOptions) -> list[Span]:
    finder = SpanFinder(options)
    pieces = [piece for value in values for piece in finder.push(value)]
    spans: list[Span] = []
    for piece in [*pieces, *finder.finish(n_samples)]:
        start = piece.start if piece.is_new else spans.pop()[0]
        spans.append((start, piece.end))
    return spans


@st.composite
def probabilities(draw: st.DrawFn) -> list[float]:
    """Runs of silence, doubt and speech, as detectors give them, and single frames that stand out."""
    values: list[float] = []
    for _ in range(draw(st.integers(0, 12))):
        level = draw(st.sampled_from([0.0, 0.2, 0.34, 0.36, 0.45, 0.5, 0.51, 0.9, 1.0]))
        values += [level] * draw(st.sampled_from([1, 1, 2, 3, 5, 13, 40, 90]))
    return values


@st.composite
def vad_options(draw: st.DrawFn) -> VadOptions:
    pad_ms = draw(st.sampled_from([0, 10, 30, 100, 400]))
    return VadOptions(
        threshold=draw(st.sampled_from([0.5, 0.5, 0.35, 0.9])),
        neg_threshold=draw(st.sampled_from([None, None, 0.1, 0.35])),
        min_speech_duration_ms=draw(st.sampled_from([0, 0, 100, 250, 1000])),
        max_speech_duration_s=draw(st.sampled_from([math.inf, math.inf, 1.0, 1.7, 5.0])),
        min_silence_duration_ms=draw(st.sampled_from([0, 50, 160, 500, 2000])),
        speech_pad_ms=pad_ms,
    )


def theirs(values: Sequence[float], n_samples: int, options: VadOptions) -> list[tuple[int, int]]:
    """What faster-whisper makes of the same probabilities."""
    vad = pytest.importorskip("faster_whisper.vad", reason="faster-whisper is not installed")
    chosen = vad.VadOptions(
        threshold=options.threshold,
        neg_threshold=options.neg_threshold,
        min_speech_duration_ms=options.min_speech_duration_ms,
        max_speech_duration_s=options.max_speech_duration_s,
        min_silence_duration_ms=options.min_silence_duration_ms,
        speech_pad_ms=options.speech_pad_ms,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vad, "get_vad_model", lambda: lambda audio: np.array(values))
        found: list[dict[str, Any]] = vad.get_speech_timestamps(np.zeros(n_samples, np.float32), chosen)
    return [(span["start"], span["end"]) for span in found]


@settings(max_examples=150)
@given(values=probabilities(), options=vad_options(), rest=st.integers(0, FRAME_SAMPLES - 1))
def test_equal_to_faster_whisper(values: list[float], options: VadOptions, rest: int) -> None:
    n_samples = len(values) * FRAME_SAMPLES + rest
    values = [*values, 0.6 if rest > 256 else 0.0]  # the frame that holds the rest
    assert speech_spans(values, n_samples, options) == theirs(values, n_samples, options)


@pytest.mark.parametrize(
    ("level", "max_speech_s"), [(0.4, math.inf), (0.4, 7200.0), (0.9, 7200.0), (0.9, math.inf), (0.0, math.inf)]
)
def test_what_is_held_back_stays_within_a_minute(level: float, max_speech_s: float) -> None:
    finder = SpanFinder(VadOptions(max_speech_duration_s=max_speech_s))
    for i, value in enumerate([0.9] * 20 + [0.1] * 5 + [0.9] * 3 + [0.1] + [level] * 6000):
        finder.push(value)
        assert (i + 1) * FRAME_SAMPLES - finder.held_from <= 61 * 16_000


def test_speech_comes_out_while_it_lasts() -> None:
    finder = SpanFinder(VadOptions(speech_pad_ms=0))
    pieces = [piece for _ in range(10) for piece in finder.push(1.0)]
    assert pieces[0].is_new and pieces[-1].end == 9 * FRAME_SAMPLES


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("threshold", 0.0),
        ("threshold", 1.5),
        ("threshold", math.nan),
        ("neg_threshold", 0.9),
        ("min_speech_duration_ms", -1),
        ("min_silence_duration_ms", math.inf),
        ("speech_pad_ms", -5),
        ("max_speech_duration_s", 0.8),
        ("max_speech_duration_s", math.nan),
        ("detector", "webrtc"),
    ],
)
def test_options_that_cannot_be(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"VAD option {name}: got {value!r}, expected"):
        VadOptions(**{name: value})
