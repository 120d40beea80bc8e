"""What an output may take the place of, and what of it is kept: mode, links; inputs, devices and strangers stay."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from specedge.errors import ResourceError, UsageError
from specedge.files import Kind, check_folder, check_output, identities, publishing
from specedge.maps.merge import merge
from specedge.maps.token_map import TokenMap
from support.token_maps import make_map

NOTE = Kind("note", lambda head: head.startswith(b"note"))
OLD, NEW = [[1, 2, 3]] * 3, [[4, 5, 6]] * 3

posix_only = pytest.mark.skipif(os.name == "nt", reason="POSIX files")


def write(path: Path, text: str = "note: new", kind: Kind | None = NOTE) -> None:
    with publishing(path, kind) as file:
        file.write(text.encode())


def test_a_file_of_another_kind_stays(tmp_path: Path) -> None:
    path = tmp_path / "talk.txt"
    path.write_text("what was said\n")
    for replace in (
        lambda: write(path),
        lambda: make_map(path, OLD),
        lambda: merge([TokenMap.open(make_map(tmp_path / "a.tmap", OLD))], path),
    ):
        with pytest.raises(UsageError, match=r"talk\.txt: exists and is no (note|token map), so it is not replaced"):
            replace()
    assert path.read_text() == "what was said\n"
    assert sorted(os.listdir(tmp_path)) == ["a.tmap", "talk.txt"]


def test_a_file_that_came_meanwhile_stays(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with pytest.raises(UsageError, match="is no note"):
        with publishing(path, NOTE) as file:
            file.write(b"note")
            path.write_text("mine")
    assert path.read_text() == "mine" and os.listdir(tmp_path) == ["x"]


def test_its_own_kind_an_empty_file_and_no_file_are_replaced(tmp_path: Path) -> None:
    for old in ("note: old", "", None):
        path = tmp_path / "x"
        path.unlink(missing_ok=True)
        if old is not None:
            path.write_text(old)
        write(path)
        assert path.read_text() == "note: new"
    path = make_map(make_map(tmp_path / "x.tmap", OLD), NEW)
    with TokenMap.open(path) as opened:
        assert opened.lookup([4], 1)


@pytest.mark.parametrize("name", ["a", "./a", "link", "hard"])
def test_an_input_stays_whatever_it_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a").write_text("note")
    Path("link").symlink_to("a")
    os.link("a", "hard")
    inputs = identities(["-", "missing", "a"])
    with pytest.raises(UsageError, match="would replace the input"):
        check_output(name, NOTE, inputs=inputs)
    check_output("other", NOTE, inputs=inputs)


@posix_only
def test_devices_and_pipes_stay(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "null").symlink_to("/dev/null")
    for path in (tmp_path / "pipe", tmp_path / "null", Path("/dev/null")):
        with pytest.raises(UsageError, match="is a device or a pipe, expected the name of a file"):
            write(path)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@posix_only
@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="nothing is protected from root")
def test_a_write_protected_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("note")
    path.chmod(0o444)
    with pytest.raises(UsageError, match="is protected"):
        write(path)


def test_a_folder_with_other_files_is_named(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("a", "sub/b", ".DS_Store"):
        (tmp_path / name).touch()
    check_folder(tmp_path, {"a", "sub/b"}.__contains__, "bundle")
    for name in ("c", "d", "e", ".git"):
        (tmp_path / name).touch()
    with pytest.raises(UsageError, match=r"no part of the bundle \(\.git, c, d, \.\.\.\), so it is not replaced"):
        check_folder(tmp_path, {"a", "sub/b"}.__contains__, "bundle")


@posix_only
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666, 0o755])
def test_the_mode_is_kept_and_the_temporary_is_never_wider(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "x"
    path.write_text("note")
    path.chmod(mode)
    with publishing(path, NOTE) as file:
        file.write(b"note: new")
        assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == mode
    assert stat.S_IMODE(path.stat().st_mode) == mode and path.read_text() == "note: new"


@posix_only
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away")
def test_the_owner_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("note")
    os.chown(path, 12345, 12346)
    write(path)
    assert (path.stat().st_uid, path.stat().st_gid) == (12345, 12346)


@posix_only
def test_a_link_stays_and_what_it_leads_to_is_new(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    real, link, far = tmp_path / "real" / "x", tmp_path / "link", tmp_path / "far"
    real.write_text("note")
    real.chmod(0o600)
    far.symlink_to("link")
    link.symlink_to("real/x")
    write(far)
    assert far.is_symlink() and link.is_symlink() and real.read_text() == "note: new"
    assert stat.S_IMODE(real.stat().st_mode) == 0o600 and os.listdir(tmp_path / "real") == ["x"]
    real.write_text("mine")
    with pytest.raises(UsageError, match="is no note"):
        write(far)
    real.unlink()  # a link to what is not there yet
    write(link)
    assert link.is_symlink() and real.read_text() == "note: new"


@posix_only
def test_links_in_a_circle_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(ResourceError, match="cannot write .*a: Too many levels"):
        write(tmp_path / "a")
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]
