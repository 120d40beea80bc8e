"""FUTO's ACFT checkpoints: folders without merges, trained with short windows, none shorter than 3.2 s."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import specedge
from specedge.models import store
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.cli.main import main
from support.checkpoints import Layout, make_checkpoint
from support.hub import COMMIT, FakeHub
from support.vocab import write_hf_tokenizer

HALF_A_SECOND = (0.1 * np.random.default_rng(3).standard_normal(8_000)).astype(np.float32)
NAMES = ["added_tokens.json", "config.json", "generation_config.json", "model.safetensors", "vocab.json"]


def make_acft(folder: Path, *, en: bool = True) -> Path:
    """A folder with the files of futo-org/acft-whisper-*, random weights and a window of 8 s."""
    n_vocab = 51864 if en else 51865
    make_checkpoint(folder, n_vocab=n_vocab, n_audio_ctx=400, en=en, tokenizer=False)
    write_hf_tokenizer(folder, Layout.of(n_vocab, 400, en), files=("vocab.json", "added_tokens.json"))
    (folder / "preprocessor_config.json").unlink()
    assert sorted(path.name for path in folder.iterdir()) == NAMES
    return folder


def heard(bundle: Path, **options: object) -> object:
    """What half a second of audio encodes."""
    model = specedge.WhisperModel(str(bundle), cpu_threads=1)
    segments, info = model.transcribe(HALF_A_SECOND, "en", max_new_tokens=5, **options)
    list(segments)
    return info.audio_context


@pytest.mark.slow
def test_a_name_of_the_catalogue_hears_short_windows_without_a_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("huggingface_hub")
    for name, value in (("SPECEDGE_HOME", "home"), ("HF_HOME", "hf"), ("HF_HUB_CACHE", "hf/hub")):
        monkeypatch.setenv(name, str(tmp_path / value))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with FakeHub({"futo-org/acft-whisper-tiny.en": make_acft(tmp_path / "acft")}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        assert main(["models", "pull", "acft-tiny.en"]) == 0
    assert f"futo-org/acft-whisper-tiny.en is not pinned: this is commit {COMMIT}" in capsys.readouterr().err
    bundle = Bundle.open(store.find("acft-tiny.en"))
    assert bundle.manifest.short_windows and bundle.manifest.least_positions == 160
    assert heard(bundle.path) == {
        "asked": "auto",
        "heard_s": 3.2,
        "window_s": 8.0,
        "approximate": False,
        "encoded_again": 0,
    }
    whole = {"asked": "full", "heard_s": 8.0, "window_s": 8.0, "approximate": False, "encoded_again": 0}
    assert heard(bundle.path, audio_context="full") == whole


def test_a_folder_is_told_what_it_was_trained_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine, out = str(make_checkpoint(tmp_path / "mine")), tmp_path / "out"
    for seconds in ("0", "2.1", "nan", "-1"):
        assert main(["export", mine, "-o", str(out), "--shortest-window", seconds]) == 2
        assert "--shortest-window" in capsys.readouterr().err and not out.exists()
    assert main(["export", mine, "-o", str(out), "--shortest-window", "1.5"]) == 0
    assert heard(out) == {"asked": "auto", "heard_s": 1.92, "window_s": 2.0, "approximate": False, "encoded_again": 0}
