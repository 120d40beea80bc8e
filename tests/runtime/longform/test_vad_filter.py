"""`vad_filter=True` with the real detector: silence is left out, times are those of the audio as it was."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

import specedge
from specedge.errors import UsageError
from specedge.runtime.audio.audio import open_audio
from specedge.runtime.longform.vad_filter import SpeechAudio
from support import exported

RATE = 16_000
OPTIONS = {"temperature": 0.0, "no_speech_threshold": None}


def loud(seconds: float, seed: int) -> NDArray[np.float32]:
    """Bursts as syllables have them: noise at 4 Hz."""
    n = round(seconds * RATE)
    bursts = np.sin(np.pi * 4 * np.arange(n) / RATE) ** 2
    return (0.3 * bursts * np.random.default_rng(seed).standard_normal(n)).astype(np.float32)


def quiet(seconds: float) -> NDArray[np.float32]:
    return (1e-4 * np.random.default_rng(9).standard_normal(round(seconds * RATE))).astype(np.float32)


SOUND = np.concatenate([quiet(4), loud(3, 1), quiet(5), loud(1.5, 2), quiet(4)])


@pytest.fixture(scope="module")
def model() -> specedge.WhisperModel:
    return specedge.WhisperModel(str(exported.bundle().path), cpu_threads=1)


def speech(options: specedge.VadOptions) -> tuple[NDArray[np.float32], SpeechAudio]:
    stream = SpeechAudio(open_audio(SOUND), options)
    return stream.read(1 << 30), stream


def test_the_text_is_that_of_the_speech_alone(model: specedge.WhisperModel) -> None:
    segments, info = model.transcribe(SOUND, vad_filter=True, **OPTIONS)  # type: ignore[arg-type]
    assert info.vad_options == specedge.VadOptions()
    found = list(segments)
    alone, stream = speech(specedge.VadOptions())
    assert 0 < len(alone) < len(SOUND)
    assert (info.duration, info.duration_after_vad) == (17.5, len(alone) / RATE)
    assert info.language == model.detect_language(alone)[0] == model.detect_language(SOUND, vad_filter=True)[0]
    expected = list(model.transcribe(alone, info.language, **OPTIONS)[0])  # type: ignore[arg-type]
    assert [s.tokens for s in found] == [s.tokens for s in expected]
    assert found == [stream.restored(s) for s in expected]
    assert found[0].start >= 3 and found[-1].end > 11


def test_parameters_come_as_a_dict_or_as_options(model: specedge.WhisperModel) -> None:
    given = {"min_silence_duration_ms": 500, "speech_pad_ms": 100}
    results = [
        model.transcribe(SOUND, "en", vad_filter=True, vad_parameters=parameters, temperature=0.0)
        for parameters in (given, specedge.VadOptions(min_silence_duration_ms=500, speech_pad_ms=100))
    ]
    assert results[0][1].vad_options == results[1][1].vad_options
    assert list(results[0][0]) == list(results[1][0])
    assert results[0][1].duration_after_vad < 7
    for bad in ({"thresholt": 1}, {"threshold": 2}, [1]):
        with pytest.raises(UsageError):
            model.transcribe(SOUND, "en", vad_filter=True, vad_parameters=bad)  # type: ignore[arg-type]


def test_clips_switch_the_filter_off(model: specedge.WhisperModel) -> None:
    segments, info = model.transcribe(SOUND, "en", vad_filter=True, clip_timestamps=[1.0], temperature=0.0)
    list(segments)
    assert info.vad_options is None and info.duration_after_vad == info.duration == 17.5


def test_silence_has_no_text(model: specedge.WhisperModel) -> None:
    for pipeline in (model, specedge.BatchedInferencePipeline(model)):
        segments, info = pipeline.transcribe(quiet(6), vad_filter=True)
        assert list(segments) == [] and info.language in model.supported_languages
        assert (info.duration, info.duration_after_vad) == (6.0, 0.0)


def test_batched_pieces_are_whole_stretches_of_speech(model: specedge.WhisperModel) -> None:
    segments, info = specedge.BatchedInferencePipeline(model).transcribe(SOUND, "en")
    found = list(segments)
    assert found and info.vad_options.max_speech_duration_s == 2.0 and info.duration == 17.5
    _, stream = speech(info.vad_options)
    assert info.duration_after_vad == stream.n_samples / 16_000
    spans = [(a / RATE, b / RATE) for a, b in stream.spans]
    assert found[0].start == pytest.approx(spans[0][0], abs=0.01) and found[-1].end <= spans[-1][1] + 0.01
