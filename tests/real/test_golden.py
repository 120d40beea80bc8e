"""Published tiny.en and base say what they said when golden.json was written, drafts or not, and what was spoken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from real import golden

from specedge.export.export import export_to
from specedge.runtime.bench.errors import word_errors

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def kept() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = json.loads(golden.GOLDEN.read_text(encoding="utf-8"))
    return found


def errors(said: dict[str, str], meant: dict[str, str]) -> float:
    return word_errors([(meant[audio], text) for audio, text in said.items()]).rate


@pytest.mark.parametrize("name", golden.MODELS)
def test_the_folder_exports_and_says_the_golden_text(
    name: str, real_models: Path, kept: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    bundle = export_to(str(real_models / name), tmp_path / name, precision=golden.MODELS[name])
    files = golden.recordings()
    said = golden.texts(bundle.path, files)
    other = {audio: (said[audio], kept[name][audio]) for audio in files if said[audio] != kept[name][audio]}
    print(f"{name}: {len(files) - len(other)} of {len(files)} texts are the golden ones")
    assert errors({golden.OWN: said[golden.OWN]}, kept[name]) == 0
    assert errors(said, kept[name]) <= golden.MOST_DIFFERENT, other
    spoken = golden.spoken()
    before = errors({audio: kept[name][audio] for audio in files}, spoken)
    assert errors(said, spoken) <= before + golden.WORSE, other
    few = dict(list(files.items())[:8])
    assert golden.texts(bundle.path, few, "auto") == {audio: said[audio] for audio in few}


@pytest.mark.parametrize("name", golden.MODELS)
def test_the_golden_text_is_what_was_spoken(name: str, kept: dict[str, dict[str, str]]) -> None:
    assert errors({golden.OWN: kept[name][golden.OWN]}, golden.spoken()) == 0
