"""What parts of a user's words can be read from is for the user alone."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from specedge.maps.ngram_cache import UserCache

pytestmark = pytest.mark.skipif(os.name == "nt", reason="POSIX modes")


def modes(folder: Path) -> dict[str, int]:
    """The mode of the folder and of everything in it."""
    found = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}
    return {".": stat.S_IMODE(folder.stat().st_mode), **found}


def learn(home: Path) -> None:
    with UserCache(home / "learned.sqlite", bytes(32)) as cache:
        cache.learn([1, 2, 3, 4])
        assert "learned.sqlite-wal" in modes(home), "what sqlite3 keeps beside it while it is open"
        assert not any(mode & 0o077 for name, mode in modes(home).items() if name.startswith("learned.sqlite-"))


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    old = os.umask(0o022)
    yield
    os.umask(old)


def test_what_is_made_is_private(tmp_path: Path) -> None:
    home = tmp_path / "a" / "home"
    learn(home)
    assert modes(home) == {".": 0o700, "learned.sqlite": 0o600}


def test_a_folder_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    """Models that several users share, or a folder that has nothing to do with specedge: /tmp, say."""
    tmp_path.chmod(0o755)
    learn(tmp_path)
    assert modes(tmp_path) == {".": 0o755, "learned.sqlite": 0o600}
