"""Every way audio comes in: the right samples, one-line errors, bounded memory, no stray process or file."""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import os
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import soxr
from numpy.typing import NDArray

from specedge.runtime import ffmpeg
from specedge.runtime.audio import SAMPLE_RATE, AudioStream, RawFormat, open_audio
from specedge.runtime.errors import AudioError, SpecedgeError, UsageError
from support.paths import shared

NOISE = np.random.default_rng(0).uniform(-0.5, 0.5, 60_000).astype(np.float32)

needs_ffmpeg = pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="no ffmpeg on PATH")
posix_only = pytest.mark.skipif(os.name != "posix", reason="named pipes and file modes are POSIX")


def read_all(stream: AudioStream, n_samples: int = 7001) -> NDArray[np.float32]:
    """To the end in steps of an odd size, so that steps and blocks never meet."""
    blocks = [stream.read(n_samples)]
    while len(blocks[-1]) == n_samples:
        blocks.append(stream.read(n_samples))
    assert not len(stream.read(5))
    return np.concatenate(blocks)


def decode(source: Any, **options: Any) -> NDArray[np.float32]:
    with open_audio(source, **options) as stream:
        return read_all(stream)


def wav_bytes(samples: NDArray[np.float32], rate_hz: int = SAMPLE_RATE, subtype: str = "FLOAT") -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate_hz, format="WAV", subtype=subtype)
    return file.getvalue()


def run_ffmpeg(*arguments: str) -> None:
    subprocess.run(["ffmpeg", "-nostdin", "-v", "error", "-y", *arguments], check=True, timeout=60)


def children() -> list[str]:
    """Processes that this one has not reaped."""
    if not Path("/proc/self/task").is_dir():
        return []
    found = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a thread that has just ended
            found += (task / "children").read_text().split()
    return found


class Pipe(io.RawIOBase):
    """Bytes that come in small pieces and cannot be rewound."""

    name = "a pipe"

    def __init__(self, data: bytes) -> None:
        self._file = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def read(self, size: int = -1) -> bytes:
        return self._file.read(min(size, 3001) if size > 0 else size)


# --- the right samples


@pytest.mark.parametrize("rate_hz", [8000, 11025, 22050, 44100, 48000, 96000, 384000, 1000, 16001])
def test_resampling_in_blocks_is_resampling_at_once(rate_hz: int) -> None:
    expected = soxr.resample(NOISE, rate_hz, SAMPLE_RATE, quality="HQ")
    got = decode(io.BytesIO(wav_bytes(NOISE, rate_hz)))
    assert len(got) == len(expected)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-6)


def test_16_khz_mono_passes_unchanged() -> None:
    np.testing.assert_array_equal(decode(io.BytesIO(wav_bytes(NOISE))), NOISE)


def test_channels_are_averaged(tmp_path: Path) -> None:
    samples = np.random.default_rng(1).uniform(-1, 1, (50_000, 5)).astype(np.float32)
    soundfile.write(tmp_path / "five.wav", samples, SAMPLE_RATE, subtype="FLOAT")
    np.testing.assert_allclose(decode(tmp_path / "five.wav"), samples.mean(axis=1), rtol=0, atol=1e-6)


@pytest.mark.parametrize("step", [1, 160, 16_384, 10**7, 10**12])
def test_the_size_of_a_read_does_not_change_the_samples(step: int) -> None:
    samples = NOISE[:900] if step == 1 else NOISE
    with open_audio(io.BytesIO(wav_bytes(samples, 24000))) as stream:
        got = read_all(stream, step)
    np.testing.assert_array_equal(got, decode(io.BytesIO(wav_bytes(samples, 24000))))


@pytest.mark.parametrize("name", ["jfk.flac", "stereo.wav", "multilingual.mp3"])
def test_recordings_are_what_soundfile_and_soxr_make_of_them(name: str) -> None:
    path = shared("audio", name)
    samples, rate_hz = soundfile.read(path, dtype="float32", always_2d=True)
    expected = soxr.resample(np.clip(samples, -1, 1).mean(axis=1), rate_hz, SAMPLE_RATE)
    with open_audio(path) as stream:
        assert stream.duration_s == pytest.approx(len(samples) / rate_hz)
        assert stream.name == str(path)
        np.testing.assert_allclose(read_all(stream), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("container", "subtype", "atol"),
    [
        ("FLAC", "PCM_24", 1e-6),
        ("AIFF", "FLOAT", 0),
        ("OGG", "VORBIS", 0.5),
        ("OGG", "OPUS", 1),
        ("CAF", "PCM_16", 1e-4),
    ]
    + [
        ("W64", "FLOAT", 0),
        ("AU", "PCM_16", 1e-4),
        ("MP3", "MPEG_LAYER_III", 1),
        ("WAV", "ULAW", 0.05),
        ("WAV", "ALAW", 0.05),
    ],
)
@pytest.mark.parametrize("through", ["path", "object", "pipe"])
def test_what_libsndfile_reads_is_read(tmp_path: Path, container: str, subtype: str, atol: float, through: str) -> None:
    # The extension lies on purpose: content decides.
    path = tmp_path / "sound.m4a"
    soundfile.write(path, NOISE, SAMPLE_RATE, format=container, subtype=subtype)
    source = {"path": path, "object": io.BytesIO(path.read_bytes()), "pipe": Pipe(path.read_bytes())}[through]
    got = decode(source)
    assert abs(len(got) - len(NOISE)) <= (2500 if subtype == "MPEG_LAYER_III" else 0)
    if atol < 0.5:
        np.testing.assert_allclose(got, NOISE, rtol=0, atol=atol)


@needs_ffmpeg
@pytest.mark.parametrize("through", ["path", "object", "pipe"])
def test_m4a_goes_through_ffmpeg(tmp_path: Path, through: str) -> None:
    speech_like = np.sin(np.arange(48_000 * 3) * 2 * np.pi * 440 / 48_000).astype(np.float32) * np.float32(0.5)
    soundfile.write(tmp_path / "in.wav", np.stack([speech_like, speech_like], axis=1), 48_000)
    path = tmp_path / "out.wav"  # an m4a that says it is a WAV
    run_ffmpeg("-i", str(tmp_path / "in.wav"), "-c:a", "aac", "-f", "mp4", str(path))
    source = {"path": path, "object": io.BytesIO(path.read_bytes()), "pipe": Pipe(path.read_bytes())}[through]
    with open_audio(source) as stream:
        assert stream.duration_s == pytest.approx(3.0, abs=0.1)
        got = read_all(stream)
    expected = np.sin(np.arange(len(got)) * 2 * np.pi * 440 / SAMPLE_RATE) * 0.5
    assert abs(len(got) - 3 * SAMPLE_RATE) < 2000
    assert np.abs(got[4000:40000] - expected[4000:40000]).max() < 0.05
    assert not children()


@needs_ffmpeg
def test_an_adpcm_wav_goes_to_ffmpeg_and_not_to_libsndfile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    soundfile.write(tmp_path / "x.wav", NOISE, SAMPLE_RATE, subtype="IMA_ADPCM")
    monkeypatch.setattr(soundfile, "SoundFile", None)
    assert abs(len(decode(tmp_path / "x.wav")) - len(NOISE)) < 2000


def test_flac_without_a_length_has_no_duration(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "x.flac", NOISE, SAMPLE_RATE)
    data = bytearray((tmp_path / "x.flac").read_bytes())
    # STREAMINFO begins at byte 8; its total sample count is the low 36 bits of bytes 18 to 25 from the file's start.
    data[21] &= 0xF0
    data[22:26] = bytes(4)
    with open_audio(io.BytesIO(data)) as stream:
        assert stream.duration_s is None
        assert len(read_all(stream)) == len(NOISE)


# --- arrays, raw PCM, standard input, objects


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int16", ">f4", ">i2"])
def test_arrays_of_samples(dtype: str) -> None:
    samples = (NOISE * 32768).astype(dtype) if "i" in dtype else NOISE.astype(dtype)
    with open_audio(samples) as stream:
        assert stream.duration_s == len(samples) / SAMPLE_RATE
        got = read_all(stream)
    assert got.dtype == np.float32
    expected = samples.astype(np.float32) / 32768 if "i" in dtype else samples.astype(np.float32)
    np.testing.assert_array_equal(got, expected)


def test_an_array_is_neither_changed_nor_aliased() -> None:
    samples = np.full(1000, 2.0, np.float32)
    with open_audio(samples) as stream:
        got = stream.read(1000)
    got[:] = 0
    assert (samples == 2.0).all()


@pytest.mark.parametrize(
    "samples",
    [np.zeros((2, 100), np.float32), np.zeros(5, np.int32), np.zeros(5, bool), np.zeros(5, complex), np.array(1.0)],
)
def test_arrays_that_are_not_samples_are_refused(samples: NDArray[Any]) -> None:
    with pytest.raises(AudioError, match="expected mono"):
        open_audio(samples)


@pytest.mark.parametrize(
    ("text", "dtype", "scale"),
    [
        ("s16le:16000", "<i2", 2**15),
        ("s16be:16000", ">i2", 2**15),
        ("s32le:16000", "<i4", 2**31),
        ("f32le:16000", "<f4", 1),
    ],
)
def test_raw_pcm_is_read_as_described(text: str, dtype: str, scale: int) -> None:
    raw = (NOISE.astype(np.float64) * scale).astype(dtype)
    got = decode(Pipe(raw.tobytes()), raw=RawFormat.parse(text))
    np.testing.assert_array_equal(got, (raw.astype(np.float64) / scale).astype(np.float32))


def test_raw_pcm_in_stereo_at_another_rate_from_a_path(tmp_path: Path) -> None:
    frames = (np.stack([NOISE, -NOISE / 2], axis=1) * 32768).astype("<i2")
    (tmp_path / "x.pcm").write_bytes(frames.tobytes() + b"\1")
    with open_audio(tmp_path / "x.pcm", raw=RawFormat("s16le", 8000, 2)) as stream:
        assert stream.duration_s == len(NOISE) / 8000
        got = read_all(stream)
    mono = (frames.astype(np.float32) / 32768).mean(axis=1)
    np.testing.assert_allclose(got, soxr.resample(mono, 8000, SAMPLE_RATE), rtol=0, atol=1e-6)


def test_raw_is_not_sniffed() -> None:
    data = wav_bytes(NOISE, subtype="PCM_16")
    assert len(decode(io.BytesIO(data), raw=RawFormat("s16le", SAMPLE_RATE))) == len(data) // 2


def test_a_raw_format_for_an_array_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="array"):
        open_audio(NOISE, raw=RawFormat("s16le", SAMPLE_RATE))


@pytest.mark.parametrize("source", [b"RIFF", 3, None, [0.1, 0.2]])
def test_what_is_no_source_is_a_usage_error(source: Any) -> None:
    with pytest.raises(UsageError, match=type(source).__name__):
        open_audio(source)


STDIN_CODE = (
    "import sys, numpy as np\n"
    "from specedge.runtime.audio import open_audio, RawFormat\n"
    "raw = RawFormat.parse(sys.argv[1]) if sys.argv[1:] else None\n"
    "with open_audio('-', raw=raw) as a:\n"
    "    assert a.name == 'stdin'\n"
    "    sys.stdout.buffer.write(a.read(10**9).tobytes())\n"
)


@pytest.mark.parametrize("kind", ["wav", "streamed wav", "flac", "raw"])
def test_standard_input(kind: str) -> None:
    data = wav_bytes(NOISE)
    if kind == "streamed wav":
        at = data.index(b"data") + 4
        data = data[:4] + b"\xff" * 4 + data[8:at] + b"\xff" * 4 + data[at + 4 :]
    if kind == "flac":
        file = io.BytesIO()
        soundfile.write(file, NOISE, SAMPLE_RATE, format="FLAC", subtype="PCM_24")
        data = file.getvalue()
    if kind == "raw":
        data = NOISE.astype("<f4").tobytes()
    arguments = ["f32le:16000"] if kind == "raw" else []
    run = subprocess.run(
        [sys.executable, "-c", STDIN_CODE, *arguments], input=data, capture_output=True, timeout=60, check=True
    )
    np.testing.assert_allclose(np.frombuffer(run.stdout, np.float32), NOISE, rtol=0, atol=1e-6)


@posix_only
def test_a_closed_or_interactive_standard_input_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(AudioError, match="stdin: is closed"):
        open_audio("-")
    parent, child = os.openpty()
    with os.fdopen(child, "r") as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        with pytest.raises(AudioError, match="stdin: is a terminal"):
            open_audio("-")
    os.close(parent)


@posix_only
def test_a_named_pipe(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(wav_bytes(NOISE),))
    writer.start()
    np.testing.assert_array_equal(decode(path), NOISE)
    writer.join()


def test_a_file_object_is_read_from_where_it_stands_and_stays_open() -> None:
    file = io.BytesIO(b"skipped" + wav_bytes(NOISE))
    file.seek(7)
    with open_audio(file) as stream:
        assert stream.name == "audio"
        assert stream.duration_s == len(NOISE) / SAMPLE_RATE
        np.testing.assert_array_equal(read_all(stream), NOISE)
    assert not file.closed


def test_no_temporary_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    file = io.BytesIO()
    soundfile.write(file, NOISE, SAMPLE_RATE, format="FLAC")
    with open_audio(Pipe(file.getvalue())) as stream:
        stream.read(10)
        assert len(list(tmp_path.iterdir())) == 1
    assert not list(tmp_path.iterdir())
    with pytest.raises(AudioError):
        open_audio(Pipe(b"no audio at all" * 100))
    assert not list(tmp_path.iterdir())
    forgotten = open_audio(Pipe(wav_bytes(NOISE, subtype="ULAW")))
    assert len(list(tmp_path.iterdir())) == 1
    forgotten._reader.close()
    del forgotten
    gc.collect()
    assert not list(tmp_path.iterdir())


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
def test_a_file_cut_short_gives_what_is_there(
    tmp_path: Path, container: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cut"
    tone = np.tile(np.sin(np.arange(160) * 2 * np.pi / 160).astype(np.float32) * np.float32(0.5), 1000)
    if container == "OGG":  # a tone fits in one page, which is all or nothing
        tone = np.tile(NOISE, 4)
    soundfile.write(path, tone, SAMPLE_RATE, format=container)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    got = decode(path)
    assert 0.3 * len(tone) < len(got) < 0.7 * len(tone)
    if container in ("WAV", "FLAC"):
        assert len(caplog.records) == 1


@needs_ffmpeg
def test_a_broken_off_ffmpeg_stream_gives_what_is_there(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "in.wav", np.tile(NOISE, 4), SAMPLE_RATE)
    run_ffmpeg("-i", str(tmp_path / "in.wav"), "-c:a", "aac", "-f", "adts", str(tmp_path / "x"))
    (tmp_path / "x").write_bytes((tmp_path / "x").read_bytes()[:9000])
    assert 1000 < len(decode(tmp_path / "x")) < 4 * len(NOISE)


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

    monkeypatch.setattr("specedge.runtime.audio.os.stat", refuse)
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


def test_memory_does_not_grow_with_the_length(tmp_path: Path) -> None:
    path = tmp_path / "long.wav"
    n_frames = 44_100 * 900
    header = struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        b"RIFF",
        36 + n_frames,
        b"WAVE",
        b"fmt ",
        16,
        1,
        1,
        44_100,
        44_100,
        1,
        8,
        b"data",
        n_frames,
    )
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + n_frames)
    with open_audio(path) as stream:
        tracemalloc.start()
        n_read = 0
        while len(block := stream.read(SAMPLE_RATE)):
            n_read += len(block)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert n_read == 900 * SAMPLE_RATE
    assert peak < 2 << 20


# --- ffmpeg as a process


def test_without_ffmpeg_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "x.m4a").write_bytes(b"\0\0\0\x20ftypM4A " + bytes(100))
    with pytest.raises(AudioError, match=r"x\.m4a: .*needs ffmpeg.*install it"):
        open_audio(tmp_path / "x.m4a")


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
        ("sys.stdout.write('RIFF')", "not a RIFF"),
        ("sys.stdout.buffer.write(b'no wav at all, but plenty of it ' * 100000)", "not a RIFF"),
        ("time.sleep(60)", "gave nothing for"),
    ],
)
def test_a_misbehaving_ffmpeg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, words: str) -> None:
    _stand_in(tmp_path, body)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(ffmpeg, "_STALL_S", 0.5)
    (tmp_path / "x.m4a").write_bytes(b"\0\0\0\x20ftypM4A " + bytes(100))
    with pytest.raises(SpecedgeError, match=words) as caught:
        open_audio(tmp_path / "x.m4a")
    assert len(str(caught.value)) < 400
    assert not children()


def test_importing_audio_drags_in_no_decoder() -> None:
    code = "import sys, specedge.runtime.audio; print([m for m in ('soundfile', 'soxr', 'scipy') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.strip() == "[]"
