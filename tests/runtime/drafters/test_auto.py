"""Whether drafting pays: what was measured over whole windows decides, and what does not pay costs next to nothing."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specedge.runtime.decoding.decode import DecodeOptions, WindowResult, decode_window
from specedge.runtime.decoding.drafter import DraftContext, Drafter, DraftTree, Guard, WindowContext
from specedge.runtime.decoding.rules import RuleSet
from specedge.runtime.device import DEFAULT_COSTS, CostTable
from specedge.runtime.drafters.auto import PLAIN, Account, AutoDrafter
from specedge.runtime.drafters.earlier import EarlierDrafter
from specedge.runtime.engine.kv_cache import Features
from support.drafting import Plan, Scripted, draft_plans, plain_fields, verdict_on
from support.fake_engine import HashEngine, special_tokens

ABLE = ("ctc", "mtp-latent", "tokenmap")
FREE = CostTable((1, 64), (1.0, 1.0))
SPECIAL = special_tokens(n_timestamps=31)
PROMPT = [SPECIAL.sot, SPECIAL.languages["en"], SPECIAL.transcribe]
WINDOW = WindowContext(features=None, prompt=(1, 2), n_vocab=500, n_sample=200, eot=400, timestamp_begin=401, n_paths=3)


def played(account: Account, takes: dict[str, float], n_windows: int, n_tokens: int = 16) -> list[str]:
    """Who had each window, where each candidate takes so many plain passes a token; plain decoding takes one."""
    had = []
    for _ in range(n_windows):
        name = account.pick([*takes])
        account.book(name, ({PLAIN: 1.0} | takes)[name] * n_tokens, n_tokens)
        had.append(name)
    return had


def spent(had: Sequence[str], takes: dict[str, float]) -> float:
    """The time of all windows over that of the best candidate in all of them."""
    every = {PLAIN: 1.0} | takes
    return sum(every[name] for name in had) / len(had) / min(every.values())


KNOWN_VOICE = {"ctc": 0.43, "mtp-latent": 0.54, "tokenmap": 0.65}
ODD_VOICE = {"ctc": 0.8, "mtp-latent": 0.73, "tokenmap": 0.72}
OTHER_VOICE = {"ctc": 1.0, "mtp-latent": 0.8, "tokenmap": 0.69}
NOTHING_HELPS = {"ctc": 1.2, "mtp-latent": 1.15, "tokenmap": 1.05}


@pytest.mark.parametrize("takes", [KNOWN_VOICE, ODD_VOICE, OTHER_VOICE])
def test_the_quickest_gets_nearly_all_windows(takes: dict[str, float]) -> None:
    had = played(Account(ABLE), takes, 60)
    assert had[0] == "ctc" and spent(had, takes) < 1.05


def test_a_candidate_that_is_slow_is_dropped_after_its_first_window() -> None:
    had = played(Account(ABLE), OTHER_VOICE, 20)
    assert had[:3] == ["ctc", "mtp-latent", "tokenmap"] and spent(had, OTHER_VOICE) < 1.1


def test_where_nothing_helps_it_is_as_quick_as_plain_decoding() -> None:
    had = played(Account(ABLE), NOTHING_HELPS, 100)
    assert set(had[:3]) == set(ABLE) and spent(had[3:], NOTHING_HELPS) < 1.035


def test_a_change_of_voice_is_followed() -> None:
    account = Account(ABLE)
    played(account, KNOWN_VOICE, 40)
    assert "tokenmap" in played(account, OTHER_VOICE, 8)[-4:]
    assert played(account, OTHER_VOICE, 40).count("tokenmap") > 30
    back = played(account, KNOWN_VOICE, 60)
    assert back[-20:].count("ctc") > 15


def auto(*drafters: Drafter, weighs: bool = True, costs: CostTable = FREE) -> AutoDrafter:
    return AutoDrafter(drafters, costs, earlier=EarlierDrafter(costs), weighs=weighs)


class Timed(Drafter):
    """Drafts the next `n_right` tokens of a text that counts up, then a wrong one, in `seconds` of a made-up clock."""

    def __init__(self, name: str, clock: list[float], seconds: float, n_right: int) -> None:
        self.name, self._clock, self.seconds, self.n_right = name, clock, seconds, n_right
        self.n_asked = 0

    def propose(self, context: DraftContext, budget: int) -> DraftTree:
        self._clock[0] += self.seconds
        self.n_asked += 1
        n = len(context.sampled)
        return DraftTree([*range(n, n + self.n_right), 499])


def windows(drafter: AutoDrafter, clock: list[float], n_windows: int, n_tokens: int = 24) -> tuple[float, list[str]]:
    """The time of some windows over that of plain decoding, passes of 1 ms, and who drafted in each."""
    drafted = []
    began = clock[0]
    for _ in range(n_windows):
        drafter.begin(WINDOW)
        n, who = 0, set[str]()
        while n < n_tokens:
            found = drafter.propose(DraftContext(prompt=(1, 2), sampled=tuple(range(n)), position=1 + n), 20)
            if found.source is not None:
                who |= {drafter.sources[i] for i in found.source}
            ids = list(found.tokens)
            clock[0] += 0.001
            verdict = verdict_on(ids, n)
            drafter.observe(verdict)
            n += verdict.n_accepted + 1
        drafter.end((1,))
        drafted.append("+".join(sorted(who)))
    return (clock[0] - began) / (n_windows * n_tokens * 0.001), drafted


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found = [1.0]
    monkeypatch.setattr(time, "perf_counter", lambda: found[0])
    return found


def test_the_drafter_that_takes_least_time_is_used(clock: list[float]) -> None:
    """The one that is right most often takes too long to say so."""
    slow, quick = Timed("slow", clock, 0.004, 5), Timed("quick", clock, 0.0001, 2)
    share, who = windows(auto(slow, quick), clock, 30)
    assert who.count("quick") > 25 and share < 0.45


def test_where_all_are_wrong_it_is_nearly_as_quick_as_none(clock: list[float]) -> None:
    drafter = auto(Timed("a", clock, 0.0005, 0), Timed("b", clock, 0.002, 0))
    first, _ = windows(drafter, clock, 10)
    later, who = windows(drafter, clock, 100)
    assert first < 1.05 and later < 1.035 and who.count("") > 60


def test_a_window_that_loses_too_much_is_finished_without_drafts(clock: list[float]) -> None:
    slow = Timed("slow", clock, 0.002, 0)
    share, _ = windows(auto(slow), clock, 1, n_tokens=100)
    assert slow.n_asked < 5 and share < 1.1


def test_a_drafter_that_becomes_good_is_found(clock: list[float]) -> None:
    drafter = auto(first := Timed("first", clock, 0.0001, 0), Timed("second", clock, 0.0001, 1))
    _, who = windows(drafter, clock, 20)
    assert who.count("second") > 15
    first.n_right = 6
    windows(drafter, clock, 60)
    _, who = windows(drafter, clock, 20)
    assert who.count("first") > 17


class Played:
    """Windows over a drafter that drafts 3 tokens at a time, each of which is right with probability `rate`.

    Times are in plain passes. draft_s: of a draft, window_s: more of the first one in a window; drafted_s: of a pass
    over a draft, whatever T(k) says; speed: of the machine, by the window.
    """

    def __init__(
        self,
        clock: list[float],
        *,
        rate: float,
        draft_s: float = 0.05,
        window_s: float = 1.0,
        drafted_s: float = 1.2,
        costs: CostTable = DEFAULT_COSTS,
        speed: Callable[[int], float] = lambda at: 1.0,
    ) -> None:
        self.clock, self.rate, self.draft_s, self.window_s, self.drafted_s = clock, rate, draft_s, window_s, drafted_s
        self.speed, self.rng = speed, random.Random(3)
        self.drafter = AutoDrafter([Scripted(self._draft, name="one")], costs, name="one")
        self.n_windows = self.n_drafts = 0

    def _draft(self, context: DraftContext, budget: int) -> DraftTree:
        self.clock[0] += self.speed(self.n_windows - 1) * (self.draft_s + self.window_s * (not self.n_drafts))
        self.n_drafts += 1
        n_right = next((n for n in range(3) if self.rng.random() >= self.rate), 3)
        n = len(context.sampled)
        return DraftTree([*range(n, n + n_right), *[499] * (3 - n_right)])

    def window(self, n_tokens: int, n_prompt: int = 4) -> tuple[float, int]:
        """The time of a window, as a share of a plain one, and the number of drafts in it."""
        slow = self.speed(self.n_windows)
        self.n_windows, self.n_drafts = self.n_windows + 1, 0
        started, n, prompt = self.clock[0], 0, tuple(range(n_prompt))
        self.drafter.begin(replace(WINDOW, prompt=prompt))
        while n <= n_tokens:
            position = n_prompt + n - 1 if n else 0
            ids = list(
                self.drafter.propose(DraftContext(prompt=prompt, sampled=(0,) * n, position=position), 20).tokens
            )
            self.clock[0] += slow * (self.drafted_s if ids else 1.0)
            verdict = verdict_on(ids, n)
            self.drafter.observe(verdict)
            n += verdict.n_accepted + 1
        self.drafter.end((1,))
        return (self.clock[0] - started) / slow / n, self.n_drafts

    def windows(self, n: int, n_tokens: int = 20) -> tuple[float, list[int]]:
        """The mean share of plain decoding's time over `n` windows, and the drafts in each."""
        found = [self.window(n_tokens) for _ in range(n)]
        return sum(share for share, _ in found) / n, [n_drafts for _, n_drafts in found]


def test_what_pays_drafts_in_nearly_every_window(clock: list[float]) -> None:
    share, drafts = Played(clock, rate=0.8).windows(50)
    assert sum(n >= 4 for n in drafts) >= 49 and share < 0.62


@pytest.mark.parametrize("slow", [0.5, 1.6, 2.0])
def test_what_pays_goes_on_where_the_machine_slows_down(clock: list[float], slow: float) -> None:
    """A pass over a draft that takes longer than before says so of plain passes, too."""
    played = Played(clock, rate=0.7, draft_s=0.4, speed=lambda at: 1.0 if at < 8 else slow)
    played.windows(8, 100)
    share, drafts = played.windows(8, 100)
    assert min(drafts) > 30 and share < 0.8


@pytest.mark.parametrize("n_tokens", [8, 20, 100])
@pytest.mark.parametrize(("draft_s", "window_s"), [(0.05, 1.0), (0.3, 3.0), (0.3, 16.0), (1.2, 1.0)])
def test_what_never_comes_true_costs_next_to_nothing(
    clock: list[float], n_tokens: int, draft_s: float, window_s: float
) -> None:
    played = Played(clock, rate=0.0, draft_s=draft_s, window_s=window_s)
    first, _ = played.windows(60, n_tokens)
    later, _ = played.windows(300, n_tokens)
    assert first < 1.05 + (window_s + 1) / (n_tokens + 1) / 20 and later < 1.03


def decoded(seed: int, drafter: Any, **more: Any) -> WindowResult:
    engine = HashEngine(SPECIAL, seed=seed, eot_bias=-50.0 if seed % 2 else 2.0)
    engine.n_paths = more.pop("n_paths", 4)
    rules = RuleSet(SPECIAL, space_ids=[32], suppressed=[33, 40], timestamps=True, max_initial_timestamp_index=20)
    result = decode_window(engine, b"window", PROMPT, DecodeOptions(rules=rules, n_text_ctx=48, **more), drafter)
    assert engine.n_open == 0
    return result


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    plans=st.lists(st.lists(draft_plans(SPECIAL, suppressed=33), min_size=1, max_size=3), min_size=1, max_size=3),
    n_paths=st.sampled_from([1, 3]),
    options=st.sampled_from([{}, {"temperature": 0.7}, {"temperature": 0.7, "best_of": 3}, {"beam_size": 3}]),
    weighs=st.booleans(),
)
def test_no_candidate_changes_anything_but_speed(
    seed: int, plans: list[list[Plan]], n_paths: int, options: dict[str, Any], weighs: bool
) -> None:
    """Candidates that raise, repeat themselves, have no end, leave the vocabulary, or say nothing; two windows."""
    expected = decoded(seed, None, **options)
    truth = [*expected.tokens, SPECIAL.eot]

    def child(index: int, mine: list[Plan]) -> Scripted:
        n_calls = 0

        def propose(context: DraftContext, budget: int) -> Any:
            nonlocal n_calls
            n_calls += 1
            return mine[n_calls % len(mine)](truth, context, budget)

        return Scripted(propose, name=f"child {index}")

    children = [child(index, mine) for index, mine in enumerate(plans)]
    guard = Guard(auto(*children, weighs=weighs))
    for _ in range(2):
        result = decoded(seed, guard, n_paths=n_paths, **options)
        guard.end(result.tokens)
        assert plain_fields(result) == plain_fields(expected) and result.speculation.drafter == "auto"
        assert set(result.speculation.by_drafter) <= {"earlier", *(child.name for child in children)}
    assert guard.error is None, "what a candidate does is no fault of the others'"


def test_a_candidate_that_fails_is_dropped_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    truth = [*decoded(1, None).tokens, SPECIAL.eot]

    def fails(context: DraftContext, budget: int) -> Any:
        raise ValueError("broken\nin two lines")

    right = Scripted(lambda context, budget: DraftTree(truth[len(context.sampled) :][:3]), name="right")
    guard = Guard(auto(Scripted(fails, name="bad"), right, weighs=False))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            guard.end(decoded(1, guard).tokens)
    assert len(right.ended) == 2 and guard.error is None
    assert [record.getMessage() for record in caplog.records] == [
        "the drafter bad failed and is left out of auto: ValueError: broken in two lines"
    ]


def test_samples_of_a_window_that_was_decoded_before_are_drafted_from_that_text_alone() -> None:
    """Nothing that another drafter loses in them is booked, and each of the samples would lose it again."""
    child = Timed("tokenmap", [0.0], 0.0, 2)
    drafter = auto(child)
    hidden = np.arange(64, dtype=np.float32).reshape(16, 4)
    window = replace(WINDOW, features=Features(hidden=hidden, cross={}))
    drafter.begin(window)
    drafter.end((7, 8, 9))
    for temperature, is_asked in ((0.0, True), (0.6, False)):
        n_before = child.n_asked
        drafter.begin(replace(window, temperature=temperature))
        drafter.propose(DraftContext(prompt=(1, 2), sampled=(50,), position=2), 20)
        drafter.propose(DraftContext(prompt=(1, 2), sampled=(50, 51, 52, 53), position=5), 20)
        drafter.end(())
        assert (child.n_asked > n_before) is is_asked


def test_a_single_drafter_leaves_samples_of_a_window_that_failed_alone(clock: list[float]) -> None:
    """Each of five samples at five temperatures would hear the window anew, lose a few passes and say it is slow."""
    child = Timed("tokenmap", clock, 0.0001, 2)
    drafter = AutoDrafter([child], FREE, name="tokenmap")
    windows = [replace(WINDOW, features=Features(hidden=np.zeros((1, 4), np.float32), cross={})) for _ in range(2)]
    tried = ((0, 0.0, True), (0, 0.2, False), (0, 0.4, False), (0, 0.4, False), (1, 0.2, True), (1, 0.2, True))
    for i, temperature, is_asked in tried:
        n_before, said = child.n_asked, drafter.choice
        drafter.begin(replace(windows[i], temperature=temperature))
        for n in (1, 4, 7):
            found = drafter.propose(DraftContext(prompt=(1, 2), sampled=tuple(range(n)), position=1 + n), 20)
            clock[0] += 0.001
            drafter.observe(verdict_on(list(found.tokens), n))
        drafter.end((7, 8, 9))
        assert (child.n_asked > n_before) is is_asked
        assert is_asked or drafter.choice == said
