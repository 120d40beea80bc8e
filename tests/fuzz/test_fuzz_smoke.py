"""The fuzz targets run, on random edits and for a short while."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


def _target(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_maps_with_random_edits_do_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = _target("fuzz_tmap")
    target.without_checksums(monkeypatch.setattr)
    n_taken = target.random_edits(1500, tmp_path)
    assert 0 < n_taken < 1500  # the edits get past the checksums, and some lie in what does not matter
