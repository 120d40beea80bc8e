"""Pauses: which are found, which windows end with them, which times move to their edges."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from specedge.runtime.errors import UsageError
from specedge.runtime.longform.options import TranscribeOptions
from specedge.runtime.longform.pauses import WindowPauses, find_pauses, fit_times
from specedge.runtime.longform.segments import Segment
from specedge.runtime.longform.transcribe import transcribe
from specedge.runtime.sound.audio import open_audio
from specedge.runtime.sound.mel import log_mel
from support.fake_engine import Script, ScriptedEngine, bundle, special_tokens, words

RATE = 16_000
SPECIAL = special_tokens()
PUMP = words(" the", " pump", " is", " on")


def sound(*parts: float, hiss: float = 1e-3) -> NDArray[np.float32]:
    """Silence and syllables in turn, so many seconds each."""
    rng = np.random.default_rng(3)
    out = []
    for i, seconds in enumerate(parts):
        n = round(seconds * RATE)
        syllables = 0.05 + np.sin(np.pi * 4 * np.arange(n) / RATE) ** 2
        out.append(0.2 * syllables * rng.standard_normal(n) * (i % 2))
    samples = np.concatenate(out)
    return (samples + hiss * rng.standard_normal(len(samples))).astype(np.float32)


def mel_of(samples: NDArray[np.float32], n_mels: int = 80) -> NDArray[np.float32]:
    return log_mel(samples, n_mels, len(samples) // 160)


@pytest.mark.parametrize("n_mels", [80, 128])
@pytest.mark.parametrize("hiss", [0.0, 1e-3, 2e-2])
def test_pauses_are_found_to_a_tenth_of_a_second(n_mels: int, hiss: float) -> None:
    found = find_pauses(mel_of(sound(0.8, 2.0, 0.5, 1.5, 1.2, hiss=hiss), n_mels))
    assert len(found) == 3
    np.testing.assert_allclose(found, [(0, 0.8), (2.8, 3.3), (4.8, 6.0)], atol=0.1)


def test_noise_that_sets_in_after_digital_silence_is_no_speech() -> None:
    samples = sound(1.0, 1.5, 1.0, 1.5, 1.0)
    muted = np.concatenate([np.zeros(3 * RATE, np.float32), samples])
    np.testing.assert_allclose(find_pauses(mel_of(muted)), [(0, 4.0), (5.5, 6.5), (8.0, 9.0)], atol=0.1)


@pytest.mark.parametrize(
    "mel",
    [
        np.zeros((80, 0), np.float32),
        np.zeros((80, 300), np.float32),
        np.full((80, 300), np.nan, np.float32),
        mel_of(np.zeros(RATE, np.float32)),
        mel_of(sound(4.0)),
    ],
    ids=["empty", "constant", "nan", "digital silence", "hiss"],
)
def test_without_speech_there_is_no_edge(mel: NDArray[np.float32]) -> None:
    assert find_pauses(mel) == []


def test_times_move_to_the_pauses_they_are_near() -> None:
    found = [(0.0, 0.5), (3.0, 4.1), (7.0, 10.0)]
    assert fit_times([(0.4, 3.1), (3.6, 7.3)], found) == [(0.5, 3.0), (4.1, 7.0)]


def test_a_pause_inside_a_sentence_is_not_taken_for_one_between_sentences() -> None:
    found = [(0.0, 0.5), (2.0, 2.2), (3.0, 3.8), (6.0, 9.0)]
    assert fit_times([(0.5, 2.9), (3.5, 6.1)], found) == [(0.5, 3.0), (3.8, 6.0)]


def test_two_starts_do_not_share_a_pause() -> None:
    """The second start alone would be nearest to the first's pause."""
    found = [(0.0, 0.5), (2.0, 3.0), (4.9, 5.5), (8.0, 9.0)]
    assert fit_times([(0.5, 2.1), (2.8, 3.9), (4.1, 8.0)], found) == [(0.5, 2.0), (3.0, 4.9), (5.5, 8.0)]


@pytest.mark.parametrize("found", [[], [(20.0, 21.0)], [(2.5, 3.0)]])
def test_what_no_pause_is_near_stays(found: list[tuple[float, float]]) -> None:
    times = [(5.1, 8.0), (8.0, 12.5)]
    assert fit_times(times, found) == times


def ordered(values: list[float]) -> list[tuple[float, float]]:
    flat = sorted(set(values))
    return list(zip(flat[::2], flat[1::2], strict=False))


TIMES = st.lists(st.integers(0, 1500).map(lambda step: step / 50), max_size=12).map(ordered)


@given(times=TIMES, found=TIMES)
def test_times_stay_in_order_and_move_two_seconds_at_most(
    times: list[tuple[float, float]], found: list[tuple[float, float]]
) -> None:
    fitted = fit_times(times, found)
    assert len(fitted) == len(times)
    flat = [time_s for pair in fitted for time_s in pair]
    assert flat == sorted(flat) and all(start < end for start, end in fitted)
    moved = [abs(a - b) for old, new in zip(times, fitted, strict=True) for a, b in zip(old, new, strict=True)]
    assert max(moved, default=0.0) <= 2.0
    assert fit_times(times, []) == times


def test_a_segment_does_not_start_before_the_last_window_ended() -> None:
    """The model cut the first window inside a word, whose rest the second window begins with."""
    blank = Segment(
        id=0, seek=0, start=0.5, end=2.6, text="", tokens=[], avg_logprob=0, compression_ratio=1, no_speech_prob=0
    )
    edges = WindowPauses(cuts=False, settles=True)
    samples = sound(0.5, 2.5, 0.5, 2.0, 1.0)
    (first,) = edges.settle([blank], mel_of(samples), 0.0)
    assert (first.start, first.end) == pytest.approx((0.5, 3.0), abs=0.1)
    second = replace(blank, start=2.6, end=5.4)
    (second,) = edges.settle([second], mel_of(samples[round(2.6 * RATE) :]), 2.6)
    assert first.end <= second.start and second.end == pytest.approx(5.5, abs=0.1)


def at(seconds: float) -> int:
    return SPECIAL.timestamp_begin + round(seconds / 0.02)


# Two sentences at 0.8 to 2.8 and 3.5 to 5.5 s, which the model puts elsewhere.
SAMPLES = sound(0.8, 2.0, 0.7, 2.0, 1.0)
SAID, HEARD = [(0.4, 2.4), (3.0, 5.9)], [(0.8, 2.8), (3.5, 5.5)]
WHOLE = [Script(tokens=[at(0.4), *PUMP, at(2.4), at(3.0), *PUMP, at(5.9)])]
# As above where the first window ends at 3.15 s.
CUT = [Script(tokens=[at(0.4), *PUMP, at(2.4)]), Script(tokens=[at(0.0), *PUMP, at(2.74)])]


def run(scripts: list[Script], own_limit_s: float, **asked: Any) -> tuple[list[Segment], ScriptedEngine]:
    options = TranscribeOptions(language="en", **asked)
    limit = round(own_limit_s / SPECIAL.time_precision_s)
    made = bundle(SPECIAL, n_frames=1000, max_initial_timestamp_index=limit, short_windows=own_limit_s > 1)
    engine = ScriptedEngine(SPECIAL, scripts, n_prompt=4 if options.without_timestamps else 3)
    return list(transcribe(engine, made, open_audio(SAMPLES), options)), engine


def times_of(segments: list[Segment]) -> list[tuple[float, float]]:
    return [(segment.start, segment.end) for segment in segments]


@pytest.mark.parametrize(
    ("own_limit_s", "asked", "expected"),
    [
        (1.0, {}, SAID),
        (1.0, {"segment_times": "speech"}, HEARD),
        (1.0, {"segment_times": "speech", "rules": "hf"}, HEARD),
        (8.0, {"window_end": "full"}, HEARD),
        (8.0, {"window_end": "full", "segment_times": "model"}, SAID),
        (8.0, {"rules": "hf"}, SAID),
        (8.0, {"window_end": "full", "segment_times": "speech", "without_timestamps": True}, SAID),
    ],
)
def test_which_checkpoints_and_options_take_times_from_pauses(
    own_limit_s: float, asked: dict[str, Any], expected: list[tuple[float, float]]
) -> None:
    segments, engine = run(WHOLE, own_limit_s, **asked)
    np.testing.assert_allclose(times_of(segments), expected, atol=0.1 if expected is HEARD else 1e-9)
    assert len(engine.mels) == 1


@pytest.mark.parametrize(
    ("own_limit_s", "asked", "expected"),
    [
        (1.0, {"window_end": "pause"}, [(0.0, 2.4), (3.15, 5.89)]),
        (1.0, {"window_end": "pause", "segment_times": "speech"}, HEARD),
        (8.0, {}, HEARD),
        (8.0, {"segment_times": "model"}, [(0.4, 2.4), (3.15, 5.89)]),
    ],
)
def test_which_checkpoints_and_options_end_windows_with_pauses(
    own_limit_s: float, asked: dict[str, Any], expected: list[tuple[float, float]]
) -> None:
    segments, engine = run(CUT, own_limit_s, **asked)
    np.testing.assert_allclose(times_of(segments), expected, atol=0.1)
    first, second = engine.mels[-2:]
    assert 300 < np.flatnonzero(first.any(axis=0))[-1] < 330, "what lies behind the pause is not heard"
    assert second.any() and [segment.seek for segment in segments] == [0, pytest.approx(315, abs=15)]


@pytest.mark.parametrize("n_windows", [1, 2])
def test_the_window_that_the_language_was_heard_in_is_not_decoded_whole(n_windows: int) -> None:
    limit = round(8.0 / SPECIAL.time_precision_s)
    made = bundle(SPECIAL, n_frames=500, max_initial_timestamp_index=limit, short_windows=True)
    engine = ScriptedEngine(SPECIAL, [Script(tokens=[at(0.4), *PUMP, at(2.4)])])
    asked = TranscribeOptions(
        language_detection_segments=n_windows, language_detection_threshold=None, audio_context="full"
    )
    first = next(transcribe(engine, made, open_audio(SAMPLES), asked))
    assert (first.start, first.end) == pytest.approx((0.8, 2.8), abs=0.1)
    assert 300 < np.flatnonzero(engine.mels[-1].any(axis=0))[-1] < 330
    assert len(engine.mels) == (1 if n_windows == 1 else 3)


def test_text_tokens_and_seeks_are_the_models() -> None:
    (said, _), (heard, _) = run(WHOLE, 1.0, segment_times="model"), run(WHOLE, 1.0, segment_times="speech")
    assert len(said) == len(heard) == 2
    for a, b in zip(said, heard, strict=True):
        assert replace(b, start=a.start, end=a.end) == a


def cut_at(*parts: float, n_frames: int = 1000, hiss: float = 1e-3) -> float:
    """How many seconds of a window of ten are left."""
    samples = sound(*parts, hiss=hiss)[: n_frames * 160]
    mel = np.zeros((80, n_frames), np.float32)
    n_content = len(samples) // 160
    mel[:, :n_content] = mel_of(samples)[:, :n_content]
    heard, n = WindowPauses(cuts=True, settles=False).cut(mel, n_content)
    assert not heard[:, n:].any() and heard[:, :n].any()
    return n / 100


def test_a_window_ends_in_the_middle_of_its_first_long_pause() -> None:
    assert cut_at(0.5, 3.0, 0.8, 2.0, 0.6, 5.0) == pytest.approx(3.9, abs=0.1)


def test_a_pause_that_comes_at_once_ends_no_window() -> None:
    assert cut_at(0.5, 0.6, 0.5, 3.0, 0.8, 6.0) == pytest.approx(5.0, abs=0.1)


@pytest.mark.parametrize(
    ("parts", "whole_s"),
    [((0.5, 12.0), 10.0), ((0.5, 6.0, 1.5), 8.0), ((0.5, 8.0, 3.0), 10.0), ((8.0, 0.0), 8.0)],
    ids=["speech throughout", "a pause at the end of the audio", "a pause at the end of the window", "hiss"],
)
def test_a_window_without_speech_behind_a_pause_stays_whole(parts: tuple[float, ...], whole_s: float) -> None:
    assert cut_at(*parts) == whole_s


def test_transformers_long_form_has_windows_of_its_own() -> None:
    with pytest.raises(UsageError, match="window_end: got 'pause', expected full where rules is hf"):
        TranscribeOptions(rules="hf", window_end="pause")
