"""The corpus in a map: which sentences are kept, and the longest match in them against a search through all of it."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specedge.errors import MapError, UsageError
from specedge.maps.build import BuildOptions
from specedge.maps.corpus import CorpusIndex, Match
from specedge.maps.merge import MergeReport, diff, merge
from specedge.maps.tmap_format import CORPUS_DEPTH, END
from specedge.maps.token_map import TokenMap
from support.token_maps import N_TEXT, make_map

_ids = st.integers(0, 3) | st.sampled_from([17, N_TEXT - 1])
_corpora = st.lists(st.lists(_ids, max_size=40), min_size=1, max_size=8).filter(any)
KEEP = BuildOptions(corpus_bytes=1 << 16)


def _corpus(opened: TokenMap) -> CorpusIndex:
    assert opened.corpus is not None
    return opened.corpus


def _sentences(opened: TokenMap) -> list[list[int]]:
    return [list(sentence) for sentence in _corpus(opened).sentences()]


def _rests(sentences: Sequence[Sequence[int]], piece: Sequence[int]) -> list[tuple[int, ...]]:
    """What follows each place where `piece` stands in the different sentences."""
    n = len(piece)
    distinct = dict.fromkeys(map(tuple, sentences))
    return [(*s[i + n :], END) for s in distinct for i in range(len(s) - n + 1) if s[i : i + n] == tuple(piece)]


@settings(max_examples=60)
@given(sentences=_corpora, data=st.data())
def test_the_longest_match_is_what_a_search_finds(sentences: list[list[int]], data: st.DataObject) -> None:
    known = data.draw(st.sampled_from([s for s in sentences if s]))
    context = [*data.draw(st.lists(_ids, max_size=4)), *known[: data.draw(st.integers(0, len(known)))]]
    above = data.draw(st.integers(0, 3))
    with tempfile.TemporaryDirectory() as folder:
        path = make_map(Path(folder) / "x.tmap", sentences, BuildOptions(n_orders=1, corpus_bytes=1 << 16))
        with TokenMap.open(path) as opened:
            opened.verify()
            found = _corpus(opened).longest(context, above=above, max_length=9)
    lengths = [n for n in range(1, min(CORPUS_DEPTH, len(context)) + 1) if _rests(sentences, context[-n:])]
    longest = max(lengths, default=0)
    assert (0 if found is None else found.length) == (longest if longest > above else 0)
    if found is None:
        return
    rests = _rests(sentences, context[-longest:])
    assert 0 < found.n_seen <= len(rests)
    if len(rests) > 8:
        return
    assert found.n_seen == len(rests)
    for depth, said in enumerate((*found.tokens, END) if found.ends else found.tokens):
        counts = Counter(rest[depth] for rest in rests)
        assert counts[said] == max(counts.values())
        assert found.confidences[depth] == counts[said] / len(rests)
        rests = [rest for rest in rests if rest[depth] == said]
    assert len(found.confidences) == len(found.tokens) + found.ends <= 9


def test_places_disagree_and_the_more_frequent_sentence_decides_a_tie(tmp_path: Path) -> None:
    sentences = [[1, 2, 3, 4, 5], [1, 2, 3, 6], [1, 2, 3, 6], [9, 2, 3, 7, 7]]
    with TokenMap.open(make_map(tmp_path / "x.tmap", sentences, KEEP)) as opened:
        assert _corpus(opened).longest([8, 1, 2, 3]) == Match(3, 2, (6,), (0.5, 1.0), True)
        assert _corpus(opened).longest([2, 3], above=1) == Match(2, 3, (6,), (1 / 3, 1.0), True)
        assert _corpus(opened).longest([9, 2, 3], max_length=1) == Match(3, 1, (7,), (1.0,), False)
        assert _corpus(opened).longest([9, 2, 3], above=3) is None
        assert _corpus(opened).longest([]) is None


@pytest.mark.parametrize("id_", [-1, N_TEXT, END, 65536 + 3, 1 << 70])
def test_ids_of_no_text_end_the_context(tmp_path: Path, id_: int) -> None:
    with TokenMap.open(make_map(tmp_path / "x.tmap", [[1, 2, 3, 4]] * 2, KEEP)) as opened:
        assert _corpus(opened).longest([1, 2, id_]) is None
        assert _corpus(opened).longest([1, id_, 3]) == Match(1, 1, (4,), (1.0, 1.0), True)


def test_equal_sentences_are_kept_once_and_the_most_frequent_stay_in_a_budget(tmp_path: Path) -> None:
    rare, usual, long = [1, 2, 3], [4, 5], list(range(30))
    sentences = [rare, usual, [], long, usual, long, usual]
    with TokenMap.open(make_map(tmp_path / "x.tmap", sentences, KEEP)) as opened:
        assert _sentences(opened) == [usual, long, rare]
        assert opened.info()["corpus"] == {"sentences": 3, "tokens": 35}
    for budget, kept in (
        (18, [usual]),
        (35, [usual]),
        (36, [usual, rare]),
        (199, [usual, long]),
        (220, [usual, long, rare]),
    ):
        path = make_map(tmp_path / "x.tmap", sentences, BuildOptions(corpus_bytes=budget))
        with TokenMap.open(path) as opened:
            assert _sentences(opened) == kept, budget
    with pytest.raises(UsageError, match="a corpus of 15 bytes is too small"):
        make_map(tmp_path / "no.tmap", sentences, BuildOptions(corpus_bytes=15))


def test_a_map_without_a_corpus_is_the_file_that_it_was(tmp_path: Path) -> None:
    sentences = [[1, 2, 3]] * 3
    plain = make_map(tmp_path / "plain.tmap", sentences)
    with TokenMap.open(plain) as opened:
        assert opened.corpus is None and opened.info()["corpus"] is None
    assert plain.read_bytes()[:8] == b"\x89TMAP1\r\n" and b"corpus" not in plain.read_bytes()
    kept = make_map(tmp_path / "kept.tmap", iter(sentences), KEEP)
    assert kept.read_bytes()[:8] == b"\x89TMAP2\r\n"
    assert make_map(tmp_path / "again.tmap", sentences, KEEP).read_bytes() == kept.read_bytes()


def test_the_budget_of_the_file_holds_the_corpus_too(tmp_path: Path) -> None:
    sentences = [[i % 7, i % 5, i % 3, i % 11, i % 2] for i in range(400)]
    whole = make_map(tmp_path / "whole.tmap", sentences, KEEP).stat().st_size
    budget = whole // 2
    path = make_map(tmp_path / "part.tmap", sentences, BuildOptions(corpus_bytes=1 << 20, budget_bytes=budget))
    assert path.stat().st_size <= budget
    with TokenMap.open(path) as opened:
        info = opened.info()
        assert info["build"]["pruned_keys"] > 0
        assert budget // 3 < 2 * info["corpus"]["sentences"] + 6 * info["corpus"]["tokens"] <= budget // 2


def test_a_closed_map_has_no_corpus_any_more(tmp_path: Path) -> None:
    opened = TokenMap.open(make_map(tmp_path / "x.tmap", [[1, 2, 3]] * 2, KEEP))
    corpus = _corpus(opened)
    opened.close()
    with pytest.raises(MapError, match="closed"):
        _ = opened.corpus
    with pytest.raises(ValueError, match="released"):
        corpus.longest([1, 2])


def test_corpora_are_merged_in_turn_and_compared(tmp_path: Path) -> None:
    a = make_map(tmp_path / "a.tmap", [[1, 2], [1, 2], [3, 4, 5], [6, 7]], KEEP)
    b = make_map(tmp_path / "b.tmap", [[3, 4, 5], [8, 9, 10]], KEEP)
    plain = make_map(tmp_path / "plain.tmap", [[1, 2]] * 2)
    with TokenMap.open(a) as ours, TokenMap.open(b) as theirs, TokenMap.open(plain) as without:
        merged = tmp_path / "m.tmap"
        assert merge([ours, without, theirs], merged) == MergeReport(n_sentences=4, n_kept=4)
        with TokenMap.open(merged) as opened:
            assert _sentences(opened) == [[1, 2], [3, 4, 5], [8, 9, 10], [6, 7]]
        assert merge([without], merged) == MergeReport(n_sentences=0, n_kept=0)
        assert diff(ours, theirs).sentences == (2, 1, 1)
        assert diff(ours, without).sentences == (3, 0, 0)
