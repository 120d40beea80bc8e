"""`download_model` and `available_models`: names in, a folder out; the exporter is a stand-in here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import specedge
from specedge.errors import ModelError, UsageError
from specedge.models import store
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.cli.main import main
from support.bundles import write_bundle


@pytest.fixture
def exports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Stands for the exporter: writes the small bundle and records what it was asked for."""
    monkeypatch.setenv("SPECEDGE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    calls: list[dict[str, Any]] = []

    def export_to(source: str, out: Path, **options: Any) -> None:
        calls.append({"source": source, "out": Path(out), **options})
        write_bundle(Path(out), name=options["name"], precision=options["precision"])

    monkeypatch.setattr("specedge.export.export.export_to", export_to)
    return calls


def test_a_model_is_fetched_once_and_can_then_be_loaded(exports: list[dict[str, Any]]) -> None:
    with pytest.raises(ModelError):
        specedge.download_model("tiny", local_files_only=True)
    path = specedge.download_model("tiny")
    target = store.folder() / "whisper-tiny"
    assert path == str(target)
    assert exports == [
        {
            "source": "openai/whisper-tiny",
            "out": target,
            "precision": "int8",
            "name": "whisper-tiny",
            "revision": None,
            "draft": None,
        }
    ]
    assert specedge.download_model("tiny") == specedge.download_model("tiny", local_files_only=True) == path
    assert len(exports) == 1


def test_a_folder_and_a_revision_of_one_s_own(exports: list[dict[str, Any]], tmp_path: Path) -> None:
    path = specedge.download_model("someone/fine-tune", output_dir=str(tmp_path / "out"), revision="abc")
    assert path == str(tmp_path / "out")
    assert exports[0]["source"] == "someone/fine-tune" and exports[0]["revision"] == "abc"
    assert not store.folder().exists()


def test_an_installed_model_needs_no_fetching(exports: list[dict[str, Any]]) -> None:
    path = write_bundle(store.folder() / "mine")
    assert specedge.download_model("mine") == str(path) and not exports


def test_what_cannot_be_fetched(exports: list[dict[str, Any]]) -> None:
    with pytest.raises(ModelError, match=r"no checkpoint 'nonesuch' is known.*shows the names\. A hub id"):
        specedge.download_model("nonesuch")
    with pytest.raises(ModelError, match="no checkpoint 'tinny'"):
        specedge.download_model("tinny")
    with pytest.raises(UsageError, match="HF_HOME and HF_TOKEN"):
        specedge.download_model("tiny", use_auth_token=True)
    assert not exports


def test_the_names_are_faster_whisper_s_and_those_of_installed_models(exports: list[dict[str, Any]]) -> None:
    write_bundle(store.folder() / "whisper-base")
    write_bundle(store.folder() / "my-fine-tune")
    names = specedge.available_models()
    assert {"tiny", "tiny.en", "large-v3", "large", "turbo", "distil-large-v3", "my-fine-tune"} <= set(names)
    assert "whisper-base" not in names and len(names) == len(set(names))


def test_a_bundle_s_folder_is_checked_and_copied(
    exports: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For a machine without a network."""
    source = write_bundle(tmp_path / "stick" / "small")
    assert main(["models", "pull", str(source)]) == 0 and not exports
    made = Path(capsys.readouterr().out.strip())
    assert made == store.folder() / "small" and Bundle.open(made).digest == Bundle.open(source).digest
    assert main(["models", "pull", str(source)]) == 0
    assert "is installed already" in capsys.readouterr().err
    (source / "decoder.onnx").write_bytes((source / "decoder.onnx").read_bytes()[::-1])
    assert main(["models", "rm", "small"]) == 0 and main(["models", "pull", str(source)]) == 4
    assert "decoder.onnx: sha256" in capsys.readouterr().err and not list(store.folder().iterdir())
