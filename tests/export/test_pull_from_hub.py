"""From a hub on localhost to a model that `-m` finds: `export ID`, `models pull NAME`, offline reuse."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from specedge.errors import ResourceError
from specedge.export.bundling import add_to_bundle
from specedge.models import catalogue, store
from specedge.runtime.bundle.bundle import Bundle, read_manifest
from specedge.runtime.bundle.manifest import DRAFT_FOLDER
from specedge.runtime.cli.main import main
from support.checkpoints import make_checkpoint
from support.hub import FakeHub
from support.noise import noise
from support.sound import wav_bytes

pytest.importorskip("huggingface_hub")


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setenv("SPECEDGE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    models = {
        "openai/whisper-tiny": make_checkpoint(tmp_path / "checkpoint"),
        "openai/whisper-small": make_checkpoint(tmp_path / "larger", seed=1),
        "openai/whisper-base": make_checkpoint(tmp_path / "base", seed=3),
        "openai/whisper-large-v2": make_checkpoint(tmp_path / "large", seed=2),
        "distil-whisper/distil-large-v2": make_checkpoint(tmp_path / "distilled", seed=2),
    }
    with FakeHub(models) as server:
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


@pytest.mark.slow
def test_a_model_with_its_draft_is_all_that_the_drafter_needs(
    fake: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "pull", "small", "--with-draft"]) == 0
    printed = capsys.readouterr()
    assert Path(printed.out.strip()) == store.find("small")
    assert "whisper-small brings the draft whisper-tiny" in printed.err
    assert store.find("tiny") == store.folder() / "whisper-tiny"
    assert main(["models", "list"]) == 0
    listed = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    assert "whisper-tiny" in listed["whisper-small"] and "-" in listed["whisper-tiny"]
    sound = tmp_path / "sound.wav"
    sound.write_bytes(wav_bytes(noise(8000, rms=0.1)))
    asked = ["transcribe", str(sound), "-m", "small", "--language", "en", "-f", "json", "--drafter"]
    assert main([*asked, "draft"]) == 0
    drafted = json.loads(capsys.readouterr().out)
    assert main([*asked, "none"]) == 0
    assert drafted["text"] == json.loads(capsys.readouterr().out)["text"]


@pytest.mark.slow
def test_an_installed_model_gets_its_draft_later_and_keeps_it(
    fake: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "pull", "large-v2"]) == 0
    assert not (store.find("large-v2") / DRAFT_FOLDER).exists()
    capsys.readouterr()
    for _ in range(2):
        assert main(["models", "pull", "large-v2", "--with-draft"]) == 0
        said = capsys.readouterr().err
        assert "installed already" in said and "brings the draft distil-large-v2;" in said
    assert Bundle.open(store.find("large-v2")).digest  # every file is listed, and whole
    assert fake.fetched.count("model.safetensors") == 2


@pytest.mark.slow
def test_export_with_draft(fake: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "small", "--with-draft", "-o", str(tmp_path / "out")]) == 0
    assert read_manifest(tmp_path / "out" / DRAFT_FOLDER)[0].name == "whisper-tiny"
    assert main(["export", "base", "--with-draft", "-o", str(tmp_path / "other")]) == 4
    assert "no draft is known for whisper-base" in capsys.readouterr().err
    assert main(["export", "small", "--with-draft", "--draft", "tiny"]) == 2


@pytest.mark.slow
def test_a_draft_that_cannot_be_copied_leaves_the_model_as_it_was(
    fake: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["models", "pull", "small"]) == main(["models", "pull", "tiny"]) == 0
    before = Bundle.open(store.find("small")).digest

    def full(source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(ResourceError, match="free some space"):
        add_to_bundle(store.find("small"), draft=Bundle.open(store.find("tiny")))
    assert Bundle.open(store.find("small")).digest == before
    assert not list(store.find("small").glob(".*"))


def test_a_mirror_is_asked_and_offline_nobody_is(
    fake: FakeHub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.example.org")
    assert main(["models", "pull", "tiny"]) == 2
    monkeypatch.setenv("HF_ENDPOINT", fake.url)
    assert main(["models", "pull", "tiny"]) == 0
    assert main(["models", "rm", "tiny"]) == 0
    n_fetched = len(fake.fetched)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main(["models", "pull", "tiny"]) == 0 and len(fake.fetched) == n_fetched
    assert store.find("tiny").is_dir()
    assert main(["models", "pull", "medium"]) == 4 and len(fake.fetched) == n_fetched
    assert "is not in the hub's cache" in capsys.readouterr().err


def test_a_download_that_does_not_fit_is_not_begun(
    fake: FakeHub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usage = shutil.disk_usage(".")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=200_000))
    assert main(["models", "pull", "base"]) == 5  # which no other test has brought into the hub's cache
    assert "openai/whisper-base needs" in capsys.readouterr().err and "model.safetensors" not in fake.fetched


_SLOW_PULL = """
import huggingface_hub.constants
huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE = 1000  # of what is kept
from specedge.runtime.cli.main import main
main(["models", "pull", "tiny"])
"""


@pytest.mark.slow
def test_a_pull_that_is_killed_goes_on_within_the_file(fake: FakeHub, tmp_path: Path) -> None:
    fake.stalls["model.safetensors"] = 50_000
    with subprocess.Popen([sys.executable, "-c", _SLOW_PULL]) as process:
        assert fake.stalled.wait(60)
        blobs = tmp_path / "hf" / "hub" / "models--openai--whisper-tiny" / "blobs"
        while sum(path.stat().st_size for path in blobs.glob("*.incomplete")) < 40_000:  # the last of it is in a buffer
            time.sleep(0.01)
        process.kill()
    (part,) = blobs.glob("*.incomplete")
    held = part.stat().st_size
    done = subprocess.run([sys.executable, "-m", "specedge", "models", "pull", "tiny"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert fake.ranges == [("model.safetensors", held)] and store.find("tiny").is_dir()
