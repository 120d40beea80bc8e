"""Audio that is missing or cannot be read: errors are one line."""

from __future__ import annotations

import io
import logging
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specedge.errors import AudioError
from specedge.runtime.audio.audio import SAMPLE_RATE, RawFormat, open_audio
from specedge.runtime.audio.wav import ByteReader
from support.sound import NOISE, Pipe, decode, posix_only, wav_bytes


def test_nan_and_infinity_become_silence_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    samples = NOISE.copy()
    samples[[5, 50_000]] = np.nan
    samples[[6, 50_001]] = [np.inf, -np.inf]
    samples[[7, 8]] = [3.0, -3.0]
    expected = np.clip(np.nan_to_num(samples, nan=0, posinf=0, neginf=0), -1, 1)
    with caplog.at_level(logging.WARNING):
        np.testing.assert_array_equal(decode(io.BytesIO(wav_bytes(samples))), expected)
        assert [r.getMessage() for r in caplog.records if "NaN" in r.getMessage()] == [
            "audio: holds samples that are NaN or infinite; they are read as silence"
        ]
    np.testing.assert_array_equal(decode(samples), expected)
    np.testing.assert_array_equal(decode(samples[:5].astype(np.float64) * 1e30), np.sign(samples[:5]))


EMPTY_WAV = wav_bytes(NOISE[:0])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        pytest.param(b"", "is empty", id="0 bytes"),
        pytest.param(EMPTY_WAV, "no audio samples", id="no samples"),
        pytest.param(EMPTY_WAV[:20], "this is no audio", id="half a header"),
        pytest.param(wav_bytes(NOISE[:1], 384_000), "no audio samples", id="less than one sample at 16 kHz"),
        pytest.param(b"<html>not found</html>" * 50, "this is no audio", id="a web page"),
    ],
)
@pytest.mark.parametrize("through", ["path", "object", "pipe"])
def test_what_holds_no_audio_is_one_line_within_a_second(tmp_path: Path, data: bytes, words: str, through: str) -> None:
    (tmp_path / "talk.wav").write_bytes(data)
    source = {"path": tmp_path / "talk.wav", "object": io.BytesIO(data), "pipe": Pipe(data)}[through]
    started = time.monotonic()
    with pytest.raises(AudioError) as caught:
        open_audio(source)
    assert time.monotonic() - started < 1.0
    assert words in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 400


@posix_only
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing.wav", "no such file"),
        ("https://example.org/a.mp3", "download it first"),
        (".", "is a folder"),
        ("/dev/zero", "is a device"),
        ("a\0b", "cannot be opened"),
        ("x" * 300, "cannot be opened"),
        ("missing\nfile", "no such file"),
    ],
)
def test_a_path_that_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AudioError, match=words) as caught:
        open_audio(name)
    assert "\n" not in str(caught.value) and caught.value.exit_code == 3


def test_permission_denied_as_the_system_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("specedge.runtime.audio.audio.os.stat", refuse)
    with pytest.raises(AudioError, match="x.wav: permission denied"):
        open_audio("x.wav")


class _Failing(io.RawIOBase):
    def read(self, size: int = -1) -> bytes:
        raise OSError(5, "Input/output error")


@pytest.mark.parametrize("file", [_Failing(), io.StringIO("RIFF")])
def test_a_file_object_that_cannot_be_read(file: Any) -> None:
    with pytest.raises(AudioError, match="audio: "):
        open_audio(file)


def test_audio_longer_than_the_cap_is_refused_and_stopped(tmp_path: Path) -> None:
    data = wav_bytes(NOISE)
    with pytest.raises(AudioError, match="longer than"):
        open_audio(io.BytesIO(data), max_duration_s=3.0)
    pipe = Pipe(NOISE.astype("<f4").tobytes())
    with open_audio(pipe, raw=RawFormat("f32le", SAMPLE_RATE), max_duration_s=3.0) as stream:
        assert len(stream.read(10)) == 10
        with pytest.raises(AudioError, match="longer than"):
            stream.read(10**9)


@posix_only
def test_raw_samples_of_a_device_that_can_be_sought_are_read() -> None:
    with open("/dev/zero", "rb") as file, open_audio(file, raw=RawFormat("s16le", SAMPLE_RATE)) as stream:
        assert stream.duration_s is None and not stream.read(SAMPLE_RATE).any()
        assert len(stream.read(SAMPLE_RATE)) == SAMPLE_RATE


def test_a_file_without_length_is_empty_and_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As /proc/kmsg, which has no length and whose reader waits for the kernel to say something."""
    (tmp_path / "kmsg").touch()
    monkeypatch.setattr(ByteReader, "_pull", lambda self, n_bytes: b"waits" * (n_bytes > 0))
    with pytest.raises(AudioError, match="kmsg: is empty"):
        open_audio(tmp_path / "kmsg")
