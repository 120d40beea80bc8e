"""The n-grams of a map read forwards: all that followed a context, and how often, counted the slow way beside."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specedge.maps.build import BuildOptions
from specedge.maps.token_map import NgramIndex, TokenMap
from support.token_maps import make_map

SENTENCES = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=8), min_size=1, max_size=12)


@settings(max_examples=15, deadline=None)
@given(SENTENCES, st.integers(2, 4))
def test_all_that_followed_is_there(
    tmp_path_factory: pytest.TempPathFactory, sentences: list[list[int]], n: int
) -> None:
    path = make_map(tmp_path_factory.mktemp("map") / "x.tmap", sentences, BuildOptions(min_count=1, min_share=0.0))
    with TokenMap.open(path) as opened:
        index = NgramIndex(opened, 4)
    for context in {tuple(sentence[:at]) for sentence in sentences for at in range(len(sentence))}:
        if len(context) + 1 < n - 1:
            continue
        key = [-1, *context][-(n - 1) :]
        after = Counter(
            padded[at]
            for padded in ([-1, *sentence] for sentence in sentences)
            for at in range(1, len(padded))
            if at >= n - 1 and padded[at - n + 1 : at] == key
        )
        ids, log_shares = index.followers(context, n)
        assert ids.tolist() == sorted(after)
        expected = [after[id_] / after.total() for id_ in sorted(after)]
        assert np.exp(log_shares).tolist() == pytest.approx(expected, rel=0.15)  # counts are quantised
    assert index.alone.ids.tolist() == sorted({id_ for sentence in sentences for id_ in sentence})
