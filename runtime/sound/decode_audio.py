"""A whole file as samples, for programs that want an array: faster-whisper's `decode_audio`.

Samples are not rounded to 16 bits on the way, as they are there. Memory grows with the length; the transcription
itself never needs this. Does not know: windows, mel, models.
"""

from __future__ import annotations

from typing import Literal, overload

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.errors import UsageError
from specedge.runtime.sound.audio import AudioSource, open_audio

__all__ = ["decode_audio"]

MAX_RATE_HZ = 768_000
_READ_SAMPLES = 1 << 20


@overload
def decode_audio(
    input_file: AudioSource, sampling_rate: int = ..., split_stereo: Literal[False] = ...
) -> NDArray[np.float32]: ...
@overload
def decode_audio(
    input_file: AudioSource, sampling_rate: int = ..., *, split_stereo: Literal[True]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]: ...
def decode_audio(
    input_file: AudioSource, sampling_rate: int = 16_000, split_stereo: bool = False
) -> NDArray[np.float32] | tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Samples float32 [n_samples] at `sampling_rate` Hz, channels averaged; with `split_stereo` (left, right).

    `input_file`: what `open_audio` takes. One channel is left and right alike; of more than two the first two are.
    Raises AudioError, ResourceError, UsageError as `open_audio`.
    """
    if not 1 <= sampling_rate <= MAX_RATE_HZ:
        raise UsageError(f"sampling_rate: got {sampling_rate!r}, expected 1 to {MAX_RATE_HZ} Hz")
    blocks = []
    with open_audio(input_file, rate_hz=sampling_rate, n_channels=2 if split_stereo else 1) as stream:
        while len(block := stream.read(_READ_SAMPLES)):
            blocks.append(block)
    samples = np.concatenate(blocks)
    return (samples[:, 0].copy(), samples[:, 1].copy()) if split_stereo else samples
