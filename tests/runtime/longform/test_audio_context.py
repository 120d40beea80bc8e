"""The audio context: what the encoder hears of a window, and that nothing else changes with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import specedge
from specedge.errors import UsageError
from specedge.runtime.audio.audio import open_audio
from specedge.runtime.longform.live import LiveTranscriber
from specedge.runtime.longform.transcribe import Transcription
from specedge.runtime.longform.windows import AudioContext
from specedge.runtime.options import TranscribeOptions
from support import exported
from support.fake_engine import Script, SilentEngine, bundle, special_tokens, words
from support.lossless import Truths, adversary, difference, run

SPECIAL = special_tokens()
PUMP = [SPECIAL.timestamp_begin, *words(" the", " pump"), SPECIAL.timestamp_begin + 50, SPECIAL.timestamp_begin + 50]
NOISE = (0.1 * np.random.default_rng(3).standard_normal(16_000 * 3)).astype(np.float32)


def context(asked: str | float, *, knows_silence: bool = True) -> AudioContext:
    return AudioContext(asked, bundle(SPECIAL, n_frames=1000).manifest, knows_silence=knows_silence)


@pytest.mark.parametrize("asked", ["car", "", 0, -1.0, float("nan"), float("inf"), True, "3"])
def test_what_cannot_be_is_refused(asked: Any) -> None:
    with pytest.raises(UsageError, match="audio_context: got .*, expected auto, full, or seconds above 0"):
        TranscribeOptions(audio_context=asked)


@pytest.mark.parametrize(
    ("asked", "n_content", "n_frames"),
    [
        ("full", 120, 1000),
        ("auto", 0, 122),  # the margin in whole groups of 40 frames, and two that the convolutions look at
        ("auto", 140, 242),
        ("auto", 141, 282),
        ("auto", 540, 642),
        ("auto", 541, 1000),  # more than two thirds would be encoded: whole, without silence
        ("auto", 1000, 1000),
        (3, 120, 322),
        (3.3, 120, 362),
        (30.0, 120, 1000),
    ],
)
def test_silence_stands_in_for_whole_groups(asked: str | float, n_content: int, n_frames: int) -> None:
    made, mel = context(asked), np.zeros((80, 1000), np.float32)
    sound = made.sound(mel, n_content, -0.7)
    assert not mel.any() and (sound.mel[:, n_content:] == np.float32(-0.7 if sound.ends_in_silence else 0)).all()
    assert sound.mel.shape[1] == n_frames and sound.ends_in_silence is (n_frames < 1000)
    assert made.is_approximate is sound.ends_in_silence and (sound.ends_in_silence or sound.mel is mel)


@pytest.mark.parametrize("asked", ["auto", 3.0, "full"])
def test_a_model_that_does_not_know_silence_encodes_whole_windows(asked: str | float) -> None:
    made = context(asked, knows_silence=False)
    assert made.n_frames(180) == 1000 and made.is_full


def test_what_was_encoded_is_counted() -> None:
    made, mel = context("auto"), np.zeros((80, 1000), np.float32)
    made.sound(mel, 1000)
    expected = {"asked": "auto", "heard_s": 10.0, "window_s": 10.0, "approximate": False, "encoded_again": 0}
    assert made.fields() == expected
    made.sound(mel, 120)
    made.again()
    expected = {"asked": "auto", "heard_s": 22.42, "window_s": 20.0, "approximate": True, "encoded_again": 1}
    assert made.fields() == expected


@pytest.mark.parametrize(("asked", "more", "n_more"), [
    ("auto", {}, 0),
    ("full", {}, 1),
    ("auto", {"clip_timestamps": (0.5,)}, 1),
    ("auto", {"language_detection_segments": 2}, 1),
])  # fmt: skip
def test_the_window_that_tells_the_language_is_cut_too_and_heard_once(
    asked: str, more: dict[str, Any], n_more: int
) -> None:
    engine = SilentEngine(SPECIAL, Script(tokens=PUMP))
    made = TranscribeOptions(audio_context=asked, **more)
    result = Transcription(engine, bundle(SPECIAL, n_frames=1000), open_audio(NOISE), made)
    segments = list(result)
    assert segments and result.language is not None
    assert len(engine.mels) == len(segments) + n_more
    assert engine.mels[0].shape[1] == (402 if asked == "auto" and not more else 1000)


@pytest.mark.parametrize(
    ("kind", "asked"),
    [("branches", "auto")]
    + [
        pytest.param(*case, marks=pytest.mark.slow)
        for case in (("oracle", "auto"), ("one wrong", "auto"), ("oracle", 1.0), ("one wrong", 1.0), ("branches", 1.0))
    ],
)
def test_no_drafter_changes_a_text_of_a_shorter_context(kind: str, asked: str | float) -> None:
    """Real graphs with random weights, whose text is noise."""
    made, model = exported.bundle(), exported.engine()
    options = TranscribeOptions(language="en", audio_context=asked, log_prob_threshold=None, no_speech_threshold=None)
    sound = NOISE[: 16_000 * 5 // 10]
    truths = Truths()
    plain = run(model, made, sound, options, None)
    recorded = run(model, made, sound, options, truths.recorder())
    assert model.knows_silence
    assert difference(plain, recorded) is None and plain.n_tokens > 10
    got = run(model, made, sound, options, adversary(kind, truths, made, seed=1))
    assert difference(plain, got) is None and got.speculation.accepted > 0


def test_words_lie_where_the_audio_is() -> None:
    made, model = exported.bundle(), exported.engine()
    sound = NOISE[: 16_000 * 5 // 10]
    options = TranscribeOptions(
        language="en", audio_context="auto", word_timestamps=True, log_prob_threshold=None, no_speech_threshold=None
    )
    segments = run(model, made, sound, options, None).segments
    ends = [word.end for segment in segments for word in segment.words or ()]
    assert ends and max(ends) <= 0.5 + 0.02


def test_batched_pieces_of_several_lengths_have_the_text_of_their_own() -> None:
    model = specedge.WhisperModel(str(exported.bundle().path), cpu_threads=1)
    clips = [{"start": 0.0, "end": 0.1}, {"start": 0.4, "end": 1.9}, {"start": 2.0, "end": 2.12}]
    texts = []
    for batch_size in (1, 3):
        pipeline = specedge.BatchedInferencePipeline(model=model)
        found, info = pipeline.transcribe(
            NOISE, "en", clip_timestamps=clips, batch_size=batch_size, audio_context="auto"
        )
        texts.append([segment.tokens for segment in found])
        n_again = info.audio_context["encoded_again"]  # of random weights, whose texts are unlikely
        assert info.audio_context["heard_s"] == round(1.22 + 2.0 + 1.22 + 2.0 * n_again, 2)
        assert info.audio_context["approximate"]
    assert texts[0] == texts[1] and texts[0]


LOOP = Script(tokens=[SPECIAL.timestamp_begin, *words(" pump") * 60, SPECIAL.timestamp_begin + 50])
UNLIKELY = Script(tokens=PUMP, logprob=-3.0)
SILENT = Script(tokens=PUMP, no_speech_prob=0.9)
NO_TESTS = dict.fromkeys(("compression_ratio_threshold", "log_prob_threshold", "no_speech_threshold"))


@pytest.mark.parametrize("failed", [LOOP, UNLIKELY, SILENT], ids=["loop", "unlikely", "silent"])
@pytest.mark.parametrize("tests", [{}, NO_TESTS])
def test_a_text_that_fails_is_decoded_again_over_the_whole_window(failed: Script, tests: dict[str, None]) -> None:
    """Before any temperature rises, and also where the options have no tests."""
    engine = SilentEngine(SPECIAL, failed, Script(tokens=PUMP))
    made = TranscribeOptions(language="en", audio_context="auto", **tests)
    result = Transcription(engine, bundle(SPECIAL, n_frames=1000), open_audio(NOISE), made)
    segments = list(result)
    assert engine.silent[:2] == [True, False] and [mel.shape[1] for mel in engine.mels[:2]] == [402, 1000]
    assert [segment.text for segment in segments][:1] == [" the pump"] and segments[0].temperature == 0.0
    assert result.audio_context.n_again == 1 and result.speculation.passes > 8


@pytest.mark.parametrize(("end_s", "n_windows"), [(2.4, 2), (2.6, 1)])
def test_less_than_half_a_second_behind_a_text_before_silence_is_not_heard_again(end_s: float, n_windows: int) -> None:
    end = SPECIAL.timestamp_begin + round(end_s / 0.02)
    engine = SilentEngine(SPECIAL, Script(tokens=[*PUMP[:3], end, end]), Script(tokens=PUMP))
    made = TranscribeOptions(language="en", audio_context="auto")
    assert list(Transcription(engine, bundle(SPECIAL, n_frames=1000), open_audio(NOISE), made))
    assert len(engine.mels) == n_windows


def test_a_text_that_passes_is_decoded_once() -> None:
    engine = SilentEngine(SPECIAL, Script(tokens=PUMP))
    made = TranscribeOptions(language="en", audio_context="auto")
    result = Transcription(engine, bundle(SPECIAL, n_frames=1000), open_audio(NOISE), made)
    assert list(result) and all(engine.silent) and result.audio_context.n_again == 0


def test_live_audio_is_encoded_as_far_as_it_goes() -> None:
    engine = SilentEngine(SPECIAL, Script(tokens=PUMP))
    live = LiveTranscriber(engine, bundle(SPECIAL, n_frames=1000), TranscribeOptions(language="en"), step_s=1.0)
    syllables = np.clip(np.sin(2 * np.pi * 4 * np.arange(len(NOISE)) / 16_000), 0, 1).astype(np.float32)
    live.feed(3 * syllables * NOISE)
    live.finish()
    assert engine.silent and all(engine.silent)
