"""Audio that is broken, missing or misread: what is there is read, errors are one line, no process of ffmpeg stays."""

from __future__ import annotations

import gc
import io
import logging
import os
import re
import stat
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from specedge.errors import AudioError, SpecedgeError
from specedge.runtime.audio import codecs
from specedge.runtime.audio.audio import SAMPLE_RATE, RawFormat, open_audio
from specedge.runtime.audio.wav import ByteReader
from support.sound import NOISE, Pipe, children, decode, needs_ffmpeg, posix_only, run_ffmpeg, wav_bytes

# --- bad samples, broken files, errors


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


@pytest.mark.parametrize("container", ["WAV", "FLAC", "MP3", "OGG"])
def test_a_file_cut_short_gives_what_is_there(tmp_path: Path, container: str, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "cut"
    tone = np.tile(np.sin(np.arange(160) * 2 * np.pi / 160).astype(np.float32) * np.float32(0.5), 1000)
    if container == "OGG":  # a tone fits in one page, which is all or nothing
        tone = np.tile(NOISE, 4)
    soundfile.write(path, tone, SAMPLE_RATE, format=container)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    got = decode(path)
    assert 0.3 * len(tone) < len(got) < 0.7 * len(tone)
    assert len(caplog.records) == 1 and "cut short" in caplog.messages[0]


@needs_ffmpeg
def test_a_broken_off_ffmpeg_stream_gives_what_is_there(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "in.wav", np.tile(NOISE, 4), SAMPLE_RATE)
    run_ffmpeg("-i", str(tmp_path / "in.wav"), "-c:a", "aac", "-f", "adts", str(tmp_path / "x"))
    (tmp_path / "x").write_bytes((tmp_path / "x").read_bytes()[:9000])
    assert 1000 < len(decode(tmp_path / "x")) < 4 * len(NOISE)


@needs_ffmpeg
@pytest.mark.parametrize("has_picture", [False, True])
def test_a_cut_container_says_what_is_missing(
    tmp_path: Path, has_picture: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Where there is a picture, the duration may be its own."""
    soundfile.write(tmp_path / "in.wav", np.tile(NOISE, 8), SAMPLE_RATE)
    picture = ["-f", "lavfi", "-i", "color=size=32x32:rate=5:duration=50", "-c:v", "mpeg4"] if has_picture else []
    arguments = ["-i", str(tmp_path / "in.wav"), *picture, "-c:a", "aac", "-movflags", "+faststart"]
    run_ffmpeg(*arguments, str(tmp_path / "x.m4a" if not has_picture else tmp_path / "x.mp4"))
    path = next(tmp_path.glob("x.*"))
    assert len(decode(path)) == pytest.approx(8 * len(NOISE), abs=2048)
    assert not caplog.messages
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    got = decode(path)
    assert 0.2 < len(got) / (8 * len(NOISE)) < 0.7
    if not has_picture:
        missing = re.search(r"(\S+) s of the 30\.0 s that its header promises are missing", caplog.messages[0])
        assert missing and float(missing[1]) == pytest.approx(30 - len(got) / SAMPLE_RATE, abs=0.2)
    assert len(caplog.messages) == (not has_picture)


EMPTY_WAV = wav_bytes(NOISE[:0])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        pytest.param(b"", "is empty", id="0 bytes"),
        pytest.param(EMPTY_WAV, "no audio samples", id="no samples"),
        pytest.param(EMPTY_WAV[:20], "ends before any samples", id="half a header"),
        pytest.param(wav_bytes(NOISE[:1], 384_000), "no audio samples", id="less than one sample at 16 kHz"),
        pytest.param(b"<html>not found</html>" * 50, "ffmpeg", id="a web page"),
        pytest.param(bytes(5000), "ffmpeg", id="zeros"),
        pytest.param(b"\x89PNG\r\n\x1a\n" + bytes(500), "ffmpeg", id="a picture"),
        pytest.param(b"#EXTM3U\n#EXTINF:9,\nfile:/etc/hostname\n", "ffmpeg", id="an HLS playlist"),
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
    assert not children()


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


@posix_only
def test_permission_denied(tmp_path: Path) -> None:
    path = tmp_path / "x.wav"
    path.write_bytes(wav_bytes(NOISE))
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    with pytest.raises(AudioError, match="permission denied"):
        open_audio(path)
    path.chmod(stat.S_IRUSR | stat.S_IWUSR)


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


# --- ffmpeg as a process


def test_without_ffmpeg_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "x.m4a").write_bytes(b"\0\0\0\x20ftypM4A " + bytes(100))
    with pytest.raises(AudioError, match=r"x\.m4a: .*needs ffmpeg.*install it"):
        open_audio(tmp_path / "x.m4a")


@pytest.mark.parametrize("data", [b"Dear Jo,\nwhat I said", bytes(range(256)) * 40, b"abcd", b"\x89PNG\r\n\x1a\n" * 9])
@pytest.mark.parametrize("name", ["x.txt", "x.wav", "x.mp3"])
def test_without_ffmpeg_what_begins_as_no_audio_is_said_to_be_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, data: bytes
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / name).write_bytes(data)
    with pytest.raises(AudioError, match="this is no audio: it begins as no sound or video file does") as caught:
        open_audio(tmp_path / name)
    assert "--raw" not in str(caught.value)
    with pytest.raises(AudioError, match="this is no audio: .*--raw s16le:16000"):
        open_audio(Pipe(data))


@needs_ffmpeg
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("list.m4a", "ffconcat version 1.0\nfile secret.flac\n"),
        ("list.m3u8", "#EXTM3U\n#EXTINF:3,\nsecret.flac\n#EXT-X-ENDLIST\n"),
    ],
)
def test_a_playlist_does_not_make_ffmpeg_open_another_file(tmp_path: Path, name: str, text: str) -> None:
    soundfile.write(tmp_path / "secret.flac", NOISE, SAMPLE_RATE)
    (tmp_path / name).write_text(text)
    with pytest.raises(AudioError, match="cannot be|can be"):
        open_audio(tmp_path / name)


@needs_ffmpeg
def test_what_ffmpeg_says_is_told_without_the_path_that_it_was_given(tmp_path: Path) -> None:
    (tmp_path / "x.mkv").write_bytes(b"\x1aE\xdf\xa3" + b"nonsense" * 8)
    with pytest.raises(AudioError, match="ffmpeg says: ") as caught:
        open_audio(tmp_path / "x.mkv")
    assert "file:" not in str(caught.value)


@needs_ffmpeg
@posix_only
@pytest.mark.parametrize("how", ["close", "forget"])
def test_ffmpeg_is_ended_and_reaped(tmp_path: Path, how: str) -> None:
    soundfile.write(tmp_path / "in.flac", np.tile(NOISE, 60), SAMPLE_RATE)
    run_ffmpeg("-i", str(tmp_path / "in.flac"), "-c:a", "pcm_f32le", "-f", "matroska", str(tmp_path / "x.mkv"))
    stream = open_audio(tmp_path / "x.mkv")
    assert len(children()) == 1 or sys.platform != "linux"
    if how == "close":
        stream.close()
        stream.close()
    del stream
    gc.collect()
    assert not children()


def _stand_in(folder: Path, body: str) -> None:
    program = folder / "ffmpeg"
    program.write_text(f"#!{sys.executable} -S\nimport sys, time\n{body}\n")
    program.chmod(0o755)


@posix_only
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("sys.exit(1)", "no audio came out"),
        ("sys.stderr.write('[mov @ 0x1] [error] moov atom\\x07 missing\\n[error] later\\n'); sys.exit(1)", "moov atom"),
        ("sys.stderr.write('[error] ' + 'x' * 10**6 + '\\n' + 'y' * 10**6); sys.exit(1)", "x" * 100),
        (
            "sys.stderr.write(\"[fatal] Stream map '0:a:0' matches no streams.\\n\"); sys.exit(1)",
            "x.m4a: has no sound track",
        ),
        ("sys.stdout.write('RIFF')", "not a RIFF"),
        ("sys.stdout.buffer.write(b'no wav at all, but plenty of it ' * 100000)", "not a RIFF"),
        ("time.sleep(60)", "gave nothing for"),
    ],
)
def test_a_misbehaving_ffmpeg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, words: str) -> None:
    _stand_in(tmp_path, body)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(codecs, "_STALL_S", 0.5)
    (tmp_path / "x.m4a").write_bytes(b"\0\0\0\x20ftypM4A " + bytes(100))
    with pytest.raises(SpecedgeError, match=words) as caught:
        open_audio(tmp_path / "x.m4a")
    assert len(str(caught.value)) < 400
    assert not children()


@needs_ffmpeg
def test_samples_without_a_header_from_a_pipe_get_a_hint(tmp_path: Path) -> None:
    samples = np.arange(10_000, dtype="<i2").tobytes()
    with pytest.raises(AudioError, match=r"say how they lie: --raw s16le:16000$"):
        open_audio(io.BytesIO(samples))
    path = tmp_path / "samples.raw"
    path.write_bytes(samples)
    with pytest.raises(AudioError) as caught:
        open_audio(path)
    assert "--raw" not in str(caught.value)
