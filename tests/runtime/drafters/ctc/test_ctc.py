"""Drafts of what a CTC head hears: what is proposed, taken up again behind corrections, and that no text changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specedge.maps.build import build
from specedge.maps.ngram_cache import NgramCache
from specedge.maps.token_map import TokenMap
from specedge.runtime.decoding.decode import DecodeOptions, WindowResult, decode_window
from specedge.runtime.decoding.drafter import DraftContext, Guard, WindowContext
from specedge.runtime.decoding.rules import RuleSet
from specedge.runtime.device import CostTable
from specedge.runtime.drafters.ctc.drafter import CtcDrafter
from specedge.runtime.drafters.ctc.head import Posteriors
from specedge.runtime.drafters.ctc.ngram_lm import Guide
from specedge.runtime.text.speech_tokens import SpeechTokens
from specedge.runtime.text.tokenizer import Tokenizer
from support.drafting import plain_fields
from support.fake_engine import HashEngine, special_tokens, tokenizer
from support.posteriors import Window, random_posteriors, spoken, unheard

SPECIAL = special_tokens()
TOKENIZER = tokenizer(SPECIAL)
PLAIN_PROMPT = (SPECIAL.sot, SPECIAL.languages["en"], SPECIAL.transcribe or 0, SPECIAL.no_timestamps)
TIMED_PROMPT = PLAIN_PROMPT[:-1]
FREE = CostTable((1, 64), (1.0, 1.0))
DEAR = CostTable((1, 2, 64), (1.0, 5.0, 300.0))
BEGIN = SPECIAL.timestamp_begin


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text)


@pytest.fixture(scope="module")
def pumps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenMap]:
    path = tmp_path_factory.mktemp("maps") / "pumps.tmap"
    texts = [" the pump is on."] * 6 + [" the pump is two."] * 3 + [" zero leak now."] * 5 + [" the leak now."] * 2
    build([ids(text) for text in texts], path, n_text=SPECIAL.eot, fingerprint=bytes(32))
    with TokenMap.open(path) as opened:
        yield opened


def made(
    hears: Posteriors | Callable[[Any], Posteriors], *maps: TokenMap, costs: CostTable = FREE, **options: Any
) -> CtcDrafter:
    hear = hears if callable(hears) else lambda hidden: hears
    return CtcDrafter(hear, TOKENIZER, costs, Guide(maps, options.pop("cache", None), TOKENIZER), **options)


def begun(
    drafter: CtcDrafter, features: Any = None, prompt: tuple[int, ...] = PLAIN_PROMPT, n_paths: int = 1
) -> CtcDrafter:
    drafter.begin(
        WindowContext(
            features=Window(np.zeros((4, 2), np.float32)) if features is None else features,
            prompt=prompt,
            n_vocab=SPECIAL.n_vocab,
            n_sample=200,
            eot=SPECIAL.eot,
            timestamp_begin=BEGIN,
            n_paths=n_paths,
        )
    )
    return drafter


def proposed(
    drafter: CtcDrafter, sampled: Sequence[int] = (), prompt: tuple[int, ...] = PLAIN_PROMPT, budget: int = 64
) -> list[int]:
    position = len(prompt) + len(sampled) - 1 if sampled else 0
    return list(drafter.propose(DraftContext(prompt=prompt, sampled=tuple(sampled), position=position), budget).tokens)


def test_the_whole_window_is_drafted_at_once() -> None:
    drafter = begun(made(spoken(" the pump is on.")))
    assert proposed(drafter) == ids(" the pump is on.")
    assert proposed(drafter, ids(" the pump")) == ids(" is on.")
    assert proposed(drafter, ids(" the pump is on.")) == []
    assert proposed(begun(made(spoken(" the pump is on."))), budget=2) == ids(" the pump")


def test_dear_rows_and_silence_give_no_draft() -> None:
    assert len(proposed(begun(made(spoken(" the pump is on."), costs=DEAR)), ids(" the"))) <= 1
    for nothing in (unheard(), unheard(9), spoken(""[:0] or b"\xff"), unheard(5, -np.inf)):
        assert proposed(begun(made(nothing))) == []
    assert proposed(begun(made(spoken(" the pump")), features=object())) == []


@pytest.mark.parametrize(
    ("heard", "decided", "rest"),
    [
        (" the pump is on now", " the leak", " is on now"),  # substituted
        (" the pump is on now", " the is", " on now"),  # deleted
        (" the pump is on now", " the pump leak is", " on now"),  # inserted, and found again at the next word
        (" the pamp is on now", " the pump", " is on now"),  # spelt otherwise
        (" the pump is on now", " the qqqqqqq", " is on now"),  # by a word of many tokens, which takes the place of one
        (" the pump is on now", " the qqqqqqq zyzzy", " on now"),
        (" the pump is on now", " the,", " pump is on now"),  # a mark has no sound
    ],
)
def test_a_hypothesis_is_taken_up_again_behind_a_correction(heard: str, decided: str, rest: str) -> None:
    drafter = begun(made(spoken(heard)))
    proposed(drafter)
    for n in range(1, len(ids(decided)) + 1):
        found = proposed(drafter, ids(decided)[:n])
    assert found == ids(rest)


def test_a_speech_llms_text_begins_without_a_space_and_maps_have_one(pumps: TokenMap) -> None:
    special = SpeechTokens(
        n_vocab=SPECIAL.eot + 1,
        eot=SPECIAL.eot,
        before=(),
        behind=(),
        languages={},
        context_at=0,
        unknown=(SPECIAL.eot,),
    )
    bare = Tokenizer(TOKENIZER.ranks[: SPECIAL.eot], special)
    doubts = {5: {"u": 0.1}}
    for heard, maps in (("the pump is on.", []), ("the pamp is on.", [pumps])):
        drafter = begun(CtcDrafter(lambda _, h=heard: spoken(h, doubts=doubts), bare, FREE, Guide(maps, None, bare)))  # type: ignore[misc]
        assert proposed(drafter) == ids("the pump is on.")
        assert proposed(drafter, ids("the pump")) == ids(" is on.")


def test_the_map_chooses_the_spelling(pumps: TokenMap) -> None:
    doubts = {i: {"u": 0.1} for i in range(16)}
    assert proposed(begun(made(spoken(" the pamp is on.", doubts=doubts), pumps))) == ids(" the pump is on.")
    assert proposed(begun(made(spoken(" the pamp is on.", doubts=doubts)))) == ids(" the pamp is on.")


def test_the_cache_learns_from_texts_that_were_kept() -> None:
    cache = NgramCache()
    heard = spoken(" the pamp is on.", doubts={6: {"u": 0.3}})
    drafter = begun(made(heard, cache=cache))
    assert proposed(drafter) == ids(" the pamp is on.")
    for _ in range(4):
        drafter.end(tuple(ids(" the pump is on.")))
        begun(drafter)
    assert proposed(begun(drafter)) == ids(" the pump is on.")


def test_timestamps_stand_where_sentences_were_heard() -> None:
    times = np.zeros((500, 2), np.float32)
    times[[0, 70], 0] = times[[53, 124], 1] = 9.0
    heard = replace(spoken(" the pump is on. the leak is two.", pauses=(16,)), times=times)
    drafter = begun(made(heard), Window(np.zeros((500, 2), np.float32)), TIMED_PROMPT)
    decided = [BEGIN, *ids(" the pump is on."), BEGIN + 53, BEGIN + 70, *ids(" the leak is two."), BEGIN + 124]
    assert proposed(drafter, (), TIMED_PROMPT) == decided


@pytest.mark.parametrize("times", [np.full((500, 2), np.nan, np.float32), np.zeros((3, 2)), np.zeros(500)], ids=str)
def test_times_that_are_none_are_not_believed(times: Any) -> None:
    hears = replace(spoken(" the pump is on."), times=times)
    guard = Guard(made(hears))
    plain = decoded(3, None, timed=True, temperature=0.0)
    assert plain_fields(decoded(3, guard, timed=True, temperature=0.0)) == plain_fields(plain)
    assert guard.error is None


def test_after_close_nothing_is_drafted() -> None:
    drafter = begun(made(spoken(" the pump")))
    drafter.close()
    drafter.close()
    assert proposed(drafter) == []


def decoded(seed: int, drafter: Any, *, timed: bool, temperature: float) -> WindowResult:
    rules = RuleSet(SPECIAL, space_ids=[32], suppressed=[], timestamps=timed, max_initial_timestamp_index=50)
    engine = HashEngine(SPECIAL, seed=seed, n_text_ctx=60, timestamp_bias=0.5 * timed)
    options = DecodeOptions(rules=rules, n_text_ctx=60, n_sample=30, temperature=temperature, seed=seed)
    window = Window(np.zeros((4, 2), np.float32))
    return decode_window(engine, window, TIMED_PROMPT if timed else PLAIN_PROMPT, options, drafter)


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    timed=st.booleans(),
    temperature=st.sampled_from([0.0, 0.6]),
    kind=st.sampled_from(["right", "noise", "nan", "nothing", "wrong shape"]),
    guided=st.booleans(),
)
def test_no_text_depends_on_what_is_heard(
    pumps: TokenMap, seed: int, timed: bool, temperature: float, kind: str, guided: bool
) -> None:
    plain = decoded(seed, None, timed=timed, temperature=temperature)
    rng = np.random.default_rng(seed)

    def hear(hidden: Any) -> Posteriors:
        if kind == "right":
            return spoken(TOKENIZER.decode_bytes(plain.tokens) or b"x")
        if kind == "noise":
            return random_posteriors(rng, int(rng.integers(1, 90)))
        if kind == "wrong shape":
            return Posteriors(frames=np.arange(3), log_probs=np.zeros((4, 9), np.float32), n_ctx=4)
        return unheard(7 if kind == "nan" else 0)

    guard = Guard(made(hear, *([pumps] if guided else []), cache=NgramCache()))
    for _ in range(2):
        got = decoded(seed, guard, timed=timed, temperature=temperature)
        guard.end(got.tokens)
        assert guard.error is None
        assert plain_fields(got) == plain_fields(plain)


def test_a_head_that_raises_is_dropped_and_the_text_stays() -> None:
    def hear(hidden: Any) -> Posteriors:
        raise RuntimeError("no ears")

    guard = Guard(made(hear))
    plain = decoded(3, None, timed=True, temperature=0.0)
    assert plain_fields(decoded(3, guard, timed=True, temperature=0.0)) == plain_fields(plain)
    assert guard.error is not None and "no ears" in guard.error
