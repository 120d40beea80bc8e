"""A map that is replaced while in use goes on as it was; one that was read, also when it is cut or overwritten."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from specedge.errors import MapError
from specedge.maps import token_map
from specedge.maps.token_map import TokenMap
from support.token_maps import make_map

SENTENCES = [[1, 2, 3, 4 + i % 30] for i in range(200)]

posix_only = pytest.mark.skipif(os.name == "nt", reason="POSIX files")


def _copy_over(path: Path) -> None:
    """As `cp newer.tmap path` does: the same file, cut and written again."""
    path.write_bytes(path.with_name("other.tmap").read_bytes())


def _cut(path: Path) -> None:
    path.write_bytes(b"")


def _replace(path: Path) -> None:
    os.replace(path.with_name("other.tmap"), path)


# Bytes that a process has mapped and that are gone end it with SIGBUS: so the reader is a process of its own.
_READER = """
import sys
from specedge.maps import token_map as map_file
from specedge.maps.token_map import TokenMap
map_file.READ_BYTES = int(sys.argv[2])
def said(opened):
    opened.verify()
    return repr([opened.lookup([1, 2], 2), list(opened.items(3))])
with TokenMap.open(sys.argv[1]) as opened:
    before = said(opened)
    print("ready", flush=True)
    sys.stdin.readline()
    assert said(opened) == before
"""


@pytest.mark.parametrize(
    ("change", "read_bytes"),
    [(_copy_over, token_map.READ_BYTES), (_cut, token_map.READ_BYTES), (Path.unlink, 0), (_replace, 0)],
)
def test_a_reader_goes_on_with_what_it_opened(tmp_path: Path, change: Callable[[Path], None], read_bytes: int) -> None:
    path = make_map(tmp_path / "use.tmap", SENTENCES)
    make_map(tmp_path / "other.tmap", [[7, 8]] * 3)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-c", _READER, str(path), str(read_bytes)]
    pipe = subprocess.PIPE
    reader = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment)
    assert reader.stdout is not None and reader.stdout.readline() == b"ready\n"
    change(path)
    _, errors = reader.communicate(b"\n", timeout=60)
    assert reader.returncode == 0, errors.decode()


@posix_only
def test_pipes_and_devices_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    found: list[str] = []

    def open_both() -> None:
        for path in (tmp_path / "pipe", Path("/dev/zero")):
            with pytest.raises(MapError, match="it is a pipe or a device, not a file") as caught:
                TokenMap.open(path)
            found.append(str(caught.value))

    thread = threading.Thread(target=open_both, daemon=True)
    thread.start()
    thread.join(timeout=10)
    assert len(found) == 2, "it waits for a writer"
