"""What `models show` shows is what the manifest says."""

from __future__ import annotations

from pathlib import Path

from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.cli.describe import describe
from support.bundles import write_bundle
from support.qwen_checkpoints import qwen_bundle


def test_the_page_has_the_facts_people_ask_for(tmp_path: Path) -> None:
    opened = Bundle.open(write_bundle(tmp_path / "b"))
    page = describe(opened)
    lines = [line.rstrip() for line in page.splitlines()]
    assert "precision   int8" in lines
    assert "vocabulary  317 tokens, layout custom, 2 languages" in lines
    assert "window      1 s, 100 frames of 80 mels" in lines
    assert "decoder     2 layers, 2 heads, width 8, 16 positions" in lines
    assert f"digest      {opened.digest}" in lines
    assert "  max_difference  1e-05" in lines
    for name, entry in opened.manifest.files.items():
        assert any(line.startswith(f"  {name} ") and line.endswith(entry.sha256) for line in lines)


def test_a_speech_llm_has_no_facts_of_whisper() -> None:
    page = describe(qwen_bundle())
    assert "alignment " not in page and "suppressed" not in page
    assert "cross_kv" not in page and "int8_attention" not in page and "  projector  " in page
