"""The choice of a drafter by what was measured, and its words."""

from __future__ import annotations

import pytest

from specedge.runtime.bench.recommendation import Recommendation, Spread, recommend

CHOICE = Recommendation(
    drafter="draft", decoder_speed_up=2.1, least=2.0, greatest=2.2, end_to_end=1.4, near=("ctc",),
    draft_model="tiny", rounds=5,
)  # fmt: skip


def chosen(once: tuple[str, ...] = (), **speeds: tuple[float, float, float]) -> Recommendation:
    """Of drafters that were measured in five rounds; those named first in one."""
    spreads = {name: Spread(*speed) for name, speed in {"none": (1.0, 1.0, 1.0), **speeds}.items()}
    rounds = {name: 1 if name in once else 5 for name in spreads}
    return recommend(spreads, spreads, rounds=rounds)


def test_the_quickest_is_chosen_and_its_equals_are_named() -> None:
    choice = chosen(ngram=(1.3, 1.2, 1.4), ctc=(2.0, 1.9, 2.1), tokenmap=(1.9, 1.8, 1.95))
    assert (choice.drafter, choice.near, choice.decoder_speed_up) == ("ctc", ("tokenmap",), 2.0)


@pytest.mark.parametrize("speed", [(1.4, 0.99, 1.6), (1.01, 1.005, 1.02), (0.7, 0.6, 0.8)])
def test_a_gain_that_is_small_or_unsure_leaves_plain_decoding(speed: tuple[float, float, float]) -> None:
    choice = chosen(ngram=speed)
    assert choice.drafter == "none" and choice.decoder_speed_up == 1.0
    assert "use --drafter none" in choice.words()


def test_an_unsure_one_does_not_hide_a_sure_one() -> None:
    choice = chosen(ctc=(2.0, 0.9, 2.4), ngram=(1.5, 1.4, 1.6))
    assert (choice.drafter, choice.near) == ("ngram", ("ctc",))


def test_a_slow_moment_among_many_rounds_decides_nothing() -> None:
    def of(n_rounds: int, n_slow: int) -> Recommendation:
        speeds = {
            "none": Spread.of([1.0] * n_rounds),
            "ctc": Spread.of([1.3] * (n_rounds - n_slow) + [0.7] * n_slow),
        }
        return recommend(speeds, speeds, rounds=dict.fromkeys(speeds, n_rounds))

    assert (of(15, 3).drafter, of(15, 4).drafter) == ("ctc", "none")
    assert (of(9, 0).drafter, of(9, 1).drafter) == ("ctc", "none"), "of few rounds each counts"
    assert "(mostly 1.30 to 1.30 in 15 rounds)" in of(15, 3).words()


def test_one_round_is_not_relied_on_for_little() -> None:
    every = ("none", "ctc", "ngram")
    choice = chosen(every, ctc=(1.04, 1.04, 1.04))
    assert (choice.drafter, choice.near, choice.rounds) == ("none", ("ctc",), 1)
    choice = chosen(every, ctc=(1.40, 1.40, 1.40), ngram=(1.35, 1.35, 1.35))
    assert (choice.drafter, choice.near) == ("ctc", ("ngram",))
    assert "(1.40 to 1.40 in 1 round)" in choice.words()
    # One left behind after a round does not make the others' rounds fewer.
    assert chosen(("ngram",), ctc=(1.4, 1.3, 1.5), ngram=(0.7, 0.7, 0.7)).rounds == 5
    assert chosen(ctc=(1.0, 0.9, 1.01)).words().endswith("than plain decoding in 5 rounds")


def test_words_are_what_to_type() -> None:
    words = CHOICE.words()
    assert words.startswith("on this device use --drafter draft --draft-model tiny: its decoder is 2.10 times plain")
    assert "1.40 times end to end" in words and words.endswith("do not tell it apart from ctc")
    assert Recommendation(drafter="tokenmap", token_maps=("x.tmap",)).arguments.endswith("--token-map x.tmap")


def test_many_equals_are_counted_and_not_named() -> None:
    names = [f"drafter{i}" for i in range(5)]
    said = chosen(**{name: (1.3, 1.2, 1.4) for name in names}).words()
    assert "do not tell it apart from 4 others" in said and "drafter4" not in said
