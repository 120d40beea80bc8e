"""Each mistake of the published cross-version code, which this one must not make (Chheda 2025; algorithms 1.3)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specedge.runtime.decoding.decode import DecodeOptions, WindowResult, decode_window
from specedge.runtime.decoding.drafter import DraftTree
from specedge.runtime.decoding.rules import RuleSet
from specedge.runtime.drafters.draft.translate import Remapped, special_map
from specedge.runtime.text.special import SpecialTokens
from support.checkpoints import Layout
from support.drafting import Scripted, plain_fields
from support.exported import bundle, engine, noise_mel


def layout(n_vocab: int, *, en: bool = False) -> SpecialTokens:
    """The special tokens of a published vocabulary."""
    ids = Layout.of(n_vocab, 1500, en)
    named = {text[2:-2]: token for text, token in ids.specials.items()}
    return SpecialTokens(
        n_vocab=n_vocab,
        eot=named["endoftext"],
        sot=named["startoftranscript"],
        sot_prev=named["startofprev"],
        sot_lm=named["startoflm"],
        no_speech=named.get("nospeech", named.get("nocaptions", -1)),
        no_timestamps=named["notimestamps"],
        timestamp_begin=n_vocab - 1501,
        translate=named["translate"],
        transcribe=named["transcribe"],
        languages={} if en else {code: named[code] for code in ids.languages},
        n_timestamps=1501,
    )


V2, V3, EN = layout(51865), layout(51866), layout(51864, en=True)
V2_FROM_V3 = Remapped(V2, V3, [*range(50256), -1])


def window(drafter: Any) -> WindowResult:
    made, special = engine("int8", threads=1), bundle().manifest.tokens
    rules = RuleSet(special, space_ids=[32], suppressed=(), timestamps=False, max_initial_timestamp_index=None)
    options = DecodeOptions(rules=rules, n_text_ctx=64, n_sample=24)
    prompt = list(special.prompt("en", "transcribe", False))
    return decode_window(made, made.encode(noise_mel(80, 200)), prompt, options, drafter)


@pytest.mark.parametrize("n_right", [0, 1, 2, 3])
def test_accepted_tokens_before_a_refused_one_are_kept(n_right: int) -> None:
    plain = window(None)

    def propose(context: Any, budget: int) -> DraftTree:
        """Three tokens, the first `n_right` of which are right."""
        truth = list(plain.tokens[len(context.sampled) :][:3])
        wrong = [(token + 1) % 80 for token in truth]
        return DraftTree([*truth[:n_right], *wrong[n_right:]])

    drafter = Scripted(propose)
    got = window(drafter)
    assert plain_fields(got) == plain_fields(plain)
    assert all(len(verdict.accepted) == n_right for verdict in drafter.verdicts[:-2])


def test_a_draft_that_is_right_throughout_brings_one_token_more() -> None:
    plain = window(None)
    drafter = Scripted(lambda context, budget: DraftTree(plain.tokens[len(context.sampled) :][:3]))
    got = window(drafter)
    assert got.tokens == plain.tokens
    assert got.speculation.bonus >= len(plain.tokens) // 4 - 1
    assert len(drafter.verdicts) == -(-len(plain.token_logprobs) // 4)


def test_the_shift_of_ids() -> None:
    found = special_map(V2, V3)
    assert all(found[token] == (token if token <= 50357 else token + 1) for token in range(50257, 51865))
    back = special_map(V3, V2)
    assert all(back[there] == here for here, there in found.items())
    assert 50358 not in back and V3.language_of(50358) == "yue"


def test_a_draft_is_prompted_in_its_own_ids() -> None:
    v3 = [V3.sot_prev, 400, 500, *V3.prompt("de", "transcribe", False)]
    assert v3 == [50362, 400, 500, 50258, 50261, 50360, 50364]
    assert V2_FROM_V3.prompt(v3) == [50361, 400, 500, 50258, 50261, 50359, 50363]
    # What the published code did: these ids mean <|startoflm|> and <|0.00|> to v2.
    assert (V2.sot_lm, V2.timestamp_begin) == (50360, 50364)
    assert Remapped(V3, V2).prompt(V2.prompt("de", "translate")) == V3.prompt("de", "translate")


def test_a_language_that_the_draft_lacks_cannot_be_asked_for() -> None:
    assert V2_FROM_V3.prompt(V3.prompt("yue", "transcribe")) is None
    assert Remapped(V3, V2).prompt(V2.prompt("zh", "transcribe")) == V3.prompt("zh", "transcribe")


def test_an_english_draft_is_asked_without_language_and_an_english_target_of_a_draft_that_needs_one() -> None:
    english = Remapped(EN, V2)
    assert english.prompt(V2.prompt("en", "transcribe", False)) == EN.prompt("en", "transcribe", False)
    assert english.prompt(V2.prompt("de", "transcribe", False)) is None
    assert english.prompt(V2.prompt("en", "translate", False)) is None
    many = Remapped(V3, EN)
    prompt = [EN.sot_prev, 400, *EN.prompt(None, "transcribe", False), 77]
    assert many.prompt(prompt) == [V3.sot_prev, 400, *V3.prompt("en", "transcribe", False), 77]


@pytest.mark.parametrize(("draft", "target"), [(V2, V3), (V3, V2)])
def test_timestamps_stay_the_same_times_both_ways(draft: SpecialTokens, target: SpecialTokens) -> None:
    between = Remapped(draft, target)
    reader = between.reader()
    for step in (0, 1, 750, 1500):
        reader.push(draft.timestamp_begin + step, 0.9)
    assert [token - target.timestamp_begin for token in reader.tokens] == [0, 1, 750, 1500]
    assert not reader.is_ended and target.eot not in reader.tokens
    assert between.text(reader.tokens) == [draft.timestamp_begin + step for step in (0, 1, 750, 1500)]
    reader.push(draft.eot, 1.0)
    assert reader.is_ended and len(reader.tokens) == 4


def test_times_are_mapped_by_their_seconds() -> None:
    coarse = SpecialTokens(**{**V2.to_json(), "n_vocab": 51865, "n_timestamps": 751, "time_precision_s": 0.04})
    found = special_map(coarse, V3)
    assert found[coarse.timestamp_begin + 25] - V3.timestamp_begin == 50, "1 s"
    short = SpecialTokens(**{**V2.to_json(), "n_vocab": 51865, "n_timestamps": 501})
    back = special_map(V3, short)
    assert V3.timestamp_begin + 500 in back and V3.timestamp_begin + 501 not in back


def test_the_empty_token_is_never_drafted() -> None:
    reader = V2_FROM_V3.reader()
    reader.push(50256, 1.0)
    assert reader.is_ended and reader.tokens == []


def test_every_text_id_is_its_own_below_the_end() -> None:
    ids = [int(token) for token in np.random.default_rng(0).integers(0, 50256, 200)]
    reader = V2_FROM_V3.reader()
    for token in ids:
        reader.push(token, 0.5)
    assert reader.tokens == ids and V2_FROM_V3.text(ids) == ids
