"""Log-mel against openai-whisper's formula and transformers' extractor, windows against the whole file's STFT."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from specedge.errors import AudioError
from specedge.runtime.audio import mel

HOP = mel.HOP_SAMPLES
N_FRAMES = 300  # a window of 3 s, so that tests stay fast; nothing in mel.py knows 30 s


def speech_like(n_samples: int, seed: int = 0) -> NDArray[np.float32]:
    """A gliding harmonic tone under a slow envelope, with pauses and a little noise: a wide range of power."""
    rng = np.random.default_rng(seed)
    t_s = np.arange(n_samples) / 16000
    phase = 2 * np.pi * (120 * t_s + 15 * np.sin(2 * np.pi * 0.7 * t_s))
    voice = np.sum([np.sin(k * phase) / k for k in range(1, 20)], axis=0)
    envelope = np.clip(np.sin(2 * np.pi * 0.45 * t_s), 0, 1) ** 2
    return (0.2 * voice * envelope + 1e-4 * rng.standard_normal(n_samples)).astype(np.float32)


class Source:
    """Samples handed out as AudioStream does, with a note of how far it was read."""

    def __init__(self, samples: NDArray[np.float32]) -> None:
        self._samples = samples
        self.at = 0

    def read(self, n_samples: int, /) -> NDArray[np.float32]:
        block = self._samples[self.at : self.at + n_samples]
        self.at += len(block)
        return block

    def close(self) -> None:
        self.at = len(self._samples)


def openai_log_mel(samples: NDArray[np.float32], n_mels: int, filters: NDArray[np.float32]) -> NDArray[np.float32]:
    """openai-whisper's formula written again with torch, on samples already padded or cut."""
    torch = pytest.importorskip("torch")
    spectrum = torch.stft(
        torch.from_numpy(samples), 400, HOP, window=torch.hann_window(400), center=True, return_complex=True
    )
    bands = torch.tensor(filters) @ spectrum[..., :-1].abs() ** 2
    log_spec = torch.clamp(bands, min=1e-10).log10()
    log_spec = torch.maximum(log_spec, log_spec.max() - 8.0)
    result: NDArray[np.float32] = ((log_spec + 4.0) / 4.0).numpy()
    return result


SIGNALS = {
    "speech": speech_like(N_FRAMES * HOP),
    "noise": np.random.default_rng(0).uniform(-1, 1, N_FRAMES * HOP).astype(np.float32),
    "tone": np.sin(np.arange(N_FRAMES * HOP) * 0.04).astype(np.float32),
    "constant": np.ones(N_FRAMES * HOP, np.float32),
    "silence": np.zeros(N_FRAMES * HOP, np.float32),
    "click": np.eye(1, N_FRAMES * HOP, 5000, dtype=np.float32)[0],
    "too long": speech_like(N_FRAMES * HOP + 777),
    "almost full": speech_like(N_FRAMES * HOP - 30),
    "half": speech_like(N_FRAMES * HOP // 2 + 13),
    "50 samples": speech_like(50, 3) + np.float32(0.1),
    "1 sample": np.ones(1, np.float32),
    "nothing": np.zeros(0, np.float32),
}


@pytest.mark.parametrize("n_mels", [80, 128])
@pytest.mark.parametrize("name", list(SIGNALS))
def test_one_window_is_openai_whispers(name: str, n_mels: int) -> None:
    samples = SIGNALS[name]
    window = np.zeros(N_FRAMES * HOP, np.float32)
    window[: len(samples)] = samples[: len(window)]
    got = mel.log_mel(samples, n_mels, N_FRAMES)
    assert got.dtype == np.float32 and got.shape == (n_mels, N_FRAMES)
    np.testing.assert_allclose(got, openai_log_mel(window, n_mels, mel.filterbank(n_mels)), rtol=0, atol=1e-4)


def test_silence_is_the_floor() -> None:
    np.testing.assert_allclose(mel.log_mel(np.zeros(0, np.float32), 80, N_FRAMES), -1.5, rtol=0, atol=1e-6)


def whole_file(samples: NDArray[np.float32], n_window_frames: int) -> NDArray[np.float32]:
    """The log-mel of the whole file with a window of zeros after it, as openai-whisper's transcribe computes."""
    padded = np.concatenate([samples, np.zeros(n_window_frames * HOP, np.float32)])
    return openai_log_mel(padded, 80, mel.filterbank(80))


def stream_of(samples: NDArray[np.float32], n_mels: int = 80, n_frames: int = N_FRAMES) -> mel.MelStream:
    """A stream of samples that can be read twice, as a file can."""
    return mel.MelStream(Source(samples), n_mels, n_frames, again=lambda: Source(samples))


@pytest.mark.parametrize("n_samples", [16000 * 8 + 37, N_FRAMES * HOP, N_FRAMES * HOP - 1, 250, 120, 1])
@pytest.mark.parametrize("starts", [(0, 0, 300, 600), (0, 1, 2, 3, 150, 449, 700, 801), (1, 799), (5,), (301, 302)])
def test_windows_are_slices_of_the_whole_files_log_mel(n_samples: int, starts: tuple[int, ...]) -> None:
    """What openai-whisper's transcribe gives its decoder: whole-file maximum, and 0.0 behind the content."""
    samples = speech_like(n_samples, 5)
    whole = whole_file(samples, 1200)
    stream = stream_of(samples)
    for start in starts:
        opened, n_content_frames = stream.open_window(start)
        assert n_content_frames == min(N_FRAMES, max(0, n_samples // HOP - start))
        np.testing.assert_allclose(opened, whole[:, start : start + N_FRAMES], rtol=0, atol=1e-4)
        for limit in (None, 40):
            window, n_kept = stream.window(start, limit)
            assert n_kept == min(n_content_frames, N_FRAMES if limit is None else limit)
            assert not window[:, n_kept:].any()
            np.testing.assert_array_equal(window[:, :n_kept], opened[:, :n_kept])
    assert stream.n_content_frames == n_samples // HOP


@given(
    n_samples=st.integers(0, 200_000),
    seed=st.integers(0, 99),
    n_mels=st.sampled_from([80, 128]),
    loud_at=st.floats(0, 1),
)
def test_the_peak_is_that_of_all_frames(n_samples: int, seed: int, n_mels: int, loud_at: float) -> None:
    samples = speech_like(n_samples, seed) * np.float32(0.1)
    at = int(loud_at * n_samples)
    samples[at : at + 300] += np.sin(np.arange(len(samples[at : at + 300])) * 0.3).astype(np.float32)
    padded = np.concatenate([samples, np.zeros(2 * mel.N_FFT, np.float32)])
    n_frames = len(padded) // HOP - 1
    expected = 4 * mel.log_mel(padded, n_mels, n_frames).max() - 4
    peak, n_found = mel.find_peak(Source(samples), n_mels)
    assert n_found == n_samples
    assert peak == pytest.approx(expected, abs=1e-5)


class _Bad(Source):
    def read(self, n_samples: int, /) -> NDArray[np.float32]:
        if self.at:
            raise AudioError("broken")
        return super().read(n_samples)


def test_audio_that_turns_bad_still_has_a_peak() -> None:
    samples = speech_like(200_000)
    peak, n_samples = mel.find_peak(_Bad(samples), 80)
    assert n_samples is None and peak > -8


@given(n_samples=st.integers(0, 6000), steps=st.lists(st.integers(0, 30), min_size=1, max_size=6))
def test_a_window_depends_on_its_start_alone(n_samples: int, steps: list[int]) -> None:
    samples = speech_like(n_samples, 9)
    stream = stream_of(samples, n_frames=12)
    for start in np.cumsum(steps).tolist():
        got, n_content_frames = stream.window(start)
        fresh, n_fresh = stream_of(samples, n_frames=12).window(start)
        np.testing.assert_array_equal(got, fresh)
        assert n_content_frames == n_fresh


def test_the_maximum_is_the_files_and_a_pipes_is_what_was_read() -> None:
    quiet_then_loud = np.concatenate([speech_like(N_FRAMES * HOP) / 1000, speech_like(N_FRAMES * HOP)])
    expected = whole_file(quiet_then_loud, N_FRAMES)
    file, pipe = stream_of(quiet_then_loud), mel.MelStream(Source(quiet_then_loud), 80, N_FRAMES)
    first = pipe.window(0)[0]
    np.testing.assert_allclose(file.window(0)[0], expected[:, :N_FRAMES], rtol=0, atol=1e-4)
    assert first.min() < expected.min(), "its own maximum: the floor lies lower"
    second = slice(N_FRAMES, 2 * N_FRAMES)
    np.testing.assert_allclose(file.window(N_FRAMES)[0], expected[:, second], rtol=0, atol=1e-4)
    np.testing.assert_allclose(pipe.window(N_FRAMES)[0], expected[:, second], rtol=0, atol=1e-4)


def test_the_stream_is_read_no_further_than_the_window() -> None:
    source = Source(speech_like(20 * N_FRAMES * HOP))
    stream = mel.MelStream(source, 80, N_FRAMES)
    for start in (0, 100, 2000):
        stream.window(start)
        assert source.at <= (start + N_FRAMES) * HOP + mel.N_FFT


class _Endless:
    def __init__(self) -> None:
        self._second = speech_like(16000)

    def read(self, n_samples: int, /) -> NDArray[np.float32]:
        return np.resize(self._second, n_samples)


def test_memory_does_not_grow_along_the_stream() -> None:
    stream = mel.MelStream(_Endless(), 80, N_FRAMES)
    stream.window(0)
    tracemalloc.start()
    for start in (200, 500, 20_000, 40_000):
        stream.window(start)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


def test_the_bits_are_those_of_other_numpy_kernels() -> None:
    """NumPy chooses kernels by the CPU; a log-mel that differs in its last bit can be another text."""
    code = (
        "import zlib, numpy as np; from specedge.runtime.audio import mel; "
        "from numpy._core._multiarray_umath import __cpu_dispatch__ as d, __cpu_features__ as f; "
        "samples = np.random.default_rng(0).standard_normal(48000, np.float32) * np.float32(0.1); "
        "print(zlib.crc32(mel.log_mel(samples, 80, 300)), *(name for name in d if f.get(name)))"
    )

    def printed(disabled: str) -> list[str]:
        environment = {**os.environ, "NPY_DISABLE_CPU_FEATURES": disabled}
        command = [sys.executable, "-c", code]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()

    bits, *features = printed("")
    if not features:
        pytest.skip("NumPy has no kernels to choose from here")
    assert printed(" ".join(features)) == [bits]
