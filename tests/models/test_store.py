"""A name leads to one folder, never to a path outside the store, and removal leaves nothing half."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from specedge.errors import ModelError, ResourceError, UsageError
from specedge.models import store


def make(folder: Path) -> Path:
    """A folder that the store takes for a bundle; it never reads what is inside."""
    folder.mkdir(parents=True)
    (folder / "specedge.json").write_bytes(b"{}")
    (folder / "maps").mkdir()
    (folder / "maps" / "x.tmap").write_bytes(bytes(100))
    return folder


@pytest.fixture(autouse=True)
def _places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store and a current folder, all of this test alone."""
    monkeypatch.setenv("SPECEDGE_HOME", str(tmp_path / "home"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return tmp_path / "home" / "models"


def test_the_known_draft_is_found_where_it_is_installed(models: Path) -> None:
    assert store.known_draft("whisper-small.en") is None
    make(models / "distil-small.en")
    assert store.known_draft("whisper-small.en") == models / "distil-small.en"
    assert store.known_draft("distil-small.en") is None and store.known_draft("mine") is None


def test_home_is_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert store.folder() == tmp_path / "home" / "models"
    monkeypatch.setenv("SPECEDGE_HOME", "rel")
    assert store.home() == tmp_path / "here" / "rel"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.setenv("SPECEDGE_HOME", "~/x")
    assert store.home() == tmp_path / "x"


@pytest.mark.parametrize(
    ("platform", "environment", "expected"),
    [
        ("linux", {}, ".local/share/specedge"),
        ("linux", {"XDG_DATA_HOME": "{home}/data"}, "data/specedge"),
        ("linux", {"XDG_DATA_HOME": "relative"}, ".local/share/specedge"),
        ("darwin", {"XDG_DATA_HOME": "{home}/data"}, "Library/Application Support/specedge"),
        ("win32", {"LOCALAPPDATA": "{home}/Local"}, "Local/specedge"),
        ("win32", {}, "AppData/Local/specedge"),
    ],
)
def test_home_is_where_the_platform_keeps_data(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, platform: str, environment: dict[str, str], expected: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    for name in ("SPECEDGE_HOME", "XDG_DATA_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    for name, value in environment.items():
        monkeypatch.setenv(name, value.format(home=tmp_path))
    assert store.home() == tmp_path / expected


def test_without_a_home_nothing_is_there_and_the_message_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("SPECEDGE_HOME", "XDG_DATA_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    assert store.installed() == [] and not store.user_cache_path().exists()
    with pytest.raises(ResourceError, match="set SPECEDGE_HOME"):
        store.make_folder()


def test_a_store_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "home").write_bytes(b"a file")
    with pytest.raises(ResourceError, match="cannot be created .*set SPECEDGE_HOME elsewhere"):
        store.make_folder()


def test_a_folder_wins_then_the_store(tmp_path: Path, models: Path) -> None:
    make(models / "demo")
    assert store.find("demo") == models / "demo"
    make(tmp_path / "here" / "demo")
    assert store.find("demo") == Path("demo")


@pytest.mark.parametrize("name", ["tiny", "whisper-tiny", "TINY", "openai/whisper-tiny"])
def test_every_spelling_of_a_checkpoint_finds_it(models: Path, name: str) -> None:
    with pytest.raises(ModelError, match="get it with `specedge models pull whisper-tiny`"):
        store.find(name)
    make(models / "whisper-tiny")
    assert store.find(name) == models / "whisper-tiny"


def test_any_folder_given_as_a_path_is_taken(tmp_path: Path, models: Path) -> None:
    (tmp_path / "here" / "sub" / "broken").mkdir(parents=True)
    make(models / "broken")
    assert store.find("sub/broken") == Path("sub/broken")
    assert store.find(Path("sub")) == Path("sub")
    assert store.find(".") == Path(".")
    # A bare name means the store before a folder that is no bundle, and that folder before nothing at all.
    (tmp_path / "here" / "broken").mkdir()
    assert store.find("broken") == models / "broken"
    assert store.find("sub") == Path("sub")


@pytest.mark.parametrize(
    "name", ["", "..", "../package/demo2", "/nowhere", "a\0b", "a\nb", "x" * 5000, "nul/../x", ".trash-1"]
)
def test_what_is_no_name_is_looked_for_as_a_path_only(models: Path, name: str) -> None:
    make(models / ".trash-1")
    if name == "..":
        assert store.find(name) == Path("..")
        return
    with pytest.raises(ModelError) as caught:
        store.find(name)
    assert "no such folder, expected a bundle" in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tiny", "the model 'tiny' is not installed; get it with `specedge models pull whisper-tiny`, or give"),
        ("tinny", "close names: whisper-tiny, whisper-tiny.en; get it with `specedge models pull whisper-tiny`"),
        ("dmo", "close names: demo"),
        ("qqqqqq", "`specedge models list --known` shows the names, and the path of a bundle works too"),
    ],
)
def test_an_unknown_name_says_how_to_get_one(models: Path, name: str, message: str) -> None:
    make(models / "demo")
    with pytest.raises(ModelError) as caught:
        store.find(name)
    assert message in str(caught.value)
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "a\\b", "/a", ".a", "a.", "-a", "C:", "a b", "ä", "a\0", "a\n", "x" * 101]
)
def test_bad_names(name: str) -> None:
    with pytest.raises(UsageError, match="is no name for a model"):
        store.check_name(name)


def test_installed_lists_the_store(models: Path) -> None:
    make(models / "b")
    make(models / "a")
    make(models / ".trash-x" / "c")
    make(models / ".new-d")
    (models / "no-bundle").mkdir()
    (models / "file").write_bytes(b"")
    assert store.installed() == [models / "a", models / "b"]
    assert store.size_bytes(models / "a") == 102


def test_remove_takes_the_folder_and_nothing_else(models: Path) -> None:
    make(models / "whisper-tiny")
    make(models / "other")
    assert store.remove("tiny") == models / "whisper-tiny"
    assert os.listdir(models) == ["other"]


def test_remove_sweeps_what_a_kill_left(models: Path) -> None:
    make(models / "a")
    make(models / f".trash-{'0' * 16}" / "b")
    store.remove("a")
    assert os.listdir(models) == []


def test_a_bundle_in_use_is_whole_or_gone(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deleting stops half way, as by a kill: the name is gone already, and no half bundle is listed."""
    make(models / "a")
    monkeypatch.setattr(shutil, "rmtree", lambda *args, **kwargs: None)
    store.remove("a")
    assert not (models / "a").exists()
    assert store.installed() == []


def test_remove_does_not_look_into_the_current_folder(tmp_path: Path) -> None:
    make(tmp_path / "here" / "mine")
    with pytest.raises(ModelError, match="no model 'mine'"):
        store.remove("mine")
    assert (tmp_path / "here" / "mine" / "specedge.json").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX links")
def test_removing_a_linked_bundle_removes_the_link(tmp_path: Path, models: Path) -> None:
    target = make(tmp_path / "elsewhere" / "big")
    models.mkdir(parents=True)
    (models / "big").symlink_to(target)
    assert store.installed() == [models / "big"]
    store.remove("big")
    assert (target / "specedge.json").exists() and os.listdir(models) == []


def test_a_file_system_that_refuses(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(models / "a")

    def refuse(*args: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(ResourceError, match="cannot be removed .Permission denied.*is it in use"):
        store.remove("a")
    assert os.listdir(models) == ["a"] and (models / "a" / "specedge.json").exists()
