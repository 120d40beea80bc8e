"""Several texts in the same passes: each says what it says alone, whoever drafts, fails, ends early or is stopped."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specedge.errors import Interrupted, ModelError
from specedge.runtime.decoding.decode import WindowResult, decode_window, decoding
from specedge.runtime.decoding.drafter import DraftContext, Drafter, DraftTree, Guard
from specedge.runtime.decoding.passes import Decoding, Together, alone, run, together
from specedge.runtime.device import DEFAULT_COSTS, CostTable
from specedge.runtime.drafters.auto import AutoDrafter
from specedge.runtime.drafters.earlier import EarlierDrafter
from specedge.runtime.drafters.ngram import NgramDrafter
from support.drafting import Plan, Scripted, draft_plans, plain_fields
from support.fake_engine import HashEngine, special_tokens
from tests.runtime.decoding.test_decode import PROMPT, options

SPECIAL = special_tokens(n_timestamps=31)
FREE = CostTable((1, 64), (1.0, 1.0))
WAYS: tuple[dict[str, Any], ...] = (
    {},
    {"timestamps": False},
    {"temperature": 0.7},
    {"temperature": 0.4, "best_of": 3},
    {"beam_size": 3},
    {"n_sample": 5},
)


def engine_of(seed: int = 0, **more: Any) -> HashEngine:
    return HashEngine(SPECIAL, seed=seed, eot_bias=more.pop("eot_bias", 2.0), **more)


def run_together(engine: HashEngine, texts: Sequence[Decoding[WindowResult]]) -> list[WindowResult]:
    return alone(engine, together(texts))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    ways=st.lists(st.sampled_from(WAYS), min_size=1, max_size=5),
    plans=st.lists(draft_plans(SPECIAL, suppressed=40), min_size=5, max_size=5),
    bias=st.sampled_from([-50.0, 2.0, 5.0]),
    learns=st.booleans(),
)
def test_each_text_is_the_one_it_is_alone(
    seed: int, ways: list[dict[str, Any]], plans: list[Plan], bias: float, learns: bool
) -> None:
    engine = engine_of(seed, eot_bias=bias)
    chosen = [options(window_key=i, **way) for i, way in enumerate(ways)]
    expected = [decode_window(engine, f"window {i}", PROMPT, one) for i, one in enumerate(chosen)]

    def drafter(number: int) -> Drafter:
        truth = [*expected[number].tokens, SPECIAL.eot]
        made = Scripted(lambda context, budget: plans[number](truth, context, budget))
        return AutoDrafter([NgramDrafter(FREE), made], DEFAULT_COSTS, earlier=EarlierDrafter(FREE)) if learns else made

    engine.n_passes = 0
    guards = [Guard(drafter(i)) for i in range(len(ways))]
    texts = [
        decoding(engine, f"window {i}", PROMPT, one, guard)
        for i, (one, guard) in enumerate(zip(chosen, guards, strict=True))
    ]
    found = run_together(engine, texts)
    assert [plain_fields(one) for one in found] == [plain_fields(one) for one in expected]
    assert engine.n_open == 0
    counted = [one.speculation for one in found]
    assert sum(one.runs for one in counted) == engine.n_passes
    assert all(
        one.tokens == one.accepted + one.passes
        for one, way in zip(counted, ways, strict=True)
        if "beam_size" not in way
    )


@pytest.mark.parametrize("kind", ["ngram", "earlier", "auto"])
@pytest.mark.parametrize("n_texts", [2, 5])
def test_drafters_made_of_one_draft_for_several_texts_and_learn_from_all(kind: str, n_texts: int) -> None:
    engine, chosen = engine_of(eot_bias=-50.0), options(timestamps=False)
    first: Drafter = {
        "ngram": lambda: NgramDrafter(FREE),
        "earlier": lambda: EarlierDrafter(FREE),
        "auto": lambda: AutoDrafter([NgramDrafter(FREE)], FREE, earlier=EarlierDrafter(FREE), weighs=False),
    }[kind]()
    others = [first.another() for _ in range(n_texts - 1)]
    assert None not in others
    plain = decode_window(engine, "window", PROMPT, chosen)
    for round_ in range(2):
        guards = [Guard(one) for one in (first, *others)]
        found = run_together(engine, [decoding(engine, "window", PROMPT, chosen, guard) for guard in guards])
        assert [plain_fields(one) for one in found] == [plain_fields(plain)] * n_texts
        for guard, one in zip(guards, found, strict=True):
            guard.end(one.tokens)
            assert guard.error is None
        if round_ and kind == "ngram":
            assert all(one.speculation.accepted for one in found)
    for one in (*others, first):
        assert one is not None
        one.close()


class OnlyOne(Drafter):
    """A drafter of somebody who knows nothing of several texts."""

    def __init__(self) -> None:
        self.prompts: list[tuple[int, ...]] = []

    def propose(self, context: DraftContext, budget: int) -> DraftTree:
        self.prompts.append(context.sampled)
        return DraftTree([7])


@pytest.mark.parametrize("way", [{"temperature": 0.5, "best_of": 3}, {"beam_size": 3}])
def test_a_drafter_for_one_text_drafts_for_one_of_several(way: dict[str, Any]) -> None:
    engine, chosen = engine_of(eot_bias=-50.0), options(timestamps=False, **way)
    drafter = OnlyOne()
    found = decode_window(engine, "window", PROMPT, chosen, drafter)
    assert plain_fields(found) == plain_fields(decode_window(engine, "window", PROMPT, chosen))
    lengths = [len(prompt) for prompt in drafter.prompts]
    assert lengths == sorted(lengths) and len(lengths) > 10, "one text, from its beginning to its end"


class Breaks(HashEngine):
    """A model that says nothing usable in one of its windows, from some token on."""

    def logits(self, features: Any, prefix: tuple[int, ...]) -> Any:
        row = super().logits(features, prefix)
        return row * float("nan") if features == "broken" and len(prefix) > 8 else row


def test_an_error_of_one_text_leaves_the_others_untouched() -> None:
    engine = Breaks(SPECIAL, eot_bias=-50.0)
    names, chosen = ("a", "broken", "b"), options(timestamps=False)
    expected = {name: decode_window(engine, name, PROMPT, chosen) for name in names if name != "broken"}
    found: dict[str, WindowResult] = {}
    with contextlib.closing(Together[str, WindowResult]()) as sharing:
        for name in names:
            assert not sharing.add(name, decoding(engine, name, PROMPT, chosen))
        while len(sharing):
            for key, ended in sharing.took(run(engine, sharing.wanted)).items():
                if key == "broken":
                    with pytest.raises(ModelError, match="no usable logits"):
                        ended.result()
                else:
                    found[key] = ended.result()
    assert {name: plain_fields(one) for name, one in found.items()} == {
        name: plain_fields(one) for name, one in expected.items()
    }
    assert engine.n_open == 0
    with pytest.raises(ModelError):
        run_together(engine, [decoding(engine, name, PROMPT, chosen) for name in names])
    assert engine.n_open == 0


@pytest.mark.parametrize("error", [Interrupted("stop"), KeyboardInterrupt()])
@pytest.mark.parametrize("way", WAYS)
def test_stopped_in_the_middle_everything_is_given_back(error: BaseException, way: dict[str, Any]) -> None:
    engine = engine_of(eot_bias=-50.0)
    n_left = 12
    forward = engine.forward

    def stop(*arguments: Any) -> Any:
        nonlocal n_left
        n_left -= 1
        if not n_left:
            raise error
        return forward(*arguments)

    engine.forward = stop  # type: ignore[method-assign]
    texts = [decoding(engine, f"window {i}", PROMPT, replace(options(**way), window_key=i)) for i in range(3)]
    with pytest.raises(type(error)):
        run_together(engine, texts)
    assert engine.n_open == 0


def test_texts_come_and_go() -> None:
    """A text that joins while others are in the middle says the same."""
    engine, chosen = engine_of(eot_bias=3.0), options()
    expected = [decode_window(engine, f"window {i}", PROMPT, chosen) for i in range(9)]
    found: dict[int, WindowResult] = {}
    coming = iter(range(9))
    with contextlib.closing(Together[int, WindowResult]()) as sharing:
        while True:
            while len(sharing) < 3 and (number := next(coming, None)) is not None:
                assert not sharing.add(number, decoding(engine, f"window {number}", PROMPT, chosen))
            if not len(sharing):
                break
            found |= {key: one.result() for key, one in sharing.took(run(engine, sharing.wanted)).items()}
    assert [plain_fields(found[i]) for i in range(9)] == [plain_fields(one) for one in expected]
