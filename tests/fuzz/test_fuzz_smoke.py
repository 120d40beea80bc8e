"""The fuzz targets run, by random edits and for a short while; what was found once is found mended."""

from __future__ import annotations

import importlib.util
import itertools
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

RUNS = {"wav": 2000, "manifest": 150, "tokenizer": 2000, "map": 1000, "learned": 100}


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def fuzz() -> ModuleType:
    return _module("fuzz")


@pytest.fixture(scope="module")
def targets() -> ModuleType:
    return _module("targets")


@pytest.mark.parametrize("name", RUNS)
def test_edited_files_do_no_harm(
    name: str, fuzz: ModuleType, targets: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = targets.TARGETS[name](tmp_path, monkeypatch.setattr)
    for data in fuzz.corpus(name):
        target.attempt(data)
    edits = fuzz.random_edits(target.attempt, target.seeds(), random.Random(1))
    taken = list(itertools.islice(edits, RUNS[name]))
    assert 0 < sum(taken) < RUNS[name]  # the edits get past the checksums, and some lie in what does not matter


def _raise(error: BaseException) -> Callable[[bytes], bool]:
    def attempt(data: bytes) -> bool:
        raise error

    return attempt


def test_a_finding_is_counted_and_saved_once(fuzz: ModuleType, tmp_path: Path) -> None:
    lane = fuzz.Lane("wav", _raise(IndexError("beyond")), tmp_path)
    assert not lane.run(b"one") and not lane.run(b"two")
    assert lane.runs == 2 and len(lane.findings) == 1 and "IndexError" in next(iter(lane.findings))
    assert [path.read_bytes() for path in (tmp_path / "wav").iterdir()] == [b"one"]


def test_all_that_a_target_may_do_wrong_ends_with_its_input_saved(
    fuzz: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that dies, and one that hangs."""
    calls: list[Any] = []

    def dies(command: list[str], **options: Any) -> Any:
        at_work = Path(command[command.index("--child") + 1]) / "at_work"
        at_work.write_bytes((6).to_bytes(8, "little") + b"deadly" + bytes(20))
        calls.append(options["timeout"])
        if len(calls) == 1:
            return fuzz.subprocess.CompletedProcess(command, -11, "", "Segmentation fault")
        raise fuzz.subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(fuzz.subprocess, "run", dies)
    for expected in ("ended with -11", "hangs"):
        (finding,) = fuzz.fuzz("map", 1.0, 100, 0, tmp_path)["findings"]
        assert expected in finding
        (path,) = (tmp_path / "map").iterdir()
        assert path.read_bytes() == b"deadly" and str(path) in finding
