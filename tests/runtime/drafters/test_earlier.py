"""Earlier texts of the same audio as drafts: attempts at a window, windows heard again, windows that overlap."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specedge.runtime.decoding.decode import DecodeOptions, WindowResult, decode_window
from specedge.runtime.decoding.drafter import DraftContext, DraftTree, Guard, WindowContext
from specedge.runtime.decoding.rules import RuleSet
from specedge.runtime.device import CostTable
from specedge.runtime.drafters.earlier import EarlierDrafter
from specedge.runtime.longform.live import LiveTranscriber
from specedge.runtime.options import TranscribeOptions
from support.drafting import Scripted, plain_fields
from support.fake_engine import HashEngine, Script, ScriptedEngine, bundle, special_tokens, words

SPECIAL = special_tokens(n_timestamps=31)
PROMPT = [SPECIAL.sot, SPECIAL.languages["en"], SPECIAL.transcribe]
FREE = CostTable((1, 64), (1.0, 1.0))
BEGIN = 401


class Heard:
    """Features of a window; the fake engine's logits follow from how they are written."""

    def __init__(self, seed: int) -> None:
        self.hidden = np.random.default_rng(seed).standard_normal((40, 24)).astype(np.float32)
        self._seed = seed

    def __repr__(self) -> str:
        return f"window {self._seed}"


def window(features: Any = None, **more: Any) -> WindowContext:
    return WindowContext(
        features=features, prompt=(1, 2), n_vocab=500, n_sample=200, eot=400, timestamp_begin=BEGIN, **more
    )


def offered(drafter: EarlierDrafter, *sampled: int) -> list[int]:
    context = DraftContext(prompt=(1, 2), sampled=sampled, position=1 + len(sampled))
    tokens: list[int] = list(drafter.propose(context, 30).tokens)
    return tokens


def decoded(features: Any, guard: Guard, temperature: float = 0.0) -> WindowResult:
    rules = RuleSet(SPECIAL, space_ids=[32], suppressed=[], timestamps=True, max_initial_timestamp_index=20)
    engine = HashEngine(SPECIAL, eot_bias=-50)
    chosen = DecodeOptions(rules=rules, n_text_ctx=48, temperature=temperature)
    return decode_window(engine, features, PROMPT, chosen, guard)


def test_another_attempt_at_a_window_is_drafted_from_the_one_that_was_thrown_away() -> None:
    guard = Guard(EarlierDrafter(FREE))
    first = decoded(Heard(1), guard)
    guard.end(())
    again = decoded(Heard(1), guard)
    assert plain_fields(again) == plain_fields(first)
    assert first.speculation.accepted == 0 and again.speculation.passes < first.speculation.passes / 4
    guard.end(())
    warm = decoded(Heard(1), guard, temperature=0.4)
    assert warm.speculation.proposed and plain_fields(warm) == plain_fields(decoded(Heard(1), Guard(), temperature=0.4))
    guard.end(())
    other = decoded(Heard(2), guard)
    assert other.speculation.proposed == 0, "of other audio nothing is known"
    assert plain_fields(other) == plain_fields(decoded(Heard(2), Guard()))


def test_a_text_is_taken_up_at_the_longest_run_of_tokens() -> None:
    drafter = EarlierDrafter(FREE)
    former = (BEGIN, 5, 6, 7, 8, 5, 6, 9, 10, BEGIN + 20)
    drafter.begin(window(earlier=former))
    assert offered(drafter)[:3] == [BEGIN, 5, 6]
    assert offered(drafter, BEGIN, 5, 6)[:2] == [7, 8]
    # 77 is said in place of the 7, then the text goes on.
    assert offered(drafter, BEGIN, 5, 6, 77)[:2] == [8, 5]
    assert offered(drafter, BEGIN, 5, 6, 77, 8, 5, 6)[:2] == [9, 10]


def test_timestamps_move_with_the_window() -> None:
    drafter = EarlierDrafter(FREE)
    drafter.begin(window(earlier=(BEGIN + 10, 5, 6, BEGIN + 30, BEGIN + 30, 7, 8, BEGIN + 50)))
    assert offered(drafter, BEGIN + 4, 5, 6)[:3] == [BEGIN + 24, BEGIN + 24, 7]
    drafter.begin(window(earlier=(BEGIN + 10, 5, BEGIN + 98)))
    assert all(token < 500 for token in offered(drafter, BEGIN + 60, 5)), "never beyond the vocabulary"


def test_memory_is_bounded() -> None:
    drafter = EarlierDrafter(FREE)
    for seed in range(100):
        for attempt in range(5):
            drafter.begin(window(Heard(seed)))
            drafter.end(tuple(range(attempt, attempt + 200)))
    assert len(drafter._known) == 32 and {len(texts) for texts in drafter._known.values()} == {3}
    drafter.begin(window(Heard(99)))
    assert offered(drafter)[:2] == [4, 5], "the last text first"
    drafter.begin(window(Heard(0)))
    assert offered(drafter) == []


@pytest.mark.parametrize("cuts", [False, True])
def test_live_passes_hand_over_what_the_last_one_said(cuts: bool) -> None:
    special = special_tokens()

    def at(seconds: float) -> int:
        return special.timestamp_begin + round(seconds / 0.02)

    first = [at(0), *words(" the", " pump"), at(0.9)]
    second = [at(0.9), *words(" is", " on")]
    said = [*first, *second, at(1.9)] if cuts else first
    engine = ScriptedEngine(special, [Script(tokens=said)] * 9)
    drafter = Scripted(lambda context, budget: DraftTree([]), name="watch")
    n_frames = 400 if cuts else 1000  # a buffer that is two thirds full lets go of what two looks agree on
    live = LiveTranscriber(
        engine, bundle(special, n_frames=n_frames), TranscribeOptions(language="en"), drafter, step_s=1.0
    )
    rng = np.random.default_rng(1)
    levels = np.repeat(rng.choice([0.001, 0.01, 0.1, 0.3], 40), 1600)  # speech, to a detector of energy
    live.feed((levels * rng.standard_normal(len(levels))).astype(np.float32))
    begun = [one.earlier for one in drafter.windows]
    assert begun[0] == () and begun[1] == tuple(said)
    assert begun[2] == tuple(said), "no audio is let go of yet"
    if cuts:  # the first segment is confirmed, and its audio let go of
        assert begun[3] == (*second, at(1.9))
