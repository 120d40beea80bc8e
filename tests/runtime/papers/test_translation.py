"""Drafts across vocabularies (OmniDraft, arXiv 2507.02659, section 3): words, counterparts, and prompts of drafts."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest

from specedge.export.draft_layers import compact_layout
from specedge.runtime.drafters.draft.translate import Remapped
from specedge.runtime.papers.across_words import AcrossWords
from specedge.runtime.text.speech_tokens import SpeechTokens
from specedge.runtime.text.tokenizer import Tokenizer
from support.vocab import table, toy_special


@functools.cache
def pair() -> tuple[Tokenizer, Tokenizer]:
    return (
        Tokenizer(table("gpt2")[:3000], toy_special(3000, languages=())),
        Tokenizer(table("multilingual")[:2000], toy_special(2000)),
    )


def test_counterparts_are_tokens_of_the_same_bytes_and_specials_of_the_same_meaning() -> None:
    draft, target = pair()
    between = AcrossWords(draft, target)
    id_of = {data: id_ for id_, data in enumerate(draft.ranks[:3000]) if data}
    asked = np.arange(2000)
    expected = [id_of.get(target.ranks[id_], -1) for id_ in range(2000)]
    assert between.counterparts(asked).tolist() == expected and between.counterparts(asked).dtype == np.int64
    special = np.array([target.special.eot, target.special.timestamp_begin + 7, target.special.sot_lm])
    there = [draft.special.eot, draft.special.timestamp_begin + 7, draft.special.sot_lm]
    assert between.counterparts(special).tolist() == there
    assert between.counterparts(np.array([target.special.transcribe])).tolist() == [draft.special.transcribe]
    assert between.text([target.special.eot]) == [draft.special.eot]


def test_a_word_that_the_target_would_spell_with_nothing_is_none() -> None:
    draft, target = pair()
    between = AcrossWords(draft, target)
    assert between.word(tuple(draft.encode(" pump"))) == tuple(target.encode(" pump"))
    assert between.word(tuple(draft.encode(" pump")), drops_space=True) == tuple(target.encode("pump"))
    assert between.word(tuple(draft.encode(" ")), drops_space=True) is None
    assert between.cache.items() == [(tuple(draft.encode(" pump")), tuple(target.encode(" pump")))]


WHISPER = toy_special(300)
ENGLISH = toy_special(300, languages=())
SPEECH = SpeechTokens(
    n_vocab=420,
    eot=400,
    before=(401,),
    behind=(402,),
    languages={"en": (405,), "ru": (406,)},
    context_at=0,
    unknown=(407,),
)


def speech() -> Tokenizer:
    return Tokenizer(table("multilingual")[:400], SPEECH)


def test_a_whisper_beside_a_speech_llm_is_asked_in_the_same_language_without_times() -> None:
    for special, asked, expected in (
        (WHISPER, "en", WHISPER.prompt("en", "transcribe", timestamps=False)),
        (WHISPER, None, WHISPER.prompt("en", "transcribe", timestamps=False)),
        (WHISPER, "ru", None),
        (ENGLISH, "en", ENGLISH.prompt(None, "transcribe", timestamps=False)),
        (ENGLISH, "ru", None),
    ):
        between = AcrossWords(Tokenizer(table("multilingual")[:300], special), speech())
        assert between.prompt(SPEECH.prompt(3, asked)) == expected


def test_a_speech_llm_is_no_draft_of_a_whisper() -> None:
    target = Tokenizer(table("multilingual")[:300], WHISPER)
    assert AcrossWords(speech(), target).prompt(WHISPER.prompt("en", "transcribe")) is None


def test_a_draft_is_asked_for_the_same_task() -> None:
    more = toy_special(300, languages=("en", "de", "fr"))
    between = Remapped(more, WHISPER)
    for language, task, times in itertools.product(("en", "de"), ("transcribe", "translate"), (False, True)):
        asked = WHISPER.prompt(language, task, timestamps=times)
        assert between.prompt([WHISPER.sot_prev, 5, 6, *asked]) == [
            more.sot_prev, 5, 6, *more.prompt(language, task, timestamps=times)
        ]  # fmt: skip
    only_german = Remapped(toy_special(300, languages=("de",)), ENGLISH)
    assert only_german.prompt(ENGLISH.prompt(None, "transcribe")) is None, "a draft without English"


def test_only_those_that_cut_text_alike_are_mapped_id_by_id() -> None:
    ranks = [*table("multilingual")[:400], b""]
    others = [*table("multilingual")[:399], table("multilingual")[400], b""]
    whisper = toy_special(401)
    speech_llm = SpeechTokens(
        n_vocab=410, eot=401, before=(402,), behind=(), languages={}, context_at=0, unknown=(403,)
    )
    between = Remapped.between(Tokenizer(ranks, whisper), Tokenizer(ranks, toy_special(401, languages=())))
    assert between is not None
    reader = between.reader()
    for token, is_ended in ((0, False), (399, False), (400, True)):
        reader.push(token, 0.5, (np.array([0, 1, 400]), np.array([0.5, 0.25, 0.25])))
        assert reader.is_ended == is_ended, "an id without text ends a draft"
    assert reader.tokens == [0, 399] and reader.drawn[0] is not None
    assert [array.tolist() for array in reader.drawn[0]] == [[0, 1], pytest.approx([2 / 3, 1 / 3])]
    for draft, target in (
        (Tokenizer(others, whisper), Tokenizer(ranks, whisper)),
        (Tokenizer(ranks, speech_llm), Tokenizer(ranks, whisper)),
        (Tokenizer(ranks, whisper), Tokenizer(ranks, speech_llm)),
    ):
        assert Remapped.between(draft, target) is None


def test_a_draft_of_some_of_the_target_s_tokens_leaves_out_the_others() -> None:
    ranks = table("multilingual")[:400]
    kept = [token for token in range(400) if token % 3 or len(ranks[token]) == 1]
    few = Tokenizer([ranks[token] for token in kept], compact_layout(ENGLISH, len(kept)))
    target = Tokenizer(ranks, toy_special(400))
    between = Remapped.between(few, target)
    assert between is not None and Remapped.between(target, few) is None
    special = few.whisper_special
    missing = next(token for token in range(400) if token not in kept)
    time = target.special.timestamp_begin + 7
    assert between.text([kept[3], missing, kept[270], time]) == [3, 270, special.timestamp_begin + 7]
    reader = between.reader()
    for token in (270, special.timestamp_begin + 7, special.eot):
        reader.push(token, 0.5)
    assert reader.tokens == [kept[270], time] and reader.is_ended
    asked = target.whisper_special.prompt("en", timestamps=False)
    assert between.prompt(asked) == special.prompt(timestamps=False)
    assert between.prompt(target.whisper_special.prompt("de")) is None, "it was made of a model of English alone"


def test_a_word_is_held_apart_only_where_it_may_go_on() -> None:
    """That is for words, of a target whose texts begin without a space, and behind text."""
    draft, whisper = pair()
    said = whisper.encode(" the pum")
    assert AcrossWords(draft, whisper).before_word(said) == (draft.encode(" the pum"), ())
    target = speech()
    said = target.encode("the pum")
    whole = draft.encode(" the pum")
    for mode, ids in (("tokens", said), ("direct", said), ("words", [*said, target.special.eot]), ("words", [])):
        before, word = AcrossWords(draft, target, mode=mode).before_word(ids)
        assert word == () and before[: len(whole)] == (whole if ids else [])
    before, word = AcrossWords(draft, target).before_word(said)
    assert before == draft.encode(" the") and target.decode_bytes(word) == b" pum"
