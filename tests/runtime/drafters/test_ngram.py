"""Drafts from what was said before: what is learned and when, what is guessed, and that no text depends on it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from specedge.maps.ngram_cache import NgramCache, UserCache
from specedge.runtime.decoding.decode import DecodeOptions, WindowResult, decode_window
from specedge.runtime.decoding.drafter import DraftContext, DraftTree, Guard, Verdict, WindowContext
from specedge.runtime.decoding.rules import RuleSet
from specedge.runtime.device import CostTable
from specedge.runtime.drafters.ngram import NgramDrafter
from support.drafting import plain_fields
from support.fake_engine import HashEngine, ScriptedEngine, special_tokens, words

SPECIAL = special_tokens()
PROMPT = (SPECIAL.sot, SPECIAL.languages["en"], SPECIAL.transcribe or 0)
FREE = CostTable((1, 64), (1.0, 1.0))
TEXT = [*words(" the", " pump", " is", " on"), ord(".")]
TIME = SPECIAL.timestamp_begin


def window(history: Sequence[int] = ()) -> WindowContext:
    return WindowContext(
        features=None,
        prompt=PROMPT,
        n_vocab=SPECIAL.n_vocab,
        n_sample=100,
        eot=SPECIAL.eot,
        timestamp_begin=TIME,
        history=tuple(history),
    )


def proposal(made: NgramDrafter, sampled: Sequence[int], budget: int = 64) -> DraftTree:
    position = len(PROMPT) + len(sampled) - 1 if sampled else 0
    return made.propose(DraftContext(prompt=PROMPT, sampled=tuple(sampled), position=position), budget)


def learned(made: NgramDrafter, *texts: Sequence[int]) -> NgramDrafter:
    for text in texts:
        made.begin(window())
        made.end(tuple(text))
    made.begin(window())
    return made


def verdict(drafted: Sequence[int], n_accepted: int, token: int = 1) -> Verdict:
    return Verdict(
        drafted=tuple(drafted),
        n_accepted=n_accepted,
        token=token,
        finished=False,
        nodes=tuple(range(n_accepted)),
        rejected=n_accepted if n_accepted < len(drafted) else None,
    )


def test_what_was_said_before_is_guessed_within_the_budget() -> None:
    made = learned(NgramDrafter(FREE), TEXT, TEXT)
    assert list(proposal(made, TEXT[:2]).tokens) == TEXT[2:]
    assert list(proposal(made, TEXT[:2], budget=2).tokens) == TEXT[2:4]


def test_it_learns_at_the_end_of_a_window_from_kept_text_alone() -> None:
    made = NgramDrafter(FREE)
    made.begin(window())
    for token in TEXT * 2:
        made.observe(verdict((), 0, token))
    assert len(proposal(made, TEXT[:3])) == 0, "a window that is not over is not learned from"
    made.end(())
    made.begin(window())
    assert len(proposal(made, TEXT[:3])) == 0, "nor is text that was thrown away"
    made.end((TIME, *TEXT, TIME + 9))
    made.begin(window())
    assert list(proposal(made, TEXT[:3]).tokens) == TEXT[3:], "timestamps are not text"


def test_the_text_before_the_window_is_context() -> None:
    made = learned(NgramDrafter(FREE), TEXT, TEXT)
    made.begin(window(history=TEXT[:3]))
    assert list(proposal(made, []).tokens) == TEXT[3:]
    made.begin(window(history=TEXT[:3]))
    made.end(tuple(words(" leak", " now")))
    made.begin(window(history=TEXT[:3]))
    drafted = list(proposal(made, []).tokens)
    assert drafted[0] in (TEXT[3], *words(" leak")), "and what follows it is learned as following it"
    made = NgramDrafter(FREE)
    made.begin(window(history=TEXT[:3]))
    made.end(tuple(words(" leak")))
    made.begin(window(history=TEXT[:3]))
    assert list(proposal(made, []).tokens) == words(" leak")


def test_behind_a_timestamp_only_the_audio_knows() -> None:
    made = learned(NgramDrafter(FREE), TEXT, TEXT)
    assert len(proposal(made, [*TEXT[:2], TIME + 5])) == 0
    assert list(proposal(made, [TIME, *TEXT[:2]]).tokens) == TEXT[2:]


def test_the_users_cache_is_asked_second_and_learns_too(tmp_path: Path) -> None:
    other = [*TEXT[:3], *words(" leak", " now")]
    with UserCache(tmp_path / "c.sqlite", bytes(32)) as cache:
        for _ in range(8):
            cache.learn(other)
        made = learned(NgramDrafter(FREE, user_cache=cache))
        assert list(proposal(made, TEXT[:3]).tokens) == words(" leak", " now"), "where this run knows nothing"
        made = learned(made, TEXT, TEXT)
        assert list(proposal(made, TEXT[:3]).tokens) == TEXT[3:], "this run knows better"
        assert dict(cache.pairs(TEXT[:3])) == {other[3]: 8, TEXT[3]: 2}


def _decoded(
    engine: HashEngine | ScriptedEngine, made: NgramDrafter | Guard | None, temperature: float = 0.0
) -> WindowResult:
    options = DecodeOptions(rules=_rules(), n_text_ctx=engine.n_text_ctx, temperature=temperature)
    features = engine.scripts[0] if isinstance(engine, ScriptedEngine) else b"window"
    return decode_window(engine, features, PROMPT, options, made)


def _rules() -> RuleSet:
    return RuleSet(SPECIAL, space_ids=[32], suppressed=[], timestamps=True, max_initial_timestamp_index=50)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**16),
    temperature=st.sampled_from([0.0, 0.6]),
    n_known=st.integers(0, 3),
    budget_bytes=st.sampled_from([0, 2000, 1 << 20]),
)
def test_the_text_is_that_of_plain_decoding(seed: int, temperature: float, n_known: int, budget_bytes: int) -> None:
    engine = HashEngine(SPECIAL, seed=seed, eot_bias=4.0, timestamp_bias=1.0)
    plain = _decoded(engine, None, temperature)
    made = NgramDrafter(FREE, cache=NgramCache(budget_bytes))
    for _ in range(n_known):
        made.begin(window())
        made.end(plain.tokens)
    guard = Guard(made)
    found = _decoded(engine, guard, temperature)
    assert guard.error is None
    assert plain_fields(found) == plain_fields(plain)
    assert found.speculation.tokens == plain.speculation.tokens
