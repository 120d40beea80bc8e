"""A bundle appears whole or not at all: whatever goes wrong, nothing is left behind and nothing good is lost."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from specedge.errors import ExactnessError, ResourceError, UsageError
from specedge.export import bundling, selfcheck
from specedge.export.bundling import write_bundle
from specedge.export.checkpoint import open_checkpoint
from specedge.files import scratch_folder
from specedge.leftovers import REPLACED, STALE_S
from specedge.runtime.bundle.bundle import Bundle
from support.checkpoints import make_checkpoint
from support.exported import bundle, checkpoint

Usage = namedtuple("Usage", "total used free")


def export(out: Path, *, source: Path | None = None, precision: str = "int8", **options: Any) -> Bundle:
    with open_checkpoint(source or checkpoint()) as opened:
        return write_bundle(opened, out, precision=precision, name="micro", version="0.1.0", **options)


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """No self-check: it is most of an export, and nothing to the manifest's other keys."""
    monkeypatch.setattr(bundling, "check_bundle", lambda *_: {})


def edit_generation(folder: Path, **changes: Any) -> None:
    path = folder / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def age(path: Path, seconds: float = STALE_S + 60) -> None:
    os.utime(path, (time.time() - seconds,) * 2)


def test_a_bundle_opens_and_tells_what_it_is() -> None:
    manifest = bundle("int8").manifest
    assert manifest.precision == "int8" and manifest.source.kind == "folder"
    assert manifest.window_s == pytest.approx(2.0) and manifest.n_frames == 200
    check = manifest.selfcheck
    assert check["row_invariance"]["exact"] is True and 0 < check["features_relative_error"] < 0.1
    assert set(manifest.files) == {
        *(
            f"{graph}.{kind}"
            for graph in ("encoder", "encoder_short", "cross_kv", "decoder")
            for kind in ("onnx", "data")
        ),
        "many.onnx",
        "align.onnx",
        "tokenizer.bin",
    }


def test_the_same_export_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    again = export(tmp_path / "again")
    assert dict(again.manifest.files) == dict(bundle("int8").manifest.files)
    assert (again.path / "specedge.json").read_bytes() == (bundle("int8").path / "specedge.json").read_bytes()


@pytest.mark.usefixtures("unchecked")
def test_a_teachers_alignment_heads_are_cut_to_the_students_layers(tmp_path: Path) -> None:
    """distil-whisper's checkpoints carry the list of a decoder with more layers."""
    folder = make_checkpoint(tmp_path / "source")
    edit_generation(folder, alignment_heads=[[1, 1], [7, 0], [0, 5], [1, 0], ["1", 0], [1], 3])
    assert export(tmp_path / "out", source=folder).manifest.alignment_heads == ((1, 1), (1, 0))


FAULTS = [
    (OSError(errno.ENOSPC, "No space left on device"), ResourceError, "No space left on device; free some space"),
    (OSError(errno.EACCES, "Permission denied"), ResourceError, "Permission denied; choose another place"),
    (KeyboardInterrupt(), KeyboardInterrupt, ""),
    (ExactnessError("rows are coupled"), ExactnessError, "rows are coupled"),
]


EARLY = [pytest.param(place, marks=pytest.mark.slow) for place in ("write_table", "build_cross_kv")]


@pytest.mark.parametrize("place", [*EARLY, "check_bundle", "_publish"])
@pytest.mark.parametrize(("fault", "raised", "message"), FAULTS, ids=lambda x: type(x).__name__)
def test_a_failure_leaves_nothing(
    place: str,
    fault: BaseException,
    raised: type[BaseException],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise fault

    monkeypatch.setattr(bundling, place, fail)
    with pytest.raises(raised, match=message or None):
        export(tmp_path / "out")
    assert not any(tmp_path.iterdir())


def test_a_failure_keeps_the_bundle_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    shutil.copytree(bundle("int8").path, out)
    monkeypatch.setattr(bundling, "check_bundle", fail_exactness)
    with pytest.raises(ExactnessError):
        export(out, precision="fp32", replace_existing=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert Bundle.open(out).manifest.precision == "int8"


def fail_exactness(*_: object, **__: object) -> None:
    raise ExactnessError("rows are coupled")


def test_an_unknown_precision_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="precision 'int7': expected one of fp32, int8, int4"):
        export(tmp_path / "out", precision="int7")
    assert not any(tmp_path.iterdir())


def test_a_disk_too_small_is_refused_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**9, 10**9, 1000))
    monkeypatch.setattr(bundling, "_write_files", lambda *_: pytest.fail("started all the same"))
    with pytest.raises(ResourceError, match=r"the bundle needs 0 MB and .* has 0 MB free; make room"):
        export(tmp_path / "out")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("limit_bytes", [0, 5_000, 100_000, 300_000])
def test_a_disk_that_fills_up_in_the_middle(limit_bytes: int, tmp_path: Path) -> None:
    resource = pytest.importorskip("resource", reason="no limit on the size of files here")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, before[1]))
    try:
        with pytest.raises(ResourceError, match="cannot write .*File too large"):
            export(tmp_path / "out", precision="fp32")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not any(tmp_path.iterdir())


def test_a_bundle_is_replaced_only_when_asked(tmp_path: Path) -> None:
    out = tmp_path / "out"
    export(out)
    with pytest.raises(UsageError, match=r"out: exists already; .*--force"):
        export(out, precision="fp32")
    assert Bundle.open(out).manifest.precision == "int8"
    export(out, precision="fp32", replace_existing=True)
    assert Bundle.open(out).manifest.precision == "fp32"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("kind", ["folder", "empty folder", "file", "dangling link"])
def test_what_is_no_bundle_is_never_replaced(kind: str, force: bool, tmp_path: Path) -> None:
    out = tmp_path / "out"
    if kind == "file":
        out.write_text("mine")
    elif kind == "dangling link":
        out.symlink_to("nowhere")
    else:
        out.mkdir()
        if kind == "folder":
            (out / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="is no bundle, so it is not replaced" if force else "exists already"):
        export(out, replace_existing=force)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert kind != "folder" or (out / "thesis.txt").read_text() == "mine"


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("manifest", ["whole", "{}", "no JSON"])
@pytest.mark.parametrize("name", ["thesis.txt", "sub/thesis.txt", ".git/HEAD"])
def test_a_folder_with_other_files_is_never_replaced(manifest: str, name: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    if manifest == "whole":
        shutil.copytree(bundle("int8").path, out)
    else:
        out.mkdir()
        (out / "specedge.json").write_text(manifest)
    (out / name).parent.mkdir(exist_ok=True)
    (out / name).write_text("mine")
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match=rf"out: holds what is no part of the bundle \({re.escape(name)}\)"):
        export(out, replace_existing=True)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    (out / name).unlink()
    (out / ".DS_Store").touch()
    export(out, replace_existing=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"] and Bundle.open(out)


def test_a_target_that_appears_meanwhile_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    check, other = selfcheck.check_bundle, bundle("fp32").path

    def race(*arguments: Any) -> Any:
        shutil.copytree(other, out)
        return check(*arguments)

    monkeypatch.setattr(bundling, "check_bundle", race)
    with pytest.raises(UsageError, match="exists already"):
        export(out)
    assert Bundle.open(out).manifest.precision == "fp32"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.usefixtures("unchecked")
def test_a_replacement_that_cannot_take_the_name_gives_it_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    shutil.copytree(bundle("int8").path, out)
    rename = os.rename
    n_calls = 0

    def second_fails(source: Any, target: Any) -> None:
        nonlocal n_calls
        n_calls += 1
        if n_calls == 2:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rename(source, target)

    monkeypatch.setattr(os, "rename", second_fails)
    with pytest.raises(ResourceError):
        export(out, precision="fp32", replace_existing=True)
    assert Bundle.open(out).manifest.precision == "int8"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.usefixtures("unchecked")
def test_a_linked_bundle_is_replaced_and_what_it_points_to_stays(tmp_path: Path) -> None:
    shutil.copytree(bundle("int8").path, tmp_path / "elsewhere")
    (tmp_path / "out").symlink_to("elsewhere")
    export(tmp_path / "out", precision="fp32", replace_existing=True)
    assert Bundle.open(tmp_path / "out").manifest.precision == "fp32" and not (tmp_path / "out").is_symlink()
    assert Bundle.open(tmp_path / "elsewhere").manifest.precision == "int8"


@pytest.mark.usefixtures("unchecked")
def test_leftovers_of_the_same_target_are_swept_unless_their_maker_lives(tmp_path: Path) -> None:
    dead = tmp_path / ".out.0123456789abcdef.tmp"
    other = tmp_path / ".out.en.0123456789abcdef.tmp"
    for folder in (dead, other):
        folder.mkdir()
        (folder / "encoder.data").write_bytes(b"half")
        age(folder)
    os.utime(dead)
    with scratch_folder(tmp_path / "out") as alive:
        age(alive)
        export(tmp_path / "out")
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted([alive.name, other.name, "out"])


def test_a_bundle_lost_between_two_renames_comes_back(tmp_path: Path) -> None:
    """A kill between moving the old bundle away and moving the new one in: nothing is at the target."""
    dead = tmp_path / ".out.0123456789abcdef.tmp"
    dead.mkdir()
    shutil.copytree(bundle("int8").path, dead / REPLACED)
    age(dead)
    with pytest.raises(UsageError, match="exists already"):
        export(tmp_path / "out")
    assert Bundle.open(tmp_path / "out").manifest.precision == "int8"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


KILLED = """
import sys
from pathlib import Path
from specedge.export import bundling
from specedge.export.checkpoint import open_checkpoint

def stall(*_):
    print("half way", flush=True)
    sys.stdin.read()

bundling.check_bundle = stall
with open_checkpoint(sys.argv[1]) as source:
    bundling.write_bundle(source, Path(sys.argv[2]), precision="int8", name="micro", version="0.1.0")
"""


@pytest.mark.skipif(os.name == "nt", reason="no SIGKILL")
@pytest.mark.usefixtures("unchecked")
def test_a_killed_export_leaves_one_hidden_folder_which_the_next_one_sweeps(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(checkpoint()), str(out)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None and process.stdout.readline() == "half way\n"
        process.send_signal(signal.SIGKILL)
    left = [path.name for path in tmp_path.iterdir()]
    assert len(left) == 1 and left[0].startswith(".out.") and left[0].endswith(".tmp")
    export(out)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
