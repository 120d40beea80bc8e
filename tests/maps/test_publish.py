"""A map is old or new, never half: failures on the way, stale temporaries, killed builders, readers meanwhile."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specedge import files
from specedge.errors import ResourceError
from specedge.files import publishing, scratch_folder, sweep
from specedge.maps.token_map import TokenMap
from support.token_maps import make_map

OLD = [[1, 2, 3]] * 3
NEW = [[4, 5, 6], [7, 8, 9, 10]] * 3


def _build_new(path: Path) -> None:
    make_map(path, NEW)


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failing_disk_leaves_the_old_map_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = make_map(tmp_path / "x.tmap", OLD)
    before = path.read_bytes()

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, call, full)
    with pytest.raises(ResourceError, match="cannot write .*x.tmap: No space left"):
        _build_new(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        with scratch_folder(tmp_path / "x") as folder, publishing(tmp_path / "x") as file:
            (folder / "text").write_bytes(b"x")
            file.write(b"x")
            raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_temporaries_of_the_same_name_are_swept_unless_their_maker_lives(tmp_path: Path) -> None:
    target = tmp_path / "x.tmap"
    token = "0123456789abcdef"
    dead, dead_folder = tmp_path / f".x.tmap.{token}.tmp", tmp_path / f".x.tmap.{'a' * 16}.tmp"
    others = [tmp_path / name for name in (f".y.tmap.{token}.tmp", ".x.tmap.tmp", ".x.tmap.short.tmp", "x.tmap")]
    for path in (dead, *others):
        path.write_bytes(b"")
    dead_folder.mkdir()
    (dead_folder / "text").write_bytes(b"")
    with scratch_folder(target) as alive:
        assert not dead.exists() and not dead_folder.exists()
        with publishing(target) as file:
            file.write(b"x")
            sweep(target)
            assert alive.exists() and len(list(tmp_path.iterdir())) == len(others) + 2
    assert sorted(tmp_path.iterdir()) == sorted(others) and target.read_bytes() == b"x"
    sweep(tmp_path / "no" / "such" / "x.tmap")


_BUILDER = """
import sys
from pathlib import Path
from support.token_maps import make_map
sys.stdout.write("ready\\n"); sys.stdout.flush()
for i in range(10**6):
    make_map(Path(sys.argv[1]), [[1, 2, 3], [4, 5, 6, 10 + i % 30]] * 20)
"""


def _start(*arguments: str) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    return process


@pytest.mark.stress
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no kill -9 on this system")
def test_a_builder_killed_at_any_moment_leaves_the_old_map_or_the_new(tmp_path: Path) -> None:
    path, rng = make_map(tmp_path / "x.tmap", OLD), random.Random(5)
    for _ in range(100):
        process = _start("-c", _BUILDER, str(path))
        time.sleep(rng.uniform(0, 0.25))
        process.kill()
        process.communicate()
        with TokenMap.open(path) as opened:
            opened.verify()
            assert opened.lookup([1], 1)[0].tokens == (2, 3)
    sweep(path)
    assert list(tmp_path.iterdir()) == [path]


_READER = """
import sys
from specedge.maps.token_map import TokenMap
sys.stdout.write("ready\\n"); sys.stdout.flush()
n = 0
for _ in range(400):
    with TokenMap.open(sys.argv[1]) as opened:
        opened.verify()
        found = {c.tokens[-1] for c in opened.lookup([1], 1) + opened.lookup([4], 1)}
        assert 3 in found and len(found) > 1, found
        n += 1
print(n)
"""


@pytest.mark.stress
def test_readers_never_see_a_torn_map_while_it_is_replaced(tmp_path: Path) -> None:
    path = make_map(tmp_path / "x.tmap", [[1, 2, 3], [4, 5, 6, 17]] * 20)
    writer = _start("-c", _BUILDER, str(path))
    try:
        readers = [_start("-c", _READER, str(path)) for _ in range(8)]
        for reader in readers:
            out, _ = reader.communicate(timeout=600)
            assert reader.returncode == 0 and out == b"400\n"
        assert writer.poll() is None
    finally:
        writer.kill()
        writer.communicate()
