"""Pauses: which are found, and which windows end with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specedge.runtime.audio.audio import open_audio
from specedge.runtime.audio.mel import log_mel
from specedge.runtime.longform.transcribe import Transcription
from specedge.runtime.longform.windows import cut_at_pause, find_pauses
from specedge.runtime.options import TranscribeOptions
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
    np.testing.assert_allclose(found, [(0, 80), (280, 330), (480, 600)], atol=10)


def at(seconds: float) -> int:
    return SPECIAL.timestamp_begin + round(seconds / 0.02)


# Two sentences, longer than a window of five seconds; one that ends with the pause between them ends at 3.15 s.
SAMPLES = sound(0.8, 2.0, 0.7, 2.0, 1.0)
FIRST, SECOND = Script(tokens=[at(0.8), *PUMP, at(2.8)]), Script(tokens=[at(0.34), *PUMP, at(2.34)])


@pytest.mark.parametrize(
    ("asked", "is_cut"), [({"window_end": "pause"}, True), ({"window_end": "full"}, False), ({}, False)]
)
def test_which_options_end_windows_with_pauses(asked: dict[str, Any], is_cut: bool) -> None:
    made = bundle(SPECIAL, n_frames=500)
    engine = ScriptedEngine(SPECIAL, [FIRST, SECOND])
    segments = list(Transcription(engine, made, open_audio(SAMPLES), TranscribeOptions(language="en", **asked)))
    assert len(engine.mels) == len(segments) == 2
    sounding = np.flatnonzero(engine.mels[0].any(axis=0))[-1]
    assert (300 < sounding < 330) == is_cut, "what lies behind the pause is not heard"
    if is_cut:
        assert segments[1].seek == sounding + 1
        assert segments[1].end == pytest.approx(5.5, abs=0.15)


@pytest.mark.parametrize("n_windows", [1, 2])
def test_the_window_that_the_language_was_heard_in_is_not_decoded_whole(n_windows: int) -> None:
    made = bundle(SPECIAL, n_frames=500)
    engine = ScriptedEngine(SPECIAL, [FIRST])
    asked = TranscribeOptions(
        language_detection_segments=n_windows, language_detection_threshold=None, window_end="pause"
    )
    next(Transcription(engine, made, open_audio(SAMPLES), asked))
    assert 300 < np.flatnonzero(engine.mels[-1].any(axis=0))[-1] < 330
    assert len(engine.mels) == (1 if n_windows == 1 else 3)


def cut_at(*parts: float, n_frames: int = 1000, hiss: float = 1e-3) -> float:
    """How many seconds of a window of ten are left."""
    samples = sound(*parts, hiss=hiss)[: n_frames * 160]
    mel = np.zeros((80, n_frames), np.float32)
    n_content = len(samples) // 160
    mel[:, :n_content] = mel_of(samples)[:, :n_content]
    heard, n = cut_at_pause(mel, n_content)
    assert not heard[:, n:].any() and heard[:, :n].any()
    return n / 100


def test_a_window_ends_in_the_middle_of_its_first_long_pause() -> None:
    assert cut_at(0.5, 3.0, 0.8, 2.0, 0.6, 5.0) == pytest.approx(3.9, abs=0.1)
