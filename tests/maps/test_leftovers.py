"""What a killed process left goes with the next run, what a living one works on stays, on disks without locks too."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specedge import leftovers
from specedge.errors import AudioError
from specedge.leftovers import Names, sweep, temporary_file, temporary_folder
from specedge.runtime.audio.audio import open_audio

needs_locks = pytest.mark.skipif(os.name == "nt", reason="no locks on files of others there: age decides")

_MAKER = """
import sys
from pathlib import Path
from specedge.leftovers import Names, temporary_file, temporary_folder
names = Names(parent=Path(sys.argv[1]), prefix=".x-", suffix=".part")
with temporary_file(names) as file, temporary_folder(names) as folder:
    (folder / "inside").write_text("half")
    print("ready", flush=True)
    sys.stdin.read()
"""


def _names(folder: Path) -> Names:
    return Names(parent=folder, prefix=".x-", suffix=".part")


@needs_locks
def test_what_a_killed_process_left_goes_at_once_and_what_a_living_one_made_stays(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _MAKER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        made = sorted(tmp_path.iterdir())
        for path in made:
            os.utime(path, (1, 1))  # however long it has been at work
        sweep(_names(tmp_path))
        assert sorted(tmp_path.iterdir()) == made and len(made) == 2
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert sorted(tmp_path.iterdir()) == made
        with temporary_file(_names(tmp_path)) as mine:
            assert list(tmp_path.iterdir()) == [mine]
    assert not list(tmp_path.iterdir())


@needs_locks
def test_one_that_is_swept_before_it_is_locked_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, n_swept = leftovers.lock_of, 0

    def late(path: Path, *, wait: bool) -> int | None:
        nonlocal n_swept
        if wait and n_swept < 2:
            n_swept += 1
            sweep(_names(tmp_path))
        return lock(path, wait=wait)

    monkeypatch.setattr(leftovers, "lock_of", late)
    with temporary_folder(_names(tmp_path)) as folder:
        assert n_swept == 2 and list(tmp_path.iterdir()) == [folder]


def test_without_locks_age_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f".x-{letter * 16}.part" for letter in "abc"]
    fresh, stale, busy = (tmp_path / name for name in names)
    fresh.write_text("")
    stale.write_text("")
    busy.mkdir()
    old = time.time() - 2 * leftovers.STALE_S
    for path in (stale, busy):
        os.utime(path, (old, old))
    (busy / "inside").write_text("being written")

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    if sys.platform != "win32":
        monkeypatch.setattr(leftovers.fcntl, "flock", refuse)
    with temporary_file(_names(tmp_path)) as mine:
        mine.write_text("x")
        sweep(_names(tmp_path))
        assert sorted(tmp_path.iterdir()) == sorted([fresh, busy, mine])


def test_links_and_names_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / f".x-{'0' * 16}.part").symlink_to("mine.txt")
    (tmp_path / ".x-short.part").write_text("")
    (tmp_path / f".x-{'0' * 16}.part.txt").write_text("")
    sweep(_names(tmp_path))
    assert len(list(tmp_path.iterdir())) == 4


@needs_locks
def test_the_copy_of_a_killed_process_s_standard_input_is_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is somebody's speech, and may be gigabytes."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left = tmp_path / "specedge-audio-0123456789abcdef"
    left.write_bytes(b"fLaC" + bytes(1000))
    with open(Path(__file__).parents[2] / "tests/assets/samples/maintenance.wav", "rb") as file:
        data = file.read()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as pipe:
        assert pipe.stdin is not None and pipe.stdout is not None
        pipe.stdin.write(b"OggS" + data[:1000])
        pipe.stdin.close()
        with pytest.raises(AudioError):
            open_audio(pipe.stdout)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
