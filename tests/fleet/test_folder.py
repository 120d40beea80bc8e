"""Locks, records and folders, on disks and in object stores, and what a broken store says."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from specedge.errors import AudioError, ResourceError, UsageError
from specedge.fleet import transcribe
from specedge.fleet.folder import LOCK, RECORDS, Folder, Journal, Record, find_sources, local_copy
from specedge.fleet.worker import Outcome, Task
from support.fleets import ANSWER, Serial

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def bucket() -> str:
    files = fsspec.filesystem("memory")
    files.store.clear()
    return "memory://bucket"


def _record(path: str, **more: Any) -> Record:
    return Record(**{"path": path, "state": "done", "text": "füllen", **more})


@pytest.mark.parametrize("place", ["disk", "store"])
def test_records_are_kept_between_runs(place: str, tmp_path: Path, bucket: str) -> None:
    folder = Folder(str(tmp_path) if place == "disk" else bucket)
    journal = Journal(folder)
    journal.add(_record("b.wav"))
    journal.add(_record("a.wav", state="failed", error="bad"))
    journal.close()
    again = Journal(folder)
    assert again.get("a.wav") == _record("a.wav", state="failed", error="bad", is_new=False)
    again.add(_record("a.wav"))
    again.close()
    told = [json.loads(line) for line in folder.read(RECORDS).splitlines()]
    assert [(one["path"], one["state"]) for one in told] == [("a.wav", "done"), ("b.wav", "done")]


def test_a_store_that_cannot_be_read_is_one_failed_record(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec.filesystem("memory").pipe_file("/bucket/a.wav", b"sound")
    kind = type(fsspec.filesystem("memory"))

    def refuse(*_: Any, **__: Any) -> Any:
        raise PermissionError("AccessDenied")

    monkeypatch.setattr(kind, "_open", refuse)
    with pytest.raises(AudioError, match="memory:///?bucket/a.wav: cannot be read: PermissionError: AccessDenied"):
        with local_copy("memory://bucket/a.wav"):
            pass


@pytest.mark.parametrize(
    ("method", "what"), [("pipe_file", "write"), ("cat_file", "read"), ("exists", "read"), ("ls", "list")]
)
def test_a_store_that_refuses_is_one_line(bucket: str, method: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise PermissionError("AccessDenied")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), method, refuse)
    folder = Folder(bucket)
    calls = {"pipe_file": lambda: folder.write("results/a", b"{}"), "cat_file": lambda: folder.read("results/a")}
    calls |= {"exists": lambda: folder.exists("results/a"), "ls": lambda: folder.names("results")}
    with pytest.raises(
        ResourceError, match=f"cannot {what} memory:///?bucket/results.*: PermissionError: AccessDenied"
    ):
        calls[method]()


@pytest.mark.parametrize("place", ["disk without locks", "store"])
def test_where_nothing_can_be_locked_a_driver_works_all_the_same(
    place: str, tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fcntl = pytest.importorskip("fcntl")

    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with Folder(bucket if place == "store" else str(tmp_path)).locked():
        pass


def test_an_output_folder_that_cannot_be_written_to_is_one_line(tmp_path: Path) -> None:
    (tmp_path / LOCK).mkdir()
    with pytest.raises(ResourceError, match=r"cannot write .*/\.lock: IsADirectoryError"):
        with Folder(str(tmp_path)).locked():
            pass


def test_copies_of_workers_that_were_killed_are_removed(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    fsspec.filesystem("memory").pipe_file("/bucket/a.wav", b"sound")
    (tmp_path / f"specedge-fleet-{'0' * 16}.audio").write_bytes(b"half")
    with local_copy("memory://bucket/a.wav") as path:
        assert Path(path).read_bytes() == b"sound" and len(list(tmp_path.iterdir())) == 1
    assert not list(tmp_path.iterdir())


def test_a_store_of_an_unknown_kind_is_one_line() -> None:
    with pytest.raises(UsageError, match="nosuch://bucket/a.wav: ValueError: Protocol not known"):
        find_sources(["nosuch://bucket/a.wav"], notify=print)


def test_a_disk_without_room_for_a_copy_is_the_worker_s_fault(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec.filesystem("memory").pipe_file("/bucket/a.wav", b"sound")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "get_file", full)
    with pytest.raises(ResourceError, match="no room for a copy of memory://bucket/a.wav .*; set TMPDIR elsewhere"):
        with local_copy("memory://bucket/a.wav"):
            pass


def test_an_output_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(UsageError, match="this is a file, expected a folder"):
        Folder(str(tmp_path / "out"))


def test_left_over_temporary_files_and_parts_are_removed(tmp_path: Path) -> None:
    def found(task: Task) -> Outcome:
        return Outcome(state="found", name="a" * 64)

    folder = Folder(str(tmp_path / "out"))
    value = {"text": "said", "audio_sha256": "s", "language": "en", "duration": 1.0}
    folder.write(f"results/{'a' * 64}.json", json.dumps(value).encode())
    folder.write(f"parts/{'a' * 64}.0-2.json", b"{}")
    folder.write(f"parts/{'b' * 64}.0-2.json", b"{}")
    temporary = tmp_path / "out" / "results" / f".{'a' * 64}.json.{'0' * 16}.tmp"
    temporary.write_bytes(b"half")
    (tmp_path / "a.wav").write_bytes(b"sound")
    list(transcribe([tmp_path / "a.wav"], tmp_path / "out", cluster=Serial(found, {"w": ANSWER})))
    assert not temporary.exists()
    assert [path.name for path in (tmp_path / "out" / "parts").iterdir()] == [f"{'b' * 64}.0-2.json"]
