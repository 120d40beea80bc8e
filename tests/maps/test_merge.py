"""Merging adds what the maps know."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specedge.errors import MapError
from specedge.maps.build import BuildOptions, build
from specedge.maps.merge import merge
from specedge.maps.tmap_format import END
from specedge.maps.token_map import TokenMap
from support.token_maps import FINGERPRINT, make_map, occurrences

_corpora = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=6), min_size=1, max_size=8)
_ALL = BuildOptions(n_orders=5, n_candidates=8, min_count=1, min_share=0.0)


@settings(max_examples=12)
@given(left=_corpora, right=_corpora)
def test_a_merged_map_claims_no_more_than_both_texts_hold(left: list[list[int]], right: list[list[int]]) -> None:
    counted = occurrences(left + right, 5)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        a, b = (make_map(folder / f"{i}.tmap", text, _ALL) for i, text in enumerate((left, right)))
        with TokenMap.open(a) as ours, TokenMap.open(b) as theirs:
            merge([ours, theirs], folder / "merged.tmap")
            kept = {key for opened in (ours, theirs) for n in range(1, 6) for key, _ in opened.items(n)}
        with TokenMap.open(folder / "merged.tmap") as merged:
            assert {key for n in range(1, 6) for key, _ in merged.items(n)} == kept == set(counted)
            for key, rests in counted.items():
                for candidate in merged.lookup([id_ for id_ in key if id_ != END], len(key)):
                    ids = (*candidate.tokens, *[END] * candidate.ends)
                    n_here = sum(rest[: len(ids)] == ids for rest in rests)
                    n_first = sum(rest[:1] == ids[:1] for rest in rests)
                    assert 1 <= candidate.count <= n_here + 1
                    assert candidate.confidences[0] <= n_first / len(rests) + 0.06


def test_a_merged_map_is_the_same_whatever_was_there_before(tmp_path: Path) -> None:
    path = make_map(tmp_path / "a.tmap", [[1, 2, 3]] * 3)
    other = make_map(tmp_path / "b.tmap", [[1, 2, 4]] * 5 + [[9, 9]] * 2)
    for name in ("x", "y"):
        with TokenMap.open(path) as a, TokenMap.open(other) as b:
            merge([a, b], tmp_path / f"{name}.tmap")
    assert (tmp_path / "x.tmap").read_bytes() == (tmp_path / "y.tmap").read_bytes()
    with TokenMap.open(tmp_path / "x.tmap") as merged:
        assert [(c.tokens, c.count) for c in merged.lookup([1, 2], 2)] == [((4,), 5), ((3,), 3)]
        assert merged.lookup([1, 2], 2)[0].confidences[0] == pytest.approx(5 / 8, abs=0.01)
        assert merged.lookup([9], 2)[0].tokens == (9,)
        assert merged.info()["build"]["sentences"] == 10
    with TokenMap.open(path) as a:
        merge([a], tmp_path / "one.tmap")
        with TokenMap.open(tmp_path / "one.tmap") as one:
            assert [one.lookup(key, len(key)) for key in ([1], [1, 2])] == [a.lookup([1], 1), a.lookup([1, 2], 2)]
        # A map may be replaced by its own merger.
        merge([a, a], path)
    with TokenMap.open(path) as twice:
        assert twice.lookup([1], 1)[0].count == 6


def test_maps_of_different_vocabularies_do_not_mix(tmp_path: Path) -> None:
    path = make_map(tmp_path / "a.tmap", [[1, 2]] * 2)
    build([[1, 2]] * 2, tmp_path / "b.tmap", n_text=50, fingerprint=FINGERPRINT)
    with TokenMap.open(path) as a, TokenMap.open(tmp_path / "b.tmap") as b:
        with pytest.raises(MapError, match="different vocabularies"):
            merge([a, b], tmp_path / "x.tmap")
