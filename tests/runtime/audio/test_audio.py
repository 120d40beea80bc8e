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
from numpy.typing import NDArray

import specedge
from specedge.errors import AudioError, UsageError
from specedge.runtime.audio.audio import SAMPLE_RATE, RawFormat, open_audio
from support.sound import NOISE, Pipe, decode, posix_only, read_all, wav_bytes


@pytest.mark.parametrize("rate_hz", [8000, 11025, 44100, 96000, 384000, 1000, 16001])
def test_a_tone_at_any_rate_stays_one(rate_hz: int) -> None:
    hz = min(440, rate_hz // 5)
    tone = (0.5 * np.sin(2 * np.pi * hz * np.arange(2 * rate_hz) / rate_hz)).astype(np.float32)
    got = decode(io.BytesIO(wav_bytes(tone, rate_hz)))
    assert abs(len(got) - 2 * SAMPLE_RATE) <= 2 * SAMPLE_RATE // rate_hz + 2
    expected = 0.5 * np.sin(2 * np.pi * hz * np.arange(len(got)) / SAMPLE_RATE)
    assert np.abs(got - expected)[1000:-1000].max() < 2e-3


def test_16_khz_mono_passes_unchanged() -> None:
    np.testing.assert_array_equal(decode(io.BytesIO(wav_bytes(NOISE))), NOISE)


def test_a_last_block_of_one_sample_is_read() -> None:
    assert len(decode(io.BytesIO(wav_bytes(NOISE[:16_385], 44_100)))) == 5945


LEFT, RIGHT = NOISE[:20_000], NOISE[20_000:40_000]
STEREO = np.stack([LEFT, RIGHT], axis=1)


def test_two_channels_are_averaged_or_apart() -> None:
    data = wav_bytes(STEREO)
    mean = specedge.decode_audio(io.BytesIO(data))
    np.testing.assert_allclose(mean, (LEFT + RIGHT) / 2, rtol=0, atol=1 / 32768)
    left, right = specedge.decode_audio(io.BytesIO(data), split_stereo=True)
    np.testing.assert_allclose(np.stack([left, right], 1), STEREO, rtol=0, atol=1 / 32768)
    assert left.flags.c_contiguous and right.base is None
    left, right = specedge.decode_audio(io.BytesIO(wav_bytes(NOISE)), split_stereo=True)
    assert np.array_equal(left, NOISE) and np.array_equal(right, NOISE)


@pytest.mark.parametrize("source", ["file", "pipe"])
@pytest.mark.parametrize("louder", [0, 1])
def test_of_channels_that_cancel_each_other_the_louder_is_taken(
    louder: int, source: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Issue 54: the mean of stereo in antiphase is silence."""
    channels = [NOISE * np.float32(0.9), -NOISE * np.float32(0.9)]
    channels[louder] = channels[louder] / np.float32(0.9)
    data = wav_bytes(np.stack(channels, axis=1), subtype="PCM_16")
    got = decode(io.BytesIO(data) if source == "file" else Pipe(data))
    np.testing.assert_allclose(got, channels[louder], rtol=0, atol=1 / 16384)
    assert len(caplog.messages) == 1 and f"the {('left', 'right')[louder]} one is taken" in caplog.messages[0]


@pytest.mark.parametrize("source", ["wav", "array", "raw"])
def test_floats_on_the_scale_of_16_bits_are_scaled(source: str, caplog: pytest.LogCaptureFixture) -> None:
    """Issue 54: they would be clipped to a square wave."""
    samples = np.round(NOISE * 32767)
    quiet = np.concatenate([np.tile(np.float32([2, -1, 0, 1]), 5000), samples])  # noise before the speech
    for wrong in (samples, quiet, samples + np.float32(0.25)):
        sources = {"wav": lambda: io.BytesIO(wav_bytes(wrong)), "array": lambda: wrong, "raw": lambda: Pipe(wrong)}  # noqa: B023
        options = {"raw": RawFormat("f32le", SAMPLE_RATE)} if source == "raw" else {}
        caplog.clear()
        np.testing.assert_allclose(decode(sources[source](), **options), wrong / 32768, rtol=0, atol=1e-6)
        assert len(caplog.messages) == 1 and "divided by 32768" in caplog.messages[0]


@pytest.mark.parametrize("step", [1, 160, 16_384, 10**7, 10**12])
def test_the_size_of_a_read_does_not_change_the_samples(step: int) -> None:
    samples = NOISE[:900] if step == 1 else NOISE
    with open_audio(io.BytesIO(wav_bytes(samples, 24000))) as stream:
        got = read_all(stream, step)
    np.testing.assert_array_equal(got, decode(io.BytesIO(wav_bytes(samples, 24000))))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int16", ">f4", ">i2"])
def test_arrays_of_samples(dtype: str) -> None:
    samples = (NOISE * 32768).astype(dtype) if "i" in dtype else NOISE.astype(dtype)
    with open_audio(samples) as stream:
        assert stream.duration_s == len(samples) / SAMPLE_RATE
        got = read_all(stream)
    assert got.dtype == np.float32
    expected = samples.astype(np.float32) / 32768 if "i" in dtype else samples.astype(np.float32)
    np.testing.assert_array_equal(got, expected)


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
    del forgotten
    gc.collect()
    assert not list(tmp_path.iterdir())


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


class _Recording(Pipe):
    n_read = 0

    def read(self, size: int = -1) -> bytes:
        data = super().read(size)
        self.n_read += len(data)
        return data


def test_small_blocks_give_a_recording_as_it_comes() -> None:
    """No more is read of a pipe than was asked for, rounded up to a block: nothing waits for what is still to come."""
    samples = (NOISE[:20_000] * 32767).astype("<i2")
    pipe = _Recording(samples.tobytes())
    with open_audio(pipe, raw=RawFormat("s16le", 16_000), block_frames=160) as stream:  # type: ignore[arg-type]
        first = stream.read(320)
        assert pipe.n_read == 640
        np.testing.assert_array_equal(np.concatenate([first, read_all(stream)]), samples / np.float32(32768))


def test_a_wav_on_a_live_pipe_begins_at_once() -> None:
    """FFmpeg would read two seconds ahead, in case 16-bit samples are DTS."""
    pipe = _Recording(wav_bytes(NOISE, subtype="PCM_16"))
    with open_audio(pipe, block_frames=160) as stream:  # type: ignore[arg-type]
        assert len(stream.read(160)) == 160 and pipe.n_read <= 4096


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
