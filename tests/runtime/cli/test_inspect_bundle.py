"""What `models show` shows is what the manifest says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.cli.describe import describe, describe_json, layout
from support.bundles import TOKENS, manifest_json, write_bundle
from support.speech_checkpoints import speech_bundle


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


def test_the_dictionary_is_the_manifest_and_five_facts_more(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "b")
    facts = json.loads(json.dumps(describe_json(Bundle.open(folder))))
    for name, expected in manifest_json(folder).items():
        assert facts.pop(name) == expected
    assert facts.pop("n_languages") == 2 and facts.pop("layout") == "custom" and facts.pop("size_bytes") == 896
    assert set(facts) == {"path", "digest"}


def test_a_speech_llm_has_no_facts_of_whisper() -> None:
    page = describe(speech_bundle())
    assert "alignment " not in page and "suppressed" not in page
    assert "cross_kv" not in page and "int8_attention" not in page and "  projector  " in page


def test_free_form_text_cannot_break_the_page(tmp_path: Path) -> None:
    hostile = {"a\x1b[31m": "b\nname        other", "long": "x" * 500, "empty": {}}
    page = describe(Bundle.open(write_bundle(tmp_path / "b", selfcheck=hostile, quantisation={})))
    assert "\x1b" not in page and "\nname        other" not in page
    assert max(map(len, page.splitlines())) < 200
    assert "quantisation\n  none\n" in page


@pytest.mark.parametrize(("n_languages", "expected"), [(0, "en"), (2, "custom"), (99, "v2"), (100, "v3")])
def test_the_layout_is_read_off_the_tokens(n_languages: int, expected: str) -> None:
    codes = {f"{chr(97 + i // 26)}{chr(97 + i % 26)}": 300 + i for i in range(n_languages)}
    assert layout(replace(TOKENS, n_vocab=1000, timestamp_begin=500, n_timestamps=0, languages=codes)) == expected
