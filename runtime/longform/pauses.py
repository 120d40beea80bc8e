"""Pauses in a window: where windows end between sentences, and segments where speech does.

A window of fixed length ends inside a sentence, and a model that hears half a sentence, or several at once, says wrong
words or none at all more often than one that hears a sentence and the pause behind it. And a model says when a segment
starts and ends to a few tenths of a second, and is off by more now and then, mostly behind the first segment of a
window, while the spectrogram shows the pauses themselves: each pair of an end and the start that follows it is laid
into the pause that it is nearest to, all pairs of a window together and in order; what no pause is near keeps the
model's time. whisper.cpp's issue 3675 measured how often starts lie in silence, and how far that sinks with times taken
from a voice detector.

A pause is where the power of all bands stays near the window's noise floor, by the measure of `vad_energy` over 130 ms,
for 150 ms or longer; a window ends with the first one of 200 ms behind its first seventh. Both are the default for
models that were trained for short windows and late starts (`presets`), the bundled one, and can be asked for with any.
Does not know: words (a pause inside a sentence is told from one between sentences only by how near the model's times
are), models, files, windows beyond the one it is shown.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specedge.runtime.bundles.manifest import HOP_SAMPLES, SAMPLE_RATE_HZ
from specedge.runtime.longform.segments import Segment
from specedge.runtime.speech.vad_energy import FLOOR_PERCENTILE, speech_probability

__all__ = ["WindowPauses", "find_pauses", "fit_times"]

Pause = tuple[float, float]
"""Its beginning and end, seconds from the start of the window."""

_FRAME_S = HOP_SAMPLES / SAMPLE_RATE_HZ
_AVERAGED_FRAMES = 13
_THRESHOLD = 0.5
_SHORTEST_PAUSE_FRAMES = 15
_SHORTEST_SPEECH_FRAMES = 5
# Of a window, that it keeps however soon a pause comes; and the pause that ends it.
_FIRST_CUT = 0.15
_SHORTEST_CUT_S = 0.2
# The farthest that a time is moved.
_REACH_S = 2.0
_LN_SCALE = 4 * math.log(10)  # the normalised log-mel's 1, as a natural logarithm of power
_MELS_OF_A_BAND = 4
# A frame none of whose bands rises by more than this above the least of the window is digital silence.
_SILENCE = 1e-3


class WindowPauses:
    """The pauses of one transcription, window by window. cuts: windows end with them; settles: segments do."""

    def __init__(self, *, cuts: bool, settles: bool) -> None:
        self.cuts, self._settles = cuts, settles
        self._found: list[Pause] = []
        self._last_end_s = 0.0

    def cut(self, mel: NDArray[np.float32], n_content_frames: int) -> tuple[NDArray[np.float32], int]:
        """A window up to the middle of its first pause with speech behind it, that does not come at once.

        mel: its normalised log-mel, float32 [n_mels, n_frames], which is 0.0 from `n_content_frames` on, as from then
        on where it is cut.
        """
        if not self.cuts:
            return mel, n_content_frames
        self._found = find_pauses(mel[:, :n_content_frames])
        first_s, last_s = _FIRST_CUT * mel.shape[1] * _FRAME_S, n_content_frames * _FRAME_S
        for start_s, end_s in self._found:
            if first_s <= start_s and end_s < last_s and end_s - start_s >= _SHORTEST_CUT_S:
                n_content_frames = round((start_s + end_s) / 2 / _FRAME_S)
                mel[:, n_content_frames:] = 0.0
                break
        return mel, n_content_frames

    def settle(self, segments: list[Segment], mel: NDArray[np.float32], offset_s: float) -> list[Segment]:
        """The segments of the window that was cut last, which starts at `offset_s`, their times moved in place.

        mel: what of it holds audio.
        """
        if not self._settles:
            return segments
        found = self._found if self.cuts else find_pauses(mel)
        times = [(segment.start - offset_s, segment.end - offset_s) for segment in segments]
        for segment, (start_s, end_s) in zip(segments, fit_times(times, found), strict=True):
            segment.end = offset_s + end_s
            segment.start = min(max(offset_s + start_s, self._last_end_s), segment.end)
            self._last_end_s = segment.end
        return segments


def find_pauses(mel: NDArray[np.float32]) -> list[Pause]:
    """Where nobody speaks in a normalised log-mel, float32 [n_mels, n_frames]; [] for one without speech."""
    if mel.shape[1] == 0:
        return []
    is_loud = mel.max(axis=0) > mel.min() + _SILENCE
    power = _averaged(_bands(np.exp((mel - mel.max()) * np.float32(_LN_SCALE))))
    counted = power[:, is_loud] if is_loud.any() else power
    rank = int(FLOOR_PERCENTILE * (counted.shape[1] - 1))
    floor = np.partition(counted, rank, axis=1)[:, rank]
    is_speech = speech_probability(power.T, floor) > _THRESHOLD
    n_frames = len(is_speech)
    for first, end in _runs(~is_speech):
        if end - first < _SHORTEST_PAUSE_FRAMES and first > 0 and end < n_frames:
            is_speech[first:end] = True
    for first, end in _runs(is_speech):
        if end - first < _SHORTEST_SPEECH_FRAMES:
            is_speech[first:end] = False
    return [(first * _FRAME_S, end * _FRAME_S) for first, end in _runs(~is_speech)] if is_speech.any() else []


def fit_times(times: Sequence[Pause], found: Sequence[Pause]) -> list[Pause]:
    """`times`, the (start, end) of each segment of a window in order, moved into the pauses `found`, both in seconds.

    What lies between two segments takes one pause, as do the first start and the last end; no pause is taken twice, and
    they are taken in order. Of all ways to do so, the one that moves the times least; a time that would move by more
    than two seconds stays, and counts as two. Times that would then not be in order are all as they were.
    """
    if not times or not found:
        return list(times)
    ends = [None, *(end for _, end in times)]
    starts = [*(start for start, _ in times), None]
    # For each pause that may be the last one taken (-1: none so far): the cost, and the pauses taken.
    best: dict[int, tuple[float, tuple[int, ...]]] = {-1: (0.0, ())}
    for end_s, start_s in zip(ends, starts, strict=True):
        reached: dict[int, tuple[float, tuple[int, ...]]] = {}
        for last, (cost, taken) in best.items():
            missed = cost + _REACH_S * ((end_s is not None) + (start_s is not None))
            options = [(missed, last, -1)]
            for i in range(last + 1, len(found)):
                moved = _moved(end_s, start_s, found[i])
                if moved is not None:
                    options.append((cost + moved, i, i))
            for total, at, pause in options:
                if at not in reached or total < reached[at][0]:
                    reached[at] = (total, (*taken, pause))
        best = reached
    taken = min(best.values())[1]
    fitted = [
        (
            times[i][0] if taken[i] < 0 else found[taken[i]][1],
            times[i][1] if taken[i + 1] < 0 else found[taken[i + 1]][0],
        )
        for i in range(len(times))
    ]
    flat = list(itertools.chain.from_iterable(fitted))
    in_order = flat == sorted(flat) and all(start < end for start, end in fitted)
    return fitted if in_order else list(times)


def _moved(end_s: float | None, start_s: float | None, pause: Pause) -> float | None:
    """How far an end and the start behind it would move to be the pause's edges; None: too far."""
    moved = [abs(time_s - edge_s) for time_s, edge_s in ((end_s, pause[0]), (start_s, pause[1])) if time_s is not None]
    return None if max(moved) > _REACH_S else sum(moved)


def _bands(power: NDArray[np.float32]) -> NDArray[np.float32]:
    """The power of neighbouring mel bands together, [n_bands, n_frames]."""
    return np.add.reduceat(power, np.arange(0, len(power), _MELS_OF_A_BAND), axis=0)


def _averaged(power: NDArray[np.float32]) -> NDArray[np.float64]:
    """Each band's power [n_bands, n_frames], averaged over the frames around."""
    half = _AVERAGED_FRAMES // 2
    total = np.cumsum(np.pad(power, ((0, 0), (half + 1, half)), mode="edge"), axis=1, dtype=np.float64)
    mean: NDArray[np.float64] = (total[:, _AVERAGED_FRAMES:] - total[:, :-_AVERAGED_FRAMES]) / _AVERAGED_FRAMES
    return mean


def _runs(marks: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """First and end of each run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], marks, [False]])))
    return [(int(first), int(end)) for first, end in zip(edges[::2], edges[1::2], strict=True)]
