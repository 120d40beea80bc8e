"""The bundled model on recordings longer than its window: complete, in order, with the right times."""

from __future__ import annotations

import random

import numpy as np
import pytest
from numpy.typing import NDArray

import specedge
from specedge.runtime.audio.audio import SAMPLE_RATE, open_audio
from support.paths import SAMPLES_FOLDER

TEXTS = {
    "maintenance": "Call the maintenance crew to generator two.",
    "notes": "Ask Maria about the letter and the wheel.",
}


def recording(seed: int) -> tuple[NDArray[np.float32], list[tuple[str, float, float]]]:
    """Ten sentences with pauses of 0.3 to 1.5 s, in hiss; text, start and end of each in seconds."""
    rng = random.Random(seed)
    sounds = {}
    for name in TEXTS:
        with open_audio(SAMPLES_FOLDER / f"{name}.wav") as stream:
            sounds[name] = stream.read(10 * SAMPLE_RATE)
    parts, truth, at = [np.zeros(SAMPLE_RATE // 2, np.float32)], [], SAMPLE_RATE // 2
    for _ in range(10):
        name = rng.choice(sorted(TEXTS))
        loud = np.flatnonzero(np.abs(sounds[name]) > 0.02 * np.abs(sounds[name]).max())
        spoken = sounds[name][loud[0] : loud[-1]]
        truth.append((TEXTS[name], at / SAMPLE_RATE, (at + len(spoken)) / SAMPLE_RATE))
        pause = round(rng.uniform(0.3, 1.5) * SAMPLE_RATE)
        parts += [spoken, np.zeros(pause, np.float32)]
        at += len(spoken) + pause
    samples = np.concatenate(parts)
    return samples + 1e-3 * np.random.default_rng(seed).standard_normal(len(samples)).astype(np.float32), truth


@pytest.mark.parametrize("drafter", ["tokenmap", pytest.param("none", marks=pytest.mark.slow)])
def test_ten_sentences_with_pauses_come_out_complete_and_in_time(drafter: str) -> None:
    samples, truth = recording(2)
    segments = list(specedge.WhisperModel("demo").transcribe(samples, "en", drafter=drafter)[0])
    assert [segment.text.strip() for segment in segments] == [text for text, _, _ in truth]
    for segment, (_, start_s, end_s) in zip(segments, truth, strict=True):
        assert segment.start == pytest.approx(start_s, abs=0.3) and segment.end == pytest.approx(end_s, abs=0.3)
