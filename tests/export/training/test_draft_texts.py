"""What a target said reaches a draft in the draft's own ids, with the rows that tell the target's distributions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specedge.export.training.draft import DraftText, draft_texts
from specedge.export.training.features import HiddenText
from specedge.runtime.drafters.draft.translate import Remapped
from specedge.runtime.papers.across_words import AcrossWords
from specedge.runtime.text.special import SpecialTokens
from specedge.runtime.text.tokenizer import Tokenizer
from support.exported import bundle
from support.vocab import table, toy_special

N_HIDDEN = 6


def heard(ids: Sequence[int], n_prompt: int) -> HiddenText:
    """Each row holds its own number."""
    hidden = np.repeat(np.arange(N_HIDDEN, dtype=np.float16)[:, None], 4, axis=1)
    return HiddenText(ids=tuple(ids), n_prompt=n_prompt, hidden=hidden, features=np.zeros((5, 4), np.float16), source=7)


def behind(text: DraftText, target_ids: Sequence[int], special: SpecialTokens, other: SpecialTokens) -> None:
    """Each row that stands for one of the target's is the one before a token of the same meaning."""
    between = Remapped(other, special)
    for at, row in enumerate(text.rows.tolist()):
        if row >= 0:
            assert between.text([target_ids[row + 1]]) == [text.ids[at + 1]]


def test_another_version_is_taught_in_its_own_ids() -> None:
    target, draft = (bundle("int8", name).tokenizer for name in ("draft v3", "draft"))
    between = Remapped.between(draft, target)
    assert between is not None
    theirs, mine = target.special, draft.special
    said = [theirs.timestamp_begin + 3, 72, 99, 101, theirs.timestamp_begin + 40, theirs.eot]
    ids = [*theirs.prompt("en", timestamps=True), *said]
    (text,) = draft_texts([heard(ids, 3)], between, 64, is_alike=True)
    wanted = [mine.timestamp_begin + 3, 72, 99, 101, mine.timestamp_begin + 40, mine.eot]
    assert list(text.ids) == [*mine.prompt("en", timestamps=True), *wanted] and text.ids != tuple(ids)
    assert text.n_prompt == 3 and text.source == 7
    # Six rows are known, the first of which asks for nothing that is learned.
    assert text.rows.tolist() == [-1, -1, 2, 3, 4, 5, -1, -1, -1]
    behind(text, ids, theirs, mine)


def test_what_the_draft_has_no_token_for_is_left_out_and_the_rows_stay_right() -> None:
    target = bundle("int8", "plain").tokenizer.special
    few = SpecialTokens.from_json({**target.to_json(), "n_timestamps": 10}, target.n_vocab)
    ids = [*target.prompt("en"), 72, target.timestamp_begin + 50, 99, target.eot]
    (text,) = draft_texts([heard(ids, 3)], Remapped(few, target), 64, is_alike=True)
    assert list(text.ids) == [*few.prompt("en"), 72, 99, few.eot]
    assert text.rows.tolist() == [-1, -1, 2, 4, 5, -1]
    behind(text, ids, target, few)
    (short,) = draft_texts([heard(ids, 3)], Remapped(few, target), 5, is_alike=True)
    assert short.ids == text.ids[:5] and short.rows.tolist() == [-1, -1, 2, 4, -1]


def test_a_text_that_the_draft_cannot_be_asked_for_is_left_out() -> None:
    target = Tokenizer(table("multilingual")[:5000], toy_special(5000))
    draft = Tokenizer(table("gpt2")[:6000], toy_special(6000, languages=()))
    assert Remapped.between(draft, target) is None
    other = next(code for code in target.special.languages if code != "en")
    ids = [*target.special.prompt(other), 72, target.special.eot]
    assert draft_texts([heard(ids, 3)], AcrossWords(draft, target), 64, is_alike=False) == []
