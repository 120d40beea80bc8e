"""Models as tar files: the same bundle comes back, and whatever is wrong with an archive leaves nothing behind."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from specedge.models import store
from specedge.runtime.bundle.bundle import Bundle
from specedge.runtime.cli.main import main
from support.exported import bundle


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECEDGE_HOME", str(tmp_path / "home"))
    return tmp_path


def left(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "home" / "models").iterdir())


def test_an_archive_gives_the_same_bundle(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = bundle().path
    archive = home / "x.tar"
    assert main(["export", str(source), "-o", str(archive)]) == 0
    first = archive.read_bytes()
    assert main(["export", str(source), "-o", str(archive)]) == 0 and archive.read_bytes() == first
    assert main(["models", "pull", str(archive)]) == 0
    made = Path(capsys.readouterr().out.strip())
    assert made == store.folder() / source.name and Bundle.open(made).digest == Bundle.open(source).digest
    assert main(["models", "pull", str(archive)]) == 2
    assert "is installed already" in capsys.readouterr().err and left(home) == [source.name]
    note = home / "note.tar"
    note.write_text("mine")
    assert main(["export", str(source), "-o", str(note)]) == 2 and note.read_text() == "mine"


def write_tar(path: Path, members: list[tuple[str, bytes, bytes]]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, kind, data in members:
            member = tarfile.TarInfo(name)
            member.type, member.size, member.linkname = kind, len(data), "/etc/passwd"
            archive.addfile(member, io.BytesIO(data))
    return path


def test_broken_archives_are_one_line_and_leave_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = bundle().path
    archive = home / "x.tar"
    assert main(["export", str(source), "-o", str(archive)]) == 0
    whole = archive.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    contents = [whole[:700], whole[: len(whole) // 2], bytes(flipped), b"", b"no tar" * 200]
    for number, content in enumerate(contents):
        archive.write_bytes(content)
        capsys.readouterr()
        assert main(["models", "pull", str(archive)]) == 4, number
        assert capsys.readouterr().err.count("\n") == 1 and left(home) == []
    plain, link = tarfile.REGTYPE, tarfile.SYMTYPE
    for members in (
        [("../x/specedge.json", plain, b"{}")],
        [("/x/specedge.json", plain, b"{}")],
        [("x/specedge.json", link, b"")],
        [("x/specedge.json", plain, b"{}"), ("y/a", plain, b"")],
        [("specedge.json", plain, b"{}")],
        [("x/a", plain, b"")],
    ):
        assert main(["models", "pull", str(write_tar(archive, members))]) == 4, members
        assert capsys.readouterr().err.count("\n") == 1 and left(home) == []
    assert main(["models", "pull", str(home / "none.tar")]) == 2
