"""Beam search: openai-whisper's decoder, driven with the same logits, finds the same beams."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specedge.errors import Interrupted, ModelError
from specedge.runtime.decoding.beam import Hypothesis, best_of
from specedge.runtime.decoding.decode import DecodeOptions, decode_window
from specedge.runtime.decoding.drafter import DraftContext, DraftTree
from specedge.runtime.decoding.rules import RuleSet
from support.drafting import Scripted, draft_plans, plain_fields
from support.fake_engine import HashEngine, special_tokens

decoding = pytest.importorskip("whisper.decoding")
torch = pytest.importorskip("torch")
torch.set_num_threads(1)

SPECIAL = special_tokens(n_timestamps=31)
PROMPT = [SPECIAL.sot, SPECIAL.languages["en"], SPECIAL.transcribe]
FEATURES = b"window"


class Smooth(HashEngine):
    """Logits that are not rounded: openai-whisper's order of equal beams is torch's, which nothing defines."""

    def logits(self, features: Any, prefix: tuple[int, ...]) -> np.ndarray:
        row = super().logits(features, prefix)
        return row + np.random.default_rng(abs(hash(prefix)) % 2**32).random(len(row), np.float32) * np.float32(0.05)


def options(*, timestamps: bool, **more: Any) -> DecodeOptions:
    rules = RuleSet(SPECIAL, space_ids=[32], suppressed=[33, 40], timestamps=timestamps, max_initial_timestamp_index=20)
    return DecodeOptions(rules=rules, n_text_ctx=40, **more)


class NoCache:
    def rearrange_kv_cache(self, source_indices: list[int]) -> None:
        pass


def whispers(engine: HashEngine, chosen: DecodeOptions) -> tuple[list[int], float]:
    """`DecodingTask._main_loop` and `run` with openai-whisper's own decoder and ranker."""
    decoder = decoding.BeamSearchDecoder(chosen.beam_size, SPECIAL.eot, NoCache(), chosen.patience)
    tokens = torch.tensor([PROMPT] * chosen.beam_size)
    sums = torch.zeros(chosen.beam_size)
    for _ in range(chosen.n_sample or chosen.n_text_ctx // 2):
        rows = []
        for prefix in tokens.tolist():
            row = engine.logits(FEATURES, tuple(prefix))
            chosen.rules.apply(row, prefix[len(PROMPT) :])
            rows.append(row)
        tokens, completed = decoder.update(tokens, torch.from_numpy(np.stack(rows)), sums)
        if completed or tokens.shape[-1] > chosen.n_text_ctx:
            break
    found, found_sums = decoder.finalize(tokens[None], sums[None])
    texts = [[t[len(PROMPT) : (t == SPECIAL.eot).nonzero()[0, 0]] for t in group] for group in found]
    best = decoding.MaximumLikelihoodRanker(chosen.length_penalty).rank(texts, found_sums)[0]
    return texts[0][best].tolist(), found_sums[0][best]


# openai-whisper gives NumPy a tensor to sort.
@pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    timestamps=st.booleans(),
    beam_size=st.integers(2, 5),
    patience=st.sampled_from([0.5, 1.0, 2.0]),
    n_sample=st.sampled_from([None, 2, 7]),
    bias=st.sampled_from([-50.0, 1.0, 4.0]),
    length_penalty=st.sampled_from([None, 0.0, 0.6]),
)
def test_equal_to_openai_whisper(
    seed: int,
    timestamps: bool,
    beam_size: int,
    patience: float,
    n_sample: int | None,
    bias: float,
    length_penalty: float | None,
) -> None:
    chosen = options(
        timestamps=timestamps, beam_size=beam_size, patience=patience, n_sample=n_sample, length_penalty=length_penalty
    )
    engine = Smooth(SPECIAL, seed=seed, n_text_ctx=40, eot_bias=bias)
    tokens, total = whispers(engine, chosen)
    result = decode_window(engine, FEATURES, PROMPT, chosen)
    assert list(result.tokens) == tokens
    assert result.sum_logprob == pytest.approx(total, abs=1e-4)
    assert result.avg_logprob == pytest.approx(total / (len(tokens) + 1), abs=1e-4)
    assert sum(result.token_logprobs) == pytest.approx(total, abs=1e-3)
    assert len(result.token_logprobs) == len(tokens) + result.finished
    assert engine.n_open == 0, "a state was not given back"


@settings(max_examples=40, deadline=None)
@given(data=st.data(), seed=st.integers(0, 99), timestamps=st.booleans(), bias=st.sampled_from([-50.0, 1.0, 4.0]),
       beam_size=st.integers(2, 5), patience=st.sampled_from([1.0, 2.0]))  # fmt: skip
def test_no_draft_changes_a_beam(
    data: st.DataObject, seed: int, timestamps: bool, bias: float, beam_size: int, patience: float
) -> None:
    chosen = options(timestamps=timestamps, beam_size=beam_size, patience=patience)
    engine = Smooth(SPECIAL, seed=seed, n_text_ctx=40, eot_bias=bias)
    expected = decode_window(engine, FEATURES, PROMPT, chosen)
    plan = data.draw(draft_plans(SPECIAL, 33))
    drafter = Scripted(lambda context, budget: plan(list(expected.tokens), context, budget))
    found = decode_window(engine, FEATURES, PROMPT, chosen, drafter)
    assert plain_fields(found) == plain_fields(expected)
    assert found.speculation.passes <= expected.speculation.passes
    assert engine.n_open == 0, "a state was not given back"


def test_right_drafts_save_a_beam_its_passes() -> None:
    engine = Smooth(SPECIAL, n_text_ctx=40, eot_bias=-50)
    chosen = options(timestamps=False, beam_size=3)
    expected = decode_window(engine, FEATURES, PROMPT, chosen)

    def greedy(context: DraftContext, budget: int) -> DraftTree:
        """What this beam would say next if it were alone."""
        prefix = [*context.prompt, *context.sampled]
        for _ in range(min(budget, 4)):
            row = engine.logits(FEATURES, tuple(prefix))
            chosen.rules.apply(row, prefix[len(PROMPT) :])
            prefix.append(int(row.argmax()))
        return DraftTree(prefix[len(context.prompt) + len(context.sampled) :])

    drafter = Scripted(greedy)
    found = decode_window(engine, FEATURES, PROMPT, chosen, drafter)
    assert plain_fields(found) == plain_fields(expected)
    assert found.speculation.passes < 0.8 * expected.speculation.passes
    assert found.speculation.accepted == found.speculation.evaluated and found.speculation.drafter == "scripted"
    assert all(verdict.rejected is None for verdict in drafter.verdicts)


def test_one_beam_is_greedy_and_beams_are_for_temperature_zero() -> None:
    def run(**more: Any) -> Any:
        return decode_window(HashEngine(SPECIAL, n_text_ctx=40), FEATURES, PROMPT, options(timestamps=True, **more))

    assert run(beam_size=1, patience=2.0) == run()
    assert run(beam_size=5, temperature=0.6) == run(temperature=0.6), "as openai-whisper's fallback"


@pytest.mark.parametrize("error", [Interrupted("stop"), KeyboardInterrupt()])
def test_an_interrupt_gives_all_buffers_back(error: BaseException) -> None:
    engine = Smooth(SPECIAL, n_text_ctx=40, eot_bias=-50)
    passes = itertools.count()
    forward = engine.forward

    def stop(*arguments: Any) -> Any:
        if next(passes) == 9:
            raise error
        return forward(*arguments)

    engine.forward = stop  # type: ignore[method-assign]
    with pytest.raises(type(error)):
        decode_window(engine, FEATURES, PROMPT, options(timestamps=True, beam_size=4))
    assert engine.n_open == 0


def test_logits_that_are_no_numbers_are_a_model_error() -> None:
    class Silent(HashEngine):
        def logits(self, features: Any, prefix: tuple[int, ...]) -> np.ndarray:
            return np.full(self.n_vocab, np.nan, np.float32)

    engine = Silent(SPECIAL, n_text_ctx=40)
    with pytest.raises(ModelError, match="specedge doctor"):
        decode_window(engine, FEATURES, PROMPT, options(timestamps=False, beam_size=3))
    assert engine.n_open == 0


def test_an_empty_text_can_be_ranked() -> None:
    empty = Hypothesis(tokens=(), token_logprobs=(-0.5,), sum_logprob=-0.5, finished=True)
    longer = Hypothesis(tokens=(1, 2), token_logprobs=(-0.2, -0.2, -0.2), sum_logprob=-0.6, finished=True)
    assert best_of([empty, longer], None) == 1 and best_of([empty, longer], 0.0) == 0
