"""Word errors: what counts as one, and their sum."""

from __future__ import annotations

import pytest

from specedge.runtime.bench.errors import Errors, edit_distance, normalise, units, word_errors


def test_punctuation_and_case_do_not_count() -> None:
    assert normalise("Stop pump two, don't wait.") == ["stop", "pump", "two", "don't", "wait"]
    assert word_errors([("Stop pump two.", "stop, pump two")]).rate == 0
    assert normalise("Größe 12, l’été: насос!") == ["größe", "12", "l'été", "насос"]


@pytest.mark.parametrize(
    ("left", "right", "distance"), [("", "", 0), ("abc", "", 3), ("", "ab", 2), ("kitten", "sitting", 3)]
)
def test_edit_distance(left: str, right: str, distance: int) -> None:
    assert edit_distance(left, right) == edit_distance(right, left) == distance


def test_word_errors_add_up_over_texts() -> None:
    errors = word_errors([("stop pump two", "stop two"), ("check it", "check it"), ("go", "no no")])
    assert errors == Errors(n_errors=3, n_words=6, n_exact=1, n_texts=3)
    assert errors.rate == pytest.approx(0.5)
    assert word_errors([]).rate == 0.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Mr. Smith won't go, uh, (laughs) they've said.", "mister smith will not go they have said"),
        ("two hundred and five of 1,250 in nineteen eighty four", "205 of 1250 in 1984"),
        ("five million two hundred thousand one, and one", "5200001 and 1"),
        ("a hundred and more, thirty six hundred", "a hundred and more 3600"),
        ("one two three zero twenty, it's", "123020 it is"),
    ],
)
def test_english_counts_in_words_as_they_are_spelt_out(text: str, expected: str) -> None:
    assert list(units(text, "en")) == expected.split()


def test_other_languages_count_in_characters() -> None:
    assert units("Größe 12, l’été!", "de") == "größe12l'été"
