"""Maps as they are built and read: look-ups against a count with dictionaries, determinism, budgets, life cycle."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specedge.errors import MapError, UsageError
from specedge.maps import build as build_module
from specedge.maps.build import BuildOptions
from specedge.maps.tmap_format import COUNTS, END, quantise_count, text_fingerprint
from specedge.maps.token_map import Candidate, TokenMap
from support.token_maps import FINGERPRINT, N_TEXT, best_path, make_map, occurrences

SENTENCES = [[1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 3, 4], [7, 2, 3], [1, 2, 8, 8, 8, 8]] * 2

_ids = st.integers(0, 5) | st.sampled_from([17, N_TEXT - 1])
_corpora = st.lists(st.lists(_ids, max_size=9), min_size=1, max_size=14).filter(any)
_options = st.builds(
    BuildOptions,
    n_orders=st.integers(1, 5),
    n_candidates=st.integers(1, 4),
    max_length=st.sampled_from([1, 2, 4, 5, 9, 32]),
    min_count=st.integers(1, 3),
    min_share=st.sampled_from([0.0, 0.02, 0.3]),
)


def _context(key: tuple[int, ...]) -> list[int]:
    """What a reader would ask with: the start of a sentence is no id."""
    return [id_ for id_ in key if id_ != END]


def _with_end(candidate: Candidate) -> tuple[int, ...]:
    return (*candidate.tokens, END) if candidate.ends else candidate.tokens


def _check_key(found: Sequence[Candidate], rests: Sequence[tuple[int, ...]], options: BuildOptions) -> None:
    path, count, shares = best_path(rests, options) if len(rests) >= options.min_count else ((), 0, [])
    if not path:
        assert not found
        return
    assert _with_end(found[0]) == path
    assert len(found) <= options.n_candidates
    assert len(set(map(_with_end, found))) == len(found)
    for candidate in found:
        ids = _with_end(candidate)
        true_count = sum(rest[: len(ids)] == ids for rest in rests)
        assert true_count >= max(options.min_count, options.min_share * len(rests))
        assert candidate.count == _quantised(true_count)
        assert len(candidate.confidences) == len(ids) <= options.max_length
    assert found[0].confidences == pytest.approx(shares, abs=0.6 / 255)


def _quantised(count: int) -> int:
    return COUNTS[int(quantise_count(np.array([count]))[0])]


@settings(max_examples=30)
@given(sentences=_corpora, options=_options)
def test_every_key_says_what_was_counted(sentences: list[list[int]], options: BuildOptions) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = make_map(Path(folder) / "x.tmap", sentences, options)
        expected = occurrences(sentences, options.n_orders)
        with TokenMap.open(path, fingerprint=FINGERPRINT) as opened:
            opened.verify()
            for key, rests in expected.items():
                # A context longer than its key is cut; one with the start of the sentence in it is not.
                longer = [3, *key] if END not in key else _context(key)
                _check_key(opened.lookup(longer, len(key)), rests, options)
            known = {key for n in range(1, opened.n_orders + 1) for key, _ in opened.items(n)}
            assert known <= set(expected)
            for key in [(5, 5, 17, 17), (N_TEXT, 1), (1, N_TEXT + 7), (N_TEXT - 1, 17, 3)]:
                if key not in known:
                    assert opened.lookup(key, len(key)) == ()


@settings(max_examples=25)
@given(sentences=_corpora, options=_options)
def test_small_batches_and_blocks_change_no_byte(sentences: list[list[int]], options: BuildOptions) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        whole = make_map(Path(folder) / "a.tmap", sentences, options).read_bytes()
        for name, value in (("_BATCH", 3), ("_SORT_BLOCK", 5), ("_FLUSH", 4)):
            patch.setattr(build_module, name, value)
        assert make_map(Path(folder) / "b.tmap", iter(sentences), options).read_bytes() == whole


def test_branches_are_the_next_best_candidates(tmp_path: Path) -> None:
    with TokenMap.open(make_map(tmp_path / "x.tmap", SENTENCES, BuildOptions(n_candidates=3))) as opened:
        found = opened.lookup([1], 1)
        assert [(c.tokens, c.ends, c.count) for c in found] == [
            ((2, 3, 4), True, 4),
            ((2, 8, 8, 8, 8), True, 2),  # of equal counts the earlier branch
            ((2, 3, 5), True, 2),
        ]
        assert found[0].confidences == pytest.approx((1, 6 / 8, 4 / 6, 1), abs=0.002)
        assert found[2].confidences == pytest.approx((1, 6 / 8, 2 / 6, 1), abs=0.002)


def test_the_start_of_a_sentence_is_a_key(tmp_path: Path) -> None:
    with TokenMap.open(make_map(tmp_path / "x.tmap", SENTENCES)) as opened:
        assert opened.lookup([], 1)[0].tokens == (1, 2, 3, 4)
        assert opened.longest([7]) == (2, opened.lookup([7], 2))
        assert opened.lookup([7], 2)[0] == Candidate((2, 3), 2, (1.0, 1.0, 1.0), True)
        # Asked with a longer context, 7 is no longer the first.
        assert opened.longest([9, 7])[0] == 1
        assert opened.lookup([7], 3) == ()
        assert opened.lookup([END], 1) == () and opened.lookup([END, 7], 2) == ()


@pytest.mark.parametrize("n", [-1, 0, 5, 6, 99])
def test_orders_that_a_map_has_not_find_nothing(tmp_path: Path, n: int) -> None:
    with TokenMap.open(make_map(tmp_path / "x.tmap", SENTENCES)) as opened:
        assert opened.lookup([1, 2, 3, 4, 5, 6], n) == ()


@pytest.mark.parametrize("id_", [-1, -(1 << 40), 50364, 65535, 65536 + 1, 1 << 70])
def test_ids_of_no_text_find_nothing(tmp_path: Path, id_: int) -> None:
    with TokenMap.open(make_map(tmp_path / "x.tmap", SENTENCES, BuildOptions(n_orders=5))) as opened:
        assert opened.longest([1, 2, id_]) == (0, ())
        assert opened.longest([id_, 1])[0] == 1
        assert opened.lookup([1, id_, 3, 4], 4) == ()
        assert opened.lookup([id_, 1, 2, 3, 4], 5) == ()


def test_a_budget_drops_the_least_valuable_keys(tmp_path: Path) -> None:
    sentences = [[i % 7, i % 5, i % 3, i % 11, i % 2] for i in range(400)]
    whole = make_map(tmp_path / "whole.tmap", sentences).stat().st_size
    budget = BuildOptions(budget_bytes=whole * 2 // 3)
    path = make_map(tmp_path / "part.tmap", sentences, budget)
    assert whole // 2 < path.stat().st_size <= whole * 2 // 3
    with TokenMap.open(path) as part, TokenMap.open(tmp_path / "whole.tmap") as all_:
        assert part.info()["build"]["pruned_keys"] > 0
        assert part.lookup([], 1) == all_.lookup([], 1) != ()
        for n in range(1, 5):
            for key, _ in part.items(n):
                assert part.lookup(_context(key), n) == all_.lookup(_context(key), n)
    with pytest.raises(UsageError, match="budget of 300 bytes is too small"):
        make_map(tmp_path / "no.tmap", sentences, BuildOptions(budget_bytes=300))
    assert not (tmp_path / "no.tmap").exists()


def test_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least one sentence"):
        make_map(tmp_path / "x.tmap", [[], []])


def test_another_vocabulary_is_refused(tmp_path: Path) -> None:
    path = make_map(tmp_path / "x.tmap", SENTENCES)
    with pytest.raises(MapError, match="another vocabulary"):
        TokenMap.open(path, fingerprint=bytes(32))


def test_specials_do_not_count_for_the_fingerprint() -> None:
    ranks = [b"a", b"b", b""]
    assert text_fingerprint(ranks, 2) == text_fingerprint([b"a", b"b"], 2) != text_fingerprint([b"ab", b""], 2)
