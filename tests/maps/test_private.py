"""What parts of a user's words can be read from is for the user alone."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specedge.maps.ngram_cache import UserCache, export

pytestmark = pytest.mark.skipif(os.name == "nt", reason="POSIX modes")

MARK = b"f" * 32
Writer = Callable[[Path], None]


def modes(folder: Path) -> dict[str, int]:
    """The mode of the folder and of everything in it."""
    found = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}
    return {".": stat.S_IMODE(folder.stat().st_mode), **found}


def learn(home: Path) -> None:
    cache = UserCache(home / "learned.sqlite", MARK)
    assert cache.usable
    cache.learn([1, 2, 3, 4])
    assert "learned.sqlite-wal" in os.listdir(home), "also what sqlite3 keeps beside it while it is open"
    assert set(modes(home).values()) <= {0o700, 0o600}
    cache.close()


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    old = os.umask(0o022)
    yield
    os.umask(old)


@pytest.mark.parametrize("write", [learn])
def test_what_is_made_is_private(tmp_path: Path, write: Writer) -> None:
    home = tmp_path / "a" / "home"
    write(home)
    found = modes(home)
    assert len(found) > 1 and all(mode == (0o700 if (home / name).is_dir() else 0o600) for name, mode in found.items())


@pytest.mark.parametrize("write", [learn])
def test_what_others_could_read_is_closed_when_it_is_opened(tmp_path: Path, write: Writer) -> None:
    home = tmp_path / "home"
    write(home)
    for path in (home, *home.rglob("*")):
        path.chmod(0o775 if path.is_dir() else 0o664)
    (home / "learned.sqlite.bad").write_bytes(b"of an earlier day")
    write(home)
    wrong = {name: oct(mode) for name, mode in modes(home).items() if mode & 0o077 and name != "learned.sqlite.bad"}
    assert not wrong
    if write is learn:
        assert modes(home)["learned.sqlite.bad"] == 0o600


def test_reading_closes_it_too(tmp_path: Path) -> None:
    path = tmp_path / "some.sqlite"
    sqlite3.connect(path).close()
    path.touch()
    path.chmod(0o644)
    list(export(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("write", [learn])
def test_a_folder_with_other_things_in_it_keeps_its_mode(tmp_path: Path, write: Writer) -> None:
    """Models that several users share, or a folder that has nothing to do with specedge: /tmp, say."""
    (tmp_path / "models").mkdir()
    tmp_path.chmod(0o755)
    if write is learn:
        with UserCache(tmp_path / "learned.sqlite", MARK) as cache:
            cache.learn([1, 2, 3, 4])
    else:
        write(tmp_path)
    found = modes(tmp_path)
    assert found.pop(".") == found.pop("models") == 0o755
    assert found and not any(mode & 0o077 for mode in found.values())
