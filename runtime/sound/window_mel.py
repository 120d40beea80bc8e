"""The log-mel of one window with another number of bands than the model's, from the same spectrum.

Large-v3 hears 128 bands and the smaller models 80: both are sums over one power spectrum, so a draft model costs no
second Fourier transform. The recording's peak is known for the model's own bands; that of other bands is taken to
differ from it by as much as the loudest bands of this window do. Does not know: streams, models.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.sound.mel import log_mel_from_power

__all__ = ["WindowMel"]

_DYNAMIC_RANGE = 2.0  # of the normalised log-mel: 8 in log10


class WindowMel:
    """Gives a window's log-mel by its number of bands.

    mel: float32 [n_mels, n_frames] as the model heard it; power: [N_FREQS, n_frames] of the same frames, None where it
    was not kept; peak: the recording's largest log10 with the model's bands; frames from `n_content_frames` on are 0.0.
    """

    def __init__(
        self, mel: NDArray[np.float32], power: NDArray[np.float32] | None, peak: float, n_content_frames: int
    ) -> None:
        self._mel, self._power, self._peak, self._n_content_frames = mel, power, peak, n_content_frames
        self._made: dict[int, NDArray[np.float32]] = {len(mel): mel}

    def __call__(self, n_mels: int) -> NDArray[np.float32]:
        """Float32 [n_mels, n_frames], not to be changed. Raises ValueError where the spectrum was not kept."""
        if n_mels not in self._made:
            if self._power is None:
                raise ValueError(f"a mel of {n_mels} bands: the window's spectrum was not kept")
            mel = log_mel_from_power(self._power, n_mels, -np.inf)
            n_content = max(self._n_content_frames, 1)
            louder = float(mel[:, :n_content].max()) - float(self._mel[:, :n_content].max())
            np.maximum(mel, np.float32((self._peak + 4) / 4 + louder - _DYNAMIC_RANGE), out=mel)
            mel[:, self._n_content_frames :] = 0.0
            self._made[n_mels] = mel
        return self._made[n_mels]
