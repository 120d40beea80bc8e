"""Token maps that a bundle brings along."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specedge.errors import MapError, UsageError
from specedge.export.bundling import write_bundle
from specedge.export.checkpoint import open_checkpoint
from specedge.maps.build import build
from specedge.maps.tmap_format import text_fingerprint
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.decoding.drafter import TargetModel
from specedge.runtime.drafters.registry import make_drafter
from support import exported


def export(out: Path, **options: Any) -> Bundle:
    with open_checkpoint(exported.checkpoint()) as opened:
        return write_bundle(opened, out, precision="int8", name="micro", version="0.1.0", **options)


def test_a_bundle_brings_token_maps_along(tmp_path: Path) -> None:
    with open_checkpoint(exported.checkpoint()) as source:
        ranks, special = source.vocabulary()
    fingerprint = text_fingerprint(ranks, special.eot)
    build([[1, 2, 3]] * 2, tmp_path / "words.tmap", n_text=special.eot, fingerprint=fingerprint)
    made = export(tmp_path / "out", maps=[tmp_path / "words.tmap"])
    assert "maps/words.tmap" in made.manifest.files
    drafter = make_drafter("tokenmap", TargetModel(made, threads=1))
    assert drafter.name == "tokenmap"


@pytest.mark.parametrize(
    ("fingerprint", "line"), [(bytes(32), "another vocabulary"), (None, "is called words.tmap too")]
)
def test_a_token_map_that_cannot_come_along_leaves_nothing(
    tmp_path: Path, fingerprint: bytes | None, line: str
) -> None:
    with open_checkpoint(exported.checkpoint()) as source:
        ranks, special = source.vocabulary()
    found = fingerprint or text_fingerprint(ranks, special.eot)
    path = tmp_path / "words.tmap"
    build([[1, 2, 3]] * 2, path, n_text=special.eot, fingerprint=found)
    with pytest.raises((MapError, UsageError), match=line):
        export(tmp_path / "out", maps=[path, path])
    assert [entry.name for entry in tmp_path.iterdir()] == ["words.tmap"]
