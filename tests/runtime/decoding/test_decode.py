"""The decode loop: equal to a plain greedy loop, whatever a drafter does."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specedge.errors import Interrupted, ModelError, UsageError
from specedge.runtime.decoding.decode import DecodeOptions, Speculation, WindowResult, decode_window
from specedge.runtime.decoding.drafter import DraftContext, Drafter, DraftTree, EmptyDrafter, Guard
from specedge.runtime.decoding.languages import detect_language
from specedge.runtime.decoding.rules import RuleSet
from specedge.runtime.decoding.sampling import softmax
from support.drafting import Plan, Scripted, draft_plans, plain_fields, tree
from support.fake_engine import FakeEngine, HashEngine, special_tokens

SPECIAL = special_tokens(n_timestamps=31)
PROMPT = [SPECIAL.sot, SPECIAL.languages["en"], SPECIAL.transcribe]
FEATURES = b"window"


RULES = ("repetition_penalty", "no_repeat_ngram_size", "length_decay", "suppress_blank")


def options(*, timestamps: bool = True, n_text_ctx: int = 48, **more: Any) -> DecodeOptions:
    rules = RuleSet(
        SPECIAL,
        space_ids=[32],
        suppressed=[33, 40],
        timestamps=timestamps,
        max_initial_timestamp_index=20,
        **{name: more.pop(name) for name in RULES if name in more},
    )
    return DecodeOptions(rules=rules, n_text_ctx=n_text_ctx, **more)


def greedy(engine: HashEngine, prompt: list[int], chosen: DecodeOptions) -> tuple[list[int], list[float], float]:
    """openai-whisper's main loop, one token at a time and without any cache: the reference."""
    ids, log_probs = list(prompt), []
    n_sample = chosen.n_text_ctx // 2 if chosen.n_sample is None else chosen.n_sample
    at_sot = engine.logits(FEATURES, tuple(prompt[: prompt.index(SPECIAL.sot) + 1])).astype(np.float64)
    no_speech = math.exp(at_sot[SPECIAL.no_speech]) / np.exp(at_sot).sum()
    for _ in range(n_sample):
        row = engine.logits(FEATURES, tuple(ids))
        chosen.rules.apply(row, ids[len(prompt) :])
        best = max(range(len(row)), key=lambda i: (row[i], -i))
        log_probs.append(-math.log(np.exp(row.astype(np.float64) - row[best]).sum()))
        ids.append(best)
        if best == SPECIAL.eot or len(ids) > chosen.n_text_ctx:
            break
    return ids[len(prompt) :], log_probs, float(no_speech)


def check_counts(result: WindowResult, engine: HashEngine) -> None:
    s = result.speculation
    assert s.tokens == len(result.tokens) + result.finished == len(result.token_logprobs)
    assert s.tokens == s.accepted + s.passes
    assert s.accepted <= s.evaluated <= s.proposed and s.bonus <= s.passes == engine.n_passes
    assert sum(s.evaluated_by_position) == s.evaluated and sum(s.accepted_by_position) == s.accepted
    assert len(s.accepted_by_position) == len(s.evaluated_by_position)
    for name in ("proposed", "evaluated", "accepted"):
        assert sum(getattr(counts, name) for counts in s.by_drafter.values()) == getattr(s, name)
    assert engine.n_open == 0, "a state was not given back"


@given(
    seed=st.integers(0, 10**6),
    timestamps=st.booleans(),
    n_text_ctx=st.sampled_from([16, 31, 48]),
    n_sample=st.sampled_from([None, 1, 2, 9]),
    bias=st.sampled_from([-50.0, 2.0, 5.0]),
)
def test_plain_decoding_is_openai_whispers_loop(
    seed: int, timestamps: bool, n_text_ctx: int, n_sample: int | None, bias: float
) -> None:
    chosen = options(timestamps=timestamps, n_text_ctx=n_text_ctx, n_sample=n_sample)
    engine = HashEngine(SPECIAL, seed=seed, n_text_ctx=n_text_ctx, eot_bias=bias)
    ids, log_probs, no_speech = greedy(engine, PROMPT, chosen)
    result = decode_window(engine, FEATURES, PROMPT, chosen)
    assert [*result.tokens, *([SPECIAL.eot] if result.finished else [])] == ids
    np.testing.assert_allclose(result.token_logprobs, log_probs, atol=1e-5)
    assert result.avg_logprob == pytest.approx(sum(log_probs) / (len(result.tokens) + 1), abs=1e-5)
    assert result.no_speech_prob == pytest.approx(no_speech, rel=1e-4)
    assert result.speculation == Speculation(passes=len(ids), tokens=len(ids))
    check_counts(result, engine)


@pytest.mark.parametrize("prompt", [[SPECIAL.languages["en"]], [SPECIAL.sot] * 60])
def test_a_prompt_that_cannot_be_decoded_is_refused(prompt: list[int]) -> None:
    with pytest.raises(UsageError, match="prompt"):
        decode_window(HashEngine(SPECIAL), FEATURES, prompt, options())


@settings(max_examples=300)
@given(
    seed=st.integers(0, 10**6),
    timestamps=st.booleans(),
    n_text_ctx=st.sampled_from([16, 31, 48]),
    bias=st.sampled_from([-50.0, 2.0]),
    plans=st.lists(draft_plans(SPECIAL, suppressed=33), min_size=1, max_size=4),
    max_draft=st.sampled_from([1, 3, 64]),
    n_paths=st.sampled_from([1, 2, 4]),
    temperature=st.sampled_from([0.0, 0.0, 0.4, 1.0]),
    penalties=st.sampled_from(
        [{}, {"repetition_penalty": 1.3}, {"no_repeat_ngram_size": 2}, {"length_decay": (3, 1.2)}]
    ),
    n_previous=st.sampled_from([0, 5]),
)
def test_no_drafter_changes_anything_but_speed(
    seed: int,
    timestamps: bool,
    n_text_ctx: int,
    bias: float,
    plans: list[Plan],
    max_draft: int,
    n_paths: int,
    temperature: float,
    penalties: dict[str, Any],
    n_previous: int,
) -> None:
    chosen = options(
        timestamps=timestamps,
        n_text_ctx=n_text_ctx,
        max_draft=max_draft,
        temperature=temperature,
        window_key=seed,
        **penalties,
    )
    prompt = [SPECIAL.sot_prev, *range(60, 60 + n_previous), *PROMPT] if n_previous else PROMPT
    plain_engine = HashEngine(SPECIAL, seed=seed, n_text_ctx=n_text_ctx, eot_bias=bias)
    plain = decode_window(plain_engine, FEATURES, prompt, chosen)
    truth = [*plain.tokens, SPECIAL.eot]
    n_calls = 0

    def propose(context: DraftContext, budget: int) -> Any:
        nonlocal n_calls
        n_calls += 1
        return plans[n_calls % len(plans)](truth, context, budget)

    engine = HashEngine(SPECIAL, seed=seed, n_text_ctx=n_text_ctx, eot_bias=bias)
    engine.n_paths = n_paths
    result = decode_window(engine, FEATURES, prompt, chosen, Scripted(propose))
    assert plain_fields(result) == plain_fields(plain)
    assert result.speculation.lossless
    check_counts(result, engine)
    assert engine.n_passes <= plain_engine.n_passes <= len(plain.tokens) + 1
    assert max(engine.widths[1:], default=1) <= 1 + max_draft


@pytest.mark.parametrize("width", [1, 2, 5])
def test_an_oracle_needs_one_pass_for_each_run_of_its_tokens(width: int) -> None:
    chosen = options(n_text_ctx=64)
    plain = decode_window(HashEngine(SPECIAL, n_text_ctx=64, eot_bias=-50), FEATURES, PROMPT, chosen)
    drafter = Scripted(lambda context, budget: DraftTree(plain.tokens[len(context.sampled) :][:width]))
    result = decode_window(HashEngine(SPECIAL, n_text_ctx=64, eot_bias=-50), FEATURES, PROMPT, chosen, drafter)
    assert result.tokens == plain.tokens
    assert result.speculation.passes == math.ceil(len(plain.tokens) / (width + 1))
    assert result.speculation.accepted == result.speculation.evaluated
    assert result.speculation.acceptance_rate == 1.0
    assert result.speculation.drafter == "scripted"


@pytest.mark.parametrize("wrong_at", range(6))
def test_the_accepted_prefix_survives_a_wrong_draft(wrong_at: int) -> None:
    """The mistake of algorithms 1.3 (1): dropping the accepted tokens before a mismatch."""
    chosen = options(n_text_ctx=64)
    plain = decode_window(HashEngine(SPECIAL, n_text_ctx=64, eot_bias=-50), FEATURES, PROMPT, chosen)

    def propose(context: DraftContext, budget: int) -> DraftTree:
        right = list(plain.tokens[len(context.sampled) :][:6])
        if wrong_at < len(right):
            right[wrong_at] = (right[wrong_at] + 1) % SPECIAL.eot
        return DraftTree(right)

    drafter = Scripted(propose)
    result = decode_window(HashEngine(SPECIAL, n_text_ctx=64, eot_bias=-50), FEATURES, PROMPT, chosen, drafter)
    assert result.tokens == plain.tokens
    assert [v.n_accepted for v in drafter.verdicts[:2]] == [wrong_at, wrong_at]
    assert drafter.verdicts[0].token == plain.tokens[wrong_at]


def test_what_a_drafter_is_told() -> None:
    drafter = Scripted(lambda context, budget: DraftTree([1, 2, 3]))
    guard = Guard(drafter)
    chosen = options(n_text_ctx=20, n_sample=8)
    result = decode_window(HashEngine(SPECIAL, n_text_ctx=20, eot_bias=-50), FEATURES, PROMPT, chosen, guard)
    guard.end(result.tokens)
    assert [w.n_sample for w in drafter.windows] == [8] and drafter.windows[0].prompt == tuple(PROMPT)
    assert drafter.budgets == sorted(drafter.budgets, reverse=True) and drafter.budgets[0] == 7
    assert sum(v.n_accepted + 1 for v in drafter.verdicts) == 8 and drafter.verdicts[-1].finished
    assert drafter.ended == [result.tokens]
    assert guard.error is None


@pytest.mark.parametrize("call", ["begin", "propose", "observe", "end"])
def test_a_raising_drafter_is_dropped_for_good(call: str) -> None:
    class Broken(EmptyDrafter):
        n_calls = 0

    def fail(*_: Any) -> Any:
        Broken.n_calls += 1
        raise RuntimeError("two\nlines")

    setattr(Broken, call, fail)
    guard = Guard(Broken())
    plain = decode_window(HashEngine(SPECIAL), FEATURES, PROMPT, options())
    for _ in range(2):
        result = decode_window(HashEngine(SPECIAL), FEATURES, PROMPT, options(), guard)
        guard.end(result.tokens)
        assert plain_fields(result) == plain_fields(plain)
    assert guard.error == "RuntimeError: two lines" and Broken.n_calls == 1


@pytest.mark.parametrize("error", [Interrupted("stop"), KeyboardInterrupt()])
def test_an_interrupt_inside_a_drafter_is_an_interrupt(error: BaseException) -> None:
    def propose(context: DraftContext, budget: int) -> DraftTree:
        raise error

    engine = HashEngine(SPECIAL)
    with pytest.raises(type(error)):
        decode_window(engine, FEATURES, PROMPT, options(), Scripted(propose))
    assert engine.n_open == 0


def chain(tree: Any, budget: int = 9) -> tuple[list[int], int]:
    guard = Guard(Scripted(lambda context, budget: tree))
    context = DraftContext(prompt=(), sampled=(), position=0)
    found = guard.propose(context, budget, n_vocab=100, useless={50})
    assert guard.error is None
    best = found.paths(1, 0)
    return list(found.tokens(best[0])) if best else [], sum(found.n_proposed.values())


def test_a_proposal_is_cut_to_what_can_be_verified() -> None:
    assert chain(DraftTree([1, 2, 3])) == ([1, 2, 3], 3)
    assert chain(DraftTree([1, 2, 3]), budget=2) == ([1, 2], 3)
    assert chain(DraftTree([1, 50, 3])) == ([1], 3), "an id no rule allows, and what follows it"
    assert chain(DraftTree([1, 100, 3])) == ([1], 3)
    assert chain(DraftTree([-1, 2])) == ([], 2)
    branches = DraftTree(tokens=np.array([1, 7, 2, 8, 3]), parents=np.array([-1, -1, 0, 1, 2]))
    assert chain(branches) == ([1, 2, 3], 5), "the first child at every node"


def paths(proposed: DraftTree, n_paths: int = 4, n_rows: int = 64, budget: int = 64) -> list[tuple[int, ...]]:
    guard = Guard(Scripted(lambda context, _: proposed))
    context = DraftContext(prompt=(), sampled=(), position=0)
    found = guard.propose(context, budget, n_vocab=100, useless={50})
    assert guard.error is None
    return [found.tokens(path) for path in found.paths(n_paths, n_rows)]


@pytest.mark.parametrize(
    "chain",
    [
        DraftTree([1, 2], conf=[0.5]),
        DraftTree("12"),  # type: ignore[arg-type]
        DraftTree([1, 2.0]),  # type: ignore[list-item]
        DraftTree([True]),
        DraftTree([1], conf=["sure"]),  # type: ignore[list-item]
        DraftTree(None),  # type: ignore[arg-type]
        DraftTree.__new__(DraftTree),
    ],
)
def test_a_chain_that_is_none_ends_a_drafter(chain: DraftTree) -> None:
    guard = Guard(Scripted(lambda context, budget: chain))
    context = DraftContext(prompt=(), sampled=(), position=0)
    assert len(guard.propose(context, 9, n_vocab=100, useless=())) == 0
    assert guard.error is not None and guard.is_idle


def test_a_drafter_needs_a_name_and_propose_only() -> None:
    class Three(Drafter):
        def propose(self, context: DraftContext, budget: int) -> DraftTree:
            return DraftTree([3] * budget)

    found = decode_window(HashEngine(SPECIAL), FEATURES, PROMPT, options(), Three())
    assert plain_fields(found) == plain_fields(decode_window(HashEngine(SPECIAL), FEATURES, PROMPT, options()))
    assert found.speculation.drafter == "Three" and Guard(Three()).error is None


@pytest.mark.parametrize("prompt", [PROMPT, [SPECIAL.sot]])
def test_silence_is_read_before_the_row_is_used_up(prompt: list[int]) -> None:
    engine = HashEngine(SPECIAL)
    row = engine.logits(FEATURES, tuple(prompt[: prompt.index(SPECIAL.sot) + 1]))
    expected = float(softmax(row)[SPECIAL.no_speech])
    drafter = Scripted(lambda context, budget: tree([1, 2], [3, 4]))
    for one in (None, drafter):
        assert decode_window(engine, FEATURES, prompt, options(), one).no_speech_prob == expected


@pytest.mark.parametrize("parents", [[1, 0], [0, 0], [-2, 0], [-1, 2], [-1, 1]])
def test_parents_that_make_no_tree_end_a_drafter(parents: list[int]) -> None:
    guard = Guard(Scripted(lambda context, budget: DraftTree(tokens=np.array([1, 2]), parents=np.array(parents))))
    context = DraftContext(prompt=(), sampled=(), position=0)
    assert len(guard.propose(context, 9, n_vocab=100, useless=())) == 0
    assert guard.error is not None and "parent" in guard.error


class Constant(FakeEngine):
    """The same row for every prefix."""

    def __init__(self, row: np.ndarray) -> None:
        super().__init__(len(row), 48)
        self.row = row

    def encode(self, mel: np.ndarray) -> None:
        """It hears nothing."""

    def logits(self, features: Any, prefix: tuple[int, ...]) -> np.ndarray:
        return self.row.copy()


def test_ties_go_to_the_lowest_id() -> None:
    row = np.full(SPECIAL.n_vocab, -1.0, np.float32)
    row[[200, 50, 120]] = 2.0
    result = decode_window(Constant(row), FEATURES, PROMPT, options(timestamps=False, n_sample=3))
    assert result.tokens == (50, 50, 50) and not result.finished
    assert result.avg_logprob == pytest.approx(result.sum_logprob / 4), "openai-whisper divides by len + 1"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_that_are_no_numbers_are_a_model_error(value: float) -> None:
    with pytest.raises(ModelError, match="specedge doctor"):
        decode_window(
            Constant(np.full(SPECIAL.n_vocab, value, np.float32)), FEATURES, PROMPT, options(timestamps=False)
        )


def test_language_detection_is_a_softmax_over_the_language_tokens() -> None:
    row = np.zeros(SPECIAL.n_vocab, np.float32)
    row[SPECIAL.eot] = 50
    row[SPECIAL.languages["de"]] = 2
    row[SPECIAL.languages["fr"]] = 1
    engine = Constant(row)
    found = detect_language(engine, FEATURES, SPECIAL)
    assert list(found) == ["de", "fr", "en"] and sum(found.values()) == pytest.approx(1)
    assert found["de"] / found["fr"] == pytest.approx(math.e, rel=1e-5)
    assert engine.widths == [1] and engine.n_open == 0
