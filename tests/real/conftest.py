"""The published models of the real lane, which `python -m tests.real.fetch FOLDER` gets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def real_models() -> Path:
    """The folder with tiny.en, base and base-b."""
    folder = os.environ.get("SPECEDGE_REAL_MODELS")
    if not folder:
        pytest.skip("SPECEDGE_REAL_MODELS names no folder with tiny.en, base and base-b (tests/real/fetch.py)")
    return Path(folder)
