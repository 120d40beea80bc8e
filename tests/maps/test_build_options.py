"""What a map may be built of and with, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from specedge.errors import ResourceError, UsageError
from specedge.maps import build as build_module
from support.token_maps import N_TEXT, make_map


def test_more_places_than_a_map_can_count_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six tokens and two ends of sentences are 81 places, with the 5 ends before them and the 68 behind."""
    sentences = [[1, 2, 3], [4, 5, 6]]
    monkeypatch.setattr(build_module, "_MAX_TOKENS", 81)
    make_map(tmp_path / "x.tmap", sentences)
    monkeypatch.setattr(build_module, "_MAX_TOKENS", 80)
    with pytest.raises(ResourceError, match="^6 tokens are too many for one token map: split the corpus and merge"):
        make_map(tmp_path / "y.tmap", sentences)
    assert not (tmp_path / "y.tmap").exists()


def test_an_id_outside_the_vocabulary_is_named_with_what_was_expected(tmp_path: Path) -> None:
    for sentence, wrong in (([3, -1, N_TEXT], -1), ([0, N_TEXT], N_TEXT)):
        with pytest.raises(UsageError, match=f"token id {wrong} is no text token .*: expected 0 to {N_TEXT - 1}"):
            make_map(tmp_path / "x.tmap", [[0, N_TEXT - 1], sentence])
