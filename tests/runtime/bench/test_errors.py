"""Word errors: what counts as one, and their sum."""

from __future__ import annotations

import pytest

from specedge.runtime.bench.errors import Errors, edit_distance, units, word_errors


@pytest.mark.parametrize(
    ("left", "right", "distance"), [("", "", 0), ("abc", "", 3), ("", "ab", 2), ("kitten", "sitting", 3)]
)
def test_edit_distance(left: str, right: str, distance: int) -> None:
    assert edit_distance(left, right) == edit_distance(right, left) == distance


def test_word_errors_add_up_over_texts() -> None:
    errors = word_errors([("stop pump two", "stop two"), ("check it", "check it"), ("go", "no no")])
    assert errors == Errors(n_errors=3, n_words=6)
    assert errors.rate == pytest.approx(0.5)
    assert word_errors([]).rate == 0.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Mr. Smith won't go, uh, (laughs) they've said.", "mister smith will not go they have said"),
        ("two hundred and five of 1,250 in nineteen eighty four", "205 of 1250 in 1984"),
        ("five million two hundred thousand one, and one", "5200001 and 1"),
        ("a hundred and more, thirty six hundred", "a hundred and more 3600"),
        (
            "Neighbours' colour realised; a grey centre, travelling dialogue",
            "neighbors color realized a gray center traveling dialog",
        ),
        ("$5, 50% or 2.5", "5 dollars 50 percent or 2.5"),
        ("one two three zero twenty, it's", "123020 it is"),
    ],
)
def test_english_counts_in_words_as_they_are_spelt_out(text: str, expected: str) -> None:
    assert list(units(text, "en")) == expected.split()


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("Größe 12, l’été! (rit) 世界", "fr", "größe 12 l été 世界"),
        ("今日は、12時。", "ja", "今 日 は 1 2 時"),
    ],
)
def test_other_languages_count_in_words_where_they_have_spaces(text: str, language: str, expected: str) -> None:
    assert list(units(text, language)) == expected.split()


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")  # theirs
def test_units_are_openai_whisper_s() -> None:
    normalizers = pytest.importorskip("whisper.normalizers")
    english, basic = normalizers.EnglishTextNormalizer(), normalizers.BasicTextNormalizer()
    said = "Mr. Smith's neighbour won't, um, pay $20 [laughs] for two hundred and five theatres; it's 1984."
    assert english(said).split()[:4] == list(units(said, "en"))[:4]
    for text in ("L’été, c'est «fini» ! (rires)", "Die Straße — 12 % größer", "नमस्ते दुनिया", "Ёлка, 3-й!"):
        assert basic(text).split() == list(units(text, "fr"))
