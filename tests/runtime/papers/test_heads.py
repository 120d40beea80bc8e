"""Drafts from heads: lossless whatever they guess, made from the right rows, and silent where they do not pay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from specedge.errors import UsageError
from specedge.runtime.decoding.accept import AcceptanceRule, Exact
from specedge.runtime.decoding.decode import DecodeOptions, WindowResult, decode_window
from specedge.runtime.decoding.drafter import DraftContext, TargetModel, WindowContext
from specedge.runtime.decoding.rules import RuleSet
from specedge.runtime.device import CostTable
from specedge.runtime.drafters.registry import make_drafter
from specedge.runtime.engine.heads import HeadsPass
from specedge.runtime.engine.session import Canceller
from specedge.runtime.options import HEAD_KINDS
from specedge.runtime.papers.accept import Threshold, TopM, Typical
from specedge.runtime.papers.heads import HeadsDrafter
from support import exported, heads
from support.drafting import plain_fields
from support.drafts import CASES, FREE, sound_for
from support.fake_engine import HashEngine, hidden_row, special_tokens
from support.lossless import difference, run

SPECIAL = special_tokens(n_timestamps=101)
DEAR = CostTable((1, 2, 64), (1.0, 1.0, 400.0))
F32 = NDArray[np.float32]


class Guessing:
    """Heads without a graph."""

    n_calls = 0

    def begin(self, features: Any, n_heard: int) -> None:
        pass

    def another(self) -> Any:
        return self


class Oracle(Guessing):
    """Heads that know `truth`: each guesses right unless its number is in `wrong`. Checks the rows it is shown."""

    def __init__(self, n_heads: int, prompt: Sequence[int], truth: Sequence[int], wrong: Sequence[int] = ()) -> None:
        self.n_heads, self.truth, self.wrong = n_heads, [*truth], set(wrong)
        self.prompt = list(prompt)

    def guess(self, hidden: F32, n_choices: int) -> tuple[NDArray[np.int64], F32]:
        self.n_calls += 1
        text = [*self.prompt, *self.truth]
        expected = [hidden_row(text[: n + 1]) for n in range(len(hidden))]
        assert (hidden == np.array(expected, np.float32)).all(), "rows of another text"
        at = len(hidden) + 1 - len(self.prompt)
        ids = np.tile(np.arange(n_choices), (self.n_heads, 1)).astype(np.int64) + 300
        for head in range(self.n_heads):
            token = self.truth[at + head] if at + head < len(self.truth) else 0
            if head not in self.wrong:
                ids[head, 0] = token
            elif n_choices > 1:
                ids[head] = [9, token, *range(n_choices - 2)]
        probs = np.full((self.n_heads, n_choices), 0.05, np.float32)
        probs[:, 0] = 0.9
        return ids, probs


class Noise(Guessing):
    """Heads that guess at random, and whose probabilities say nothing."""

    def __init__(self, n_heads: int, seed: int) -> None:
        self.n_heads, self.rng = n_heads, np.random.default_rng(seed)

    def guess(self, hidden: F32, n_choices: int) -> tuple[NDArray[np.int64], F32]:
        self.n_calls += 1
        shape = (self.n_heads, n_choices)
        return self.rng.integers(0, SPECIAL.n_vocab, shape), self.rng.random(shape).astype(np.float32)


def options(engine: HashEngine, **more: Any) -> DecodeOptions:
    rules = RuleSet(SPECIAL, space_ids=[32], suppressed=[5], timestamps=False, max_initial_timestamp_index=50)
    return DecodeOptions(rules=rules, n_text_ctx=engine.n_text_ctx, window_key=3, **more)


def decoded(engine: HashEngine, chosen: DecodeOptions, drafter: HeadsDrafter | None) -> WindowResult:
    features = SimpleNamespace(hidden=np.zeros((5, 4), np.float32), __repr__=lambda: "x")
    engine.logits = lambda f, prefix, logits=HashEngine.logits: logits(engine, b"one window", prefix)  # type: ignore[method-assign]
    return decode_window(engine, features, prompt(), chosen, drafter)


def prompt() -> list[int]:
    return [SPECIAL.sot_prev, 7, 8, *SPECIAL.prompt("en", "transcribe", timestamps=False)]


@settings(max_examples=40)
@given(
    n_heads=st.integers(1, 20),
    seed=st.integers(0, 99),
    temperature=st.sampled_from((0.0, 0.0, 0.4, 1.0)),
    best_of=st.sampled_from((1, 2)),
    n_choices=st.integers(1, 3),
    gated=st.booleans(),
)
def test_heads_of_noise_change_nothing(
    n_heads: int, seed: int, temperature: float, best_of: int, n_choices: int, gated: bool
) -> None:
    engine = HashEngine(SPECIAL, seed=seed, n_text_ctx=48)
    chosen = options(engine, temperature=temperature, best_of=best_of)
    expected = decoded(engine, chosen, None)
    drafter = HeadsDrafter("mtp-latent", Noise(n_heads, seed), FREE, n_choices=n_choices, gated=gated)
    found = decoded(engine, chosen, drafter)
    assert plain_fields(found) == plain_fields(expected)
    assert found.speculation.drafter == "mtp-latent" and found.speculation.lossless


@pytest.mark.parametrize("n_heads", [1, 2, 5, 20])
def test_right_heads_save_a_pass_for_every_token_they_guess(n_heads: int) -> None:
    """Verification of one draft and the row for the next are one pass."""
    engine = HashEngine(SPECIAL, n_text_ctx=64, eot_bias=-50.0)
    chosen = options(engine, n_sample=40)
    expected = decoded(engine, chosen, None)
    truth = expected.tokens
    oracle = Oracle(n_heads, prompt(), truth)
    found = decoded(engine, chosen, HeadsDrafter("medusa-block", oracle, FREE, n_choices=1, gated=False))
    assert plain_fields(found) == plain_fields(expected)
    assert found.speculation.passes == 1 + -(-(len(truth) - 1) // (n_heads + 1))
    # The prompt's pass has no row to guess from, and the last token no room for a draft.
    assert oracle.n_calls <= found.speculation.passes - 1


def test_a_second_choice_is_worth_a_path_where_rows_are_cheap() -> None:
    engine = HashEngine(SPECIAL, n_text_ctx=64, eot_bias=-50.0)
    chosen = options(engine, n_sample=40)
    truth = decoded(engine, chosen, None).tokens
    passes = {}
    for n_choices in (1, 2):
        oracle = Oracle(4, prompt(), truth, wrong=[0])
        drafter = HeadsDrafter("medusa-linear", oracle, FREE, n_choices=n_choices, gated=False)
        found = decoded(engine, chosen, drafter)
        assert found.tokens == truth
        passes[n_choices] = found.speculation.passes
    assert passes[2] < passes[1]


@pytest.mark.parametrize("rule", [Exact(), Typical(), TopM(m=4), Threshold(tau=0.8)])
def test_lossy_rules_take_the_drafts_of_heads(rule: AcceptanceRule) -> None:
    engine = HashEngine(SPECIAL, n_text_ctx=64, eot_bias=-50.0)
    chosen = options(engine, n_sample=30)
    truth = decoded(engine, chosen, None).tokens
    drafter = HeadsDrafter("mtp-latent", Oracle(3, prompt(), truth), FREE, n_choices=1, gated=False)
    found = decoded(engine, replace(chosen, acceptance=rule), drafter)
    assert found.speculation.lossless is (rule == Exact())
    if rule in (Exact(), TopM(m=4), Typical()):  # a right draft is among the likeliest
        assert found.tokens == truth
    assert found.speculation.accepted


def test_a_sure_head_is_taken_at_its_word_by_threshold_alone() -> None:
    engine = HashEngine(SPECIAL, n_text_ctx=64, eot_bias=-50.0)
    chosen = options(engine, n_sample=12)

    class Sure(Noise):
        def guess(self, hidden: F32, n_choices: int) -> tuple[NDArray[np.int64], F32]:
            ids = np.full((self.n_heads, n_choices), 40, np.int64) + np.arange(n_choices)
            return ids, np.full(ids.shape, 0.81, np.float32)

    taken = []
    for tau in (0.8, 0.82):
        drafter = HeadsDrafter("mtp-latent", Sure(2, 0), FREE, n_choices=1, gated=False)
        taken.append(decoded(engine, replace(chosen, acceptance=Threshold(tau=tau)), drafter).speculation.accepted)
    assert taken[0] == 7 and taken[1] == 0  # of 12 tokens: one by the prompt's pass, then three a pass until the limit


def test_where_rows_are_dear_nothing_is_drafted() -> None:
    drafter = HeadsDrafter("mtp-latent", Noise(4, 0), DEAR)
    drafter.begin(window())
    context = DraftContext(prompt=(1,), sampled=(2, 3), position=2, hidden=np.zeros((2, 4), np.float32))
    assert all(len(drafter.propose(context, 8)) <= 1 for _ in range(5))


def window() -> WindowContext:
    return WindowContext(
        features=SimpleNamespace(hidden=np.zeros((5, 4), np.float32)), prompt=(1,), n_vocab=SPECIAL.n_vocab,
        n_sample=20, eot=SPECIAL.eot, timestamp_begin=SPECIAL.timestamp_begin, n_paths=4,
    )  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", HEAD_KINDS)
def test_a_transcription_with_heads_is_the_plain_one(kind: str, case: str) -> None:
    bundle, engine = heads.bundle(), heads.engine()
    sound = sound_for(bundle)
    expected = run(engine, bundle, sound, CASES[case], None)
    drafter = HeadsDrafter(kind, HeadsPass(bundle, kind, Canceller()), FREE, gated=False)
    got = run(engine, bundle, sound, CASES[case], drafter)
    assert got.drafter_error is None and difference(expected, got) is None
    assert got.speculation.evaluated > 0 and got.speculation.drafter == kind


def test_a_rule_that_is_not_exact_is_asked_for_and_said() -> None:
    bundle, engine = heads.bundle(), heads.engine()
    chosen = replace(CASES["timestamps"], accept="0.0")
    drafter = HeadsDrafter("mtp-latent", HeadsPass(bundle, "mtp-latent", Canceller()), FREE, gated=False)
    got = run(engine, bundle, sound_for(bundle), chosen, drafter)
    counted = got.speculation
    assert not counted.lossless and counted.accepted > 0.5 * counted.tokens


@pytest.mark.parametrize("kind", HEAD_KINDS)
def test_the_drafter_of_that_name_is_the_bundles(kind: str) -> None:
    made = make_drafter(kind, TargetModel(heads.bundle(), threads=1))
    assert made.name == kind and made.has_heads
    bundle, engine, case = heads.bundle(), heads.engine(), CASES["timestamps"]
    plain, got = (run(engine, bundle, sound_for(bundle), case, drafter) for drafter in (None, made))
    made.close()
    assert difference(plain, got) is None


@pytest.mark.parametrize("kind", HEAD_KINDS)
def test_a_bundle_without_such_heads_says_so(kind: str) -> None:
    with pytest.raises(UsageError, match=f"{kind} needs heads of that kind, and micro brings none"):
        make_drafter(kind, TargetModel(exported.bundle("int8"), threads=1))
