"""Drafts from token maps: what is guessed, when nothing is, and that no text ever depends on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specedge.maps.build import BuildOptions, build
from specedge.maps.token_map import TokenMap
from specedge.runtime.decoding.decode import DecodeOptions, WindowResult, decode_window
from specedge.runtime.decoding.drafter import DraftContext, DraftTree, Verdict, WindowContext
from specedge.runtime.decoding.rules import RuleSet
from specedge.runtime.device import CostTable
from specedge.runtime.drafters.tokenmap import TokenMapDrafter
from specedge.runtime.papers.tokenmap import PaperTokenMapDrafter
from support.drafting import parents_of
from support.fake_engine import HashEngine, special_tokens, words

SPECIAL = special_tokens()
PLAIN_PROMPT = (SPECIAL.sot, SPECIAL.languages["en"], SPECIAL.transcribe or 0, SPECIAL.no_timestamps)
TIMED_PROMPT = PLAIN_PROMPT[:-1]
FREE = CostTable((1, 64), (1.0, 1.0))
DEAR = CostTable((1, 2, 64), (1.0, 5.0, 300.0))
PUMP = words(" the", " pump", " is", " on")
LEAK = words(" the", " pump", " leak", " now")
STOP = ord(".")
# Letters of three sentences: the second begins as many do, and only the first says how it goes on.
LETTERS = [[100 + n, 120 + n, 140 + n, STOP, 50, 51, 60 + n, STOP, 50, 51, 80 + n, STOP] for n in range(8)]


@pytest.fixture(scope="module")
def pumps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenMap]:
    path = tmp_path_factory.mktemp("maps") / "pumps.tmap"
    sentences = [[*PUMP, STOP]] * 6 + [[*LEAK, STOP]] * 3 + [[*words(" zero", " one", " two"), STOP]] * 2
    build(sentences, path, n_text=SPECIAL.eot, fingerprint=bytes(32), options=BuildOptions(n_orders=5))
    with TokenMap.open(path) as opened:
        yield opened


def drafter(*maps: TokenMap, costs: CostTable = FREE, **options: Any) -> TokenMapDrafter:
    return TokenMapDrafter(maps, costs, ends=lambda token: token == STOP, **options)


def paper(*maps: TokenMap, costs: CostTable = FREE, **options: Any) -> TokenMapDrafter:
    return PaperTokenMapDrafter(maps, costs, ends=lambda token: token == STOP, **options)


def proposal(
    made: TokenMapDrafter,
    sampled: Sequence[int] = (),
    *,
    prompt: tuple[int, ...] = PLAIN_PROMPT,
    n_paths: int = 1,
    budget: int = 64,
    history: tuple[int, ...] = (),
) -> DraftTree:
    made.begin(
        WindowContext(
            features=None,
            prompt=prompt,
            n_vocab=SPECIAL.n_vocab,
            n_sample=100,
            eot=SPECIAL.eot,
            timestamp_begin=SPECIAL.timestamp_begin,
            n_paths=n_paths,
            history=history,
        )
    )
    position = len(prompt) + len(sampled) - 1 if sampled else 0
    return made.propose(DraftContext(prompt=prompt, sampled=tuple(sampled), position=position), budget)


@pytest.fixture(scope="module")
def letters_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("maps") / "letters.tmap"
    build(LETTERS * 2, path, n_text=SPECIAL.eot, fingerprint=bytes(32))
    return path


def test_a_draft_exists_before_the_first_word(pumps: TokenMap) -> None:
    assert list(proposal(drafter(pumps)).tokens) == [*PUMP, STOP]


def test_the_sentence_so_far_decides(pumps: TokenMap) -> None:
    assert list(proposal(drafter(pumps), words(" the", " pump", " leak")).tokens) == [*words(" now"), STOP]
    assert list(proposal(drafter(pumps), words(" zero")).tokens)[:2] == words(" one", " two")


def test_several_paths_go_only_where_they_pay_for_what_such_a_pass_takes_more(pumps: TokenMap) -> None:
    dear = CostTable(FREE.rows, FREE.relative, several_paths=3.0)
    tree = proposal(drafter(pumps, costs=dear), words(" the"), n_paths=3)
    assert isinstance(tree, DraftTree) and len(tree)


def test_dear_rows_and_empty_budgets_give_no_draft(pumps: TokenMap) -> None:
    assert len(proposal(drafter(pumps, costs=DEAR), words(" the", " pump"))) <= 1  # the row that is run anyway
    assert len(proposal(drafter(pumps), budget=2)) == 2


def test_of_several_continuations_three_are_drafted(tmp_path: Path) -> None:
    """Token Map Drafting: two or three candidates of a key are best."""
    sentences = [[20, 30 + n, 40 + n, STOP] for n in range(4) for _ in range(6 - n)]
    build(sentences, tmp_path / "m.tmap", n_text=SPECIAL.eot, fingerprint=bytes(32))
    with TokenMap.open(tmp_path / "m.tmap") as map_:
        tree = proposal(drafter(map_), [20], n_paths=4)
    assert [token for token, parent in zip(tree.tokens, parents_of(tree), strict=True) if parent == -1] == [30, 31, 32]


def test_what_no_map_has_gives_no_draft(pumps: TokenMap) -> None:
    assert len(proposal(drafter(pumps), [65, 66, 67])) == 0
    assert len(proposal(drafter(), words(" the"))) == 0


def test_the_papers_settings(pumps: TokenMap) -> None:
    made = paper(pumps, costs=DEAR)
    assert len(proposal(made, words(" the"))) == 0  # keys of three tokens alone
    assert list(proposal(made, words(" the", " pump", " is")).tokens) == [*words(" on"), STOP]
    # Two candidates of fewer than nine tokens become their common beginning.
    start = paper(pumps, orders=(2,))
    assert parents_of(proposal(start, words(" the", " pump"), n_paths=3)).count(-1) == 1


def test_a_draft_goes_on_by_what_followed_most_often(tmp_path: Path) -> None:
    """Behind 30 and 31 nothing is the same twice after 20, 21, 22; elsewhere 50 comes thrice and 60 twice."""
    sentences = [[20, 21, 22, 30, 31, 100 + n, STOP] for n in range(9)]
    sentences += [[40, 41, 30, 31, 60, STOP]] * 2 + [[42, 43, 30, 31, 50, STOP]] * 3
    build(sentences, tmp_path / "m.tmap", n_text=SPECIAL.eot, fingerprint=bytes(32))
    with TokenMap.open(tmp_path / "m.tmap") as map_:
        assert list(proposal(drafter(map_), [20, 21, 22]).tokens) == [30, 31, 50, STOP]


@pytest.mark.parametrize(
    ("continuations", "expected"),
    [
        (([30, 31, 32], [30, 31, 33]), [30, 31]),
        (([30, 31, 32], [40, 41, 42]), [30, 31, 32, STOP]),  # nothing in common: the more frequent one stays
        (([30, 31, 32], [40, 41, 42], [40, 41, 43]), [40, 41]),  # those that begin alike first; 9 of 15 began so
        (([*range(30, 38)], [*range(40, 48)]), [*range(30, 38), STOP, *range(40, 48), STOP]),  # nine tokens each
        # Of three with 13 tokens the first and the last become the ten that both begin with; two of ten may stay.
        (([*range(30, 42)], [*range(70, 82)], [*range(30, 40), 60, 61]), [*range(30, 40), *range(70, 82), STOP]),
    ],
)
def test_candidates_are_merged_until_they_are_long_enough(
    continuations: Sequence[list[int]], expected: list[int], tmp_path: Path
) -> None:
    """Token Map Drafting, section 3: 9 tokens for two candidates, 16 for three, else candidates are merged."""
    sentences = [[20, 21, 22, *one, STOP] for n, one in enumerate(continuations) for _ in range(6 - n)]
    build(sentences, tmp_path / "m.tmap", n_text=SPECIAL.eot, fingerprint=bytes(32), options=BuildOptions(n_orders=3))
    with TokenMap.open(tmp_path / "m.tmap") as map_:
        tree = proposal(paper(map_), [20, 21, 22], n_paths=3)
    assert list(tree.tokens) == expected


def test_refused_guesses_are_held_against_the_map(pumps: TokenMap) -> None:
    made = drafter(pumps, costs=CostTable((1, 2, 3, 64), (1.0, 1.0, 1.6, 40.0)))
    assert len(proposal(made, words(" zero"))) > 1
    for _ in range(60):
        tree = proposal(made, words(" zero"))
        if len(tree):
            nodes = tuple(range(len(tree)))
            drafted = tuple(list(tree.tokens))
            made.observe(Verdict(drafted=drafted, n_accepted=0, token=1, finished=False, evaluated=nodes, rejected=0))
    assert len(proposal(made, words(" zero"))) <= 1


def _decode(engine: HashEngine, made: TokenMapDrafter | None, timestamps: bool, temperature: float) -> WindowResult:
    rules = RuleSet(SPECIAL, space_ids=[32], suppressed=[], timestamps=timestamps, max_initial_timestamp_index=50)
    options = DecodeOptions(rules=rules, n_text_ctx=48, temperature=temperature)
    return decode_window(engine, b"window", TIMED_PROMPT if timestamps else PLAIN_PROMPT, options, made)


@pytest.mark.slow
@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**16),
    timestamps=st.booleans(),
    temperature=st.sampled_from([0.0, 0.6]),
    make=st.sampled_from([drafter, paper]),
    n_known=st.integers(0, 3),
)
def test_the_text_is_that_of_plain_decoding(
    tmp_path_factory: pytest.TempPathFactory, seed: int, timestamps: bool, temperature: float, make: Any, n_known: int
) -> None:
    engine = HashEngine(SPECIAL, seed=seed, eot_bias=4.0, timestamp_bias=1.0)
    plain = _decode(engine, None, timestamps, temperature)
    rng = np.random.default_rng(seed)
    corpus = [[int(i) for i in rng.integers(0, SPECIAL.eot, 6)] for _ in range(5)]
    # Some maps know the very text, so that drafts are accepted too.
    corpus += [[token for token in plain.tokens if token < SPECIAL.eot] or [1]] * n_known
    path = tmp_path_factory.mktemp("map") / "x.tmap"
    kept = BuildOptions(n_orders=3, min_count=1)
    build(corpus, path, n_text=SPECIAL.eot, fingerprint=bytes(32), options=kept)
    with TokenMap.open(path) as opened:
        found = _decode(engine, make(opened, orders=(3, 2, 1)), timestamps, temperature)
    assert found.tokens == plain.tokens
    assert found.token_logprobs == plain.token_logprobs
    assert found.speculation.tokens == plain.speculation.tokens


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_the_longest_key_decides(n: int, tmp_path: Path) -> None:
    """Token Map Drafting, N = 1 to 5: of five tokens the last n are known, and behind fewer another one is likelier."""
    *before, last = range(10, 10 + n)
    text = [[*before, last, 70, STOP]] * 2 + [[40, *before[1:], last, 80, STOP]] * 5
    build(text, tmp_path / "x.tmap", n_text=SPECIAL.eot, fingerprint=bytes(32), options=BuildOptions(n_orders=5))
    with TokenMap.open(tmp_path / "x.tmap") as opened:
        said = [*range(90, 95 - n), *before, last]
        assert next(iter(proposal(drafter(opened), said).tokens)) == 70
        assert next(iter(proposal(drafter(opened), [*said[:-n], 41, *before[1:], last]).tokens)) == 80
