"""The replay of a text against a map: what is counted, and what it costs."""

from __future__ import annotations

from pathlib import Path

from specedge.maps.build import BuildOptions
from specedge.maps.token_map import TokenMap
from specedge.runtime.bench.map_eval import replay
from specedge.runtime.device import CostTable
from support.token_maps import make_map

FLAT = CostTable((1, 2), (1.0, 1.0))


def test_a_known_sentence_takes_one_pass(tmp_path: Path) -> None:
    with TokenMap.open(make_map(tmp_path / "x.tmap", [[1, 2, 3, 4]] * 3)) as opened:
        found = replay(opened, [[1, 2, 3, 4], []], FLAT)
    assert (found.sentences, found.tokens, found.passes) == (1, 5, 1)
    told = found.figures()
    assert (told["proposed"], told["accepted"], told["hit_rate"], told["acceptance_rate"]) == (5, 5, 1.0, 1.0)
    assert told["mean_accepted_length"] == told["tokens_per_pass"] == told["expected_decoder_speed_up"] == 5
    assert told["hits_by_key_length"] == {"1": 1}


def test_an_error_in_a_draft_is_corrected_and_gone_on_from(tmp_path: Path) -> None:
    with TokenMap.open(make_map(tmp_path / "x.tmap", [[1, 2, 3, 4]] * 3, BuildOptions(n_orders=2))) as opened:
        found = replay(opened, [[1, 2, 9, 4]], FLAT)
    # Two tokens and the correction 9; the map knows nothing after 9; then the end after 4 was drafted.
    assert (found.passes, found.accepted, found.lookups, found.hits) == (3, 3, 3, 2)
