"""Pauses in a window, and windows that end with them.

In audio longer than a window, a window of fixed length ends inside a sentence, and a model that hears half a sentence,
or several at once, says wrong words, wrong times or nothing more often than one that hears a sentence and the pause
behind it. Cut so, a window ends in the middle of the first pause of 200 ms with speech behind it, once a seventh of it
is over; the next one starts there. It is the default for models that were trained for short windows and late starts
(`presets`), the bundled one, and can be asked for with any.

A pause is where the power of all bands stays near the window's noise floor, by the measure of `vad_energy` over 130 ms,
for 150 ms or longer. Does not know: words (a long pause inside a sentence ends a window too), models, files, windows
beyond the one it is shown.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.speech.vad_energy import noise_floor, speech_probability

__all__ = ["cut_at_pause", "find_pauses"]

Span = tuple[int, int]
"""First frame and the one behind the last."""

# Of a window, that it keeps however soon a pause comes; and the pause that ends it.
_FIRST_CUT = 0.15
_SHORTEST_CUT_FRAMES = 20
_AVERAGED_FRAMES = 13
_THRESHOLD = 0.5
_SHORTEST_PAUSE_FRAMES = 15
_SHORTEST_SPEECH_FRAMES = 5
_LN_SCALE = 4 * math.log(10)  # the normalised log-mel's 1, as a natural logarithm of power
_MELS_OF_A_BAND = 4
# A frame none of whose bands rises by more than this above the least of the window is digital silence.
_SILENCE = 1e-3


def cut_at_pause(mel: NDArray[np.float32], n_content_frames: int) -> tuple[NDArray[np.float32], int]:
    """A window up to the middle of its first long pause with speech behind it, and how many of its frames that is.

    mel: its normalised log-mel, float32 [n_mels, n_frames], which is 0.0 from `n_content_frames` on, and will be from
    where it is cut.
    """
    for start, end in find_pauses(mel[:, :n_content_frames]):
        is_inside = _FIRST_CUT * mel.shape[1] <= start and end < n_content_frames
        if is_inside and end - start >= _SHORTEST_CUT_FRAMES:
            n_content_frames = (start + end) // 2
            mel[:, n_content_frames:] = 0.0
            break
    return mel, n_content_frames


def find_pauses(mel: NDArray[np.float32]) -> list[Span]:
    """Where nobody speaks in a normalised log-mel, float32 [n_mels, n_frames]; [] for one without speech."""
    if mel.shape[1] == 0:
        return []
    is_loud = mel.max(axis=0) > mel.min() + _SILENCE
    powers = _averaged(_bands(np.exp((mel - mel.max()) * np.float32(_LN_SCALE)))).T
    floor = noise_floor(powers[is_loud] if is_loud.any() else powers)
    is_speech = speech_probability(powers, floor) > _THRESHOLD
    n_frames = len(is_speech)
    for first, end in _runs(~is_speech):
        if end - first < _SHORTEST_PAUSE_FRAMES and first > 0 and end < n_frames:
            is_speech[first:end] = True
    for first, end in _runs(is_speech):
        if end - first < _SHORTEST_SPEECH_FRAMES:
            is_speech[first:end] = False
    return _runs(~is_speech) if is_speech.any() else []


def _bands(power: NDArray[np.float32]) -> NDArray[np.float32]:
    """The power of neighbouring mel bands together, [n_bands, n_frames]."""
    return np.add.reduceat(power, np.arange(0, len(power), _MELS_OF_A_BAND), axis=0)


def _averaged(power: NDArray[np.float32]) -> NDArray[np.float64]:
    """Each band's power [n_bands, n_frames], averaged over the frames around."""
    half = _AVERAGED_FRAMES // 2
    total = np.cumsum(np.pad(power, ((0, 0), (half + 1, half)), mode="edge"), axis=1, dtype=np.float64)
    mean: NDArray[np.float64] = (total[:, _AVERAGED_FRAMES:] - total[:, :-_AVERAGED_FRAMES]) / _AVERAGED_FRAMES
    return mean


def _runs(marks: NDArray[np.bool_]) -> list[Span]:
    """First and end of each run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], marks, [False]])))
    return [(int(first), int(end)) for first, end in zip(edges[::2], edges[1::2], strict=True)]
