"""What killed first starts left is gone after the next one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from specedge.leftovers import STALE_S
from specedge.runtime.engine.packed import kept, lookup
from support.exported import bundle
from support.first_starts import STARTS, starts


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, not made yet; gives the folder of its entries."""
    monkeypatch.setenv("SPECEDGE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "prepacked"


def entries(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir()) if cache.is_dir() else []


def write(folder: Path) -> None:
    (folder / "weights").write_bytes(b"w" * 1000)


@pytest.mark.skipif(os.name == "nt", reason="POSIX locks")
@pytest.mark.parametrize(
    "n_kills", [pytest.param(3, marks=pytest.mark.slow), pytest.param(50, marks=pytest.mark.stress)]
)
def test_what_killed_starts_leave_is_gone_after_the_next(cache: Path, n_kills: int) -> None:
    command = [sys.executable, "-c", STARTS.format(bundle=str(bundle("int8").path))]
    rng, expected, left = np.random.default_rng(1), starts(1), set()
    for _ in range(n_kills):
        shutil.rmtree(cache)
        with subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None and process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.stdin.write("go\n")
            process.stdin.flush()
            until = time.monotonic() + 20
            while not cache.exists() and time.monotonic() < until:
                time.sleep(0.0005)
            time.sleep(rng.uniform(0.0, 0.1))
            process.kill()
        left.update(name[:5] for name in entries(cache) if name.startswith("."))
        assert starts(1) == expected
        found = entries(cache)
        assert len(found) == 1 and not found[0].startswith("."), found
    assert ".new-" in left, "some were killed on the way"


def test_what_is_being_made_is_not_swept(cache: Path) -> None:
    def slow(folder: Path) -> None:
        write(folder)
        os.utime(folder, (time.time() - 2 * STALE_S,) * 2)
        assert lookup(entry) == entry and folder.exists()

    entry = cache / "a"
    kept(entry, write)
    kept(cache / "b", slow)
    assert entries(cache) == ["a", "b"]
