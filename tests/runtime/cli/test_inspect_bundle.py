"""What `models show` shows is what the manifest says."""

from __future__ import annotations

from pathlib import Path

from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.cli.describe import describe
from support.bundles import write_bundle


def test_the_page_has_the_facts_people_ask_for(tmp_path: Path) -> None:
    opened = Bundle.open(write_bundle(tmp_path / "b"))
    facts = {line.split("  ")[0]: line.split("  ")[-1].strip() for line in describe(opened).splitlines()}
    assert (facts["precision"], facts["n_languages"]) == ("int8", "2")
    assert (facts["window_s"], facts["dims n_mels"], facts["dims n_text_layer"]) == ("1.0", "80", "2")
    assert facts["digest"] == opened.digest
    for name, entry in opened.manifest.files.items():
        assert entry.sha256 in facts[f"files {name}"]
