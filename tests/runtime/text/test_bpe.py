"""Splitting and merging against tiktoken, and against the obvious slow way."""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specedge.runtime.text import tokenizer
from specedge.runtime.text.tokenizer import Encoder
from support.vocab import GPT2_PATTERN, mixed_text, table, toy_ranks

NAMES = ("gpt2", "multilingual")


@lru_cache(maxsize=2)
def encoder(name: str) -> Encoder:
    return Encoder({token: id_ for id_, token in enumerate(table(name)) if token})


@lru_cache(maxsize=2)
def oracle(name: str) -> Any:
    tiktoken = pytest.importorskip("tiktoken", reason="tiktoken is the oracle of this test")
    ranks = {token: id_ for id_, token in enumerate(table(name)) if token}
    return tiktoken.Encoding(name, pat_str=GPT2_PATTERN, mergeable_ranks=ranks, special_tokens={})


def _compare(name: str, seed: int, n_texts: int) -> int:
    """Number of tokens compared; none may differ."""
    rng, n_tokens = random.Random(seed), 0
    for _ in range(n_texts):
        text = mixed_text(rng, rng.randint(0, 60))
        expected = oracle(name).encode_ordinary(text)
        assert encoder(name).encode(text) == expected, repr(text)
        n_tokens += len(expected)
    return n_tokens


@pytest.mark.parametrize("name", NAMES)
def test_ids_are_those_of_tiktoken(name: str) -> None:
    assert _compare(name, seed=1, n_texts=120) > 20_000


@pytest.mark.parametrize("name", NAMES)
@given(text=st.text())
def test_any_text_is_encoded_as_tiktoken_does_and_comes_back(name: str, text: str) -> None:
    ids = encoder(name).encode(text)
    assert ids == oracle(name).encode_ordinary(text)
    assert b"".join(table(name)[id_] for id_ in ids).decode() == text


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\ud83d\ude00", " \udc00\ud800 "])
def test_surrogates_are_joined_or_replaced_as_tiktoken_does(text: str) -> None:
    assert encoder("gpt2").encode(text) == oracle("gpt2").encode_ordinary(text)


LONG_WORDS = ("a" * 100_000, "xyzzy" * 20_000, " " * 100_000, "\u0e01\u0e33" * 17_000, "!?" * 50_000)


@pytest.mark.parametrize("word", LONG_WORDS, ids=lambda word: word[:2])
def test_a_word_of_100_kb_takes_no_quadratic_time(word: str) -> None:
    """Quadratic merging would take minutes here."""
    assert encoder("multilingual").encode(word) == oracle("multilingual").encode_ordinary(word)


def test_caches_stay_bounded() -> None:
    fresh = Encoder({token: id_ for id_, token in enumerate(toy_ranks(400))})
    fresh.encode(" ".join(f"{number:x}" for number in range(40_000)))
    assert fresh._cached.cache_info().currsize <= tokenizer._MAX_CACHED_PIECES
    before = fresh._cached.cache_info().misses
    fresh.encode("z" * (tokenizer._MAX_CACHED_CHARS + 1))
    assert fresh._cached.cache_info().misses == before
