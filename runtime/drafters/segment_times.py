"""Guesses the timestamps round a sentence from where its bytes were heard, and learns how the target sets them.

For each kind of timestamp (the first of a window, the one that ends a sentence, the one that begins the next) there are
a few places it may be told from: an encoder frame, another timestamp, the start of the window. How far the target's own
was from each place is remembered for the last ones; the place with the steadiest distance is believed, and so much as
it was steady. Does not know: tokens, texts, frames' lengths.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

__all__ = ["SegmentTimes"]

_N_KEPT = 24
_NEAR = 0.6  # of what was seen, a step away
_PRIOR = 2.0  # timestamps of doubt about every place
_UNSEEN = (0, 1 / (1 + _PRIOR))


class SegmentTimes:
    """Steps of timestamps by kind; places are steps too."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], deque[int]] = {}
        self._centres: dict[tuple[str, int], tuple[int, float]] = {}  # the distance from a place, and its share
        for _ in range(2):  # most windows begin with speech, or where the last one broke off
            self.learn("first", [0], 0)

    def guess(self, kind: str, places: Sequence[int]) -> tuple[int, float]:
        """The likeliest step of this kind, told from `places`, and how sure that is."""
        best, best_share = places[0], 0.0
        for i, place in enumerate(places):
            distance, share = self._centres.get((kind, i), _UNSEEN)
            if share > best_share:
                best, best_share = place + distance, share
        return best, best_share

    def learn(self, kind: str, places: Sequence[int], step: int) -> None:
        """The target's own was `step`."""
        for i, place in enumerate(places):
            seen = self._seen.setdefault((kind, i), deque(maxlen=_N_KEPT))
            seen.append(step - place)
            distance, n = _centre(seen)
            self._centres[kind, i] = distance, n / (len(seen) + _PRIOR)


def _centre(seen: Sequence[int]) -> tuple[int, float]:
    """The distance round which most of those seen lie, and how many that are, those near it in part."""
    distances = np.array(seen)
    around = (_NEAR ** np.abs(distances[:, None] - distances)).sum(1)
    share, _, distance = max(zip(around.tolist(), (-np.abs(distances)).tolist(), seen, strict=True))
    return distance, share
