"""How much of a window the encoder hears: all of it, or what holds audio (`--audio-context`).

Whisper pads every window to its whole length, and the encoder costs as much for a second of speech as for thirty. A
shorter log-mel gives a shorter encoder output, and the cross-attention keys and values shrink with it. The cut comes a
margin of padding behind the content, because a model that hears speech end with its input sets the last time wrongly or
goes on, and falls on a grid, so that few shapes occur. Both are measured (docs/experiments.md). Content is never cut.

"auto" hears as much as there is. A number of seconds hears at least that much: what whisper.cpp's `--audio-ctx` is used
for, except that audio beyond it, which is lost there, is heard here. "full" is the whole window. None is the bundle's
own: "auto" where the model was trained with short windows too (`Manifest.short_windows`), else "full".

A model that was trained with whole windows alone often repeats itself over a shorter one: FUTO measured 226 % word
errors instead of 4.7 for tiny.en (README). Such results are marked lossy. One that knows short windows knows none
shorter than it was trained with (`Manifest.least_positions`), and hears no less. Whatever was chosen, no drafter
changes a text. Does not know: mels, engines, what was said.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.bundles.manifest import Manifest
from specedge.runtime.longform.windows import frames_to_s, s_to_frames

__all__ = ["AudioContext"]

MARGIN_FRAMES = 50
GRID_FRAMES = 64  # 32 positions of the encoder, of which its kernels take that many at a time


class AudioContext:
    """What one transcription asks for, and what came of it: `n_heard` frames of windows that have `n_whole`.

    asked: as in TranscribeOptions.
    """

    def __init__(self, asked: str | float | None, manifest: Manifest) -> None:
        self.asked = asked if asked is not None else "auto" if manifest.short_windows else "full"
        self._n_window, self._is_trained = manifest.n_frames, manifest.short_windows
        self._n_least = 2 * manifest.least_positions  # the encoder's second convolution halves the frames
        self.n_heard = self.n_whole = 0

    @property
    def is_lossy(self) -> bool:
        """Whether a window was cut for a model that was trained with whole windows alone."""
        return self.n_heard < self.n_whole and not self._is_trained

    def n_frames(self, n_content_frames: int) -> int:
        """Frames to encode of a window whose first `n_content_frames` hold audio."""
        if self.asked == "full":
            return self._n_window
        n_wanted = max(n_content_frames + MARGIN_FRAMES, self._n_least)
        if not isinstance(self.asked, str):
            n_wanted = max(n_wanted, s_to_frames(self.asked))
        return min(-(-n_wanted // GRID_FRAMES) * GRID_FRAMES, self._n_window)

    def cut(self, mel: NDArray[np.float32], n_content_frames: int) -> NDArray[np.float32]:
        """What the encoder shall hear of a window's log-mel, float32 [n_mels, n_frames]; counts it."""
        n_frames = self.n_frames(n_content_frames)
        self.n_heard += n_frames
        self.n_whole += self._n_window
        return mel if n_frames == mel.shape[1] else np.ascontiguousarray(mel[:, :n_frames])

    def add(self, other: AudioContext) -> None:
        """Count what another transcription has heard."""
        self.n_heard += other.n_heard
        self.n_whole += other.n_whole

    def fields(self) -> Mapping[str, Any]:
        """For results: what was asked for, the seconds heard and those of the whole windows, and `lossy`."""
        return {
            "asked": self.asked,
            "heard_s": round(frames_to_s(self.n_heard), 2),
            "window_s": round(frames_to_s(self.n_whole), 2),
            "lossy": self.is_lossy,
        }
