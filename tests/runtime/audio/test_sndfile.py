"""Compressed files that are whole, cut, damaged or joined: what is there is read, what is missing is said once."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from specedge.errors import AudioError
from specedge.runtime.audio.audio import SAMPLE_RATE, open_audio
from specedge.runtime.console import LOSS
from support.sound import NOISE, decode, needs_ffmpeg, run_ffmpeg

SPEECH_LIKE = (np.resize(NOISE, 192_000) * np.abs(np.sin(np.arange(192_000) / 7000)) ** 3).astype(np.float32)
DURATION_S = 12.0

FORMATS: dict[str, dict[str, Any]] = {
    "flac": {"format": "FLAC"},
    "vorbis": {"format": "OGG", "subtype": "VORBIS"},
    "opus": {"format": "OGG", "subtype": "OPUS"},
    "mp3": {"format": "MP3", "bitrate_mode": "CONSTANT"},
    "mp3-vbr": {"format": "MP3", "bitrate_mode": "VARIABLE"},
    "mp3-abr": {"format": "MP3", "bitrate_mode": "AVERAGE"},
}


@pytest.fixture(autouse=True)
def _warnings_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)


def _written(path: Path, kind: str, samples: NDArray[np.float32] = SPEECH_LIKE) -> bytes:
    soundfile.write(path, samples, SAMPLE_RATE, **FORMATS[kind])
    return path.read_bytes()


def _no_ffmpeg(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("PATH", str(folder))


@pytest.mark.parametrize("kind", FORMATS)
def test_a_whole_file_has_its_length_and_no_warning(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    _written(tmp_path / "whole", kind)
    with open_audio(tmp_path / "whole") as stream:
        assert stream.duration_s == DURATION_S
    assert len(decode(tmp_path / "whole")) == len(SPEECH_LIKE)
    assert not caplog.messages


@needs_ffmpeg
@pytest.mark.parametrize("tags", [[], ["-id3v2_version", "0", "-write_id3v1", "1"]])
@pytest.mark.parametrize("rate", [["-q:a", "4"], ["-b:a", "64k"]])
def test_an_mp3_without_a_count_is_counted(
    tmp_path: Path, rate: list[str], tags: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    soundfile.write(tmp_path / "in.wav", SPEECH_LIKE, SAMPLE_RATE)
    path = tmp_path / "x.mp3"
    run_ffmpeg("-i", str(tmp_path / "in.wav"), *rate, "-write_xing", "0", "-metadata", "title=x", *tags, str(path))
    with open_audio(path) as stream:
        assert stream.duration_s == pytest.approx(DURATION_S, abs=0.15)
    assert len(decode(path)) / SAMPLE_RATE == pytest.approx(DURATION_S, abs=0.15)
    assert not caplog.messages
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2 - 131])
    decode(path)
    assert len(caplog.messages) == 1 and "it ends inside a frame" in caplog.messages[0]


@pytest.mark.parametrize("share", [0.25, 0.6, 0.97])
@pytest.mark.parametrize("kind", FORMATS)
def test_a_cut_file_is_read_as_far_as_it_goes(
    tmp_path: Path,
    kind: str,
    share: float,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    data = _written(tmp_path / "cut", kind)
    (tmp_path / "cut").write_bytes(data[: int(share * len(data))])
    _no_ffmpeg(monkeypatch, tmp_path)
    got = decode(tmp_path / "cut")
    # The beginning of an Ogg file is its codebooks, and its pages are as long as a second.
    assert (share - 0.25) * DURATION_S < len(got) / SAMPLE_RATE < (share + 0.1) * DURATION_S
    assert [record.levelno for record in caplog.records] == [LOSS]
    if kind in ("vorbis", "opus"):
        assert "how much is missing cannot be known" in caplog.messages[0]
    else:
        missing = re.search(r"(\S+) s of the 12\.[01] s that its header promises are missing", caplog.messages[0])
        assert missing and float(missing[1]) == pytest.approx(DURATION_S - len(got) / SAMPLE_RATE, abs=0.15)


@needs_ffmpeg
@pytest.mark.parametrize("kind", ["mp3", "mp3-vbr"])
def test_a_cut_mp3_is_one_line_for_the_user(
    tmp_path: Path, kind: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """libmpg123 would write another one to stderr."""
    data = _written(tmp_path / "cut", kind)
    (tmp_path / "cut").write_bytes(data[: len(data) // 3])
    got = decode(tmp_path / "cut")
    assert len(got) / SAMPLE_RATE == pytest.approx(DURATION_S / 3, abs=0.5)
    assert len(caplog.messages) == 1 and " s of the 12." in caplog.messages[0]
    assert capfd.readouterr().err == ""


@needs_ffmpeg
@pytest.mark.parametrize("kind", ["flac", "mp3", "vorbis", "opus"])
def test_reading_goes_on_behind_damage(tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    data = _written(tmp_path / "damaged", kind)
    middle, n_bytes = len(data) // 2, len(data) // 10
    junk = np.random.default_rng(3).bytes(n_bytes)
    (tmp_path / "damaged").write_bytes(data[:middle] + junk + data[middle + n_bytes :])
    got = decode(tmp_path / "damaged")
    assert 0.7 * len(SPEECH_LIKE) < len(got) < len(SPEECH_LIKE)
    if kind == "flac":
        np.testing.assert_allclose(got[-8000:], SPEECH_LIKE[-8000:], atol=1e-4)
    missing = re.search(r"(\S+) s of the 12\.0 s", caplog.messages[0])
    assert len(caplog.messages) == 1 and missing
    assert float(missing[1]) == pytest.approx(DURATION_S - len(got) / SAMPLE_RATE, abs=0.06)


def test_without_ffmpeg_a_flac_ends_at_its_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    data = bytearray(_written(tmp_path / "damaged", "flac"))
    data[len(data) // 2] ^= 4
    (tmp_path / "damaged").write_bytes(data)
    _no_ffmpeg(monkeypatch, tmp_path)
    got = decode(tmp_path / "damaged")
    np.testing.assert_allclose(got, SPEECH_LIKE[: len(got)], atol=1e-4)
    assert 0.3 * len(SPEECH_LIKE) < len(got) < 0.7 * len(SPEECH_LIKE)
    assert len(caplog.messages) == 1 and "12.0 s that its header promises" in caplog.messages[0]


@needs_ffmpeg
@pytest.mark.parametrize("kind", ["mp3", "vorbis", "opus"])
def test_joined_files_are_read_to_the_end(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    data = _written(tmp_path / "one", kind)
    (tmp_path / "two").write_bytes(data + data)
    assert len(decode(tmp_path / "two")) / SAMPLE_RATE == pytest.approx(2 * DURATION_S, abs=0.2)
    assert not caplog.messages
    _no_ffmpeg(monkeypatch, tmp_path)
    with open_audio(tmp_path / "two") as stream:
        assert stream.duration_s is None
    assert len(decode(tmp_path / "two")) == len(SPEECH_LIKE)
    assert len(caplog.messages) == 1 and "joined to its end" in caplog.messages[0]


@pytest.mark.parametrize("kind", ["flac", "vorbis"])
def test_an_extension_decides_nothing(tmp_path: Path, kind: str) -> None:
    _written(tmp_path / "x.mp3", kind)
    assert len(decode(tmp_path / "x.mp3")) == len(SPEECH_LIKE)


def test_what_is_called_mp3_and_is_none_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.mp3").write_bytes(b"<html>not found</html>" * 50)
    with pytest.raises(AudioError, match=r"x\.mp3: "):
        open_audio(tmp_path / "x.mp3")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("kind", ["flac", "mp3", "vorbis", "opus"])
def test_bytes_changed_anywhere_end_in_samples_or_in_one_line(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _no_ffmpeg(monkeypatch, tmp_path)
    data = _written(tmp_path / "bad", kind, SPEECH_LIKE[:48_000])
    rng = np.random.default_rng(7)
    for _ in range(40):
        damaged = bytearray(data)
        for at in rng.integers(0, len(damaged), rng.integers(1, 20)):
            damaged[at] = rng.integers(256)
        cut = damaged[: rng.integers(1, len(damaged) + 1)]
        (tmp_path / "bad").write_bytes(cut)
        caplog.clear()
        try:
            got = decode(tmp_path / "bad")
        except AudioError as error:
            assert "\n" not in str(error)
        else:
            assert np.isfinite(got).all() and len([m for m in caplog.messages if "NaN" not in m]) <= 1
