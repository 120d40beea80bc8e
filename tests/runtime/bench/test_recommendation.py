"""The choice of a drafter by what was measured, and its words."""

from __future__ import annotations

import pytest

from specedge.runtime.bench.recommendation import Recommendation, Spread, recommend


def chosen(**speeds: tuple[float, float, float]) -> Recommendation:
    """Of drafters that were measured in five rounds."""
    spreads = {name: Spread(*speed) for name, speed in {"none": (1.0, 1.0, 1.0), **speeds}.items()}
    return recommend(spreads, spreads, rounds=5)


def test_the_quickest_is_chosen_and_its_equals_are_named() -> None:
    choice = chosen(ngram=(1.3, 1.2, 1.4), ctc=(2.0, 1.9, 2.1), tokenmap=(1.9, 1.8, 1.95))
    assert (choice.drafter, choice.near, choice.decoder_speed_up) == ("ctc", ("tokenmap",), 2.0)


@pytest.mark.parametrize("speed", [(1.4, 0.99, 1.6), (1.01, 1.005, 1.02), (0.7, 0.6, 0.8)])
def test_a_gain_that_is_small_or_unsure_leaves_plain_decoding(speed: tuple[float, float, float]) -> None:
    choice = chosen(ngram=speed)
    assert choice.drafter == "none" and choice.decoder_speed_up == 1.0
    assert "use --drafter none" in choice.words()


def test_a_slow_moment_among_many_rounds_decides_nothing() -> None:
    def of(n_rounds: int, n_slow: int) -> Recommendation:
        speeds = {
            "none": Spread.of([1.0] * n_rounds),
            "ctc": Spread.of([1.3] * (n_rounds - n_slow) + [0.7] * n_slow),
        }
        return recommend(speeds, speeds, rounds=n_rounds)

    assert (of(15, 3).drafter, of(15, 4).drafter) == ("ctc", "none")
    assert (of(9, 0).drafter, of(9, 1).drafter) == ("ctc", "none"), "of few rounds each counts"
    assert "(mostly 1.30 to 1.30 in 15 rounds)" in of(15, 3).words()
