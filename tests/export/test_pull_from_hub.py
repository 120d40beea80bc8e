"""From a hub on localhost to a model that `-m` finds: `export ID`, `models pull NAME`, offline reuse."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from specedge.models import catalogue, store
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.cli.main import main
from support.checkpoints import make_checkpoint
from support.hub import FakeHub

pytest.importorskip("huggingface_hub")


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setenv("SPECEDGE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with FakeHub({"openai/whisper-tiny": make_checkpoint(tmp_path / "checkpoint")}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def test_a_hub_id_becomes_a_model_of_that_name(fake: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "openai/whisper-tiny"]) == 0
    bundle = Bundle.open(store.find("whisper-tiny"))
    assert bundle.manifest.source.kind == "hub"
    assert bundle.manifest.source.id == "openai/whisper-tiny"
    assert bundle.manifest.source.revision == catalogue.pinned("openai/whisper-tiny")
    assert "not pinned" not in capsys.readouterr().err
    assert "model.safetensors" in fake.fetched


def test_pull_then_list_path_and_rm(fake: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "pull", "tiny"]) == 0
    capsys.readouterr()
    assert main(["models", "path", "whisper-tiny"]) == 0
    assert Path(capsys.readouterr().out.strip()) == store.find("tiny")
    assert main(["inspect", "tiny"]) == 0
    assert "openai/whisper-tiny" in capsys.readouterr().out
    assert main(["models", "rm", "whisper-tiny"]) == 0
    assert not (store.folder() / "whisper-tiny").exists()


def test_what_was_fetched_once_is_exported_offline(
    fake: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["export", "whisper-tiny", "-o", str(tmp_path / "first")]) == 0
    n_requests = len(fake.requests)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main(["export", "whisper-tiny", "-o", str(tmp_path / "second")]) == 0
    assert len(fake.requests) == n_requests
    first, second = (Bundle.open(tmp_path / name).manifest for name in ("first", "second"))
    assert first.files == second.files


def test_an_unknown_id_leaves_nothing_behind(fake: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "nobody/nothing", "-o", str(tmp_path / "out")]) == 4
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "nobody/nothing" in said
    assert not (tmp_path / "out").exists()
