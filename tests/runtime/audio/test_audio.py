"""Every way audio comes in: the right samples, bounded memory, no stray file."""

from __future__ import annotations

import gc
import io
import os
import struct
import subprocess
import sys
import tempfile
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import soxr
from numpy.typing import NDArray

from specedge.errors import AudioError, UsageError
from specedge.runtime.audio.audio import SAMPLE_RATE, RawFormat, open_audio
from support.paths import shared
from support.sound import NOISE, Pipe, children, decode, needs_ffmpeg, posix_only, read_all, run_ffmpeg, wav_bytes

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
    "from specedge.runtime.audio.audio import open_audio, RawFormat\n"
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


# --- what it costs


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


def test_importing_audio_drags_in_no_decoder() -> None:
    code = (
        "import sys, specedge.runtime.audio.audio; "
        "print([m for m in ('soundfile', 'soxr', 'scipy') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.strip() == "[]"


def test_small_blocks_give_a_recording_as_it_comes() -> None:
    """No more is read of a pipe than was asked for, rounded up to a block: nothing waits for what is still to come."""

    class Recording(Pipe):
        n_read = 0

        def read(self, size: int = -1) -> bytes:
            data = super().read(size)
            self.n_read += len(data)
            return data

    samples = (NOISE[:20_000] * 32767).astype("<i2")
    pipe = Recording(samples.tobytes())
    with open_audio(pipe, raw=RawFormat("s16le", 16_000), block_frames=160) as stream:  # type: ignore[arg-type]
        first = stream.read(320)
        assert pipe.n_read == 640
        np.testing.assert_array_equal(np.concatenate([first, read_all(stream)]), samples / np.float32(32768))


def test_a_file_and_an_array_can_be_read_again_and_a_pipe_cannot(tmp_path: Path) -> None:
    path = tmp_path / "noise.wav"
    path.write_bytes(wav_bytes(NOISE))
    for source in (path, NOISE):
        with open_audio(source) as stream:
            first = read_all(stream)
            again = stream.again()
            assert again is not None
            with again:
                np.testing.assert_array_equal(read_all(again), first)
    with open(path, "rb") as file, open_audio(file) as stream:
        assert stream.again() is None
