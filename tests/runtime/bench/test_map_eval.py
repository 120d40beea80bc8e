"""The replay of a text against a map: what is counted, and what it costs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from specedge.maps.build import BuildOptions
from specedge.maps.token_map import TokenMap
from specedge.runtime.bench.map_eval import Watched, replay
from specedge.runtime.decoding.drafter import DraftContext, DraftTree, Verdict, WindowContext
from specedge.runtime.device import CostTable
from support.drafting import Scripted
from support.token_maps import make_map

FLAT = CostTable((1, 2), (1.0, 1.0))
STEEP = CostTable((1, 2), (1.0, 9.0))


def test_a_known_sentence_takes_one_pass(tmp_path: Path) -> None:
    with TokenMap.open(make_map(tmp_path / "x.tmap", [[1, 2, 3, 4]] * 3)) as opened:
        found = replay(opened, [[1, 2, 3, 4], []], FLAT)
    assert (found.sentences, found.tokens, found.passes) == (1, 5, 1)
    assert (found.proposed, found.accepted, found.hit_rate, found.acceptance_rate) == (5, 5, 1.0, 1.0)
    assert found.mean_accepted == found.tokens_per_pass == found.speed_up == 5
    assert found.hits_by_order == {1: 1}


def test_an_error_in_a_draft_is_corrected_and_gone_on_from(tmp_path: Path) -> None:
    with TokenMap.open(make_map(tmp_path / "x.tmap", [[1, 2, 3, 4]] * 3, BuildOptions(n_orders=2))) as opened:
        found = replay(opened, [[1, 2, 9, 4]], FLAT)
    # Two tokens and the correction 9; the map knows nothing after 9; then the end after 4 was drafted.
    assert (found.passes, found.accepted, found.lookups, found.hits) == (3, 3, 3, 2)


def test_drafts_that_do_not_pay_are_not_made(tmp_path: Path) -> None:
    with TokenMap.open(make_map(tmp_path / "x.tmap", [[1, 2, 3, 4]] * 3)) as opened:
        found = replay(opened, [[1, 2, 3, 4]], STEEP)
    assert (found.drafts, found.passes, found.speed_up) == (0, 5, 1.0)
    assert found.hits == 5 and found.acceptance_rate == found.mean_accepted == 0


def test_unrelated_text_costs_nothing(tmp_path: Path) -> None:
    with TokenMap.open(make_map(tmp_path / "x.tmap", [[1, 2, 3, 4]] * 3)) as opened:
        found = replay(opened, [[30, 31, 32]] * 4, STEEP)
        assert replay(opened, [], STEEP).speed_up == 1.0
    assert found.speed_up == pytest.approx(1.0)


def test_a_drafter_is_watched_and_left_as_it_is(tmp_path: Path) -> None:
    window = WindowContext(
        features=None, prompt=(50, 51), n_vocab=99, n_sample=9, eot=40, timestamp_begin=52, n_paths=2
    )
    tree = DraftTree(tokens=np.array([1, 2, 3], np.int32), parents=np.array([-1, -1, 1], np.int32))
    drafter = Scripted(lambda context, budget: tree)
    slopes = CostTable((1, 11), (1.0, 2.0))
    with TokenMap.open(make_map(tmp_path / "x.tmap", [[1, 2, 3, 4]] * 3)) as opened:
        watched = Watched(drafter, opened, slopes, ends=lambda token: token == 4)
        watched.begin(window)
        assert watched.propose(DraftContext(prompt=(50, 51), sampled=(), position=0), 9) is tree
        watched.observe(Verdict(drafted=(1,), n_accepted=1, token=9, finished=False, evaluated=(0,), nodes=(0,)))
        watched.propose(DraftContext(prompt=(50, 51), sampled=(1, 9), position=3), 9)
        watched.observe(Verdict(drafted=(2, 3), n_accepted=0, token=4, finished=False, evaluated=(0, 1, 2)))
        watched.observe(Verdict(drafted=(), n_accepted=0, token=40, finished=True))
        watched.end((1, 9, 4))
    found = watched.found
    assert (found.passes, found.tokens, found.drafts, found.proposed, found.accepted) == (3, 4, 2, 4, 1)
    assert (found.lookups, found.hits) == (2, 1), "a sentence's beginning is known, what follows 9 is not"
    assert found.cost == pytest.approx(3 + 0.1 + 0.5), "a row more, then two paths of three rows for one row"
    assert drafter.windows == [window] and len(drafter.verdicts) == 3 and drafter.ended == [(1, 9, 4)]
