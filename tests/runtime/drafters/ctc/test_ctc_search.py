"""What was heard in tokens, and how the n-grams of a domain choose between spellings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specedge.maps.build import BuildOptions, build
from specedge.maps.ngram_cache import NgramCache
from specedge.maps.token_map import TokenMap
from specedge.runtime.drafters.ctc.head import Posteriors
from specedge.runtime.drafters.ctc.lattice import HeardToken, lattice_of, spelled
from specedge.runtime.drafters.ctc.ngram_lm import Guide
from specedge.runtime.drafters.ctc.rescore import Search
from support.fake_engine import special_tokens, tokenizer
from support.posteriors import random_posteriors, spoken

SPECIAL = special_tokens()
TOKENIZER = tokenizer(SPECIAL)
TEXTS = [" the pump is on."] * 6 + [" the pump leak now."] * 4 + [" zero one two."] * 5 + [" the two pump on."] * 2


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text)


@pytest.fixture(scope="module")
def pumps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenMap]:
    path = tmp_path_factory.mktemp("maps") / "pumps.tmap"
    build([ids(text) for text in TEXTS], path, n_text=SPECIAL.eot, fingerprint=bytes(32), options=BuildOptions())
    with TokenMap.open(path) as opened:
        yield opened


def guide(*maps: TokenMap, cache: NgramCache | None = None) -> Guide:
    return Guide(maps, cache, TOKENIZER)


def searched(posteriors: Posteriors, guide_: Guide, *, before: Sequence[int] = ()) -> str:
    lattice = lattice_of(posteriors)
    assert lattice is not None
    found = Search(TOKENIZER, guide_).guided(lattice, spelled(lattice, TOKENIZER), before)
    assert all(a.stop <= b.stop for a, b in zip(found, found[1:], strict=False))
    return text_of(found)


def text_of(found: Sequence[HeardToken]) -> str:
    return TOKENIZER.decode([heard.token for heard in found])


def greedy(posteriors: Posteriors) -> list[HeardToken]:
    lattice = lattice_of(posteriors)
    assert lattice is not None
    return spelled(lattice, TOKENIZER)


def test_tokens_are_the_targets_own_and_lie_where_they_were_heard() -> None:
    found = greedy(spoken("the pump  is on. "))
    assert [heard.token for heard in found] == ids(" the pump is on.")
    lattice = lattice_of(spoken("the pump  is on. "))
    assert lattice is not None and lattice.frames[found[1].start] == 3 + 3 * 3
    assert [heard.opens for heard in found] == [True, True, True, True, False]


@pytest.mark.parametrize(
    ("heard", "meant"),
    [
        (" the pamp is on.", " the pump is on."),  # a letter heard wrongly
        (" the pmp is on.", " the pump is on."),  # one not heard
        (" thepump is on.", " the pump is on."),  # a space not heard
        (" the pu mp is on.", " the pump is on."),  # one heard too many
        (" the pump in on.", " the pump is on."),
        ("zero ane two.", " zero one two."),
        (" the pamp is on. zero ane two. the pmp leak naw.", " the pump is on. zero one two. the pump leak now."),
    ],
)
def test_ngrams_decide_what_was_heard_badly(pumps: TokenMap, heard: str, meant: str) -> None:
    doubts = {i: {b: 0.05 for b in " eiopu"} for i in range(len(heard))}
    assert text_of(greedy(spoken(heard, doubts=doubts))) == " " + heard.strip()
    assert searched(spoken(heard, doubts=doubts), guide(pumps)) == meant


def test_a_word_is_found_among_many_that_begin_with_the_same_piece(tmp_path: Path) -> None:
    texts = [f" the k{letter}o is on." for letter in "abcdefghijlmnopqrstuv" for _ in range(2)]
    path = tmp_path / "pieces.tmap"
    build([ids(text) for text in texts], path, n_text=SPECIAL.eot, fingerprint=bytes(32))
    with TokenMap.open(path) as opened:
        heard = spoken(" the kzo is on.", doubts={6: {"v": 0.05}})
        assert searched(heard, guide(opened)) == " the kvo is on."


def test_what_this_run_has_said_guides_too() -> None:
    cache = NgramCache()
    for _ in range(4):
        cache.learn(ids(" the xylophone is on."))
    said = spoken(" the xelophone is on.", doubts={6: {"y": 0.3}})
    assert searched(said, guide(cache=cache)) == " the xylophone is on."
    assert searched(said, guide(cache=NgramCache())) == " the xelophone is on."


def test_words_of_several_tokens_are_found(tmp_path: Path) -> None:
    texts = [" the leakings is on."] * 5 + [" the leaking pump is on."] * 4 + [" leak now."] * 3
    build([ids(text) for text in texts], tmp_path / "long.tmap", n_text=SPECIAL.eot, fingerprint=bytes(32))
    with TokenMap.open(tmp_path / "long.tmap") as long:
        doubts = {i: {b: 0.05 for b in " aegiknos"} for i in range(20)}
        for heard, meant in ((" the liekangs is on.", " the leakings is on."), (" leek now.", " leak now.")):
            assert searched(spoken(heard, doubts=doubts), guide(long)) == meant


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), n=st.integers(1, 120))
def test_anything_that_is_heard_becomes_tokens(pumps: TokenMap, seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    posteriors = random_posteriors(rng, n, float(rng.choice([0.5, 3.0, 10.0])))
    cache = NgramCache()
    cache.learn([int(token) for token in rng.integers(0, SPECIAL.eot, 30)])
    lattice = lattice_of(posteriors)
    assert lattice is not None
    for guide_ in (guide(pumps), guide(cache=cache), guide(pumps, cache=cache)):
        found = Search(TOKENIZER, guide_).guided(lattice, spelled(lattice, TOKENIZER), ids(" the pump."))
        assert all(0 <= heard.token < SPECIAL.eot and 0 <= heard.start <= heard.stop <= len(lattice) for heard in found)
        assert all(0 <= heard.sure <= 1 for heard in found)
