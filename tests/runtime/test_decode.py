"""The decode loop: equal to a plain greedy loop, whatever a drafter does."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specedge.runtime.decode import DecodeOptions, Speculation, WindowResult, decode_window, detect_language
from specedge.runtime.drafters import DraftContext, Drafter, DraftTree, EmptyDrafter, Verdict, WindowContext
from specedge.runtime.drafters.guard import Guard
from specedge.runtime.errors import Interrupted, ModelError, UsageError
from specedge.runtime.rules import build_rules
from support.fake_engine import FakeEngine, HashEngine, special_tokens

SPECIAL = special_tokens(n_timestamps=31)
PROMPT = [SPECIAL.sot, SPECIAL.languages["en"], SPECIAL.transcribe]
FEATURES = b"window"


def options(*, timestamps: bool = True, n_text_ctx: int = 48, **more: Any) -> DecodeOptions:
    rules = build_rules(
        SPECIAL, space_ids=[32], suppressed=[33, 40], timestamps=timestamps, max_initial_timestamp_index=20
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


class Scripted(Drafter):
    """A drafter whose proposals are computed by a function of the context; it keeps what it is told."""

    def __init__(self, propose: Callable[[DraftContext, int], Any], name: str = "scripted") -> None:
        self._propose, self._name = propose, name
        self.windows: list[WindowContext] = []
        self.verdicts: list[Verdict] = []
        self.budgets: list[int] = []
        self.ended: list[tuple[int, ...]] = []

    @property
    def name(self) -> str:
        return self._name

    def begin(self, window: WindowContext) -> None:
        self.windows.append(window)

    def propose(self, context: DraftContext, budget: int) -> DraftTree:
        self.budgets.append(budget)
        return self._propose(context, budget)

    def observe(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)

    def end(self, tokens: tuple[int, ...]) -> None:
        self.ended.append(tokens)


def plain_fields(result: WindowResult) -> dict[str, Any]:
    return {f.name: getattr(result, f.name) for f in dataclasses.fields(result) if f.name != "speculation"}


def check_counts(result: WindowResult, engine: HashEngine) -> None:
    s = result.speculation
    assert s.tokens == len(result.tokens) + result.finished == len(result.token_logprobs)
    assert s.tokens == s.accepted + s.passes
    assert s.accepted <= s.evaluated and s.bonus <= s.passes == engine.n_passes
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


def test_a_long_prompt_shortens_the_window_as_in_openai_whisper() -> None:
    prompt = [SPECIAL.sot_prev, *range(60, 80), *PROMPT]
    chosen = options(n_text_ctx=40)
    engine = HashEngine(SPECIAL, n_text_ctx=40, eot_bias=-50)
    result = decode_window(engine, FEATURES, prompt, chosen)
    assert len(result.tokens) == 40 + 1 - len(prompt)
    assert list(result.tokens) == greedy(engine, prompt, chosen)[0]


@pytest.mark.parametrize("prompt", [[SPECIAL.languages["en"]], [SPECIAL.sot] * 60])
def test_a_prompt_that_cannot_be_decoded_is_refused(prompt: list[int]) -> None:
    with pytest.raises(UsageError, match="prompt"):
        decode_window(HashEngine(SPECIAL), FEATURES, prompt, options())


def chains(n_max: int = 12) -> st.SearchStrategy[list[int]]:
    odd = [SPECIAL.eot, SPECIAL.eot, 33, SPECIAL.sot, SPECIAL.n_vocab, SPECIAL.n_vocab + 7, -1, 2**31 - 1]
    return st.lists(st.one_of(st.integers(0, SPECIAL.n_vocab - 1), st.sampled_from(odd)), max_size=n_max)


@st.composite
def draft_plans(draw: st.DrawFn) -> Callable[[list[int], DraftContext, int], Any]:
    """A way to propose, given the true continuation: right, wrong somewhere, too long, malformed, or raising."""
    kind = draw(
        st.sampled_from(
            ["oracle", "one wrong", "random", "eot", "too long", "tree", "bad parents", "raises", "no tree", "floats"]
        )
    )
    at, wrong, noise = draw(st.integers(0, 6)), draw(chains(1)), draw(chains())
    width = draw(st.integers(1, 9))

    def plan(truth: list[int], context: DraftContext, budget: int) -> Any:
        right = truth[len(context.sampled) :][:width]
        if kind == "oracle":
            return DraftTree.chain(right)
        if kind == "one wrong":
            return DraftTree.chain([*right[:at], *(wrong or [1]), *right[at + 1 :]])
        if kind == "random":
            return DraftTree.chain(noise)
        if kind == "eot":
            return DraftTree.chain([*right[:at], SPECIAL.eot, SPECIAL.eot, *noise])
        if kind == "too long":
            return DraftTree.chain([*truth[len(context.sampled) :], *noise * 100])
        if kind == "tree":  # duplicate siblings, branches, and a chain through them
            ids = [x for token in (right or [1]) for x in (token, token, 2)]
            parents = [3 * (i // 3) - 3 if i >= 3 else -1 for i in range(len(ids))]
            return DraftTree(tokens=np.array(ids, np.int32), parents=np.array(parents, np.int32))
        if kind == "bad parents":
            ids = np.array([*right, 5, 6], np.int64)
            return DraftTree(tokens=ids, parents=np.full(len(ids), at - 2, np.int64))
        if kind == "floats":
            return DraftTree(tokens=np.array([1.5, np.nan], np.float32), parents=np.array([-1, 0]))  # type: ignore[arg-type]
        if kind == "no tree":
            return [None, "text", right, np.zeros((3, 3)), object()][at % 5]
        raise [ValueError("broken"), KeyError(3), RecursionError(), MemoryError(), ZeroDivisionError()][at % 5]

    return plan


@settings(max_examples=300)
@given(
    seed=st.integers(0, 10**6),
    timestamps=st.booleans(),
    n_text_ctx=st.sampled_from([16, 31, 48]),
    bias=st.sampled_from([-50.0, 2.0]),
    plans=st.lists(draft_plans(), min_size=1, max_size=4),
    max_draft=st.sampled_from([1, 3, 64]),
)
def test_no_drafter_changes_anything_but_speed(
    seed: int, timestamps: bool, n_text_ctx: int, bias: float, plans: list[Any], max_draft: int
) -> None:
    chosen = options(timestamps=timestamps, n_text_ctx=n_text_ctx, max_draft=max_draft)
    plain_engine = HashEngine(SPECIAL, seed=seed, n_text_ctx=n_text_ctx, eot_bias=bias)
    plain = decode_window(plain_engine, FEATURES, PROMPT, chosen)
    truth = [*plain.tokens, SPECIAL.eot]
    n_calls = 0

    def propose(context: DraftContext, budget: int) -> Any:
        nonlocal n_calls
        n_calls += 1
        return plans[n_calls % len(plans)](truth, context, budget)

    engine = HashEngine(SPECIAL, seed=seed, n_text_ctx=n_text_ctx, eot_bias=bias)
    result = decode_window(engine, FEATURES, PROMPT, chosen, Scripted(propose))
    assert plain_fields(result) == plain_fields(plain)
    check_counts(result, engine)
    assert engine.n_passes <= plain_engine.n_passes
    assert max(engine.widths[1:], default=1) <= 1 + max_draft


@pytest.mark.parametrize("width", [1, 2, 5])
def test_an_oracle_needs_one_pass_for_each_run_of_its_tokens(width: int) -> None:
    chosen = options(n_text_ctx=64)
    plain = decode_window(HashEngine(SPECIAL, n_text_ctx=64, eot_bias=-50), FEATURES, PROMPT, chosen)
    drafter = Scripted(lambda context, budget: DraftTree.chain(plain.tokens[len(context.sampled) :][:width]))
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
        return DraftTree.chain(right)

    drafter = Scripted(propose)
    result = decode_window(HashEngine(SPECIAL, n_text_ctx=64, eot_bias=-50), FEATURES, PROMPT, chosen, drafter)
    assert result.tokens == plain.tokens
    assert [v.n_accepted for v in drafter.verdicts[:2]] == [wrong_at, wrong_at]
    assert drafter.verdicts[0].token == plain.tokens[wrong_at]


def test_what_a_drafter_is_told() -> None:
    drafter = Scripted(lambda context, budget: DraftTree.chain([1, 2, 3]))
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
    found = guard.propose(context, budget, n_vocab=100, usable=lambda token: token != 50)
    assert guard.error is None
    best = found.paths(1, 0)
    return list(found.tokens(best[0])) if best else [], sum(found.n_proposed.values())


def test_a_proposal_is_cut_to_what_can_be_verified() -> None:
    assert chain(DraftTree.chain([1, 2, 3])) == ([1, 2, 3], 3)
    assert chain(DraftTree.chain([1, 2, 3]), budget=2) == ([1, 2], 3)
    assert chain(DraftTree.chain([1, 50, 3])) == ([1], 3), "an id no rule allows, and what follows it"
    assert chain(DraftTree.chain([1, 100, 3])) == ([1], 3)
    assert chain(DraftTree.chain([-1, 2])) == ([], 2)
    branches = DraftTree(tokens=np.array([1, 7, 2, 8, 3]), parents=np.array([-1, -1, 0, 1, 2]))
    assert chain(branches) == ([1, 2, 3], 5), "the first child at every node"


def test_the_end_of_text_takes_no_row() -> None:
    drafter = Scripted(lambda context, budget: DraftTree.chain([SPECIAL.eot, 5]))
    result = decode_window(HashEngine(SPECIAL), FEATURES, PROMPT, options(), drafter)
    assert result.speculation.proposed > 0 and result.speculation.evaluated == 0


class Constant(FakeEngine):
    """The same row for every prefix."""

    def __init__(self, row: np.ndarray) -> None:
        super().__init__(len(row), 48)
        self.row = row

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
    found = detect_language(engine, FEATURES, SPECIAL.sot, dict(SPECIAL.languages))
    assert list(found) == ["de", "fr", "en"] and sum(found.values()) == pytest.approx(1)
    assert found["de"] / found["fr"] == pytest.approx(math.e, rel=1e-5)
    assert engine.widths == [1] and engine.n_open == 0


def test_counters_add_up_over_windows() -> None:
    a = Speculation(drafter="x", proposed=5, evaluated=4, accepted=2, bonus=1, passes=3, tokens=5, decoder_s=1.0)
    total = a.plus(a)
    assert (total.proposed, total.tokens, total.tokens_per_pass, total.acceptance_rate) == (10, 10, 10 / 6, 0.5)
    assert Speculation().acceptance_rate is None and Speculation().tokens_per_pass is None
    assert dataclasses.replace(a, decoder_s=9.0) == a, "times do not take part in comparisons"
