"""The first word of a window's text, and how a map has it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specedge.models import store
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.text.beginnings import Beginnings
from specedge.runtime.text.tokenizer import Tokenizer
from support.qwen_checkpoints import qwen_bundle


@pytest.fixture(scope="module")
def llm() -> Tokenizer:
    return qwen_bundle().tokenizer


@pytest.fixture(scope="module")
def whisper() -> Tokenizer:
    return Bundle.open(store.find("demo")).tokenizer


TEXTS = st.lists(st.text("abcHIn'é7", min_size=1, max_size=6), min_size=1, max_size=4).map(
    lambda words: " ".join(words) + "."
)


@given(text=TEXTS)
def test_a_text_is_told_from_its_sentence_behind_another(llm: Tokenizer, text: str) -> None:
    beginnings = Beginnings(llm)
    assert list(beginnings.bare(llm.encode(" " + text))) == llm.encode(text)
    assert list(beginnings.spaced(llm.encode(text))) == llm.encode(" " + text)


def test_what_begins_with_a_space_or_none_anyhow_stays(llm: Tokenizer, whisper: Tokenizer) -> None:
    for ids in ([], whisper.encode(" the pump"), whisper.encode("the pump")):
        assert list(Beginnings(whisper).spaced(ids)) == list(Beginnings(whisper).bare(ids)) == ids
    beginnings = Beginnings(llm)
    assert list(beginnings.spaced(llm.encode(" the pump"))) == llm.encode(" the pump")
    assert list(beginnings.bare(llm.encode("the pump"))) == llm.encode("the pump")
    for ids in ([], llm.encode("天気"), llm.encode("天")[:1]):  # a script without spaces; a part of a character
        assert list(beginnings.spaced(ids)) == list(beginnings.bare(ids)) == ids
