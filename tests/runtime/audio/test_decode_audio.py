"""`decode_audio`: whole files as arrays, at any rate, with channels averaged or apart."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import soundfile

import specedge
from specedge.errors import AudioError, UsageError
from support.sound import NOISE, decode, wav_bytes

LEFT, RIGHT = NOISE[:20_000], NOISE[20_000:40_000]
STEREO = np.stack([LEFT, RIGHT], axis=1)


def test_samples_of_a_wav_file_are_the_file_s(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(wav_bytes(NOISE))
    found = specedge.decode_audio(str(tmp_path / "a.wav"))
    assert found.dtype == np.float32 and np.array_equal(found, NOISE)
    assert np.array_equal(specedge.decode_audio(io.BytesIO(wav_bytes(NOISE))), NOISE)


def test_stereo_is_averaged_or_apart(tmp_path: Path) -> None:
    data = wav_bytes(STEREO)
    assert np.allclose(specedge.decode_audio(io.BytesIO(data)), (LEFT + RIGHT) / 2, atol=1e-7)
    left, right = specedge.decode_audio(io.BytesIO(data), split_stereo=True)
    assert np.array_equal(left, LEFT) and np.array_equal(right, RIGHT)
    assert left.flags.c_contiguous and right.base is None


def test_one_channel_is_left_and_right() -> None:
    left, right = specedge.decode_audio(io.BytesIO(wav_bytes(NOISE)), split_stereo=True)
    assert np.array_equal(left, NOISE) and np.array_equal(right, NOISE)


@pytest.mark.parametrize("rate_hz", [8000, 44_100])
def test_other_rates(rate_hz: int) -> None:
    seconds = np.arange(32_000) / 16_000
    tone = (0.5 * np.sin(2 * np.pi * 440 * seconds)).astype(np.float32)
    left, right = specedge.decode_audio(io.BytesIO(wav_bytes(np.stack([tone, -tone], 1))), rate_hz, split_stereo=True)
    expected = 0.5 * np.sin(2 * np.pi * 440 * np.arange(len(left)) / rate_hz)
    assert abs(len(left) - 2 * rate_hz) <= 1 and np.allclose(left, -right, atol=1e-6)
    assert np.abs(left - expected)[200:-200].max() < 1e-3


def test_from_another_rate_it_is_what_is_transcribed(tmp_path: Path) -> None:
    path = tmp_path / "a.flac"
    soundfile.write(path, STEREO, 22_050)
    assert np.array_equal(specedge.decode_audio(path), decode(path))


def test_errors_are_one_line() -> None:
    with pytest.raises(UsageError, match="sampling_rate"):
        specedge.decode_audio(io.BytesIO(wav_bytes(NOISE)), sampling_rate=0)
    with pytest.raises(AudioError):
        specedge.decode_audio(io.BytesIO(b""))
