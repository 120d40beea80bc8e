"""Words and punctuation equal openai-whisper's on random token ids, most of which break UTF-8 somewhere."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specedge.runtime.options import APPEND_PUNCTUATIONS, PREPEND_PUNCTUATIONS
from specedge.runtime.text.tokenizer import Tokenizer
from specedge.runtime.text.words import WordTokens, merge_punctuations, split_words
from support import vocab

N_TEXT = 2000
LANGUAGES = ["en", "de", "zh", "ja", "th", "lo", "my", "yue"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    special = vocab.toy_special(N_TEXT, languages=["en", "de"])
    return Tokenizer(vocab.toy_ranks(N_TEXT), special)


@pytest.fixture(scope="module")
def peers(tokenizer: Tokenizer) -> dict[str, Any]:
    pytest.importorskip("whisper", reason="openai-whisper is not installed")
    from support.openai_model import tokenizer_over

    made = tokenizer_over(tokenizer, "en", "transcribe")
    peers = {}
    for language in LANGUAGES:
        peers[language] = copy.copy(made)
        peers[language].language = language
    return peers


def as_pairs(words: list[WordTokens]) -> list[tuple[str, list[int]]]:
    return [(word.text, word.ids) for word in words]


# Single bytes (ids below 256) break characters; the rest are tokens of real text.
IDS = st.lists(st.one_of(st.integers(0, 255), st.integers(0, N_TEXT - 1)), max_size=30)


@settings(max_examples=150)
@given(ids=IDS, language=st.sampled_from(LANGUAGES))
def test_words_are_openai_whispers(tokenizer: Tokenizer, peers: dict[str, Any], ids: list[int], language: str) -> None:
    text = [*ids, tokenizer.special.eot]
    try:
        words, word_ids = peers[language].split_to_word_tokens(text)
    except IndexError:  # it looks beyond the end of a broken text
        split_words(text, tokenizer, language)
        return
    assert as_pairs(split_words(text, tokenizer, language)) == list(zip(words, word_ids, strict=True))


@given(text=st.text(max_size=40), language=st.sampled_from(LANGUAGES))
def test_words_of_whole_characters_make_the_text(tokenizer: Tokenizer, text: str, language: str) -> None:
    text = text.encode("utf-8", errors="replace").decode()
    words = split_words([*tokenizer.encode(text), tokenizer.special.eot], tokenizer, language)
    if "\ufffd" not in text:
        assert "".join(word.text for word in words) == f"{text}<|endoftext|>"
    assert words[-1].ids == [tokenizer.special.eot]


def test_a_text_that_ends_within_a_character_is_no_error(tokenizer: Tokenizer) -> None:
    """openai-whisper joins what is left to the end of text, and so has no word for it."""
    broken = [*tokenizer.encode(" a"), *(tokenizer.ranks.index(bytes([b])) for b in (0xE4, 0xB8))]
    words = split_words([*broken, tokenizer.special.eot], tokenizer, "en")
    assert [word.text for word in words] == [" a\ufffd"]


def test_only_languages_without_spaces_are_cut_at_every_character(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("我们")
    assert [word.text for word in split_words(ids, tokenizer, "zh")] == ["我", "们"]
    assert [word.text for word in split_words(ids, tokenizer, "xx")] == ["我们"]
    assert [word.text for word in split_words(ids, tokenizer, None)] == ["我们"]


MARKS = st.sampled_from([" ", "", '"', ' "', " (", ")", ".", ",", " .", "...", " -", "a", " a", " b.", "。", "¿", " ¿"])


@given(texts=st.lists(MARKS, max_size=12))
def test_punctuation_goes_where_openai_whisper_puts_it(texts: list[str]) -> None:
    timing = pytest.importorskip("whisper.timing", reason="openai-whisper is not installed")
    ours = [WordTokens(text=text, ids=[i]) for i, text in enumerate(texts)]
    theirs = [timing.WordTiming(text, [i], 0.0, 0.0, 0.0) for i, text in enumerate(texts)]
    merge_punctuations(ours, PREPEND_PUNCTUATIONS, APPEND_PUNCTUATIONS)
    timing.merge_punctuations(theirs, PREPEND_PUNCTUATIONS, APPEND_PUNCTUATIONS)
    assert as_pairs(ours) == [(word.word, word.tokens) for word in theirs]
