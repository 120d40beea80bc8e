"""Sound for tests of audio: noise, WAV bytes, a pipe, and what reads a source to its end."""

from __future__ import annotations

import io
import os
import tempfile
from typing import Any

import av
import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from specedge.runtime.audio.audio import SAMPLE_RATE, AudioStream, open_audio

NOISE = np.random.default_rng(0).uniform(-0.5, 0.5, 60_000).astype(np.float32)

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


def encoded(samples: NDArray[np.float32], rate_hz: int, codec: str, container: str, **options: str) -> bytes:
    """Samples [n, n_channels] as a file of this codec and container, by FFmpeg's names."""
    layout = "mono" if samples.shape[1] == 1 else "stereo"
    with tempfile.NamedTemporaryFile() as file, av.open(file.name, "w", format=container, options=options) as out:
        stream = out.add_stream(codec, rate=rate_hz, layout=layout)
        packed = np.ascontiguousarray(np.round(samples * 32767).astype(np.int16)).reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(packed, format="s16", layout=layout)
        frame.sample_rate = rate_hz
        out.mux([*stream.encode(frame), *stream.encode(None)])
        out.close()
        return file.read()


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
