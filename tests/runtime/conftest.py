"""What tests of the command share: a scripted model in place of a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specedge.models import store
from specedge.runtime.cli import transcribe_files
from support.fake_cli import fake_model


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, int | None]]:
    """A scripted model instead of a bundle; the list holds what was loaded."""
    loaded: list[tuple[Path, int | None]] = []

    def load(path: Path, threads: int | None) -> Any:
        loaded.append((path, threads))
        return fake_model()

    monkeypatch.setattr(transcribe_files, "_load", load)
    monkeypatch.setattr(store, "default", lambda: Path("demo"))
    monkeypatch.setattr(store, "find", Path)
    return loaded
