"""What tests of the command share: a scripted model in place of a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specedge.models import store
from specedge.runtime import model as models
from support.fake_cli import fake_model
from support.fake_engine import scripted_drafter


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, int | None]]:
    """A scripted model instead of a bundle; the list holds what was loaded."""
    loaded: list[tuple[Path, int | None]] = []

    def load(path: Path, threads: int | None, budget_bytes: int | None = None, encoder_provider: str = "cpu") -> Any:
        loaded.append((path, threads or None))
        return fake_model()

    monkeypatch.setattr(models, "load", load)
    monkeypatch.setattr(models, "make_drafter", scripted_drafter)
    monkeypatch.setattr(models, "choose_bundle", lambda path, **_: path)
    monkeypatch.setattr(store, "find", Path)
    return loaded
