"""Several drafters as one: lossless whatever they do, the best draft verified, each told of its own."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specedge.runtime.decoding.decode import DecodeOptions, WindowResult, decode_window
from specedge.runtime.decoding.drafter import (
    DraftContext,
    Drafter,
    DraftTree,
    Guard,
    Verdict,
    WindowContext,
)
from specedge.runtime.decoding.payoff import Payoff
from specedge.runtime.decoding.rules import build_rules
from specedge.runtime.device import CostTable
from specedge.runtime.drafters.cascade import CascadeDrafter, Source
from specedge.runtime.drafters.earlier import EarlierDrafter
from support import exported
from support.drafting import Plan, Scripted, draft_plans, parents_of, plain_fields, tree, verdict_on
from support.exported import noise_mel
from support.fake_engine import HashEngine, special_tokens

SPECIAL = special_tokens(n_timestamps=31)
PROMPT = [SPECIAL.sot, SPECIAL.languages["en"], SPECIAL.transcribe]
FREE = CostTable((1, 64), (1.0, 1.0))
USUAL = CostTable((1, 2, 64), (1.0, 1.0, 4.0))
DEAR = CostTable((1, 2, 64), (1.0, 1.0, 400.0))
WINDOW = WindowContext(features=None, prompt=(1, 2), n_vocab=500, n_sample=200, eot=400, timestamp_begin=401, n_paths=3)


class Fixed(Drafter):
    """Always the same chains, as sure as it is told; `observed` has what it hears."""

    reads_hidden = listens = wants_rows = False

    def __init__(self, name: str, paths: Sequence[list[int]], sure: float = 0.9) -> None:
        self.name, self.paths, self.sure = name, paths, sure
        self.n_asked = 0
        self.observed: list[Verdict] = []

    def begin(self, window: WindowContext) -> None:
        pass

    def propose(self, context: DraftContext, budget: int) -> DraftTree:
        self.n_asked += 1
        if len(self.paths) == 1:
            return DraftTree(list(self.paths[0]), conf=[self.sure] * len(self.paths[0]))
        made = tree(*self.paths)
        return DraftTree(tokens=made.tokens, parents=made.parents, conf=np.full(len(made), self.sure, np.float32))

    def observe(self, verdict: Verdict) -> None:
        self.observed.append(verdict)

    def end(self, tokens: tuple[int, ...]) -> None:
        pass


def context(n_sampled: int = 3) -> DraftContext:
    return DraftContext(prompt=(1, 2), sampled=tuple(range(10, 10 + n_sampled)), position=1 + n_sampled)


def cascade(*drafters: Drafter, costs: CostTable = FREE) -> CascadeDrafter:
    made = CascadeDrafter(drafters, costs, recycles=False)
    made.begin(WINDOW)
    return made


def options(**more: Any) -> DecodeOptions:
    rules = build_rules(SPECIAL, space_ids=[32], suppressed=[33, 40], timestamps=True, max_initial_timestamp_index=20)
    return DecodeOptions(rules=rules, n_text_ctx=48, **more)


def decoded(seed: int, drafter: Any, **more: Any) -> WindowResult:
    engine = HashEngine(SPECIAL, seed=seed, eot_bias=-50.0 if seed % 2 else 2.0)
    engine.n_paths = more.pop("n_paths", 4)
    result = decode_window(engine, b"window", PROMPT, options(**more), drafter)
    assert engine.n_open == 0
    return result


# ---- the text ----------------------------------------------------------------------------------------------------


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    plans=st.lists(st.lists(draft_plans(SPECIAL, suppressed=33), min_size=1, max_size=3), min_size=1, max_size=4),
    n_paths=st.sampled_from([1, 3]),
    costs=st.sampled_from([FREE, USUAL, DEAR]),
    temperature=st.sampled_from([0.0, 0.7]),
)
def test_no_source_changes_anything_but_speed(
    seed: int, plans: list[list[Plan]], n_paths: int, costs: CostTable, temperature: float
) -> None:
    """Sources that raise, repeat themselves, have no end, leave the vocabulary, or say nothing; two windows of each."""
    expected = decoded(seed, None, temperature=temperature)
    truth = [*expected.tokens, SPECIAL.eot]

    def child(index: int, mine: list[Plan]) -> Scripted:
        n_calls = 0

        def propose(context: DraftContext, budget: int) -> Any:
            nonlocal n_calls
            n_calls += 1
            return mine[n_calls % len(mine)](truth, context, budget)

        return Scripted(propose, name=f"child {index}")

    children: list[Drafter] = [child(index, mine) for index, mine in enumerate(plans)]
    guard = Guard(CascadeDrafter([EarlierDrafter(costs), *children], costs))
    for _ in range(2):
        result = decoded(seed, guard, temperature=temperature, n_paths=n_paths)
        guard.end(result.tokens)
        assert plain_fields(result) == plain_fields(expected)
        counted = result.speculation
        assert counted.tokens == counted.accepted + counted.passes and counted.drafter == "cascade"
        assert set(counted.by_drafter) <= {"recycled", "earlier", *(child.name for child in children)}
    assert guard.error is None, "what a source does is no fault of the cascade's"


@settings(max_examples=8, deadline=None)
@given(data=st.data(), temperature=st.sampled_from([0.0, 0.4]))
def test_nor_does_any_with_a_real_graph(data: Any, temperature: float) -> None:
    bundle, engine = exported.bundle("int8"), exported.engine("int8")
    special = bundle.manifest.tokens
    suppressed = next(token for token in bundle.manifest.suppress_tokens if token < special.eot)
    plans = data.draw(st.lists(draft_plans(special, suppressed=suppressed), min_size=2, max_size=3))
    features = engine.encode(noise_mel(80, 200))
    rules = build_rules(
        special, space_ids=[32], suppressed=bundle.manifest.suppress_tokens, timestamps=True,
        max_initial_timestamp_index=50,
    )  # fmt: skip
    chosen = DecodeOptions(
        rules=rules, n_text_ctx=bundle.manifest.dims.n_text_ctx, n_sample=16, temperature=temperature
    )
    prompt = list(special.prompt("en", "transcribe", True))
    expected = decode_window(engine, features, prompt, chosen)
    truth = [*expected.tokens, special.eot]
    children = [
        Scripted(lambda context, budget, plan=plan: plan(truth, context, budget), name=str(index))  # type: ignore[misc]
        for index, plan in enumerate(plans)
    ]
    guard = Guard(CascadeDrafter([EarlierDrafter(FREE), *children], FREE))
    for _ in range(2):
        result = decode_window(engine, features, prompt, chosen, guard)
        guard.end(result.tokens)
        assert plain_fields(result) == plain_fields(expected) and guard.error is None


def test_a_source_that_fails_is_dropped_with_one_warning_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    truth = [*decoded(1, None).tokens, SPECIAL.eot]

    def fails(context: DraftContext, budget: int) -> Any:
        raise ValueError("broken\nin two lines")

    right = Scripted(lambda context, budget: DraftTree(truth[len(context.sampled) :][:3]), name="right")
    # Passes take microseconds here: on a busy machine drafts would seem dear.
    drafter = CascadeDrafter([Scripted(fails, name="bad"), right], FREE, weighs=False)
    guard = Guard(drafter)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            result = decoded(1, guard)
            guard.end(result.tokens)
    assert result.speculation.accepted > 10 and guard.error is None
    assert [record.getMessage() for record in caplog.records] == [
        "the drafter bad failed and is left out of cascade: ValueError: broken in two lines"
    ]


# ---- whose draft is verified -------------------------------------------------------------------------------------


def test_the_draft_that_is_expected_to_save_most_is_verified() -> None:
    made = cascade(Fixed("a", [[1, 2, 3]]), Fixed("b", [[1, 7, 8, 9]]), Fixed("c", [[1, 7, 8, 9]]))
    found = made.propose(context(), 20)
    assert list(found.tokens) == [1, 7, 8, 9] and parents_of(found) == [-1, 0, 1, 2]
    assert found.source is not None and {made.sources[i] for i in found.source} == {"b"}, "the cheaper one at a tie"


def test_a_source_that_boasts_is_found_out_by_what_the_text_says() -> None:
    drafters = [Fixed("boasts", [[7, 8, 9]], sure=0.95), Fixed("modest", [[1, 2]], sure=0.6)]
    made = CascadeDrafter(drafters, FREE, recycles=False, weighs=False)
    made.begin(WINDOW)
    for _ in range(12):
        made.propose(context(), 20)
        made.observe(Verdict(drafted=(), n_accepted=0, token=1, finished=False))
    found = made.propose(context(), 20)
    assert found.source is not None and {made.sources[i] for i in found.source} == {"modest"}


def test_a_lone_draft_goes_as_it_is() -> None:
    made = cascade(Fixed("a", []), Fixed("b", [[1, 2, 3], [4, 5]]))
    found = made.propose(context(), 20)
    assert list(found.tokens) == [1, 2, 3, 4, 5] and parents_of(found) == [-1, 0, 1, -1, 3]


def test_behind_a_prompt_there_is_one_path() -> None:
    made = cascade(Fixed("a", [[1, 2, 3]]), Fixed("b", [[7, 8, 9, 4]]))
    found = made.propose(DraftContext(prompt=(1, 2), sampled=(), position=0), 20)
    assert parents_of(found) == list(range(-1, len(found) - 1)) and len(found)


def test_beyond_the_budget_there_is_nothing() -> None:
    made = cascade(Fixed("a", [[1, 2, 3]]), Fixed("b", [[7, 8, 9, 4]]))
    assert 0 < len(made.propose(context(), 2)) <= 2


# ---- what each is told -------------------------------------------------------------------------------------------


def test_each_is_told_what_the_text_says_of_its_own_draft() -> None:
    long, wrong = Fixed("long", [[1, 2, 3, 4]], sure=0.9), Fixed("wrong", [[5, 6]], sure=0.3)
    short, silent = Fixed("short", [[1, 9], [1, 2, 8]], sure=0.5), Fixed("silent", [[]])
    made = cascade(long, wrong, short, silent, costs=USUAL)
    found = made.propose(context(), 20)
    assert list(found.tokens)[:4] == [1, 2, 3, 4]
    made.observe(
        Verdict(drafted=(1, 2, 3, 4), n_accepted=2, token=8, finished=False, evaluated=(0, 1, 2, 3), nodes=(0, 1),
                rejected=2)
    )  # fmt: skip
    told = [drafter.observed[-1] for drafter in (long, wrong, short, silent)]
    assert [one.accepted for one in told] == [(1, 2)] * 4 and {one.token for one in told} == {8}
    assert (told[0].nodes, told[0].evaluated, told[0].rejected) == ((0, 1), (0, 1, 2), 2)
    assert (told[1].nodes, told[1].evaluated, told[1].rejected) == ((), (0,), 0)
    # Nodes 1; 9 and 2 beneath it; 8, which the model then said, though it was no row of the pass.
    assert (told[2].nodes, told[2].rejected) == ((0, 2, 3), None) and sorted(told[2].evaluated) == [0, 1, 2, 3]
    assert (told[3].nodes, told[3].evaluated, told[3].rejected) == ((), (), None)


# ---- who is asked ------------------------------------------------------------------------------------------------


def test_a_dear_source_is_not_asked_where_a_cheap_one_promises_more() -> None:
    source = Source(Slow("a", clock := [0.0], 0.0, lambda n: [1]), 0, FREE, Payoff(FREE))
    source.begin(WINDOW)
    assert source.pays(0.0, 0.001, 1) and source.pays(1.0, 0.001, 1)
    for _ in range(60):
        source.ask(context(), 8, 500, 1)
    assert source.draft and clock == [0.0]
    assert source.pays(0.0, 0.001, 1) and source.pays(0.2, 0.1, 1) and not source.pays(60.0, 0.01, 1)
    assert not source.pays(0.2, 1e-9, 1), "what it may add takes longer than it saves"


class Slow(Fixed):
    """Takes `seconds` of a clock that nothing else moves."""

    def __init__(self, name: str, clock: list[float], seconds: float, propose: Callable[[int], list[int]]) -> None:
        super().__init__(name, [[]])
        self._clock, self._seconds, self._proposed = clock, seconds, propose
        self.windows_asked: set[int] = set()
        self.window = 0

    def begin(self, window: WindowContext) -> None:
        self.window += 1

    def propose(self, context: DraftContext, budget: int) -> DraftTree:
        self._clock[0] += self._seconds
        self.windows_asked.add(self.window)
        self.n_asked += 1
        ids = self._proposed(len(context.sampled))
        return DraftTree(ids, conf=[0.9] * len(ids))


def simulated(
    monkeypatch: pytest.MonkeyPatch, sources: Callable[[list[float]], list[Slow]], n_windows: int = 120
) -> tuple[list[Slow], float, float]:
    """Windows of 40 tokens in passes of 1 ms; the sources, and the shares of plain decoding's time of the first half
    of the windows and of the second."""
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    made = sources(clock)
    drafter = CascadeDrafter(made, FREE, recycles=False)
    spent = [0.0, 0.0]
    for window in range(n_windows):
        started = clock[0]
        drafter.begin(WINDOW)
        n = 0
        while n < 40:
            sampled = tuple(range(n))
            found = list(drafter.propose(DraftContext(prompt=(1, 2), sampled=sampled, position=1 + n), 20).tokens)
            clock[0] += 0.001
            verdict = verdict_on(found, n)
            drafter.observe(verdict)
            n += verdict.n_accepted + 1
        drafter.end((1,))
        spent[2 * window // n_windows] += clock[0] - started
    plain = n_windows / 2 * 40 * 0.001
    return made, spent[0] / plain, spent[1] / plain


def truth(n: int) -> list[int]:
    return [n, n + 1]


def nonsense(n: int) -> list[int]:
    return [499, 498]


def test_a_source_that_adds_nothing_falls_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    (right, useless), first, second = simulated(
        monkeypatch, lambda clock: [Slow("right", clock, 1e-6, truth), Slow("useless", clock, 5e-4, nonsense)]
    )
    assert len(right.windows_asked) > 110 and len(useless.windows_asked) < 20
    assert first < 0.4 and second < 0.36, "of three tokens one pass remains"


def test_of_two_that_say_the_same_one_remains(monkeypatch: pytest.MonkeyPatch) -> None:
    twins, first, second = simulated(
        monkeypatch, lambda clock: [Slow("a", clock, 2e-4, truth), Slow("b", clock, 3e-4, truth)]
    )
    assert second < 0.46, "with both always asked it would be 0.5, with neither 1.0"


def test_where_nothing_pays_the_cascade_is_as_quick_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    _, first, second = simulated(
        monkeypatch, lambda clock: [Slow("a", clock, 2e-4, nonsense), Slow("b", clock, 4e-4, nonsense)]
    )
    assert second < 1.05 and first < 1.15


def test_what_sources_say_of_themselves_is_said_for_them() -> None:
    reader, hearer = Fixed("reader", [[]]), Fixed("hearer", [[]])
    reader.reads_hidden = True  # type: ignore[attr-defined]
    hearer.listens = True  # type: ignore[attr-defined]
    both = CascadeDrafter([reader, hearer], FREE)
    assert both.reads_hidden and both.listens and not both.wants_rows and both.sources == (
        "recycled", "reader", "hearer",
    )  # fmt: skip
    neither = CascadeDrafter([Fixed("a", [[]])], FREE)
    assert not neither.reads_hidden and not neither.listens
