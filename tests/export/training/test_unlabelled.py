"""Audio into training windows, and what the target makes of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from specedge.errors import AudioError, UsageError
from specedge.export.training.features import Course, Target
from specedge.runtime.model import WhisperModel
from support.exported import bundle
from support.sound import NOISE, wav_bytes

RATE_HZ = 16000
N_SAMPLES = 2 * RATE_HZ


def _windows(audio: Path, said: list[str] | None = None, *, has_short: bool = False) -> list[NDArray[np.float32]]:
    said = [] if said is None else said
    course = Course(source="", audio=[str(audio)], work=audio, hours=1, threads=1, language=None, notify=said.append)
    return list(course.windows(bundle(), 1, has_short=has_short))


def test_a_file_is_cut_at_quiet_places_and_nothing_is_lost(tmp_path: Path) -> None:
    samples = np.resize(NOISE, 5 * RATE_HZ + 400).astype(np.float32)
    samples[27_000:29_500] = 0
    (tmp_path / "a.wav").write_bytes(wav_bytes(samples))
    windows = _windows(tmp_path / "a.wav")
    assert 27_000 < len(windows[0]) < 29_500
    assert all(len(window) <= N_SAMPLES for window in windows) and len(windows) >= 3
    joined = np.concatenate(windows)
    assert len(samples) - len(joined) < 0.3 * RATE_HZ
    np.testing.assert_array_equal(joined, samples[: len(joined)])


def test_every_other_window_may_be_short(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(wav_bytes(np.resize(NOISE, 90 * RATE_HZ).astype(np.float32)))
    lengths = [len(window) for window in _windows(tmp_path, has_short=True)]
    n_samples = bundle().manifest.n_samples
    assert all(n > 0.6 * n_samples for n in lengths[:-1:2]) and all(n <= 20 * RATE_HZ for n in lengths[1::2])
    assert 88 * RATE_HZ < sum(lengths) <= 90 * RATE_HZ


def test_folders_are_searched_and_bad_files_left_out(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.wav").write_bytes(wav_bytes(NOISE[:RATE_HZ]))
    (tmp_path / "in" / "b.wav").write_bytes(b"RIFFnothing")
    said: list[str] = []
    assert len(_windows(tmp_path, said)) == 1
    assert "2 audio files" in said[0] and "left out: " in said[1] and "b.wav" in said[1]


def test_no_audio_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AudioError, match="no audio file is in this folder"):
        _windows(tmp_path)
    with pytest.raises(AudioError, match="no audio to learn from"):
        _windows(tmp_path / "missing.wav")


def test_the_target_says_what_transcribe_says(tmp_path: Path) -> None:
    samples = NOISE[:RATE_HZ]
    target = Target(bundle(), threads=1, language="en")
    heard = target.encode(samples, ends_in_silence=False)
    _, found = target.say(heard, "en", timestamps=False)
    segments, _ = WhisperModel(str(bundle().path), cpu_threads=1).transcribe(
        samples, language="en", without_timestamps=True, temperature=0.0, log_prob_threshold=None,
        no_speech_threshold=None, compression_ratio_threshold=None,
    )  # fmt: skip
    assert heard.hidden.shape == (100, 64)
    assert list(found.tokens) == [token for segment in segments for token in segment.tokens]


def test_a_language_the_model_has_not(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="xx"):
        Target(bundle(), threads=1, language="xx")
