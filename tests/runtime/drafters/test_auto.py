"""`auto`: what it begins with, and that what was measured over whole windows decides from then on."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specedge.runtime.decoding.decode import DecodeOptions, WindowResult, decode_window
from specedge.runtime.decoding.drafter import DraftContext, Drafter, DraftTree, Guard, WindowContext
from specedge.runtime.decoding.rules import build_rules
from specedge.runtime.device import CostTable, Profile
from specedge.runtime.drafters.auto import AutoDrafter, Trials, choose, quickest_threads
from specedge.runtime.drafters.earlier import EarlierDrafter
from specedge.runtime.drafters.ngram import NgramDrafter
from specedge.runtime.verdict import PLAIN, BenchVerdict
from support.drafting import Plan, Scripted, draft_plans, plain_fields, verdict_on
from support.fake_engine import HashEngine, special_tokens

ABLE = ("ctc", "mtp-latent", "tokenmap")
FLAT = {1: 1.0, 2: 1.0, 8: 1.2, 32: 1.6}
FREE = CostTable((1, 64), (1.0, 1.0))
SPECIAL = special_tokens(n_timestamps=31)
PROMPT = [SPECIAL.sot, SPECIAL.languages["en"], SPECIAL.transcribe]
WINDOW = WindowContext(features=None, prompt=(1, 2), n_vocab=500, n_sample=200, eot=400, timestamp_begin=401, n_paths=3)


# ---- what it begins with -----------------------------------------------------------------------------------------


def profile(one_s: float, relative: dict[int, float], encode_s: float, threads: int = 2) -> Profile:
    pass_s = {n_rows: one_s * cost for n_rows, cost in relative.items()}
    return Profile(threads=threads, pass_s=pass_s, encode_s=encode_s, rounds=5)


def test_it_is_all_that_is_given() -> None:
    choice = choose(ABLE, threads=2, profiles={2: profile(0.03, FLAT, 0.9)})
    assert choice.candidates == ABLE and choice.speed_up is None
    assert choice.reason == "the quickest of ctc, mtp-latent, tokenmap, no drafter, window by window; 2 threads"


def test_without_a_profile_the_reason_says_so() -> None:
    choice = choose(ABLE, threads=2, profiles={})
    assert "(not calibrated; run `specedge calibrate`)" in choice.reason and "\n" not in choice.reason


@pytest.mark.parametrize(
    ("found", "candidates", "said"),
    [
        ("tokenmap", ("tokenmap", "ctc", "mtp-latent"), "tokenmap, which `specedge bench` found 1.40 times plain"),
        (PLAIN, (PLAIN, *ABLE), "no drafter, since `specedge bench` found none quicker"),
        ("draft", ABLE, "the quickest of ctc, "),  # a draft model that is not given now
    ],
)
def test_it_begins_with_what_bench_found(found: str, candidates: tuple[str, ...], said: str) -> None:
    verdict = BenchVerdict(threads=2, drafter=found, decoder_speed_up=1.4, rounds=5, audio_s=10.0)
    choice = choose(ABLE, threads=2, profiles={}, verdict=verdict)
    assert choice.candidates == candidates and choice.reason.startswith(said)
    assert choice.speed_up == (None if found == "draft" else 1.4)


def test_a_verdict_over_other_maps_is_none() -> None:
    verdict = BenchVerdict(threads=2, drafter="tokenmap", decoder_speed_up=1.4, token_maps=("/a.tmap",))
    with_maps = replace(verdict, token_maps=("/b.tmap",))
    for one, maps, is_followed in ((verdict, ["/a.tmap"], True), (with_maps, ["/a.tmap"], False)):
        choice = choose(ABLE, threads=2, profiles={}, verdict=one, token_maps=maps)
        assert (choice.candidates[0] == "tokenmap") is is_followed


def test_the_quickest_of_the_calibrated_threads() -> None:
    one, four = profile(0.02, FLAT, 0.5, threads=1), profile(0.01, FLAT, 0.2, threads=4)
    assert quickest_threads({}) is None and quickest_threads({1: one}) is None
    assert quickest_threads({1: one, 4: four}) == 4
    choice = choose(ABLE, threads=4, profiles={1: one, 4: four})
    assert choice.reason.endswith("4 threads, the quickest of 1, 4")


# ---- who gets the next window ------------------------------------------------------------------------------------


def played(trials: Trials, takes: dict[str, float], n_windows: int, n_tokens: int = 16) -> list[str]:
    """Who had each window, where each candidate takes so many plain passes a token; plain decoding takes one."""
    had = []
    for _ in range(n_windows):
        name = trials.pick([*takes])
        trials.book(name, ({PLAIN: 1.0} | takes)[name] * n_tokens, n_tokens)
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
    had = played(Trials(ABLE), takes, 60)
    assert had[0] == "ctc" and spent(had, takes) < 1.05


def test_where_the_first_is_quick_the_others_wait() -> None:
    assert set(played(Trials(ABLE), KNOWN_VOICE, 10)) == {"ctc"}
    assert set(played(Trials(ABLE), KNOWN_VOICE, 200)) == set(ABLE)


def test_a_candidate_that_is_slow_is_dropped_after_its_first_window() -> None:
    had = played(Trials(ABLE), OTHER_VOICE, 20)
    assert had[:3] == ["ctc", "mtp-latent", "tokenmap"] and spent(had, OTHER_VOICE) < 1.1


def test_one_sentence_at_which_the_first_fails_is_no_verdict() -> None:
    trials = Trials(ABLE)
    trials.book(trials.pick(ABLE), 11.5, 13)
    assert played(trials, KNOWN_VOICE, 20).count("ctc") == 20


def test_one_sentence_at_which_it_fails_does_not_put_a_candidate_aside() -> None:
    trials = Trials(ABLE)
    played(trials, KNOWN_VOICE, 4)
    trials.book(trials.pick(ABLE), 13.0, 16)
    assert played(trials, KNOWN_VOICE, 20).count("ctc") == 20


def test_where_nothing_helps_it_is_as_quick_as_plain_decoding() -> None:
    had = played(Trials(ABLE), NOTHING_HELPS, 100)
    assert set(had[:3]) == set(ABLE) and spent(had[3:], NOTHING_HELPS) < 1.035


def test_a_change_of_voice_is_followed() -> None:
    trials = Trials(ABLE)
    played(trials, KNOWN_VOICE, 40)
    assert "tokenmap" in played(trials, OTHER_VOICE, 8)[-4:]
    assert played(trials, OTHER_VOICE, 40).count("tokenmap") > 30
    back = played(trials, KNOWN_VOICE, 60)
    assert back[-20:].count("ctc") > 15


def test_a_verdict_is_believed_until_windows_say_otherwise() -> None:
    takes = {"tokenmap": 0.7, "ctc": 0.75, "mtp-latent": 0.9}
    had = played(Trials(("tokenmap", "ctc", "mtp-latent"), 1.4), takes, 12)
    assert had[0] == "tokenmap" and had.count("tokenmap") >= 10
    assert played(Trials((PLAIN, *ABLE), 1.0), NOTHING_HELPS, 8) == [PLAIN] * 8
    assert played(Trials((PLAIN, *ABLE), 1.0), KNOWN_VOICE, 60)[-20:].count("ctc") > 15


def test_a_window_that_another_program_held_up_is_no_verdict() -> None:
    trials = Trials(ABLE)
    played(trials, KNOWN_VOICE, 5)
    trials.book("ctc", 1000.0, 16)
    assert played(trials, KNOWN_VOICE, 30)[-8:].count("ctc") > 5


def test_without_candidates_it_is_plain_decoding() -> None:
    assert Trials(()).pick(()) == PLAIN and Trials(ABLE).pick(()) == PLAIN


# ---- at work -----------------------------------------------------------------------------------------------------


def auto(*drafters: Drafter, weighs: bool = True, reason: str = "") -> AutoDrafter:
    trials = Trials([drafter.name for drafter in drafters])
    return AutoDrafter(drafters, FREE, earlier=EarlierDrafter(FREE), trials=trials, reason=reason, weighs=weighs)


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


class Late(Timed):
    """One that needs the text alone."""

    joins_late = True


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


def test_a_long_prompt_is_no_candidates_fault(clock: list[float]) -> None:
    """Audio of a speech LLM is rows of the prompt, which take as long as many tokens."""
    costs = CostTable((1, 8, 64), (1.0, 1.2, 40.0))
    quick, prompt = Timed("quick", clock, 0.0001, 2), tuple(range(64))
    drafter = AutoDrafter([quick], costs, earlier=EarlierDrafter(costs), trials=Trials(["quick"]))
    for _ in range(20):
        drafter.begin(replace(WINDOW, prompt=prompt))
        n = 0
        while n < 24:
            at = len(prompt) + n - 1 if n else 0
            ids = list(drafter.propose(DraftContext(prompt=prompt, sampled=tuple(range(n)), position=at), 20).tokens)
            clock[0] += 0.001 * costs.price(len(prompt) + n - at + len(ids), 1)
            verdict = verdict_on(ids, n)
            drafter.observe(verdict)
            n += verdict.n_accepted + 1
        drafter.end((1,))
    assert quick.n_asked > 20 * 24 // 3 - 10


def test_a_window_that_loses_too_much_is_finished_without_drafts(clock: list[float]) -> None:
    slow = Timed("slow", clock, 0.002, 0)
    share, _ = windows(auto(slow), clock, 1, n_tokens=100)
    assert slow.n_asked < 5 and share < 1.1


def test_who_needs_the_text_alone_relieves_a_candidate_that_loses(clock: list[float]) -> None:
    slow, text = Timed("slow", clock, 0.002, 0), Late("text", clock, 0.0001, 3)
    share, who = windows(auto(slow, text), clock, 1, n_tokens=100)
    assert who == ["slow+text"] and slow.n_asked < 5 and share < 0.4


def test_a_relief_that_loses_is_the_last(clock: list[float]) -> None:
    slow, text = Timed("slow", clock, 0.002, 0), Late("text", clock, 0.002, 0)
    share, _ = windows(auto(slow, text), clock, 1, n_tokens=100)
    assert text.n_asked < 5 and share < 1.12


def test_a_drafter_that_becomes_good_is_found(clock: list[float]) -> None:
    drafter = auto(first := Timed("first", clock, 0.0001, 0), Timed("second", clock, 0.0001, 1))
    _, who = windows(drafter, clock, 20)
    assert who.count("second") > 15
    first.n_right = 6
    windows(drafter, clock, 60)
    _, who = windows(drafter, clock, 20)
    assert who.count("first") > 17


def test_what_was_learned_is_said(clock: list[float]) -> None:
    drafter = auto(Timed("quick", clock, 0.0, 1), reason="the quickest, for a test")
    assert Guard(drafter).choice == "the quickest, for a test"
    windows(drafter, clock, 3)
    assert Guard(drafter).choice.startswith("the quickest, for a test; measured: quick 1.")


def test_unweighed_every_candidate_has_its_turn(clock: list[float]) -> None:
    drafters = [Timed(name, clock, 1.0, 1) for name in "abc"]
    _, who = windows(auto(*drafters, weighs=False), clock, 6)
    assert who == ["a", "b", "c"] * 2


def test_texts_at_the_same_time_share_what_is_learned(clock: list[float]) -> None:
    first = auto(Timed("slow", clock, 0.01, 0), Scripted(lambda context, budget: DraftTree([]), name="silent"))
    second = first.another()
    windows(first, clock, 4)
    _, who = windows(second, clock, 4)
    assert who == [""] * 4, "the first has shown that the drafter does not pay"


def test_who_learns_from_any_text_hears_every_window(clock: list[float]) -> None:
    drafter = auto(Timed("quick", clock, 0.0, 3), learner := NgramDrafter(FREE))
    for _ in range(3):
        drafter.begin(WINDOW)
        drafter.end((5, 6, 7, 8))
    learner.begin(WINDOW)
    found = learner.propose(DraftContext(prompt=(1, 2), sampled=(5, 6), position=3), 8)
    assert list(found.tokens)[:1] == [7]


def decoded(seed: int, drafter: Any, **more: Any) -> WindowResult:
    engine = HashEngine(SPECIAL, seed=seed, eot_bias=-50.0 if seed % 2 else 2.0)
    engine.n_paths = more.pop("n_paths", 4)
    rules = build_rules(SPECIAL, space_ids=[32], suppressed=[33, 40], timestamps=True, max_initial_timestamp_index=20)
    result = decode_window(engine, b"window", PROMPT, DecodeOptions(rules=rules, n_text_ctx=48, **more), drafter)
    assert engine.n_open == 0
    return result


@settings(max_examples=40, deadline=None)
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


def test_another_decoding_of_the_same_audio_is_followed_first(clock: list[float]) -> None:
    drafter = auto(Timed("candidate", clock, 0.0, 1))
    drafter.begin(replace(WINDOW, earlier=tuple(range(30))))
    found = drafter.propose(DraftContext(prompt=(1, 2), sampled=(0, 1, 2), position=4), 20)
    assert found.source is not None and {drafter.sources[i] for i in found.source} == {"earlier"}
    assert list(found.tokens)[:3] == [3, 4, 5]
