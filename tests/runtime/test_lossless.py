"""Real graphs with random weights: whatever is drafted, a window's tokens and numbers are those of plain decoding."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specedge.runtime.decoding.decode import DecodeOptions, WindowResult, decode_window
from specedge.runtime.decoding.drafter import DraftContext, DraftTree
from specedge.runtime.decoding.rules import RuleSet
from specedge.runtime.engine.engine import Features
from specedge.runtime.text.phrases import Tree, Way
from support.drafting import Plan, Scripted, draft_plans, plain_fields, tree
from support.exported import PRECISIONS, bundle, engine, noise_mel

SPECIAL = bundle("int8").manifest.tokens
SUPPRESSED = next(token for token in bundle("int8").manifest.suppress_tokens if token < SPECIAL.eot)
TEMPERATURES = (0.0, 0.3, 1.0)
_EOT = SPECIAL.eot
_PAIRS: list[Way] = [(n, m, 7) for n in range(900) for m in range(0, 250, 3)]
_SENTENCES: list[Way] = [(5, ((9,), (7, 8, ((), (9, 4, 5))), ()), _EOT), (12, ((), (7, 8)), _EOT)]
MAPS: dict[str, dict[str, Any]] = {
    "none": {},
    "bias": {"bias": Tree(_PAIRS, lambda word: ()), "bias_weight": 8.0},
    "only": {"only": Tree(_SENTENCES, lambda word: ())},
}


@functools.cache
def features(precision: str) -> Features:
    return engine(precision).encode(noise_mel(80, 200))


def options(*, timestamps: bool, temperature: float, rule: str = "none", **more: Any) -> DecodeOptions:
    manifest = bundle("int8").manifest
    rules = RuleSet(
        SPECIAL,
        space_ids=[32],
        suppressed=manifest.suppress_tokens,
        timestamps=timestamps,
        max_initial_timestamp_index=50,
    )
    rules = replace(rules, **MAPS[rule])
    return DecodeOptions(
        rules=rules, n_text_ctx=manifest.dims.n_text_ctx, n_sample=24, temperature=temperature, window_key=7, **more
    )


def prompt(*, timestamps: bool, previous: bool) -> list[int]:
    ids = list(SPECIAL.prompt("en", "transcribe", timestamps))
    return [SPECIAL.sot_prev, 5, 99, 12, 7, *ids] if previous else ids


@functools.cache
def plain(
    precision: str, timestamps: bool, previous: bool, temperature: float, rule: str = "none", beam_size: int = 1
) -> WindowResult:
    ids = prompt(timestamps=timestamps, previous=previous)
    chosen = options(timestamps=timestamps, temperature=temperature, rule=rule, beam_size=beam_size)
    return decode_window(engine(precision), features(precision), ids, chosen)


@pytest.mark.parametrize("precision", PRECISIONS)
@settings(max_examples=20, deadline=None)
@given(
    timestamps=st.booleans(),
    previous=st.booleans(),
    temperature=st.sampled_from(TEMPERATURES),
    rule=st.sampled_from(sorted(MAPS)),
    plans=st.lists(draft_plans(SPECIAL, suppressed=SUPPRESSED), min_size=1, max_size=3),
)
def test_no_drafter_changes_a_real_window(
    precision: str, timestamps: bool, previous: bool, temperature: float, rule: str, plans: list[Plan]
) -> None:
    expected = plain(precision, timestamps, previous, temperature, rule)
    truth = [*expected.tokens, SPECIAL.eot]
    n_calls = 0

    def propose(context: DraftContext, budget: int) -> Any:
        nonlocal n_calls
        n_calls += 1
        return plans[n_calls % len(plans)](truth, context, budget)

    ids = prompt(timestamps=timestamps, previous=previous)
    chosen = options(timestamps=timestamps, temperature=temperature, rule=rule)
    result = decode_window(engine(precision), features(precision), ids, chosen, Scripted(propose))
    assert plain_fields(result) == plain_fields(expected)
    counted = result.speculation
    assert counted.tokens == counted.accepted + counted.passes == len(result.token_logprobs)
    assert counted.passes <= counted.tokens


@pytest.mark.parametrize("timestamps", [False, True])
@pytest.mark.parametrize(("beam_size", "temperature"), [(1, 0.0), (1, 1.0), (3, 0.0)])
def test_a_map_changes_the_text_as_it_is_asked_to(timestamps: bool, beam_size: int, temperature: float) -> None:
    """Sentences of `only` follow each other between timestamps, their own numbers are not raised; results say so."""
    found = {rule: plain("int8", timestamps, False, temperature, rule, beam_size) for rule in MAPS}
    text = [token for token in found["only"].tokens if not SPECIAL.is_timestamp(token)]
    assert set(text) <= {5, 9, 7, 8, 4, 12} and (text or timestamps)
    assert found["only"].avg_logprob < -1 and found["bias"].tokens != found["none"].tokens
    assert [one.speculation.lossless for one in found.values()] == [True, False, False]


def test_silence_is_known_where_several_paths_follow_the_start_token_alone() -> None:
    """The prompt of an English-only model with timestamps is one token, so its pass may have several paths."""
    model, special = engine("int8", "en"), bundle("int8", "en").manifest.tokens
    rules = RuleSet(special, space_ids=[32], suppressed=[], timestamps=True, max_initial_timestamp_index=50)
    chosen = DecodeOptions(rules=rules, n_text_ctx=64, n_sample=12)
    heard = model.encode(noise_mel(80, 200))
    ids = special.prompt(None, "transcribe")
    expected = decode_window(model, heard, ids, chosen)
    right = list(expected.tokens)
    drafter = Scripted(lambda context, budget: tree(right[len(context.sampled) :][:3], [7, 8]))
    found = decode_window(model, heard, ids, chosen, drafter)
    assert len(ids) == 1 and model.n_paths > 1 and drafter.verdicts[0].n_accepted > 0
    assert plain_fields(found) == plain_fields(expected) and 0 <= found.no_speech_prob <= 1


@pytest.mark.parametrize("width", [1, 3, 6])
def test_an_oracle_needs_the_fewest_passes(width: int) -> None:
    expected = plain("int8", True, False, 0.0)
    drafter = Scripted(lambda context, budget: DraftTree(expected.tokens[len(context.sampled) :][:width]))
    ids = prompt(timestamps=True, previous=False)
    chosen = options(timestamps=True, temperature=0.0)
    counted = decode_window(engine("int8"), features("int8"), ids, chosen, drafter).speculation
    assert counted.passes == math.ceil(counted.tokens / (width + 1))
