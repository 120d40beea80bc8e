"""Maps of vocabularies with more ids than a u16: they say what the same texts say in a small vocabulary."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specedge.errors import MapError, UsageError
from specedge.maps import merge as merge_module
from specedge.maps.build import BuildOptions, build
from specedge.maps.merge import merge
from specedge.maps.tmap_format import END, END_ID, MAX_TOKENS
from specedge.maps.token_map import NgramIndex, TokenMap
from support.token_maps import FINGERPRINT, N_TEXT, make_map, sealed, sections_of

N_WIDE = 151_643
# Ids of a small vocabulary in a large one, rising; among them are those that END and its neighbours are in u16.
WIDE = (0, 1, 2, 0xFFFE, 0xFFFF, 0x10000, *range(70_000, 70_000 + N_TEXT - 7), N_WIDE - 1)
_ids = st.integers(0, 6) | st.sampled_from([17, N_TEXT - 1])
_corpora = st.lists(st.lists(_ids, min_size=1, max_size=9), min_size=1, max_size=12)


def _widened(sentences: Sequence[Sequence[int]]) -> list[list[int]]:
    return [[WIDE[id_] for id_ in sentence] for sentence in sentences]


def _wide_map(path: Path, sentences: Sequence[Sequence[int]], options: BuildOptions | None = None) -> Path:
    build(_widened(sentences), path, n_text=N_WIDE, fingerprint=FINGERPRINT, options=options)
    return path


def _keys(opened: TokenMap) -> list[tuple[int, ...]]:
    return [key for n in range(1, opened.n_orders + 1) for key, _ in opened.items(n)]


def _as_wide(key: Sequence[int]) -> tuple[int, ...]:
    return tuple(END_ID if id_ == END else WIDE[id_] for id_ in key)


def _check_same(small: TokenMap, wide: TokenMap, sentences: Sequence[Sequence[int]]) -> None:
    wide.verify()
    assert _keys(wide) == [_as_wide(key) for key in _keys(small)]
    contexts = [sentence[:at] for sentence in sentences for at in range(len(sentence) + 1)]
    for context in [*contexts, [5, 17, 3, 1, 2, 6]]:
        n, expected = small.longest(context)
        found_n, found = wide.longest([WIDE[id_] for id_ in context])
        assert found_n == n
        assert [c._replace(tokens=()) for c in found] == [c._replace(tokens=()) for c in expected]
        assert [c.tokens for c in found] == [_as_wide(c.tokens) for c in expected]


@settings(max_examples=15)
@given(sentences=_corpora, n_orders=st.integers(1, 5))
def test_a_large_vocabulary_says_what_a_small_one_says(sentences: list[list[int]], n_orders: int) -> None:
    options = BuildOptions(n_orders=n_orders, min_count=1)
    with tempfile.TemporaryDirectory() as folder:
        small_path = make_map(Path(folder) / "small.tmap", sentences, options)
        wide_path = _wide_map(Path(folder) / "wide.tmap", sentences, options)
        with TokenMap.open(small_path) as small, TokenMap.open(wide_path, fingerprint=FINGERPRINT) as wide:
            _check_same(small, wide, sentences)
            assert not wide.longest([WIDE[-1] - 1])[1] and not wide.longest([N_WIDE + 7, -1])[1]
            ours, theirs = NgramIndex(wide, 4), NgramIndex(small, 4)
            assert ours.alone.ids.tolist() == [WIDE[id_] for id_ in theirs.alone.ids]
            for sentence in sentences:
                for n in theirs.orders:
                    expected = theirs.followers(sentence, n)
                    found = ours.followers([WIDE[id_] for id_ in sentence], n)
                    assert found.ids.tolist() == [WIDE[id_] for id_ in expected.ids]
                    assert found.log_shares.tolist() == expected.log_shares.tolist()


def test_maps_with_too_many_ids_together_are_not_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maps = [TokenMap.open(_wide_map(tmp_path / f"{i}", [[i, 4]] * 2)) for i in range(3)]
    monkeypatch.setattr(merge_module, "MAX_TOKENS", 3)
    with pytest.raises(UsageError, match="4 different token ids together, expected at most 3"):
        merge(maps, tmp_path / "merged.tmap")
    assert not (tmp_path / "merged.tmap").exists()


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, 0], "do not rise"),
        ([5, 5], "do not rise"),
        ([0, N_WIDE], "not below"),
        ([0], "an impossible length, expected up to 1 rows"),
        ([], "impossible length"),
        (range(MAX_TOKENS + 1), "impossible length"),
    ],
)
def test_a_wrong_table_of_ids_is_refused(tmp_path: Path, ids: Sequence[int], message: str) -> None:
    contents = sections_of(_wide_map(tmp_path / "x.tmap", [[1, 2]] * 3).read_bytes())
    contents["ids"] = np.array(ids, "<u4").tobytes()
    with pytest.raises(MapError, match=message):
        TokenMap(sealed(contents, n_text=N_WIDE), "x.tmap").verify()
