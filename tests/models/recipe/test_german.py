"""The German lists: numbers as they are said, each sentence once, and a model of the language that has words for it."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")

from specedge.models.recipe.german import german_lines, german_number  # noqa: E402
from specedge.models.recipe.labels import ALPHABET, Sentence, build, characters, tokenizer_of  # noqa: E402
from specedge.models.recipe.network import MODELS  # noqa: E402
from specedge.models.recipe.trainer import demo_vocabulary  # noqa: E402


@pytest.mark.parametrize(
    ("n", "words"), [(0, "null"), (12, "zwölf"), (20, "zwanzig"), (21, "einundzwanzig"), (63, "dreiundsechzig")]
)
def test_numbers_are_said_ones_first(n: int, words: str) -> None:
    assert german_number(n) == words


def test_no_sentence_is_in_both_lists() -> None:
    training, dev = german_lines()
    assert len(set(training)) == len(training) >= 5000 and len(set(dev)) == len(dev) >= 100
    assert not set(training) & set(dev)
    assert all(line[-1] == "." and "{" not in line for line in (*training, *dev))


def test_umlauts_are_spelt_by_their_vowels() -> None:
    assert "".join(ALPHABET[at] for at in characters("Öl fließt über")) == "Ol fliest uber"


def test_a_german_model_is_asked_in_german_and_knows_all_tokens() -> None:
    size = MODELS["demo-de"]
    vocabulary, encode = demo_vocabulary(size), tokenizer_of(size.layout).encode
    text = german_lines()[1][0]
    labels = build(size.tokens, [Sentence(text=text, start_s=0, end_s=2)], random.Random(1), timestamps=False)
    special = size.tokens.special
    assert labels.tokens[:2] == (special.sot, special.languages["de"]) and labels.targets[0] == special.languages["de"]
    assert vocabulary.other not in vocabulary.restrict(encode(" " + text))
    assert vocabulary.other not in vocabulary.restrict(labels.tokens)
    assert MODELS["demo"].tokens.spoken == special.languages["en"]
