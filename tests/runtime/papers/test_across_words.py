"""Drafts across vocabularies: what a word becomes is what the target itself would write, byte by byte."""

from __future__ import annotations

import functools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specedge.runtime.papers.across_words import AcrossWords
from specedge.runtime.text.speech_tokens import SpeechTokens
from specedge.runtime.text.tokenizer import Tokenizer
from support.vocab import mixed_text, table, toy_special

SENTENCES = (
    "The pump's bearing overheated; we've replaced it twice.",
    " Pressure fell to 3.5 bar at 10:42, didn't it?",
    "naïve café — 温度 is 40°C…  twice   as much\n",
)


@functools.cache
def tokenizers() -> tuple[Tokenizer, Tokenizer]:
    """Two real tables, cut short, with special tokens of an English-only and of a multilingual model."""
    english, many = table("gpt2")[:6000], table("multilingual")[:5000]
    return (Tokenizer(english, toy_special(6000, languages=())), Tokenizer(many, toy_special(5000)))


@pytest.fixture(params=[False, True], ids=["en to many", "many to en"])
def pair(request: pytest.FixtureRequest) -> tuple[Tokenizer, Tokenizer]:
    """A draft's tokenizer and a target's."""
    draft, target = tokenizers()
    return (target, draft) if request.param else (draft, target)


def read(between: AcrossWords, ids: list[int]) -> list[int]:
    reader = between.reader()
    for token in ids:
        reader.push(token, 0.5)
    return reader.tokens


@pytest.mark.parametrize("text", SENTENCES)
def test_words_become_what_the_target_would_write(pair: tuple[Tokenizer, Tokenizer], text: str) -> None:
    draft, target = pair
    between = AcrossWords(draft, target)
    ids = draft.encode(text)
    assert read(between, [*ids, draft.special.eot]) == target.encode(text)
    assert between.text(target.encode(text)) == ids


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_any_text_keeps_its_bytes(seed: int) -> None:
    draft, target = tokenizers()
    text = mixed_text(random.Random(seed), 12)
    ids = draft.encode(text)
    found = read(AcrossWords(draft, target), [*ids, draft.special.eot])
    assert target.decode_bytes(found) == draft.decode_bytes(ids)
    assert found == target.encode(draft.decode_bytes(ids).decode("utf-8"))


def speech_target() -> Tokenizer:
    """Of few tokens, so that most words are several."""
    return Tokenizer(table("multilingual")[:400], speech_target_layout())


def speech_target_layout() -> SpeechTokens:
    return SpeechTokens(n_vocab=402, eot=400, before=(401,), behind=(), languages={}, context_at=0, unknown=(401,))


def test_a_text_of_a_speech_llm_begins_without_a_space_and_is_drafted_so() -> None:
    draft, target = tokenizers()[0], speech_target()
    between = AcrossWords(draft, target)
    said = target.encode("The pump")
    assert between.text(said) == between.spelt(said)[0] == draft.encode(" The pump")
    reader = between.reader(is_start=True)
    for token in [*draft.encode(" The pump"), draft.special.eot]:
        reader.push(token, 0.5)
    assert reader.tokens == said and not reader.differs


@pytest.mark.parametrize("n_said", range(1, 9))
def test_a_draft_goes_on_within_a_word_that_the_target_has_begun(n_said: int) -> None:
    draft, target = tokenizers()[0], speech_target()
    between = AcrossWords(draft, target)
    whole = target.encode("The bearing overheated twice")
    before, word = between.before_word(whole[:n_said])
    reader = between.reader(word, is_start=not before)
    rest = draft.encode(" The bearing overheated twice")[len(before) :]
    for token in [*rest, draft.special.eot]:
        reader.push(token, 0.5)
    assert whole[:n_said] + reader.tokens == whole
    assert len(reader.tokens) == len(reader.confidences) == len(reader.drawn) == len(reader.origins)


def test_text_that_breaks_off_within_a_character_goes_the_other_way_by_bytes() -> None:
    draft, target = tokenizers()
    whole = target.encode(" 温")
    for n in range(len(whole)):
        found = AcrossWords(draft, target).text(whole[: n + 1])
        assert draft.decode_bytes(found) == target.decode_bytes(whole[: n + 1])


def test_runs_become_tokens_of_the_target_once_it_has_said_them() -> None:
    draft, target = tokenizers()
    between = AcrossWords(draft, target, mode="tokens")
    known = {id_ for id_ in between.direct if id_ >= 0}
    token = next(
        t for t in range(4999, 300, -1)
        if t not in known and target.ranks[t].isalpha() and len(draft.encode(target.ranks[t].decode())) == 2
    )  # fmt: skip
    run = draft.encode(target.ranks[token].decode())
    end = [draft.special.eot]
    before = read(between, [*run, *end])
    assert before != [token]
    between.end([token, 40, target.special.eot])
    assert between.cache.items() == [(tuple(run), (token,))]
    assert read(between, [*run, *end]) == [token]
    assert read(between, run[:1]) == []  # it may yet become the run
    again = AcrossWords(draft, target, mode="tokens", cache=between.cache)
    assert read(again, [*run, *end]) == [token]


def test_bytes_that_are_no_text_end_a_draft() -> None:
    draft, target = tokenizers()
    lone = next(token for token, data in enumerate(draft.ranks) if data == b"\xff")
    reader = AcrossWords(draft, target).reader()
    for token in (lone, draft.special.eot):
        reader.push(token, 0.5)
    assert reader.is_ended and reader.tokens == []
