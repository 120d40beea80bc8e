"""Sound for tests of audio: noise, WAV bytes, a pipe, and what reads a source to its end."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from specedge.runtime.audio.audio import SAMPLE_RATE, AudioStream, open_audio

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
