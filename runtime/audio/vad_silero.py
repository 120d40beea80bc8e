"""Speech by Silero's neural model, version 6, in the form that faster-whisper ships: ONNX, about 1.2 MB.

Each frame of 512 samples goes in with the 64 samples before it; an LSTM carries its two states from frame to frame.
`specedge models pull silero-vad` fetches the file. Knows tensors and frames; nothing of spans or of how to fetch.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specedge.errors import BundleError

from ..engine.session import Canceller, Session, bind_array_input, bind_array_output
from .vad import FRAME_SAMPLES

__all__ = ["SileroDetector"]

_CONTEXT_SAMPLES = 64
_STATE_SHAPE = (1, 1, 128)
_INPUTS = ("input", "h", "c")
_PROBABILITIES, _STATES = "speech_probs", ("hn", "cn")


class SileroDetector:
    """Probabilities of speech from the model in the file `path`; one thread, no latency.

    Raises BundleError for a file that is not this model, ResourceError, and Interrupted once `canceller` was told.
    """

    def __init__(self, path: Path, canceller: Canceller | None = None) -> None:
        self._session = Session(path, Canceller() if canceller is None else canceller, threads=1, spin=False)
        if set(self._session.inputs) != set(_INPUTS) or not {_PROBABILITIES, *_STATES} <= set(self._session.outputs):
            raise BundleError(
                f"{path}: not the Silero model expected: it takes {', '.join(self._session.inputs)} and not "
                f"{', '.join(_INPUTS)}; get it with `specedge models pull silero-vad`"
            )
        self._states = [np.zeros(_STATE_SHAPE, np.float32) for _ in _STATES]
        self._context = np.zeros(_CONTEXT_SAMPLES, np.float32)

    def push(self, frames: NDArray[np.float32]) -> NDArray[np.float32]:
        """The next whole frames, float32 [n, 512]; as many probabilities, float32 [n]."""
        if not len(frames):
            return np.zeros(0, np.float32)
        before = np.concatenate([self._context[None], frames[:-1, -_CONTEXT_SAMPLES:]])
        self._context = frames[-1, -_CONTEXT_SAMPLES:].copy()
        window = np.ascontiguousarray(np.concatenate([before, frames], axis=1), np.float32)
        probabilities = np.empty(len(frames), np.float32)
        states = [np.empty(_STATE_SHAPE, np.float32) for _ in _STATES]
        binding = self._session.binding()
        for name, array in zip(_INPUTS, (window, *self._states), strict=True):
            bind_array_input(binding, name, array)
        for name, array in zip((_PROBABILITIES, *_STATES), (probabilities, *states), strict=True):
            bind_array_output(binding, name, array)
        self._session.run(binding)
        self._states = states
        return probabilities

    def finish(self, rest: NDArray[np.float32]) -> NDArray[np.float32]:
        """The audio ends with these samples, fewer than a frame; silence follows, one frame of it at least in part."""
        last = np.zeros((1, FRAME_SAMPLES), np.float32)
        last[0, : len(rest)] = rest
        return self.push(last)
