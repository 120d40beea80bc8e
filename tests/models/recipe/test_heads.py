"""Which heads follow the audio."""

from __future__ import annotations

import numpy as np

from specedge.models.recipe.alignment_heads import best_heads, mass_on_path


def test_a_head_that_walks_along_scores_above_one_that_stares_or_wanders() -> None:
    walking = np.full((6, 60), 0.002, np.float32)
    for row in range(6):
        walking[row, 10 * row : 10 * row + 10] = 0.09
    staring = np.full((6, 60), 0.002, np.float32)
    staring[:, 30:40] = 0.09
    wandering = walking[[4, 1, 5, 0, 3, 2]]
    assert mass_on_path(walking) > 0.85
    assert mass_on_path(walking) > 1.2 * max(mass_on_path(staring), mass_on_path(wandering))


def test_the_best_heads_in_rising_order() -> None:
    assert best_heads(np.array([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]]), 3) == [[0, 1], [1, 0], [2, 1]]
