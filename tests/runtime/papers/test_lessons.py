"""What is noted of a window becomes lessons at the right places, for every way in which two vocabularies meet."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from specedge.runtime.papers.distill import N_SLOTS, Notes

N = 40


class Shifted:
    """The target's ids are ten more than the draft's; 20 to 29 of the target are spelt with two."""

    def spelt(self, tokens: Sequence[int]) -> tuple[list[int], list[int]]:
        pairs = [[(token - 10, i)] if not 20 <= token < 30 else [(1, -1), (2, -1)] for i, token in enumerate(tokens)]
        flat = [pair for group in pairs for pair in group]
        return [id_ for id_, _ in flat], [place for _, place in flat]

    def counterparts(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.where((ids >= 20) & (ids < 30), -1, ids - 10)


def row(token: int, sure: float = 5.0) -> NDArray[np.float32]:
    made = np.zeros(N, np.float32)
    made[token] = sure
    made[(token + 1) % N] = -np.inf
    return made


def told(notes: Notes, before: list[int], says: list[int], n_sampled: int, target: list[int], ended: bool) -> None:
    notes.draft(before)
    for i, token in enumerate(says):
        notes.step(token, row(token), np.full(4, len(before) + i, np.float32))
    notes.verdict(n_sampled, [row(token) for token in target], ended=ended)


def test_places_are_those_behind_a_right_beginning() -> None:
    notes = Notes()
    told(notes, [], [3, 4, 5, 6], 0, [13, 14, 17], ended=False)  # the third is wrong: 17 for 5
    told(notes, [3, 4, 7], [8], 3, [18, 19], ended=False)
    told(notes, [3, 4, 7, 8, 9], [11], 5, [35], ended=True)
    found = notes.lessons([13, 14, 17, 18, 19], (35, 11), Shifted())
    assert [(lesson.said, lesson.label) for lesson in found] == [(3, 3), (4, 4), (5, 7), (8, 8), (11, 11)]
    assert [lesson.hidden[0] for lesson in found] == [0, 1, 2, 3, 5]
    for lesson in found:
        assert lesson.target is not None and lesson.target.ids[0] == lesson.label or lesson.label == 11
        slots = lesson.slots()
        assert slots[0] == lesson.label and len(set(slots)) == len(slots) <= N_SLOTS
        assert lesson.whole == pytest.approx(math.log(math.exp(5) + N - 2), abs=1e-4)


def test_what_is_spelt_with_several_is_not_compared() -> None:
    notes = Notes()
    told(notes, [], [1, 2, 5], 0, [22, 15, 16], ended=False)
    found = notes.lessons([22, 15, 16], (35, 11), Shifted())
    assert [lesson.target is None for lesson in found] == [True, True, False]
    told(notes, [9, 9], [5], 2, [16], ended=False)  # behind another text
    assert len(notes.lessons([22, 15, 16], (35, 11), Shifted())) == 3
    assert notes.lessons([], (35, 11), Shifted()) == []
