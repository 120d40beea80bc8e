"""The energy detector: nothing in silence and steady noise of any level, every word of speech over noise."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from specedge.runtime.audio.audio import open_audio
from specedge.runtime.audio.vad import FRAME_SAMPLES, EnergyDetector, Span, VadOptions
from specedge.runtime.longform.vad_filter import find_speech
from support.noise import SAMPLES, mixed, noise, speech
from support.paths import shared


def probabilities(samples: NDArray[np.float32], cuts: list[int] | None = None) -> NDArray[np.float32]:
    """What the detector says when the whole frames come in pieces that end at `cuts`."""
    detector = EnergyDetector()
    n_whole = len(samples) // FRAME_SAMPLES
    frames = samples[: n_whole * FRAME_SAMPLES].reshape(-1, FRAME_SAMPLES)
    borders = sorted({0, n_whole, *(cut % (n_whole + 1) for cut in cuts or [])})
    parts = [detector.push(frames[start:end]) for start, end in pairwise(borders)]
    return np.concatenate([*parts, detector.finish(samples[n_whole * FRAME_SAMPLES :])])


def spans(samples: NDArray[np.float32], **options: int) -> list[Span]:
    return find_speech(open_audio(samples), VadOptions(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize("n_samples", [100, 5000, 160_000])
def test_no_speech_in_digital_silence(n_samples: int) -> None:
    assert not probabilities(np.zeros(n_samples, np.float32)).any()
    assert spans(np.zeros(n_samples, np.float32)) == []


@pytest.mark.parametrize("color", ["white", "pink", "brown"])
@pytest.mark.parametrize("rms", [3e-6, 1e-4, 1e-2, 0.3])
@pytest.mark.parametrize("duration_s", [0.2, 1.0, 30.0])
def test_no_speech_in_steady_noise(color: str, rms: float, duration_s: float) -> None:
    samples = noise(round(duration_s * 16_000), rms=rms, color=color)
    assert spans(samples) == []
    assert probabilities(samples).max() < 0.5


def test_after_a_step_in_level_noise_is_noise_again_within_four_seconds() -> None:
    samples = np.concatenate([noise(160_000, rms=0.01), noise(320_000, rms=0.1, seed=1)])
    assert all(160_000 - 16_000 <= start and end <= 160_000 + 64_000 for start, end in spans(samples))


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
@pytest.mark.parametrize("color", ["white", "pink"])
@pytest.mark.parametrize("snr_db", [60, 20, 10, 5])
def test_every_word_of_speech_over_noise_is_kept(path: Path, color: str, snr_db: float) -> None:
    """The samples hold one sentence from end to end; the noise around it goes."""
    samples = speech(path)
    found = spans(mixed(samples, snr_db, color=color), min_silence_duration_ms=500)
    assert len(found) == 1
    start, end = found[0]
    first, last = _loud_part(samples)
    assert start <= 32_000 + first and end >= 32_000 + last
    assert end - start <= len(samples) + 16_000


def _loud_part(samples: NDArray[np.float32]) -> tuple[int, int]:
    """From where to where the clean samples are within 30 dB of their loudest 32 ms."""
    n_frames = len(samples) // FRAME_SAMPLES
    power = (samples[: n_frames * FRAME_SAMPLES].reshape(n_frames, -1) ** 2).mean(1)
    loud = np.flatnonzero(power > power.max() / 1000)
    return int(loud[0]) * FRAME_SAMPLES, int(loud[-1] + 1) * FRAME_SAMPLES


@pytest.mark.parametrize("name", ["jfk.flac", "stereo.wav"])
@pytest.mark.parametrize("snr_db", [40, 10])
def test_recorded_speech_is_kept_where_the_neural_model_hears_it(name: str, snr_db: float) -> None:
    vad = pytest.importorskip("faster_whisper.vad", reason="faster-whisper is not installed")
    samples = speech(shared("audio", name))
    theirs = vad.get_speech_timestamps(samples, min_silence_duration_ms=500, speech_pad_ms=0)
    covered = np.zeros(len(samples) + 64_000, bool)
    for start, end in spans(mixed(samples, snr_db), min_silence_duration_ms=500):
        covered[start:end] = True
    # The neural model lets go of speech late: about 0.13 s after its end.
    assert all(covered[32_000 + span["start"] : 32_000 + span["end"] - 2048].all() for span in theirs)


@settings(max_examples=15)
@given(cuts=st.lists(st.integers(0, 1000), max_size=8))
def test_the_size_of_the_pieces_changes_nothing(cuts: list[int]) -> None:
    samples = mixed(speech(SAMPLES[0]), 20)[: 5 * 16_000 + 77]
    np.testing.assert_array_equal(probabilities(samples, cuts), probabilities(samples))
